// One replica. The test carries its messages and tasks. Many replicas together, with faults, are in tests/sim.

#include "gossip/replica/replica.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "catch.hpp"
#include "gossip/owner.hpp"
#include "gossip/test_device.hpp"
#include "node_id.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

using gossamer::test::node_id;

/// A replica of small fragments, all zero. Its neighbours are made of messages.
struct Lone {
  static constexpr std::size_t blocks = 2;
  std::vector<std::vector<std::vector<float>>> memory;
  ExchangeCounter counter{1};
  std::optional<Replica> replica;
  Actions out = {};
  TimeUs now_us = 1'000;
  std::uint64_t asked = 0;

  explicit Lone(ReplicaOptions options, std::size_t fragments = 1, std::uint8_t self = 100,
                Phase phase = Phase::running) {
    options.codec = Codec::f32;
    memory.assign(fragments, {3, std::vector<float>(blocks * block_elements)});
    std::vector<FragmentBuffers> buffers;
    for (auto& three : memory) {
      buffers.emplace_back(std::array<float*, 3>{there(three[0]), there(three[1]), there(three[2])}, blocks,
                           FragmentParts{.generation = 1}, test_device());
    }
    replica.emplace(options, node_id(self), info(ReplicaState::running), std::move(buffers), counter, Random(1));
    replica->enter(phase, out);
  }
  static JobInfo info(ReplicaState state) { return {.job = {7, 9}, .name = "test", .state = state}; }

  void meet(std::uint8_t number) {
    replica->link_up(node_id(number), out);
    hear(number, info(ReplicaState::running));
  }
  void tick(TimeUs later_us = 0) {
    now_us += later_us;
    replica->tick(now_us, out);
  }
  /// Every fragment the client holds is published.
  void publish(std::uint64_t clock) {
    replica->set_clock(clock);
    for (std::uint32_t f = 0; f < memory.size(); ++f) {
      const FragmentParts& parts = replica->buffers(f).parts();
      if (parts.with_client) replica->published(f, parts.generation + 1, clock, now_us, out);
    }
  }
  /// Runs what has been started of the kinds that a client's death does not change, and reports it.
  void work() {
    for (const auto kind : {&Lone::run_all<EncodeTask>, &Lone::run_all<Actions::Answer>, &Lone::run_all<ConcludeTask>,
                            &Lone::run_all<UndoTask>, &Lone::run_all<LookTask>})
      (this->*kind)();
  }
  template <class Kind>
  void run_all() {
    for (auto& [f, work] : take<Kind>()) {
      if constexpr (std::is_same_v<Kind, Actions::Answer>) {
        done(f, std::move(work.task).run(replica->held(f)));
      } else {
        done(f, std::move(work).run(replica->held(f)));
      }
    }
  }
  void done(std::uint32_t f, Finished&& result) { replica->finished(f, std::move(result), now_us, out); }
  /// The work of one kind that the replica has begun. The test has not taken it yet.
  template <class Kind>
  std::vector<std::pair<std::uint32_t, Kind>> begun() const {
    std::vector<std::pair<std::uint32_t, Kind>> found;
    for (const Actions::Run& run : out.run) {
      if (const auto* work = std::get_if<Kind>(&run.work)) found.emplace_back(run.fragment, *work);
    }
    return found;
  }
  template <class Kind>
  std::vector<std::pair<std::uint32_t, Kind>> take() {
    auto taken = begun<Kind>();
    std::erase_if(out.run, [](const Actions::Run& run) { return std::holds_alternative<Kind>(run.work); });
    return taken;
  }
  /// Takes fragments back from the client as the replica asks. `serves`: the client has begun to serve them. Returns
  /// how many.
  std::size_t recall(bool serves = false) {
    const auto recalled = std::exchange(out.recall, {});
    for (const std::uint32_t f : recalled) {
      if (replica->buffers(f).out_of_hand()) replica->recalled(f, !serves, now_us, out);
    }
    return recalled.size();
  }
  /// An f32 request of a neighbour whose whole fragment is 1.
  ExchangeRequest request(std::uint32_t f = 0) {
    return {.counter = ++asked,
            .job = {7, 9},
            .fragment = f,
            .codec = Codec::f32,
            .block_count = blocks,
            .side = Bytes::adopt(std::vector<std::int8_t>(side_bytes(Codec::f32, blocks), 10)),  // takes up to 2^10
            .values = Bytes::adopt(std::vector<float>(blocks * block_elements, 1.0F))};
  }
  void hear(std::uint8_t from, Message message) { replica->received(node_id(from), std::move(message), now_us, out); }
  void ask(std::uint8_t from, ExchangeRequest message) { hear(from, std::move(message)); }
  void ask(std::uint8_t from, std::uint32_t f = 0) { ask(from, request(f)); }
  /// Whether the neighbour's request is answered; false: it is busy. The client trains before it.
  bool answers(std::uint8_t from) { return answers(from, request()); }
  bool answers(std::uint8_t from, ExchangeRequest message) {
    publish(replica->clock() + 1);
    tick(us_per_s / 10);
    ask(from, std::move(message));
    recall();
    work();
    const auto replies = sent<ExchangeReply>();
    REQUIRE(replies.size() == 1);
    if (replies[0].second.status == ReplyStatus::busy) return false;
    REQUIRE(replies[0].second.status == ReplyStatus::done);
    hear(from, ExchangeAck{.counter = asked});
    return true;
  }
  /// The neighbour's answer to a request. Its fragment, too, is 1 everywhere.
  static ExchangeReply reply_to(const ExchangeRequest& request, ReplyStatus status = ReplyStatus::done) {
    ExchangeReply reply{.counter = request.counter,
                        .job = request.job,
                        .fragment = request.fragment,
                        .status = status,
                        .codec = request.codec,
                        .shift = request.min_shift};
    if (status != ReplyStatus::done) return reply;
    reply.block_count = request.block_count;
    reply.differences = Bytes::adopt(std::vector<float>(request.block_count * block_elements, 1.0F));
    return reply;
  }
  /// The messages of one kind that were sent since the last call. Forgets all others.
  template <class Kind>
  std::vector<std::pair<std::uint8_t, Kind>> sent() {
    std::vector<std::pair<std::uint8_t, Kind>> found;
    for (const auto& send : std::exchange(out.send, {})) {
      if (const auto* message = std::get_if<Kind>(&send.message)) found.emplace_back(send.to.bytes[0], *message);
    }
    return found;
  }
  /// Starts an exchange of fragment 0. Returns the partner and the request.
  std::pair<std::uint8_t, ExchangeRequest> start_own() {
    tick();
    work();
    const auto requests = sent<ExchangeRequest>();
    REQUIRE(requests.size() == 1);
    return requests[0];
  }
  float y() const {
    const FragmentView view = here(const_cast<Replica&>(*replica).buffers(0).y());
    return view.publication[0] + (view.correction == nullptr ? 0 : view.correction[0]);
  }
  const ReplicaCounters& counters() const { return replica->counters(); }
};

}  // namespace

TEST_CASE("a neighbour with another layout is told of as that until it reports something else", "[replica]") {
  Lone lone{ReplicaOptions{}};
  lone.meet(1);
  const auto is_stranger = [&] { return lone.replica->partner_reports().at(0).other_layout; };
  CHECK_FALSE(is_stranger());
  JobInfo other = Lone::info(ReplicaState::running);
  other.job.layout_hash = 10;
  lone.hear(1, other);
  CHECK(is_stranger());
  lone.replica->link_up(node_id(1), lone.out);  // a new link, on which it has reported nothing yet
  CHECK(is_stranger());
  lone.hear(1, Lone::info(ReplicaState::absent));
  CHECK_FALSE(is_stranger());
}

TEST_CASE("a request that does not fit is refused and changes nothing", "[replica]") {
  Lone lone({}, 2);
  lone.meet(1);
  std::uint64_t counter = 1'000'000;
  const auto ask = [&](auto change) {
    ExchangeRequest request{.counter = counter++, .job = {7, 9}, .codec = Codec::q8, .block_count = 2};
    request.side = Bytes::adopt(std::vector<std::byte>(side_bytes(Codec::q8, 2)));
    request.values = Bytes::adopt(std::vector<std::byte>(2 * codec_block_bytes(Codec::q8)));
    change(request);
    Actions actions;
    lone.replica->received(node_id(1), std::move(request), 1, actions);
    CHECK(actions.run.empty());
    REQUIRE(actions.send.size() == 1);
    const auto& reply = std::get<ExchangeReply>(actions.send[0].message);
    CHECK(reply.status == ReplyStatus::refused);
    return reply.reason;
  };
  CHECK(ask([](auto& r) { r.job.layout_hash = 1; }) == RefuseReason::layout_differs);
  CHECK(ask([](auto& r) { r.fragment = 2; }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.block_count = 1; }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.values = {}; }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.side = {}; }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.blocks = Bytes::adopt(std::vector<std::byte>(9)); }) == RefuseReason::bad_request);
  CHECK(ask([](auto& r) { r.blocks = Bytes::adopt(std::vector<std::byte>{std::byte{0xff}}); }) ==
        RefuseReason::bad_request);
  CHECK(ask([](auto& r) {
          std::vector<std::byte> side(side_bytes(Codec::q8, 2));
          side[0] = std::byte{0x7f};
          r.side = Bytes::adopt(std::move(side));
        }) == RefuseReason::bad_request);
}

TEST_CASE("a burst of requests stays within the mixing budget", "[replica]") {
  const float budget = GENERATE(1.0F, 0.5F);
  Lone lone({.mixing_budget = budget});
  lone.meet(1);
  double weight = std::ldexp(1.0, -lone.start_own().second.min_shift);
  std::size_t busy = 0;
  for (std::uint8_t from = 2; from < 30; ++from) {
    lone.meet(from);
    lone.ask(from);
    lone.recall();
    lone.work();
    const auto replies = lone.sent<ExchangeReply>();
    REQUIRE(replies.size() == 1);
    if (replies[0].second.status == ReplyStatus::done) {
      weight += std::ldexp(1.0, -replies[0].second.shift);
    } else {
      REQUIRE(replies[0].second.status == ReplyStatus::busy);
      ++busy;
    }
  }
  CHECK(weight <= budget);
  CHECK(weight > 0.9 * budget);
  CHECK(busy == lone.counters().busy_sent);
  CHECK(busy > 20);
}

TEST_CASE("a sponsor with several nodes has its part of the exchanges, also where the others hardly exchange",
          "[replica]") {
  constexpr Sponsor shared = 7;
  Lone lone({.period_us = us_per_s});
  for (std::uint8_t number = 1; number <= 4; ++number) {
    lone.replica->link_up(node_id(number), lone.out, number <= 2 ? shared : no_sponsor);
    lone.hear(number, Lone::info(ReplicaState::running));
    lone.replica->set_link(node_id(number), {.backlog_us = us_per_s});  // it may ask, and is asked nothing
  }
  std::size_t served = 0;
  while (served < remembered_partners && lone.answers(1 + served % 2)) {
    lone.tick(us_per_s / 2);
    ++served;
  }
  CHECK(served == (remembered_partners + 2) / 3);
  CHECK(lone.answers(3));
  CHECK_FALSE(lone.answers(2));
  std::size_t later = 0;
  for (int i = 0; i < 64; ++i) {
    lone.tick(us_per_s);
    if (i % 8 == 0) CHECK(lone.answers(3));
    if (lone.answers(1)) ++later;
  }
  CHECK(later >= served);
  CHECK(later <= 3 * served);
}

TEST_CASE("the turns of a fragment's owner are taken from no other node of its sponsor", "[replica]") {
  constexpr Sponsor shared = 7;
  Lone lone({.period_us = us_per_s, .partners = {.policy = PartnerPolicy::owner}});
  const std::uint8_t numbers[] = {1, 2, 3, 4};
  std::vector<NodeId> members{node_id(100)};
  for (const std::uint8_t number : numbers)
    members.push_back(node_id(number));
  const auto owner = *std::ranges::find(numbers, owner_of(0, members), [](std::uint8_t n) { return node_id(n); });
  const std::uint8_t sibling = owner % 4 + 1;
  for (const std::uint8_t number : numbers) {
    const bool admitted_alike = number == owner || number == sibling;
    lone.replica->link_up(node_id(number), lone.out, admitted_alike ? shared : no_sponsor);
    lone.hear(number, Lone::info(ReplicaState::running));
    lone.replica->set_link(node_id(number), {.backlog_us = us_per_s});  // it may ask, and is asked nothing
  }
  for (std::size_t i = 0; i < remembered_partners; ++i) {
    CHECK(lone.answers(owner));
    lone.tick(us_per_s / 2);
  }
  CHECK(lone.answers(sibling));
}

TEST_CASE("who only follows has the settings of those that it follows, though it has had newer ones", "[replica]") {
  Lone lone({});
  const auto settings = [](std::uint64_t version, std::uint8_t author) {
    return JobSettings{.version = version, .author = node_id(author), .values = {{"codec", "q4"}}};
  };
  const auto hear = [&lone](std::uint8_t from, const JobSettings& of, bool follows = false) {
    JobInfo info = Lone::info(ReplicaState::running);
    info.settings = of;
    info.follows = follows;
    lone.hear(from, info);
  };
  for (const std::uint8_t number : {1, 2, 3})
    lone.replica->link_up(node_id(number), lone.out);
  lone.replica->take_settings(settings(9, 4), lone.out);
  hear(1, settings(2, 1));
  CHECK(lone.replica->settings() == settings(9, 4));

  lone.replica->set_follows(true);
  hear(3, settings(8, 3), true);  // one that only follows as well has no say either
  hear(1, settings(1, 1));
  CHECK(lone.replica->settings() == settings(1, 1));
  hear(2, settings(2, 2));
  CHECK(lone.replica->settings() == settings(2, 2));
  hear(1, settings(1, 1));
  CHECK(lone.replica->settings() == settings(2, 2));
  hear(2, settings(max_settings_leap + 9, 2));
  CHECK(lone.replica->settings() == settings(1, 1));

  JobSettings is_signed = settings(5, 1);
  is_signed.signature.emplace();
  lone.replica->take_settings(is_signed, lone.out);
  hear(1, settings(1, 1));
  CHECK(lone.replica->settings() == is_signed);
}

TEST_CASE("nodes in quarantine keep no exchanges from those that are well, unless they only say so", "[replica]") {
  constexpr Sponsor shared = 7;
  Lone lone({.period_us = us_per_s});
  for (std::uint8_t number = 1; number <= 4; ++number) {
    lone.replica->link_up(node_id(number), lone.out, number <= 2 ? shared : no_sponsor);
    JobInfo info = Lone::info(ReplicaState::running);
    info.quarantined = number > 2;
    lone.hear(number, info);
    lone.replica->set_link(node_id(number), {.backlog_us = us_per_s});  // it may ask, and is asked nothing
  }
  lone.tick(100 * us_per_s);
  for (std::size_t i = 0; i < 2 * remembered_partners; ++i) {
    CHECK(lone.answers(1 + i % 2));
    lone.tick(us_per_s / 2);
  }
  CHECK(lone.answers(3));
  CHECK(lone.answers(4));
  CHECK_FALSE(lone.answers(1));
}

TEST_CASE("who waits for its sponsor's share goes before another that this node would ask", "[replica]") {
  constexpr Sponsor shared = 7;
  Lone lone({.period_us = us_per_s / 20, .in_flight = 1});
  for (std::uint8_t number = 1; number <= 4; ++number) {
    lone.replica->link_up(node_id(number), lone.out, number <= 2 ? shared : no_sponsor);
    lone.hear(number, Lone::info(ReplicaState::running));
    // All but the first may ask, and are asked nothing.
    if (number > 1) lone.replica->set_link(node_id(number), {.backlog_us = us_per_s});
  }
  int own = 0;
  const auto answers = [&](std::uint8_t from) {
    bool done = false;
    lone.publish(lone.replica->clock() + 1);
    lone.tick(us_per_s / 20);
    lone.ask(from);
    lone.recall();
    lone.work();
    for (const auto& send : std::exchange(lone.out.send, {})) {
      if (const auto* request = std::get_if<ExchangeRequest>(&send.message)) {
        REQUIRE(send.to == node_id(1));
        ++own;
        lone.hear(1, Lone::reply_to(*request));
      } else if (const auto* reply = std::get_if<ExchangeReply>(&send.message)) {
        done = reply->status == ReplyStatus::done;
        if (done) lone.hear(from, ExchangeAck{.counter = lone.asked});
      }
    }
    lone.recall();
    lone.work();
    return done;
  };
  int answered = 0;
  for (int i = 0; i < 200; ++i) {
    for (int other = 0; other < 6; ++other)
      (void)answers(3 + other % 2);
    answered += answers(2) ? 1 : 0;
  }
  CHECK(own > 10);
  CHECK(answered > 20);
}

TEST_CASE("where members have certificates, who asks often gets half as much again as its part of the exchanges",
          "[replica]") {
  Lone lone({.period_us = us_per_s});
  lone.replica->set_certified_members(3);
  for (std::uint8_t number = 1; number <= 3; ++number) {
    lone.meet(number);
    lone.replica->set_link(node_id(number), {.backlog_us = us_per_s});  // it may ask, and is asked nothing
  }
  CHECK(lone.answers(2));
  CHECK(lone.answers(3));
  std::size_t served = 0;
  while (served < remembered_partners && lone.answers(1))
    ++served;
  CHECK(served == remembered_partners / 2);
  CHECK(lone.answers(2));
  CHECK_FALSE(lone.answers(1));
  // It takes nobody's turn if nobody has wanted the fragment for a period.
  lone.tick(us_per_s);
  CHECK(lone.answers(1));
  CHECK_FALSE(lone.answers(1));
  // It waits for nobody who has not exchanged for 32 periods.
  for (int i = 0; i < 33; ++i) {
    lone.tick(us_per_s);
    CHECK(lone.answers(1));
  }
  for (std::size_t i = 0; i < remembered_partners; ++i)
    CHECK(lone.answers(1));
}

TEST_CASE("where members have certificates, a replica takes from each no more than the others find usual",
          "[replica]") {
  const bool told = GENERATE(true, false);
  constexpr float usual = 0.125F;
  Lone lone({.period_us = us_per_s});
  lone.replica->set_certified_members(3);
  const auto may_be_asked = [&](bool may) {
    for (std::uint8_t number = 1; number <= 3; ++number)
      lone.replica->set_link(node_id(number), {.backlog_us = may ? 0 : us_per_s});
  };
  for (std::uint8_t number = 1; number <= 3; ++number)
    lone.meet(number);
  may_be_asked(false);
  // All are far away from it, and two of them near each other. The third says that it finds all distances usual.
  for (std::uint8_t number = 1; number <= 3; ++number) {
    for (int i = 0; i < 2; ++i) {  // what is told counts of those that it has exchanged with before
      ExchangeRequest request = lone.request();
      if (told) request.usual = number == 3 ? 1e30F : usual;
      REQUIRE(lone.answers(number, std::move(request)));
    }
  }
  may_be_asked(true);
  std::optional<Clip> clip;
  for (int i = 0; i < 10 && !clip; ++i) {
    lone.publish(lone.replica->clock() + 1);
    lone.tick(us_per_s);
    lone.recall();
    for (const auto& [fragment, task] : lone.begun<EncodeTask>())
      clip = task.clip;
  }
  REQUIRE(clip);
  CHECK((clip->threshold <= 2 * usual) == told);
}

TEST_CASE("where members have certificates, nodes that keep the job take no part from those that train", "[replica]") {
  const auto keeper = [](bool follows) {
    JobInfo info = Lone::info(ReplicaState::running);
    info.keeps = true;
    info.follows = follows;
    return info;
  };
  Lone lone({.period_us = us_per_s});
  lone.replica->set_certified_members(3);
  lone.meet(1);
  for (std::uint8_t number = 2; number <= 3; ++number) {
    lone.meet(number);
    lone.hear(number, keeper(number == 3));
  }
  lone.replica->set_link(node_id(1), {.backlog_us = us_per_s});  // it may ask, and is asked nothing
  for (std::size_t i = 0; i < 2 * remembered_partners; ++i) {
    CHECK(lone.answers(1));
    lone.tick(us_per_s / 2);
  }
  // A worker asks the fragment's server and nobody else.
  Lone worker({.codec = Codec::f32, .period_us = us_per_s, .partners = {.policy = PartnerPolicy::owner}});
  worker.replica->set_certified_members(3);
  worker.meet(1);
  for (std::uint8_t number = 2; number <= 3; ++number) {
    worker.meet(number);
    worker.hear(number, keeper(false));
  }
  std::size_t asked = 0;
  for (std::size_t i = 0; i < 3 * remembered_partners; ++i) {
    worker.publish(worker.replica->clock() + 1);
    worker.tick(3 * us_per_s / 2);
    worker.recall();
    worker.work();
    for (const auto& [to, request] : worker.sent<ExchangeRequest>()) {
      ++asked;
      worker.hear(to, Lone::reply_to(request));
      worker.work();
    }
  }
  CHECK(asked >= 2 * remembered_partners);
}

namespace {

/// Trains for this time, by a step for each tick, and gives each request to `asks`, which may answer it.
void train_for(Lone& lone, TimeUs time_us, TimeUs tick_us,
               const std::function<void(std::uint8_t to, const ExchangeRequest& request)>& asks) {
  for (const TimeUs end_us = lone.now_us + time_us; lone.now_us < end_us;) {
    lone.publish(lone.replica->clock() + 1);
    lone.tick(tick_us);
    lone.recall();
    lone.work();
    for (const auto& [to, request] : lone.sent<ExchangeRequest>())
      asks(to, request);
    lone.work();
  }
}

/// Lets the first `slow` replicas answer after `slow_us` or never, and others at once. Returns how often each was
/// asked.
std::map<std::uint8_t, int> asked_while_some_are_slow(Lone& lone, TimeUs time_us, std::uint8_t slow,
                                                      std::optional<TimeUs> slow_us) {
  struct Late {
    TimeUs at_us;
    std::uint8_t from;
    ExchangeRequest request;
  };
  std::map<std::uint8_t, int> asked;
  std::vector<Late> late;
  for (const TimeUs end_us = lone.now_us + time_us; lone.now_us < end_us;) {
    train_for(lone, 10'000, 10'000, [&](std::uint8_t to, const ExchangeRequest& request) {
      ++asked[to];
      if (to > slow) {
        lone.hear(to, Lone::reply_to(request));
      } else if (slow_us) {
        late.push_back({lone.now_us + *slow_us, to, request});
      }
    });
    while (!late.empty() && late.front().at_us <= lone.now_us) {
      lone.hear(late.front().from, Lone::reply_to(late.front().request));
      late.erase(late.begin());
    }
    lone.work();
  }
  return asked;
}

}  // namespace

TEST_CASE("a partner that is slow, or answers nothing, does not hold up exchanges with others", "[replica]") {
  const std::uint32_t fragments = GENERATE(1, 8);
  const std::optional<TimeUs> slow_us = GENERATE(std::optional<TimeUs>{}, std::optional<TimeUs>{5 * us_per_s});
  CAPTURE(fragments, slow_us.has_value());
  Lone lone({.period_us = 100'000}, fragments);
  lone.meet(1);
  lone.meet(2);
  lone.meet(3);
  (void)asked_while_some_are_slow(lone, 60 * us_per_s, 1, slow_us);
  const auto asked = asked_while_some_are_slow(lone, 200 * us_per_s, 1, slow_us);
  CHECK(asked.at(2) + asked.at(3) > 1'200 * static_cast<int>(fragments));  // of 2,000 for each
  CHECK(asked.at(1) >= 3);
}

TEST_CASE("partners that are all slow are asked as often as can be", "[replica]") {
  const std::uint8_t partners = GENERATE(1, 2, 3);
  CAPTURE(int{partners});
  Lone lone({.period_us = 10'000, .in_flight = 2}, 8);
  for (std::uint8_t number = 1; number <= partners; ++number)
    lone.meet(number);
  (void)asked_while_some_are_slow(lone, 60 * us_per_s, partners, us_per_s);
  int asked = 0;
  for (const auto& [to, times] : asked_while_some_are_slow(lone, 60 * us_per_s, partners, us_per_s))
    asked += times;
  CHECK(asked > 110);
}

TEST_CASE("an answer to another request does not make a partner one that answers", "[replica]") {
  Lone lone({.period_us = 100'000, .lifetime_us = 2 * us_per_s});
  lone.meet(1);
  lone.meet(2);
  int asked = 0;
  for (int tick = 0; tick < 5'000; ++tick) {
    train_for(lone, 20'000, 20'000, [&](std::uint8_t to, const ExchangeRequest& request) {
      if (to == 2) lone.hear(to, Lone::reply_to(request));
      if (to == 1) ++asked;
    });
    ExchangeReply other = Lone::reply_to(lone.request());
    other.counter = 1;
    lone.hear(1, other);
    lone.work();
  }
  CHECK(asked < 20);
}

TEST_CASE("a partner that has long been busy is asked less and less", "[replica]") {
  Lone lone({.period_us = 10'000});
  lone.meet(1);
  const auto asked_in = [&](TimeUs time_us) {
    int asked = 0;
    train_for(lone, time_us, 5'000, [&](std::uint8_t to, const ExchangeRequest& request) {
      ++asked;
      lone.hear(to, Lone::reply_to(request, ReplyStatus::busy));
    });
    return asked;
  };
  CHECK(asked_in(2 * us_per_s) > 10);  // it may be busy for a moment
  (void)asked_in(78 * us_per_s);
  CHECK(asked_in(80 * us_per_s) < 10);
}

TEST_CASE("a fragment that holds statistics travels in f32", "[replica]") {
  Lone lone({}, 3);
  lone.replica->set_options({.codec = Codec::q8});
  lone.replica->outer_state(1).leave_out({{3, 9}});
  lone.meet(1);
  lone.tick();
  const auto begun = lone.begun<EncodeTask>();
  REQUIRE(begun.size() == 3);
  for (const auto& [fragment, task] : begun)
    CHECK(task.request.codec == (fragment == 1 ? Codec::f32 : Codec::q8));
}

TEST_CASE("no more exchanges are under way than allowed", "[replica]") {
  Lone lone({.in_flight = 3}, 8);
  lone.meet(1);
  lone.tick();
  CHECK(lone.begun<EncodeTask>().size() == 3);
  lone.work();
  auto requests = lone.sent<ExchangeRequest>();
  CHECK(requests.size() == 3);
  CHECK(lone.replica->in_flight() == 3);
  lone.tick();
  CHECK(lone.begun<EncodeTask>().empty());
  // Exchanges that wait for a publication count, too.
  lone.replica->set_clock(5);
  lone.hear(1, Lone::reply_to(requests[0].second, ReplyStatus::refused));
  for (int i = 0; i < 10; ++i)
    lone.tick(1'000'000);
  CHECK(lone.replica->in_flight() + lone.out.due.size() <= 3 + 1);
  CHECK(lone.begun<EncodeTask>().size() <= 1);
  lone.publish(6);
  CHECK(lone.replica->in_flight() <= 3);
}

TEST_CASE("a slow link has few exchanges under way, and a full one none", "[replica]") {
  const auto begun = [](LinkLoad load) {
    Lone lone({.period_us = 0, .in_flight = 8}, 8);
    lone.meet(1);
    lone.replica->set_link(node_id(1), load);
    lone.tick();
    lone.work();
    return lone.sent<ExchangeRequest>().size();
  };
  constexpr double fragment_bytes = Lone::blocks * block_elements * sizeof(float);
  CHECK(begun({}) == 8);
  CHECK(begun({.bytes_per_s = fragment_bytes}) == 2);  // one, and the next one while the first is sent
  CHECK(begun({.bytes_per_s = 12 * fragment_bytes}) == 4);
  CHECK(begun({.bytes_per_s = 1e9}) == 8);
  CHECK(begun({.backlog_us = 260 * us_per_ms, .bytes_per_s = 1e9}) == 0);
}

TEST_CASE("a codec that adapts is q4 where the link cannot carry q8 within the period", "[replica]") {
  const auto codec_over = [](double bytes_per_s, TimeUs period_us) {
    Lone lone({.adapt_codec = true, .period_us = period_us});
    lone.meet(1);
    lone.replica->set_link(node_id(1), {.bytes_per_s = bytes_per_s});
    return lone.start_own().second.codec;
  };
  // Twice 512 bytes in 10 ms may take half of the link. A link of 204,800 bytes a second or more carries them.
  CHECK(codec_over(0, 10'000) == Codec::q8);  // not known
  CHECK(codec_over(204'000, 10'000) == Codec::q4);
  CHECK(codec_over(206'000, 10'000) == Codec::q8);
  CHECK(codec_over(204'000, 11'000) == Codec::q8);
  CHECK(codec_over(100e6, 0) == Codec::q8);  // at most one in a millisecond
  CHECK(codec_over(1e6, 0) == Codec::q4);
}

TEST_CASE("one slow link does not hold up the others, and room comes back as exchanges end", "[replica]") {
  Lone lone({.period_us = 0, .in_flight = 8}, 8);
  lone.meet(1);
  lone.meet(2);
  lone.replica->set_link(node_id(1), {.backlog_us = us_per_s, .bytes_per_s = 1});
  lone.tick();
  lone.work();
  auto requests = lone.sent<ExchangeRequest>();
  REQUIRE(requests.size() == 8);
  for (const auto& [to, request] : requests)
    CHECK(to == 2);
  for (const auto& [to, request] : requests)
    lone.hear(2, Lone::reply_to(request, ReplyStatus::busy));
  lone.replica->set_link(node_id(1), {.bytes_per_s = 1});
  lone.replica->set_link(node_id(2), {.backlog_us = us_per_s, .bytes_per_s = 1});
  for (int round = 0; round < 2; ++round) {
    lone.tick(us_per_s);
    lone.work();
    requests = lone.sent<ExchangeRequest>();
    CHECK(requests.size() == 2);
    for (const auto& [to, request] : requests) {
      CHECK(to == 1);
      lone.hear(1, Lone::reply_to(request, ReplyStatus::busy));
    }
  }
}

TEST_CASE("a request is answered with a second waiting for the link, and not with more", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.replica->set_link(node_id(1), {.backlog_us = us_per_s + 1});
  lone.ask(1);
  CHECK(lone.begun<Actions::Answer>().empty());
  REQUIRE(lone.sent<ExchangeReply>().at(0).second.status == ReplyStatus::busy);
  lone.replica->set_link(node_id(1), {.backlog_us = us_per_s});
  lone.ask(1);
  CHECK(lone.begun<Actions::Answer>().size() == 1);
}

TEST_CASE("fragments take turns", "[replica]") {
  const std::size_t in_flight = GENERATE(1, 2, 3, 7, 20);
  CAPTURE(in_flight);
  constexpr std::size_t fragments = 7;
  Lone lone({.period_us = 1'000, .in_flight = in_flight}, fragments);
  lone.meet(1);
  std::vector<int> exchanges(fragments);
  for (int i = 0; i < 500; ++i) {
    lone.tick(2'000);
    lone.work();
    for (const auto& [to, request] : lone.sent<ExchangeRequest>()) {
      ++exchanges[request.fragment];
      lone.hear(to, Lone::reply_to(request));
    }
    lone.work();
    lone.publish(static_cast<std::uint64_t>(i) + 1);
  }
  const auto [least, most] = std::minmax_element(exchanges.begin(), exchanges.end());
  CAPTURE(exchanges);
  CHECK(*least > 50);
  CHECK(*most - *least <= 3);  // the partner begins nothing, so its half begins a little later
}

TEST_CASE("a copy for the node itself is of a publication that is not older than was asked for", "[replica]") {
  Lone lone({}, 12);
  lone.replica->set_clock(100);
  REQUIRE(lone.replica->copy(0, 100, lone.now_us, lone.out));
  CHECK(lone.out.due == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7});  // the next ones, too
  // A client that stands still is waited for, however long that is.
  lone.tick(60 * us_per_s);
  CHECK(lone.begun<Actions::Snapshot>().empty());
  lone.publish(100);
  REQUIRE(lone.begun<Actions::Snapshot>().size() == 1);
  CHECK(lone.begun<Actions::Snapshot>()[0].first == 0);
  CHECK(lone.begun<Actions::Snapshot>()[0].second.to == node_id(100));
  lone.take<Actions::Snapshot>();
  lone.done(0, Done{});
  CHECK(lone.begun<Actions::Snapshot>().empty());  // the copy is made only once
  REQUIRE(lone.replica->copy(1, 100, lone.now_us, lone.out));
  CHECK(lone.begun<Actions::Snapshot>().size() == 1);  // published already
  lone.replica->enter(Phase::stopping, lone.out);
  CHECK_FALSE(lone.replica->copy(2, 100, lone.now_us, lone.out));
}

TEST_CASE("a joiner does not wait for the node's own copy, nor that for a joiner", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.replica->set_clock(100);
  REQUIRE(lone.replica->copy(0, 100, lone.now_us, lone.out));
  lone.hear(1, PullRequest{.job = {7, 9}, .fragment = 0});
  CHECK(lone.begun<Actions::Snapshot>().empty());
  lone.tick(4 * us_per_s);  // the joiner is not kept waiting by a client that stands still
  REQUIRE(lone.begun<Actions::Snapshot>().size() == 1);
  CHECK(lone.begun<Actions::Snapshot>()[0].second.to == node_id(1));
  lone.done(0, Done{});
  lone.publish(100);
  REQUIRE(lone.begun<Actions::Snapshot>().size() == 2);
  CHECK(lone.begun<Actions::Snapshot>()[1].second.to == node_id(100));
}

TEST_CASE("two replicas that have only each other begin with different fragments", "[replica]") {
  const auto asked_for = [](Lone& lone) {
    lone.tick();
    lone.work();
    std::vector<std::uint32_t> fragments;
    for (const auto& [to, request] : lone.sent<ExchangeRequest>())
      fragments.push_back(request.fragment);
    return fragments;
  };
  Lone smaller({.in_flight = 2}, 4, 1);
  smaller.meet(100);
  CHECK(asked_for(smaller) == std::vector<std::uint32_t>{0, 2});
  Lone larger({.in_flight = 2}, 4, 200);
  larger.meet(100);
  CHECK(asked_for(larger) == std::vector<std::uint32_t>{1, 3});
  // If there is more to do than its own half, it also takes fragments of the other's half.
  Lone eager({.in_flight = 3}, 4, 200);
  eager.meet(100);
  CHECK(asked_for(eager) == std::vector<std::uint32_t>{1, 3, 0});
  // With a third replica to choose from, it begins with the oldest fragment.
  Lone social({.in_flight = 2}, 4, 200);
  social.meet(100);
  social.meet(101);
  CHECK(asked_for(social) == std::vector<std::uint32_t>{0, 1});
}

TEST_CASE("a fragment is exchanged once a period", "[replica]") {
  constexpr TimeUs period_us = 40'000;
  Lone lone({.period_us = period_us});
  lone.meet(1);
  TimeUs last_us = -us_per_s;
  int started = 0;
  for (int i = 0; i < 2'000; ++i) {
    lone.tick(1'000);
    lone.publish(static_cast<std::uint64_t>(i) + 1);
    lone.work();
    for (const auto& [to, request] : lone.sent<ExchangeRequest>()) {
      CHECK(lone.now_us - last_us >= period_us * 3 / 4 - 1'000);
      last_us = lone.now_us;
      ++started;
      lone.hear(to, Lone::reply_to(request));
      lone.work();
    }
  }
  CHECK(started > 2'000 / 40 * 3 / 4);
  CHECK(started < 2'000 / 40 * 5 / 4);
  CHECK(lone.counters().initiated == static_cast<std::uint64_t>(started));
  const AgeCounts& ages = lone.counters().ages;
  CHECK(std::accumulate(ages.counts.begin(), ages.counts.end(), std::uint64_t{0}) == lone.counters().initiated);
}

TEST_CASE("ages are counted in publication intervals, each below its bound", "[replica]") {
  AgeCounts ages;
  ages.add({.samples = 100, .cadence = 0});  // no interval yet
  ages.add({.samples = 100, .cadence = 100});
  ages.add({.samples = 101, .cadence = 100});
  ages.add({.samples = 1'600, .cadence = 100});
  ages.add({.samples = 6'401, .cadence = 100});
  CHECK(ages.counts == std::array<std::uint64_t, 7>{2, 1, 0, 0, 1, 0, 1});
  CHECK(ages.sum == Approx(0 + 1 + 1.01 + 16 + 64.01));
}

TEST_CASE("after a busy partner another is asked, soon", "[replica]") {
  Lone lone({.period_us = 80'000});
  lone.meet(1);
  lone.meet(2);
  for (int round = 0; round < 20; ++round) {
    const auto [partner, request] = lone.start_own();
    lone.hear(partner, Lone::reply_to(request, ReplyStatus::busy));
    lone.tick(80'000 / 8 * 5 / 4);
    lone.work();
    const auto next = lone.sent<ExchangeRequest>();
    REQUIRE(next.size() == 1);
    CHECK(next[0].first != partner);
    lone.hear(next[0].first, Lone::reply_to(next[0].second));
    lone.work();
    lone.sent<ExchangeAck>();
    lone.now_us += us_per_s / 2;
    lone.publish(2 * static_cast<std::uint64_t>(round) + 1);
    // The partner that was busy takes part now. Otherwise it would soon count as one that is always busy.
    const auto [other, again] = lone.start_own();
    CHECK(other == partner);
    lone.hear(other, Lone::reply_to(again));
    lone.work();
    lone.sent<ExchangeAck>();
    lone.now_us += us_per_s / 2;
    lone.publish(2 * static_cast<std::uint64_t>(round) + 2);
  }
  CHECK(lone.counters().busy_received == 20);
}

TEST_CASE("a program that stops with NaN is told, also where no partner exchanges that fragment", "[replica]") {
  Lone lone({.period_us = 80'000});
  lone.meet(1);
  JobInfo partner = Lone::info(ReplicaState::running);
  partner.finishing = Finishing::begun;
  partner.quarantined = true;
  lone.hear(1, partner);
  lone.publish(1);
  lone.replica->set_clock(2);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  for (auto& values : lone.memory[0])
    values.front() = std::numeric_limits<float>::quiet_NaN();
  lone.publish(2);
  lone.work();
  CHECK(lone.replica->finish_report().spoiled);
}

TEST_CASE("another partner is asked than that of the last exchange, whoever began it", "[replica]") {
  Lone lone({.period_us = 80'000});
  for (std::uint8_t number = 1; number <= 3; ++number)
    lone.meet(number);
  std::map<std::uint8_t, int> asked;
  int answered = 0;
  int repeats = 0;
  std::uint8_t last = 0;
  for (int time = 0; time < 200; ++time) {
    train_for(lone, 100'000, 10'000, [&](std::uint8_t to, const ExchangeRequest& request) {
      repeats += to == last ? 1 : 0;
      ++asked[to];
      last = to;
      lone.hear(to, Lone::reply_to(request));
      lone.work();
    });
    const auto asks = static_cast<std::uint8_t>(last % 3 + 1);
    lone.ask(asks);
    lone.work();
    for (const auto& [to, reply] : lone.sent<ExchangeReply>()) {
      if (reply.status != ReplyStatus::done) continue;
      lone.hear(asks, ExchangeAck{.counter = reply.counter});
      last = asks;
      ++answered;
    }
  }
  CHECK(answered > 20);
  CHECK(std::min({asked[1], asked[2], asked[3]}) > 20);
  // The test does not see an answer that is sent late. A third would be repeats by chance.
  CHECK(10 * repeats < asked[1] + asked[2] + asked[3]);
}

TEST_CASE("a partner in quarantine is let rest, and one that was busy is asked again", "[replica]") {
  // In an earlier fault, a partner that was busy once was not asked again until another exchange was done, and there
  // was no other partner.
  Lone lone({.period_us = 80'000});
  lone.meet(1);
  lone.meet(2);
  const auto refuse = [&](const ExchangeRequest& request) {
    ExchangeReply reply = Lone::reply_to(request, ReplyStatus::refused);
    reply.reason = RefuseReason::quarantined;
    lone.hear(2, reply);
  };
  std::map<std::uint8_t, int> asked;
  std::uint64_t clock = 0;
  const auto run_for = [&](TimeUs time_us) {
    asked.clear();
    for (const TimeUs end_us = lone.now_us + time_us; lone.now_us < end_us;) {
      lone.tick(5'000);
      lone.publish(++clock);
      lone.work();
      for (const auto& [to, request] : lone.sent<ExchangeRequest>()) {
        ++asked[to];
        const bool busy = to == 1 && asked[1] % 2 == 1;
        if (to == 2) {
          refuse(request);
        } else {
          lone.hear(1, Lone::reply_to(request, busy ? ReplyStatus::busy : ReplyStatus::done));
        }
        lone.work();
      }
    }
  };
  const auto quarantined = [&] { return lone.replica->partner_reports()[1].quarantined_fragments; };
  run_for(9 * us_per_s);
  CHECK(asked[1] > 100);
  CHECK(asked[2] == 1);
  CHECK(quarantined() == 1);
  run_for(9 * us_per_s);
  CHECK(asked[2] == 1);  // once, after ten seconds
  lone.ask(2);           // its request shows that it is well again
  CHECK(quarantined() == 0);
  lone.work();
  run_for(us_per_s);
  CHECK(asked[2] == 1);
  CHECK(quarantined() == 1);
  lone.replica->node_dead(node_id(2), lone.now_us, lone.out);
  lone.meet(2);
  CHECK(quarantined() == 0);
}

TEST_CASE("a fragment whose partners are all in quarantine does not hold up the others", "[replica]") {
  Lone lone({.period_us = 80'000}, 3);
  lone.meet(1);
  std::vector<int> done(3);
  for (std::uint64_t clock = 1; clock < 1'000; ++clock) {
    lone.tick(5'000);
    lone.publish(clock);
    lone.work();
    for (const auto& [to, request] : lone.sent<ExchangeRequest>()) {
      ++done[request.fragment];
      ExchangeReply reply = Lone::reply_to(request, request.fragment == 0 ? ReplyStatus::refused : ReplyStatus::done);
      if (request.fragment == 0) reply.reason = RefuseReason::quarantined;
      lone.hear(to, reply);
      lone.work();
    }
  }
  CHECK(done[0] == 1);
  CHECK(done[1] > 40);
  CHECK(done[2] > 40);
}

TEST_CASE("a neighbour that is new finds room among many whose links are gone", "[replica]") {
  Lone lone({});
  const auto many = [](std::uint32_t number) {
    NodeId id;
    id.bytes = {1, static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number)};
    return id;
  };
  for (std::uint32_t number = 0; number < 3'000; ++number) {
    lone.replica->link_up(many(number), lone.out);
    lone.replica->received(many(number), Lone::info(ReplicaState::running), lone.now_us, lone.out);
    REQUIRE(lone.replica->neighbours().partners() == 1);
    lone.replica->link_down(many(number));
  }
  CHECK(lone.replica->partner_reports().size() <= 1024);
}

TEST_CASE("of two requests that cross, the larger id answers", "[replica]") {
  const bool larger = GENERATE(false, true);
  Lone lone({}, 1, larger ? 200 : 1);
  lone.meet(100);
  const auto own = lone.start_own();
  CHECK(own.first == 100);
  lone.ask(100);
  lone.work();
  const auto replies = lone.sent<ExchangeReply>();
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].second.status == (larger ? ReplyStatus::done : ReplyStatus::busy));
  if (larger) CHECK(replies[0].second.shift == 1);
}

TEST_CASE("an exchange without an answer ends with its lifetime, and is never taken", "[replica]") {
  Lone lone({.lifetime_us = 5 * us_per_s});
  lone.meet(1);
  const auto [partner, request] = lone.start_own();
  lone.tick(5 * us_per_s - 1);
  CHECK(lone.replica->in_flight() == 1);
  lone.hear(1, Lone::info(ReplicaState::absent));  // so that no other begins
  lone.tick(2 * us_per_s);
  CHECK(lone.replica->in_flight() == 0);
  CHECK(lone.replica->book().take_given_up() == std::vector<std::uint64_t>{request.counter});
  lone.hear(partner, Lone::reply_to(request));  // too late
  const auto acks = lone.sent<ExchangeAck>();
  REQUIRE(acks.size() == 1);
  CHECK(acks[0].second.outcome == Outcome::never);
  CHECK(lone.begun<ConcludeTask>().empty());
  CHECK(lone.y() == 0);
  CHECK(lone.counters().unresolved == 0);
}

TEST_CASE("a neighbour that answers nothing holds hardly anything up, and is asked as before once it answers",
          "[replica]") {
  // How many exchanges with neighbour 1, which answers at once, end in a minute. Neighbour 2 is silent, or not there.
  const auto run = [](bool silent, Lone& lone) {
    std::size_t ended = 0;
    lone.meet(1);
    if (silent) lone.meet(2);
    for (int turn = 0; turn < 8'000; ++turn) {
      lone.tick(10 * us_per_ms);
      lone.work();
      for (const auto& [to, request] : lone.sent<ExchangeRequest>()) {
        if (to == 2) continue;
        lone.hear(to, Lone::reply_to(request));
        ended += turn > 2'000 ? 1 : 0;
      }
      lone.publish(static_cast<std::uint64_t>(turn + 1));
      lone.work();
      if (turn % 50 == 0) {  // their reports come, so both are there
        for (std::uint8_t from = 1; from <= (silent ? 2 : 1); ++from)
          lone.hear(from, Lone::info(ReplicaState::running));
      }
    }
    return ended;
  };
  Lone undisturbed({.period_us = 100 * us_per_ms, .in_flight = 4}, 4);
  Lone disturbed({.period_us = 100 * us_per_ms, .in_flight = 4}, 4);
  const std::size_t expected = run(false, undisturbed);
  REQUIRE(expected > 1'000);
  CHECK(run(true, disturbed) > expected * 9 / 10);

  std::size_t asked = 0;
  for (int turn = 0; turn < 10'000; ++turn) {
    disturbed.tick(10 * us_per_ms);
    disturbed.work();
    for (const auto& [to, request] : disturbed.sent<ExchangeRequest>()) {
      disturbed.hear(to, Lone::reply_to(request));
      asked += to == 2 && turn > 7'000 ? 1 : 0;
    }
    disturbed.publish(static_cast<std::uint64_t>(turn + 10'000));
    disturbed.work();
  }
  CHECK(asked > expected / 8);
}

TEST_CASE("a request that overtakes what its sender tells of itself is answered after that", "[replica]") {
  Lone lone({});
  lone.replica->link_up(node_id(1), lone.out);
  lone.ask(1);
  const auto declined = lone.sent<ExchangeReply>();
  REQUIRE(declined.size() == 1);
  CHECK(declined[0].second.status == ReplyStatus::busy);
  auto keeper = Lone::info(ReplicaState::running);
  keeper.keeps = true;
  lone.hear(1, keeper);
  lone.ask(1);
  lone.work();
  CHECK(lone.sent<ExchangeReply>().size() == 1);
  CHECK(lone.y() == 0);  // a replica that only follows moves nothing
}

TEST_CASE("an answer that nobody acknowledges is asked after, and counted when nobody is left to tell", "[replica]") {
  Lone lone({.lifetime_us = 5 * us_per_s});
  lone.replica->link_up(node_id(1), lone.out);
  lone.hear(1, Lone::info(ReplicaState::draining));  // it asks, and is asked nothing
  lone.ask(1);
  lone.work();
  CHECK(lone.y() == 0.5F);
  CHECK_FALSE(lone.replica->idle());
  for (int i = 0; i < 20; ++i)
    lone.tick(us_per_s);
  CHECK(lone.counters().unresolved == 0);
  CHECK(lone.replica->book().replies().orphans() == 1);
  CHECK(lone.replica->idle());
  for (int i = 0; i < 20; ++i)
    lone.tick(60 * us_per_s);
  CHECK(lone.counters().unresolved == 1);
  CHECK(lone.replica->book().replies().orphans() == 0);
  const auto late = lone.asked;
  auto request = lone.request();
  request.counter = late;
  lone.out.send.clear();
  lone.ask(1, request);
  const auto replies = lone.sent<ExchangeReply>();
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].second.reason == RefuseReason::expired);
  CHECK(lone.y() == 0.5F);
}

TEST_CASE("what is told of a replica that is gone ends nothing that its successor began", "[replica]") {
  Lone lone({}, 2);
  lone.replica->link_up(node_id(1), lone.out);
  lone.hear(1, Lone::info(ReplicaState::draining));  // it asks, and is asked nothing
  lone.ask(1);
  lone.work();
  auto absent = Lone::info(ReplicaState::absent);
  auto successor = Lone::info(ReplicaState::running);
  absent.first_exchange = successor.first_exchange = lone.asked + 1;
  const auto of_successor = lone.request(1);
  lone.ask(1, of_successor);  // arrives before the news of its predecessor
  lone.work();
  lone.hear(1, absent);
  CHECK(lone.counters().unresolved == 1);
  lone.sent<ExchangeReply>();
  lone.ask(1, of_successor);
  const auto replies = lone.sent<ExchangeReply>();
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].second.status == ReplyStatus::done);

  lone.hear(1, successor);
  absent.first_exchange = 1;  // news of a still earlier replica
  lone.hear(1, absent);
  CHECK(lone.replica->neighbours().partners() == 1);
  CHECK(lone.counters().unresolved == 1);
  CHECK(lone.replica->book().replies().unacknowledged() == 1);
}

TEST_CASE("the farewell of a replica names all that it began and answered", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.ask(1);
  lone.work();
  lone.tick();
  lone.work();
  const auto requests = lone.sent<ExchangeRequest>();
  REQUIRE(requests.size() == 1);
  ReplyCache::Seen seen{{node_id(2), 7}};
  const JobInfo farewell = lone.replica->farewell(seen);
  CHECK(farewell.state == ReplicaState::absent);
  CHECK(farewell.job == lone.replica->own_info().job);
  CHECK(farewell.first_exchange > requests[0].second.counter);
  CHECK(seen == ReplyCache::Seen{{node_id(1), lone.asked}, {node_id(2), 7}});
}

TEST_CASE("of a node that dies its own exchanges are asked after, and those with it are given up", "[replica]") {
  Lone lone({}, 3);
  lone.meet(1);
  lone.meet(2);
  lone.hear(2, Lone::info(ReplicaState::joining));
  lone.tick();
  lone.work();  // three requests out to node 1
  const auto requests = lone.sent<ExchangeRequest>();
  REQUIRE(requests.size() == 3);
  lone.ask(2, 1);
  lone.work();     // one answer to node 2, not acknowledged
  lone.ask(2, 2);  // one answer that is being computed
  REQUIRE(lone.begun<Actions::Answer>().size() == 1);
  lone.hear(1, Lone::reply_to(requests[2].second));  // the reply waits for that answer
  lone.replica->node_dead(node_id(2), lone.now_us, lone.out);
  CHECK(lone.replica->book().replies().orphans() == 1);
  lone.replica->node_dead(node_id(1), lone.now_us, lone.out);
  CHECK(lone.replica->book().take_given_up().size() == 2);  // the reply that is here already is not lost
  lone.work();
  CHECK(lone.replica->book().replies().orphans() == 2);  // committed for node 2, which is dead
  lone.recall();
  lone.work();
  CHECK(lone.counters().initiated == 1);
  CHECK(lone.replica->idle());
  for (int i = 0; i < 30; ++i)
    lone.tick(us_per_s);
  CHECK(lone.counters().unresolved == 0);
  CHECK(lone.replica->book().replies().orphans() == 2);
}

TEST_CASE("an exchange whose partner dies while it is encoded is not sent", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.tick();
  lone.replica->node_dead(node_id(1), lone.now_us, lone.out);
  lone.work();
  CHECK(lone.sent<ExchangeRequest>().empty());
  CHECK(lone.counters().unresolved == 0);
  CHECK(lone.replica->idle());
}

TEST_CASE("a request that could not be sent is no exchange", "[replica]") {
  Lone lone({});
  lone.meet(1);
  const auto [partner, request] = lone.start_own();
  lone.replica->send_failed(node_id(partner), request, lone.now_us);
  CHECK(lone.replica->in_flight() == 0);
  CHECK(lone.counters().unresolved == 0);
  lone.tick(100'000);
  CHECK(lone.begun<EncodeTask>().size() == 1);  // it needs no new publication
}

TEST_CASE("a repeated request that could not be sent does not end an exchange that may be answered", "[replica]") {
  Lone lone({});
  lone.meet(1);
  const auto [partner, request] = lone.start_own();
  lone.replica->link_down(node_id(1));
  lone.replica->link_up(node_id(1), lone.out);
  CHECK(lone.sent<ExchangeRequest>().size() == 1);
  lone.replica->send_failed(node_id(1), request, lone.now_us);
  CHECK(lone.replica->in_flight() == 1);
  lone.tick();
  CHECK(lone.sent<ExchangeRequest>().size() == 1);  // the request is repeated
  lone.hear(1, Lone::reply_to(request));            // the reply to the first copy
  lone.work();
  CHECK(lone.y() == 0.5F);
}

TEST_CASE("an acknowledgement or a busy reply that could not be sent is sent later", "[replica]") {
  Lone lone({});
  lone.meet(1);
  const auto [partner, request] = lone.start_own();
  lone.hear(1, Lone::reply_to(request));
  lone.work();
  const auto acks = lone.sent<ExchangeAck>();
  REQUIRE(acks.size() == 1);
  lone.replica->send_failed(node_id(1), acks[0].second, lone.now_us);
  CHECK_FALSE(lone.replica->idle());
  lone.tick();
  CHECK(lone.sent<ExchangeAck>().size() == 1);
  lone.tick();
  CHECK(lone.sent<ExchangeAck>().empty());

  Lone joining({}, 1, 100, Phase::joining);
  joining.meet(1);
  joining.ask(1);
  const auto replies = joining.sent<ExchangeReply>();
  REQUIRE(replies.size() == 1);
  REQUIRE(replies[0].second.status == ReplyStatus::busy);
  joining.replica->send_failed(node_id(1), replies[0].second, joining.now_us);
  joining.tick();
  const auto again = joining.sent<ExchangeReply>();
  REQUIRE(again.size() == 1);
  CHECK(again[0].second.status == ReplyStatus::busy);
  CHECK(again[0].second.counter == joining.asked);
}

TEST_CASE("a reply that does not fit its request is a violation and changes nothing", "[replica]") {
  Lone lone({});
  lone.meet(1);
  const auto [partner, request] = lone.start_own();
  auto reply = Lone::reply_to(request);
  reply.shift = 0;
  lone.hear(1, reply);
  lone.work();
  CHECK(lone.y() == 0);
  CHECK(lone.counters().violations == 1);
  const auto acks = lone.sent<ExchangeAck>();  // so that the other end undoes what it may have done
  REQUIRE(acks.size() == 1);
  CHECK(acks[0].second.outcome == Outcome::never);
  CHECK(lone.replica->in_flight() == 0);
}

TEST_CASE("replies of others, or to other exchanges, are not applied", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.meet(2);
  const auto [partner, request] = lone.start_own();
  auto reply = Lone::reply_to(request);
  lone.hear(partner == 1 ? 2 : 1, reply);
  reply.fragment = 7;
  lone.hear(partner, reply);
  reply.fragment = 0;
  ++reply.counter;
  lone.hear(partner, reply);
  lone.work();
  CHECK(lone.y() == 0);
  CHECK(lone.replica->in_flight() == 1);
  CHECK(lone.counters().violations == 0);
}

TEST_CASE("a reply is acknowledged when it is committed, not when its copy arrives before that", "[replica]") {
  Lone lone({});
  lone.meet(1);
  const auto [partner, request] = lone.start_own();
  lone.hear(partner, Lone::reply_to(request));
  REQUIRE(lone.begun<ConcludeTask>().size() == 1);
  lone.hear(partner, Lone::reply_to(request));
  CHECK(lone.sent<ExchangeAck>().empty());
  lone.work();
  CHECK(lone.sent<ExchangeAck>().size() == 1);
  lone.hear(partner, Lone::reply_to(request));
  CHECK(lone.sent<ExchangeAck>().size() == 1);  // the first one may have been lost
  CHECK(lone.y() == 0.5F);
}

TEST_CASE("the mixing budget that is set later holds from the next exchange on", "[replica]") {
  Lone lone({.mixing_budget = 1});
  lone.replica->set_options({.mixing_budget = 1.0F / 8});
  lone.meet(1);
  CHECK(lone.start_own().second.min_shift == 4);
}

TEST_CASE("wide blocks are followed up at once: wider, then in f32, then no more", "[replica]") {
  Lone lone({.period_us = us_per_s});
  ReplicaOptions options{.codec = Codec::q8, .period_us = us_per_s};
  lone.replica->set_options(options);
  lone.meet(1);
  auto [partner, request] = lone.start_own();
  const auto all_wide = [](const ExchangeRequest& to, int asked) {
    auto reply = Lone::reply_to(to);
    reply.differences = Bytes::adopt(std::vector<std::byte>(to.block_count * codec_block_bytes(to.codec)));
    reply.wide = Bytes::adopt(std::vector<std::byte>{std::byte{0b10}});
    reply.asked = Bytes::adopt(std::vector<std::int8_t>(to.block_count, static_cast<std::int8_t>(asked)));
    return reply;
  };
  CHECK(request.codec == Codec::q8);
  lone.hear(1, all_wide(request, -7));
  lone.work();
  lone.work();
  auto follow_up = lone.sent<ExchangeRequest>();
  REQUIRE(follow_up.size() == 1);
  request = follow_up[0].second;
  CHECK(request.codec == Codec::q8);
  CHECK(request.block_count == 1);
  CHECK(blocks_of(request.blocks.data, 2) == std::vector<std::uint32_t>{1});
  CHECK(request.side.as<std::int8_t>()[0] == -7);
  auto second = all_wide(request, 3);
  second.wide = Bytes::adopt(std::vector<std::byte>{std::byte{1}});
  lone.hear(1, second);
  lone.work();
  lone.work();
  follow_up = lone.sent<ExchangeRequest>();
  REQUIRE(follow_up.size() == 1);
  request = follow_up[0].second;
  CHECK(request.codec == Codec::f32);
  CHECK(request.block_count == 1);
  lone.hear(1, Lone::reply_to(request));
  lone.work();
  lone.work();
  CHECK(lone.sent<ExchangeRequest>().empty());
  CHECK(lone.counters().initiated == 1);
  CHECK(lone.counters().follow_ups == 2);
  CHECK(lone.replica->in_flight() == 0);
  CHECK(lone.replica->idle());
}

TEST_CASE("what comes while a fragment is held waits for it", "[replica]") {
  Lone lone({.period_us = us_per_s});
  lone.meet(1);
  const auto [partner, request] = lone.start_own();
  lone.meet(2);
  lone.ask(2);
  lone.work();  // an answer whose correction goes to the client
  REQUIRE(lone.out.due == std::vector<std::uint32_t>{0});
  lone.ask(2);
  CHECK(lone.begun<Actions::Answer>().empty());
  REQUIRE(lone.recall() == 1);
  REQUIRE(lone.begun<Actions::Answer>().size() == 1);  // now the fragment is held
  lone.hear(1, Lone::reply_to(request));
  for (int i = 0; i < 20; ++i)
    lone.hear(3, PullRequest{{7, 9}, 0});
  CHECK(lone.begun<ConcludeTask>().empty());
  CHECK(lone.begun<Actions::Snapshot>().empty());
  CHECK(lone.out.recall.empty());
  lone.ask(2);
  CHECK(lone.sent<ExchangeReply>().back().second.status == ReplyStatus::busy);

  lone.run_all<Actions::Answer>();
  REQUIRE(lone.begun<ConcludeTask>().size() == 1);  // the reply comes first
  CHECK(lone.begun<Actions::Snapshot>().empty());
  lone.work();
  int pulls = 0;
  while (!lone.begun<Actions::Snapshot>().empty()) {  // then the pulls, as many as may wait
    ++pulls;
    lone.take<Actions::Snapshot>();
    lone.done(0, Done{});
  }
  CHECK(pulls == 8);
  CHECK(lone.replica->buffers(0).parts().with_client);  // then the client gets its corrections
}

TEST_CASE("what a client serves waits for its publication; what it has not begun to serve is recalled", "[replica]") {
  Lone lone({.period_us = us_per_s});
  lone.meet(1);
  lone.meet(2);
  const auto [partner, request] = lone.start_own();
  lone.ask(2);
  lone.work();
  REQUIRE(lone.replica->buffers(0).out_of_hand());
  lone.hear(partner, Lone::reply_to(request));
  lone.ask(2);  // reply and request both wait
  CHECK(lone.begun<ConcludeTask>().empty());
  CHECK(lone.begun<Actions::Answer>().empty());
  CHECK(lone.recall(true) == 2);  // in vain: the client is serving it
  CHECK(lone.begun<ConcludeTask>().empty());
  CHECK(lone.replica->buffers(0).out_of_hand());
  lone.out.store.clear();
  lone.publish(3);
  CHECK(lone.begun<ConcludeTask>().size() == 1);
  lone.work();
  REQUIRE(lone.out.store.size() == 1);
  REQUIRE(lone.begun<Actions::Answer>().size() == 1);
  CHECK(lone.sent<ExchangeAck>().size() == 1);
  lone.work();
  CHECK(lone.counters().initiated == 1);
  CHECK(lone.counters().answered == 2);
  CHECK(lone.replica->buffers(0).pending_bytes() == 0);
}

TEST_CASE("every commit is stored, with what a successor needs, before anything is sent on the strength of it",
          "[replica]") {
  Lone lone({.in_flight = 1});
  lone.replica->book().replies().set_capacity(4);
  lone.meet(1);
  lone.tick();
  REQUIRE(lone.begun<EncodeTask>().size() == 1);
  CHECK(lone.out.store.empty());
  lone.work();
  REQUIRE(lone.out.store.size() == 1);  // the note that the exchange is about to be asked for
  const auto requests = lone.sent<ExchangeRequest>();
  REQUIRE(requests.size() == 1);
  const ExchangeRequest& request = requests[0].second;
  const auto half_of = [&](std::uint64_t counter) {
    const OwnHalves& halves = lone.replica->fragments()[0].own_halves;
    return halves[0].counter == counter ? halves[0] : halves[1];
  };
  CHECK(half_of(request.counter) == OwnHalf{request.counter, OwnHalf::never});
  lone.out.store.clear();
  lone.hear(1, Lone::reply_to(request));
  lone.work();
  REQUIRE(lone.out.store.size() == 1);
  CHECK(half_of(request.counter).taken(lone.replica->buffers(0).parts().commits));
  CHECK_FALSE(half_of(request.counter).taken(lone.replica->buffers(0).parts().commits - 1));
  lone.out = {};
  lone.ask(1);
  lone.recall();
  lone.work();
  REQUIRE(lone.out.store.size() == 1);
  REQUIRE(lone.out.store[0].answered);
  const std::uint32_t place = *lone.out.store[0].answered;
  CHECK(lone.replica->book().replies().take_left().empty());
  lone.hear(1, ExchangeAck{lone.asked});
  CHECK(lone.replica->book().replies().take_left() == std::vector<std::uint32_t>{place});
}

TEST_CASE("figures about a fragment that a task works on are those of before", "[replica]") {
  Lone lone({});
  lone.meet(1);
  CHECK(lone.replica->fragments().disagreement() == 0);
  lone.ask(1);
  REQUIRE(lone.begun<Actions::Answer>().size() == 1);
  const HeldFragment held = lone.replica->held(0);
  auto result = std::move(lone.take<Actions::Answer>()[0].second.task).run(held);
  REQUIRE(result.measure.mean_abs > 0);
  const double found = result.measure.mean_abs;
  CHECK(lone.replica->fragments().disagreement() == 0);
  lone.done(0, std::move(result));
  CHECK(lone.replica->fragments().disagreement() == Approx(found));
}

TEST_CASE("a half that its initiator never took is undone, and what it took is not", "[replica]") {
  const bool later = GENERATE(false, true);
  Lone lone({.in_flight = 0, .lifetime_us = 2 * us_per_s});
  lone.meet(1);
  lone.ask(1);
  lone.work();
  REQUIRE(lone.y() == 0.5F);
  REQUIRE(lone.replica->buffers(0).out_of_hand());
  CHECK(lone.sent<ExchangeInquiry>().empty());
  if (later) {  // the reply's lifetime is over
    for (int i = 0; i < 6; ++i)
      lone.tick(us_per_s / 2);
  } else {  // the initiator's daemon is dead, and has a successor
    lone.replica->node_dead(node_id(1), lone.now_us, lone.out);
    lone.meet(1);
    JobInfo info = Lone::info(ReplicaState::running);
    info.first_exchange = lone.asked + 1;
    lone.hear(1, info);
    lone.tick();
  }
  const auto inquiries = lone.sent<ExchangeInquiry>();
  REQUIRE(!inquiries.empty());
  CHECK(inquiries[0].first == 1);
  CHECK(inquiries[0].second.counter == lone.asked);
  CHECK(lone.replica->book().replies().unacknowledged() == 0);
  CHECK(lone.replica->book().replies().orphans() == 1);
  SECTION("never") {
    lone.hear(1, ExchangeAck{lone.asked, Outcome::never});
    CHECK(lone.begun<UndoTask>().empty());
    CHECK(lone.recall() == 1);
    lone.out.store.clear();
    lone.work();
    CHECK(lone.y() == 0);
    REQUIRE(lone.out.store.size() == 1);
    CHECK(lone.out.store[0].undone);
    CHECK(lone.counters().undone == 1);
    // A copy of the same acknowledgement changes nothing.
    lone.hear(1, ExchangeAck{lone.asked, Outcome::never});
    CHECK(lone.begun<UndoTask>().empty());
  }
  SECTION("taken") {
    lone.hear(1, ExchangeAck{lone.asked});
    CHECK(lone.begun<UndoTask>().empty());
    CHECK(lone.y() == 0.5F);
    CHECK(lone.counters().unresolved == 0);
  }
  SECTION("nobody knows") {
    lone.hear(1, ExchangeAck{lone.asked, Outcome::unknown});
    CHECK(lone.y() == 0.5F);
    CHECK(lone.counters().unresolved == 1);
  }
  CHECK(lone.replica->book().replies().orphans() == 0);
  CHECK(lone.replica->idle());
  check_places(*lone.replica);
}

TEST_CASE("an initiator says what has become of its exchanges, and its successor does", "[replica]") {
  Lone lone({.period_us = 100 * us_per_ms, .in_flight = 1, .lifetime_us = us_per_s});
  lone.meet(1);
  const auto asked = [&](std::uint64_t counter) -> std::optional<Outcome> {
    lone.out.send.clear();
    lone.hear(1, ExchangeInquiry{counter, {7, 9}, 0});
    const auto acks = lone.sent<ExchangeAck>();
    return acks.empty() ? std::nullopt : std::optional(acks[0].second.outcome);
  };
  const auto next = [&] {
    for (int i = 0; i < 10 && lone.begun<EncodeTask>().empty(); ++i) {
      lone.publish(++lone.asked);
      lone.tick(50 * us_per_ms);
    }
    lone.work();
    const auto requests = lone.sent<ExchangeRequest>();
    REQUIRE(requests.size() == 1);
    return requests[0].second;
  };
  const ExchangeRequest taken = next();
  CHECK_FALSE(asked(taken.counter));  // it waits for the answer itself
  lone.hear(1, Lone::reply_to(taken));
  lone.work();
  CHECK(asked(taken.counter) == Outcome::taken);
  CHECK(asked(1) == Outcome::unknown);  // this exchange belongs to an earlier life
  CHECK(asked(taken.counter + 1000) == Outcome::unknown);
  const ExchangeRequest never = next();
  lone.hear(1, Lone::info(ReplicaState::joining));  // so that no other begins
  lone.tick(2 * us_per_s);                          // its lifetime is over
  CHECK(asked(never.counter) == Outcome::never);
  lone.hear(1, Lone::reply_to(never));  // too late: the responder must undo it
  const auto acks = lone.sent<ExchangeAck>();
  REQUIRE(acks.size() == 1);
  CHECK(acks[0].second.outcome == Outcome::never);
  lone.hear(1, Lone::info(ReplicaState::running));
  const ExchangeRequest under_way = next();

  // The daemon dies, and the next one finds what was stored.
  const OwnHalves halves = lone.replica->fragments()[0].own_halves;
  const GivenUp given_up = lone.replica->book().given_up();
  const FragmentParts parts = lone.replica->buffers(0).parts();
  std::vector<FragmentBuffers> buffers;
  auto& three = lone.memory[0];
  buffers.emplace_back(std::array{there(three[0]), there(three[1]), there(three[2])}, Lone::blocks, parts,
                       test_device());
  lone.replica.emplace(ReplicaOptions{}, node_id(0), Lone::info(ReplicaState::running), std::move(buffers),
                       lone.counter, Random(2));
  lone.replica->book().remember(given_up);
  lone.replica->remember(0, halves);
  CHECK(asked(taken.counter) == Outcome::taken);
  CHECK(asked(never.counter) == Outcome::never);
  CHECK(asked(under_way.counter) == Outcome::never);
  CHECK(lone.replica->book().take_given_up() == std::vector<std::uint64_t>{under_way.counter});
}

TEST_CASE("a replica that has trained since it agreed with a partner agrees with nobody any more", "[replica]") {
  const std::uint64_t trained = GENERATE(0, 5);
  Lone lone({.in_flight = 0});
  lone.meet(1);
  JobInfo finishes = Lone::info(ReplicaState::running);
  finishes.finishing = Finishing::begun;
  lone.hear(1, finishes);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  ExchangeRequest equal = lone.request();
  equal.values = Bytes::adopt(std::vector<float>(Lone::blocks * block_elements));
  lone.ask(1, std::move(equal));
  lone.work();
  const EndAgreement& agreement = lone.replica->fragments()[0].agreement;
  REQUIRE(agreement.has(node_id(1)));
  lone.replica->want_publication(0, lone.out);
  lone.publish(trained);
  CHECK(agreement.has(node_id(1)) == (trained == 0));
}

TEST_CASE("what was compared before the end says nothing of what was published since", "[replica]") {
  const bool here = GENERATE(true, false);
  Lone lone({.in_flight = here ? 1U : 0U});
  lone.meet(1);
  JobInfo finishes = Lone::info(ReplicaState::running);
  finishes.finishing = Finishing::begun;
  const EndAgreement& agreement = lone.replica->fragments()[0].agreement;
  const std::uint64_t trained = GENERATE(0, 5);
  if (here) {
    const auto [to, request] = lone.start_own();
    lone.replica->want_publication(0, lone.out);
    lone.publish(trained);
    lone.hear(1, finishes);
    lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
    auto reply = Lone::reply_to(request);
    reply.differences = Bytes::adopt(std::vector<float>(Lone::blocks * block_elements));
    lone.hear(1, std::move(reply));
    lone.work();
  } else {
    finishes.clock = 9;
    lone.hear(1, finishes);
    lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
    ExchangeRequest equal = lone.request();
    equal.values = Bytes::adopt(std::vector<float>(Lone::blocks * block_elements));
    equal.clock = finishes.clock;
    equal.age.samples = trained;
    lone.ask(1, std::move(equal));
    lone.work();
  }
  CHECK(agreement.has(node_id(1)) == (trained == 0));
}

TEST_CASE("whoever agreed at an earlier end may differ at the next", "[replica]") {
  Lone lone({.in_flight = 0});
  lone.meet(1);
  lone.tick();
  lone.tick(finish_alone_us);  // nobody else is expected
  JobInfo finishes = Lone::info(ReplicaState::running);
  finishes.finishing = Finishing::begun;
  lone.hear(1, finishes);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  const auto agree = [&] {
    ExchangeRequest equal = lone.request();
    equal.values = Bytes::adopt(std::vector<float>(Lone::blocks * block_elements));
    lone.ask(1, std::move(equal));
    lone.work();
    lone.tick();
    return lone.replica->own_info().finishing >= Finishing::settled;
  };
  REQUIRE(agree());
  lone.hear(1, Lone::info(ReplicaState::running));
  lone.replica->set_finishing(Programs::train, lone.now_us, lone.out);
  lone.replica->want_publication(0, lone.out);
  lone.publish(5);  // it trains, and trains no more after this
  lone.hear(1, finishes);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  lone.tick(us_per_ms);
  CHECK(lone.replica->own_info().finishing == Finishing::begun);
  CHECK(agree());
}

TEST_CASE("a fragment that held NaN when a second client came is gathered once it is published again", "[replica]") {
  Lone lone({.in_flight = 0});
  lone.replica->gather(lone.out);
  REQUIRE(lone.take<Actions::Gather>().size() == 1);
  lone.done(0, Gathered{.finite = false});
  CHECK(lone.begun<Actions::Gather>().empty());  // its values are the same as before
  lone.replica->want_publication(0, lone.out);
  lone.publish(5);
  CHECK(lone.begun<Actions::Gather>().size() == 1);
}

TEST_CASE("what agreed at the end differs again when a half is undone", "[replica]") {
  Lone lone({.in_flight = 0});
  lone.meet(1);
  lone.meet(2);
  lone.ask(2);
  lone.work();
  const ExchangeAck never{lone.asked, Outcome::never};
  JobInfo finishes = Lone::info(ReplicaState::running);
  finishes.finishing = Finishing::begun;
  lone.hear(1, finishes);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  ExchangeRequest equal = lone.request();
  equal.values = Bytes::adopt(std::vector<float>(Lone::blocks * block_elements, lone.y()));
  lone.recall();
  lone.ask(1, std::move(equal));
  lone.recall();
  lone.work();
  const EndAgreement& agreement = lone.replica->fragments()[0].agreement;
  REQUIRE(agreement.has(node_id(1)));
  lone.hear(2, never);
  lone.recall();
  lone.work();
  REQUIRE(lone.counters().undone == 1);
  CHECK_FALSE(agreement.has(node_id(1)));
}

TEST_CASE("who was over before is no member of an end, and is waited for only a little", "[replica]") {
  Lone lone({.in_flight = 0});
  lone.meet(1);
  JobInfo other = Lone::info(ReplicaState::running);
  other.finishing = Finishing::over;
  lone.hear(1, other);
  lone.tick();
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  lone.tick(finish_alone_us - us_per_ms);
  CHECK_FALSE(lone.replica->finish_report().over);
  SECTION("it stays as it was") {
    lone.tick(us_per_ms);
    const FinishReport report = lone.replica->finish_report();
    CHECK(report.over);
    CHECK(report.saver);
    CHECK(report.members == 1);
  }
  SECTION("it trains again") {
    lone.hear(1, Lone::info(ReplicaState::running));
    lone.tick(10 * us_per_s);
    CHECK_FALSE(lone.replica->finish_report().over);
    other.finishing = Finishing::begun;
    lone.hear(1, other);
    CHECK(lone.replica->finish_report().members == 2);
  }
}

TEST_CASE("at a start in the middle of an end one that lies and is linked first is not followed alone", "[replica]") {
  Lone lone({.in_flight = 0});
  lone.replica->set_clock(1'000);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  lone.tick();
  const auto hear_of = [&](std::uint8_t number, std::uint64_t clock, Finishing finishing) {
    lone.meet(number);
    JobInfo info = Lone::info(ReplicaState::running);
    info.clock = clock;
    info.finishing = finishing;
    lone.hear(number, info);
    lone.tick(us_per_ms);
  };
  hear_of(3, 60'000, Finishing::begun);
  CHECK(lone.replica->job_clock().value() == 2'000);
  hear_of(1, 1'000, Finishing::no);
  hear_of(2, 1'000, Finishing::no);
  lone.tick(finish_alone_us);
  CHECK(lone.replica->job_clock().value() == 2'000);
}

TEST_CASE("the programs of a node that starts again had finished: its run is over", "[replica]") {
  Lone lone({.in_flight = 0});
  lone.meet(1);
  lone.replica->set_finishing(Programs::have_finished, lone.now_us, lone.out);
  CHECK(lone.replica->finish_report().over);
  CHECK(lone.replica->own_info().finishing == Finishing::over);
}

TEST_CASE("a program that finishes with NaN is told so though its values are wanted again at every look", "[replica]") {
  const ReplicaOptions options{.in_flight = 0};
  Lone lone(options);
  lone.meet(1);
  const auto look = [&] {
    lone.tick(options.info_period_us);
    const float value = lone.memory[0][0][0];
    for (auto& buffer : lone.memory[0])
      buffer[0] = value;
    lone.publish(1);
    lone.work();
  };
  lone.memory[0][0][0] = std::numeric_limits<float>::quiet_NaN();
  lone.ask(1);
  lone.work();
  look();
  REQUIRE(lone.replica->own_info().quarantined);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  look();
  lone.tick(options.info_period_us);
  CHECK(lone.replica->finish_report().spoiled);
}

TEST_CASE("a program that finishes with NaN is told so at any moment, also while its values are looked at again",
          "[replica]") {
  Lone lone({.period_us = us_per_ms, .in_flight = 1});
  lone.meet(1);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  const auto told = [&] { return lone.replica->finish_report().spoiled; };
  CHECK_FALSE(told());
  const auto next_look = [&] {
    for (int i = 0; i < 100 && lone.begun<EncodeTask>().empty(); ++i)
      lone.tick(us_per_ms);
    REQUIRE(lone.begun<EncodeTask>().size() == 1);
  };
  lone.memory[0][0][0] = std::numeric_limits<float>::quiet_NaN();
  next_look();
  CHECK_FALSE(told());
  lone.work();
  lone.tick();
  CHECK(told());
  next_look();
  CHECK(told());
  lone.memory[0][0][0] = 0;
  lone.work();
  lone.tick();
  CHECK_FALSE(told());
}

TEST_CASE("what is refused as too old or unknown is never taken: a copy may have been answered", "[replica]") {
  const bool repeated = GENERATE(true, false);  // if not, the network may still have doubled the request
  const int reason = GENERATE(static_cast<int>(RefuseReason::expired), static_cast<int>(RefuseReason::unknown_job));
  CAPTURE(repeated, reason);
  Lone lone({.in_flight = 1});
  lone.meet(1);
  lone.tick();
  lone.work();
  const auto requests = lone.sent<ExchangeRequest>();
  REQUIRE(requests.size() == 1);
  const ExchangeRequest& request = requests[0].second;
  if (repeated) lone.replica->link_up(node_id(1), lone.out);  // the request is sent again
  ExchangeReply refused = Lone::reply_to(request, ReplyStatus::refused);
  refused.reason = static_cast<RefuseReason>(reason);
  lone.hear(1, refused);
  lone.out.send.clear();
  lone.hear(1, ExchangeInquiry{request.counter, {7, 9}, 0});
  const auto acks = lone.sent<ExchangeAck>();
  REQUIRE(acks.size() == 1);
  CHECK(acks[0].second.outcome == Outcome::never);
}

TEST_CASE("nobody makes room for a replica with NaN, which is never answered at the end", "[replica]") {
  Lone lone({.period_us = 10'000, .in_flight = 0});
  lone.meet(1);
  lone.meet(2);
  lone.replica->set_finishing(Programs::finish, lone.now_us, lone.out);
  JobInfo info = Lone::info(ReplicaState::running);
  info.finishing = Finishing::begun;
  lone.hear(1, info);
  info.quarantined = true;
  lone.hear(2, info);
  int answered = 0;
  for (int i = 0; i < 50; ++i) {  // five seconds
    CHECK_FALSE(lone.answers(2));
    answered += lone.answers(1) ? 1 : 0;
  }
  CHECK(answered == 50);
}

TEST_CASE("a replica in quarantine that has nobody to exchange with looks again", "[replica]") {
  Lone lone({.period_us = 10'000});
  lone.meet(1);
  const float well = lone.memory[0][0][0];
  for (std::vector<float>& buffer : lone.memory[0])
    buffer[0] = std::numeric_limits<float>::quiet_NaN();
  lone.tick(us_per_s);
  lone.publish(1);
  lone.work();
  REQUIRE(lone.replica->fragments().quarantined() == 1);
  lone.hear(1, Lone::info(ReplicaState::joining));  // now there is no partner left
  lone.sent<PullReply>();
  lone.hear(1, PullRequest{{7, 9}, 0});
  CHECK(lone.sent<PullReply>().at(0).second.reason == RefuseReason::quarantined);
  const auto look = [&](float value, std::uint64_t clock) {
    for (std::vector<float>& buffer : lone.memory[0])
      buffer[0] = value;
    lone.tick(2 * us_per_s);
    lone.publish(clock);
    lone.work();
    return lone.replica->fragments().quarantined();
  };
  CHECK(look(1e36F, 2) == 1);  // no step fits this number
  CHECK(look(well, 3) == 0);
  lone.hear(1, PullRequest{{7, 9}, 0});
  CHECK(lone.begun<Actions::Snapshot>().size() == 1);
}

TEST_CASE("a replica that has nobody to exchange with finds NaN that its program trains, and its end", "[replica]") {
  Lone lone({.period_us = 10'000}, 6);  // more than are looked at together
  std::uint64_t clock = 0;
  const auto train = [&](float value) {
    for (std::vector<float>& buffer : lone.memory.back())
      buffer[0] = value;
    for (int looks = 0; looks < 2; ++looks) {
      lone.replica->set_clock(++clock);
      lone.tick(2 * us_per_s);
      lone.publish(clock);
      lone.work();
    }
    return lone.replica->fragments().quarantined();
  };
  CHECK(train(1) == 0);
  CHECK(train(std::numeric_limits<float>::quiet_NaN()) == 1);
  CHECK(train(1) == 0);
  for (int turn = 0; turn < 2; ++turn) {  // it trains nothing any more
    lone.out.due.clear();
    lone.tick(2 * us_per_s);
    lone.publish(clock);
    lone.work();
  }
  lone.out.due.clear();
  lone.tick(2 * us_per_s);
  CHECK(lone.out.due.empty());
}

TEST_CASE("a joiner is given what the replica has become, not what it began with", "[replica]") {
  Lone lone(ReplicaOptions{});
  lone.meet(1);
  lone.hear(1, Lone::info(ReplicaState::joining));  // so nothing else asks for a publication
  lone.replica->set_clock(1000);                    // trained, and never published
  lone.hear(1, PullRequest{{7, 9}, 0});
  CHECK(lone.begun<Actions::Snapshot>().empty());
  REQUIRE(lone.out.due == std::vector<std::uint32_t>{0});
  SECTION("its client publishes") {
    lone.publish(1001);
    REQUIRE(lone.begun<Actions::Snapshot>().size() == 1);
    CHECK(lone.begun<Actions::Snapshot>()[0].second.to == node_id(1));
    // The publication is fresh, so the next pull is served at once.
    lone.done(0, Done{});
    lone.out = {};
    lone.hear(1, PullRequest{{7, 9}, 0});
    CHECK(lone.begun<Actions::Snapshot>().size() == 1);
  }
  SECTION("its client stands still, and is not waited for") {
    lone.tick(2 * us_per_s);
    CHECK(lone.begun<Actions::Snapshot>().empty());
    lone.tick(2 * us_per_s);
    CHECK(lone.begun<Actions::Snapshot>().size() == 1);
  }
  SECTION("its client takes long steps, and is waited for") {
    lone.replica->set_step({.us = 10 * us_per_s});
    for (int i = 0; i < 7; ++i) {
      lone.tick(4 * us_per_s);
      CHECK(lone.begun<Actions::Snapshot>().empty());
    }
    lone.tick(4 * us_per_s);  // the time of three steps is over
    CHECK(lone.begun<Actions::Snapshot>().size() == 1);
  }
}

TEST_CASE("for a joiner, a client that has long not published publishes what will be pulled next as well",
          "[replica]") {
  Lone lone(ReplicaOptions{}, 40);
  lone.meet(1);
  lone.hear(1, Lone::info(ReplicaState::joining));
  lone.replica->set_clock(1000);
  lone.hear(1, PullRequest{{7, 9}, 3});
  CHECK(lone.out.due.size() == 37);
  CHECK(lone.out.due.front() == 3);
}

TEST_CASE("a pull is declined for a reason", "[replica]") {
  Lone lone({});
  lone.meet(1);
  const auto reason = [&](const PullRequest& request) {
    lone.hear(1, request);
    const auto replies = lone.sent<PullReply>();
    REQUIRE(replies.size() == 1);
    CHECK(replies[0].second.fragment == request.fragment);
    CHECK(replies[0].second.values.empty());
    return replies[0].second.reason;
  };
  CHECK(reason({{7, 9}, 1}) == RefuseReason::bad_request);
  CHECK(reason({{7, 8}, 0}) == RefuseReason::layout_differs);
  Actions ignored;
  lone.replica->enter(Phase::stopping, ignored);
  CHECK(reason({{7, 9}, 0}) == RefuseReason::draining);
  CHECK(lone.begun<Actions::Snapshot>().empty());
}

TEST_CASE("a draining replica starts nothing and refuses requests", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.replica->enter(Phase::stopping, lone.out);
  const auto told = lone.sent<JobInfo>();
  REQUIRE_FALSE(told.empty());
  CHECK(told.back().second.state == ReplicaState::draining);
  lone.tick(us_per_s);
  CHECK(lone.begun<EncodeTask>().empty());
  lone.ask(1);
  const auto replies = lone.sent<ExchangeReply>();
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].second.reason == RefuseReason::draining);
}

TEST_CASE("a drained replica starts and answers nothing, gives its model, and comes back", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.replica->enter(Phase::drained, lone.out);
  CHECK(lone.sent<JobInfo>().back().second.state == ReplicaState::draining);
  lone.tick(us_per_s);
  CHECK(lone.begun<EncodeTask>().empty());
  lone.ask(1);
  const auto replies = lone.sent<ExchangeReply>();
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].second.reason == RefuseReason::draining);
  lone.hear(1, PullRequest{{7, 9}, 0});
  CHECK(lone.begun<Actions::Snapshot>().size() == 1);
  lone.done(0, Done{});
  lone.replica->enter(Phase::running, lone.out);
  CHECK(lone.sent<JobInfo>().back().second.state == ReplicaState::running);
  CHECK(lone.start_own().first == 1);
}

TEST_CASE("a drained replica that stops gives nothing any more", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.replica->enter(Phase::drained, lone.out);
  lone.replica->enter(Phase::stopping, lone.out);
  lone.hear(1, PullRequest{{7, 9}, 0});
  CHECK(lone.begun<Actions::Snapshot>().empty());
  lone.replica->enter(Phase::running, lone.out);  // too late
  CHECK(lone.replica->state() == ReplicaState::draining);
}

TEST_CASE("a leaver exchanges each fragment with partners of its own choice, then is done", "[replica]") {
  Lone lone({.period_us = 10 * us_per_s}, 3);
  for (const std::uint8_t neighbour : {1, 2, 3})
    lone.meet(neighbour);
  lone.sent<JobInfo>();
  lone.replica->leave(lone.now_us, lone.now_us + us_per_s, lone.out);
  CHECK(lone.sent<JobInfo>().back().second.state == ReplicaState::draining);
  CHECK_FALSE(lone.replica->handed_over());
  std::map<std::uint32_t, std::set<std::uint8_t>> partners;
  for (int i = 0; i < 30; ++i) {
    lone.tick(20'000);
    lone.work();
    for (const auto& [to, request] : lone.sent<ExchangeRequest>()) {
      CHECK(partners[request.fragment].insert(to).second);
      lone.hear(to, Lone::reply_to(request));
    }
    lone.recall();
    lone.work();
  }
  CHECK(partners.size() == 3);
  for (const auto& [fragment, asked] : partners)
    CHECK(asked.size() == 2);  // two partners of four replicas
  CHECK(lone.replica->handed_over());
  CHECK(lone.replica->idle());
  CHECK(lone.replica->fragments().handed_over() == 3);
  lone.ask(1);
  CHECK(lone.sent<ExchangeReply>().at(0).second.reason == RefuseReason::draining);
}

TEST_CASE("a server that leaves hands its model over, and does not only follow", "[replica]") {
  Lone server({.partners = {.policy = PartnerPolicy::owner}});
  server.replica->set_keeps(true, server.now_us, server.out);
  server.meet(1);
  server.replica->leave(server.now_us, server.now_us + us_per_s, server.out);
  server.tick(500'000);  // its client's publication is not waited for any longer
  server.work();
  const auto requests = server.sent<ExchangeRequest>();
  REQUIRE(requests.size() == 1);
  CHECK(requests[0].second.min_shift == min_shift_bound);
}

namespace {

/// Lets the replica begin exchanges with a neighbour whose fragment is 1. Returns how many outer steps it takes.
std::size_t outer_steps_after_exchanges(Lone& lone) {
  std::size_t steps = 0;
  for (int i = 0; i < 6; ++i) {
    lone.publish(lone.replica->clock() + 1);
    lone.tick(us_per_s);
    lone.work();
    for (const auto& [to, request] : lone.sent<ExchangeRequest>())
      lone.hear(to, Lone::reply_to(request));
    lone.recall();
    lone.work();
    steps += lone.begun<OuterTask>().size();
    lone.run_all<OuterTask>();
  }
  return steps;
}

/// The same, but the neighbour begins.
std::size_t outer_steps_after_answers(Lone& lone) {
  std::size_t steps = 0;
  for (int i = 0; i < 6; ++i) {
    if (!lone.answers(1)) continue;
    lone.tick(us_per_s);
    steps += lone.begun<OuterTask>().size();
    lone.run_all<OuterTask>();
  }
  return steps;
}

}  // namespace

TEST_CASE("a fragment's server takes the outer steps, and its workers take none", "[replica]") {
  const ReplicaOptions options{.outer = {.momentum = 0.5F, .rate = 1, .period_us = us_per_s},
                               .partners = {.policy = PartnerPolicy::owner}};
  Lone peer(options);
  peer.meet(1);
  CHECK(outer_steps_after_exchanges(peer) > 0);

  JobInfo keeper = Lone::info(ReplicaState::running);
  keeper.keeps = true;
  Lone worker(options);
  worker.replica->link_up(node_id(1), worker.out);
  worker.hear(1, keeper);
  CHECK(outer_steps_after_exchanges(worker) == 0);

  Lone server(options);
  server.replica->set_keeps(true, server.now_us, server.out);
  server.meet(1);
  CHECK(outer_steps_after_answers(server) > 0);
}

TEST_CASE("a request of the least weight takes the model, and leaves it as it is", "[replica]") {
  const int above = GENERATE(0, 1);
  Lone lone({.in_flight = 0});
  lone.meet(1);
  lone.publish(1);
  ExchangeRequest request = lone.request();
  request.min_shift = static_cast<std::uint8_t>(max_shift_bound - above);
  const float before = lone.y();
  lone.ask(1, std::move(request));
  lone.recall();
  lone.work();
  const auto replies = lone.sent<ExchangeReply>();
  REQUIRE(replies.size() == 1);
  REQUIRE(replies[0].second.status == ReplyStatus::done);
  CHECK((lone.y() == before) == (above == 0));
}

TEST_CASE("a replica that is far off comes closer, though its estimates say that all agree", "[replica]") {
  Lone lone({});
  for (std::uint8_t number = 1; number <= 4; ++number)
    lone.meet(number);
  for (auto& buffer : lone.memory[0])
    std::ranges::fill(buffer, 100.0F);
  std::vector<Clip> clips;
  for (int i = 0; i < 10 && clips.size() < 2; ++i) {
    lone.tick(us_per_s);
    lone.publish(lone.replica->clock() + 1);
    for (const auto& [fragment, task] : lone.begun<EncodeTask>())
      clips.push_back(task.clip);
    lone.work();
    for (const auto& [to, request] : lone.sent<ExchangeRequest>())
      lone.hear(to, Lone::reply_to(request));
    lone.recall();
    lone.work();
  }
  REQUIRE(clips.size() == 2);
  for (const Clip& clip : clips) {
    CHECK(clip.threshold == 0);  // of two partners there is no median
    CHECK(clip.multiple > 0);
  }
  CHECK(clips[0].least == 0);
  CHECK(clips[1].least > 0);  // a part of ‖y‖, once an exchange has told it
}

TEST_CASE("a leaver waits for the client's training, but not for ever", "[replica]") {
  const bool publishes = GENERATE(true, false);
  Lone lone({});
  lone.meet(1);
  lone.replica->set_clock(100);
  lone.replica->leave(lone.now_us, lone.now_us + us_per_s, lone.out);
  lone.tick(10'000);
  CHECK(lone.begun<EncodeTask>().empty());
  REQUIRE(lone.out.due == std::vector<std::uint32_t>{0});
  if (publishes) {
    lone.publish(100);
  } else {
    lone.tick(480'000);
    CHECK(lone.begun<EncodeTask>().empty());
    lone.tick(20'000);
  }
  CHECK(lone.begun<EncodeTask>().size() == 1);
}

TEST_CASE("a leaver hands over what was trained while it was drained", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.replica->set_clock(10);
  lone.tick(us_per_s);
  REQUIRE(lone.out.due == std::vector<std::uint32_t>{0});
  lone.replica->enter(Phase::drained, lone.out);
  lone.publish(10);  // it is exchanged with nobody
  CHECK(lone.begun<EncodeTask>().empty());
  lone.replica->set_clock(100);
  lone.replica->leave(lone.now_us, lone.now_us + us_per_s, lone.out);
  lone.tick(10'000);
  CHECK(lone.begun<EncodeTask>().empty());
  lone.publish(100);
  CHECK(lone.begun<EncodeTask>().size() == 1);
}

TEST_CASE("an exchange that was under way when a node leaves hands nothing over", "[replica]") {
  Lone lone({});
  lone.meet(1);
  const auto request = lone.start_own().second;
  lone.replica->leave(lone.now_us, lone.now_us + us_per_s, lone.out);
  lone.hear(1, Lone::reply_to(request));
  lone.work();
  CHECK_FALSE(lone.replica->handed_over());
  lone.tick(60'000);
  lone.hear(1, Lone::reply_to(lone.start_own().second));
  lone.recall();
  lone.work();
  CHECK(lone.replica->handed_over());
}

TEST_CASE("differences that were scaled down are not handed over yet", "[replica]") {
  Lone lone({});
  lone.meet(1);
  lone.replica->leave(lone.now_us, lone.now_us + us_per_s, lone.out);
  for (const bool limited : {true, true, false}) {
    CHECK_FALSE(lone.replica->handed_over());
    lone.tick(60'000);
    auto reply = Lone::reply_to(lone.start_own().second);
    reply.limited = limited;
    lone.hear(1, reply);
    lone.recall();
    lone.work();
  }
  CHECK(lone.replica->handed_over());
}

TEST_CASE("a follow-up to an exchange that began before its node left hands nothing over", "[replica]") {
  const bool leaves_before = GENERATE(true, false);
  ReplicaOptions options{.codec = Codec::q8};
  Lone lone(options);
  lone.replica->set_options(options);
  lone.meet(1);
  const auto leave = [&] { lone.replica->leave(lone.now_us, lone.now_us + us_per_s, lone.out); };
  if (leaves_before) {
    leave();
    lone.tick(60'000);
  }
  const ExchangeRequest request = lone.start_own().second;
  if (!leaves_before) leave();
  auto reply = Lone::reply_to(request);
  reply.differences = Bytes::adopt(std::vector<std::byte>(Lone::blocks * codec_block_bytes(Codec::q8)));
  reply.wide = Bytes::adopt(std::vector<std::byte>{std::byte{0b10}});
  reply.asked = Bytes::adopt(std::vector<std::int8_t>(Lone::blocks, std::int8_t{-7}));
  lone.hear(1, std::move(reply));
  lone.recall();
  lone.work();
  lone.work();
  CHECK_FALSE(lone.replica->handed_over());
  const auto follow_ups = lone.sent<ExchangeRequest>();
  REQUIRE(follow_ups.size() == 1);
  auto last = Lone::reply_to(follow_ups[0].second);
  last.differences = Bytes::adopt(std::vector<std::byte>(codec_block_bytes(Codec::q8)));
  lone.hear(1, std::move(last));
  lone.recall();
  lone.work();
  REQUIRE(lone.counters().follow_ups == 1);
  CHECK(lone.replica->handed_over() == leaves_before);
}

TEST_CASE("a leaver that finds nobody, or has not joined, has nothing to hand over", "[replica]") {
  Lone alone({});
  alone.replica->leave(alone.now_us, alone.now_us + us_per_s, alone.out);
  alone.tick();
  CHECK(alone.replica->handed_over());
  Lone joining({}, 1, 100, Phase::joining);
  joining.meet(1);
  joining.replica->leave(joining.now_us, joining.now_us + us_per_s, joining.out);
  joining.tick();
  CHECK(joining.begun<EncodeTask>().empty());
  CHECK(joining.replica->handed_over());
  Lone busy({});
  busy.meet(1);
  busy.replica->leave(busy.now_us, busy.now_us + us_per_s, busy.out);
  for (int i = 0; i < 60; ++i) {
    busy.tick(20'000);
    busy.work();
    for (const auto& [to, request] : busy.sent<ExchangeRequest>())
      busy.hear(to, Lone::reply_to(request, ReplyStatus::busy));
  }
  CHECK(busy.replica->handed_over());
  CHECK(busy.replica->fragments().handed_over() == 0);
  CHECK(busy.replica->idle());
}

TEST_CASE("a partner that was busy rests no longer than a new, shorter period says", "[replica]") {
  Lone lone({.period_us = 60 * us_per_s});
  lone.meet(1);
  const auto asked = [&] {
    lone.work();
    std::optional<std::uint64_t> counter;
    for (const auto& send : std::exchange(lone.out.send, {})) {
      if (const auto* request = std::get_if<ExchangeRequest>(&send.message)) counter = request->counter;
    }
    return counter;
  };
  const auto ask = [&](TimeUs patience_us) {
    std::optional<std::uint64_t> counter;
    for (TimeUs waited_us = 0; !counter && waited_us < patience_us; waited_us += 10'000) {
      lone.tick(10'000);
      counter = asked();
    }
    return counter;
  };
  for (int i = 0; i < 8; ++i) {
    const auto counter = ask(600 * us_per_s);
    REQUIRE(counter);  // no rest is longer than a period
    lone.hear(1,
              ExchangeReply{
                  .counter = *counter, .job = {7, 9}, .fragment = 0, .status = ReplyStatus::busy, .codec = Codec::f32});
  }
  CHECK_FALSE(ask(20 * us_per_s));
  lone.replica->set_options({.codec = Codec::f32, .period_us = 50'000});
  CHECK(ask(300'000));
}

TEST_CASE("at the end a worker pushes what was out of range of its last push, before it takes the server's value over",
          "[replica]") {
  ReplicaOptions options{.codec = Codec::q8, .partners = {.policy = PartnerPolicy::owner}};
  Lone worker(options);
  worker.replica->set_options(options);
  JobInfo server = Lone::info(ReplicaState::running);
  server.keeps = true;
  server.finishing = Finishing::begun;
  worker.replica->link_up(node_id(1), worker.out);
  worker.hear(1, server);
  worker.replica->set_finishing(Programs::finish, worker.now_us, worker.out);
  const auto request = worker.start_own().second;
  REQUIRE(request.min_shift < max_shift_bound);
  const auto steps = request.side.as<std::int8_t>().first(Lone::blocks);
  ExchangeReply reply{.counter = request.counter,
                      .job = request.job,
                      .status = ReplyStatus::done,
                      .codec = Codec::q8,
                      .shift = request.min_shift};
  reply.block_count = Lone::blocks;
  reply.differences = Bytes::adopt(std::vector<std::byte>(Lone::blocks * codec_block_bytes(Codec::q8)));
  reply.wide = Bytes::adopt(std::vector<std::byte>{std::byte{1}});
  reply.asked = Bytes::adopt(std::vector<std::int8_t>(Lone::blocks, static_cast<std::int8_t>(steps[0] + 2)));
  worker.hear(1, std::move(reply));
  worker.work();
  worker.work();
  const auto follow_ups = worker.sent<ExchangeRequest>();
  REQUIRE(follow_ups.size() == 1);
  CHECK(follow_ups[0].second.block_count == 1);
  CHECK(follow_ups[0].second.min_shift == request.min_shift);
}

TEST_CASE("a leaver of many fragments hands all of them over", "[replica]") {
  constexpr std::size_t fragments = 100;  // more than are looked at together
  Lone lone({.in_flight = 16}, fragments);
  lone.meet(1);
  lone.replica->leave(lone.now_us, lone.now_us + 10 * us_per_s, lone.out);
  for (int i = 0; i < 100 && !lone.replica->handed_over(); ++i) {
    lone.publish(0);
    lone.tick(20'000);
    lone.work();
    for (const auto& [to, request] : lone.sent<ExchangeRequest>())
      lone.hear(to, Lone::reply_to(request));
    lone.recall();
    lone.work();
  }
  CHECK(lone.replica->handed_over());
  CHECK(lone.replica->fragments().handed_over() == fragments);
}

TEST_CASE("an answer to a replica that is gone when it is computed leaves its place", "[replica]") {
  Lone lone({.in_flight = 0});
  lone.replica->link_up(node_id(1), lone.out);
  lone.hear(1, Lone::info(ReplicaState::draining));
  lone.ask(1);
  REQUIRE(lone.begun<Actions::Answer>().size() == 1);  // it is being computed
  JobInfo absent = Lone::info(ReplicaState::absent);
  absent.first_exchange = lone.asked + 1;
  lone.hear(1, absent);
  lone.work();
  CHECK(lone.counters().unresolved == 1);
  CHECK(lone.replica->book().replies().places_in_work() == 0);
  check_places(*lone.replica);
}

TEST_CASE("what an initiator could not commit it never will, also if its acknowledgement is lost", "[replica]") {
  Lone lone({.in_flight = 1});
  lone.meet(1);
  const auto [to, request] = lone.start_own();
  ExchangeReply reply = Lone::reply_to(request);
  reply.differences =
      Bytes::adopt(std::vector<float>(request.block_count * block_elements, std::numeric_limits<float>::quiet_NaN()));
  lone.hear(to, reply);
  lone.recall();
  lone.work();
  const auto acks = lone.sent<ExchangeAck>();
  REQUIRE(acks.size() == 1);
  CHECK(acks[0].second.outcome == Outcome::never);
  // The acknowledgement is lost.
  lone.hear(to, ExchangeInquiry{request.counter, {7, 9}, 0});
  const auto again = lone.sent<ExchangeAck>();
  REQUIRE(again.size() == 1);
  CHECK(again[0].second.outcome == Outcome::never);
  CHECK(lone.replica->book().take_given_up() == std::vector<std::uint64_t>{request.counter});
}
