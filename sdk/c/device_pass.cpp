#include "sdk/c/device_pass.hpp"

#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

namespace gossamer::client {
namespace {

using cuda::PassStatus;

/// Opening waits for what the program has launched before. Programs are not expected to launch work that takes longer
/// than this.
constexpr std::chrono::seconds open_limit{60};
constexpr std::chrono::microseconds poll_interval{500};

[[nodiscard]] cuda::Element element_of(layout::Dtype dtype) {
  switch (dtype) {
    case layout::Dtype::f64:
      return cuda::Element::f64;
    case layout::Dtype::bf16:
      return cuda::Element::bf16;
    default:
      return cuda::Element::f32;
  }
}

/// The GPU that the values are on; -1: none.
[[nodiscard]] Result<std::int32_t> locate(const cuda::ClientPluginTable& plugin, const void* data) {
  std::int32_t device = -1;
  const DeviceOutcome located = call_device(plugin.locate, data, &device);
  if (!located.done()) return fail(GOSSAMER_NO_DEVICE, located.error + ": is there an NVIDIA GPU, and its driver?");
  return device;
}

[[nodiscard]] std::string place(std::int32_t device) {
  return device < 0 ? "in host memory" : "on GPU " + std::to_string(device);
}

/// The GPU that holds all tensors whose values are averaged.
[[nodiscard]] Result<std::int32_t> locate_all(const cuda::ClientPluginTable& plugin, const ClientReplica& replica) {
  const ClientTensor* first = nullptr;
  std::int32_t common = -1;
  for (const ClientTensor& tensor : replica.tensors()) {
    if (tensor.role == layout::Role::local || tensor.elements == 0) continue;
    const auto device = locate(plugin, tensor.data);
    if (!device) return device;
    if (*device < 0) {
      return fail(GOSSAMER_BAD_ARGUMENT, "tensor '" + tensor.name +
                                             "' is in host memory, but the run's device is a GPU: move it there, or "
                                             "keep all tensors in host memory");
    }
    if (first != nullptr && *device != common) {
      return fail(GOSSAMER_BAD_ARGUMENT, "tensor '" + first->name + "' is " + place(common) + " and tensor '" +
                                             tensor.name + "' " + place(*device) +
                                             ": a run is on one GPU; train on several with a process for each");
    }
    first = first == nullptr ? &tensor : first;
    common = *device;
  }
  return common;
}

/// The limits of a step within its budget. One fragment always fits.
[[nodiscard]] cuda::PassLimits limits_for(const ClientReplica& replica, std::uint64_t step_budget_bytes) {
  const std::uint64_t fragment_bytes = std::uint64_t{replica.fragment_elements()} * sizeof(float);
  // The last fragment may be smaller than the others, so that it fits beside them.
  const std::uint64_t fragments =
      std::min<std::uint64_t>(step_budget_bytes / fragment_bytes + 2, replica.fragment_count());
  std::vector<std::uint64_t> counts;
  for (std::uint32_t f = 0; f < replica.fragment_count(); ++f)
    counts.push_back(replica.pieces(f).size());
  std::ranges::sort(counts, std::greater{});
  const std::uint64_t pieces =
      std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(fragments), std::uint64_t{0});
  return {static_cast<std::uint32_t>(pieces), static_cast<std::uint32_t>(fragments)};
}

}  // namespace

Result<std::unique_ptr<DevicePass>> DevicePass::open(const ClientReplica& replica, void* stream,
                                                     std::uint64_t step_budget_bytes) {
  const auto plugin = load_device_plugin();
  if (!plugin) return std::unexpected(plugin.error());
  const auto device = locate_all(**plugin, replica);
  if (!device) return std::unexpected(device.error());
  std::unique_ptr<DevicePass> pass(new DevicePass(**plugin, *device, replica.fragment_count(), stream));
  pass->limits_ = limits_for(replica, step_budget_bytes);
  const DeviceOutcome opened = call_device((*plugin)->open, *device, pass->limits_, &pass->context_);
  if (opened.status == PassStatus::no_memory) {
    return fail(GOSSAMER_NO_MEMORY,
                "GPU " + std::to_string(*device) + " or the host has no room for the run: " + opened.error);
  }
  if (!opened.done()) return fail(GOSSAMER_NO_DEVICE, "the GPU cannot be used: " + opened.error);
  return pass;
}

DevicePass::~DevicePass() {
  if (context_ == nullptr) return;
  for (void* const memory : pinned_)
    plugin_.unpin(context_, memory);
  if (shares()) plugin_.unshare(context_, &shared_);
  plugin_.close(context_);
}

void DevicePass::abandon() {
  context_ = nullptr;
  (void)descriptor_.release();
}

Result<void> DevicePass::share(std::uint64_t buffers_bytes) {
  const DeviceOutcome shared = call_device(plugin_.share, context_, buffers_bytes, &shared_);
  if (shared.done()) {
    descriptor_ = FileDescriptor(shared_.descriptor);
    fcntl(descriptor_.get(), F_SETFD, FD_CLOEXEC);
    return {};
  }
  shared_ = {};
  if (shared.status == PassStatus::failed) return fail_with(shared.error);
  why_ = "the run exchanges through pinned host memory, because the GPU's cannot be shared: " + shared.error;
  return {};
}

layout::DeviceOffer DevicePass::offer() const {
  layout::DeviceOffer offer{};
  plugin_.uuid(context_, offer.uuid);
  offer.bytes = shared_.bytes;
  return offer;
}

Result<void> DevicePass::pin(void* memory, std::uint64_t bytes, std::byte*& device_memory) {
  void* there = nullptr;
  const DeviceOutcome pinned = call_device(plugin_.pin, context_, memory, layout::align_to_page(bytes), &there);
  if (pinned.status == PassStatus::failed) return fail_with(pinned.error);
  if (!pinned.done()) {
    failure_ = "host memory cannot be pinned for the GPU (" + pinned.error +
               "): keep a copy of the tensors in host memory instead";
    return failure();
  }
  pinned_.push_back(memory);
  device_memory = static_cast<std::byte*>(there);
  return {};
}

Result<void> DevicePass::use(const RunMemory& memory) {
  memory_ = memory.base();
  plan_ = memory.plan();
  if (auto pinned = pin(memory_, plan_.buffers_offset, words_); !pinned || shares()) return pinned;
  return pin(memory_ + plan_.buffers_offset, layout::device_bytes(plan_), pinned_buffers_);
}

float* DevicePass::buffer(std::uint32_t fragment, std::uint8_t index) const {
  std::byte* const buffers = shares() ? static_cast<std::byte*>(shared_.base) : pinned_buffers_;
  return reinterpret_cast<float*>(buffers + layout::device_offset(plan_, fragment, index));
}

void DevicePass::add_pieces(const ClientReplica& replica, std::uint32_t fragment, cuda::Mode mode,
                            const float* correction, const float* before, float* snapshot, std::uint32_t dither) {
  for (const ClientReplica::Piece& piece : replica.pieces(fragment)) {
    const ClientTensor& tensor = replica.tensors()[piece.tensor];
    const bool within = mode == cuda::Mode::add && tensor.role == layout::Role::buffer;
    pieces_.push_back({.x = static_cast<std::byte*>(tensor.data) + piece.tensor_offset * element_bytes(tensor.dtype),
                       .correction = mode == cuda::Mode::none ? nullptr : correction + piece.fragment_offset,
                       .snapshot = snapshot + piece.fragment_offset,
                       .count = piece.count,
                       .dither = dither + piece.fragment_offset,
                       .fragment = 0,  // set by launch()
                       .element = element_of(tensor.dtype),
                       .mode = within ? cuda::Mode::add_within : mode,
                       .before = within ? before + piece.fragment_offset : nullptr});
  }
}

void DevicePass::add_publication(std::uint32_t fragment, const layout::Word& due, const layout::Word& published) {
  const auto word_at = reinterpret_cast<std::byte*>(&entry(fragment).word) - memory_;
  publications_.push_back({reinterpret_cast<std::uint64_t*>(words_ + word_at), published.pack()});
  added_.push_back({fragment, due.pack(), static_cast<std::uint32_t>(pieces_.size())});
}

void DevicePass::add(const ClientReplica& replica, std::uint32_t fragment, const layout::Word& due,
                     std::uint32_t dither) {
  const cuda::Mode mode = !due.correction_valid ? cuda::Mode::none
                          : due.replace         ? cuda::Mode::replace
                                                : cuda::Mode::add;
  layout::Word published = due;
  ++published.generation;
  published.publication = due.spare();
  published.correction_valid = published.replace = published.with_client = published.serving = false;
  add_pieces(replica, fragment, mode, buffer(fragment, due.correction), buffer(fragment, due.publication),
             buffer(fragment, due.spare()), dither);
  add_publication(fragment, due, published);
}

void DevicePass::begin() {
  pieces_.clear();
  publications_.clear();
  added_.clear();
  news_.clear();
}

DevicePass::Launch DevicePass::launch() {
  Launch result;
  std::size_t begin = 0;
  std::uint32_t pieces_begin = 0;
  news_.reserve(added_.size());  // so that adding to news_ after a launch cannot fail
  while (begin < added_.size() && !result.problem) {
    std::size_t end = begin;
    std::uint32_t pieces_end = pieces_begin;
    while (end < added_.size() && end - begin < limits_.publications &&
           (end == begin || added_[end].pieces_end - pieces_begin <= limits_.pieces)) {
      for (std::uint32_t p = pieces_end; p < added_[end].pieces_end; ++p)
        pieces_[p].fragment = static_cast<std::uint32_t>(end - begin);
      pieces_end = added_[end++].pieces_end;
    }
    const DeviceOutcome launched =
        call_device(plugin_.launch, context_, stream_, pieces_.data() + pieces_begin, pieces_end - pieces_begin,
                    publications_.data() + begin, static_cast<std::uint32_t>(end - begin));
    if (launched.status == PassStatus::busy) break;
    if (launched.status == PassStatus::failed) result.problem = fail_with(launched.error).error();
    if (launched.status == PassStatus::no_memory)
      result.problem = ClientError{GOSSAMER_NO_MEMORY, "no memory for a pass over the model: " + launched.error};
    if (launched.status == PassStatus::impossible) result.problem = ClientError{GOSSAMER_BAD_ARGUMENT, launched.error};
    if (!launched.done()) break;
    for (; begin < end; ++begin) {
      news_.push_back({&entry(added_[begin].fragment).word, added_[begin].due});
    }
    pieces_begin = pieces_end;
  }
  for (std::size_t i = begin; i < added_.size(); ++i) {  // the daemon may recall these until the next step
    layout::Word due = layout::Word::unpack(added_[i].due);
    due.serving = false;
    entry(added_[i].fragment).word.store(due.pack(), std::memory_order_release);
  }
  result.launched = static_cast<std::uint32_t>(begin);
  result.left = static_cast<std::uint32_t>(added_.size() - begin);
  under_way_.add(news_);
  return result;
}

Result<void> DevicePass::publish_all(const ClientReplica& replica, std::uint64_t clock) {
  constexpr layout::Word first{.generation = 1, .publication = 0, .correction = 1};
  const auto until = std::chrono::steady_clock::now() + open_limit;
  std::uint32_t next = 0;
  while (next < replica.fragment_count() && std::chrono::steady_clock::now() < until) {
    const std::uint32_t end = std::min(replica.fragment_count(), next + limits_.publications);
    begin();
    for (std::uint32_t f = next; f < end; ++f) {
      entry(f).publication_clock.store(clock, std::memory_order_relaxed);
      add_pieces(replica, f, cuda::Mode::none, nullptr, nullptr, buffer(f, first.publication), 0);
      add_publication(f, layout::Word::unpack(0), first);
    }
    const Launch launched = launch();
    if (launched.problem) return std::unexpected(*launched.problem);
    next += launched.launched;
    if (launched.left > 0) std::this_thread::sleep_for(poll_interval);
  }
  const auto settled = settle(std::chrono::duration_cast<std::chrono::milliseconds>(open_limit));
  under_way_.forget();
  if (!settled) return std::unexpected(settled.error());
  if (*settled && next == replica.fragment_count()) return {};
  return fail(GOSSAMER_NO_DEVICE, "GPU " + std::to_string(device_) +
                                      " has not come to what was launched on the stream within " +
                                      std::to_string(open_limit.count()) + " s: open the run when it is not busy");
}

Result<void> DevicePass::check(const ClientTensor& tensor, const void* data) const {
  if (tensor.role == layout::Role::local || tensor.elements == 0) return {};
  const auto device = locate(plugin_, data);
  if (!device) return std::unexpected(device.error());
  if (*device == device_) return {};
  return fail(GOSSAMER_BAD_ARGUMENT, "tensor '" + tensor.name + "' is " + place(*device) + " now, and the run " +
                                         place(device_) + ": " +
                                         "close the run and open it anew, or move the tensor back");
}

Result<bool> DevicePass::idle() {
  if (failed()) return failure();
  bool idle = false;
  const DeviceOutcome looked = call_device(plugin_.idle, context_, &idle);
  if (!looked.done()) return fail_with(looked.error);
  return idle;
}

Result<bool> DevicePass::settle(std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (true) {
    auto now_idle = idle();
    if (!now_idle || *now_idle || std::chrono::steady_clock::now() > until) return now_idle;
    std::this_thread::sleep_for(poll_interval);
  }
}

std::uint64_t DevicePass::take_pass_ns() {
  return plugin_.pass_ns(context_) - std::exchange(taken_pass_ns_, plugin_.pass_ns(context_));
}

std::unexpected<ClientError> DevicePass::fail_with(const std::string& error) {
  if (!failed()) {
    failure_ = "GPU " + std::to_string(device_) + " has failed: " + error +
               ". The run is of no more use: close it, and start the program anew from its last checkpoint";
    under_way_.forget();
  }
  return failure();
}

Result<void> DevicePass::begin_move() {
  const std::uint64_t bytes = layout::device_bytes(plan_);
  if (auto pinned = pin(memory_ + plan_.buffers_offset, bytes, pinned_buffers_); !pinned) return pinned;
  const DeviceOutcome copied = call_device(plugin_.copy, context_, static_cast<void*>(pinned_buffers_),
                                           static_cast<const void*>(shared_.base), bytes);
  if (!copied.done()) return fail_with(copied.error);
  moves_ = true;
  return {};
}

void DevicePass::end_move() {
  plugin_.unshare(context_, &shared_);
  shared_ = {};
  moves_ = false;
}

}  // namespace gossamer::client
