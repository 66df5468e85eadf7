#include "sdk/c/client_replica.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "sdk/c/fused_pass.hpp"
#include "sdk/layout/hash.hpp"
#include "sdk/layout/names.hpp"

namespace gossamer::client {
namespace {

using layout::Dtype;
using layout::Role;

/// Keeps every offset in bytes far from overflow. It is far beyond max_fragments · max_fragment_elements.
constexpr std::uint64_t max_elements = std::uint64_t{1} << 48;

constexpr std::uint32_t dtype_count = 10;
constexpr const char* dtype_names[dtype_count] = {"float32", "float64", "float16", "bfloat16", "int8",
                                                  "int16",   "int32",   "int64",   "uint8",    "bool"};

[[nodiscard]] std::string quoted(const ClientTensor& tensor) {
  return "tensor '" + tensor.name + "'";
}

[[nodiscard]] Result<void> check_mixable(const ClientTensor& tensor) {
  if (tensor.role == Role::local || layout::is_mixable(tensor.dtype)) return {};
  const std::string dtype = dtype_names[static_cast<std::uint32_t>(tensor.dtype)];
  if (tensor.dtype == Dtype::f16) {
    return fail(GOSSAMER_UNSUPPORTED,
                quoted(tensor) + " is " + dtype +
                    ", whose range is too small to average in. Keep the parameters in float32 and compute in 16 bits " +
                    "with your framework's mixed precision (autocast), or register the float32 master copy; " +
                    "bfloat16 is averaged as it is");
  }
  return fail(GOSSAMER_UNSUPPORTED,
              quoted(tensor) + " is " + dtype + ", which cannot be averaged: register it with the role local");
}

[[nodiscard]] Result<void> check_data(const ClientTensor& tensor, const void* data) {
  if (tensor.role == Role::local || tensor.held == 0) return {};
  if (data == nullptr) return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + " has no data: the pointer is NULL");
  if (reinterpret_cast<std::uintptr_t>(data) % element_bytes(tensor.dtype) != 0) {
    return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + " is not aligned to its element size");
  }
  return {};
}

/// How many bits from `first` on equal bit `first`, at most `most`.
[[nodiscard]] std::uint32_t alike(std::span<const std::uint64_t> bits, std::uint64_t first, std::uint32_t most) {
  const bool set = (bits[first / 64] >> first % 64 & 1) != 0;
  std::uint64_t count = 0;
  while (count < most) {
    const std::uint64_t at = (first + count) % 64;
    const std::uint64_t word = bits[(first + count) / 64];
    const std::uint64_t unlike = (set ? ~word : word) >> at;
    if (unlike != 0) return std::min<std::uint64_t>(most, count + std::countr_zero(unlike));
    count += 64 - at;
  }
  return most;
}

void set_bits(std::span<std::uint64_t> bits, std::uint64_t first, std::uint64_t count) {
  while (count > 0) {
    const std::uint64_t at = first % 64;
    const std::uint64_t here = std::min(count, 64 - at);
    bits[first / 64] |= (here == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << here) - 1) << at;
    first += here;
    count -= here;
  }
}

}  // namespace

std::uint64_t element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return sizeof(double);
    case Dtype::bf16:
      return sizeof(Bfloat16);
    default:
      return sizeof(float);
  }
}

Result<ClientReplica> ClientReplica::create(std::span<const gossamer_tensor> tensors, std::uint32_t fragment_elements) {
  if (tensors.size() > layout::max_tensors) {
    return fail(GOSSAMER_BAD_ARGUMENT, std::to_string(tensors.size()) + " tensors; at most " +
                                           std::to_string(layout::max_tensors) + " are supported");
  }
  ClientReplica replica;
  replica.tensors_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (auto added = replica.add_tensor(tensors[i], i); !added) return std::unexpected(added.error());
  }
  if (auto named = replica.check_names(); !named) return std::unexpected(named.error());
  if (auto apart = replica.check_overlap(); !apart) return std::unexpected(apart.error());
  if (auto chosen = replica.choose_fragments(fragment_elements); !chosen) return std::unexpected(chosen.error());
  replica.cut_pieces();
  return replica;
}

Result<void> ClientReplica::add_tensor(const gossamer_tensor& description, std::size_t index) {
  const std::string position = "tensor number " + std::to_string(index);
  if (description.name == nullptr || !layout::is_tensor_name(description.name)) {
    return fail(GOSSAMER_BAD_ARGUMENT, position + " needs a name of 1 to " + std::to_string(layout::max_name_bytes) +
                                           " bytes of UTF-8 without control or invisible characters");
  }
  ClientTensor tensor;
  tensor.name = description.name;
  if (description.dtype >= dtype_count) {
    return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + " has the unknown dtype " + std::to_string(description.dtype));
  }
  if (description.role > static_cast<std::uint32_t>(Role::local)) {
    return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + " has the unknown role " + std::to_string(description.role));
  }
  if (description.dimensions > layout::max_dimensions || (description.dimensions > 0 && description.shape == nullptr)) {
    return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + " must have a shape of at most " +
                                           std::to_string(layout::max_dimensions) + " dimensions");
  }
  if (description.reserved != 0 || description.reserved_more != 0) {
    return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + ": the reserved fields must be zero");
  }
  tensor.dtype = static_cast<Dtype>(description.dtype);
  tensor.role = static_cast<Role>(description.role);
  tensor.elements = 1;
  for (std::uint32_t d = 0; d < description.dimensions; ++d) {
    const std::uint64_t size = description.shape[d];
    tensor.shape.push_back(size);
    if (size != 0 && tensor.elements > max_elements / size) {
      return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + " has more elements than any machine's memory");
    }
    tensor.elements *= size;
  }
  tensor.offset.assign(tensor.shape.size(), 0);
  tensor.size = tensor.shape;
  tensor.held = tensor.elements;
  if (description.slice != nullptr) {
    if (auto added = add_slice(tensor, *description.slice); !added) return added;
  }
  if (auto mixable = check_mixable(tensor); !mixable) return mixable;
  if (auto usable = check_data(tensor, description.data); !usable) return usable;
  tensor.data = description.data;
  if (tensor.role != Role::local) {
    tensor.first_element = elements_;
    elements_ += tensor.elements;
    if (elements_ > max_elements) return fail(GOSSAMER_BAD_ARGUMENT, "the model is larger than any machine's memory");
  }
  tensors_.push_back(std::move(tensor));
  return {};
}

Result<void> ClientReplica::add_slice(ClientTensor& tensor, const gossamer_slice& slice) const {
  if (tensor.shape.empty()) return {};
  if (slice.offset == nullptr || slice.size == nullptr)
    return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + " has a slice without offsets or sizes");
  tensor.held = 1;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (slice.offset[d] > tensor.shape[d] || slice.size[d] > tensor.shape[d] - slice.offset[d]) {
      return fail(GOSSAMER_BAD_ARGUMENT, quoted(tensor) + " has a slice that goes beyond the tensor in dimension " +
                                             std::to_string(d) + ": give offsets and sizes within its whole shape");
    }
    tensor.offset[d] = slice.offset[d];
    tensor.size[d] = slice.size[d];
    tensor.held *= slice.size[d];
  }
  return {};
}

Result<void> ClientReplica::check_names() const {
  std::vector<std::string_view> names;
  names.reserve(tensors_.size());
  for (const ClientTensor& tensor : tensors_)
    names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return {};
  return fail(GOSSAMER_BAD_ARGUMENT, "two tensors are called '" + std::string(*twice) + "': names must be unique");
}

Result<void> ClientReplica::check_overlap() const {
  std::vector<const ClientTensor*> mixed;
  for (const ClientTensor& tensor : tensors_) {
    if (tensor.role != Role::local && tensor.held > 0) mixed.push_back(&tensor);
  }
  const auto begin_of = [](const ClientTensor* t) { return reinterpret_cast<std::uintptr_t>(t->data); };
  std::ranges::sort(mixed, {}, begin_of);
  for (std::size_t i = 1; i < mixed.size(); ++i) {
    const ClientTensor& before = *mixed[i - 1];
    if (begin_of(&before) + before.held * element_bytes(before.dtype) > begin_of(mixed[i])) {
      return fail(GOSSAMER_BAD_ARGUMENT, quoted(before) + " and " + quoted(*mixed[i]) +
                                             " share memory, so corrections would be added twice: register it once");
    }
  }
  return {};
}

Result<void> ClientReplica::choose_fragments(std::uint32_t fragment_elements) {
  if (elements_ == 0) {
    return fail(GOSSAMER_BAD_ARGUMENT, "no tensor with the role param or buffer has any element: nothing to train");
  }
  if (fragment_elements == 0) {
    fragment_elements = layout::usual_fragment_elements(elements_);
  }
  if (!std::has_single_bit(fragment_elements) || fragment_elements < layout::min_fragment_elements ||
      fragment_elements > layout::max_fragment_elements) {
    return fail(GOSSAMER_BAD_ARGUMENT, "fragment_elements is " + std::to_string(fragment_elements) +
                                           "; it must be a power of two from " +
                                           std::to_string(layout::min_fragment_elements) + " to " +
                                           std::to_string(layout::max_fragment_elements));
  }
  const std::uint64_t count = (elements_ + fragment_elements - 1) / fragment_elements;
  if (count > layout::max_fragments) {
    return fail(GOSSAMER_BAD_ARGUMENT, "the model has " + std::to_string(count) + " fragments, more than " +
                                           std::to_string(layout::max_fragments) + ": choose larger fragment_elements");
  }
  fragment_elements_ = fragment_elements;
  return {};
}

void ClientReplica::cut_pieces() {
  for (std::uint32_t index = 0; index < tensors_.size(); ++index) {
    const ClientTensor& tensor = tensors_[index];
    if (tensor.role == Role::local || tensor.held == 0) continue;
    // The slice is made of runs of contiguous elements. A run covers the innermost dimensions that the slice holds
    // whole, and the slice's range in the next outer dimension.
    std::size_t inner = tensor.shape.size();
    std::uint64_t stride = 1;  // elements of the tensor in the dimensions from `inner` on
    std::uint64_t run = 1;
    while (inner > 0 && run == stride) {
      --inner;
      run = stride * tensor.size[inner];
      stride *= tensor.shape[inner];
    }
    std::vector<std::uint64_t> at(tensor.offset);
    for (std::uint64_t done = 0; done < tensor.held; done += run) {
      std::uint64_t first = 0;
      for (std::size_t d = 0; d < tensor.shape.size(); ++d)
        first = first * tensor.shape[d] + at[d];
      cut_run(index, tensor.first_element + first, run, done);
      for (std::size_t d = inner; d-- > 0;) {
        if (++at[d] < tensor.offset[d] + tensor.size[d]) break;
        at[d] = tensor.offset[d];
      }
    }
  }
  index_pieces();
}

/// `position` is an index in the replica, and `at` an index in the slice.
void ClientReplica::cut_run(std::uint32_t tensor, std::uint64_t position, std::uint64_t count, std::uint64_t at) {
  while (count > 0) {
    const auto offset = static_cast<std::uint32_t>(position % fragment_elements_);
    const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, fragment_elements_ - offset));
    pieces_.push_back({.tensor = tensor, .fragment_offset = offset, .count = length, .tensor_offset = at});
    first_piece_.push_back(static_cast<std::uint32_t>(position / fragment_elements_));
    position += length;
    at += length;
    count -= length;
  }
}

/// Before the call, `first_piece_` holds the fragment of each piece, in order.
void ClientReplica::index_pieces() {
  const std::vector<std::uint32_t> fragments = std::move(first_piece_);
  const std::uint64_t count = (elements_ + fragment_elements_ - 1) / fragment_elements_;
  first_piece_.clear();
  for (std::uint64_t fragment = 0; fragment <= count; ++fragment) {
    const auto first = std::ranges::lower_bound(fragments, fragment);
    first_piece_.push_back(static_cast<std::uint32_t>(first - fragments.begin()));
  }
}

void ClientReplica::take(std::span<std::uint64_t> taken) {
  std::vector<Piece> cut;
  std::vector<std::uint32_t> fragments;
  for (std::uint32_t fragment = 0; fragment < fragment_count(); ++fragment) {
    for (Piece piece : pieces(fragment)) {
      const std::uint64_t first = std::uint64_t{fragment} * fragment_elements_ + piece.fragment_offset;
      const std::uint32_t end = piece.fragment_offset + piece.count;
      for (std::uint64_t element = first; piece.fragment_offset < end; element += piece.count) {
        piece.publishes = (taken[element / 64] >> element % 64 & 1) == 0;
        piece.count = alike(taken, element, end - piece.fragment_offset);
        cut.push_back(piece);
        fragments.push_back(fragment);
        piece.fragment_offset += piece.count;
        piece.tensor_offset += piece.count;
      }
      set_bits(taken, first, end - (first - std::uint64_t{fragment} * fragment_elements_));
    }
  }
  pieces_ = std::move(cut);
  first_piece_ = std::move(fragments);
  index_pieces();
  not_published_.resize(fragment_elements_);
}

std::string ClientReplica::place_of(std::uint64_t element) const {
  for (const ClientTensor& tensor : tensors_) {
    if (tensor.role == Role::local || element >= tensor.first_element + tensor.elements) continue;
    return "'" + tensor.name + "', element " + std::to_string(element - tensor.first_element);
  }
  return "element " + std::to_string(element);
}

void ClientReplica::serve(std::uint32_t fragment, Correction mode, const float* correction, const float* before,
                          float* snapshot, std::uint32_t dither) const {
  const auto pass = [mode](auto* x, const float* c, const float* b, float* s, std::size_t count, auto... random) {
    switch (mode) {
      case Correction::none:
        return publish(x, s, count);
      case Correction::add:
        return b == nullptr ? add_and_publish(x, c, s, count, random...)
                            : add_within_and_publish(x, c, b, s, count, random...);
      case Correction::replace:
        return replace_and_publish(x, c, s, count, random...);
    }
  };
  for (const Piece& piece : pieces(fragment)) {
    const ClientTensor& tensor = tensors_[piece.tensor];
    // The caller may pass null for arrays that the mode does not use.
    const float* c = mode == Correction::none ? nullptr : correction + piece.fragment_offset;
    const bool within = mode == Correction::add && tensor.role == Role::buffer;
    const float* b = within ? before + piece.fragment_offset : nullptr;
    float* s = piece.publishes ? snapshot + piece.fragment_offset : not_published_.data();
    if (!piece.publishes && mode == Correction::none) continue;
    if (tensor.dtype == Dtype::f64) {
      pass(static_cast<double*>(tensor.data) + piece.tensor_offset, c, b, s, piece.count);
    } else if (tensor.dtype == Dtype::bf16) {
      pass(static_cast<Bfloat16*>(tensor.data) + piece.tensor_offset, c, b, s, piece.count,
           dither + piece.fragment_offset);
    } else {
      pass(static_cast<float*>(tensor.data) + piece.tensor_offset, c, b, s, piece.count);
    }
  }
}

bool ClientReplica::finite() const {
  return std::ranges::all_of(tensors_, [](const ClientTensor& tensor) {
    if (tensor.role == Role::local) return true;
    const auto all = [&tensor](const auto* values) {
      return std::all_of(values, values + tensor.held,
                         [](const auto& value) { return std::isfinite(element::snapshot_of(value)); });
    };
    if (tensor.dtype == Dtype::f64) return all(static_cast<const double*>(tensor.data));
    if (tensor.dtype == Dtype::bf16) return all(static_cast<const Bfloat16*>(tensor.data));
    return all(static_cast<const float*>(tensor.data));
  });
}

Result<void> ClientReplica::set_data(std::size_t index, void* data) {
  if (index >= tensors_.size()) {
    return fail(GOSSAMER_BAD_ARGUMENT, "there is no tensor number " + std::to_string(index) + "; the run has " +
                                           std::to_string(tensors_.size()));
  }
  if (auto usable = check_data(tensors_[index], data); !usable) return usable;
  tensors_[index].data = data;
  moved_ = true;
  return {};
}

Result<void> ClientReplica::check_moved() {
  if (!moved_) return {};
  if (auto apart = check_overlap(); !apart) return apart;
  moved_ = false;
  return {};
}

std::uint64_t ClientReplica::fragment_bytes(std::uint32_t fragment) const {
  const std::uint64_t first = std::uint64_t{fragment} * fragment_elements_;
  return std::min<std::uint64_t>(fragment_elements_, elements_ - first) * sizeof(float);
}

std::uint64_t ClientReplica::layout_hash() const {
  std::vector<layout::TensorDescription> descriptions;
  descriptions.reserve(tensors_.size());
  for (const ClientTensor& tensor : tensors_) {
    descriptions.push_back({.name = tensor.name, .dtype = tensor.dtype, .role = tensor.role, .shape = tensor.shape});
  }
  return layout::layout_hash(fragment_elements_, descriptions);
}

}  // namespace gossamer::client
