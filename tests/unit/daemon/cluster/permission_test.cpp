// What a certificate lets a node say about a job.

#include "daemon/cluster/permission.hpp"

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

TEST_CASE("who may only follow asks, and tells nothing that changes a model") {
  const peer::Rights follows{.trains = false};
  for (const Message& message :
       {Message(JobQuery{}), Message(LayoutQuery{}), Message(PullRequest{}), Message(ExchangeRequest{.pushes = true}),
        Message(ExchangeAck{}), Message(ExchangeInquiry{})}) {
    CAPTURE(message.index());
    CHECK(may_say(follows, message, "job"));
    CHECK(may_say({}, message, "job"));
  }
  for (const Message& message : {Message(ExchangeRequest{}), Message(ExchangeReply{}), Message(JobInfo{}),
                                 Message(JobInfo{.keeps = true}), Message(PullReply{}), Message(LayoutReply{}),
                                 Message(gossip::AverageNote{}), Message(gossip::AverageValues{})}) {
    CAPTURE(message.index());
    CHECK_FALSE(may_say(follows, message, "job"));
    CHECK(may_say({}, message, "job"));
  }
}

TEST_CASE("of other jobs than its own a node says nothing") {
  const peer::Rights some{.jobs = "lab-*"};
  CHECK(may_say(some, ExchangeRequest{}, "lab-1"));
  CHECK_FALSE(may_say(some, ExchangeRequest{}, "vision"));
  CHECK_FALSE(may_say(some, PullRequest{}, "vision"));
}
