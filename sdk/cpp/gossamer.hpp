// Gossamer's client library for C++20: the C ABI of gossamer.h with owners, spans and exceptions. Header-only.
//
// The conventions of gossamer.h hold: one thread at a time per run, tensors stay the caller's and in place. What the C
// functions report as a failure is thrown as gossamer::Error, except where a function says that it returns the status.
//
//   std::vector<float> weights(1000);
//   const gossamer::Tensor tensors[] = {gossamer::param("weights", weights)};
//   gossamer::Run run({.job = "my-model"}, tensors);
//   run.wait_ready(std::chrono::seconds(10));
//   for (...) { train_on(batch); run.step(batch.size()); }

#pragma once

#include <gossamer.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gossamer {
inline namespace client_1 {

class Error : public std::runtime_error {
 public:
  Error(gossamer_status status, const std::string& message)
      : std::runtime_error(std::string(gossamer_status_name(status)) + ": " + message), status_(status) {}
  [[nodiscard]] gossamer_status status() const noexcept { return status_; }

 private:
  gossamer_status status_;
};

/// One tensor of the model. Make it with param(), buffer() or local().
struct Tensor {
  std::string name;
  gossamer_dtype dtype = GOSSAMER_F32;
  gossamer_role role = GOSSAMER_PARAM;
  std::vector<std::uint64_t> shape;
  void* data = nullptr;  ///< the caller's memory, contiguous
  /// Given if this process holds a slice of the tensor: the shape of the whole tensor, and where the slice begins in
  /// it. `shape` is then the shape of the slice.
  std::vector<std::uint64_t> whole = {};
  std::vector<std::uint64_t> offset = {};
};

/// The upper half of a float, as the frameworks of the field define it.
struct bfloat16 {
  std::uint16_t bits;
};

namespace detail {
template <class T>
inline constexpr std::optional<gossamer_dtype> mixed_dtype = std::nullopt;
template <>
inline constexpr std::optional<gossamer_dtype> mixed_dtype<float> = GOSSAMER_F32;
template <>
inline constexpr std::optional<gossamer_dtype> mixed_dtype<double> = GOSSAMER_F64;
template <>
inline constexpr std::optional<gossamer_dtype> mixed_dtype<bfloat16> = GOSSAMER_BF16;

template <std::ranges::contiguous_range Values>
[[nodiscard]] Tensor mixed_tensor(std::string name, gossamer_role role, Values&& values,
                                  std::vector<std::uint64_t> shape) {
  using T = std::remove_reference_t<std::ranges::range_reference_t<Values>>;
  static_assert(mixed_dtype<T>.has_value(), "tensors that are mixed hold float, double or bfloat16, not const");
  const std::uint64_t count = std::ranges::size(values);
  if (shape.empty()) shape = {count};
  std::uint64_t elements = 1;
  for (const std::uint64_t size : shape)
    elements *= size;
  if (elements != count) {
    throw Error(GOSSAMER_BAD_ARGUMENT, "tensor '" + name + "' has " + std::to_string(count) +
                                           " values, but its shape has " + std::to_string(elements) + " elements");
  }
  return {std::move(name), *mixed_dtype<T>, role, std::move(shape), std::ranges::data(values)};
}
}  // namespace detail

/// A tensor that is averaged with the other replicas; `values` is a vector, array or span of float, double or
/// bfloat16 that outlives the run. An empty shape means one dimension.
template <std::ranges::contiguous_range Values>
[[nodiscard]] Tensor param(std::string name, Values&& values, std::vector<std::uint64_t> shape = {}) {
  return detail::mixed_tensor(std::move(name), GOSSAMER_PARAM, values, std::move(shape));
}

/// A tensor that is averaged but is no parameter, for instance batch-norm statistics.
template <std::ranges::contiguous_range Values>
[[nodiscard]] Tensor buffer(std::string name, Values&& values, std::vector<std::uint64_t> shape = {}) {
  return detail::mixed_tensor(std::move(name), GOSSAMER_BUFFER, values, std::move(shape));
}

/// A tensor that stays in this process and is listed only so that replicas can compare their models.
[[nodiscard]] inline Tensor local(std::string name, gossamer_dtype dtype, std::vector<std::uint64_t> shape) {
  return {std::move(name), dtype, GOSSAMER_LOCAL, std::move(shape), nullptr};
}

/// A tensor of a replica in parts (Options::parts): `part` has the shape of what this process holds, and is the slice
/// at `offset` of a tensor of the shape `whole`. Both have as many numbers as the part's shape.
[[nodiscard]] inline Tensor slice(Tensor part, std::vector<std::uint64_t> whole, std::vector<std::uint64_t> offset) {
  if (whole.size() != part.shape.size() || offset.size() != part.shape.size())
    throw Error(GOSSAMER_BAD_ARGUMENT, "the slice of tensor '" + part.name + "' has a whole of other dimensions");
  part.whole = std::move(whole);
  part.offset = std::move(offset);
  return part;
}

/// The fields of gossamer_options, explained there.
struct Options {
  std::string job;
  std::string socket_path = {};  ///< empty: where gossamerd puts it by default
  std::uint32_t fragment_elements = 0;
  std::uint64_t step_budget_bytes = 0;
  std::uint64_t initial_clock_samples = 0;
  gossamer_memory memory = GOSSAMER_MEMORY_AUTO;
  gossamer_device device = GOSSAMER_HOST;
  void* stream = nullptr;  ///< a cudaStream_t, with GOSSAMER_CUDA
  std::string settings = {};
  std::uint32_t parts = 0;
  std::uint32_t part = 0;
  std::string replica = {};
};

/// Zeros that Run::average() averages where they are. See gossamer_average_memory(). Throws std::bad_alloc.
class AverageArray {
 public:
  explicit AverageArray(std::size_t count) : values_(gossamer_average_memory(count)), count_(count) {
    if (values_ == nullptr) throw std::bad_alloc();
  }
  [[nodiscard]] std::span<float> get() const noexcept { return {values_.get(), count_}; }

 private:
  struct Free {
    void operator()(float* values) const noexcept { gossamer_average_memory_free(values); }
  };
  std::unique_ptr<float, Free> values_;
  std::size_t count_;
};

/// The fields of gossamer_average_options, explained there.
struct AverageOptions {
  std::string name = "average";
  std::uint32_t at_least = 1;
  std::chrono::milliseconds grace{0};                               ///< 0: waits without limit
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;  ///< none: waits without limit
  gossamer_average_codec codec = GOSSAMER_AVERAGE_F32;
  std::uint32_t exact = 0;   ///< with GOSSAMER_AVERAGE_Q8: this many of the first values travel in fp32
  std::uint32_t layout = 0;  ///< what the values are, for instance a hash of their names and shapes
};

class Run {
 public:
  Run(const Options& options, std::span<const Tensor> tensors) {
    gossamer_options c_options;
    gossamer_options_init(&c_options);
    c_options.job = options.job.c_str();
    c_options.socket_path = options.socket_path.empty() ? nullptr : options.socket_path.c_str();
    c_options.fragment_elements = options.fragment_elements;
    c_options.step_budget_bytes = options.step_budget_bytes;
    c_options.initial_clock_samples = options.initial_clock_samples;
    c_options.memory = static_cast<std::uint32_t>(options.memory);
    c_options.device = static_cast<std::uint32_t>(options.device);
    c_options.stream = options.stream;
    c_options.settings = options.settings.c_str();
    c_options.parts = options.parts;
    c_options.part = options.part;
    c_options.replica = options.replica.c_str();
    std::vector<gossamer_tensor> c_tensors;
    c_tensors.reserve(tensors.size());
    std::vector<gossamer_slice> slices;
    slices.reserve(tensors.size());  // c_tensors points to them, so they must not move
    for (const Tensor& tensor : tensors) {
      gossamer_tensor& c_tensor = c_tensors.emplace_back();  // with the reserved fields zero
      c_tensor.name = tensor.name.c_str();
      c_tensor.dtype = static_cast<std::uint32_t>(tensor.dtype);
      c_tensor.role = static_cast<std::uint32_t>(tensor.role);
      c_tensor.dimensions = static_cast<std::uint32_t>(tensor.shape.size());
      c_tensor.shape = tensor.shape.data();
      c_tensor.data = tensor.data;
      if (tensor.whole.empty()) continue;
      c_tensor.shape = tensor.whole.data();
      c_tensor.slice = &slices.emplace_back(gossamer_slice{tensor.offset.data(), tensor.shape.data()});
    }
    gossamer_run* run = nullptr;
    char message[512] = "";
    const gossamer_status status =
        gossamer_open(&c_options, c_tensors.data(), c_tensors.size(), &run, message, sizeof message);
    if (status != GOSSAMER_OK) throw Error(status, message);
    run_.reset(run);
  }

  /// Waits until the run takes part in the training; without a timeout, for as long as that takes. Returns GOSSAMER_OK,
  /// or GOSSAMER_NO_DAEMON, GOSSAMER_BUSY, GOSSAMER_TIMEOUT or GOSSAMER_REJECTED. Training may go on alone after each
  /// of these; last_error() explains.
  gossamer_status wait_ready(std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    const gossamer_status status = gossamer_wait_ready(run_.get(), timeout ? timeout->count() : -1);
    const bool expected = status == GOSSAMER_OK || status == GOSSAMER_NO_DAEMON || status == GOSSAMER_BUSY ||
                          status == GOSSAMER_TIMEOUT || status == GOSSAMER_REJECTED;
    if (!expected) check(status);
    return status;
  }

  /// Call after each optimiser step with the number of samples it trained on.
  void step(std::uint64_t samples) { check(gossamer_step(run_.get(), samples)); }

  /// step() in two calls. count_step() counts the step and reads no tensor. True: serve_due() has work.
  [[nodiscard]] bool count_step(std::uint64_t samples) {
    const gossamer_status status = gossamer_count_step(run_.get(), samples);
    if (status != GOSSAMER_DUE) check(status);
    return status == GOSSAMER_DUE;
  }
  void serve_due() { check(gossamer_serve_due(run_.get())); }

  [[nodiscard]] gossamer_run_info info() const {
    gossamer_run_info info{};
    info.size = sizeof info;
    check(gossamer_info(run_.get(), &info));
    return info;
  }

  /// The values of tensor `index` are at `data` from now on.
  void set_tensor_data(std::size_t index, void* data) { check(gossamer_set_tensor_data(run_.get(), index, data)); }

  /// Later calls launch on this CUDA stream: see gossamer_set_stream().
  void set_stream(void* stream) { check(gossamer_set_stream(run_.get(), stream)); }

  /// Reports one of the program's numbers, such as its loss: see gossamer_log().
  void log(const std::string& name, double value) { check(gossamer_log(run_.get(), name.c_str(), value)); }
  /// The program's place in the data, at most 4096 bytes: see gossamer_set_cursor().
  void set_cursor(std::span<const std::byte> cursor) {
    check(gossamer_set_cursor(run_.get(), cursor.data(), cursor.size()));
  }
  /// The cursor that was set last or came with the model; empty if there is none.
  [[nodiscard]] std::vector<std::byte> cursor() const {
    std::vector<std::byte> cursor(4096);
    std::size_t length = 0;
    check(gossamer_get_cursor(run_.get(), cursor.data(), cursor.size(), &length));
    cursor.resize(length);
    return cursor;
  }
  /// Ids of the nodes in reach that run the job, this one included: see gossamer_members().
  [[nodiscard]] std::vector<std::array<std::uint8_t, 16>> members() const {
    std::vector<std::array<std::uint8_t, 16>> ids(256);
    std::size_t count = 0;
    check(gossamer_members(run_.get(), reinterpret_cast<std::uint8_t(*)[16]>(ids.data()), ids.size(), &count));
    ids.resize(std::min(count, ids.size()));
    return ids;
  }
  /// Training is over. Waits until the replicas agree or the time is up; `agreed` says which. If the daemon goes away,
  /// the call waits for its return for ten seconds at most, also without a timeout. See gossamer_finish().
  gossamer_finish_info finish(std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    gossamer_finish_info info{};
    info.size = sizeof info;
    const gossamer_status status = gossamer_finish(run_.get(), timeout ? timeout->count() : -1, &info);
    if (status != GOSSAMER_TIMEOUT && status != GOSSAMER_NOT_FINITE && status != GOSSAMER_REJECTED) check(status);
    return info;
  }

  /// Replaces the values by their exact mean over all processes of the job that call this with the same name; waits for
  /// them. Throws an Error with GOSSAMER_TIMEOUT when the time is up: call again with as many values to go on waiting,
  /// or leave_average(). See gossamer_average().
  gossamer_average_info average(std::span<float> values, const AverageOptions& options = {}) {
    const gossamer_average_options c_options{.size = sizeof c_options,
                                             .name = options.name.c_str(),
                                             .at_least = options.at_least,
                                             .grace_ms = static_cast<std::uint32_t>(options.grace.count()),
                                             .timeout_ms = options.timeout ? options.timeout->count() : -1,
                                             .codec = static_cast<std::uint32_t>(options.codec),
                                             .exact = options.exact,
                                             .layout = options.layout,
                                             .reserved = 0};
    gossamer_average_info info{};
    info.size = sizeof info;
    check(gossamer_average(run_.get(), values.data(), values.size(), &c_options, &info));
    return info;
  }
  /// Leaves the average, so that the other processes no longer wait for this one.
  void leave_average(const std::string& name = "average") { check(gossamer_average_leave(run_.get(), name.c_str())); }

  [[nodiscard]] std::string last_error() const { return gossamer_last_error(run_.get()); }
  /// The handle of the run, for calls of the C ABI. This object still owns the run.
  [[nodiscard]] gossamer_run* handle() const noexcept { return run_.get(); }

 private:
  struct Close {
    void operator()(gossamer_run* run) const noexcept { gossamer_close(run); }
  };
  void check(gossamer_status status) const {
    if (status != GOSSAMER_OK) [[unlikely]]
      throw Error(status,
                  run_ ? gossamer_last_error(run_.get()) : "the run was moved from: call the object that has it");
  }

  std::unique_ptr<gossamer_run, Close> run_;
};

}  // namespace client_1
}  // namespace gossamer
