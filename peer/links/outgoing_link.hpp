// Dials a link: from the address to two admitted connections, one for control and one for bulk.
//
//   resolve the host → connect control → hello → welcome, proven → connect bulk → hello → welcome → established
//
// Where both ends seal bulk, the welcome on control is followed by an offer, and the bulk connection is made with the
// ticket that follows from it: without CURVE, each message sealed. If that connection fails, because something on the
// way removes its mark or does not let it pass, bulk goes through CURVE, as with older nodes.
//
// One object is one attempt; no link is made anew. A host with several addresses is tried at each address in turn, and
// a node that listens with another key of the ring is tried with each key in turn. A handshake that is cut off is
// repeated soon, a few times (peer/links/cut_handshakes.hpp). If every key fails, the attempt finds out whether a node
// answers at the address at all (peer/links/greeting.hpp).
//
// One thread, the loop's. Held by shared_ptr. Its owner is called from the loop only, never from inside a method, and
// may close the link whenever it is called.

#pragma once

#include <algorithm>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <optional>

#include "peer/address.hpp"
#include "peer/admission/bulk_keys.hpp"
#include "peer/keys/cluster_keys.hpp"
#include "peer/links/cut_handshakes.hpp"
#include "peer/links/greeting.hpp"
#include "peer/links/sealed_end.hpp"
#include "peer/links/socket_events.hpp"

namespace gossamer::peer {

/// Says why an attempt failed, or why a link ended.
struct LinkFailure {
  enum class Kind {
    unresolved,    ///< no address for that host name
    unreachable,   ///< nobody answers there
    handshake,     ///< every key of the ring was refused
    not_a_node,    ///< another program has the port
    denied,        ///< the other end's doorkeeper denies this node
    rejected,      ///< the other end said so, with `reason`
    bad_welcome,   ///< the other end is not who it says it is, or talks nonsense
    timeout,       ///< no link within the time for an attempt
    disconnected,  ///< the connection ended, or broke
    resources,     ///< this process has no more sockets
  };
  Kind kind = Kind::unreachable;
  RejectReason reason = RejectReason::bad_proof;
  std::string text;  ///< for people, complete
};

class OutgoingLink;

class OutgoingLinkEvents {
 public:
  virtual ~OutgoingLinkEvents() = default;
  /// The listener has proven which node it is. True: a link to that node is wanted, and the handler has not closed this
  /// one. False: the link closes itself.
  virtual bool introduced(OutgoingLink& link, const Welcome& welcome) = 0;
  virtual void established(OutgoingLink& link) = 0;
  virtual void delivered(OutgoingLink& link, Channel channel, Delivery&& delivery) = 0;
  /// The attempt has failed, or the link has ended. This is the last call.
  virtual void failed(OutgoingLink& link, const LinkFailure& failure) = 0;
};

struct OutgoingLinkOptions {
  Address address;
  std::uint64_t incarnation = 0;
  std::string own_address;
  std::uint64_t features = 0;
  std::string own_name;
  std::optional<Certificate> certificate = {};  ///< this node's
  DeputyList deputies = {};                     ///< see Hello::deputies
  std::string interface;                        ///< empty: as the machine routes
  int connect_timeout_ms = 0;
  std::array<int, channel_count> high_water_messages{};
  /// The number of ZeroMQ's I/O thread that carries bulk, from 0; -1: the one with the fewest connections.
  int bulk_io_thread = -1;
  std::shared_ptr<SealThreads> seal_threads = {};  ///< none: the loop seals
};

class OutgoingLink : public std::enable_shared_from_this<OutgoingLink> {
 public:
  /// The identity and `events` must outlive this object.
  OutgoingLink(asio::io_context& loop, zmq::context_t& context, OutgoingLinkOptions options, const Identity& identity,
               ClusterKeys keys, OutgoingLinkEvents& events);
  ~OutgoingLink() { close(0); }

  void start();
  /// The time for an attempt is over: closes the link and says why there is none. Nothing if it is established.
  [[nodiscard]] std::optional<LinkFailure> expire();
  [[nodiscard]] SendResult send(Channel channel, const Frames& frames, const QueueMeter& meter, TimeUs now);
  /// Sends what ZeroMQ had no room for.
  void flush();
  /// How bulk is sealed; nothing: it goes through CURVE, as control does.
  [[nodiscard]] std::optional<SealForm> bulk_form() const {
    return bulk_seal_ ? std::optional(bulk_seal_->form()) : std::nullopt;
  }
  /// The descriptor of the bulk connection, which ZeroMQ closes; -1 before it is connected.
  [[nodiscard]] int bulk_descriptor() const { return ends_[static_cast<std::size_t>(Channel::bulk)].descriptor; }
  /// No callback comes after this.
  void close(int linger_ms);
  [[nodiscard]] const Address& address() const { return options_.address; }

 private:
  /// How far one of the two connections has come.
  enum class Phase { dialled, connected, secured /* by ZeroMQ's handshake */, welcomed };
  struct End {
    std::shared_ptr<PolledSocket> socket;
    std::shared_ptr<PolledSocket> events;
    Hello hello;
    Phase phase = Phase::dialled;
    int descriptor = -1;  ///< set once it is connected
    std::chrono::steady_clock::time_point connected_at;

    /// A welcome may be read before the event that the handshake is done, which comes by another socket.
    void reach(Phase next) { phase = std::max(phase, next); }
  };

  [[nodiscard]] End& end(Channel channel) { return ends_[static_cast<std::size_t>(channel)]; }
  void resolved(std::vector<Address> endpoints);
  void connect(Channel channel);
  void open_socket(Channel channel);
  void say_hello(Channel channel);
  void receive(Channel channel, Received&& received);
  void take(Channel channel, Delivery&& delivery);
  void receive_answer(Channel channel, const Frames& frames);
  void welcome(Channel channel, const Welcome& welcome);
  void take_offer(const Frames& frames);
  /// Makes the bulk connection anew, through CURVE. False if it is not a sealed one, or is already welcomed.
  [[nodiscard]] bool give_up_sealing();
  void note_event(Channel channel, SocketEvent event);
  void disconnected(Channel channel);
  void unreachable(Channel channel);
  void broke(Channel channel);
  void handshake_failed(Channel channel);
  void cut_off(Channel channel);
  void cut_too_often(Channel channel);
  void ask_who_answers();
  [[nodiscard]] LinkFailure failure_of(const Greeting& greeting) const;
  void retry_control();
  void lost(Channel channel, LinkFailure::Kind kind, std::string text);
  void fail(LinkFailure::Kind kind, std::string text, RejectReason reason = RejectReason::bad_proof);

  asio::io_context& loop_;
  zmq::context_t& context_;
  OutgoingLinkOptions options_;
  const Identity& identity_;
  const ClusterKeys keys_;  ///< the keys held when the attempt began
  OutgoingLinkEvents& events_;
  asio::ip::tcp::resolver resolver_;
  std::shared_ptr<GreetingProbe> greeting_probe_;  ///< set once every key has failed
  bool refused_slowly_ = false;     ///< a handshake was ended later than a node ends one because of its key
  asio::steady_timer retry_timer_;  ///< of a handshake that was cut off
  asio::steady_timer goodbye_timer_;
  asio::steady_timer sealing_timer_;
  std::vector<Address> endpoints_;  ///< numeric
  std::size_t endpoint_index_ = 0;
  std::chrono::steady_clock::time_point begun_at_;
  std::uint64_t number_;
  CutHandshakes cut_;
  std::uint64_t sockets_opened_ = 0;
  std::size_t key_index_ = 0;
  std::array<End, channel_count> ends_;
  Welcome welcome_;                     ///< the welcome that came on control
  bool offer_due_ = false;              ///< the next message on control is the offer
  std::optional<BulkKeys> bulk_keys_;   ///< set by the offer
  std::optional<SealedEnd> bulk_seal_;  ///< set if the bulk connection is, or is to be, sealed
  bool closed_ = false;
};

}  // namespace gossamer::peer
