// The node's one listening socket: a ROUTER behind CURVE, the doorkeeper that ZeroMQ asks about each key (ZAP, RFC 27),
// and the socket's monitor.
//
// ZeroMQ takes a CURVE key when it binds, and to unbind would end every connection accepted there. So each key that is
// listened with has a bound socket of its own, all on the one port (SO_REUSEPORT), and the kernel is told which of them
// gets the connections that come (SO_ATTACH_REUSEPORT_CBPF): the key changes, the links stay.
//
// ZeroMQ lets in whoever completes the CURVE handshake, which takes the cluster key, unless its node is denied. What a
// connection may say after that is for its owner to decide (Links): every message comes with the public key that the
// connection has proven to own. One thread, the loop's; handlers may call send() and close().

#pragma once

#include <functional>
#include <set>

#include "peer/address.hpp"
#include "peer/cluster_keys.hpp"
#include "peer/polled_socket.hpp"

namespace gossamer::peer {

/// A message, with the connection it came on.
struct Arrival {
  std::string routing_id;
  std::string user_id;  ///< hex of the connection's public key
  std::string host;     ///< the other end's IP address, as seen from here
  Delivery delivery;
};

class Listener {
 public:
  struct Handlers {
    std::function<void(Arrival&&)> arrived;
    std::function<void()> lost_connection;   ///< some connection ended; send() finds out which
    std::function<void()> handshake_failed;  ///< a stranger, or a node with another cluster key
  };

  Listener(asio::io_context& loop, zmq::context_t& context, Handlers handlers);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// Before start(): connections whose other end has not even acknowledged anything for a few times as long are closed,
  /// so that those that end without a word (behind a partition, a router that forgets) do not add up. The dialler of
  /// such a one has given it up long since.
  void set_silence(int silence_ms) { silence_ms_ = silence_ms; }
  /// Before start(): connections come through this one only; empty: through any.
  void set_interface(std::string name) { interface_ = std::move(name); }
  /// Binds. The error says what is in the way. Once.
  [[nodiscard]] std::expected<void, std::string> start(const Address& address, const ClusterKey& key,
                                                       int high_water_messages);
  /// Connections that come from now on are met with this key; those that are there stay. An error leaves things as they
  /// are: the system does not let us, or max_listening_keys have been used.
  [[nodiscard]] std::expected<void, std::string> listen_with(const ClusterKey& key);
  /// Nodes that are turned away from now on; connections that are there already stay.
  void set_denied(std::set<NodeId> denied) { denied_ = std::move(denied); }
  /// Where it listens, with the port that was found if 0 was asked for.
  [[nodiscard]] const Address& address() const { return address_; }
  [[nodiscard]] SendResult send(const std::string& routing_id, const Frames& frames, const QueueMeter& meter);
  void close(int linger_ms);

 private:
  struct Bound {
    Fingerprint key{};
    int descriptor = -1;  ///< ZeroMQ's to close
  };

  void bind(int descriptor, const ClusterKey& key);
  [[nodiscard]] int steer(std::size_t index) const;
  void start_doorkeeper();
  void answer_doorkeeper(Received&& request);
  void receive(Received&& received);

  asio::io_context& loop_;
  zmq::context_t& context_;
  Handlers handlers_;
  std::set<NodeId> denied_;
  int silence_ms_ = 3000;
  std::string interface_;
  Address address_;
  std::string numeric_host_;
  std::vector<Bound> bound_;  ///< in the order in which they began to listen; at most max_listening_keys
  std::size_t steered_to_ = 0;
  std::shared_ptr<PolledSocket> router_;
  std::shared_ptr<PolledSocket> doorkeeper_;
  std::shared_ptr<PolledSocket> events_;
};

}  // namespace gossamer::peer
