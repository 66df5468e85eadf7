// The collectives in which this node's processes average exactly, and the socket where the processes ask for it
// (sdk/layout/average.hpp).
//
// Every process is a participant by itself, also where several are on one node. Messages between processes of this node
// do not leave it. Everything but long computing runs on the loop's thread. A message or client that breaks the rules
// changes nothing; the client is told why it is refused.

#pragma once

#include <spdlog/logger.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <expected>
#include <filesystem>
#include <list>
#include <string>
#include <utility>

#include "daemon/average/collective_member.hpp"
#include "daemon/system/client_ledger.hpp"
#include "daemon/system/unix_socket.hpp"
#include "daemon/system/user_rights.hpp"
#include "daemon/system/workers.hpp"
#include "sdk/layout/average.hpp"

namespace gossamer::daemon {

/// The node as its collectives see it.
class AveragesHost {
 public:
  virtual ~AveragesHost() = default;
  [[nodiscard]] virtual NodeId id() const = 0;
  [[nodiscard]] virtual TimeUs now_us() const = 0;
  virtual bool send(const NodeId& to, const Message& message) = 0;
  [[nodiscard]] virtual std::vector<NodeId> neighbours() const = 0;
  [[nodiscard]] virtual Workers& workers() = 0;
  /// The name of another node in the log and in messages to users.
  [[nodiscard]] virtual std::string called(const NodeId& node) const { return node.brief(); }
  /// Whether the node's certificate lets it train the job.
  [[nodiscard]] virtual bool may_train(const NodeId& /*node*/, std::string_view /*job*/) const { return true; }
};

class Averages {
 public:
  /// `first_life`: larger than the lives of all earlier participants of this node, and not 0. `loop`, `host` and `log`
  /// outlive this object.
  Averages(asio::io_context& loop, AveragesHost& host, std::uint64_t first_life, const ClientLimits& limits,
           spdlog::logger& log);
  ~Averages();

  /// Begins to accept processes. The error is fit for the user.
  /// `rights` outlives this object.
  [[nodiscard]] std::expected<void, std::string> open(const std::filesystem::path& socket, const UserRights& rights);
  /// Refuses processes whose users may no longer train their jobs.
  void end_not_permitted();
  void set_limits(const ClientLimits& limits) { ledger_.set_limits(limits); }

  void link_up(const NodeId& node);
  void link_down(const NodeId& node);
  void node_dead(const NodeId& node);
  void received(const NodeId& from, gossip::AverageNote&& note);
  void received(const NodeId& from, gossip::AverageValues&& values);
  /// `all_dialled`: each contact is linked, or has failed once.
  void tick(bool all_dialled);

 private:
  struct Session;
  using Sessions = std::list<std::shared_ptr<Session>>;

  auto later(void (Averages::*action)());
  void look_at_socket(TimeUs now_us);
  void accept_when_ready();
  void accept_some();
  void watch_process(const std::shared_ptr<Session>& session);
  void wait_for(const std::shared_ptr<Session>& session);
  void read(const std::shared_ptr<Session>& session);
  [[nodiscard]] std::expected<void, std::string> begin(const std::shared_ptr<Session>& session,
                                                       std::span<const std::byte> bytes, int memory);
  [[nodiscard]] std::expected<AveragedMemory, std::string> map(int memory, std::uint64_t elements) const;
  [[nodiscard]] std::expected<void, std::string> call(Session& session, std::span<const std::byte> bytes);
  void end(Session& session);
  void refuse(Session& session, const std::string& why);
  void answer(Session& session);
  void tell_what_is_waited_for(Session& session);
  /// What the session's call waits for, and the same in words.
  [[nodiscard]] std::pair<layout::AverageWait, std::string> waits_for(const Session& session) const;
  /// The word of a reply that tells it to programs.
  [[nodiscard]] static std::uint32_t wait_word(const Session& session, layout::AverageWait what);
  bool send(const NodeId& to, const Message& message);
  void run(const std::weak_ptr<Session>& session, Workers::Work&& task, Workers::Work&& done);
  template <class Received>
  void deliver(const NodeId& from, const Received& message);
  void after_event();
  void deliver_here();

  asio::io_context& loop_;
  AveragesHost& host_;
  std::uint64_t next_life_;
  ClientLedger ledger_;  ///< by Session::id
  std::uint64_t accepted_ = 0;
  spdlog::logger& log_;
  const UserRights* rights_ = nullptr;  // set by open()
  std::optional<UnixSocket> listening_;
  asio::posix::stream_descriptor acceptor_;
  asio::steady_timer retry_;
  TimeUs looked_at_socket_us_ = 0;
  Sessions sessions_;
  std::deque<Message> to_self_;
  bool delivering_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gossamer::daemon
