#include "peer/admission/audit.hpp"

#include <algorithm>
#include <optional>

#include "gossip/plain_text.hpp"
#include "peer/admission/words.hpp"
#include "peer/keys/keys.hpp"

namespace gossamer::peer {
namespace {

constexpr std::string_view taken_word = "taken";
constexpr std::string_view refused_word = "refused";
constexpr std::size_t max_what_bytes = 1024;

/// TIME taken|refused TIMES NODE WHAT
std::optional<AuditRecord> parse_audit_record(std::string_view line) {
  AuditRecord record;
  if (!parse_number(next_word(line), record.at)) return std::nullopt;
  const std::string_view outcome = next_word(line);
  record.is_taken = outcome == taken_word;
  if (!record.is_taken && outcome != refused_word) return std::nullopt;
  if (!parse_number(next_word(line), record.times) || !parse_hex(next_word(line), record.told_by.bytes))
    return std::nullopt;
  if (!is_plain_text(line, max_what_bytes)) return std::nullopt;
  record.what = line;
  return record;
}

/// Cuts the text to the length that a record may have, so that the written file can be read again.
std::string fit(std::string what) {
  if (what.size() > max_what_bytes) {
    std::size_t end = max_what_bytes - 3;
    while (end > 0 && (static_cast<unsigned char>(what[end]) & 0xc0) == 0x80)
      --end;  // a cut inside a UTF-8 character moves to its start
    what = what.substr(0, end) + "...";
  }
  return is_plain_text(what, max_what_bytes) ? what : "(not plain text)";
}

/// The part of the text that names what was refused, before the details.
std::string_view kind_of(std::string_view what) {
  return what.substr(0, what.find(':'));
}

void push(std::deque<AuditRecord>& records, AuditRecord record, std::size_t most) {
  records.push_back(std::move(record));
  if (records.size() > most) records.pop_front();
}

}  // namespace

void Audit::note_taken(TimeUs at, const NodeId& told_by, std::string what) {
  push(taken_, {.at = at, .told_by = told_by, .is_taken = true, .what = fit(std::move(what))}, max_audit_taken);
}

void Audit::note_refused(TimeUs at, const NodeId& told_by, std::string what) {
  AuditRecord record{.at = at, .told_by = told_by, .what = fit(std::move(what))};
  const auto before = std::ranges::find_if(refused_, [&](const AuditRecord& one) {
    return one.told_by == told_by && kind_of(one.what) == kind_of(record.what);
  });
  if (before != refused_.end()) {
    record.times = before->times + 1;
    refused_.erase(before);
  }
  push(refused_, std::move(record), max_audit_refused);
}

std::vector<AuditRecord> Audit::records() const {
  std::vector<AuditRecord> all(taken_.begin(), taken_.end());
  all.insert(all.end(), refused_.begin(), refused_.end());
  std::ranges::stable_sort(all, {}, &AuditRecord::at);
  return all;
}

std::string Audit::text() const {
  std::string text;
  for (const AuditRecord& record : records()) {
    text.append(std::to_string(record.at)).append(" ").append(record.is_taken ? taken_word : refused_word);
    text.append(" ").append(std::to_string(record.times)).append(" ").append(record.told_by.full());
    text.append(" ").append(record.what).append("\n");
  }
  return text;
}

std::expected<Audit, std::string> Audit::parse(std::string_view text) {
  Audit audit;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = next_line(text);
    auto record = parse_audit_record(line);
    if (!record) return std::unexpected("line " + std::to_string(number) + " is no record of a decision");
    const bool is_taken = record->is_taken;
    push(is_taken ? audit.taken_ : audit.refused_, *std::move(record), is_taken ? max_audit_taken : max_audit_refused);
  }
  return audit;
}

}  // namespace gossamer::peer
