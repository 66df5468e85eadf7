#include "daemon/cluster/decision_keeper.hpp"

namespace gossamer::daemon {

namespace {

constexpr TimeUs retry_us = 10 * us_per_s;  // until a failed write is tried again

}  // namespace

template <class Content>
std::expected<void, std::string> DecisionKeeper::keep(File& file, const Content& content, TimeUs now_us) {
  auto kept = state_.keep(content);
  if (!kept) log_.error("{}: {}", file.unless_kept, kept.error());
  file.changed = !kept;
  file.next_us = now_us + (kept ? file.interval_us : retry_us);
  return kept;
}

void DecisionKeeper::tick(const peer::Overlay& overlay, TimeUs now_us) {
  const auto is_due = [now_us](const File& file) { return file.changed && now_us >= file.next_us; };
  if (is_due(denials_)) (void)keep(denials_, overlay.denials(), now_us);
  if (is_due(audit_)) (void)keep(audit_, overlay.audit(), now_us);
  if (is_due(certificates_)) (void)keep(certificates_, overlay.certificates(), now_us);
}

void DecisionKeeper::keep_changed(const peer::Overlay& overlay, TimeUs now_us) {
  denials_.next_us = audit_.next_us = certificates_.next_us = 0;
  tick(overlay, now_us);
}

std::expected<void, std::string> DecisionKeeper::keep_all(const peer::Overlay& overlay, TimeUs now_us) {
  auto denials = keep(denials_, overlay.denials(), now_us);
  (void)keep(audit_, overlay.audit(), now_us);
  auto certificates = keep(certificates_, overlay.certificates(), now_us);
  return denials ? certificates : denials;
}

}  // namespace gossamer::daemon
