// Several clients of one job at one node: when each is asked for a fragment, what of it is taken into the node's copy,
// and the training progress of the node as a whole. To the other nodes they are one replica.
//
// Averaging goes by rounds, one fragment at a time. A round begins when the replica wants a publication or has
// something for its clients, and at least once a period while they train. The fragment is offered to every client that
// does not have it already. The round is over when all of them have published, or after twice the time that the first
// took: a slow or stopped client delays nobody, and its progress is taken in when it comes. Each publication adds its
// progress, divided by the number of clients, to y (gossip/exchange/local_mean.hpp). So y is the mean of what they have
// learned, whatever their speed. A client that joins takes y over first and counts from then on. When a client
// goes, its published progress stays.
//
// Clients whose models are kept equal without the daemons (exact averages) must not be changed by corrections. The copy
// then follows one of them, see Follows.
//
// A client's memory can be out of reach of a task (it is on another GPU that did not answer). Then the client counts as
// if the task had not named it: its publication is still to be taken in, and it is offered nothing until it can be.
//
// The node's clock is the mean of what the clients have trained, like y. A node of four clients with N samples each is
// where a node of one client with N samples is. The clock never goes back.
//
// This is pure: times and events come in, work comes out. One owner, one thread. Invariants: at most max_clients
// clients; a fragment has at most one round under way; a publication is taken in at most once.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "gossip/exchange/local_mean.hpp"
#include "gossip/types.hpp"

namespace gossamer::gossip {

/// The state of each fragment at a client that comes. Empty vectors: none of its fragments is in that state.
struct ClientStandings {
  std::vector<bool> due = {};                    ///< it holds the fragment already
  std::vector<bool> untaken = {};                ///< it has published progress that y lacks
  std::vector<bool> unsound = {};                ///< its values are not finite, or not known
  std::vector<std::uint64_t> published_at = {};  ///< its own clock at its last publication; empty: its present clock
  std::uint32_t were = 0;  ///< number of clients, itself included, when it published that progress
  bool keeps = false;      ///< it only keeps the job: it follows y, and has no share in a mean
};

/// What y is made from.
enum class Follows : std::uint8_t {
  mean,  ///< the progress of all clients, and what is exchanged with other nodes
  one,   ///< the values of the first client that has published: all that train hold one model and need no corrections
};

class LocalGroup {
 public:
  /// Names a client; never reused.
  using ClientId = std::uint64_t;

  static constexpr std::size_t max_clients = 256;
  /// A round without any answer ends after this time if a client waits for its first values.
  static constexpr TimeUs unanswered_us = 1 * us_per_s;
  /// A round ends after this many times the time that the first client took to publish.
  static constexpr TimeUs patience = 2;
  static constexpr TimeUs least_patience_us = 2 * us_per_ms;
  /// How often a client with NaN or infinity is looked at while nobody trains.
  static constexpr TimeUs recovery_us = 1 * us_per_s;
  /// A client that is gone is given up after so many tasks could not reach its memory.
  static constexpr std::uint32_t farewell_tries = 16;
  /// How many more times y is offered after training has stopped, unless a client has learned something. Without a
  /// bound, a model in wider numbers than y would move y for ever by rounding.
  static constexpr std::uint32_t most_moves = 4;

  /// `clock`: the node's clock.
  LocalGroup(std::uint32_t fragment_count, std::uint64_t clock);

  // --- who takes part
  enum class Arrival {
    with_values,     ///< its fragments are what y was gathered from
    without_values,  ///< it takes y over
    back,            ///< it has been here before: only its progress since it was last given y counts
  };
  /// `clock`: the client's own, in samples.
  void add(ClientId id, Arrival arrival, std::uint64_t clock, const ClientStandings& standings = {});
  void remove(ClientId id);
  /// True if something of a removed client is still to be taken in, so that its memory is needed.
  [[nodiscard]] bool needs(ClientId id) const { return clients_.contains(id); }
  [[nodiscard]] std::size_t clients() const;
  /// Number of fragments whose node's values it does not have.
  [[nodiscard]] std::uint32_t lacking(ClientId id) const;
  [[nodiscard]] bool quarantined(ClientId id) const;
  [[nodiscard]] std::uint64_t quarantines() const { return quarantines_; }

  // --- the clock
  /// Reports a client's clock. What it has trained since the last report counts with its share.
  void observe_clock(ClientId id, std::uint64_t clock);
  [[nodiscard]] std::uint64_t clock() const { return clock_; }
  /// Raises the node's clock to at least `clock`.
  void advance_clock(std::uint64_t clock) { clock_ = std::max(clock_, clock); }

  // --- a round
  /// Sets the kind of the rounds that begin from now on. When it changes from `one` to `mean`, each gathered fragment
  /// has one more round of the kind `one` first.
  void follow(Follows follows);

  /// One client's part in a task.
  struct Part {
    ClientId id = 0;
    Take take = Take::nothing;
    float weight = 1;      ///< of its progress
    bool offer = false;    ///< the fragment is to be offered
    bool correct = false;  ///< offered with a correction, which is to be written
    bool replace = false;  ///< the correction is y itself
  };
  struct Work {
    std::vector<Part> parts;
    /// True if the work changes y.
    [[nodiscard]] bool takes() const;
  };
  /// The fragment has been gathered. `holder`: the client that it was gathered from, if that client has it now.
  /// `uneven`: not all clients hold the gathered values.
  void gathered(std::uint32_t f, std::optional<ClientId> holder, bool uneven, TimeUs now_us);
  /// Begins a round: takes in late publications, and offers the fragment to all clients that do not have it.
  /// `exchanged`: others than the clients have changed y since the last round.
  [[nodiscard]] Work begin(std::uint32_t f, bool exchanged, TimeUs now_us);
  /// A client has published. `own_clock`: its own clock at that time; none: the clock that it reported last.
  void published(ClientId id, std::uint32_t f, TimeUs now_us, std::optional<std::uint64_t> own_clock = {});
  /// The largest clock that y may have after take_in(): the node's, less what its clients have trained since their last
  /// publications.
  [[nodiscard]] std::uint64_t publication_clock(std::uint32_t f) const;
  /// True if the round should end: all clients have published, or have had enough time.
  [[nodiscard]] bool over(std::uint32_t f, TimeUs now_us) const;
  /// Ends the round. take_in() then takes the publications into y.
  void end(std::uint32_t f);
  [[nodiscard]] Work take_in(std::uint32_t f);
  /// Reports what the task found for each part.
  void done(std::uint32_t f, const Work& work, const std::vector<LocalMeanTask::Outcome>& outcomes);
  /// A part that begin() offered could not be given: the client has not received the fragment. Call it after done().
  void withheld(std::uint32_t f, const Part& part);

  /// True if all clients except these hold y and have told all they learned: nothing is under way, due or to be given.
  [[nodiscard]] bool even(const std::set<ClientId>& without = {}) const;
  /// Rounds under way, in the fragments' order.
  [[nodiscard]] const std::set<std::uint32_t>& under_way() const { return under_way_; }
  /// Fragments, `most` at most, for which a round should begin although no exchange asks for one.
  [[nodiscard]] std::vector<std::uint32_t> wanted(TimeUs period_us, TimeUs now_us, std::size_t most);

  /// Ends the process if what must always hold does not.
  void check_invariants() const;

 private:
  /// Whether a client has taken y over. Until then it takes no part in the fragment's mean.
  enum class Adoption : std::uint8_t {
    none,       ///< the client has never been given y: a round begins for it at once
    withheld,   ///< likewise, and y could not be given to it last time: it waits for the next regular round
    under_way,  ///< the client was given y, and has not published since
    done,       ///< the client took y over, or y was gathered from it
  };
  /// Whether a client has a fragment, and is to give it back by publishing.
  enum class Offer : std::uint8_t {
    none,
    late,     ///< it was given the fragment in an earlier round, and nobody waits for it
    awaited,  ///< it was given the fragment in the round under way, which waits for it
  };
  /// Whether a client has published progress that y lacks.
  enum class Progress : std::uint8_t {
    none,
    untaken,
    in_task,  ///< a task is taking it in; it is untaken again if the task fails
  };
  /// The state of one client with one fragment. Only a client that has adopted y has progress. All else can be
  /// combined.
  struct Slot {
    Adoption adoption = Adoption::done;
    Offer offer = Offer::none;
    Progress progress = Progress::none;
    bool quarantined : 1 = false;  ///< its last publication was not finite
    bool passed : 1 = false;       ///< y became another client's values, so what this client published is not progress
    bool learned : 1 = false;      ///< the client trained before a publication that is not in y
    bool of_before : 1 = false;    ///< the progress is from a time with Client::were clients
    std::uint64_t published_at = 0;  ///< its own clock at its last publication
    /// The count of the fragment's changes that y contained when the client was last given it.
    std::uint64_t changes = 0;

    [[nodiscard]] bool is_apart() const { return adoption == Adoption::none || adoption == Adoption::withheld; }
    [[nodiscard]] bool is_due() const { return offer != Offer::none; }
    [[nodiscard]] bool is_untaken() const { return progress == Progress::untaken; }
  };
  struct Client {
    std::vector<Slot> slots;
    std::uint64_t clock = 0;
    std::uint32_t lacking = 0;  ///< number of slots whose adoption is not done
    std::uint32_t quarantined = 0;
    std::uint32_t untaken = 0;
    std::uint32_t in_tasks = 0;
    std::uint32_t tries = 0;  ///< tasks that failed to reach the client's memory after it was gone
    std::uint32_t were = 0;
    bool gone = false;
    bool keeps = false;
  };
  struct Round {
    enum class Stage : std::uint8_t {
      ungathered,  ///< y is not known yet, so there is no round
      between,     ///< no round is under way
      under_way,
      ending,  ///< end() was called, take_in() was not
    };
    Stage stage = Stage::ungathered;
    bool owes_one = false;  ///< the next round is one of Follows::one, whatever follow() said last
    Follows follows = Follows::mean;
    std::uint64_t changes = 0;  ///< changes of y so far: a client that was given fewer is behind
    TimeUs begun_us = 0;
    TimeUs first_us = 0;         ///< when the first client published; 0: none has
    std::uint64_t trained = 0;   ///< `trained_` when it began
    std::uint64_t moved_at = 0;  ///< `trained_` when y was last moved
    std::uint32_t moves = 0;     ///< how often y was moved while `trained_` was `moved_at`

    [[nodiscard]] bool is_under_way() const { return stage == Stage::under_way || stage == Stage::ending; }
  };

  void begin_round(std::uint32_t f, TimeUs now_us);
  [[nodiscard]] bool has_learned(std::uint32_t f, const Work& work,
                                 const std::vector<LocalMeanTask::Outcome>& outcomes) const;
  void count_move(std::uint32_t f, bool learned);
  [[nodiscard]] Take take_of(const Client& client, const Slot& slot, Follows follows) const;
  [[nodiscard]] std::size_t in_mean(std::uint32_t f) const;
  [[nodiscard]] std::uint64_t taking_part() const;
  /// How many samples the client has trained since its last publication.
  [[nodiscard]] static std::uint64_t trained_since(const Client& client, std::uint32_t f);
  /// The client that y is to follow at the end of the round. Null: none has published.
  [[nodiscard]] const Client* leader(std::uint32_t f) const;
  /// Whether the client's training counts: it trains, or no client does.
  [[nodiscard]] bool counts(const Client& client) const;
  [[nodiscard]] static float weight_of(const Client& client, const Slot& slot, std::size_t in_mean);
  [[nodiscard]] bool wants(std::uint32_t f, TimeUs period_us, TimeUs now_us) const;
  /// True if the client's model is led by y: it takes y over, or follows it.
  [[nodiscard]] static bool is_led(const Client& client, const Slot& slot, Follows follows);
  /// The kind of the round under way, or of the next.
  [[nodiscard]] Follows followed(std::uint32_t f) const;
  static void begin_taking(Client& client, Slot& slot);
  static void end_taking(Client& client, Slot& slot, bool reached);
  /// True if publications came after their round was over, and tell nothing new: each is from a client that has not
  /// trained since its publication before, and was not quarantined.
  [[nodiscard]] bool only_repeats(std::uint32_t f) const;
  /// True if a client that takes part was given fewer changes than y has. `idle`: clients that hold the fragment do not
  /// count.
  [[nodiscard]] bool anyone_behind(std::uint32_t f, bool idle, const std::set<ClientId>& without = {}) const;
  void forget_gone();

  std::map<ClientId, Client> clients_;
  std::vector<Round> rounds_;
  std::set<std::uint32_t> under_way_;
  std::uint32_t next_ = 0;  // where wanted() continues
  Follows follows_ = Follows::mean;
  std::uint64_t clock_;
  std::uint64_t trained_ = 0;          // samples that all clients have trained; the clock may not contain them yet
  std::uint64_t clock_remainder_ = 0;  // divided by the number of clients it becomes samples
  std::uint64_t quarantines_ = 0;
};

}  // namespace gossamer::gossip
