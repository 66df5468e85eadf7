// How a job gets its model at a node. The node searches for a saved model, then joins the nodes that run the job, or
// decides with other newcomers who begins. The values come from other nodes, from a saved model or from the client.
//
//   searching → joining → over                    pulled from others, or this client's own model
//                  └ restoring → over             a saved model, if it is this node that begins
//
// The search comes first, since newcomers decide who begins by how far their models are. If this node begins, the whole
// saved model is read and checked before the client is given any of it, so that a damaged one leaves the client's own
// model as it is. (Lean memory has no room for a whole model: it is read twice, to check it and to give it.)
//
// This is a state machine: messages, results and time come in. Work is asked of BeginningHost and of BeginningWork,
// which reports its results. The daemon and the simulator use this class. One owner, one thread.

#pragma once

#include <expected>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "gossip/replica/executor.hpp"
#include "gossip/replica/joining.hpp"

namespace gossamer::gossip {

/// A model in a file that a job may begin with.
class SavedModel {
 public:
  virtual ~SavedModel() = default;
  /// The number of samples that the model has seen.
  [[nodiscard]] virtual std::uint64_t clock() const = 0;
  [[nodiscard]] virtual std::span<const std::byte> cursor() const = 0;
  /// Call it after the last fragment. Checks that all that was read is as it was written; the error says why not.
  [[nodiscard]] virtual std::expected<void, std::string> check() = 0;
  /// Goes back to the first fragment, which is then the next to be read.
  [[nodiscard]] virtual std::expected<void, std::string> rewind() = 0;
};

/// How copying the values of a pulled fragment ended.
struct PulledCopy {
  int memory_error = 0;  ///< errno value if lean memory had no room for the fragment; 0: there was room
  bool good = false;     ///< the values are there, as they were sent, and finite
};

/// The job as its beginning sees it.
class BeginningHost {
 public:
  virtual ~BeginningHost() = default;
  /// The job has ended, or its client is gone: results are not wanted any more.
  [[nodiscard]] virtual bool is_gone() const = 0;
  /// The search is over: the other nodes are to be told of the job.
  virtual void begin() = 0;
  /// The model is decided on. The job runs once the client has taken it over.
  virtual void run_if_joined() = 0;
  /// There was no memory for a fragment; `error` is an errno value.
  virtual void lacks_memory(int error) = 0;
};

class Beginning;

/// The node as a beginning sees it: other nodes, files, and the client's memory.
class BeginningWork {
 public:
  using Saved = std::shared_ptr<SavedModel>;

  virtual ~BeginningWork() = default;
  /// Results are reported to this beginning.
  void set_beginning(Beginning& beginning) { beginning_ = &beginning; }

  [[nodiscard]] virtual TimeUs beginning_now_us() const = 0;

  // --- other nodes
  /// Sends a message. It may be lost, since the beginning asks again after some time.
  virtual void ask(const NodeId& to, const Message& message) = 0;
  /// Copies the values of a pulled fragment to `target`, checks them there, and reports by Beginning::copied().
  virtual void copy(const NodeId& from, PullReply&& reply, float* target) = 0;

  // --- saved models
  /// Searches for saved models, and reports by Beginning::searched(). False: there is nowhere to search.
  virtual bool search() = 0;
  /// Reads the model's next fragment to `target` (null: only to check it), and reports by Beginning::read(). False: no
  /// more work is taken.
  virtual bool read(const Saved& saved, std::uint32_t f, float* target) = 0;

  // --- the client
  [[nodiscard]] virtual std::uint64_t client_clock() const = 0;
  virtual void set_fragments_pulled(std::uint32_t count) = 0;
  /// Tells the client that its model has seen `base` samples more than it counts, and that this cursor belongs to it.
  virtual void take_over(std::uint64_t base, std::span<const std::byte> cursor) = 0;
  /// A part of a damaged model has been taken over: the client is to attach again, and the beginning starts anew.
  virtual void end_session() = 0;

  // --- for people
  virtual void search_is_slow() {}
  /// The model was pulled, except for `missing` fragments that no node was left to give. `clock`: the clock of the
  /// pulled model. `unused`: a saved model that is not needed now, or null.
  virtual void pulled(std::uint32_t /*missing*/, std::uint64_t /*clock*/, const Saved& /*unused*/) {}
  virtual void begins_with(const Saved& /*saved*/) {}
  virtual void begins_with_own() {}
  virtual void refused(const Saved& /*saved*/, const std::string& /*why*/) {}

 protected:
  [[nodiscard]] Beginning& beginning() { return *beginning_; }

 private:
  Beginning* beginning_ = nullptr;
};

class Beginning {
 public:
  using Saved = BeginningWork::Saved;

  Beginning(BeginningHost& job, BeginningWork& work, Replica& replica, Executor& executor, const NodeId& self,
            const JobKey& key, JoiningOptions options = {});

  // --- steps
  /// Searches for saved models, then calls BeginningHost::begin(); at once if there is nowhere to search.
  void search();
  /// Joins the nodes that run the job. If there are none, it may begin with a model of this clock.
  void join(std::uint64_t clock);
  /// Ends the beginning: results that still come are ignored.
  void stop() { stage_ = Over{}; }

  // --- where it stands
  [[nodiscard]] bool is_searching() const { return std::holds_alternative<Searching>(stage_); }
  /// True while the model is not decided on.
  [[nodiscard]] bool is_under_way() const { return !std::holds_alternative<Over>(stage_); }
  [[nodiscard]] bool is_restoring() const { return std::holds_alternative<Restoring>(stage_); }
  /// True if the job begins at this node: the node has pulled nothing, and has heard of no settings.
  [[nodiscard]] bool begins_job() const { return fragments_pulled() == 0 && replica_.settings().version == 0; }
  /// True if the client has not yet taken all values over.
  [[nodiscard]] bool replaces_pending() const;
  /// The clock of the first saved model that the job may begin with; 0: there is none.
  [[nodiscard]] std::uint64_t candidate_clock() const;
  [[nodiscard]] std::uint32_t fragments_pulled() const;
  [[nodiscard]] std::uint32_t donors() const;
  [[nodiscard]] std::uint64_t pulled_bytes() const { return pulled_bytes_; }

  // --- what happens
  void link_up(const NodeId& node);
  void link_down(const NodeId& node);
  void info(const NodeId& from, const JobInfo& info);
  void set_round_trip(const NodeId& node, TimeUs round_trip_us);
  void pulled(const NodeId& from, PullReply&& reply);
  /// `all_dialled`: each configured peer is linked, or has failed once.
  void tick(bool all_dialled);

  // --- results of what was asked of BeginningWork
  /// `found`: the saved models, the best first.
  void searched(std::vector<Saved> found);
  void copied(const NodeId& from, PullReply&& reply, const PulledCopy& copy);
  /// `target`: where BeginningWork was asked to put the values. `problem`: empty if the values are there.
  void read(const Saved& saved, std::uint32_t f, const float* target, const std::string& problem);

 private:
  struct Searching {};
  struct Over {};
  struct Restoring {
    std::vector<Saved> saved;     // the first one is tried
    std::uint32_t next = 0;       // the fragment to read next
    bool checked = false;         // lean memory: the model was found good and is read again
    bool waits_for_room = false;  // reading waits for room, or for the client to take what it was given
  };

  template <class Feed>
  void decide(Feed feed);
  void joined(const Joining& joining);
  void hold_back(const NodeId& from, PullReply&& reply);
  void finish_pull(const NodeId& from, const PullReply& reply);
  void read_next();
  void restore_failed(const std::string& why);
  void restored();
  void give(std::uint32_t f);
  [[nodiscard]] bool is_given(std::uint32_t f) const;
  void take_over(std::uint64_t clock, std::span<const std::byte> cursor);
  [[nodiscard]] Joining* joining() { return std::get_if<Joining>(&stage_); }
  [[nodiscard]] const Joining* joining() const { return std::get_if<Joining>(&stage_); }

  BeginningHost& job_;
  BeginningWork& work_;
  Replica& replica_;
  Executor& executor_;
  const NodeId self_;
  const JobKey key_;
  const JoiningOptions options_;
  std::variant<Over, Searching, Joining, Restoring> stage_;
  TimeUs began_us_;
  std::vector<Saved> candidates_;                              // what the job may begin with; empty once it is decided
  std::vector<bool> copying_;                                  // fragments whose pulled values are being copied
  std::vector<std::pair<NodeId, PullReply>> pulls_held_back_;  // lean memory has no room for them yet
  std::uint64_t pulled_bytes_ = 0;
};

}  // namespace gossamer::gossip
