// Gets the key ring for a node that holds an invitation: asks the members that the invitation names, one after the
// other, until one answers.
//
//   resolve the host → connect, CURVE with the invitation's listening key → claim → grant, or rejected and why
//
// A member may listen with another key at the moment (peer/admission/spread.hpp, key_slot()), so addresses where the
// handshake fails are tried again for claim_patience. A handshake that is cut off is repeated soon
// (peer/links/cut_handshakes.hpp). One thread, the loop's. Held by shared_ptr; `ended` is called once, from the loop,
// unless close() comes first.

#pragma once

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "peer/admission/invitation.hpp"
#include "peer/links/cut_handshakes.hpp"
#include "peer/links/greeting.hpp"
#include "peer/links/socket_events.hpp"

namespace gossamer::peer {

inline constexpr std::chrono::seconds claim_patience{30};
inline constexpr std::chrono::milliseconds claim_answer_timeout{5000};
inline constexpr std::chrono::milliseconds claim_pause{500};

class ClaimAttempt : public std::enable_shared_from_this<ClaimAttempt> {
 public:
  using Ended = std::function<void(std::expected<InvitationGrant, std::string>)>;

  /// `identity` must outlive this object. `certificate`: this node's, if the invitation has a warrant.
  ClaimAttempt(asio::io_context& loop, zmq::context_t& context, const Identity& identity, Invitation invitation,
               std::optional<Certificate> certificate, std::string interface, Ended ended);
  ~ClaimAttempt() { close(); }
  void start();
  void close();

 private:
  /// How far the connection to the present address has come.
  enum class Phase { dialled, connected, secured /* by CURVE's handshake */ };

  void try_address();
  void resolved(const Address& endpoint);
  void open_socket(const Address& endpoint);
  void receive(Received&& received);
  void note_event(SocketEvent event);
  void disconnected();
  void cut_off();
  void ask_who_answers();
  void leave_address();
  void try_after(std::chrono::microseconds pause);
  void next_address(std::string why, bool again);
  void finish(std::expected<InvitationGrant, std::string> result);
  [[nodiscard]] std::string here() const { return invitation_.addresses[index_].text(); }

  asio::io_context& loop_;
  zmq::context_t& context_;
  const Identity& identity_;
  Invitation invitation_;
  std::optional<Certificate> certificate_;
  std::string interface_;  ///< empty: as the machine routes
  Ended ended_;
  asio::ip::tcp::resolver resolver_;
  asio::steady_timer timer_;
  std::chrono::steady_clock::time_point give_up_at_;
  std::shared_ptr<PolledSocket> socket_;
  std::shared_ptr<PolledSocket> events_;
  Address endpoint_;                               ///< the present address, numeric
  std::shared_ptr<GreetingProbe> greeting_probe_;  ///< set once the handshake there has failed
  std::size_t index_ = 0;
  Phase phase_ = Phase::dialled;
  CutHandshakes cut_;
  bool try_again_ = false;  ///< a member has answered in this round, under another key
  std::string complaint_;   ///< the last error; errors of members that answer are preferred
  bool closed_ = false;
};

}  // namespace gossamer::peer
