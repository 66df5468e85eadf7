// One fragment's memory at one node: which of its three shared buffers plays which part, and what is kept beside them.
//
//   publication  s, the client's last snapshot
//   correction   c, what the client is to add (or, if `replace`, to take over)
//   y = s + c is the best copy of the live fragment there is here.
//
// A commit writes a new correction beside the old one and then changes parts, so that a death in between loses it whole
// or not at all. The daemon mirrors `parts` into the fragment's shared word (sdk/layout/shared_memory.hpp). While the
// client holds the fragment nothing can be committed: it is *recalled* first, which the client prevents only during its
// pass over it. So every commit outlives the daemon.
//
// Where several clients train one replica (gossip/group/local_group.hpp), none of them holds it: the fragment is
// *gathered* into the node's own copy, y. `with_client` then means that a round among the clients is under way. The
// copy outlives the daemon: it has two buffers in the host's memory. A change is written into the one that does not
// count, and then that one does. On another device y is in that device's memory, where it is changed in place; after
// each change it is written back to the buffer that does not count.
//
// In lean memory a fragment that nothing is done with is *empty*: there is no publication, and its buffers are not to
// be touched, but for a correction that replaces.
//
// All the floats are in the memory of one device (gossip/exchange/device.hpp): the buffers of the client's, and what is
// private, which is taken there when it is needed. It may have no room, or fail: then nothing has changed.
//
// One owner, one thread at a time; the floats are touched by tasks on workers between begin_* and finish_*, and nothing
// else may change the parts in between (Replica's `held` flag sees to that).

#pragma once

#include <array>

#include "gossip/exchange/device.hpp"
#include "gossip/exchange/own_halves.hpp"

namespace gossamer::gossip {

struct FragmentParts {
  std::uint32_t generation = 0;
  std::uint8_t publication = 0;
  std::uint8_t correction = 1;
  std::uint32_t commits = 0;  ///< modulo 2^23: of corrections into this fragment, so that a record can name one
  bool correction_valid = false;
  bool replace = false;
  bool with_client = false;
  bool empty = false;

  [[nodiscard]] std::uint8_t spare() const { return static_cast<std::uint8_t>(3 - publication - correction); }
  friend bool operator==(const FragmentParts&, const FragmentParts&) = default;
};

class FragmentBuffers {
 public:
  /// The buffers are the device's memory. It outlives this.
  FragmentBuffers(std::array<float*, 3> buffers, std::size_t block_count, FragmentParts parts,
                  const Device& device = processor())
      : device_(&device), buffers_(buffers), block_count_(block_count), parts_(parts) {}

  [[nodiscard]] const Device& device() const { return *device_; }
  [[nodiscard]] const FragmentParts& parts() const { return parts_; }
  [[nodiscard]] std::size_t block_count() const { return block_count_; }
  /// Bytes of private memory that hold what the clients have still to get.
  [[nodiscard]] std::size_t pending_bytes() const { return (committed_ ? elements() : 0) * sizeof(float); }
  /// There is no publication: y() is not to be had.
  [[nodiscard]] bool empty() const { return parts_.empty; }
  /// What was published is not needed any more. Only while the daemon holds the fragment, and owes the client nothing.
  void drop();
  /// True if the client has something to collect.
  [[nodiscard]] bool has_correction() const { return parts_.correction_valid || committed_; }

  [[nodiscard]] FragmentView y() const;

  /// Where Device::apply() reads the present correction (null: zero) and writes the new one, all of it.
  struct Target {
    const float* in = nullptr;
    float* out = nullptr;  ///< null: there is no room for it, and nothing has begun
  };
  [[nodiscard]] Target begin_commit();
  void finish_commit();
  /// The client holds the fragment, so that nothing can be committed: recall it first.
  [[nodiscard]] bool out_of_hand() const { return parts_.with_client && !is_gathered_; }
  /// Takes the fragment back from a client that has not begun to serve it. Its correction is what it was.
  void recall();

  /// Where values that the client is to take over are written. Only while the daemon holds the fragment.
  [[nodiscard]] float* begin_replace();
  void finish_replace();

  /// Gives the fragment to the client.
  void hand_over();
  /// Gathered: what was handed over last had been changed by others than the clients.
  [[nodiscard]] bool handed_changes() const { return handed_changes_; }
  /// The client has published (its word said so and was checked). Gathered: what its clients have published has still
  /// to be taken in.
  void take_back(std::uint32_t generation);

  /// The two buffers of the copy: the host's memory, which outlives this. Before anything is gathered.
  void keep_copy_in(std::array<float*, 2> buffers) { copies_ = buffers; }
  /// Moves y into the node's own memory: gather() the floats (any thread), finish_gather() the parts. False: y holds
  /// NaN or infinity, or there is no room, and it stays where it is.
  [[nodiscard]] bool gather();
  void finish_gather();
  /// It was gathered in a life before this one, and this buffer of the copy counts, with so many commits. False: the
  /// device has no room for it, and nothing has changed.
  [[nodiscard]] bool take_copy_over(std::uint8_t buffer, std::uint32_t commits);
  [[nodiscard]] bool gathered() const { return is_gathered_; }
  /// Which buffer of the copy counts.
  [[nodiscard]] std::uint8_t copy() const { return copy_; }
  /// y of a fragment that is gathered, or about to be; empty: there is no room for it.
  [[nodiscard]] std::span<float> values();
  /// y to be changed by what the clients have done: any thread. It counts from finish_change() on.
  [[nodiscard]] std::span<float> begin_change();
  void finish_change();
  /// After y was changed, and before that counts: writes it back to where it outlives the daemon, if it is gathered on
  /// another device. Any thread. False: the device failed, and y is what it was before the change.
  [[nodiscard]] bool write_back();

 private:
  [[nodiscard]] std::size_t elements() const { return block_count_ * block_elements; }
  /// y of a gathered fragment is in the copy itself.
  [[nodiscard]] bool computes_in_copy() const { return device_ == &processor(); }

  const Device* device_;
  std::array<float*, 3> buffers_;
  std::size_t block_count_;
  FragmentParts parts_;
  std::array<float*, 2> copies_{};
  std::uint8_t copy_ = 0;    // the one that counts
  Device::Floats gathered_;  // y, on another device than the processor
  bool is_gathered_ = false;
  bool committed_ = false;  // gathered: changed by an exchange since it was last handed over
  bool handed_changes_ = false;
};

}  // namespace gossamer::gossip
