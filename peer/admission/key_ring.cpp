#include "peer/admission/key_ring.hpp"

#include <algorithm>
#include <tuple>

#include "gossip/check.hpp"
#include "peer/admission/words.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

constexpr std::string_view made_word = "made ";
constexpr std::string_view retired_word = "retired ";
constexpr std::string_view authority_word = "authority ";
constexpr std::string_view dropped_word = "dropped ";
constexpr std::string_view rule_word = "rule ";
constexpr std::string_view deputy_word = "deputy ";
constexpr std::string_view certificates_word = "certificates";
constexpr std::string_view key_word = "key";

struct Note {
  bool retired = false;
  Fingerprint fingerprint{};
  TimeUs time = 0;
  std::optional<Signature> signature = {};
};

/// made|retired FINGERPRINT TIME, and SIGNATURE if there is one
std::optional<Note> parse_note(std::string_view line) {
  Note note;
  note.retired = line.starts_with(retired_word);
  if (!note.retired && !line.starts_with(made_word)) return std::nullopt;
  next_word(line);
  const auto fingerprint = parse_fingerprint(next_word(line));
  if (!fingerprint || !parse_number(next_word(line), note.time)) return std::nullopt;
  note.fingerprint = *fingerprint;
  if (!line.empty() && !parse_hex(line, note.signature.emplace())) return std::nullopt;
  return note;
}

/// rule certificates|key TIME SIGNATURE
std::optional<AdmissionRule> parse_rule(std::string_view line) {
  AdmissionRule rule;
  next_word(line);
  const std::string_view asked = next_word(line);
  rule.certificates = asked == certificates_word;
  if ((!rule.certificates && asked != key_word) || !parse_number(next_word(line), rule.decided_at) ||
      !parse_hex(line, rule.signature)) {
    return std::nullopt;
  }
  return rule;
}

/// deputy KEY POWERS TIME SIGNATURE NAME
std::optional<Deputy> parse_deputy(std::string_view line) {
  Deputy deputy;
  unsigned powers = 0;
  next_word(line);
  if (!parse_hex(next_word(line), deputy.key) || !parse_number(next_word(line), powers) || powers > 255 ||
      !parse_number(next_word(line), deputy.decided_at) || !parse_hex(next_word(line), deputy.signature)) {
    return std::nullopt;
  }
  deputy.powers = static_cast<std::uint8_t>(powers);
  deputy.name = line;
  return deputy;
}

/// Compares two records about the same key: the larger one holds.
auto rank(const Deputy& deputy) {
  return std::tie(deputy.decided_at, deputy.powers, deputy.name);
}

}  // namespace

std::string words_of(const RingKey& key) {
  return "cluster key " + hex(key.key.fingerprint());
}

std::string words_of(const RetiredKey& key) {
  return "the end of cluster key " + hex(key.fingerprint);
}

KeyRing::KeyRing(const ClusterKeys& keys) {
  for (const ClusterKey& key : keys.all())
    keys_.push_back({key, 0});
}

std::expected<KeyRing, std::string> KeyRing::restore(const ClusterKeys& keys, std::string_view notes) {
  KeyRing ring(keys);
  for (std::size_t number = 1; !notes.empty(); ++number) {
    const std::string_view line = next_line(notes);
    PublicKey authority{};
    if (line.starts_with(authority_word) && parse_hex(line.substr(authority_word.size()), authority)) {
      ring.deciders_ = authority;
      continue;
    }
    if (line.starts_with(dropped_word) && parse_hex(line.substr(dropped_word.size()), authority)) {
      ring.drop(authority);
      continue;
    }
    if (line.starts_with(deputy_word) && ring.deciders_) {
      const auto deputy = parse_deputy(line);
      if (deputy && ring.deciders_->have_signed(*deputy) && ring.put_deputy(*deputy) == Put::taken) continue;
    }
    if (line.starts_with(rule_word)) {
      ring.rule_ = parse_rule(line);
      if (ring.rule_) continue;
    }
    const auto note = parse_note(line);
    if (!note) return std::unexpected("line " + std::to_string(number) + " is no note about a key");
    if (note->retired) {
      ring.remember_retired({note->fingerprint, note->time, note->signature});
    } else if (RingKey* key = ring.find(note->fingerprint)) {
      key->made_at = note->time;
      key->signature = note->signature;
    }
  }
  std::erase_if(ring.keys_, [&](const RingKey& key) { return ring.is_retired(key.key.fingerprint()); });
  ring.forget_other_signatures();
  if (ring.keys_.empty()) {
    return std::unexpected(
        "every key in the file is retired: get a member's key file, or a new invitation (gossamerctl invite there)");
  }
  return ring;
}

std::expected<KeyRing, std::string> KeyRing::adopt(const RingState& state, const DeputyList& deputies) {
  KeyRing ring;
  ring.deciders_ = state.authority;
  for (const Deputy& deputy : deputies.records) {
    if (ring.deciders_ && ring.deciders_->have_signed(deputy)) ring.put_deputy(deputy);
  }
  ring.rule_ = state.rule;
  for (const RetiredKey& key : state.retired)
    ring.remember_retired(key);
  for (const RingKey& key : state.keys) {
    const Fingerprint fingerprint = key.key.fingerprint();
    if (!ring.is_retired(fingerprint) && !ring.holds(fingerprint)) ring.keys_.push_back(key);
  }
  ring.forget_other_signatures();
  if (ring.keys_.empty() || ring.keys_.size() > max_cluster_keys) {
    return std::unexpected("the key ring that came with the answer makes no sense");
  }
  return ring;
}

ClusterKeys KeyRing::cluster_keys() const {
  std::vector<ClusterKey> keys;
  keys.reserve(keys_.size());
  for (const RingKey& key : keys_)
    keys.push_back(key.key);
  return ClusterKeys(std::move(keys));
}

std::string KeyRing::notes() const {
  std::string text;
  const auto note = [&](std::string_view word, const Note& of) {
    text.append(word).append(hex(of.fingerprint)).append(" ").append(std::to_string(of.time));
    if (of.signature) text.append(" ").append(hex(*of.signature));
    text.append("\n");
  };
  if (deciders_) text.append(authority_word).append(hex(deciders_->authority)).append("\n");
  for (const PublicKey& dropped : dropped_)
    text.append(dropped_word).append(hex(dropped)).append("\n");
  for (const Deputy& deputy : deputy_list().records) {
    text.append(deputy_word).append(hex(deputy.key)).append(" ").append(std::to_string(deputy.powers)).append(" ");
    text.append(std::to_string(deputy.decided_at)).append(" ").append(hex(deputy.signature)).append(" ");
    text.append(deputy.name).append("\n");
  }
  if (rule_) {
    text.append(rule_word).append(rule_->certificates ? certificates_word : key_word).append(" ");
    text.append(std::to_string(rule_->decided_at)).append(" ").append(hex(rule_->signature)).append("\n");
  }
  for (const RingKey& key : keys_)
    note(made_word, {false, key.key.fingerprint(), key.made_at, key.signature});
  for (const RetiredKey& key : retired_)
    note(retired_word, {true, key.fingerprint, key.retired_at, key.signature});
  return text;
}

bool KeyRing::holds(const Fingerprint& fingerprint) const {
  return std::ranges::any_of(keys_, [&](const RingKey& key) { return key.key.fingerprint() == fingerprint; });
}

void KeyRing::set_authority(const std::optional<PublicKey>& authority) {
  if (authority) std::erase(dropped_, *authority);
  if (!authority && deciders_) drop(deciders_->authority);
  if (!authority || authority != this->authority()) deciders_ = authority;
  forget_other_signatures();
}

void KeyRing::drop(const PublicKey& authority) {
  std::erase(dropped_, authority);
  if (dropped_.size() == max_dropped_authorities) dropped_.erase(dropped_.begin());
  dropped_.push_back(authority);
}

bool KeyRing::has_dropped(const PublicKey& authority) const {
  return std::ranges::find(dropped_, authority) != dropped_.end();
}

bool KeyRing::follow(const std::optional<PublicKey>& heard) {
  if (!heard || deciders_ || has_dropped(*heard)) return false;
  set_authority(heard);
  return true;
}

void KeyRing::forget_other_signatures() {
  const auto forget_others = [&](auto& items) {
    for (auto& item : items) {
      if (deciders_ && !deciders_->have_signed(item)) item.signature.reset();
    }
  };
  forget_others(keys_);
  forget_others(retired_);
  if (rule_ && (!deciders_ || !deciders_->have_signed(*rule_))) rule_.reset();
}

Deputy KeyRing::propose_deputy(const PublicKey& key, std::uint8_t powers, std::string name, TimeUs time_of_day) const {
  Deputy proposed{.key = key, .powers = powers, .decided_at = time_of_day, .name = std::move(name)};
  for (const Deputy& known : deputy_list().records) {
    if (known.key == key) proposed.decided_at = std::max(time_of_day, just_after(known.decided_at));
  }
  return proposed;
}

std::expected<void, std::string> KeyRing::set_deputy(const Deputy& deputy) {
  const Put put = put_deputy(deputy);
  if (put == Put::known) return std::unexpected("another decision about the deputy has come meanwhile: try again");
  if (put == Put::no_room) {
    return std::unexpected("there have been " + std::to_string(max_deputies) +
                           " deputies, which is the most: make a new authority (gossamerctl authority)");
  }
  forget_other_signatures();
  return {};
}

KeyRing::Put KeyRing::put_deputy(const Deputy& deputy) {
  GOSSAMER_CHECK(deciders_);
  if (holds(deputy)) return Put::known;
  auto& deputies = deciders_->deputies;
  const auto earlier = std::ranges::find(deputies, deputy.key, &Deputy::key);
  if (earlier != deputies.end()) {
    *earlier = deputy;
  } else {
    if (deputies.size() == max_deputies) return Put::no_room;
    deputies.push_back(deputy);
  }
  return Put::taken;
}

bool KeyRing::holds(const Deputy& deputy) const {
  return std::ranges::any_of(
      deciders_->deputies, [&](const Deputy& known) { return known.key == deputy.key && rank(known) >= rank(deputy); });
}

bool KeyRing::knows(const DeputyList& heard) const {
  if (!deciders_) return !heard.authority || has_dropped(*heard.authority);
  return heard.authority != authority() ||
         std::ranges::all_of(heard.records, [this](const Deputy& deputy) { return holds(deputy); });
}

AdmissionRule KeyRing::propose_rule(bool certificates, TimeUs time_of_day) const {
  return {certificates, rule_ ? std::max(time_of_day, just_after(rule_->decided_at)) : time_of_day, {}};
}

void KeyRing::take_signatures(const Signatures& signatures) {
  const auto take = [&](auto& items) {
    for (auto& item : items) {
      const auto found = signatures.find(item.statement());
      if (found == signatures.end() || !deciders_) continue;
      if (deciders_->have_signed(item.power, found->first, found->second)) item.signature = found->second;
    }
  };
  take(keys_);
  take(retired_);
}

bool KeyRing::knows(const RingState& heard) const {
  const bool same_authority = !heard.authority || heard.authority == authority();
  const bool same_rule = !heard.rule || is_held(*heard.rule);
  return same_authority && same_rule &&
         std::ranges::all_of(heard.keys,
                             [&](const RingKey& key) {
                               const auto known = std::ranges::find_if(
                                   keys_, [&](const RingKey& held) { return held.key.key.same_as(key.key.key); });
                               return known != keys_.end() && (known->made_at != 0 || key.made_at == 0) &&
                                      (known->signature || !key.signature);
                             }) &&
         std::ranges::all_of(heard.retired, [&](const RetiredKey& key) {
           const auto known = std::ranges::find(retired_, key.fingerprint, &RetiredKey::fingerprint);
           return known != retired_.end() && (known->signature || !key.signature);
         });
}

/// Returns what is wrong with the decision's signature, or nothing. After one forged signature the rest of the message
/// is not checked, because checking signatures takes time.
template <class Item>
std::optional<Refusal> KeyRing::flaw_of(const Item& heard, Merge& merge) const {
  if (merge.forged) return Refusal::not_signed;
  const auto signer = deciders_->signer_of(heard.statement(), heard.signature);
  merge.forged = !signer;
  if (!signer) return Refusal::not_signed;
  return deciders_->may_sign(*signer, Item::power) ? std::nullopt : std::optional(Refusal::no_right);
}

/// Returns why the decision may not be taken from another member, or nothing if it may. Where there is an authority, it
/// must be signed and sound.
template <class Item>
std::optional<Refusal> KeyRing::objection_to(const Item& heard, Merge& merge) const {
  if (!deciders_) return std::nullopt;
  return heard.signature ? flaw_of(heard, merge) : std::optional(Refusal::not_signed);
}

bool KeyRing::is_retired(const Fingerprint& fingerprint) const {
  return std::ranges::any_of(retired_, [&](const RetiredKey& key) { return key.fingerprint == fingerprint; });
}

RingKey* KeyRing::find(const Fingerprint& fingerprint) {
  const auto found =
      std::ranges::find_if(keys_, [&](const RingKey& key) { return key.key.fingerprint() == fingerprint; });
  return found == keys_.end() ? nullptr : &*found;
}

std::optional<Fingerprint> KeyRing::successor() const {
  std::optional<Fingerprint> newest;
  TimeUs made_at = keys_.front().made_at;
  for (const RingKey& key : keys_) {
    const Fingerprint fingerprint = key.key.fingerprint();
    // If two keys were made in the same microsecond, every member takes the same one.
    if (key.made_at < made_at || (key.made_at == made_at && (!newest || fingerprint < *newest))) continue;
    made_at = key.made_at;
    newest = fingerprint;
  }
  return newest;
}

KeyRing::Merge KeyRing::merge(const RingState& heard, TimeUs time_of_day) {
  const std::string before = notes();
  Merge merge;
  follow(heard.authority);
  if (heard.authority && heard.authority != authority()) merge.refused = "another authority";
  const auto take = [&](const auto& why, const std::string& what, TimeUs dated_at) {
    if (why) merge.refuse(*why, what, dated_at);
  };
  if (heard.rule) {
    take(merge_rule(*heard.rule, time_of_day, merge),
         heard.rule->certificates ? "the rule that nodes need a certificate" : "the rule that a cluster key is enough",
         heard.rule->decided_at);
  }
  for (const RetiredKey& key : heard.retired)
    take(merge_retired(key, time_of_day, merge), words_of(key), key.retired_at);
  revive_newest_if_none_is_left(heard, time_of_day, merge);
  // New keys are added before retired ones are removed, since a retired key stays if it is the only one.
  for (const RingKey& key : heard.keys)
    take(merge_key(key, time_of_day, merge), words_of(key), key.made_at);
  drop_retired();
  merge.changed = notes() != before;
  return merge;
}

KeyRing::Merge KeyRing::merge(const DeputyList& heard, TimeUs time_of_day) {
  Merge merge;
  merge.changed = follow(heard.authority);
  if (!heard.authority || heard.authority != authority()) return merge;
  bool changed = false;
  for (const Deputy& deputy : heard.records) {
    if (holds(deputy)) continue;
    if (const auto why = merge_deputy(deputy, time_of_day, merge)) {
      merge.refuse(*why, "the deputy " + deputy.name + " (" + hex(deputy.key) + ")", deputy.decided_at);
    } else {
      changed = true;
    }
  }
  if (changed) forget_other_signatures();
  merge.changed = merge.changed || changed;
  return merge;
}

/// If two operators retired different keys at once and none is left, all members keep the same one.
void KeyRing::revive_newest_if_none_is_left(const RingState& heard, TimeUs time_of_day, Merge& merge) {
  std::optional<std::pair<TimeUs, Fingerprint>> newest;
  /// True if the key is not retired. Notes the newest retired one.
  const auto look = [&](const RingKey& key) {
    const Fingerprint fingerprint = key.key.fingerprint();
    if (is_too_far_ahead(key.made_at, time_of_day)) return false;
    if (!is_retired(fingerprint)) return true;
    newest = std::max(newest, std::optional(std::pair(key.made_at, fingerprint)));
    return false;
  };
  if (std::ranges::any_of(keys_, look)) return;
  if (std::ranges::any_of(heard.keys, [&](const RingKey& key) { return !objection_to(key, merge) && look(key); }))
    return;
  if (newest) std::erase_if(retired_, [&](const RetiredKey& key) { return key.fingerprint == newest->second; });
}

/// Returns why the deputy cannot be taken, or nothing if it is. The other merge_...() do the same.
std::optional<Refusal> KeyRing::merge_deputy(const Deputy& heard, TimeUs time_of_day, Merge& merge) {
  if (is_too_far_ahead(heard.decided_at, time_of_day)) return Refusal::ahead;
  if (const auto flaw = flaw_of(heard, merge)) return flaw;
  return put_deputy(heard) == Put::taken ? std::nullopt : std::optional(Refusal::no_room);
}

std::optional<Refusal> KeyRing::merge_retired(const RetiredKey& heard, TimeUs time_of_day, Merge& merge) {
  const auto known = std::ranges::find(retired_, heard.fingerprint, &RetiredKey::fingerprint);
  const bool is_known = known != retired_.end();
  if (is_known && (known->signature || !heard.signature)) return std::nullopt;
  if (is_too_far_ahead(heard.retired_at, time_of_day)) return Refusal::ahead;
  if (const auto why = objection_to(heard, merge)) return why;
  if (is_known) {
    *known = heard;
  } else {
    remember_retired(heard);
  }
  return std::nullopt;
}

bool KeyRing::is_held(const AdmissionRule& rule) const {
  return rule_ && std::tie(rule_->decided_at, rule_->certificates) >= std::tie(rule.decided_at, rule.certificates);
}

/// Without an authority no rule is taken.
std::optional<Refusal> KeyRing::merge_rule(const AdmissionRule& heard, TimeUs time_of_day, Merge& merge) {
  if (is_held(heard)) return std::nullopt;
  if (!deciders_) return Refusal::not_signed;
  if (is_too_far_ahead(heard.decided_at, time_of_day)) return Refusal::ahead;
  if (const auto flaw = flaw_of(heard, merge)) return flaw;
  rule_ = heard;
  return std::nullopt;
}

std::optional<Refusal> KeyRing::merge_key(const RingKey& heard, TimeUs time_of_day, Merge& merge) {
  const Fingerprint fingerprint = heard.key.fingerprint();
  if (is_retired(fingerprint)) return std::nullopt;
  if (is_too_far_ahead(heard.made_at, time_of_day)) return Refusal::ahead;
  RingKey* const known = find(fingerprint);
  if (known != nullptr && (known->signature || (known->made_at != 0 && !heard.signature))) return std::nullopt;
  if (const auto why = objection_to(heard, merge)) return known != nullptr ? std::nullopt : why;
  if (known != nullptr) {
    // Only an unknown date is filled in, so that nobody can make an old key the newest. Only the authority may change a
    // date.
    if (known->made_at == 0 || deciders_) known->made_at = heard.made_at;
    if (known->made_at == heard.made_at) known->signature = heard.signature;
    return std::nullopt;
  }
  if (keys_.size() >= max_cluster_keys) drop_retired();
  if (keys_.size() >= max_cluster_keys && deciders_) drop_one_not_signed();
  if (keys_.size() >= max_cluster_keys) return Refusal::no_room;
  keys_.push_back(heard);
  return std::nullopt;
}

/// Takes retired keys out, but never the last one.
void KeyRing::drop_retired() {
  while (keys_.size() > 1) {
    const auto gone = std::ranges::find_if(keys_, [&](const RingKey& k) { return is_retired(k.key.fingerprint()); });
    if (gone == keys_.end()) break;
    if (gone == keys_.begin()) {
      const auto next = successor();
      if (next && !is_retired(*next)) {
        promote(*next);
        continue;
      }
    }
    keys_.erase(gone);
  }
  // The last key stays, retired or not: a node without any key could never learn a better one.
  std::erase_if(retired_, [&](const RetiredKey& key) { return holds(key.fingerprint); });
}

/// Removes the first key that is not signed. The first one of the list stays, because the node listens with it.
void KeyRing::drop_one_not_signed() {
  const auto gone = std::find_if(keys_.begin() + 1, keys_.end(), [](const RingKey& key) { return !key.signature; });
  if (gone != keys_.end()) keys_.erase(gone);
}

void KeyRing::remember_retired(const RetiredKey& key) {
  if (is_retired(key.fingerprint)) return;
  retired_.push_back(key);
  if (retired_.size() <= max_retired_keys) return;
  retired_.erase(std::ranges::min_element(retired_, {}, &RetiredKey::retired_at));
}

std::expected<RingKey, std::string> KeyRing::propose(TimeUs time_of_day) const {
  RingKey fresh{ClusterKey::generate(), time_of_day};
  for (const RingKey& key : keys_)
    fresh.made_at = std::max(fresh.made_at, just_after(key.made_at));
  if (auto room = KeyRing(*this).add(fresh); !room) return std::unexpected(room.error());
  return fresh;
}

std::expected<void, std::string> KeyRing::add(const RingKey& key) {
  if (keys_.size() >= max_cluster_keys) {
    return std::unexpected("the ring holds " + std::to_string(max_cluster_keys) +
                           " keys, which is the most: retire an old one first (gossamerctl key retire)");
  }
  keys_.push_back(key);
  return {};
}

bool KeyRing::forget(const Statement& decision) {
  const auto is_it = [&](const auto& item) { return item.statement() == decision; };
  if (std::erase_if(retired_, is_it) > 0) return true;
  const auto key = std::ranges::find_if(keys_, is_it);
  if (key == keys_.end() || keys_.size() == 1) return false;
  keys_.erase(key);
  return true;
}

void KeyRing::promote(const Fingerprint& fingerprint) {
  const auto found =
      std::ranges::find_if(keys_, [&](const RingKey& key) { return key.key.fingerprint() == fingerprint; });
  GOSSAMER_CHECK(found != keys_.end());
  std::rotate(keys_.begin(), found, found + 1);
}

std::expected<RetiredKey, std::string> KeyRing::propose_retirement(const Fingerprint& fingerprint,
                                                                   TimeUs time_of_day) const {
  TimeUs retired_at = time_of_day;
  for (const RetiredKey& key : retired_)
    retired_at = std::max(retired_at, just_after(key.retired_at));  // the earliest one is forgotten first
  const RetiredKey proposed{fingerprint, retired_at};
  if (const auto possible = KeyRing(*this).retire(proposed); !possible) return std::unexpected(possible.error());
  return proposed;
}

std::expected<void, std::string> KeyRing::retire(const RetiredKey& key) {
  if (!holds(key.fingerprint)) return std::unexpected("no key of the ring has the fingerprint " + hex(key.fingerprint));
  if (keys_.size() == 1) {
    return std::unexpected("this is the only key: make a new one first (gossamerctl key rotate)");
  }
  if (first().key.fingerprint() == key.fingerprint) {
    return std::unexpected(
        "this node listens with this key: wait until the newest is listened with (gossamerctl key list shows it), or "
        "make a new one (gossamerctl key rotate)");
  }
  remember_retired(key);
  drop_retired();
  return {};
}

}  // namespace gossamer::peer
