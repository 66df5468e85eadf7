// Several clients of one job at one node: when each is asked for a fragment, what of it is taken into the node's copy,
// and how far the node as a whole has trained. To the other nodes they are one replica.
//
// Averaging goes by rounds, one fragment at a time. A round begins when the replica wants a publication or has
// something for its clients, and in any case once a period while they train: the fragment is handed to every client
// that does not have it already. It is over when all of them have published, or when twice the time has passed that the
// first took: a slow or stopped client holds nobody up, and what it did is taken in when it comes. Each publication
// adds its progress over the number of clients to y (gossip/exchange/local_mean.hpp), so y is the mean of what they
// have learned, whatever their speed. A client that joins takes y over first and counts from then on; of one that goes,
// what it has published stays.
//
// A client whose memory was out of reach at a task (it is on another GPU, and that did not answer) counts as if the
// task had not named it: what it published stays to be taken in, and it is handed nothing until it can be.
//
// The node's clock moves like y: by the mean of what the clients have trained. So a node of four clients that have seen
// N samples each stands where a node of one client does that has seen N; and it never goes back.
//
// Pure: times and events in, what to do out. One owner, one thread. Invariants: at most max_clients clients; a fragment
// has at most one round under way; a publication is taken in at most once.

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

/// How a client that comes stands with each fragment; empty: with none.
struct ClientStandings {
  std::vector<bool> due = {};      ///< it holds it already
  std::vector<bool> untaken = {};  ///< it has published what y lacks
  std::vector<bool> unsound = {};  ///< what it holds is not finite, or not known
  std::uint32_t were = 0;          ///< clients, of which it was one, when it published what is untaken
};

class LocalGroup {
 public:
  /// Names a client; never reused.
  using ClientId = std::uint64_t;

  static constexpr std::size_t max_clients = 256;
  /// A round that nobody has answered is ended after this if a client waits for its first values.
  static constexpr TimeUs unanswered_us = 1 * us_per_s;
  /// Times what the first client took to publish, and then ends a round.
  static constexpr TimeUs patience = 2;
  static constexpr TimeUs least_patience_us = 2 * us_per_ms;
  /// Tasks that could not reach the memory of a client that is gone before it is given up.
  static constexpr std::uint32_t farewell_tries = 16;

  /// `clock`: where the node stands.
  LocalGroup(std::uint32_t fragment_count, std::uint64_t clock);

  // --- who takes part
  enum class Arrival {
    with_values,     ///< its fragments are what y was gathered from
    without_values,  ///< it takes y over
    back,            ///< it has been here before: what it did since it was handed y counts, and nothing before
  };
  /// `clock`: its own, in samples.
  void add(ClientId id, Arrival arrival, std::uint64_t clock, const ClientStandings& standings = {});
  void remove(ClientId id);
  /// Something of a removed client is still to be taken in: its memory is needed.
  [[nodiscard]] bool needs(ClientId id) const;
  [[nodiscard]] std::size_t clients() const;
  /// It has the node's values of every fragment.
  [[nodiscard]] bool ready(ClientId id) const;
  /// Fragments of which it does not.
  [[nodiscard]] std::uint32_t lacking(ClientId id) const;
  [[nodiscard]] bool quarantined(ClientId id) const;
  [[nodiscard]] std::uint64_t quarantines() const { return quarantines_; }

  // --- the clock
  /// Where a client stands; what it has trained since the last time counts with its share.
  void observe_clock(ClientId id, std::uint64_t clock);
  [[nodiscard]] std::uint64_t clock() const { return clock_; }
  /// The node stands there at least.
  void advance_clock(std::uint64_t clock) { clock_ = std::max(clock_, clock); }

  // --- a round
  /// What one client's part in a task is.
  struct Part {
    ClientId id = 0;
    Take take = Take::nothing;
    float weight = 1;      ///< of what is taken
    bool offer = false;    ///< a correction is to be written, and the fragment handed over
    bool replace = false;  ///< the correction is y itself
  };
  struct Work {
    std::vector<Part> parts;
    /// It changes y.
    [[nodiscard]] bool takes() const;
  };
  /// The fragment has been gathered; `holder`: the client that it was gathered from, if that has it in its hands;
  /// `uneven`: not all clients hold what was gathered.
  void gathered(std::uint32_t f, std::optional<ClientId> holder, bool uneven, TimeUs now_us);
  /// A round begins: takes in what came late, and hands the fragment to whoever does not have it. `exchanged`: y has
  /// been changed since the last round by others than the clients.
  [[nodiscard]] Work begin(std::uint32_t f, bool exchanged, TimeUs now_us);
  /// A client has published.
  void published(ClientId id, std::uint32_t f, TimeUs now_us);
  /// The round should end: everybody has published, or has had time enough.
  [[nodiscard]] bool over(std::uint32_t f, TimeUs now_us) const;
  /// It ends: what was published is to be taken in next, by take_in().
  void end(std::uint32_t f);
  [[nodiscard]] Work take_in(std::uint32_t f);
  /// What the task found, for each part.
  void done(std::uint32_t f, const Work& work, const std::vector<LocalMeanTask::Outcome>& outcomes);
  /// A part that begin() offered could not be: the client has not been handed the fragment. After done().
  void withheld(std::uint32_t f, const Part& part);

  /// All clients but these hold y: nothing is under way, and nothing of it has still to be handed to any of them.
  [[nodiscard]] bool even(const std::set<ClientId>& without = {}) const;
  /// Rounds under way, in the fragments' order.
  [[nodiscard]] const std::set<std::uint32_t>& under_way() const { return under_way_; }
  /// Fragments, `most` at most, of which a round should begin though no exchange asks for one.
  [[nodiscard]] std::vector<std::uint32_t> wanted(TimeUs period_us, TimeUs now_us, std::size_t most);

 private:
  /// One client's standing with one fragment.
  struct Slot {
    bool apart : 1 = false;        ///< has never had y
    bool replacing : 1 = false;    ///< is taking it over
    bool due : 1 = false;          ///< has the fragment
    bool awaited : 1 = false;      ///< was handed it in this round
    bool untaken : 1 = false;      ///< has published what is not in y
    bool in_task : 1 = false;      ///< a task takes that in; it is untaken again if it could not
    bool quarantined : 1 = false;  ///< the last one was not finite
    bool withheld : 1 = false;     ///< could not be handed it the last time: not tried again before its time
    bool of_before : 1 = false;    ///< what is untaken was published when it was one of Client::were
    /// Of the fragment's changes, those that were in y when it was last handed that.
    std::uint64_t changes = 0;
  };
  struct Client {
    std::vector<Slot> slots;
    std::uint64_t clock = 0;
    std::uint32_t lacking = 0;  ///< slots apart or replacing
    std::uint32_t quarantined = 0;
    std::uint32_t untaken = 0;
    std::uint32_t in_tasks = 0;
    std::uint32_t tries = 0;  ///< since it is gone, in vain
    std::uint32_t were = 0;
    bool gone = false;
  };
  struct Round {
    bool gathered = false;
    bool under_way = false;
    bool ending = false;        ///< end() was called
    std::uint64_t changes = 0;  ///< of y so far: a client that has been handed fewer is behind
    TimeUs begun_us = 0;
    TimeUs first_us = 0;  ///< when the first client had published; 0: none has
    std::uint64_t clock = 0;
  };

  [[nodiscard]] static Take take_of(const Slot& slot);
  [[nodiscard]] std::size_t in_mean(std::uint32_t f) const;
  [[nodiscard]] static float weight_of(const Client& client, const Slot& slot, std::size_t in_mean);
  [[nodiscard]] bool wants(std::uint32_t f, TimeUs period_us, TimeUs now_us) const;
  static void begin_taking(Client& client, Slot& slot);
  static void end_taking(Client& client, Slot& slot, bool reached);
  /// Somebody takes part who has been handed less than is in y; `idle`: and could be handed it now.
  [[nodiscard]] bool anyone_behind(std::uint32_t f, bool idle, const std::set<ClientId>& without = {}) const;
  void forget_gone();

  std::map<ClientId, Client> clients_;
  std::vector<Round> rounds_;
  std::set<std::uint32_t> under_way_;
  std::uint32_t next_ = 0;  // where wanted() goes on
  std::uint64_t clock_;
  std::uint64_t clock_remainder_ = 0;  // over the number of clients
  std::uint64_t quarantines_ = 0;
};

}  // namespace gossamer::gossip
