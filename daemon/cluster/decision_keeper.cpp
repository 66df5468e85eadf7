#include "daemon/cluster/decision_keeper.hpp"

namespace gossamer::daemon {

namespace {

constexpr TimeUs certificates_interval_us = us_per_s;  // between two writes of what was heard of certificates
constexpr TimeUs retry_us = 10 * us_per_s;             // after a write that failed

}  // namespace

void DecisionKeeper::tick(const peer::Overlay& overlay, TimeUs now_us) {
  if (denials_changed_ && now_us >= next_denials_us_) (void)keep_denials(overlay, now_us);
  if (certificates_changed_ && now_us >= next_certificates_us_) (void)keep_certificates(overlay, now_us);
}

void DecisionKeeper::keep_changed(const peer::Overlay& overlay, TimeUs now_us) {
  next_denials_us_ = next_certificates_us_ = 0;
  tick(overlay, now_us);
}

std::expected<void, std::string> DecisionKeeper::keep_all(const peer::Overlay& overlay, TimeUs now_us) {
  auto denials = keep_denials(overlay, now_us);
  auto certificates = keep_certificates(overlay, now_us);
  return denials ? certificates : denials;
}

std::expected<void, std::string> DecisionKeeper::keep_denials(const peer::Overlay& overlay, TimeUs now_us) {
  auto kept = state_.keep(overlay.denials());
  if (!kept) log_.error("who is denied holds until the next start only: {}", kept.error());
  if (const auto noted = state_.keep(overlay.audit()); !noted)
    log_.error("who has decided it is not kept: {}", noted.error());
  denials_changed_ = !kept;
  next_denials_us_ = kept ? 0 : now_us + retry_us;
  return kept;
}

std::expected<void, std::string> DecisionKeeper::keep_certificates(const peer::Overlay& overlay, TimeUs now_us) {
  auto kept = state_.keep(overlay.certificates());
  if (!kept) log_.error("certificates hold until the next start only: {}", kept.error());
  certificates_changed_ = !kept;
  next_certificates_us_ = now_us + (kept ? certificates_interval_us : retry_us);
  return kept;
}

}  // namespace gossamer::daemon
