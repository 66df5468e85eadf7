#include "daemon/cluster/decision_keeper.hpp"

#include <fmt/format.h>

namespace gossamer::daemon {

namespace {

constexpr TimeUs retry_us = 10 * us_per_s;  // until a failed write is tried again

}  // namespace

template <class Content>
std::expected<void, std::string> DecisionKeeper::keep(File& file, const Content& content, TimeUs now_us) {
  auto kept = state_.keep(content);
  if (!kept && file.failure.empty()) log_.error("{}: {}", file.unless_kept, kept.error());
  file.failure = kept ? "" : kept.error();
  file.changed = !kept;
  file.next_us = now_us + (kept ? file.interval_us : retry_us);
  return kept;
}

std::expected<void, std::string> DecisionKeeper::keep(const peer::KeyRing& ring, TimeUs now_us) {
  return keep(keys_, ring, now_us);
}

void DecisionKeeper::tick(const peer::Overlay& overlay, TimeUs now_us) {
  const auto is_due = [now_us](const File& file) { return file.changed && now_us >= file.next_us; };
  if (is_due(keys_)) (void)keep(keys_, overlay.keys(), now_us);
  if (is_due(denials_)) (void)keep(denials_, overlay.denials(), now_us);
  if (is_due(audit_)) (void)keep(audit_, overlay.audit(), now_us);
  if (is_due(certificates_)) (void)keep(certificates_, overlay.certificates(), now_us);
}

void DecisionKeeper::keep_changed(const peer::Overlay& overlay, TimeUs now_us) {
  keys_.next_us = denials_.next_us = audit_.next_us = certificates_.next_us = 0;
  tick(overlay, now_us);
}

std::expected<void, std::string> DecisionKeeper::keep_all(const peer::Overlay& overlay, TimeUs now_us) {
  auto denials = keep(denials_, overlay.denials(), now_us);
  (void)keep(audit_, overlay.audit(), now_us);
  auto certificates = keep(certificates_, overlay.certificates(), now_us);
  return denials ? certificates : denials;
}

std::optional<FindingStatus> DecisionKeeper::trouble() const {
  for (const File* file : {&keys_, &denials_, &certificates_, &audit_}) {
    if (file->failure.empty()) continue;
    return FindingStatus{.rule = "state",
                         .grade = "problem",
                         .text = fmt::format("{}: {}", file->unless_kept, file->failure),
                         .advice = "make the state folder writable again; it is tried every ten seconds"};
  }
  return std::nullopt;
}

}  // namespace gossamer::daemon
