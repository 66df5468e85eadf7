// The audit keeps apart what was followed and what was not, each within its bounds, and is restored from a file.

#include "peer/admission/audit.hpp"

#include "catch.hpp"
#include "node_id.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using gossamer::test::node_id;

TEST_CASE("decisions are kept in the order of time, and what one node is refused again and again is one record") {
  Audit audit;
  audit.note_taken(10, node_id(1), "node x is denied: sold, at \"night\"");
  audit.note_refused(11, node_id(2), "keys");
  audit.note_taken(12, node_id(1), "node x is allowed");
  audit.note_refused(13, node_id(2), "keys");
  audit.note_refused(14, node_id(3), "keys");
  const auto records = audit.records();
  REQUIRE(records.size() == 4);
  CHECK(records[0].is_taken);
  CHECK(records[0].told_by == node_id(1));
  CHECK_FALSE(records[2].is_taken);
  CHECK(records[2].at == 13);
  CHECK(records[2].times == 2);
  const auto read = Audit::parse(audit.text());
  REQUIRE(read);
  CHECK(read->text() == audit.text());
}

TEST_CASE("a node whose decisions are refused, each about another node, has one record, with the latest") {
  Audit audit;
  for (int i = 0; i < 5; ++i)
    audit.note_refused(i, node_id(1), "denials: node " + std::to_string(i) + " is denied");
  audit.note_refused(9, node_id(1), "keys and rules: cluster key 01");
  const auto records = audit.records();
  REQUIRE(records.size() == 2);
  CHECK(records.front().what == "denials: node 4 is denied");
  CHECK(records.front().times == 5);
}

TEST_CASE("many refusals drive out no record of what was followed, and both are bounded") {
  Audit audit;
  audit.note_taken(1, node_id(1), "the first");
  for (std::uint64_t i = 0; i < 10 * max_audit_taken; ++i)
    audit.note_refused(static_cast<TimeUs>(2 + i), node_id(i), "keys");
  CHECK(audit.records().size() == 1 + max_audit_refused);
  CHECK(audit.records().front().what == "the first");
  for (std::uint64_t i = 0; i < 2 * max_audit_taken; ++i)
    audit.note_taken(static_cast<TimeUs>(i), node_id(1), "more");
  CHECK(audit.records().size() == max_audit_taken + max_audit_refused);
}

TEST_CASE("lines that are no records are told") {
  const std::string node = node_id(1).full();
  CHECK(Audit::parse("5 taken 1 " + node + " this\n"));
  for (const std::string& bad :
       {std::string("x"), "5 taken 1 " + node.substr(1) + " this", "5 seen 1 " + node + " this",
        "-x taken 1 " + node + " this", "5 taken " + node + " this", "5 taken 1 " + node + " \x1b"}) {
    const auto parsed = Audit::parse("5 taken 1 " + node + " this\n" + bad);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error() == "line 2 is no record of a decision");
  }
}
