#include "sdk/c/run_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "sdk/c/available_memory.hpp"

namespace gossamer::client {
namespace {

/// The word of each fragment when the model has been published first.
constexpr layout::Word first_publication{.generation = 1, .publication = 0, .correction = 1};

[[nodiscard]] std::uint64_t names_bytes(const ClientReplica& replica) {
  std::uint64_t bytes = 0;
  for (const ClientTensor& tensor : replica.tensors())
    bytes += tensor.name.size();
  return bytes;
}

[[nodiscard]] std::string mebibytes(std::uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

/// The bytes of this memory's buffers that may have pages at once; 0: all of them.
[[nodiscard]] Result<std::uint64_t> choose_window(const layout::Plan& plan, gossamer_memory memory) {
  const std::optional<std::uint64_t> available_bytes = available_memory_bytes();
  const std::uint64_t lean_window = layout::window_for(plan);
  if (memory == GOSSAMER_MEMORY_LEAN && lean_window == 0) {
    return fail(GOSSAMER_BAD_ARGUMENT,
                "lean memory needs fragments of at least " + std::to_string(layout::page_bytes / sizeof(float)) +
                    " elements, and those of this run have " + std::to_string(plan.buffer_stride / sizeof(float)) +
                    ": choose larger fragment_elements, or leave memory at auto");
  }
  const bool fits = !available_bytes || layout::most_bytes(plan, 0) <= *available_bytes;
  const bool lean = memory == GOSSAMER_MEMORY_LEAN || (memory == GOSSAMER_MEMORY_AUTO && !fits && lean_window != 0);
  const std::uint64_t window = lean ? lean_window : 0;
  const std::uint64_t needed_bytes = layout::most_bytes(plan, window);
  if (!available_bytes || needed_bytes <= *available_bytes) return window;
  const std::string what = lean ? " of shared memory, though it is opened lean, and "
                                : " of shared memory, three times its size in fp32, and ";
  const std::string advice = lean ? "choose smaller fragment_elements, or free memory"
                             : memory == GOSSAMER_MEMORY_RESIDENT && lean_window != 0
                                 ? "open it with the memory auto or lean"
                                 : "train a smaller model, or attach a part of it";
  return fail(GOSSAMER_NO_MEMORY, "the model takes " + mebibytes(needed_bytes) + what + mebibytes(*available_bytes) +
                                      " of memory are available: " + advice);
}

/// A memfd of the plan's size that neither side can resize, with pages for its first `taken_bytes`. `hint` says what to
/// do if there are no pages.
[[nodiscard]] Result<FileDescriptor> make_file(const layout::Plan& plan, std::uint64_t taken_bytes, const char* hint) {
  FileDescriptor file(memfd_create("gossamer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return fail_errno("could not create shared memory");
  if (ftruncate(file.get(), static_cast<off_t>(plan.total_bytes)) != 0)
    return fail_errno("could not size shared memory");
  if (fallocate(file.get(), 0, 0, static_cast<off_t>(taken_bytes)) != 0) {
    return fail(GOSSAMER_NO_MEMORY,
                "could not take " + mebibytes(taken_bytes) + " of shared memory: " + std::strerror(errno) + hint);
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail_errno("could not seal shared memory");
  }
  return file;
}

/// A forked child, for instance a data loader, does not need the memory and should not keep it alive.
[[nodiscard]] Result<std::byte*> map(const FileDescriptor& file, const layout::Plan& plan, bool populate) {
  void* base = mmap(nullptr, plan.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return fail_errno("could not map shared memory");
  madvise(base, plan.total_bytes, MADV_DONTFORK);
  // The pages exist already. Mapping them now saves the steps from page faults. Kernels before 5.14 do not know this
  // call.
  if (populate) madvise(base, layout::most_bytes(plan, 0), MADV_POPULATE_WRITE);
  return static_cast<std::byte*>(base);
}

}  // namespace

layout::Plan plan_for(const ClientReplica& replica) {
  return layout::plan(replica.elements(), replica.fragment_elements(),
                      static_cast<std::uint32_t>(replica.tensors().size()), names_bytes(replica));
}

Result<void> take_buffers(int file, const layout::Plan& plan) {
  const std::uint64_t bytes = layout::device_bytes(plan);
  const std::string what = mebibytes(bytes) + " of pinned host memory, three times the model's size in fp32";
  const std::optional<std::uint64_t> available_bytes = available_memory_bytes();
  if (available_bytes && bytes > *available_bytes) {
    return fail(GOSSAMER_NO_MEMORY, "the run needs " + what + ", and " + mebibytes(*available_bytes) +
                                        " of memory are available: free memory, or attach a part of the model");
  }
  if (fallocate(file, 0, static_cast<off_t>(plan.buffers_offset), static_cast<off_t>(bytes)) != 0)
    return fail(GOSSAMER_NO_MEMORY, "could not take " + what + ": " + std::strerror(errno));
  return {};
}

Result<RunMemory> RunMemory::create(const ClientReplica& replica, const gossamer_options& options) {
  const layout::Plan plan = plan_for(replica);
  const auto window = choose_window(plan, static_cast<gossamer_memory>(options.memory));
  if (!window) return std::unexpected(window.error());
  const bool lean = *window != 0;
  auto file = make_file(plan, lean ? plan.buffers_offset : layout::most_bytes(plan, 0),
                        lean ? "" : "; opened lean the model takes less");
  if (!file) return std::unexpected(file.error());
  const auto base = map(*file, plan, !lean);
  if (!base) return std::unexpected(base.error());
  RunMemory memory(std::move(*file), *base, plan, *window);
  memory.describe(replica, options);
  if (lean) {
    memory.publish_nothing(options.initial_clock_samples);
  } else {
    memory.publish_all(replica, options.initial_clock_samples);
  }
  memory.complete();
  return memory;
}

Result<RunMemory> RunMemory::create_for_device(const ClientReplica& replica, const gossamer_options& options,
                                               layout::BuffersIn buffers_in) {
  const layout::Plan plan = plan_for(replica);
  const bool on_device = buffers_in == layout::BuffersIn::device;
  auto file = make_file(plan, plan.buffers_offset, "");
  if (!file) return std::unexpected(file.error());
  if (!on_device) {
    if (auto taken = take_buffers(file->get(), plan); !taken) return std::unexpected(taken.error());
  }
  const auto base = map(*file, plan, !on_device);
  if (!base) return std::unexpected(base.error());
  RunMemory memory(std::move(*file), *base, plan, 0);
  memory.describe(replica, options);
  memory.header().buffers_in = static_cast<std::uint64_t>(buffers_in);
  memory.make_entries(options.initial_clock_samples, 0);
  return memory;
}

Result<RunMemory> RunMemory::share(FileDescriptor file, const ClientReplica& replica) {
  const layout::Plan plan = plan_for(replica);
  struct stat info;
  if (fstat(file.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) != plan.total_bytes)
    return fail(GOSSAMER_REJECTED, "part 0's shared memory has another size: the libraries of the parts differ");
  const auto base = map(file, plan, false);
  if (!base) return std::unexpected(base.error());
  return RunMemory(std::move(file), *base, plan, 0);
}

void RunMemory::publish_part(const ClientReplica& replica) const {
  for (std::uint32_t f = 0; f < plan_.fragment_count; ++f)
    replica.serve(f, ClientReplica::Correction::none, nullptr, nullptr, buffer(f, first_publication.publication), 0);
}

RunMemory::RunMemory(RunMemory&& other) noexcept
    : file_(std::move(other.file_)),
      base_(std::exchange(other.base_, nullptr)),
      plan_(other.plan_),
      window_bytes_(other.window_bytes_) {}

RunMemory::~RunMemory() {
  if (base_ != nullptr) munmap(base_, plan_.total_bytes);
}

void RunMemory::describe(const ClientReplica& replica, const gossamer_options& options) {
  auto* header = new (base_) layout::Header{};
  header->magic = layout::magic;
  header->total_bytes = plan_.total_bytes;
  header->layout_hash = replica.layout_hash();
  header->elements = replica.elements();
  header->fragment_elements = replica.fragment_elements();
  header->fragment_count = plan_.fragment_count;
  header->tensor_count = static_cast<std::uint32_t>(replica.tensors().size());
  header->header_bytes = sizeof(layout::Header);
  header->tensors_offset = plan_.tensors_offset;
  header->names_offset = plan_.names_offset;
  header->names_bytes = plan_.names_bytes;
  header->fragments_offset = plan_.fragments_offset;
  header->buffers_offset = plan_.buffers_offset;
  header->buffer_stride = plan_.buffer_stride;
  const std::string_view job = options.job;
  std::memcpy(header->job, job.data(), job.size());  // is_job_name() limits the length; the rest is zero
  header->window_bytes = window_bytes_;
  header->flags = ((options.flags & GOSSAMER_KEEPS) != 0 ? layout::flag_keeps : 0) | std::uint64_t{options.parts}
                                                                                         << layout::flags_parts_shift;
  if (options.settings != nullptr) {
    header->settings_bytes = std::string_view(options.settings).size();  // ClientRun::open() limits it
    std::memcpy(base_ + layout::settings_offset, options.settings, header->settings_bytes);
  }
  header->clock.store(options.initial_clock_samples, std::memory_order_relaxed);

  std::uint64_t name_offset = plan_.names_offset;
  auto* entries = reinterpret_cast<layout::TensorEntry*>(base_ + plan_.tensors_offset);
  for (const ClientTensor& tensor : replica.tensors()) {
    auto* entry = new (entries++) layout::TensorEntry{};
    entry->name_offset = name_offset;
    entry->name_bytes = static_cast<std::uint32_t>(tensor.name.size());
    entry->dtype = static_cast<std::uint8_t>(tensor.dtype);
    entry->role = static_cast<std::uint8_t>(tensor.role);
    entry->dimensions = static_cast<std::uint8_t>(tensor.shape.size());
    std::ranges::copy(tensor.shape, entry->shape);
    entry->first_element = tensor.first_element;
    entry->elements = tensor.elements;
    std::memcpy(base_ + name_offset, tensor.name.data(), tensor.name.size());
    name_offset += tensor.name.size();
  }
}

void RunMemory::publish_all(const ClientReplica& replica, std::uint64_t clock) {
  publish_part(replica);
  make_entries(clock, first_publication.pack());
}

void RunMemory::publish_nothing(std::uint64_t clock) {
  constexpr layout::Word nothing{.publication = 0, .correction = 1, .empty = true};
  make_entries(clock, nothing.pack());
}

void RunMemory::make_entries(std::uint64_t clock, std::uint64_t word) {
  for (std::uint32_t f = 0; f < plan_.fragment_count; ++f) {
    auto* entry = new (&fragment(f)) layout::FragmentEntry{};
    entry->publication_clock.store(clock, std::memory_order_relaxed);
    entry->word.store(word, std::memory_order_release);
  }
}

bool RunMemory::prepare(std::uint32_t fragment, std::uint8_t index, std::uint64_t bytes, bool write) const {
  const int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  // Kernels before 5.14 do not know this call, and map page by page.
  return madvise(buffer(fragment, index), bytes, advice) == 0 || errno == EINVAL;
}

}  // namespace gossamer::client
