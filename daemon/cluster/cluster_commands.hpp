// The operators' commands to the cluster through the control socket: deny and allow nodes, change its key, invite,
// join.
//
//   deny {node, reason}, allow {node}, denials        node: 32 hexadecimal digits, or the first 8 or more of one known
//   key_list, key_rotate, key_retire {fingerprint}
//   audit
//   authority, authority_set {authority, signatures}  64 hexadecimal digits, or "" for none
//   deputy_set {key, powers, name}                    a key of 64 hexadecimal digits
//   rule_set {certificates}                           true: nodes need one
//   certificates, pending, certify {certificates}     each as hexadecimal digits (peer/keys/certificate.hpp)
//   invite {expires_s, addresses, needs_warrant}, join {line}, join_status
//
// Where the cluster has an authority (peer/keys/authority.hpp), deny, allow, key_rotate, key_retire, deputy_set,
// rule_set and job_set (daemon/node.cpp) answer with what is to be signed, `to_sign`, and change nothing. The caller
// then asks again with {at_us, signatures}. `signatures` maps each statement to its signature, both in hexadecimal
// digits. authority_set without signatures answers in the same way.
//
// Owned by the node, on the loop's thread. Answers at once; joining goes on after the answer, and join_status tells how
// far it is. An invitation that stands in the configuration is tried again every join_retry until it is granted. No
// answer but invite's holds a secret.

#pragma once

#include <spdlog/logger.h>

#include <asio/steady_timer.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/cluster/cluster_state.hpp"
#include "daemon/control/control_commands.hpp"
#include "peer/overlay/overlay.hpp"

namespace gossamer::daemon {

inline constexpr std::int64_t default_invitation_s = 24 * 3600;
inline constexpr std::int64_t least_invitation_s = 1;
inline constexpr std::int64_t most_invitation_s = 365 * 24 * 3600;
inline constexpr std::chrono::seconds join_retry{10};
/// A prefix of a node's id names the node if it has at least this many digits.
inline constexpr std::size_t least_id_digits = 8;

/// The signatures in a request, without malformed ones.
[[nodiscard]] peer::Signatures signatures_in(const nlohmann::json& request);
/// Gives the fields of a job's settings that are to be signed.
[[nodiscard]] nlohmann::json to_sign(const std::string& job, const JobSettings& settings);

class ClusterCommands {
 public:
  /// All references outlive this object.
  ClusterCommands(asio::io_context& loop, peer::Overlay& overlay, ClusterState& state, std::string node_name,
                  spdlog::logger& log)
      : overlay_(overlay), state_(state), node_name_(std::move(node_name)), log_(log), timer_(loop) {}

  /// The rows of these commands. They are valid as long as this object.
  [[nodiscard]] std::vector<ControlCommand> control_commands();
  /// Joins with the invitation line of the configuration, and tries again until the invitation is granted.
  void join_until_granted(const std::string& line);
  void stop() { timer_.cancel(); }
  /// The answer that asks gossamerctl to sign these items: it names the authority and its deputies, too.
  [[nodiscard]] nlohmann::json to_sign_answer(nlohmann::json items) const;

 private:
  [[nodiscard]] nlohmann::json deny(const nlohmann::json& request) { return decide(request, true); }
  [[nodiscard]] nlohmann::json allow(const nlohmann::json& request) { return decide(request, false); }
  [[nodiscard]] nlohmann::json decide(const nlohmann::json& request, bool denied);
  [[nodiscard]] bool is_known(const NodeId& node) const;
  [[nodiscard]] bool asks_to_sign(const nlohmann::json& request) const;
  [[nodiscard]] nlohmann::json items_to_sign(bool all) const;
  [[nodiscard]] nlohmann::json authority() const;
  [[nodiscard]] nlohmann::json authority_set(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json deputies() const;
  [[nodiscard]] nlohmann::json deputy_set(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json rule_set(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json certificates() const;
  [[nodiscard]] nlohmann::json certify(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json waiting() const;
  [[nodiscard]] nlohmann::json denials() const;
  [[nodiscard]] nlohmann::json audit() const;
  [[nodiscard]] nlohmann::json key_list() const;
  [[nodiscard]] nlohmann::json key_rotate(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json key_retire(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json invite(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json join(const nlohmann::json& request);
  [[nodiscard]] std::expected<void, std::string> begin_join(const std::string& line);
  void join_ended(const peer::Invitation& invitation, const std::expected<void, std::string>& result);
  [[nodiscard]] std::expected<NodeId, std::string> node_named(const std::string& text) const;

  peer::Overlay& overlay_;
  std::optional<peer::RingKey> proposed_key_;  ///< the key that waits for a signature
  ClusterState& state_;
  std::string node_name_;
  spdlog::logger& log_;
  asio::steady_timer timer_;
  std::string join_state_ = "none";  ///< none, joining, joined or failed
  std::string join_message_;
  std::string last_failure_;  ///< the last failure that was logged
  std::string configured_line_;
};

}  // namespace gossamer::daemon
