#include "peer/admission/key_ring.hpp"

#include <algorithm>
#include <charconv>

#include "gossip/check.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

constexpr std::string_view made_word = "made ";
constexpr std::string_view retired_word = "retired ";

struct Note {
  bool retired = false;
  Fingerprint fingerprint{};
  TimeUs time = 0;
};

/// made|retired FINGERPRINT TIME
std::optional<Note> parse_note(std::string_view line) {
  Note note;
  note.retired = line.starts_with(retired_word);
  if (!note.retired && !line.starts_with(made_word)) return std::nullopt;
  line.remove_prefix(note.retired ? retired_word.size() : made_word.size());
  const auto fingerprint = parse_fingerprint(line.substr(0, line.find(' ')));
  if (!fingerprint) return std::nullopt;
  note.fingerprint = *fingerprint;
  line.remove_prefix(std::min(line.size(), line.find(' ') + 1));
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), note.time);
  if (error != std::errc() || end != line.data() + line.size()) return std::nullopt;
  return note;
}

}  // namespace

KeyRing::KeyRing(const ClusterKeys& keys) {
  for (const ClusterKey& key : keys.all())
    keys_.push_back({key, 0});
}

std::expected<KeyRing, std::string> KeyRing::restore(const ClusterKeys& keys, std::string_view notes) {
  KeyRing ring(keys);
  for (std::size_t number = 1; !notes.empty(); ++number) {
    const std::string_view line = notes.substr(0, notes.find('\n'));
    notes.remove_prefix(std::min(notes.size(), line.size() + 1));
    const auto note = parse_note(line);
    if (!note) return std::unexpected("line " + std::to_string(number) + " is no note about a key");
    if (note->retired) {
      ring.remember_retired({note->fingerprint, note->time});
    } else if (RingKey* key = ring.find(note->fingerprint)) {
      key->made_at = note->time;
    }
  }
  std::erase_if(ring.keys_, [&](const RingKey& key) { return ring.is_retired(key.key.fingerprint()); });
  if (ring.keys_.empty()) {
    return std::unexpected(
        "every key in the file is retired: get a member's key file, or a new invitation (gossamerctl invite there)");
  }
  return ring;
}

std::expected<KeyRing, std::string> KeyRing::adopt(const RingState& state) {
  KeyRing ring;
  for (const RetiredKey& key : state.retired)
    ring.remember_retired(key);
  for (const RingKey& key : state.keys) {
    const Fingerprint fingerprint = key.key.fingerprint();
    if (!ring.is_retired(fingerprint) && !ring.holds(fingerprint)) ring.keys_.push_back(key);
  }
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
  const auto note = [&](std::string_view word, const Fingerprint& fingerprint, TimeUs time) {
    text.append(word).append(hex(fingerprint)).append(" ").append(std::to_string(time)).append("\n");
  };
  for (const RingKey& key : keys_)
    note(made_word, key.key.fingerprint(), key.made_at);
  for (const RetiredKey& key : retired_)
    note(retired_word, key.fingerprint, key.retired_at);
  return text;
}

bool KeyRing::holds(const Fingerprint& fingerprint) const {
  return std::ranges::any_of(keys_, [&](const RingKey& key) { return key.key.fingerprint() == fingerprint; });
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
  for (const RetiredKey& key : heard.retired) {
    if (key.retired_at > time_of_day + max_ahead_us) {
      merge.refused = true;
    } else {
      remember_retired(key);
    }
  }
  revive_newest_if_none_is_left(heard, time_of_day);
  // New keys are added before retired ones are removed, since a retired key may leave nothing but its successor.
  for (const RingKey& key : heard.keys) {
    if (!merge_key(key, time_of_day)) merge.refused = true;
  }
  drop_retired();
  merge.changed = notes() != before;
  return merge;
}

/// If two operators retired different keys at once and none is left, all members keep the same one.
void KeyRing::revive_newest_if_none_is_left(const RingState& heard, TimeUs time_of_day) {
  std::optional<std::pair<TimeUs, Fingerprint>> newest;
  for (const std::span<const RingKey> keys : {std::span<const RingKey>(keys_), std::span<const RingKey>(heard.keys)}) {
    for (const RingKey& key : keys) {
      const Fingerprint fingerprint = key.key.fingerprint();
      if (key.made_at > time_of_day + max_ahead_us) continue;
      if (!is_retired(fingerprint)) return;
      newest = std::max(newest, std::optional(std::pair(key.made_at, fingerprint)));
    }
  }
  if (newest) std::erase_if(retired_, [&](const RetiredKey& key) { return key.fingerprint == newest->second; });
}

/// False if the key cannot be taken.
bool KeyRing::merge_key(const RingKey& heard, TimeUs time_of_day) {
  const Fingerprint fingerprint = heard.key.fingerprint();
  if (is_retired(fingerprint)) return true;
  if (heard.made_at > time_of_day + max_ahead_us) return false;
  if (RingKey* known = find(fingerprint)) {
    // Only what is not known is filled in: nobody makes an old key young again.
    if (known->made_at == 0) known->made_at = heard.made_at;
    return true;
  }
  if (keys_.size() >= max_cluster_keys) drop_retired();
  if (keys_.size() >= max_cluster_keys) return false;
  keys_.push_back(heard);
  return true;
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
  // The last one stays, retired or not: a node without any key could never learn a better one.
  std::erase_if(retired_, [&](const RetiredKey& key) { return holds(key.fingerprint); });
}

void KeyRing::remember_retired(const RetiredKey& key) {
  if (is_retired(key.fingerprint)) return;
  retired_.push_back(key);
  if (retired_.size() <= max_retired_keys) return;
  retired_.erase(std::ranges::min_element(retired_, {}, &RetiredKey::retired_at));
}

std::expected<Fingerprint, std::string> KeyRing::rotate(TimeUs time_of_day) {
  if (keys_.size() >= max_cluster_keys) {
    return std::unexpected("the ring holds " + std::to_string(max_cluster_keys) +
                           " keys, which is the most: retire an old one first (gossamerctl key retire)");
  }
  RingKey fresh{ClusterKey::generate(), time_of_day};
  for (const RingKey& key : keys_)
    fresh.made_at = std::max(fresh.made_at, key.made_at + 1);
  keys_.push_back(fresh);
  return fresh.key.fingerprint();
}

void KeyRing::promote(const Fingerprint& fingerprint) {
  const auto found =
      std::ranges::find_if(keys_, [&](const RingKey& key) { return key.key.fingerprint() == fingerprint; });
  GOSSAMER_CHECK(found != keys_.end());
  std::rotate(keys_.begin(), found, found + 1);
}

std::expected<void, std::string> KeyRing::retire(const Fingerprint& fingerprint, TimeUs time_of_day) {
  if (!holds(fingerprint)) return std::unexpected("no key of the ring has the fingerprint " + hex(fingerprint));
  if (keys_.size() == 1) {
    return std::unexpected("this is the only key: make a new one first (gossamerctl key rotate)");
  }
  if (first().key.fingerprint() == fingerprint) {
    return std::unexpected(
        "this node listens with this key: wait until the newest is listened with (gossamerctl key list shows it), or "
        "make a new one (gossamerctl key rotate)");
  }
  TimeUs retired_at = time_of_day;
  for (const RetiredKey& key : retired_)
    retired_at = std::max(retired_at, key.retired_at + 1);  // the oldest is forgotten first
  remember_retired({fingerprint, retired_at});
  drop_retired();
  return {};
}

}  // namespace gossamer::peer
