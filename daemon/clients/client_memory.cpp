// The mapping and checking of client_memory.hpp. Each error says in detail what was found, because whoever writes a
// client library reads it.

#include "daemon/clients/client_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "gossip/check.hpp"
#include "gossip/exchange/own_halves.hpp"
#include "gossip/job_settings.hpp"
#include "gossip/replica/job_clock.hpp"
#include "sdk/layout/hash.hpp"
#include "sdk/layout/names.hpp"

namespace gossamer::daemon {
namespace {

using layout::AttachStatus;
using layout::Header;
using layout::TensorEntry;

// gossip/ may not include sdk/, so each of them states these limits.
static_assert(block_elements == layout::block_elements && max_fragment_elements == layout::max_fragment_elements &&
              max_fragments == layout::max_fragments && max_job_name_bytes == layout::max_job_bytes &&
              max_cursor_bytes == layout::max_cursor_bytes && gossip::max_clock_samples == layout::max_clock_samples &&
              gossip::commits_modulus == layout::commits_modulus);

/// Receipt numbers begin with the daemon's incarnation, a time of day in microseconds. Larger ones are not a daemon's.
constexpr std::uint64_t max_receipt_number = std::uint64_t{1} << 62;
/// Buffers of such names are what sdk/python/gossamer/_torch_moments.py adds to a model for its optimizer, to which
/// zeros say that nothing is known. Checkpoints of other programs do not have them.
constexpr std::string_view second_moment_suffix = ".root_second_moment";
constexpr std::uint64_t max_elements = std::uint64_t{layout::max_fragments} * layout::max_fragment_elements;

using Checked = std::expected<void, AttachRefusal>;

std::unexpected<AttachRefusal> bad(std::string message) {
  return cannot_attach(AttachStatus::bad_layout, std::move(message));
}

/// Copies bytes that the client may be changing. The checks read the copy: the fence keeps the compiler from reading
/// the original again.
void copy_once(void* to, const std::byte* from, std::size_t size_bytes) {
  std::memcpy(to, from, size_bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

/// The header's values that the client declared before it attached.
struct Declared {
  std::uint64_t total_bytes, layout_hash, elements, tensors_offset, names_offset, names_bytes, fragments_offset,
      buffers_offset, buffer_stride, window_bytes, buffers_in, settings_bytes, flags;
  std::uint32_t fragment_elements, fragment_count, tensor_count, header_bytes;
  char job[sizeof Header::job];
};

Declared copy_declared(const std::byte* base) {
  std::array<std::byte, offsetof(Header, clock)> bytes;
  copy_once(bytes.data(), base, bytes.size());
  Declared declared;
  const auto take = [&](auto& member, std::size_t offset) { std::memcpy(&member, &bytes[offset], sizeof member); };
  take(declared.total_bytes, offsetof(Header, total_bytes));
  take(declared.layout_hash, offsetof(Header, layout_hash));
  take(declared.elements, offsetof(Header, elements));
  take(declared.tensors_offset, offsetof(Header, tensors_offset));
  take(declared.names_offset, offsetof(Header, names_offset));
  take(declared.names_bytes, offsetof(Header, names_bytes));
  take(declared.fragments_offset, offsetof(Header, fragments_offset));
  take(declared.buffers_offset, offsetof(Header, buffers_offset));
  take(declared.buffer_stride, offsetof(Header, buffer_stride));
  take(declared.fragment_elements, offsetof(Header, fragment_elements));
  take(declared.fragment_count, offsetof(Header, fragment_count));
  take(declared.tensor_count, offsetof(Header, tensor_count));
  take(declared.header_bytes, offsetof(Header, header_bytes));
  take(declared.job, offsetof(Header, job));
  take(declared.window_bytes, offsetof(Header, window_bytes));
  take(declared.buffers_in, offsetof(Header, buffers_in));
  take(declared.settings_bytes, offsetof(Header, settings_bytes));
  take(declared.flags, offsetof(Header, flags));
  return declared;
}

Checked check_bounds(const Declared& declared) {
  if (declared.header_bytes != sizeof(Header))
    return cannot_attach(AttachStatus::version_differs,
                         fmt::format("the header has {} bytes; version {} has {}: use the "
                                     "client library that came with this daemon",
                                     declared.header_bytes, layout::version, sizeof(Header)));
  if (declared.elements == 0) return bad("the model has no elements to average: give it at least one mixed tensor");
  if (declared.elements > max_elements)
    return bad(fmt::format("elements is {}; at most {} fit a job", declared.elements, max_elements));
  const std::uint32_t size = declared.fragment_elements;
  if (size < layout::min_fragment_elements || size > layout::max_fragment_elements || (size & (size - 1)) != 0)
    return bad(fmt::format("fragment_elements is {}; it must be a power of two from {} to {}", size,
                           layout::min_fragment_elements, layout::max_fragment_elements));
  if ((declared.elements - 1) / size >= layout::max_fragments)
    return bad(fmt::format("{} elements make more than {} fragments of {}: use larger fragments", declared.elements,
                           layout::max_fragments, size));
  if (declared.tensor_count == 0 || declared.tensor_count > layout::max_tensors)
    return bad(fmt::format("tensor_count is {}; it must be 1 to {}", declared.tensor_count, layout::max_tensors));
  if (declared.names_bytes > std::uint64_t{declared.tensor_count} * layout::max_name_bytes)
    return bad(fmt::format("names_bytes is {}; {} names have at most {} bytes", declared.names_bytes,
                           declared.tensor_count, declared.tensor_count * layout::max_name_bytes));
  return {};
}

Checked check_plan(const Declared& declared, const layout::Plan& plan, std::uint64_t mapped_bytes) {
  const struct {
    const char* name;
    std::uint64_t declared, expected;
  } members[] = {
      {"total_bytes", declared.total_bytes, plan.total_bytes},
      {"fragment_count", declared.fragment_count, plan.fragment_count},
      {"tensors_offset", declared.tensors_offset, plan.tensors_offset},
      {"names_offset", declared.names_offset, plan.names_offset},
      {"fragments_offset", declared.fragments_offset, plan.fragments_offset},
      {"buffers_offset", declared.buffers_offset, plan.buffers_offset},
      {"buffer_stride", declared.buffer_stride, plan.buffer_stride},
      {"the size of the memory", mapped_bytes, plan.total_bytes},
  };
  for (const auto& member : members)
    if (member.declared != member.expected)
      return bad(fmt::format("{} is {}; a model of {} elements in fragments of {} needs {}", member.name,
                             member.declared, declared.elements, declared.fragment_elements, member.expected));
  return {};
}

/// Checks private copies of one tensor's entry and name. `next_element` is the replica's next element without a tensor;
/// a tensor that is not local moves it on.
Checked check_tensor(const TensorEntry& entry, std::uint32_t index, std::string_view name,
                     std::uint64_t& next_element) {
  const auto bad_tensor = [&](const std::string& what) { return bad(fmt::format("tensor {}: {}", index, what)); };
  if (!layout::is_tensor_name(name))
    return bad_tensor(fmt::format("its name must be 1 to {} bytes of UTF-8 without control or invisible characters",
                                  layout::max_name_bytes));
  if (entry.dtype > static_cast<std::uint8_t>(layout::Dtype::boolean))
    return bad_tensor(fmt::format("dtype {} is not known", entry.dtype));
  if (entry.role > static_cast<std::uint8_t>(layout::Role::local))
    return bad_tensor(fmt::format("role {} is not known", entry.role));
  const bool local = entry.role == static_cast<std::uint8_t>(layout::Role::local);
  if (!local && !layout::is_mixable(static_cast<layout::Dtype>(entry.dtype)))
    return bad_tensor(fmt::format("dtype {} cannot be averaged; its role must be local", entry.dtype));
  if (entry.dimensions > layout::max_dimensions)
    return bad_tensor(
        fmt::format("has {} dimensions; at most {} are allowed", entry.dimensions, layout::max_dimensions));
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i < entry.dimensions; ++i)
    if (__builtin_mul_overflow(elements, entry.shape[i], &elements)) return bad_tensor("its shape overflows");
  if (elements != entry.elements)
    return bad_tensor(fmt::format("has {} elements by its shape, {} by its entry", elements, entry.elements));
  const std::uint64_t expected_first = local ? 0 : next_element;
  if (entry.first_element != expected_first)
    return bad_tensor(fmt::format("first_element is {}; it must be {}", entry.first_element, expected_first));
  if (!local && __builtin_add_overflow(next_element, elements, &next_element))
    return bad_tensor("the replica's size overflows");
  return {};
}

/// Checks that the client has taken the pages that the daemon reads and writes. Otherwise the kernel would charge the
/// daemon with each page that it is the first to touch.
Checked check_pages(int memfd, std::uint64_t needed) {
  struct stat file {};
  if (::fstat(memfd, &file) != 0) return bad(fmt::format("the memfd cannot be examined: {}", std::strerror(errno)));
  const std::uint64_t taken = static_cast<std::uint64_t>(file.st_blocks) * 512;
  if (taken >= needed) return {};
  return bad(fmt::format(
      "only {} bytes of the memfd have pages, and {} are needed: take them with fallocate() before attaching", taken,
      needed));
}

}  // namespace

std::uint64_t job_name_hash(std::string_view job) {
  return XXH3_64bits(job.data(), job.size());
}

std::expected<ClientMemory, AttachRefusal> ClientMemory::map(int memfd, std::uint64_t memory_bytes,
                                                             std::uint64_t most_bytes) {
  return map(memfd, memory_bytes, [most_bytes](std::uint64_t bytes) -> std::optional<std::string> {
    if (bytes <= most_bytes) return std::nullopt;
    return fmt::format(
        "{} MiB are needed and {} MiB are left of this daemon's limit: raise [limits] memory_mib in its "
        "configuration",
        bytes >> 20, most_bytes >> 20);
  });
}

std::expected<ClientMemory, AttachRefusal> ClientMemory::map(int memfd, std::uint64_t memory_bytes,
                                                             const Objection& objection) {
  ClientMemory memory;
  if (Checked mapped = memory.map_pages(memfd, memory_bytes); !mapped)
    return std::unexpected(std::move(mapped.error()));
  if (Checked taken = memory.take_header(objection); !taken) return std::unexpected(std::move(taken.error()));
  return memory;
}

/// After this no access to the mapping can fault: the file cannot shrink, and it is ordinary memory.
Checked ClientMemory::map_pages(int memfd, std::uint64_t memory_bytes) {
  const int seals = ::fcntl(memfd, F_GET_SEALS);
  if (seals < 0) return bad("the first descriptor is not a memfd: make it with memfd_create(MFD_ALLOW_SEALING)");
  if ((seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0)
    return bad("the memfd is not sealed: add F_SEAL_SHRINK and F_SEAL_GROW before attaching");
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
    return bad("the memfd is sealed against writing; the daemon must write to it");
  struct statfs system {};
  if (::fstatfs(memfd, &system) != 0 || system.f_type != TMPFS_MAGIC)
    return bad("the memfd is not of ordinary pages: make it without MFD_HUGETLB");
  struct stat file {};
  if (::fstat(memfd, &file) != 0) return bad(fmt::format("the memfd cannot be examined: {}", std::strerror(errno)));
  const auto size_bytes = static_cast<std::uint64_t>(file.st_size);
  if (size_bytes != memory_bytes)
    return bad(fmt::format("the memfd has {} bytes, the request says {}", size_bytes, memory_bytes));
  if (size_bytes < layout::tensors_at)
    return bad(
        fmt::format("the memfd has {} bytes; what precedes the model alone has {}", size_bytes, layout::tensors_at));
  void* base = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (base == MAP_FAILED) return bad(fmt::format("the memfd cannot be mapped: {}", std::strerror(errno)));
  base_ = static_cast<std::byte*>(base);
  pages_ = std::shared_ptr<std::byte>(base_, [size_bytes](std::byte* pages) { ::munmap(pages, size_bytes); });
  mapped_bytes_ = size_bytes;
  inode_ = file.st_ino;
  memfd_ = FileDescriptor(::fcntl(memfd, F_DUPFD_CLOEXEC, 0));
  if (!memfd_) return bad(fmt::format("the memfd cannot be kept: {}", std::strerror(errno)));
  return {};
}

Checked ClientMemory::take_header(const Objection& objection) {
  const std::uint32_t version = header().version.load(std::memory_order_acquire);
  std::uint64_t magic = 0;
  copy_once(&magic, base_ + offsetof(Header, magic), sizeof magic);
  if (magic != layout::magic) return bad("the memory does not begin with Gossamer's mark: is it complete?");
  if (version != layout::version)
    return cannot_attach(AttachStatus::version_differs,
                         fmt::format("the memory has version {}, this daemon needs {}: use "
                                     "the client library that came with this daemon",
                                     version, layout::version));
  const Declared declared = copy_declared(base_);
  if (Checked bounds = check_bounds(declared); !bounds) return bounds;
  plan_ = layout::plan(declared.elements, declared.fragment_elements, declared.tensor_count, declared.names_bytes);
  if (Checked same = check_plan(declared, plan_, mapped_bytes_); !same) return same;
  if (!layout::is_window(plan_, declared.window_bytes))
    return bad(fmt::format("window_bytes is {}; it must be 0, or the size of whole fragments of at least {} elements",
                           declared.window_bytes, layout::page_bytes / sizeof(float)));
  window_bytes_ = declared.window_bytes;
  if (declared.buffers_in > static_cast<std::uint64_t>(layout::BuffersIn::device))
    return bad(fmt::format("buffers_in is {}; it must be 0, in this memory, or 1, in a GPU's", declared.buffers_in));
  on_device_ = declared.buffers_in == static_cast<std::uint64_t>(layout::BuffersIn::device);
  if (on_device_ && lean()) return bad("window_bytes must be 0 where the buffers are in a GPU's memory");
  const std::uint64_t needed = lean() || on_device_ ? plan_.buffers_offset : layout::most_bytes(plan_, 0);
  if (Checked taken = check_pages(memfd_.get(), needed); !taken) return taken;
  if (auto objected = objection(most_bytes())) return cannot_attach(AttachStatus::limit_reached, *std::move(objected));
  if (!lean()) memfd_.reset();
  elements_ = declared.elements;
  fragment_elements_ = declared.fragment_elements;

  if (std::memchr(declared.job, 0, sizeof declared.job) == nullptr) return bad("the job's name does not end");
  job_ = declared.job;
  if (!layout::is_job_name(job_)) return bad(fmt::format("the job's name must be {}", layout::job_name_form));
  key_ = {job_name_hash(job_), declared.layout_hash};
  if ((declared.flags & ~(layout::flag_keeps | layout::flags_parts)) != 0)
    return bad(fmt::format("flags is {:#x}, which this daemon does not know: it is older than the client library",
                           declared.flags));
  kind_.keeps = (declared.flags & layout::flag_keeps) != 0;
  kind_.parts = std::max<std::uint32_t>(1, (declared.flags & layout::flags_parts) >> layout::flags_parts_shift);
  if (Checked settings = take_settings(declared.settings_bytes); !settings) return settings;
  if (Checked tensors = check_tensors(declared.tensor_count, declared.layout_hash); !tensors) return tensors;
  return check_words(load_words());
}

Checked ClientMemory::take_settings(std::uint64_t bytes) {
  if (bytes > layout::max_settings_bytes)
    return bad(fmt::format("settings_bytes is {}; at most {} are allowed", bytes, layout::max_settings_bytes));
  std::string text(bytes, '\0');
  copy_once(text.data(), base_ + layout::settings_offset, bytes);
  settings_ = settings_in(text);
  JobSettings sorted{.version = 1, .values = settings_};
  std::ranges::sort(sorted.values);
  if (const auto fault = fault_of(sorted)) {
    return bad(
        fmt::format("settings: {}; they are NAME=VALUE each, with a name of {} letters, digits and '_' at most and "
                    "a value of {} bytes at most, and no name twice",
                    *fault, max_setting_name_bytes, max_setting_value_bytes));
  }
  return {};
}

std::vector<std::uint64_t> ClientMemory::load_words() const {
  std::vector<std::uint64_t> words(fragment_count());
  for (std::uint32_t f = 0; f < words.size(); ++f)
    words[f] = entry(f).word.load(std::memory_order_acquire);
  return words;
}

Checked ClientMemory::check_words(std::span<const std::uint64_t> words) const {
  GOSSAMER_CHECK(words.size() == fragment_count());
  std::uint32_t occupied = 0;
  for (std::uint32_t f = 0; f < fragment_count(); ++f) {
    const layout::Word word = layout::Word::unpack(words[f]);
    if (!word.valid()) {
      return bad(
          fmt::format("the word of fragment {} is not valid: the memory was overwritten, or is of another "
                      "version; start the process anew",
                      f));
    }
    if (word.empty && !lean())
      return bad(fmt::format("the word of fragment {} says that it is empty, but the memory is not lean", f));
    occupied += word.vacant() ? 0 : 1;
  }
  if (lean() && occupied > window_fragments())
    return bad(fmt::format("{} fragments are not empty; window_bytes allows {}", occupied, window_fragments()));
  return {};
}

std::uint32_t ClientMemory::window_fragments() const {
  return static_cast<std::uint32_t>(window_bytes_ / layout::fragment_bytes(plan_));
}

int ClientMemory::provide(std::uint32_t fragment) const {
  GOSSAMER_CHECK(lean() && fragment < fragment_count());
  const std::uint64_t offset = layout::buffer_offset(plan_, fragment, 0);
  const std::uint64_t size_bytes = layout::fragment_bytes(plan_);
  if (::fallocate(memfd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(size_bytes)) != 0) {
    const int error = errno;
    vacate(fragment);  // gives back what was taken before the failure
    return error;
  }
  // The pages are zeroed and mapped here, so that kernels and the client's step need not do it page by page. Kernels
  // before 5.14 do not know this call.
  (void)::madvise(base_ + offset, size_bytes, MADV_POPULATE_WRITE);
  return 0;
}

void ClientMemory::vacate(std::uint32_t first, std::uint32_t count) const {
  GOSSAMER_CHECK(lean() && first < fragment_count() && count <= fragment_count() - first);
  const std::uint64_t offset = layout::buffer_offset(plan_, first, 0);
  const std::uint64_t size_bytes = count * layout::fragment_bytes(plan_);
  // This fails only if the kernel lacks memory for its own tables. The pages then stay until the next call.
  (void)::fallocate(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(size_bytes));
}

void ClientMemory::vacate_unused() const {
  std::uint32_t first = 0;
  for (std::uint32_t f = 0; f <= fragment_count(); ++f) {
    if (f < fragment_count() && load_word(f).vacant()) continue;
    if (f > first) vacate(first, f - first);
    first = f + 1;
  }
}

Checked ClientMemory::check_tensors(std::uint32_t tensor_count, std::uint64_t declared_hash) {
  std::vector<TensorEntry> entries(tensor_count);
  copy_once(entries.data(), base_ + plan_.tensors_offset, entries.size() * sizeof(TensorEntry));
  std::string names(plan_.names_bytes, '\0');
  copy_once(names.data(), base_ + plan_.names_offset, names.size());

  std::vector<layout::TensorDescription> descriptions;
  descriptions.reserve(tensor_count);
  std::uint64_t next_element = 0;
  for (std::uint32_t i = 0; i < tensor_count; ++i) {
    const TensorEntry& entry = entries[i];
    const std::uint64_t name_begin = entry.name_offset - plan_.names_offset;  // may wrap to a number that is too large
    if (entry.name_offset < plan_.names_offset || name_begin > names.size() ||
        entry.name_bytes > names.size() - name_begin)
      return bad(fmt::format("tensor {}: its name lies outside the names", i));
    const std::string_view name = std::string_view(names).substr(name_begin, entry.name_bytes);
    if (Checked tensor = check_tensor(entry, i, name, next_element); !tensor) return tensor;
    const bool buffer = static_cast<layout::Role>(entry.role) == layout::Role::buffer;
    if (buffer) statistics_.emplace_back(entry.first_element, entry.first_element + entry.elements);
    if (static_cast<layout::Role>(entry.role) != layout::Role::local) {
      model_.push_back({.name = std::string(name),
                        .shape = {entry.shape, entry.shape + entry.dimensions},
                        .elements = entry.elements,
                        .may_be_missing = buffer && name.ends_with(second_moment_suffix)});
    }
    descriptions.push_back({name, static_cast<layout::Dtype>(entry.dtype), static_cast<layout::Role>(entry.role),
                            std::span(entry.shape, entry.dimensions)});
  }
  if (next_element != elements_)
    return bad(fmt::format("the mixed tensors have {} elements together, the header says {}", next_element, elements_));
  const std::uint64_t hash = layout::layout_hash(fragment_elements_, descriptions);
  if (hash != declared_hash)
    return bad(fmt::format("layout_hash is {:016x}; the tensors give {:016x}", declared_hash, hash));
  return {};
}

std::vector<LayoutTensor> ClientMemory::tensors(std::uint32_t first, std::size_t most) const {
  std::vector<LayoutTensor> tensors;
  for (std::uint32_t i = first; i < tensor_count() && tensors.size() < most; ++i) {
    TensorEntry entry;
    copy_once(&entry, base_ + plan_.tensors_offset + i * sizeof entry, sizeof entry);
    const std::uint64_t name_begin = entry.name_offset - plan_.names_offset;
    if (entry.name_offset < plan_.names_offset || entry.name_bytes > layout::max_name_bytes ||
        name_begin > plan_.names_bytes || entry.name_bytes > plan_.names_bytes - name_begin)
      return {};
    std::string name(entry.name_bytes, '\0');
    copy_once(name.data(), base_ + entry.name_offset, name.size());
    std::uint64_t ignored = entry.first_element;
    if (!check_tensor(entry, i, name, ignored)) return {};
    tensors.push_back({.name = std::move(name),
                       .dtype = entry.dtype,
                       .role = entry.role,
                       .shape = {entry.shape, entry.shape + entry.dimensions}});
  }
  return tensors;
}

std::vector<gossip::ElementRange> ClientMemory::statistics(std::uint32_t fragment) const {
  const std::uint64_t begin = std::uint64_t{fragment} * fragment_elements_;
  const std::uint64_t end = begin + fragment_elements_;
  std::vector<gossip::ElementRange> ranges;
  for (const auto& [first, last] : statistics_) {
    const std::uint64_t from = std::max(first, begin);
    const std::uint64_t to = std::min(last, end);
    if (from < to)
      ranges.emplace_back(static_cast<std::uint32_t>(from - begin), static_cast<std::uint32_t>(to - begin));
  }
  return ranges;
}

std::uint32_t ClientMemory::padded_elements(std::uint32_t fragment) const {
  GOSSAMER_CHECK(fragment < fragment_count());
  const std::uint64_t left = elements_ - std::uint64_t{fragment} * fragment_elements_;
  const std::uint64_t used = std::min<std::uint64_t>(left, fragment_elements_);
  return static_cast<std::uint32_t>((used + block_elements - 1) / block_elements * block_elements);
}

std::uint32_t ClientMemory::block_count(std::uint32_t fragment) const {
  return padded_elements(fragment) / static_cast<std::uint32_t>(block_elements);
}

float* ClientMemory::buffer(std::uint32_t fragment, std::uint8_t index) const {
  GOSSAMER_CHECK(fragment < fragment_count() && index < layout::buffers_per_fragment);
  if (!on_device_) return reinterpret_cast<float*>(base_ + layout::buffer_offset(plan_, fragment, index));
  GOSSAMER_CHECK(shared_ != nullptr);
  return shared_->begin() + layout::device_offset(plan_, fragment, index) / sizeof(float);
}

void ClientMemory::share(std::shared_ptr<const DeviceMemory> with) {
  GOSSAMER_CHECK(!on_device_ || with->bytes() >= device_bytes());
  shared_ = std::move(with);
}

const gossip::Device& ClientMemory::device() const {
  GOSSAMER_CHECK(!on_device_ || shared_ != nullptr);
  return on_device_ ? shared_->device() : gossip::processor();
}

bool ClientMemory::reached_by(const gossip::Device& device) const {
  return &device == &this->device() || (shared_ != nullptr && &device == &shared_->device());
}

std::span<std::byte> ClientMemory::host_buffers() const {
  return {base_ + plan_.buffers_offset, layout::align_to_page(layout::device_bytes(plan_))};
}

layout::FragmentEntry& ClientMemory::entry(std::uint32_t fragment) const {
  GOSSAMER_CHECK(fragment < fragment_count());
  return reinterpret_cast<layout::FragmentEntry*>(base_ + plan_.fragments_offset)[fragment];
}

layout::Word ClientMemory::load_word(std::uint32_t fragment) const {
  return layout::Word::unpack(entry(fragment).word.load(std::memory_order_acquire));
}

void ClientMemory::store_word(std::uint32_t fragment, layout::Word word) {
  GOSSAMER_CHECK(word.valid());
  entry(fragment).word.store(word.pack(), std::memory_order_release);
}

bool ClientMemory::recall_word(std::uint32_t fragment, layout::Word due, layout::Word owned) {
  std::uint64_t bits = due.pack();
  return entry(fragment).word.compare_exchange_strong(bits, owned.pack(), std::memory_order_acq_rel);
}

std::uint64_t ClientMemory::publication_clock(std::uint32_t fragment) const {
  const std::uint64_t clock = entry(fragment).publication_clock.load(std::memory_order_relaxed);
  return std::min(clock, layout::max_clock_samples);  // the word was loaded before this, with acquire
}

std::optional<gossip::CopyReceipt> ClientMemory::receipt(std::uint32_t fragment, std::uint32_t generation) const {
  const layout::Receipt& kept = entry(fragment).receipts[generation % 2];
  const auto mark = layout::ReceiptMark::unpack(kept.mark.load(std::memory_order_acquire));
  const std::uint64_t number = kept.number.load(std::memory_order_relaxed);
  if (number == 0 || number > max_receipt_number || mark.generation != generation) return std::nullopt;
  return gossip::CopyReceipt{.generation = generation,
                             .number = number,
                             .corrected = mark.corrected,
                             .alone = mark.alone,
                             .replaced = mark.replaced};
}
void ClientMemory::store_receipt(std::uint32_t fragment, const gossip::CopyReceipt& receipt) {
  layout::Receipt& kept = entry(fragment).receipts[receipt.generation % 2];
  const layout::ReceiptMark mark{.generation = receipt.generation,
                                 .corrected = receipt.corrected,
                                 .alone = receipt.alone,
                                 .replaced = receipt.replaced};
  // The number is stored first: until the mark follows, the old mark names a publication that nobody asks for any more.
  kept.number.store(receipt.number, std::memory_order_release);
  kept.mark.store(mark.pack(), std::memory_order_release);
}

std::uint64_t ClientMemory::clock() const {
  return std::min(header().clock.load(std::memory_order_relaxed), layout::max_clock_samples);
}
std::vector<std::byte> ClientMemory::own_cursor() const {
  return layout::load_slot(header().own_cursor, base_ + layout::cursors_offset);
}
std::vector<std::byte> ClientMemory::job_cursor() const {
  return layout::load_slot(header().job_cursor, base_ + layout::cursors_offset + 2 * layout::slot_bytes);
}
void ClientMemory::set_job_cursor(std::span<const std::byte> cursor) {
  layout::store_slot(header().job_cursor, base_ + layout::cursors_offset + 2 * layout::slot_bytes, cursor);
}

void ClientMemory::set_statistics(const Statistics& statistics) {
  constexpr auto order = std::memory_order_relaxed;
  Header& h = header();
  h.heartbeat.store(h.heartbeat.load(order) + 1, order);
  h.global_clock.store(statistics.global_clock, order);
  h.neighbours.store(statistics.neighbours, order);
  h.exchanges.store(statistics.exchanges, order);
  h.bytes_sent.store(statistics.bytes_sent, order);
  h.bytes_received.store(statistics.bytes_received, order);
  h.consensus.store(std::bit_cast<std::uint64_t>(statistics.consensus), order);
  h.age_samples.store(statistics.age_samples, order);
  h.unresolved.store(statistics.unresolved, order);
  h.quarantines.store(statistics.quarantines, order);
  h.period_us.store(static_cast<std::uint64_t>(statistics.period_us), order);
  h.pulled_bytes.store(statistics.pulled_bytes, order);
}

void ClientMemory::set_method(const layout::MethodWord& method, double outer_momentum) {
  header().outer_momentum.store(std::bit_cast<std::uint64_t>(outer_momentum), std::memory_order_relaxed);
  header().method.store(method.pack(), std::memory_order_relaxed);
}

void ClientMemory::set_finish_answer(const layout::FinishAnswer& answer, double distance, std::uint64_t clock) {
  header().global_clock.store(clock, std::memory_order_relaxed);
  header().finish_distance.store(std::bit_cast<std::uint64_t>(distance), std::memory_order_relaxed);
  header().finish_answer.store(answer.pack(), std::memory_order_release);
}
void ClientMemory::set_place(std::uint32_t index, std::uint32_t count) {
  header().place.store(std::uint64_t{count} << 32 | index, std::memory_order_relaxed);
}
ClientMemory::Place ClientMemory::place() const {
  const std::uint64_t bits = header().place.load(std::memory_order_relaxed);
  return {.index = static_cast<std::uint32_t>(bits), .count = static_cast<std::uint32_t>(bits >> 32)};
}
void ClientMemory::set_members(std::span<const NodeId> members) {
  static_assert(sizeof(NodeId) * layout::max_members == layout::slot_bytes);
  const auto told = members.first(std::min(members.size(), layout::max_members));
  layout::store_slot(header().members, base_ + layout::members_offset, std::as_bytes(told));
}

std::uint64_t ClientMemory::clock_base() const {
  return std::min(header().clock_base.load(std::memory_order_relaxed), layout::max_clock_samples);
}

}  // namespace gossamer::daemon
