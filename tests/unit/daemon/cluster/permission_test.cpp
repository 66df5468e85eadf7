// Tests what a certificate lets a node say about a job.

#include "daemon/cluster/permission.hpp"

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

const peer::Rights follows{.role = peer::NodeRole::follows};
const peer::Rights keeps{.role = peer::NodeRole::keeps};

const JobInfo told{.name = "job",
                   .state = ReplicaState::running,
                   .clock = 77,
                   .finishing = Finishing::over,
                   .settings = {.version = 9},
                   .trainers = 5,
                   .first_trainer = {{1}},
                   .logged = {{"loss", 1}}};

}  // namespace

TEST_CASE("who may only follow asks, and tells nothing that changes a model") {
  for (const Message& message :
       {Message(JobQuery{}), Message(LayoutQuery{}), Message(PullRequest{}), Message(ExchangeRequest{}),
        Message(ExchangeAck{}), Message(ExchangeInquiry{}), Message(JobInfo{.state = ReplicaState::running})}) {
    CAPTURE(message.index());
    CHECK(may_say(follows, message, "job"));
    CHECK(may_say(keeps, message, "job"));
    CHECK(may_say({}, message, "job"));
  }
  for (const Message& message :
       {Message(ExchangeRequest{.pushes = true}), Message(ExchangeReply{}), Message(PullReply{}),
        Message(LayoutReply{}), Message(gossip::AverageNote{}), Message(gossip::AverageValues{})}) {
    CAPTURE(message.index());
    CHECK_FALSE(may_say(follows, message, "job"));
    CHECK(may_say({}, message, "job"));
  }
}

TEST_CASE("who may only keep jobs gives models and serves, and averages nothing") {
  for (const Message& message : {Message(ExchangeRequest{.pushes = true}), Message(ExchangeReply{}),
                                 Message(PullReply{}), Message(LayoutReply{})}) {
    CAPTURE(message.index());
    CHECK(may_say(keeps, message, "job"));
  }
  CHECK_FALSE(may_say(keeps, gossip::AverageNote{}, "job"));
  CHECK_FALSE(may_say(keeps, gossip::AverageValues{}, "job"));
}

TEST_CASE("who may only follow counts as somebody who keeps the job and has nothing to give") {
  const JobInfo heard = believed(told, peer::NodeRole::follows);
  CHECK((heard.keeps && heard.follows));
  CHECK(heard.state == ReplicaState::running);
  CHECK((heard.clock == 0 && heard.finishing == Finishing::no && heard.settings.version == 0 && heard.trainers == 0 &&
         heard.first_trainer == NodeId{} && heard.logged.empty()));
  // What the authority has signed holds, whoever tells it.
  JobInfo tells_signed = told;
  tells_signed.settings.signature = peer::SigningKey::generate().sign({});
  CHECK(believed(tells_signed, peer::NodeRole::follows).settings == tells_signed.settings);
}

TEST_CASE("who may only keep jobs trains none, whatever it says") {
  const JobInfo heard = believed(told, peer::NodeRole::keeps);
  CHECK((heard.keeps && !heard.follows && heard.logged.empty()));
  CHECK((heard.clock == told.clock && heard.finishing == told.finishing && heard.trainers == told.trainers));
  const JobInfo of_a_trainer = believed(told, peer::NodeRole::trains);
  CHECK((!of_a_trainer.keeps && of_a_trainer.logged.size() == 1));
}

TEST_CASE("of other jobs than its own a node says nothing but that it does not run them") {
  const peer::Rights some{.jobs = "lab-*"};
  CHECK(may_say(some, ExchangeRequest{}, "lab-1"));
  CHECK_FALSE(may_say(some, ExchangeRequest{}, "vision"));
  CHECK_FALSE(may_say(some, PullRequest{}, "vision"));
  CHECK_FALSE(may_say(some, JobInfo{.state = ReplicaState::joining}, "vision"));
  CHECK(may_say(some, JobInfo{.state = ReplicaState::absent}, "vision"));
}

TEST_CASE("with an authority only what it has signed changes the settings of a job") {
  const peer::SigningKey authority = peer::SigningKey::generate();
  const auto settings = [](std::uint64_t version, const char* codec) {
    return JobSettings{.version = version, .values = {{"codec", codec}}};
  };
  const auto sign = [](JobSettings of, const peer::SigningKey& by, std::string_view job = "job") {
    of.signature = by.sign(peer::settings_statement(job, of));
    return of;
  };
  const auto may = [&](const JobSettings& present, const JobSettings& heard) {
    return may_set(present, heard, authority.public_half(), "job", false);
  };
  CHECK(may_set(settings(3, "q4"), settings(4, "q8"), {}, "job", false));
  CHECK_FALSE(may(settings(3, "q4"), settings(4, "q8")));
  CHECK(may(settings(3, "q4"), settings(3, "q4")));  // the same settings again
  CHECK(may(settings(3, "q4"), settings(2, "q8")));
  CHECK(may(settings(3, "q4"), sign(settings(4, "q8"), authority)));
  CHECK_FALSE(may(settings(3, "q4"), sign(settings(4, "q8"), peer::SigningKey::generate())));
  CHECK_FALSE(may(settings(3, "q4"), sign(settings(4, "q8"), authority, "another job")));
  JobSettings changed = sign(settings(4, "q8"), authority);
  changed.values[0].value = "q4";
  CHECK_FALSE(may(settings(3, "q4"), changed));
  changed = sign(settings(4, "q8"), authority);
  changed.author.bytes[0] = 1;
  CHECK_FALSE(may(settings(3, "q4"), changed));
  // A joiner takes the settings that it is told, unless it knows signed ones. So does one that only follows. Another
  // running node does not, even if it has none.
  const auto may_without_say = [&](const JobSettings& present, const JobSettings& heard) {
    return may_set(present, heard, authority.public_half(), "job", true);
  };
  CHECK(may_without_say({}, settings(7, "q8")));
  CHECK(may_without_say(settings(1, "q4"), settings(1, "q8")));
  CHECK_FALSE(may_without_say(sign(settings(1, "q4"), authority), settings(1, "q8")));
  CHECK_FALSE(may({}, settings(7, "q8")));
  CHECK_FALSE(may(settings(1, "q4"), settings(1, "q8")));
  CHECK_FALSE(may(settings(1, "q4"), settings(9, "q4")));
  JobSettings of_another_founder = settings(1, "q4");
  of_another_founder.author.bytes[0] = 1;
  CHECK(may(settings(1, "q4"), of_another_founder));
  CHECK_FALSE(may(settings(2, "q4"), settings(2, "q8")));
}
