// Real overlays agree: denials spread and are enforced, keys are changed while links stay up, invited nodes get in.

#include <algorithm>
#include <limits>
#include <optional>

#include "node_id.hpp"
#include "peer/admission/invitation.hpp"
#include "peer/admission/spread.hpp"
#include "tests/unit/peer/cluster.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace gossamer::peer::test;

namespace {

/// Three nodes that dial in a chain and soon are a full mesh.
struct Three {
  explicit Three(const ClusterKeys& ring = new_keys()) : keys(ring) {
    for (int i = 0; i < 3; ++i) {
      std::vector<std::string> peers;
      for (const auto& other : nodes)
        peers.push_back(other->overlay->address());
      nodes.push_back(Node::started(loop, keys, with_peers(peers)));
    }
    run_until(loop, [&] { return all_linked(); });
  }
  [[nodiscard]] bool all_linked() const {
    for (const auto& a : nodes) {
      for (const auto& b : nodes) {
        if (a != b && !a->linked(*b)) return false;
      }
    }
    return true;
  }
  [[nodiscard]] std::uint64_t links_lost() const {
    std::uint64_t lost = 0;
    for (const auto& node : nodes)
      lost += node->overlay->counters().links_lost;
    return lost;
  }
  [[nodiscard]] bool all_listen_with(const Fingerprint& fingerprint) const {
    return std::ranges::all_of(nodes, [&](const auto& node) {
      const auto ring = node->overlay->key_ring();
      return ring.front().fingerprint == fingerprint;
    });
  }
  [[nodiscard]] std::size_t ring_size(std::size_t index) const { return nodes[index]->overlay->key_ring().size(); }

  asio::io_context loop;
  ClusterKeys keys;
  std::vector<std::unique_ptr<Node>> nodes;
};

/// Joins. Returns the error, or "" for success.
std::string join(asio::io_context& loop, Node& node, const std::string& line) {
  const auto invitation = parse_invitation(line);
  REQUIRE(invitation);
  std::optional<std::expected<void, std::string>> result;
  const auto begun =
      node.overlay->join(*invitation, [&](std::expected<void, std::string> ended) { result = std::move(ended); });
  if (!begun) return begun.error();
  run_until(loop, [&] { return result.has_value(); });
  return *result ? std::string() : result->error();
}

}  // namespace

TEST_CASE("a denial spreads, is enforced at once, and an allow takes it back") {
  Three three;
  const auto& a = three.nodes[0];
  const auto& b = three.nodes[1];
  const auto& c = three.nodes[2];
  REQUIRE(a->decide(c->id, true, "stolen"));
  run_until(three.loop, [&] { return !a->linked(*c) && !b->linked(*c); });
  CHECK(b->overlay->denials().is_denied(c->id));
  run_until(three.loop, [&] { return a->count("dead", *c) == 1 && b->count("dead", *c) == 1; });
  CHECK(a->linked(*b));
  const auto attempts = c->overlay->counters().attempts;
  run_until(three.loop, [&] { return c->overlay->counters().attempts > attempts + 4; });
  CHECK_FALSE(c->linked(*a));
  CHECK_FALSE(c->linked(*b));
  REQUIRE(b->decide(c->id, false, ""));
  run_until(three.loop, [&] { return three.all_linked(); });
  CHECK_FALSE(a->overlay->denials().is_denied(c->id));
}

TEST_CASE("an authority decides for all members, and none of them without it") {
  Three three;
  const auto& a = three.nodes[0];
  const auto& b = three.nodes[1];
  const auto& c = three.nodes[2];
  const NodeId unwanted = Identity::generate().node;
  REQUIRE(b->decide(unwanted, true, "of before"));
  run_until(three.loop, [&] { return a->overlay->denials().is_denied(unwanted); });
  const SigningKey authority = SigningKey::generate();
  const Denial before = a->overlay->denials().entries().at(unwanted).denial;
  REQUIRE(
      a->overlay->set_authority(authority.public_half(), {{before.statement(), authority.sign(before.statement())}}));
  run_until(three.loop, [&] {
    return std::ranges::all_of(three.nodes, [&](const auto& node) {
      return node->overlay->authority() == authority.public_half() &&
             node->overlay->denials().entries().at(unwanted).denial.signature;
    });
  });
  CHECK(b->kept_ring.find(hex(authority.public_half())) != std::string::npos);

  CHECK_FALSE(b->decide(c->id, true, "by nobody"));
  CHECK_FALSE(b->rotate_key());
  b->signs = SigningKey::generate();
  CHECK_FALSE(b->decide(c->id, true, "by another"));
  CHECK_FALSE(b->rotate_key());
  // A member that follows no authority tells unsigned decisions, but the others refuse them.
  REQUIRE(b->overlay->set_authority(std::nullopt, {}));
  b->signs.reset();
  REQUIRE(b->decide(c->id, true, "by nobody"));
  run_until(three.loop, [&] { return a->logged("not signed by whoever decides in the cluster") > 0; });
  CHECK_FALSE(a->overlay->denials().is_denied(c->id));
  CHECK(a->linked(*c));

  a->signs = authority;
  REQUIRE(a->decide(b->id, true, "it means harm"));
  run_until(three.loop, [&] { return !a->linked(*b) && !c->linked(*b); });
  const auto made = a->rotate_key();
  REQUIRE(made);
  run_until(three.loop, [&] { return three.ring_size(2) == 2; });
  CHECK(c->overlay->ring_state().keys.back().signature);
}

TEST_CASE("what one node denies by configuration no member can allow") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const Identity unwanted = Identity::generate();
  OverlaySettings options = quick_options();
  options.denied = {unwanted.node};
  const auto a = Node::started(loop, keys, options);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  const auto c = Node::started(loop, keys, with_peers({a->overlay->address(), b->overlay->address()}), unwanted);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*c); });
  REQUIRE(b->decide(c->id, false, ""));
  run_until(loop, [&] { return a->overlay->denials().entries().size() == 1; });
  const auto attempts = c->overlay->counters().attempts;
  run_until(loop, [&] { return c->overlay->counters().attempts > attempts + 3; });
  CHECK_FALSE(a->linked(*c));
}

TEST_CASE("a node that was away hears who is denied, and keeps what it knew") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const NodeId gone = Identity::generate().node;
  REQUIRE(a->decide(gone, true, "why"));
  OverlaySettings options = with_peers({a->overlay->address()});
  const NodeId other = Identity::generate().node;
  options.denials.decide({other, true, 5, ""});
  const auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return b->overlay->denials().is_denied(gone) && a->overlay->denials().is_denied(other); });
  CHECK(a->denial_changes >= 1);
  CHECK_FALSE(a->decide(a->id, true, ""));
  CHECK_FALSE(a->decide(gone, true, "a\nb"));
}

TEST_CASE("the key is changed and the old one retired while every link stays up") {
  Three three;
  const Fingerprint old_key = three.keys.first().fingerprint();
  const auto lost = three.links_lost();
  const auto made = three.nodes[1]->rotate_key();
  REQUIRE(made);
  run_until(three.loop, [&] { return three.all_listen_with(*made); });
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(three.ring_size(i) == 2);
    CHECK(three.nodes[i]->kept_ring.find(hex(*made)) != std::string::npos);
  }
  // A newcomer that holds only the new key gets in at each member.
  const ClusterKeys new_only({three.nodes[1]->kept_keys->first()});
  const auto young = Node::started(three.loop, new_only, with_peers({three.nodes[0]->overlay->address()}));
  run_until(three.loop, [&] { return young->linked(*three.nodes[0]); });

  CHECK_FALSE(three.nodes[2]->retire_key(*made));
  REQUIRE(three.nodes[2]->retire_key(old_key));
  run_until(three.loop, [&] { return three.ring_size(0) == 1 && three.ring_size(1) == 1; });
  CHECK(three.links_lost() == lost);
  CHECK(three.all_linked());
  // Messages still go through links that were made under the old key.
  const auto before = three.nodes[0]->link(*three.nodes[2]).traffic.messages_received;
  run_until(three.loop, [&] { return three.nodes[0]->link(*three.nodes[2]).traffic.messages_received > before + 5; });

  const auto late = Node::started(three.loop, three.keys, with_peers({three.nodes[0]->overlay->address()}));
  run_until(three.loop, [&] { return late->overlay->counters().attempts_failed >= 3; });
  CHECK_FALSE(late->linked(*three.nodes[0]));
  CHECK(late->logged("needs an invitation") >= 1);
  CHECK(three.links_lost() == lost);
}

TEST_CASE("a node that was away while the key changed gets in with the old one, and learns the new one") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto made = a->rotate_key();
  REQUIRE(made);
  run_until(loop, [&] { return a->overlay->key_ring().front().fingerprint == *made; });
  // The node only dials out, so nobody can reach it with the new key. Its own dials fall into the slot of the old key.
  OverlaySettings options = with_peers({a->overlay->address()});
  options.advertise = "none";
  const auto b = Node::started(loop, keys, options);
  a->clock_offset_us += first_key_slot_us - us_per_s;  // shortly before the slot of the new key
  run_until(loop, [&] { return b->linked(*a) && b->overlay->key_ring().size() == 2; });
  run_until(loop, [&] { return b->overlay->key_ring().front().fingerprint == *made; });
}

TEST_CASE("keys are changed again and again, and links stay up") {
  Three three;
  const auto lost = three.links_lost();
  for (std::size_t round = 0; round < 5; ++round) {
    Node& node = *three.nodes[round % 3];
    const Fingerprint old_key = node.overlay->key_ring().front().fingerprint;
    const auto made = node.rotate_key();
    REQUIRE(made);
    run_until(three.loop, [&] { return three.all_listen_with(*made); });
    REQUIRE(node.retire_key(old_key));
    run_until(three.loop,
              [&] { return three.ring_size(0) == 1 && three.ring_size(1) == 1 && three.ring_size(2) == 1; });
  }
  CHECK(three.links_lost() == lost);
  CHECK(three.all_linked());
}

TEST_CASE("a ring that cannot be kept is not changed here") {
  asio::io_context loop;
  const auto a = Node::started(loop, new_keys());
  a->keep_error = "the disk is full";
  const auto made = a->rotate_key();
  REQUIRE_FALSE(made);
  CHECK(made.error() == "the disk is full");
  CHECK(a->overlay->key_ring().size() == 1);
}

TEST_CASE("a node that is invited gets the keys and joins everyone") {
  Three three;
  REQUIRE(three.nodes[0]->rotate_key());
  run_until(three.loop, [&] { return three.ring_size(1) == 2; });
  const auto line = three.nodes[1]->overlay->invite(us_per_s, {});
  REQUIRE(line);
  const auto d = Node::started(three.loop, new_keys());
  CHECK(join(three.loop, *d, invitation_line(*line)).empty());
  CHECK(d->overlay->key_ring().size() == 2);
  CHECK(d->kept_keys->all().size() == 2);
  run_until(three.loop, [&] {
    return std::ranges::all_of(three.nodes, [&](const auto& node) { return node->linked(*d) && d->linked(*node); });
  });
  CHECK(three.links_lost() == 0);
  CHECK(join(three.loop, *d, invitation_line(*line)).find("linked to others") != std::string::npos);
  // The key that it made for itself before is gone.
  CHECK(three.ring_size(0) == 2);
}

TEST_CASE("a node that is invited is linked at once, also if the key changes right after it was given the old one") {
  asio::io_context loop;
  const auto a = Node::started(loop, new_keys());
  const auto line = a->overlay->invite(us_per_s, {});
  REQUIRE(line);
  OverlaySettings late = quick_options();
  late.tick_ms = 300;  // it dials when the other node has had time for the new key
  const auto b = Node::started(loop, new_keys(), late);
  REQUIRE(join(loop, *b, invitation_line(*line)).empty());
  const auto begun = std::chrono::steady_clock::now();
  const auto key = a->rotate_key();
  REQUIRE(key);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(2));
  run_until(loop, [&] {
    return a->overlay->key_ring().front().fingerprint == *key && b->overlay->key_ring().front().fingerprint == *key;
  });
  CHECK(a->overlay->counters().links_lost == 0);
}

TEST_CASE("invitations that do not count any more say so") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto joiner = Node::started(loop, new_keys());
  const auto line = a->overlay->invite(3600 * us_per_s, {});
  REQUIRE(line);
  a->time_of_day += 3600 * us_per_s;  // the member's clock decides, not the joiner's
  const std::string expired = join(loop, *joiner, invitation_line(*line));
  CHECK(expired.find("expired at 2027-01-15 09:00 UTC") != std::string::npos);
  CHECK(expired.find("gossamerctl invite") != std::string::npos);
  a->time_of_day -= 1;
  CHECK(joiner->overlay->key_ring().size() == 1);

  REQUIRE(a->decide(joiner->id, true, ""));
  CHECK_THAT(join(loop, *joiner, invitation_line(*line)), Catch::Contains("denies this node"));
  REQUIRE(a->decide(joiner->id, false, ""));
  CHECK_THAT(join(loop, *joiner, invitation_line(*line)), Catch::Equals(""));
}

TEST_CASE("an invitation from nowhere, and one to another cluster") {
  asio::io_context loop;
  const auto joiner = Node::started(loop, new_keys());
  const Address nowhere{"127.0.0.1", 1};
  const auto a = Node::started(loop, new_keys());
  const auto unreachable = a->overlay->invite(3600 * us_per_s, {nowhere});
  REQUIRE(unreachable);
  CHECK(join(loop, *joiner, invitation_line(*unreachable)).find("nobody answers at tcp://127.0.0.1:1") !=
        std::string::npos);
  // The second address answers.
  const auto both =
      a->overlay->invite(3600 * us_per_s, {nowhere, *parse_address(a->overlay->address(), AddressUse::dial)});
  CHECK(join(loop, *joiner, invitation_line(*both)).empty());
}

TEST_CASE("claims that are not proven give nothing away") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto joiner = Node::started(loop, new_keys());
  auto forged = a->overlay->invite(us_per_s, {});
  REQUIRE(forged);
  forged->expires_at += 3600 * us_per_s;  // as the holder of the line may try
  CHECK(join(loop, *joiner, invitation_line(*forged)).find("no longer accepted") != std::string::npos);
  CHECK(a->overlay->counters().admissions_refused == 1);
  CHECK(a->logged("gave the cluster keys") == 0);
}

TEST_CASE("where nobody can be dialled an invitation needs an address") {
  asio::io_context loop;
  OverlaySettings options = quick_options();
  options.advertise = "none";
  const auto a = Node::started(loop, new_keys(), options);
  const auto none = a->overlay->invite(us_per_s, {});
  REQUIRE_FALSE(none);
  CHECK(none.error().find("--address") != std::string::npos);
  OverlaySettings everywhere = quick_options();
  everywhere.listen = "tcp://0.0.0.0:0";
  const auto b = Node::started(loop, new_keys(), everywhere);
  const auto invitation = b->overlay->invite(us_per_s, {});
  REQUIRE(invitation);
  for (const Address& address : invitation->addresses)
    CHECK_FALSE(address.is_wildcard());
}

TEST_CASE("what was decided with a clock that was ahead is refused by name, and forgotten when the clock is right") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  const NodeId lost = gossamer::test::node_id(77);
  a->time_of_day += 25 * 3600 * us_per_s;
  REQUIRE(a->decide(lost, true, "lost"));
  const auto made = a->rotate_key();
  REQUIRE(made);
  run_until(loop, [&] {
    return b->logged(a->id.brief() + " tells of denials: node " + lost.full() + " is denied: lost, dated") > 0 &&
           b->logged("tells of keys and rules: cluster key " + hex(*made) + ", dated") > 0;
  });
  CHECK(b->logged("correct the clock of that node") == 2);
  a->time_of_day = b->time_of_day;
  run_until(loop, [&] {
    for (const auto& node : {a.get(), b.get()})
      node->clock_offset_us += us_per_s;  // slowly, so that the link stays
    return a->logged("it is forgotten") == 2;
  });
  CHECK_FALSE(a->overlay->denials().is_denied(lost));
  CHECK(a->overlay->key_ring().size() == 1);
  CHECK(a->kept_keys->all().size() == 1);
  CHECK(b->overlay->key_ring().size() == 1);
}

namespace {

/// An authority that asks for certificates.
struct Asking {
  SigningKey key = SigningKey::generate();
  TimeUs valid_until = std::numeric_limits<TimeUs>::max();
  TimeUs approved = 0;

  void follow(Node& node, bool asks = true) const {
    REQUIRE(node.overlay->set_authority(key.public_half(), {}));
    AdmissionRule rule = node.overlay->propose_rule(asks);
    rule.signature = key.sign(rule.statement());
    REQUIRE(node.overlay->set_rule(rule));
  }
  [[nodiscard]] UsableWarrant warrant(std::uint32_t nodes, const NodeId& node = {}, Rights rights = {}) const {
    return UsableWarrant::make({.invitation = random_invitation_id(),
                                .nodes = nodes,
                                .node = node,
                                .rights = std::move(rights),
                                .usable_until = valid_until,
                                .valid_until = valid_until},
                               key);
  }
  /// Approves a node as `gossamerctl approve` does.
  void approve(Node& at, const NodeId& node, Rights rights = {}) {
    ++approved;  // each later than the one before
    REQUIRE(at.overlay->certify(warrant(1, node, std::move(rights)).certify(node, at.time_of_day + approved)));
  }
};

/// A member, and an invitation for one node.
struct Inviting {
  Inviting() {
    authority.follow(*a);
    authority.approve(*a, a->id);
  }
  /// A node that has used the invitation at `made_at`, and dials nobody yet.
  [[nodiscard]] std::unique_ptr<Node> guest(TimeUs made_at) {
    auto node = Node::started(loop, keys);
    authority.follow(*node);
    REQUIRE(node->overlay->certify(once.certify(node->id, made_at)));
    return node;
  }

  asio::io_context loop;
  ClusterKeys keys = new_keys();
  Asking authority;
  UsableWarrant once = authority.warrant(1);
  std::unique_ptr<Node> a = Node::started(loop, keys);
};

}  // namespace

TEST_CASE("a node that shows a certificate of a used invitation is turned away, and told why") {
  Inviting one;
  auto& [loop, keys, authority, once, a] = one;
  REQUIRE(a->overlay->certify(once.certify(gossamer::test::node_id(77), a->time_of_day)));
  const auto b = one.guest(a->time_of_day + 1);
  REQUIRE(b->overlay->set_peers({a->overlay->address()}));
  run_until(loop, [&] { return b->logged("as many other nodes as it is for") > 0; });
  CHECK(a->overlay->waiting().front().node == b->id);
  CHECK_FALSE(a->linked(*b));
  // The operator's approval lets it in.
  authority.approve(*a, b->id);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(a->overlay->waiting().empty());
  // A node that comes no more does not wait for ever.
  auto c = Node::started(loop, keys);
  REQUIRE(c->overlay->set_peers({a->overlay->address()}));
  run_until(loop, [&] { return !a->overlay->waiting().empty(); });
  c.reset();
  a->time_of_day += waiting_remembered_us / 2;
  CHECK_FALSE(holds_within(loop, std::chrono::milliseconds(200), [&] { return a->overlay->waiting().empty(); }));
  a->time_of_day += waiting_remembered_us;
  run_until(loop, [&] { return a->overlay->waiting().empty(); });
}

namespace {

/// Two linked nodes, both with a certificate of the authority that they follow.
struct Certified {
  Certified() {
    run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
    authority.follow(*a);
    authority.approve(*a, a->id);
    authority.approve(*a, b->id);
    run_until(loop, [&] { return b_knows_all(); });
  }
  [[nodiscard]] bool b_knows_all() const {
    return b->overlay->asks_for_certificates() && b->overlay->certificate_of(a->id) != nullptr &&
           b->overlay->certificate_of(b->id) != nullptr;
  }

  asio::io_context loop;
  ClusterKeys keys = new_keys();
  Asking authority;
  std::unique_ptr<Node> a = Node::started(loop, keys);
  std::unique_ptr<Node> b = Node::started(loop, keys, with_peers({a->overlay->address()}));
};

}  // namespace

TEST_CASE("members that let in different nodes of one invitation say so, and an approval ends it") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  Asking authority;
  const UsableWarrant once = authority.warrant(1);
  const auto a = Node::started(loop, keys);
  const auto b = Node::started(loop, keys);
  const auto c = Node::started(loop, keys, with_peers({a->overlay->address()}));
  const auto d = Node::started(loop, keys, with_peers({b->overlay->address()}));
  const TimeUs long_ago = a->time_of_day - 2 * settled_age_us;
  for (const auto& [member, guest] : {std::pair(&a, &c), std::pair(&b, &d)}) {
    authority.follow(**member);
    authority.approve(**member, a->id);
    authority.approve(**member, b->id);
    authority.follow(**guest);
    REQUIRE((*guest)->overlay->certify(once.certify((*guest)->id, long_ago)));
    run_until(loop, [&] { return (*member)->linked(**guest); });
  }
  // Both sides meet.
  REQUIRE(a->overlay->set_peers({b->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && a->overlay->used_up_for(d->id) && b->overlay->used_up_for(c->id); });
  CHECK(a->overlay->used_up_for(d->id)->find(hex(once.warrant.invitation)) != std::string::npos);
  CHECK(a->overlay->used_up_for(d->id)->find(c->id.brief()) != std::string::npos);
  // The other member tells of it once, unless the node itself comes first and is turned away with the same words.
  const std::string said = "as many other nodes as it is for: " + c->id.brief();
  const auto by_member = a->logged("Approve the nodes that are to stay");
  CHECK((by_member == 1 || (by_member == 0 && a->logged(said + ": see gossamerctl pending and approve") > 0)));
  run_until(loop, [&] { return d->logged(said) > 0; });
  CHECK_FALSE(a->linked(*d));
  CHECK_FALSE(b->linked(*c));
  authority.approve(*a, d->id);
  run_until(loop, [&] { return a->linked(*d) && b->linked(*c) && c->linked(*d) && b->linked(*d) && a->linked(*c); });
  CHECK_FALSE(a->overlay->used_up_for(d->id));
  CHECK_FALSE(b->overlay->used_up_for(c->id));
}

TEST_CASE("a node that an earlier one puts out is told that its invitation is used up") {
  Inviting one;
  auto& [loop, keys, authority, once, a] = one;
  const auto b = one.guest(a->time_of_day);
  REQUIRE(b->overlay->set_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b); });
  const NodeId earlier = gossamer::test::node_id(77);
  REQUIRE(a->overlay->certify(once.certify(earlier, a->time_of_day - 1)));
  const auto is_told = [&] { return b->logged("as many other nodes as it is for: " + earlier.brief()) > 0; };
  run_until(loop, [&] { return is_told() && !a->overlay->waiting().empty(); });
  CHECK_FALSE(a->linked(*b));
  CHECK(a->overlay->waiting().front().why.find(earlier.brief()) != std::string::npos);
  CHECK(b->logged("shows none") == 0);
}

TEST_CASE("a link ends when the rights of its other end change, and comes back with the new ones") {
  Certified two;
  const auto& a = two.a;
  const auto& b = two.b;
  CHECK(a->overlay->counters().links_lost == 0);  // all rights, as before
  CHECK(b->overlay->rights_of(a->id) == Rights{});
  two.authority.approve(*b, a->id, {.jobs = "lab-*"});
  run_until(two.loop, [&] { return b->overlay->counters().links_lost > 0; });
  run_until(two.loop, [&] { return a->linked(*b) && b->linked(*a) && a->overlay->rights_of(a->id).jobs == "lab-*"; });
  CHECK(b->overlay->rights_of(a->id).jobs == "lab-*");
}

TEST_CASE("an authority that is corrected before anybody has heard of the wrong one is told everything again") {
  Certified two;
  REQUIRE(two.b->overlay->set_authority(SigningKey::generate().public_half(), {}));
  REQUIRE(two.b->overlay->set_authority(two.authority.key.public_half(), {}));
  REQUIRE_FALSE(two.b_knows_all());
  run_until(two.loop, [&] { return two.b_knows_all(); });
}
