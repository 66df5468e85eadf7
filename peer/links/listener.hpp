// Listens for the node: one ROUTER socket behind CURVE, the doorkeeper that ZeroMQ asks about each key (ZAP, RFC 27),
// and the socket's monitor.
//
// ZeroMQ takes a CURVE key when it binds, and unbinding would end every connection accepted there. So each listening
// key has a bound socket of its own, all on the same port (SO_REUSEPORT), and the kernel is told which of them gets new
// connections (SO_ATTACH_REUSEPORT_CBPF). In this way the key can change while the links stay.
//
// ZeroMQ lets in whoever completes the CURVE handshake, which needs the cluster key or an invitation, unless its node
// is denied. The listener's owner decides what a connection may say after that: every message comes with the public key
// that the connection has proven to own. Until the owner has admitted it, a connection is a stranger's, and closed when
// its time is over or when there are too many (Connections). One thread, the loop's; handlers may call send() and
// close().
//
// The doorkeeper also gives each connection its routing id. ZeroMQ itself would take the id that the other end claims,
// or count upwards if none is claimed. A stranger that claims the next number would make ZeroMQ end the process by an
// assertion.
//
// Connections whose messages are sealed (peer/links/seal.hpp) come to the same port without CURVE. The kernel tells
// them by the mark of their first packet. The doorkeeper lets in, once, whoever shows a ticket that expect_sealed() has
// named. From then on the connection counts as one of the node key that the ticket was given to.

#pragma once

#include <array>
#include <asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>

#include "peer/address.hpp"
#include "peer/admission/bulk_keys.hpp"
#include "peer/keys/cluster_keys.hpp"
#include "peer/limits.hpp"
#include "peer/links/connections.hpp"
#include "peer/links/sealed_end.hpp"
#include "peer/links/socket_events.hpp"

namespace gossamer::peer {

/// A message, with the connection it came on.
struct Arrival {
  std::string routing_id;
  int descriptor = -1;  ///< the connection's
  std::string user_id;  ///< hex of the connection's public key
  std::string host;     ///< the other end's IP address, as seen from here
  Delivery delivery;
  bool damaged = false;  ///< the connection is sealed, and this message is not as it was sealed
};

/// Why a connection ended before a message came on it.
enum class HandshakeFailure : std::uint8_t {
  other_key,       ///< a node of another cluster, or with a key that is not listened with
  unencrypted,     ///< it speaks ZeroMQ's protocol, but not as nodes do
  other_protocol,  ///< another program's client
  gave_up,         ///< it ended the handshake, or was turned away
};

class Listener {
 public:
  struct Handlers {
    std::function<void(Arrival&&)> arrived;
    std::function<void()> lost_connection;  ///< an admitted connection ended; send() finds out which
    /// `host` is empty if the connection was gone before its address could be read. A handshake that the other end
    /// gives up is not told.
    std::function<void(const std::string& host, HandshakeFailure why)> handshake_failed;
    std::function<void(const NodeId& node, const std::string& host)> denied;  ///< a denied node was turned away
    std::function<void(const Connections::Closing&)> closing;                 ///< a stranger's connection is closed now
    std::function<TimeUs()> now;
  };

  Listener(asio::io_context& loop, zmq::context_t& context, Handlers handlers)
      : loop_(loop), context_(context), handlers_(std::move(handlers)) {}
  ~Listener() { close(0); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// To be called before start(). A connection is closed when its other end has acknowledged nothing for a few times
  /// `silence_ms`. Otherwise connections that end without notice (behind a partition, or a router that forgets them)
  /// would add up. Their diallers have given them up long before.
  void set_silence(int silence_ms) { silence_ms_ = silence_ms; }
  /// To be called before start(). Limits the connections that are not admitted yet, and the time that each has.
  void limit_strangers(std::size_t most, TimeUs patience) { connections_ = {most, patience}; }
  /// To be called before start(). Connections come through this network interface only; empty: through any.
  void set_interface(std::string name) { interface_ = std::move(name); }
  /// To be called before start(). Without threads the loop seals and opens.
  void set_seal_threads(std::shared_ptr<SealThreads> threads) { seal_threads_ = std::move(threads); }
  /// Binds the port, for sealed connections as well if they are wanted and the system can tell them apart. The error
  /// says what is in the way. To be called once.
  [[nodiscard]] std::expected<void, std::string> start(const Address& address, const ClusterKey& key,
                                                       int high_water_messages, bool takes_sealed);
  /// Uses this key for new connections; existing ones stay. An error changes nothing. It means that the system does not
  /// allow it, or that max_listening_keys have been used.
  [[nodiscard]] std::expected<void, std::string> listen_with(const ClusterKey& key);
  /// Turns these nodes away from now on; connections that are there already stay.
  void set_denied(std::set<NodeId> denied) { denied_ = std::move(denied); }
  /// True if sealed connections can come, since the system can tell them apart.
  [[nodiscard]] bool takes_sealed() const { return sealed_index_.has_value(); }
  /// One sealed connection may come with this ticket, in the time that a stranger has. `user_id`: hex of the node key
  /// that the ticket was given to.
  void expect_sealed(const BulkKeys& keys, SealForm form, std::string user_id);
  /// How an admitted connection is sealed; nothing: it goes through CURVE.
  [[nodiscard]] std::optional<SealForm> form_of(const std::string& routing_id) const;
  /// The address where it listens, with the port that was found if 0 was asked for.
  [[nodiscard]] const Address& address() const { return address_; }
  [[nodiscard]] SendResult send(const std::string& routing_id, const Frames& frames, const QueueMeter& meter);
  /// Soon reads all messages that wait, in a handler of its own. The last message of an ended connection may be a
  /// goodbye.
  void read_rest_soon();
  /// Sends on a sealed connection what ZeroMQ had no room for.
  void flush(const std::string& routing_id);
  /// The connection of this message may stay.
  void admit(const Arrival& arrival);
  /// The connection is a stranger's from now on, and has a stranger's time to hear why.
  void dismiss(const std::string& routing_id);
  /// Closes the connections of strangers whose time is over. To be called every now and then.
  void tend();
  void close(int linger_ms);

 private:
  struct Bound {
    std::optional<Fingerprint> key;  ///< none: for sealed connections
    int descriptor = -1;             ///< ZeroMQ closes it
  };
  struct Sealed {
    SealedEnd end;
    std::string user_id;
    std::string password;
    TimeUs expires_at = 0;
    bool shown = false;     ///< the ticket has been used
    bool admitted = false;  ///< it belongs to a link, and does not expire
  };

  struct FailedHandshake {
    HandshakeFailure why;
    std::uint64_t last_order;  ///< of the connections that there were, this one among them
  };
  using Answer = std::array<std::string, 8>;  // the frames

  void bind(int descriptor, const ClusterKey& key);
  void bind_sealed();
  void hand_over(int descriptor);
  [[nodiscard]] std::expected<int, int> socket_beside();
  [[nodiscard]] int steer(int descriptor, std::size_t index) const;
  [[nodiscard]] bool takes_ticket(const std::string& name, const std::string& password);
  void start_doorkeeper();
  void ask_doorkeeper(Received&& request);
  void answer_all();
  void receive(Received&& received);
  void hand_on(Arrival&& arrival, Received&& received);
  void note(SocketEvent event);
  void note_end(int descriptor);
  void note_failure(HandshakeFailure why);
  void watch_strangers();
  void hang_up(const Connections::Closing& closing);

  asio::io_context& loop_;
  zmq::context_t& context_;
  Handlers handlers_;
  std::set<NodeId> denied_;
  int silence_ms_ = 3000;
  std::string interface_;
  std::shared_ptr<SealThreads> seal_threads_;
  Address address_;
  std::string numeric_host_;
  std::vector<Bound> bound_;  ///< in the order in which they began to listen; at most max_listening_keys + 1
  std::size_t steered_to_ = 0;
  std::optional<std::size_t> sealed_index_;         ///< in bound_
  std::unordered_map<std::string, Sealed> sealed_;  ///< connections that are expected or exist, by routing id
  Connections connections_{max_strangers, stranger_patience_us};
  /// The handshake that has failed last, until ZeroMQ tells an end that may be its.
  std::optional<FailedHandshake> failed_;
  /// How many connections have completed the handshake, less those on which a message has come. Negative while a
  /// message has been seen before its handshake.
  std::int64_t secured_and_silent_ = 0;
  std::shared_ptr<PolledSocket> router_;
  std::shared_ptr<PolledSocket> doorkeeper_;
  std::vector<Answer> answers_;  ///< the doorkeeper's, not sent yet
  asio::steady_timer doorkeeper_timer_{loop_};
  std::shared_ptr<PolledSocket> events_;
  asio::steady_timer strangers_timer_{loop_};
  bool watches_strangers_ = false;
  std::optional<TimeUs> trims_at_;  ///< when the C library gives back what is free; nothing: no stranger was closed
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< reset by close()
};

}  // namespace gossamer::peer
