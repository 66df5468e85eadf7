// Where training processes attach: the Unix socket of sdk/layout/attach.hpp, the checks on each request, and the life
// of each attached client until it closes its end of the socket.
//
// A client with buffers in a GPU's memory gets its answer once that memory is mapped here. If a job's replica is on a
// GPU, a client with memory in the host gets its answer once that memory is pinned. Devices does both on another
// thread.
//
// Everything here runs on the loop's thread. Invariants: at most max_pending_attaches connections have sent no request
// yet or wait for a GPU, each for attach_timeout or device_timeout at most; sessions and their mappings keep to
// `limits`; every descriptor a client sends is owned or closed; a malformed request gets an AttachReply that says what
// is wrong, and changes nothing else.

#pragma once

#include <spdlog/logger.h>
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "daemon/clients/attached_clients.hpp"
#include "daemon/clients/client_handshake.hpp"
#include "daemon/clients/client_memory.hpp"
#include "daemon/clients/devices.hpp"
#include "daemon/clients/kept_memory.hpp"
#include "daemon/clients/node_memory.hpp"
#include "daemon/system/caller.hpp"
#include "daemon/system/client_ledger.hpp"
#include "daemon/system/unix_socket.hpp"
#include "daemon/system/user_rights.hpp"
#include "gossip/types.hpp"

namespace gossamer::daemon {

/// One attached client. The session lives, and its memory stays mapped, as long as somebody holds it, even after the
/// client has gone.
class ClientSession {
 public:
  /// `kept`: the node's memory that the client has kept since an earlier daemon; null: none.
  ClientSession(ClientMemory memory, Caller caller, bool resume, std::uint64_t number,
                std::shared_ptr<NodeMemory> kept = nullptr)
      : memory_(std::move(memory)),
        caller_(std::move(caller)),
        resume_(resume),
        number_(number),
        kept_(std::move(kept)) {}
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  [[nodiscard]] ClientMemory& memory() { return memory_; }
  [[nodiscard]] const ClientMemory& memory() const { return memory_; }
  [[nodiscard]] const Caller& caller() const { return caller_; }
  [[nodiscard]] pid_t pid() const { return caller_.process; }
  /// True if a daemon has served this memory before. Its words are then taken over as they are.
  [[nodiscard]] bool resume() const { return resume_; }
  /// Identifies the session; this daemon never uses the number again.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// The node's memory that the client keeps: the one that it brought, until attach() sets another.
  [[nodiscard]] const std::shared_ptr<NodeMemory>& kept() const { return kept_; }
  void keep(std::shared_ptr<NodeMemory> memory) { kept_ = std::move(memory); }

  /// The time that all runs of the client's process have served fragments, as they tell it. The process's sessions
  /// share this number.
  [[nodiscard]] std::uint64_t& process_serving_ns() { return *process_serving_ns_; }

  /// Ends the session, for a client that breaks the contract: the connection closes, and `detached` is called soon,
  /// from the loop. Idempotent.
  void close();
  /// Tells the program what keeps it apart from other nodes; empty: nothing does.
  void tell(const std::string& message) const {
    if (tell_) tell_(message);
  }

 private:
  friend class ClientListener;
  ClientMemory memory_;
  const Caller caller_;
  const bool resume_;
  const std::uint64_t number_;
  std::shared_ptr<NodeMemory> kept_;
  std::shared_ptr<std::uint64_t> process_serving_ns_ = std::make_shared<std::uint64_t>(0);
  std::function<void()> end_;  // the listener sets end_ and tell_ while the session is attached
  std::function<void(const std::string&)> tell_;
};

/// Receives the listener's events. All calls come from the loop, never from inside a call into the listener.
class ClientEvents {
 public:
  virtual ~ClientEvents() = default;
  /// The GPU that must be able to reach this memory, because the job's replica is on it; null: none.
  [[nodiscard]] virtual const gossip::Device* home_of(const ClientMemory&) const { return nullptr; }
  /// A client with valid memory asks to attach. To accept it, keep the pointer; the client is told after this returns.
  virtual std::expected<void, AttachRefusal> attach(std::shared_ptr<ClientSession> session) = 0;
  /// The client has published: look at the words. Several publications may come as one call.
  virtual void woken(ClientSession& session) = 0;
  /// The last call about a client: it has gone while the daemon goes on. When the daemon stops, this is not called,
  /// since the clients stay and attach to its successor.
  virtual void detached(ClientSession& session) = 0;
};

struct ClientListenerOptions {
  std::filesystem::path socket = {};  ///< absolute; its folder exists
  NodeId node = {};                   ///< told to clients
  ClientLimits limits = {};
  const UserRights* rights = nullptr;              ///< outlives the listener; null: everyone may do everything
  KeptMemory* kept = nullptr;                      ///< outlives the listener; null: nothing is kept
  Devices* devices = nullptr;                      ///< outlives the listener; null: GPUs are not used
  std::chrono::milliseconds attach_timeout{5000};  ///< from connecting to a complete request
  std::chrono::milliseconds device_timeout{8000};  ///< from the request until the GPU's driver has answered; less
                                                   ///< than the 10 s for which a client waits for its reply
  std::chrono::milliseconds socket_look_period = daemon::socket_look_period;
};

inline constexpr std::size_t max_pending_attaches = 64;
/// After a restart the former clients come back within this time: they try again every 2 s.
inline constexpr std::chrono::milliseconds return_patience{3000};
/// A repeated warning is logged this often: a refused client comes back every two seconds.
inline constexpr std::chrono::minutes repeated_warning_period{1};

/// Tells whether a warning is to be logged, because it is new or was not logged for a while.
class RepeatedWarning {
 public:
  [[nodiscard]] bool is_due(const std::string& text) {
    const auto now = std::chrono::steady_clock::now();
    if (text == text_ && now - said_ < repeated_warning_period) return false;
    text_ = text;
    said_ = now;
    return true;
  }

 private:
  std::string text_;
  std::chrono::steady_clock::time_point said_{};
};

class ClientListener : public std::enable_shared_from_this<ClientListener> {
 public:
  /// Binds the socket and begins to accept. `loop`, `events` and `log` outlive the listener. An error says what to do.
  [[nodiscard]] static std::expected<std::shared_ptr<ClientListener>, std::string> open(asio::io_context& loop,
                                                                                        ClientListenerOptions options,
                                                                                        ClientEvents& events,
                                                                                        spdlog::logger& log);
  /// Closes the socket, its file and every session. Nobody is told: see ClientEvents::detached().
  ~ClientListener();
  ClientListener(const ClientListener&) = delete;
  ClientListener& operator=(const ClientListener&) = delete;

  /// Listens again if the socket's file is gone; this is also done every few seconds.
  void look_at_socket();
  /// Refuses new clients from now on with AttachStatus::stopping; sessions go on.
  void refuse_new() { refusing_ = true; }
  /// Ends the sessions of clients whose users may not train their jobs any more.
  void end_not_permitted();

  [[nodiscard]] std::size_t sessions() const { return sessions_; }
  [[nodiscard]] std::size_t pending() const { return connections_.size() - sessions_; }
  /// Host memory shared with attached clients.
  [[nodiscard]] std::uint64_t memory_bytes() const { return ledger_.memory_bytes(); }
  /// Refused attempts since the start.
  [[nodiscard]] std::uint64_t refused() const { return refused_; }
  /// See ClientLedger::nearly_used().
  [[nodiscard]] std::string limits_near() const { return ledger_.nearly_used(); }

 private:
  struct Asking;
  struct Connection;

  ClientListener(asio::io_context& loop, ClientListenerOptions options, ClientEvents& events, spdlog::logger& log,
                 UnixSocket listening);

  void accept_when_ready();
  void accept_some();
  void turn_one_away();
  [[nodiscard]] std::optional<std::string> objection_to(const Caller& caller, std::string_view job) const;
  void begin(FileDescriptor socket);
  void expect_request(std::uint64_t number);
  void receive(std::uint64_t number, Connection& connection);
  std::expected<Asking, AttachRefusal> look_at(Connection& connection, AttachOffer offer);
  void share(std::uint64_t number, Connection& connection);
  Devices::Answer when_shared(std::uint64_t number);
  std::expected<std::shared_ptr<ClientSession>, AttachRefusal> make_session(std::uint64_t number,
                                                                            Connection& connection);
  void take(std::uint64_t number, Connection& connection);
  void refuse(std::uint64_t number, Connection& connection, const AttachRefusal& why);
  void warn_of_limits();
  void watch_socket(std::uint64_t number);
  void watch_wake(std::uint64_t number);
  void end_without_end(std::uint64_t number);
  void finish(std::uint64_t number);

  auto later(void (ClientListener::*action)());
  template <class Action>
  auto on(std::uint64_t number, Action action);

  asio::io_context& loop_;
  const ClientListenerOptions options_;
  ClientEvents& events_;
  spdlog::logger& log_;
  ClientLedger ledger_;
  AttachedClients attached_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::optional<UnixSocket> listening_;  // owns the socket and its file; empty for a moment while it is replaced
  asio::posix::stream_descriptor acceptor_;
  asio::steady_timer retry_;
  asio::steady_timer look_;
  FileDescriptor spare_;  // closed for a moment to refuse a client when no other descriptor is free
  std::map<std::uint64_t, std::unique_ptr<Connection>>
      connections_;  // pending and attached; at most max_pending_attaches + limits.clients
  std::size_t sessions_ = 0;
  std::uint64_t next_number_ = 1;
  std::uint64_t refused_ = 0;
  bool refusing_ = false;
  RepeatedWarning last_refusal_;
  RepeatedWarning last_near_limit_;
  RepeatedWarning last_socket_problem_;
};

}  // namespace gossamer::daemon
