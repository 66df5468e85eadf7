// One process's part in a collective: carries out what gossip::Averaging decides, on the process's values.
//
// The process's contribution stays in its own memory. An owner keeps the parts that others send until it adds them. The
// results of a round stay here, encoded, until the next round is applied, because late members may still need them.
// Workers compute the sums and put the results into the process's memory.
//
// One owner, the loop's thread.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "daemon/average/average_form.hpp"
#include "gossip/average/averaging.hpp"
#include "gossip/messages.hpp"

namespace gossamer::daemon {

/// The numbers that a process wants averaged; they stay mapped as long as somebody holds the pointer.
struct AveragedMemory {
  std::shared_ptr<const void> owner;
  std::span<float> values;
};

class CollectiveMember {
 public:
  /// False: the message cannot be sent now.
  using Send = std::function<bool(const NodeId& to, const Message& message)>;
  using Work = std::move_only_function<void()>;
  /// Runs `task` on another thread and then `done` on this one, never from within a function of the member. `done` is
  /// not run once the member is gone.
  using Run = std::function<void(Work&& task, Work&& done)>;
  /// A call that has ended.
  struct Answer {
    bool done = false;  ///< true: the mean is in the memory; false: this member missed the round
    std::uint64_t round = 0;
    std::size_t of = 0;   ///< how many contributions are in the mean
    bool joined = false;  ///< the process has become a member since its last answer
  };

  CollectiveMember(const JobKey& collective, const gossip::Participant& self, AveragedMemory memory, AverageForm form,
                   Send send, Run run);

  [[nodiscard]] const JobKey& collective() const { return collective_; }
  [[nodiscard]] const gossip::Participant& self() const { return self_; }
  [[nodiscard]] const gossip::Averaging& averaging() const { return averaging_; }

  void link_up(const NodeId& node);
  void link_down(const NodeId& node) { averaging_.link_down(node); }
  void node_dead(const NodeId& node);
  void node_alive(const NodeId& node) { averaging_.node_alive(node); }
  void allow_founding(TimeUs now_us, TimeUs time_of_day_us) { averaging_.allow_founding(now_us, time_of_day_us); }
  void received(const gossip::AverageNote& note);
  void received(const gossip::AverageValues& values);
  void tick(TimeUs now_us);

  /// Asks for an average of the values in the memory. The last call must have been answered.
  void call(std::size_t at_least, TimeUs grace_us);
  [[nodiscard]] bool is_waiting() const { return called_; }
  [[nodiscard]] std::size_t at_least() const { return at_least_; }
  [[nodiscard]] std::optional<Answer> take_answer() { return std::exchange(answer_, std::nullopt); }
  /// The process is gone. Its contribution may still be in a round.
  void leave();
  /// Whether leave() is complete: it is no member any more, and nobody waits for anything from it.
  [[nodiscard]] bool has_left() const { return left_; }

 private:
  using Results = std::vector<Bytes>;  // encoded, by fragment; empty: not here yet
  struct Sum {
    Bytes result = {};
    std::vector<float> lost = {};  // what rounding has taken from the result
  };
  /// The results are put into the process's memory, which then gets the answer.
  struct TakingOver {
    Answer answer;
    std::shared_ptr<const Results> results;  // null once the workers have begun
    std::size_t left;                        // tasks that are not over
  };
  /// Orders parts by fragment before member, so that the members take turns.
  struct InTurn {
    bool operator()(const gossip::Averaging::SendPart& a, const gossip::Averaging::SendPart& b) const;
  };

  void take(const gossip::AverageValues& values);
  [[nodiscard]] bool may_be_early(const gossip::AverageValues& values) const;
  void take_early();
  [[nodiscard]] static std::span<float> slice(std::span<float> all, std::uint32_t fragment);
  void encode_contribution();
  [[nodiscard]] Bytes contribution(std::uint32_t fragment) const;
  void carry_out(gossip::Averaging::Actions& out);
  void use(const gossip::Averaging::Applied& applied);
  void take_over();
  void taken_over();
  void new_plan(const gossip::Averaging::Actions& out);
  void send(const gossip::Participant& to, gossip::AverageMessage&& message);
  [[nodiscard]] bool send_part(const gossip::Averaging::SendPart& part);
  void send_waiting();
  void sum(std::uint32_t fragment);
  void summed(std::uint64_t round, const gossip::RoundPart& part, float n, const Sum& sum);
  void contribute_if_enough();

  JobKey collective_;
  gossip::Participant self_;
  AveragedMemory memory_;
  AverageForm form_;
  Send send_;
  Run run_;
  gossip::Averaging averaging_;

  Results results_;          // the results of the plan that is being carried out
  Results aside_;            // the results of the accepted plan, while another plan is carried out
  Results last_;             // the results of the last round
  std::size_t summing_ = 0;  // how many sums the workers are computing; they read the memory
  std::optional<TakingOver> taking_over_;
  std::vector<std::map<gossip::Participant, Bytes>> came_;  // others' contributions, by fragment
  /// Parts that their links cannot take now. Each is here once, although members ask again for what has not come.
  std::set<gossip::Averaging::SendPart, InTurn> waiting_;
  // The eight-bit form uses these two: the encoded contribution by fragment, and what rounding has taken away.
  std::vector<Bytes> rounded_;
  std::vector<float> carried_;
  gossip::FoundingId founding_;  // the group that `waiting_` and `early_` belong to
  // Parts whose plan has not come here yet: the plan comes from the conductor, the parts from other members.
  std::vector<gossip::AverageValues> early_;
  bool plan_is_new_ = false;

  bool called_ = false;       // the process has called, and has no answer yet
  std::uint64_t number_ = 0;  // the number of the last contribution
  bool contributed_ = false;  // the values of this call have been contributed
  std::size_t at_least_ = 1;
  bool joined_ = true;
  bool leaving_ = false;
  bool left_ = false;
  std::optional<Answer> answer_;
};

}  // namespace gossamer::daemon
