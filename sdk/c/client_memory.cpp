#include "sdk/c/client_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "sdk/c/available_memory.hpp"

namespace gossamer::client {
namespace {

[[nodiscard]] std::uint64_t names_bytes(const Replica& replica) {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : replica.tensors())
    bytes += tensor.name.size();
  return bytes;
}

[[nodiscard]] std::string mebibytes(std::uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

/// A memfd of this size with its pages taken, that neither side can resize.
[[nodiscard]] Result<FileDescriptor> make_file(std::uint64_t bytes) {
  const std::optional<std::uint64_t> available_bytes = available_memory_bytes();
  if (available_bytes && *available_bytes < bytes) {
    return fail(GOSSAMER_NO_MEMORY, "the model takes " + mebibytes(bytes) +
                                        " of shared memory, three times its size in fp32, and " +
                                        mebibytes(*available_bytes) +
                                        " of memory are available: train a smaller model, or attach a part of it");
  }
  FileDescriptor file(memfd_create("gossamer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return fail_errno("could not create shared memory");
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return fail_errno("could not size shared memory");
  if (fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return fail(GOSSAMER_NO_MEMORY,
                "could not take " + mebibytes(bytes) +
                    " of shared memory, three times the model's size in fp32: " + std::strerror(errno));
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail_errno("could not seal shared memory");
  }
  return file;
}

}  // namespace

Result<ClientMemory> ClientMemory::create(const Replica& replica, std::string_view job, std::uint64_t clock) {
  const layout::Plan plan = layout::plan(replica.elements(), replica.fragment_elements(),
                                         static_cast<std::uint32_t>(replica.tensors().size()), names_bytes(replica));
  auto file = make_file(plan.total_bytes);
  if (!file) return std::unexpected(file.error());
  void* base = mmap(nullptr, plan.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file->get(), 0);
  if (base == MAP_FAILED) return fail_errno("could not map shared memory");
  // A forked child (a data loader, say) neither needs the memory nor should keep it alive.
  madvise(base, plan.total_bytes, MADV_DONTFORK);
  ClientMemory memory(std::move(*file), static_cast<std::byte*>(base), plan);
  memory.describe(replica, job, clock);
  memory.publish_all(replica, clock);
  memory.header().version.store(layout::version, std::memory_order_release);
  return memory;
}

ClientMemory::ClientMemory(ClientMemory&& other) noexcept
    : file_(std::move(other.file_)), base_(std::exchange(other.base_, nullptr)), plan_(other.plan_) {}

ClientMemory::~ClientMemory() {
  if (base_ != nullptr) munmap(base_, plan_.total_bytes);
}

void ClientMemory::describe(const Replica& replica, std::string_view job, std::uint64_t clock) {
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
  std::memcpy(header->job, job.data(), job.size());  // is_job_name() bounds it; the rest is zero
  header->clock.store(clock, std::memory_order_relaxed);

  std::uint64_t name_offset = plan_.names_offset;
  auto* entries = reinterpret_cast<layout::TensorEntry*>(base_ + plan_.tensors_offset);
  for (const Tensor& tensor : replica.tensors()) {
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

void ClientMemory::publish_all(const Replica& replica, std::uint64_t clock) {
  constexpr layout::Word first{.generation = 1, .publication = 0, .correction = 1};
  for (std::uint32_t f = 0; f < plan_.fragment_count; ++f) {
    replica.serve(f, Replica::Correction::none, buffer(f, first.correction), buffer(f, first.publication), 0);
    auto* entry = new (&fragment(f)) layout::FragmentEntry{};
    entry->publication_clock.store(clock, std::memory_order_relaxed);
    entry->word.store(first.pack(), std::memory_order_release);
  }
}

}  // namespace gossamer::client
