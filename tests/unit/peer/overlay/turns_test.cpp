// Tests that the owner is told at the end of a turn, in order, from the loop, and not after stop().

#include "peer/overlay/turns.hpp"

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

struct Owner : OverlayEvents {
  void link_up(const NodeId&) override { hear("up"); }
  void link_down(const NodeId&, const std::string& reason) override { hear("down: " + reason); }
  void node_dead(const NodeId&) override { hear("dead"); }
  void received(const NodeId&, Message&& message) override {
    taken = std::move(message);
    hear("message");
  }
  void denials_changed() override { hear("denials"); }
  void hear(std::string what) {
    CHECK_FALSE(in_a_method);
    heard.push_back(std::move(what));
    if (const auto act = std::exchange(on_next, nullptr)) act();
  }

  std::vector<std::string> heard;
  Message taken;
  std::function<void()> on_next;
  bool in_a_method = false;
};

struct Fixture {
  asio::io_context loop;
  Owner owner;
  TimeUs time = 5;
  std::shared_ptr<Turns> turns = std::make_shared<Turns>(
      loop, [this] { return time; }, owner);

  void note(const std::vector<OverlayEvent>& events) {
    owner.in_a_method = true;
    for (const OverlayEvent& event : events)
      turns->happened(event);
    owner.in_a_method = false;
  }
};

using Heard = std::vector<std::string>;

}  // namespace

TEST_CASE("what happens in a turn is told at its end, in order") {
  Fixture f;
  f.turns->run([&] {
    CHECK(f.turns->now() == 5);
    f.time = 6;
    f.note({LinkUp{}, LinkDown{{}, "why"}, NodeDead{}});
    CHECK(f.turns->now() == 5);
    CHECK(f.owner.heard.empty());
  });
  CHECK(f.owner.heard == Heard{"up", "down: why", "dead"});
  f.loop.poll();
  CHECK(f.owner.heard.size() == 3);
}

TEST_CASE("what happens in a call of the owner's is told by the loop") {
  Fixture f;
  f.note({DenialsChanged{}, LinkUp{}});
  CHECK(f.owner.heard.empty());
  f.loop.poll();
  CHECK(f.owner.heard == Heard{"denials", "up"});
}

TEST_CASE("what the owner causes while it is told comes after what it is being told") {
  Fixture f;
  f.owner.on_next = [&] { f.note({DenialsChanged{}}); };
  f.turns->run([&] { f.note({LinkUp{}, NodeDead{}}); });
  CHECK(f.owner.heard == Heard{"up", "dead", "denials"});
}

TEST_CASE("after stop nothing is told, and nothing is done") {
  Fixture f;
  bool done = false;
  f.owner.on_next = [&] { f.turns->stop(); };
  asio::steady_timer timer(f.loop);
  f.turns->after(timer, std::chrono::microseconds(0), [&] { done = true; });
  f.turns->soon([&] { done = true; });
  f.turns->run([&] { f.note({LinkUp{}, LinkDown{}, NodeDead{}}); });
  f.note({NodeDead{}});
  f.loop.run_for(std::chrono::milliseconds(20));
  CHECK(f.owner.heard == Heard{"up"});
  CHECK_FALSE(done);
}

TEST_CASE("a message is handed on in the memory in which it came") {
  Fixture f;
  PullReply reply;
  reply.values = Bytes::adopt(std::vector<float>(64, 1));
  const std::byte* const memory = reply.values.data.data();
  const long owners = reply.values.owner.use_count();
  f.turns->run([&] { f.turns->happened(MessageReceived{{}, Message(std::move(reply))}); });
  const Bytes& taken = std::get<PullReply>(f.owner.taken).values;
  CHECK(taken.data.data() == memory);
  CHECK(taken.owner.use_count() == owners);
}
