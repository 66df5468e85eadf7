#include "sdk/c/average_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace gossamer::client {
namespace {

struct Kept {
  std::mutex mutex;
  std::map<const float*, std::shared_ptr<AverageMemory>> memory;
};

/// The list is never destroyed, because a program may free its memory while it ends.
Kept& kept() {
  static Kept* const kept = new Kept;
  return *kept;
}

Result<FileDescriptor> make_file(std::size_t bytes) {
  FileDescriptor file(memfd_create("gossamer-average", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)) != 0)
    return fail(GOSSAMER_NO_MEMORY, "there is no shared memory for what is to be averaged");
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("could not seal the memory");
  return file;
}

/// Maps the file anywhere if `at` is null, otherwise at `at`, in place of what is mapped there.
Result<float*> map(const FileDescriptor& file, std::size_t bytes, float* at = nullptr) {
  const int flags = MAP_SHARED | (at == nullptr ? 0 : MAP_FIXED);
  void* const mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, file.get(), 0);
  if (mapped == MAP_FAILED) return fail_errno("could not map the memory");
  return static_cast<float*>(mapped);
}

}  // namespace

Result<std::shared_ptr<AverageMemory>> AverageMemory::make(std::size_t count) {
  const std::size_t bytes = count * sizeof(float);
  auto file = make_file(bytes);
  if (!file) return std::unexpected(file.error());
  const auto begin = map(*file, bytes);
  if (!begin) return std::unexpected(begin.error());
  return std::shared_ptr<AverageMemory>(new AverageMemory({*begin, count}, std::move(*file)));
}

AverageMemory::~AverageMemory() {
  munmap(values_.data(), values_.size_bytes());
}

Result<void> AverageMemory::renew() {
  if (!shown_) return {};
  auto file = make_file(values_.size_bytes());
  if (!file) return std::unexpected(file.error());
  const auto copy = map(*file, values_.size_bytes());
  if (!copy) return std::unexpected(copy.error());
  std::ranges::copy(values_, *copy);
  munmap(*copy, values_.size_bytes());
  const auto begin = map(*file, values_.size_bytes(), values_.data());
  if (!begin) return std::unexpected(begin.error());
  file_ = std::move(*file);
  shown_ = false;
  return {};
}

void AverageMemory::keep(std::shared_ptr<AverageMemory> memory) {
  const std::scoped_lock lock(kept().mutex);
  const float* const begin = memory->values().data();
  kept().memory.emplace(begin, std::move(memory));
}

void AverageMemory::forget(const float* begin) {
  const std::scoped_lock lock(kept().mutex);
  kept().memory.erase(begin);
}

std::shared_ptr<AverageMemory> AverageMemory::at(const float* begin) {
  const std::scoped_lock lock(kept().mutex);
  const auto found = kept().memory.find(begin);
  return found == kept().memory.end() ? nullptr : found->second;
}

}  // namespace gossamer::client
