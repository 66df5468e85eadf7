// The caller's tensors as one replica cut into fragments, with the place of each stretch of each tensor.
// gossamer_open() builds and checks it once; then only the training thread uses it.
//
// Where several processes hold a replica together (replica_parts.hpp), each has the whole model's tensors here, with
// the slices that it holds. Offsets in the replica are those of the whole.
//
// Invariants: the tensors whose role is not `local` follow each other without gaps and do not overlap in memory; the
// pieces of each fragment are in order and do not overlap, and without slices they cover it exactly.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sdk/c/error.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::client {

/// The bytes of one element of a tensor that is averaged.
[[nodiscard]] std::uint64_t element_bytes(layout::Dtype dtype);

struct ClientTensor {
  std::string name;
  layout::Dtype dtype{};
  layout::Role role{};
  std::vector<std::uint64_t> shape;
  std::uint64_t first_element = 0;  ///< index in the replica; 0 for a local tensor
  std::uint64_t elements = 0;
  void* data = nullptr;               ///< the caller's memory
  std::vector<std::uint64_t> offset;  ///< where the slice at `data` begins, in each dimension
  std::vector<std::uint64_t> size;    ///< the slice's shape
  std::uint64_t held = 0;             ///< elements of the slice

  [[nodiscard]] bool whole() const { return size == shape; }
};

class ClientReplica {
 public:
  /// Checks and copies the description. `fragment_elements` 0 means the default. Errors name the tensor.
  [[nodiscard]] static Result<ClientReplica> create(std::span<const gossamer_tensor> tensors,
                                                    std::uint32_t fragment_elements);

  /// The treatment of a fragment's correction.
  enum class Correction { none, add, replace };

  /// Applies `correction` (unless none) to the fragment's tensors and copies them to `snapshot`. `before` is the
  /// snapshot that a correction to be added is for. All have fragment_elements floats, of which the fragment's elements
  /// are used. `dither` is for bfloat16 (fused_pass.hpp).
  void serve(std::uint32_t fragment, Correction mode, const float* correction, const float* before, float* snapshot,
             std::uint32_t dither) const;

  /// Whether all averaged elements are finite. Reads them all; only for tensors in host memory.
  [[nodiscard]] bool finite() const;

  /// The stretch of a tensor that is inside one fragment.
  struct Piece {
    std::uint32_t tensor;
    std::uint32_t fragment_offset;  ///< elements from the fragment's start
    std::uint32_t count;
    std::uint64_t tensor_offset;  ///< elements from the start of the tensor's slice
    bool publishes = true;        ///< false: another process holds this piece, too, and publishes it
  };
  [[nodiscard]] std::span<const Piece> pieces(std::uint32_t fragment) const {
    return std::span(pieces_).subspan(first_piece_[fragment], first_piece_[fragment + 1] - first_piece_[fragment]);
  }

  /// For a replica in parts. `taken` has a bit for each element of the replica. This process takes and will publish
  /// those of its elements whose bits are clear, and sets the bits. For its other elements it only gets the
  /// corrections.
  void take(std::span<std::uint64_t> taken);

  /// The tensor's values are at `data` from now on.
  [[nodiscard]] Result<void> set_data(std::size_t index, void* data);
  /// Fails if tensors share memory after some were moved. set_data() does not check this, because two tensors may swap
  /// places one after the other.
  [[nodiscard]] Result<void> check_moved();

  [[nodiscard]] std::span<const ClientTensor> tensors() const { return tensors_; }
  [[nodiscard]] std::uint64_t elements() const { return elements_; }
  [[nodiscard]] std::uint32_t fragment_elements() const { return fragment_elements_; }
  [[nodiscard]] std::uint32_t fragment_count() const { return static_cast<std::uint32_t>(first_piece_.size() - 1); }
  /// The bytes that serving the fragment publishes.
  [[nodiscard]] std::uint64_t fragment_bytes(std::uint32_t fragment) const;
  [[nodiscard]] std::uint64_t layout_hash() const;
  /// The tensor, and the index in it, of an element of the replica: "'weight', element 7".
  [[nodiscard]] std::string place_of(std::uint64_t element) const;

 private:
  [[nodiscard]] Result<void> add_slice(ClientTensor& tensor, const gossamer_slice& slice) const;
  [[nodiscard]] Result<void> add_tensor(const gossamer_tensor& description, std::size_t index);
  [[nodiscard]] Result<void> choose_fragments(std::uint32_t fragment_elements);
  [[nodiscard]] Result<void> check_names() const;
  [[nodiscard]] Result<void> check_overlap() const;
  void cut_pieces();
  void cut_run(std::uint32_t tensor, std::uint64_t position, std::uint64_t count, std::uint64_t at);
  void index_pieces();

  std::vector<ClientTensor> tensors_;
  bool moved_ = false;  ///< tensors were moved since check_moved() last found no overlap
  std::uint64_t elements_ = 0;
  std::uint32_t fragment_elements_ = 0;
  std::vector<Piece> pieces_;               ///< in the order of the replica
  std::vector<std::uint32_t> first_piece_;  ///< index of each fragment's first piece, and one past the last piece
  /// A pass writes the snapshot of pieces that another process publishes here. Nobody reads it.
  mutable std::vector<float> not_published_;
};

}  // namespace gossamer::client
