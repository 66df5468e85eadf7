// One fragment's memory at one node: which of its three shared buffers plays which part, and what is kept beside them.
//
//   publication  s, the client's last snapshot
//   correction   c, what the client is to add (or, if `replace`, to take over)
//   pending      p, private: corrections made while the client holds the fragment, allocated only then
//   y = s + c + p is the best copy of the live fragment there is here.
//
// A commit writes a new correction beside the old one and then changes parts, so that a death in between loses it whole
// or not at all. The daemon mirrors `parts` into the fragment's shared word (sdk/layout/shared_memory.hpp).
//
// Where several clients train one replica (gossip/local_group.hpp), none of them holds it: the fragment is *gathered*
// into one buffer of the node's own, y, which commits change in place. `with_client` then means that a round among the
// clients is under way; no death can leave a commit half done, since the buffer dies with the daemon.
//
// In lean memory a fragment that nothing is done with is *empty*: there is no publication, and its buffers are not to
// be touched, but for a correction that replaces.
//
// One owner, one thread at a time; the floats are touched by tasks on workers between begin_* and finish_*, and nothing
// else may change the parts in between (Replica's `held` flag sees to that).

#pragma once

#include "gossip/lattice.hpp"

namespace gossamer::gossip {

struct FragmentParts {
  std::uint32_t generation = 0;
  std::uint8_t publication = 0;
  std::uint8_t correction = 1;
  bool correction_valid = false;
  bool replace = false;
  bool with_client = false;
  bool empty = false;

  [[nodiscard]] std::uint8_t spare() const { return static_cast<std::uint8_t>(3 - publication - correction); }
  friend bool operator==(const FragmentParts&, const FragmentParts&) = default;
};

class FragmentBuffers {
 public:
  FragmentBuffers(std::array<float*, 3> buffers, std::size_t block_count, FragmentParts parts)
      : buffers_(buffers), block_count_(block_count), parts_(parts) {}

  [[nodiscard]] const FragmentParts& parts() const { return parts_; }
  [[nodiscard]] std::size_t block_count() const { return block_count_; }
  /// Bytes of private memory that hold what the clients have still to get.
  [[nodiscard]] std::size_t pending_bytes() const {
    return (pending_.capacity() + (committed_ ? gathered_.size() : 0)) * sizeof(float);
  }
  /// There is no publication: y() is not to be had.
  [[nodiscard]] bool empty() const { return parts_.empty; }
  /// What was published is not needed any more. Only while the daemon holds the fragment, and owes the client nothing.
  void drop();
  /// True if the client has something to collect, or will have once it hands back what it holds.
  [[nodiscard]] bool has_correction() const { return parts_.correction_valid || committed_ || !pending_.empty(); }

  [[nodiscard]] FragmentView y() const;

  /// Where gossip::apply() reads the present correction (null: zero) and writes the new one.
  struct Target {
    const float* in = nullptr;
    float* out = nullptr;
  };
  [[nodiscard]] Target begin_commit();
  void finish_commit();
  /// Nothing was written after all.
  void abandon_commit(const Target& target);

  /// Where values that the client is to take over are written. Only while the daemon holds the fragment.
  [[nodiscard]] float* begin_replace();
  void finish_replace();

  /// Gives the fragment to the client. The pending correction must have been folded in.
  void hand_over();
  /// Gathered: what was handed over last had been changed by others than the clients.
  [[nodiscard]] bool handed_changes() const { return handed_changes_; }
  /// The client has published (its word said so and was checked). Returns true if something must be folded: the pending
  /// correction, or into a gathered fragment what its clients have published.
  bool take_back(std::uint32_t generation);
  /// Makes the pending correction the correction: fold() moves the floats (any thread), finish_fold() the parts.
  void fold();
  void finish_fold();

  /// Moves y, or what is to be y from now on, into the node's own memory: gather() the floats (any thread),
  /// finish_gather() the parts. False: it holds NaN or infinity, and y stays where it is.
  [[nodiscard]] bool gather() { return gather(y()); }
  [[nodiscard]] bool gather(const FragmentView& from);
  void finish_gather();
  [[nodiscard]] bool gathered() const { return is_gathered_; }
  /// y of a gathered fragment.
  [[nodiscard]] std::span<float> values() { return gathered_; }

 private:
  std::array<float*, 3> buffers_;
  std::size_t block_count_;
  FragmentParts parts_;
  std::vector<float> pending_;
  std::vector<float> gathered_;
  bool is_gathered_ = false;
  bool committed_ = false;  // gathered: changed by an exchange since it was last handed over
  bool handed_changes_ = false;
};

}  // namespace gossamer::gossip
