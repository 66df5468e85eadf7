// One fragment's memory at one node: its three shared buffers with their roles, and the private memory.
//
//   publication  s, the client's last snapshot
//   correction   c, what the client is to add (or, if `replace`, to take over)
//   y = s + c is the newest value of the live fragment that the daemon has.
//
// A commit writes a new correction beside the old one and then changes parts, so that a death in between loses the
// commit completely or not at all. The daemon stores `parts` in the fragment's word (sdk/layout/shared_memory.hpp).
// While the client holds the fragment, nothing can be committed: the fragment is *recalled* first, and the client
// prevents a recall only while it serves the fragment. So every commit outlives the daemon.
//
// Where several clients train one replica (gossip/group/local_group.hpp), none of them holds the fragment: it is
// *gathered* into the node's copy, y. `with_client` then means that a round among the clients is under way. The copy
// outlives the daemon. It has two buffers in the host's memory: a change is written into the one that does not count,
// and then that one counts. On another device y is in that device's memory and is changed in place; after each change
// it is written back to the buffer that does not count.
//
// In lean memory a fragment without work is *empty*: there is no publication, and its buffers must not be touched
// except for a correction that replaces.
//
// All floats are in the memory of one device (gossip/exchange/device.hpp): the client's buffers, and private memory
// that is taken when it is needed. The device may have no room, or fail; then nothing has changed.
//
// One owner, one thread at a time. Tasks on workers use the floats between begin_* and finish_*, and nothing else may
// change the parts in between: Fragment::stage ensures that.

#pragma once

#include <array>

#include "gossip/exchange/device.hpp"
#include "gossip/exchange/own_halves.hpp"

namespace gossamer::gossip {

struct FragmentParts {
  std::uint32_t generation = 0;
  std::uint8_t publication = 0;
  std::uint8_t correction = 1;
  std::uint32_t commits = 0;  ///< number of corrections so far, modulo 2^23, so that a record can name one
  bool correction_valid = false;
  bool replace = false;
  bool with_client = false;
  bool empty = false;

  [[nodiscard]] std::uint8_t spare() const { return static_cast<std::uint8_t>(3 - publication - correction); }
  friend bool operator==(const FragmentParts&, const FragmentParts&) = default;
};

class FragmentBuffers {
 public:
  /// The buffers are in the device's memory. The device outlives this object.
  FragmentBuffers(std::array<float*, 3> buffers, std::size_t block_count, FragmentParts parts,
                  const Device& device = processor())
      : device_(&device), buffers_(buffers), block_count_(block_count), parts_(parts) {}

  [[nodiscard]] const Device& device() const { return *device_; }
  [[nodiscard]] const FragmentParts& parts() const { return parts_; }
  [[nodiscard]] std::size_t block_count() const { return block_count_; }
  /// Bytes of private memory with changes that the clients have still to receive.
  [[nodiscard]] std::size_t pending_bytes() const { return (committed_ ? elements() : 0) * sizeof(float); }
  /// True if there is no publication, so that y() cannot be used.
  [[nodiscard]] bool empty() const { return parts_.empty; }
  /// Drops the publication. Allowed only while the daemon owns the fragment and has nothing to give to the client.
  void drop();
  /// True if the client has something to collect.
  [[nodiscard]] bool has_correction() const { return parts_.correction_valid || committed_; }

  [[nodiscard]] FragmentView y() const;

  /// Device::apply() reads the present correction from `in` (null: zero) and writes all of the new one to `out`.
  struct Target {
    const float* in = nullptr;
    float* out = nullptr;  ///< null: there is no room, and nothing has begun
  };
  [[nodiscard]] Target begin_commit();
  void finish_commit();
  /// True if the client holds the fragment. Nothing can be committed then: recall it first.
  [[nodiscard]] bool out_of_hand() const { return parts_.with_client && !is_gathered_; }
  /// Takes the fragment back from a client that has not begun to serve it. Its correction is unchanged.
  void recall();

  /// Returns where values for the client to take over are written. Allowed only while the daemon owns the fragment.
  [[nodiscard]] float* begin_replace();
  void finish_replace();

  /// Offers the fragment to the client.
  void hand_over();
  /// For a gathered fragment: true if the last offer contained changes that did not come from the clients.
  [[nodiscard]] bool handed_changes() const { return handed_changes_; }
  /// The client has published, and its word was checked. If the fragment is gathered, the clients' publications have
  /// still to be taken in.
  void take_back(std::uint32_t generation);

  /// Sets the two buffers of the copy, in host memory that outlives this object. Call it before anything is gathered.
  void keep_copy_in(std::array<float*, 2> buffers) { copies_ = buffers; }
  /// Moves y into the node's own memory: gather() moves the floats (any thread), finish_gather() the parts. False: y
  /// holds NaN or infinity, or there is no room. It then stays where it is.
  [[nodiscard]] bool gather();
  void finish_gather();
  /// Takes over a fragment that an earlier daemon has gathered: `buffer` of the copy counts, with `commits`. False: the
  /// device has no room for it, and nothing has changed.
  [[nodiscard]] bool take_copy_over(std::uint8_t buffer, std::uint32_t commits);
  [[nodiscard]] bool gathered() const { return is_gathered_; }
  /// The buffer of the copy that counts.
  [[nodiscard]] std::uint8_t copy() const { return copy_; }
  /// y of a fragment that is gathered, or is being gathered. Empty: there is no room for it.
  [[nodiscard]] std::span<float> values();
  /// y for a change by the clients' progress. Any thread. The change counts once finish_change() is called.
  [[nodiscard]] std::span<float> begin_change();
  void finish_change() { copy_ = static_cast<std::uint8_t>(1 - copy_); }
  /// Writes a changed y back to the host's memory, where it outlives the daemon, before the change counts. Does nothing
  /// unless y is gathered on another device. Any thread. False: the device failed, and y is as before the change.
  [[nodiscard]] bool write_back();

 private:
  [[nodiscard]] std::size_t elements() const { return block_count_ * block_elements; }
  /// True if y of a gathered fragment is in the copy itself.
  [[nodiscard]] bool computes_in_copy() const { return device_ == &processor(); }

  const Device* device_;
  std::array<float*, 3> buffers_;
  std::size_t block_count_;
  FragmentParts parts_;
  std::array<float*, 2> copies_{};
  std::uint8_t copy_ = 0;    // the buffer that counts
  Device::Floats gathered_;  // y, if the device is not the processor
  bool is_gathered_ = false;
  bool committed_ = false;  // gathered: changed by an exchange since the last offer
  bool handed_changes_ = false;
};

}  // namespace gossamer::gossip
