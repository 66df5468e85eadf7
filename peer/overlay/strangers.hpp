// Decides who is let in, from what is said on connections to our port on which no hello has been accepted yet.
//
// A hello that proves the cluster key is answered with a welcome and makes a link, or its second connection; a claim of
// an invitation is answered with the key ring; everything else is refused or ignored. Where two nodes dial each other
// at the same time, the one with the smaller id decides which link stays, here and in Links::introduced().
//
// Called by the overlay for each such message, on the loop's thread.

#pragma once

#include "peer/overlay/agreement.hpp"
#include "peer/overlay/links.hpp"

namespace gossamer::peer {

class Strangers {
 public:
  Strangers(OverlaySelf& self, LinkTable& table, Links& links, Listener& listener, Agreement& agreement,
            const OwnAddress& own_address)
      : self_(self),
        table_(table),
        links_(links),
        listener_(listener),
        agreement_(agreement),
        own_address_(own_address) {}

  void receive(Arrival&& arrival);

 private:
  struct Refusal {
    RejectReason reason;
    std::string text;
  };
  /// True if healthy nodes are refused for this reason as well.
  [[nodiscard]] static bool is_expected(const Refusal& refusal);
  [[nodiscard]] std::optional<Refusal> refusal_of(const Hello& hello, const Arrival& arrival);
  [[nodiscard]] std::optional<Refusal> refusal_of(const InvitationClaim& claim, const Arrival& arrival);
  [[nodiscard]] std::optional<Refusal> admit_control(const Hello& hello, const Arrival& arrival);
  [[nodiscard]] std::optional<Refusal> admit_bulk(const Hello& hello, const Arrival& arrival);
  [[nodiscard]] bool welcome(const Hello& hello, const Arrival& arrival, const LinkPtr& link);
  void refuse(const Arrival& arrival, const Refusal& refusal);
  void answer_claim(const InvitationClaim& claim, const Arrival& arrival);
  void answer(const Arrival& arrival, const ControlMessage& message);

  OverlaySelf& self_;
  LinkTable& table_;
  Links& links_;
  Listener& listener_;
  Agreement& agreement_;
  const OwnAddress& own_address_;
  ThrottleForEach key_throttle_{hello_burst, hellos_per_s, max_throttled};  ///< by the connection's key, in hex
  ThrottleForEach host_throttle_{hello_burst_of_host, hellos_per_s_of_host, max_throttled};
  ThrottleForEach told_throttle_{1, 1.0 / 3600, max_throttled};  ///< by the connection's key and why it is refused
};

}  // namespace gossamer::peer
