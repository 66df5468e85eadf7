#include "daemon/clients/node_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/clients/reply_records.hpp"
#include "gossip/check.hpp"
#include "gossip/job_settings.hpp"

namespace gossamer::daemon {

namespace {

constexpr std::uint64_t magic = 0x3265646f6e6d6167;  // "gamnode2"
constexpr std::size_t page_bytes = 4096;
constexpr mode_t only_ours = 0600;
/// How many replies may await an acknowledgement at once: two for each fragment, within these bounds.
constexpr std::uint32_t least_record_places = 16;
constexpr std::uint32_t most_record_places = 32;
/// Numbers of copies begin with the daemon's incarnation, a time of day in microseconds, so they stay below this.
constexpr std::uint64_t most_number = std::uint64_t{1} << 62;

constexpr std::uint64_t to_pages(std::uint64_t bytes) {
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

/// Opens the same file again. Empty where /proc is missing.
FileDescriptor open_again(int fd, int access) {
  return FileDescriptor(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), access | O_CLOEXEC));
}

/// The bits of a copy's word: bit 0 gathered, bit 1 the buffer that counts, bits 9 to 31 commits.
constexpr unsigned commits_shift = 9;

}  // namespace

/// All members are 0 in memory that no daemon has used yet.
struct NodeMemory::Header {
  std::uint64_t magic;
  JobKey job;
  std::uint32_t fragment_elements;
  std::uint32_t fragment_count;
  std::atomic<std::uint64_t> holder;
};

struct alignas(64) NodeMemory::Entry {
  struct OwnHalf {
    std::atomic<std::uint64_t> counter;  ///< the exchange's counter; 0: none
    std::atomic<std::uint64_t> commits;  ///< gossip::OwnHalf::commits; stored before the word with these commits
  };
  std::atomic<std::uint64_t> word;        ///< the copy's word
  std::atomic<std::uint64_t> numbers[2];  ///< the numbers of its buffers; stored before the word
  OwnHalf own_halves[2];
  struct Gap {
    std::atomic<std::uint64_t> newest;
    std::atomic<std::uint64_t> begun;  ///< 0: no gap
  };
  Gap gaps[4];
};

struct NodeMemory::GivenUpPage {
  std::atomic<std::uint64_t> floor;  ///< exchanges up to this counter are not known; 0: none began
  std::atomic<std::uint64_t> counters[gossip::GivenUp::most];  ///< 0: none
};

/// Two slots, of which one counts. The other is written first; then one store makes it count.
struct NodeMemory::SettingsPages {
  struct Slot {
    std::uint64_t version;
    NodeId author;
    std::uint64_t bytes;
    char text[page_bytes - 32 - 64];
    std::array<std::uint8_t, 64> signature;  ///< zeros: none
  };
  Slot slots[2];
  std::atomic<std::uint32_t> counts;  ///< 0: none; else 1 more than the index
  char rest[page_bytes - sizeof(std::atomic<std::uint32_t>)];
};

bool take_pages(std::span<std::byte> bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / page_bytes * page_bytes;
  const auto end = to_pages(reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size());
  if (::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) == 0) return true;
  return errno == EINVAL;  // kernels before 5.14 do not know the call
}

NodeMemory::Plan NodeMemory::plan(const Shape& shape) {
  static_assert(sizeof(Header) <= page_bytes && sizeof(GivenUpPage) == page_bytes && sizeof(Entry) == 128);
  static_assert(sizeof(SettingsPages) == 3 * page_bytes);
  static_assert(sizeof(SettingsPages::Slot::text) >=
                max_job_settings * (max_setting_name_bytes + max_setting_value_bytes + sizeof("=")));
  Plan p{};
  p.given_up_offset = page_bytes + to_pages(std::uint64_t{shape.fragment_count} * sizeof(Entry));
  p.settings_offset = p.given_up_offset + sizeof(GivenUpPage);
  p.records_offset = p.settings_offset + sizeof(SettingsPages);
  p.record_places = std::clamp(2 * shape.fragment_count, least_record_places, most_record_places);
  p.record_stride = to_pages(most_record_bytes(shape.fragment_elements / static_cast<std::uint32_t>(block_elements)));
  p.buffers_offset = p.records_offset + p.record_places * p.record_stride;
  p.buffer_stride = std::uint64_t{shape.fragment_elements} * sizeof(float);
  p.total_bytes = to_pages(p.buffers_offset + 2 * p.buffer_stride * shape.fragment_count);
  return p;
}

NodeMemory::Shape NodeMemory::shape_of(const ClientMemory& memory) {
  return {
      .job = memory.key(), .fragment_elements = memory.fragment_elements(), .fragment_count = memory.fragment_count()};
}

std::expected<std::shared_ptr<NodeMemory>, std::string> NodeMemory::make(const Shape& shape) {
  const auto failed = [](const char* what) {
    return std::unexpected(fmt::format("{}: {}", what, std::strerror(errno)));
  };
  std::shared_ptr<NodeMemory> memory(new NodeMemory(shape));
  const FileDescriptor memfd(::memfd_create("gossamer-node", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd) return failed("no memory can be made for what the node keeps of a job");
  // The tables' pages are taken now, so that storing there never lacks memory.
  if (::fchmod(memfd.get(), only_ours) != 0 ||
      ::ftruncate(memfd.get(), static_cast<off_t>(memory->plan_.total_bytes)) != 0 ||
      ::fallocate(memfd.get(), 0, 0, static_cast<off_t>(memory->plan_.records_offset)) != 0 ||
      ::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 || !memory->map(memfd.get()))
    return failed("there is no memory for what the node keeps of a job");
  Header& header = memory->header();
  header.job = shape.job;
  header.fragment_elements = shape.fragment_elements;
  header.fragment_count = shape.fragment_count;
  header.magic = magic;
  return memory;
}

std::shared_ptr<NodeMemory> NodeMemory::take_back(FileDescriptor kept, const Shape& shape) {
  std::shared_ptr<NodeMemory> memory(new NodeMemory(shape));
  struct stat file {};
  struct statfs system {};
  constexpr int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
  // Only this user, or a privileged one, can have made such a file.
  if (::fstat(kept.get(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != ::geteuid() ||
      (file.st_mode & ~S_IFMT) != only_ours || file.st_size != static_cast<off_t>(memory->plan_.total_bytes))
    return nullptr;
  if (::fstatfs(kept.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) return nullptr;
  if (const int seals = ::fcntl(kept.get(), F_GET_SEALS); seals < 0 || (seals & sealed) != sealed) return nullptr;
  const FileDescriptor writable = open_again(kept.get(), O_RDWR);
  if (!memory->map(writable ? writable.get() : kept.get())) return nullptr;
  const Header& header = memory->header();
  if (header.magic != magic || header.job != shape.job || header.fragment_elements != shape.fragment_elements ||
      header.fragment_count != shape.fragment_count)
    return nullptr;
  return memory;
}

bool NodeMemory::map(int memfd) {
  void* base = ::mmap(nullptr, plan_.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (base == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(base);
  to_keep_ = open_again(memfd, O_RDONLY);
  if (!to_keep_) to_keep_ = FileDescriptor(::fcntl(memfd, F_DUPFD_CLOEXEC, 0));
  return static_cast<bool>(to_keep_);
}

NodeMemory::~NodeMemory() {
  if (base_ != nullptr) ::munmap(base_, plan_.total_bytes);
}

NodeMemory::Header& NodeMemory::header() const {
  return *reinterpret_cast<Header*>(base_);
}
NodeMemory::Entry& NodeMemory::entry(std::uint32_t f) const {
  GOSSAMER_CHECK(f < shape_.fragment_count);
  return reinterpret_cast<Entry*>(base_ + page_bytes)[f];
}
NodeMemory::GivenUpPage& NodeMemory::given_up_page() const {
  return *reinterpret_cast<GivenUpPage*>(base_ + plan_.given_up_offset);
}
NodeMemory::SettingsPages& NodeMemory::settings_pages() const {
  return *reinterpret_cast<SettingsPages*>(base_ + plan_.settings_offset);
}

std::uint64_t NodeMemory::holder() const {
  return header().holder.load(std::memory_order_relaxed);
}
void NodeMemory::set_holder(std::uint64_t inode) {
  header().holder.store(inode, std::memory_order_release);
}

// --- exchanges ----------------------------------------------------------------------------------------------------

gossip::OwnHalves NodeMemory::own_halves(std::uint32_t f) const {
  gossip::OwnHalves halves;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const Entry::OwnHalf& stored = entry(f).own_halves[i];
    const std::uint64_t commits = stored.commits.load(std::memory_order_acquire);
    halves[i] = {stored.counter.load(std::memory_order_relaxed),
                 static_cast<std::uint32_t>(std::min<std::uint64_t>(commits, gossip::commits_modulus))};
  }
  return halves;
}

void NodeMemory::store_own_halves(std::uint32_t f, const gossip::OwnHalves& halves) {
  for (std::size_t i = 0; i < halves.size(); ++i) {
    Entry::OwnHalf& stored = entry(f).own_halves[i];
    if (stored.counter.load(std::memory_order_relaxed) != halves[i].counter) {
      stored.counter.store(0, std::memory_order_release);  // invalid until both numbers are stored
      stored.commits.store(halves[i].commits, std::memory_order_release);
      stored.counter.store(halves[i].counter, std::memory_order_release);
    } else {
      stored.commits.store(halves[i].commits, std::memory_order_release);
    }
  }
}

std::optional<gossip::GivenUp> NodeMemory::given_up() const {
  gossip::GivenUp given_up{.floor = given_up_page().floor.load(std::memory_order_acquire)};
  if (given_up.floor == 0) return std::nullopt;
  for (const auto& counter : given_up_page().counters) {
    if (const std::uint64_t read = counter.load(std::memory_order_relaxed); read > given_up.floor)
      given_up.counters.insert(read);
  }
  return given_up;
}

void NodeMemory::store_given_up(std::uint64_t counter) {
  GivenUpPage& page = given_up_page();
  const auto read = [](const auto& kept) { return kept.load(std::memory_order_relaxed); };
  if (std::ranges::find(page.counters, counter, read) != std::end(page.counters)) return;
  auto* const smallest = std::ranges::min_element(page.counters, {}, read);
  const std::uint64_t evicted = smallest->load(std::memory_order_relaxed);
  if (evicted > page.floor.load(std::memory_order_relaxed)) page.floor.store(evicted, std::memory_order_release);
  smallest->store(counter, std::memory_order_release);
}

void NodeMemory::begin_given_up(const gossip::GivenUp& given_up) {
  GivenUpPage& page = given_up_page();
  if (page.floor.load(std::memory_order_relaxed) != given_up.floor) {
    for (auto& counter : page.counters)
      counter.store(0, std::memory_order_relaxed);
    page.floor.store(given_up.floor, std::memory_order_release);
  }
}

JobSettings NodeMemory::settings() const {
  const SettingsPages& pages = settings_pages();
  const std::uint32_t counts = pages.counts.load(std::memory_order_acquire);
  if (counts == 0 || counts > std::size(pages.slots)) return {};
  const SettingsPages::Slot& slot = pages.slots[counts - 1];
  const std::string_view text(slot.text, std::min<std::size_t>(slot.bytes, sizeof(slot.text)));
  JobSettings settings{.version = slot.version, .author = slot.author, .values = settings_in(text)};
  if (slot.signature != decltype(slot.signature){}) settings.signature = slot.signature;
  return fault_of(settings) ? JobSettings{} : settings;
}

void NodeMemory::store_settings(const JobSettings& settings) {
  const std::string text = settings_text(settings.values);
  SettingsPages& pages = settings_pages();
  const std::uint32_t next = pages.counts.load(std::memory_order_relaxed) == 1 ? 2 : 1;
  SettingsPages::Slot& slot = pages.slots[next - 1];
  GOSSAMER_CHECK(text.size() <= sizeof(slot.text));  // follows from the limits of gossip/messages.hpp
  slot.version = settings.version;
  slot.author = settings.author;
  slot.bytes = text.size();
  std::ranges::copy(text, slot.text);
  slot.signature = settings.signature.value_or(decltype(slot.signature){});
  pages.counts.store(next, std::memory_order_release);
}

std::span<std::byte> NodeMemory::record(std::uint32_t place) const {
  GOSSAMER_CHECK(place < plan_.record_places);
  return {base_ + plan_.records_offset + place * plan_.record_stride, plan_.record_stride};
}

// --- the copy -----------------------------------------------------------------------------------------------------

std::optional<NodeMemory::Copy> NodeMemory::copy(std::uint32_t f) const {
  const std::uint64_t word = entry(f).word.load(std::memory_order_acquire);
  if ((word & 1) == 0) return std::nullopt;
  Copy copy{.buffer = static_cast<std::uint8_t>(word >> 1 & 1),
            .commits = static_cast<std::uint32_t>(word >> commits_shift) % gossip::commits_modulus};
  copy.number = std::min(entry(f).numbers[copy.buffer].load(std::memory_order_relaxed), most_number);
  return copy;
}

void NodeMemory::store_copy(std::uint32_t f, const Copy& copy) {
  entry(f).numbers[copy.buffer].store(copy.number, std::memory_order_release);
  entry(f).word.store(1 | std::uint64_t{copy.buffer} << 1 | std::uint64_t{copy.commits} << commits_shift,
                      std::memory_order_release);
}

std::vector<gossip::Gap> NodeMemory::gaps(std::uint32_t f) const {
  std::vector<gossip::Gap> gaps;
  for (const Entry::Gap& gap : entry(f).gaps) {
    const std::uint64_t begun = gap.begun.load(std::memory_order_acquire);
    if (begun != 0) gaps.push_back({gap.newest.load(std::memory_order_relaxed), begun});
  }
  return gaps;
}

void NodeMemory::add_gap(std::uint32_t f, const gossip::Gap& gap) {
  auto& stored = entry(f).gaps;
  // A gap after the same copy is made wider: daemons died one after the other before they took anything in.
  auto* at = std::ranges::find_if(stored, [&](const Entry::Gap& one) {
    return one.begun.load(std::memory_order_relaxed) != 0 && one.newest.load(std::memory_order_relaxed) == gap.newest;
  });
  if (at == std::end(stored)) {
    at = std::ranges::min_element(stored, {}, [](const Entry::Gap& one) { return one.begun.load(); });
    at->begun.store(0, std::memory_order_release);
    at->newest.store(gap.newest, std::memory_order_release);
  }
  at->begun.store(gap.begun, std::memory_order_release);
}

void NodeMemory::clear_copy(std::uint32_t f) {
  entry(f).word.store(0, std::memory_order_release);
}

float* NodeMemory::buffer(std::uint32_t f, std::uint8_t index) const {
  GOSSAMER_CHECK(f < shape_.fragment_count && index < 2);
  return reinterpret_cast<float*>(base_ + plan_.buffers_offset + (2 * std::uint64_t{f} + index) * plan_.buffer_stride);
}

bool NodeMemory::take_buffers(std::uint32_t f) const {
  return take_pages({reinterpret_cast<std::byte*>(buffer(f, 0)), 2 * plan_.buffer_stride});
}

}  // namespace gossamer::daemon
