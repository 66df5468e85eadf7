// The daemon is killed before each of its stores to a client's memory in turn, and another daemon takes over. Nothing
// may be half applied or applied twice, and the sum over the replicas must not change. Two machines run in lock-step
// (played_machine.hpp); group_crash_test.cpp does the same with two trainers at one machine.

#include "tests/unit/daemon/jobs/played_machine.hpp"

#ifdef GOSSAMER_STORE_TRAP

using namespace gossamer;
using namespace gossamer::daemon;
using namespace gossamer::daemon::test;

namespace {

constexpr std::uint32_t elements = 600;
constexpr std::uint32_t lean_elements = 2'500;
constexpr std::uint32_t fragments = 3;         ///< of either size of memory
constexpr double first_b = 8;                  ///< what machine B's model begins with
constexpr int turns = 14;                      ///< in a run without a kill
constexpr int train_every = 4;                 ///< turns between additions
constexpr TimeUs patience_us = 60 * us_per_s;  ///< virtual time for joining
constexpr int most_turns = 200;                ///< at most, until the replicas have settled

/// What the child does to the memory; the daemon's own code, or something wrong.
enum class Conduct { as_built, word_before_buffer, correction_twice };

/// A daemon that breaks the contract: it makes a correction for each fragment that it holds.
template <Conduct conduct>
void misbehave(ClientMemory& memory, int turn) {
  for (std::uint32_t f = 0; f < memory.fragment_count(); ++f) {
    layout::Word word = memory.load_word(f);
    if (word.with_client) continue;
    const std::vector<float> correction(memory.padded_elements(f), static_cast<float>(turn));
    if (conduct == Conduct::correction_twice && turn > 1) {
      word.correction_valid = true;  // the one that was served already
    } else {
      word.correction = word.spare();
      word.correction_valid = true;
    }
    float* target = memory.buffer(f, word.correction);
    word.with_client = conduct == Conduct::correction_twice;
    if (conduct == Conduct::word_before_buffer) memory.store_word(f, word);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memcpy(target, correction.data(), correction.size() * sizeof(float));
    std::atomic_signal_fence(std::memory_order_seq_cst);
    memory.store_word(f, word);
  }
  memory.raise_due();
}

// --- a trial ------------------------------------------------------------------------------------------------------

using Values = std::array<double, fragments>;

class Trial {
 public:
  /// `joins`: machine A takes over B's model; otherwise both run already. `lean`: both trainers have lean memory.
  /// `stores_before`: see Life.
  Trial(Conduct conduct, std::uint64_t kill_at, bool joins = false, bool lean = false,
        std::vector<std::uint64_t> stores_before = {})
      : trainer_a_(64, lean ? lean_elements : elements, lean),
        trainer_b_(first_b, lean ? lean_elements : elements, lean),
        b_({.id = node(2), .other = node(1), .incarnation = 1'000, .trainers = {{&trainer_b_.memory}}}) {
    start_a({.incarnation = 2'000,
             .trainers = {{&trainer_a_.memory, !joins}},
             .instead = conduct == Conduct::as_built             ? nullptr
                        : conduct == Conduct::word_before_buffer ? misbehave<Conduct::word_before_buffer>
                                                                 : misbehave<Conduct::correction_twice>,
             .stores = &*stores_,
             .kill_at = kill_at,
             .bulk = lean,
             .stores_before = std::move(stores_before)});
    b_link_ = a_link_ = Turn::Link::up;
    note();
    for (std::uint32_t f = 0; f < fragments; ++f)
      sum_[f] = trainer_a_.mixed(f) + trainer_b_.mixed(f);
  }

  /// Returns what was wrong; empty: nothing.
  std::string run() {
    try {
      for (int turn = 0; turn < turns; ++turn) {
        if (turn % train_every == train_every - 1) trainer_a_.train(0.5);
        if (!exchange()) return after_death();
        note();
      }
      const bool still = settled();
      if (died_) return after_death();
      return still ? lost() : "the replicas do not settle";
    } catch (const Torn& torn) {
      return torn.what();
    }
  }
  /// The same for a newcomer: at the end it has the other machine's model, unchanged.
  std::string run_joining() {
    try {
      bool taken = false;
      while (!died_ && !taken && now_us_ < patience_us) {
        exchange();
        taken = has_the_others_model();
      }
      const bool resume = heard_of_;
      if (died_) {
        b_link_ = Turn::Link::other_is_dead;
        to_a_.clear();
        now_us_ += turn_us;
        (void)take_b({});
        trainer_a_.step();
        start_a({.incarnation = 3'000, .trainers = {{&trainer_a_.memory, resume}}});
        a_link_ = b_link_ = Turn::Link::up;
        taken = false;
        while (!taken && now_us_ < patience_us) {
          if (!exchange()) return "the successor died";
          taken = has_the_others_model();
        }
      }
      if (!taken) return "the newcomer has not the others' model";
      for (std::uint32_t f = 0; f < fragments; ++f)
        if (trainer_b_.x(f) != first_b * (f + 1)) return "the newcomer's own values came among the others'";
      return "";
    } catch (const Torn& torn) {
      return torn.what();
    }
  }
  [[nodiscard]] std::uint64_t stores() const { return *stores_; }
  [[nodiscard]] const std::vector<std::uint64_t>& stores_before() const { return a_->stores_before(); }
  [[nodiscard]] std::uint64_t exchanges() const { return b_.exchanges(); }
  [[nodiscard]] bool killed() const { return killed_; }

 private:
  [[nodiscard]] bool has_the_others_model() const {
    const auto state = trainer_a_.state();
    bool same = state == layout::RunState::running;
    for (std::uint32_t f = 0; f < fragments; ++f)
      same = same && trainer_a_.x(f) == first_b * (f + 1);
    return same;
  }

  void start_a(Life life) {
    life.id = node(1);
    life.other = node(2);
    life.kept = &kept_a_;
    a_.emplace(life);
  }
  /// A turn of machine B, whose daemon nobody kills.
  std::vector<Message> take_b(std::vector<Message> messages) {
    auto answer = b_.take(
        {.now_us = now_us_, .link = std::exchange(b_link_, Turn::Link::as_it_was), .messages = std::move(messages)});
    if (!answer) throw std::runtime_error("machine B's daemon died");
    return std::move(*answer);
  }

  /// One turn of both machines and their trainers; false if machine A's daemon died in it.
  bool exchange() {
    now_us_ += turn_us;
    auto from_a = a_->take({.now_us = now_us_,
                            .link = std::exchange(a_link_, Turn::Link::as_it_was),
                            .messages = std::exchange(to_a_, {})});
    died_ = !from_a;
    killed_ = killed_ || died_;
    if (died_) return false;
    heard_of_ = true;
    trainer_a_.step();
    to_a_ = take_b(std::move(*from_a));
    trainer_b_.step();
    return true;
  }

  void note() {
    Values a{};
    Values b{};
    for (std::uint32_t f = 0; f < fragments; ++f) {
      a[f] = trainer_a_.mixed(f);
      b[f] = trainer_b_.mixed(f);
    }
    history_a_.push_back(a);
    history_b_.push_back(b);
  }

  /// Turns until nothing moves any more.
  bool settled() {
    int still = 0;
    for (int turn = 0; turn < most_turns && still < 8; ++turn) {
      if (!exchange()) return false;
      note();
      const auto last = history_a_.size() - 1;
      const bool same = history_a_[last] == history_a_[last - 1] && history_b_[last] == history_b_[last - 1];
      bool equal = true;
      for (std::uint32_t f = 0; f < fragments; ++f)
        equal = equal && trainer_a_.owed(f) == trainer_b_.owed(f);
      still = same && equal ? still + 1 : 0;
    }
    return still == 8;
  }

  /// Returns how the sum has changed; empty: it has not.
  [[nodiscard]] std::string lost() const {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      if (trainer_a_.mixed(f) + trainer_b_.mixed(f) != sum_[f]) return "the sum has changed";
    }
    return b_.unresolved() == 0 && a_->unresolved() == 0 ? "" : "an exchange is not known to be whole";
  }

  std::string after_death() {
    b_link_ = Turn::Link::other_is_dead;
    to_a_.clear();
    // Machine B ends the exchanges under way, and its trainer takes the corrections kept for it.
    for (int turn = 0; turn < 4; ++turn) {
      now_us_ += turn_us;
      (void)take_b({});
      trainer_b_.step();
    }
    // The successor runs without the other machine. Its trainer gets what the memory says, once.
    Values owed{};
    for (std::uint32_t f = 0; f < fragments; ++f)
      owed[f] = trainer_a_.owed(f);
    start_a({.incarnation = 3'000, .trainers = {{&trainer_a_.memory}}});
    for (int turn = 0; turn < 3; ++turn) {
      now_us_ += turn_us;
      trainer_a_.step();
      if (!a_->take({.now_us = now_us_, .messages = {}})) return "the successor died";
    }
    for (std::uint32_t f = 0; f < fragments; ++f) {
      const bool served = !layout::Word::unpack(trainer_a_.memory.fragment(f).word.load()).correction_valid;
      if (trainer_a_.owed(f) != owed[f] || (served && trainer_a_.x(f) != owed[f])) return "not what was owed, once";
    }
    if (trainer_a_.keeps_vacant_memory()) return "memory is kept that is not needed";
    a_link_ = b_link_ = Turn::Link::up;
    return settled() ? lost() : "the replicas do not settle";
  }

  TimeUs now_us_ = us_per_s;
  SharedValue<std::atomic<std::uint64_t>> stores_;
  PlayedTrainer trainer_a_;
  PlayedTrainer trainer_b_;
  KeptNodeMemory kept_a_{trainer_a_.memory};
  std::optional<DaemonProcess> a_;
  DaemonProcess b_;
  Turn::Link a_link_ = Turn::Link::as_it_was;
  Turn::Link b_link_ = Turn::Link::as_it_was;
  std::vector<Message> to_a_;
  std::vector<Values> history_a_;  ///< values without training, at the end of each turn
  std::vector<Values> history_b_;
  Values sum_{};
  bool died_ = false;      ///< machine A's daemon died in the last turn
  bool killed_ = false;    ///< machine A's daemon died in some turn
  bool heard_of_ = false;  ///< machine A's client knows a daemon, and so resumes
};

/// Kills a daemon before each of its stores. Returns how many there are in a run that nobody kills.
std::uint64_t kill_at_each_store(bool joins, bool lean) {
  const auto run = [&](Trial& trial) { return joins ? trial.run_joining() : trial.run(); };
  std::uint64_t stores = 0;
  std::vector<std::uint64_t> stores_before;
  {
    Trial whole(Conduct::as_built, 0, joins, lean);
    REQUIRE(run(whole) == "");
    if (!joins && !lean) CHECK(whole.exchanges() >= 2 * fragments);
    stores = whole.stores();
    stores_before = whole.stores_before();
  }
  REQUIRE(stores < 5'000);
  std::map<std::string, std::vector<std::uint64_t>> faults;
  for (std::uint64_t kill_at = 1; kill_at <= stores; kill_at += kill_stride) {
    Trial trial(Conduct::as_built, kill_at, joins, lean, stores_before);
    std::string found = run(trial);
    if (found.empty() && !trial.killed()) found = "not killed";
    if (!found.empty()) faults[found].push_back(kill_at);
  }
  for (const auto& [fault, at] : faults)
    FAIL_CHECK(fault << ", killed before store " << at.front() << " and " << at.size() - 1 << " others of " << stores);
  return stores;
}

}  // namespace

TEST_CASE("a daemon killed before any of its stores leaves nothing half done and nothing done twice") {
  // A correction to each fragment at least, each with its words; a vector has at most 64 bytes.
  CHECK(kill_at_each_store(/*joins=*/false, /*lean=*/false) > 2 * elements * sizeof(float) / 64);
}

TEST_CASE("a daemon killed before any of its stores while a model is taken over leaves none half taken over") {
  CHECK(kill_at_each_store(/*joins=*/true, /*lean=*/false) > elements * sizeof(float) / 64 + 2 * fragments);
}

TEST_CASE("a daemon killed before any of its stores to lean memory leaves nothing half done, nor memory behind") {
  const bool joins = GENERATE(false, true);
  CAPTURE(joins);
  // Words that hand a fragment over, take it back and say that it is empty, and values between them.
  CHECK(kill_at_each_store(joins, /*lean=*/true) > 5 * fragments);
}

TEST_CASE("the same trial finds a daemon that stores in the wrong order, or applies a correction twice") {
  std::string found;
  for (std::uint64_t kill_at = 1; found.empty() && kill_at < 200; kill_at += 1)
    found = Trial(Conduct::word_before_buffer, kill_at).run();
  CHECK(found == "half a correction");
  CHECK(Trial(Conduct::correction_twice, 0).run() != "");
}

#endif
