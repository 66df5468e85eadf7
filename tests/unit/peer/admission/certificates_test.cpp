// The table of certificates. The later certificate of a node holds. An invitation is for a number of nodes, and members
// that hear of more at the same time agree on the first ones. The table is bounded, and is restored from a file.

#include "peer/admission/certificates.hpp"

#include <algorithm>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "node_id.hpp"
#include "peer/limits.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

using gossamer::test::node_id;
constexpr TimeUs this_day = 1'800'000'000 * us_per_s;

/// No signature is looked at here, so none is made.
Certificate of(std::uint64_t node, std::uint8_t invitation, std::uint32_t nodes, TimeUs made_at) {
  Certificate certificate;
  certificate.warrant.invitation.fill(invitation);
  certificate.warrant.nodes = nodes;
  certificate.node = node_id(node);
  certificate.made_at = made_at;
  return certificate;
}
constexpr auto hearsay = Certificates::Source::hearsay;
constexpr auto itself = Certificates::Source::itself;
/// Made by an operator for this node.
Certificate named(std::uint64_t node, std::uint8_t invitation, TimeUs made_at) {
  Certificate certificate = of(node, invitation, 1, made_at);
  certificate.warrant.node = certificate.node;
  return certificate;
}
bool none_of_them(const NodeId&) {
  return false;
}

}  // namespace

TEST_CASE("of a node's certificates its operator's holds, then the one that it shows") {
  Certificates held;
  const auto invitation_of = [&](std::uint64_t node) { return held.of(node_id(node))->warrant.invitation[0]; };
  CHECK(held.merge(of(1, 1, 5, this_day), hearsay, 0, this_day, none_of_them) == Hearsay::news);
  // The holder of another invitation's line could certify this node again, with other rights and any date.
  CHECK(held.merge(of(1, 2, 5, this_day + 1), hearsay, 0, this_day, none_of_them) == Hearsay::known);
  CHECK(held.merge(of(1, 1, 5, this_day + 2), itself, 0, this_day, none_of_them) == Hearsay::known);
  CHECK(invitation_of(1) == 1);
  CHECK(held.merge(of(1, 2, 5, this_day - 1), itself, 0, this_day, none_of_them) == Hearsay::news);
  CHECK(invitation_of(1) == 2);
  // An operator's certificate replaces others, and the later of two holds.
  CHECK(held.merge(named(1, 3, this_day - 9), hearsay, 0, this_day, none_of_them) == Hearsay::news);
  CHECK(held.merge(of(1, 4, 5, this_day + 9), itself, 0, this_day, none_of_them) == Hearsay::known);
  CHECK(held.merge(named(1, 5, this_day - 10), itself, 0, this_day, none_of_them) == Hearsay::known);
  CHECK(held.merge(named(1, 6, this_day - 8), hearsay, 0, this_day, none_of_them) == Hearsay::news);
  CHECK(invitation_of(1) == 6);
  CHECK(held.of(node_id(2)) == nullptr);
}

TEST_CASE("an invitation is for so many nodes, those that were heard of first") {
  Certificates held;
  CHECK(held.merge(of(1, 1, 2, this_day + 1), itself, 0, this_day, none_of_them) == Hearsay::news);
  CHECK(held.merge(of(2, 1, 2, this_day + 2), itself, 0, this_day, none_of_them) == Hearsay::news);
  CHECK(held.merge(of(3, 1, 2, this_day + 3), itself, 0, this_day, none_of_them) == Hearsay::refused);
  CHECK(held.merge(of(3, 2, 1, this_day + 3), itself, 0, this_day, none_of_them) ==
        Hearsay::news);  // another invitation
  CHECK(held.merge(of(2, 1, 2, this_day + 9), itself, 0, this_day, none_of_them) ==
        Hearsay::known);  // a node that is in may come again
  // An earlier date does not give a node a place that has been taken for a while.
  CHECK(held.merge(of(4, 1, 2, this_day - 1000), itself, settle_us, this_day, none_of_them) == Hearsay::refused);
  // A member that hears of all of them only now, long after they were made, refuses it as well.
  CHECK(held.merge(of(4, 1, 2, this_day - 1000), itself, 0, this_day + settled_age_us + 2, none_of_them) ==
        Hearsay::refused);
  for (std::uint64_t node = 10; node < 50; ++node)
    CHECK(held.merge(of(node, 9, 0, this_day), itself, 0, this_day, none_of_them) == Hearsay::news);  // for any number
  const auto restored = Certificates::parse(held.text());
  REQUIRE(restored);
  Certificates again = *restored;
  CHECK(again.merge(of(4, 1, 2, this_day - 1000), itself, 0, this_day, none_of_them) == Hearsay::refused);
}

TEST_CASE("members that hear of an invitation's nodes in another order agree on the first") {
  gossip::Random random(4);
  std::vector<Certificate> heard;
  for (std::uint64_t node = 1; node <= 9; ++node)
    heard.push_back(
        of(node, static_cast<std::uint8_t>(1 + node % 2), 2, this_day + static_cast<TimeUs>(random.below(3))));
  std::string first;
  for (int order = 0; order < 50; ++order) {
    Certificates held;
    for (const Certificate& certificate : heard)
      (void)held.merge(certificate, hearsay, settle_us - 1, this_day, none_of_them);
    if (order == 0) first = held.text();
    CHECK(held.text() == first);
    CHECK(held.entries().size() == 4);
    for (std::size_t i = 0; i + 1 < heard.size(); ++i)
      std::swap(heard[i], heard[i + random.below(heard.size() - i)]);
  }
}

TEST_CASE("who has used an invitation up is known, and to whom it is said, until there is room again") {
  Certificates held;
  const Certificate late = of(3, 1, 2, this_day + 3);
  CHECK(held.merge(of(1, 1, 2, this_day + 1), itself, 0, this_day, none_of_them) == Hearsay::news);
  CHECK_FALSE(held.used_up_for(late));
  CHECK(held.merge(of(2, 1, 2, this_day + 2), itself, 0, this_day, none_of_them) == Hearsay::news);
  CHECK(held.merge(late, hearsay, 0, this_day, none_of_them) == Hearsay::refused);
  CHECK(held.excess().at(node_id(3)).certificate == late);
  CHECK_THAT(*held.used_up_for(late),
             Catch::EndsWith("as many other nodes as it is for: " + node_id(1).brief() + ", " + node_id(2).brief()));
  // A node that an earlier one puts out is in excess, too.
  CHECK(held.merge(of(4, 1, 2, this_day), hearsay, 0, this_day, none_of_them) == Hearsay::news);
  CHECK(held.of(node_id(2)) == nullptr);
  CHECK(held.excess().contains(node_id(2)));
  // An approval makes room, and takes its node off the list.
  CHECK(held.merge(named(2, 7, this_day), hearsay, 0, this_day, none_of_them) == Hearsay::news);
  CHECK_FALSE(held.excess().contains(node_id(2)));
  CHECK(held.merge(named(1, 8, this_day), hearsay, 0, this_day, none_of_them) == Hearsay::news);
  CHECK_FALSE(held.used_up_for(late));
  // The list is bounded: whoever invents nodes drives out those that were found first.
  for (std::uint64_t node = 100; node < 100 + 2 * max_excess; ++node) {
    for (const auto& certificate : {of(node, 9, 1, this_day), of(99, 9, 1, this_day - 1)})
      (void)held.merge(certificate, hearsay, static_cast<TimeUs>(node), this_day, none_of_them);
  }
  CHECK(held.excess().size() == max_excess);
  CHECK(held.excess().contains(node_id(100 + 2 * max_excess - 1)));
  CHECK_FALSE(held.excess().contains(node_id(3)));
}

TEST_CASE("nothing displaces a node's certificate in the node's own table, so that it can still be shown") {
  Certificates held;
  held.set_own(node_id(1));
  CHECK(held.merge(of(1, 1, 1, this_day), itself, 0, this_day, none_of_them) == Hearsay::news);
  CHECK(held.merge(of(2, 1, 1, this_day - 1), hearsay, 0, this_day, none_of_them) == Hearsay::refused);
  CHECK(held.of(node_id(1)) != nullptr);
}

TEST_CASE("the table is bounded, and what is to be kept stays") {
  Certificates held;
  const auto is_odd = [](const NodeId& node) { return node.bytes[0] % 2 == 1; };
  for (std::uint64_t node = 0; node < max_certificates + 100; ++node)
    CHECK(held.merge(of(node, 1, 0, this_day + static_cast<TimeUs>(node)), itself, 0, this_day, is_odd) ==
          Hearsay::news);
  CHECK(held.entries().size() == max_certificates);
  CHECK(held.of(node_id(0)) == nullptr);
  CHECK(held.of(node_id(1)) != nullptr);
  CHECK(held.of(node_id(max_certificates + 99)) != nullptr);
  // The table takes nothing by hearsay that it would drop at once, or members would tell it to each other endlessly.
  CHECK(held.merge(of(5000, 1, 0, this_day - 1), hearsay, 0, this_day, is_odd) == Hearsay::known);
  CHECK(held.merge(named(5000, 1, this_day - 1), hearsay, 0, this_day, is_odd) == Hearsay::news);
  CHECK(held.of(node_id(5000)) != nullptr);
  CHECK(held.entries().size() == max_certificates);
  // All that has changed is told once, in bounded parts.
  std::uint64_t change = 0;
  std::size_t told = 0;
  for (auto part = held.since(change, 100); !part.empty(); part = held.since(change, 100))
    told += part.size();
  CHECK(told == max_certificates);
  const auto restored = Certificates::parse(held.text());
  REQUIRE(restored);
  CHECK(restored->text() == held.text());
  CHECK(Certificates::parse(held.text() + hex(bytes_of(of(5000, 1, 0, this_day))) + "\n").error().find("too many") !=
        std::string::npos);
  for (const char* line : {"\n", "0\n", "00\n"})
    CHECK(Certificates::parse(line).error().find("line 1") != std::string::npos);
}
