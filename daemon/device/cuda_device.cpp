#include "daemon/device/cuda_device.hpp"

#include <dlfcn.h>

#include <array>
#include <utility>

#include "daemon/device/arrays.hpp"
#include "gossip/check.hpp"
#include "gossip/codec/lattice_parts.hpp"

namespace gossamer::device {
namespace {

std::uint8_t* octets(std::span<std::byte> bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes.data());
}
const std::uint8_t* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}
Blocks list_of(std::span<const std::uint32_t> blocks) {
  return {blocks.data(), static_cast<std::uint32_t>(blocks.size())};
}

/// Calls a function of the plug-in. An error is the plug-in's text.
template <class... Parameters, class... Arguments>
std::expected<void, std::string> ask_plugin(Status (*function)(Parameters...), Arguments... arguments) {
  std::array<char, 512> error{};
  if (function(arguments..., error.data(), error.size()) == Status::done) return {};
  return std::unexpected(std::string(error.data()));
}

}  // namespace

std::string uuid_text(std::span<const std::uint8_t, 16> uuid) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[uuid[i] >> 4];
    text += digits[uuid[i] & 15];
  }
  return text;
}

std::filesystem::path Plugin::usual_path() {
  std::error_code error;
  const std::filesystem::path installed = GOSSAMER_PLUGIN_PATH;
  if (std::filesystem::exists(installed, error)) return installed;
  // In a Python wheel, the plug-in is in the folder above the program's.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside = program.parent_path().parent_path() / installed.filename();
  return !error && std::filesystem::exists(beside, error) ? beside : installed;
}

std::expected<Plugin, std::string> Plugin::load(const std::filesystem::path& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return std::unexpected(std::string(dlerror()) +
                           ": GPUs need the plug-in, the component gossamer-cuda of the same version");
  }
  const auto entry = reinterpret_cast<PluginEntry>(dlsym(handle, plugin_symbol));
  const PluginTable* const table = entry == nullptr ? nullptr : entry();
  // Version and size are checked before anything else. They stand first in the table of every version.
  if (table == nullptr || table->version != plugin_version || table->size_bytes != sizeof(PluginTable)) {
    dlclose(handle);
    return std::unexpected(path.string() +
                           " is not the plug-in of this gossamerd: install gossamer and gossamer-cuda "
                           "in the same version");
  }
  return Plugin(*table);
}

std::expected<int, std::string> Plugin::count() const {
  std::int32_t devices = 0;
  if (auto done = ask_plugin(table_->count, &devices); !done) return std::unexpected(std::move(done.error()));
  return devices;
}

std::expected<DeviceInfo, std::string> Plugin::describe(int device) const {
  DeviceInfo info{};
  if (auto done = ask_plugin(table_->describe, device, &info); !done) return std::unexpected(std::move(done.error()));
  return info;
}

std::expected<std::unique_ptr<CudaDevice>, std::string> CudaDevice::open(const Plugin& plugin, int device) {
  const auto info = plugin.describe(device);
  if (!info) return std::unexpected(info.error());
  Context* context = nullptr;
  if (auto opened = ask_plugin(plugin.table().open, device, max_streams, &context); !opened)
    return std::unexpected(std::move(opened.error()));
  return std::unique_ptr<CudaDevice>(new CudaDevice(plugin, *context, info->name));
}

CudaDevice::CudaDevice(const Plugin& plugin, Context& context, std::string name)
    : table_(plugin.table()),
      context_(&context),
      name_(std::move(name)),
      overflow_({.pin =
                     [this](std::span<std::byte> memory) {
                       const auto pinned = ask_plugin(table_.pin, context_, memory.data(), memory.size());
                       return pinned ? std::string() : pinned.error();
                     },
                 .unpin = [this](std::byte* memory) { return table_.unpin(context_, memory) == Status::done; }},
                std::make_shared<HostAllowance>()) {}

CudaDevice::~CudaDevice() {
  overflow_.end_idle(failed_);
  (void)free_idle();
  table_.close(context_);
}

bool CudaDevice::went_well(Status status) const {
  if (status == Status::failed) failed_ = true;
  return status == Status::done;
}
bool CudaDevice::worked_well(Status status) const {
  calls_.fetch_add(1, std::memory_order_relaxed);
  return went_well(status);
}
double CudaDevice::taken_us() const {
  return turn_us * static_cast<double>(calls_.load(std::memory_order_relaxed));
}

gossip::Device::Floats CudaDevice::allocate(std::size_t elements) const {
  const std::size_t bytes = elements * sizeof(float);
  if (float* const kept = take_kept(bytes)) return Floats(kept, Release{this});
  void* memory = nullptr;
  Status status = table_.allocate(context_, bytes, &memory);
  if (status == Status::no_memory && free_idle()) status = table_.allocate(context_, bytes, &memory);
  (void)went_well(status);
  auto* array = static_cast<float*>(memory);
  if (status == Status::done) {
    const std::scoped_lock lock(kept_mutex_);
    kept_.add(array, bytes);
  } else if (status == Status::no_memory) {
    array = overflow_.take(bytes);
  }
  return Floats(array, Release{this});
}
float* CudaDevice::take_kept(std::size_t bytes) const {
  const std::scoped_lock lock(kept_mutex_);
  return kept_.take(bytes);
}
void CudaDevice::release(float* device_memory) const {
  if (overflow_.owns(device_memory)) {
    if (!overflow_.give_back(device_memory, !failed_))
      release_later([this, device_memory] { overflow_.end(device_memory); });
    return;
  }
  {
    const std::scoped_lock lock(kept_mutex_);
    if (!failed_ && kept_.keep(device_memory)) return;
  }
  release_later([this, device_memory] { free(device_memory); });
}
void CudaDevice::release_idle() const {
  for (float* const array : overflow_.release_idle())
    release_later([this, array] { overflow_.end(array); });
  for (float* const array : take_back(KeptArrays::Idle::stale))
    release_later([this, array] { free(array); });
}
std::vector<float*> CudaDevice::take_back(KeptArrays::Idle which) const {
  const std::scoped_lock lock(kept_mutex_);
  return kept_.take_back(which);
}
void CudaDevice::free(float* device_memory) const {
  {
    const std::scoped_lock lock(kept_mutex_);
    (void)kept_.end(device_memory);
  }
  (void)went_well(table_.release(context_, device_memory));
}
/// Frees all kept arrays at once. False: there were none.
bool CudaDevice::free_idle() const {
  const std::vector<float*> idle = take_back(KeptArrays::Idle::all);
  for (float* const array : idle)
    free(array);
  return !idle.empty();
}
void CudaDevice::release_later(std::move_only_function<void()> free) const {
  if (later_) return later_(std::move(free));
  free();
}

std::expected<CudaDevice::Mapping, std::string> CudaDevice::import(int descriptor, std::size_t bytes) const {
  void* memory = nullptr;
  if (auto done = ask_plugin(table_.import, context_, descriptor, bytes, &memory); !done)
    return std::unexpected(std::move(done.error()));
  return Mapping(static_cast<float*>(memory), Forget{this, bytes});
}
void CudaDevice::Forget::operator()(float* device_memory) const {
  // The result is ignored because nothing more can be done. A device that has failed says so at its next call.
  (void)device->table_.forget(device->context_, device_memory, bytes);
}

std::expected<CudaDevice::Pinned, std::string> CudaDevice::pin(std::span<std::byte> memory) const {
  if (auto done = ask_plugin(table_.pin, context_, memory.data(), memory.size()); !done)
    return std::unexpected(std::move(done.error()));
  return Pinned(memory.data(), Unpin{this});
}
void CudaDevice::Unpin::operator()(std::byte* memory) const {
  (void)device->table_.unpin(device->context_, memory);
}

bool CudaDevice::clear(float* device_memory, std::size_t elements) const {
  return worked_well(table_.clear(context_, device_memory, elements));
}
bool CudaDevice::upload(float* device_to, std::span<const float> from) const {
  return worked_well(table_.upload(context_, device_to, from.data(), from.size_bytes()));
}
bool CudaDevice::download(std::span<float> to, const float* device_from) const {
  return worked_well(table_.download(context_, to.data(), device_from, to.size_bytes()));
}
bool CudaDevice::copy(float* device_to, const float* device_from, std::size_t elements) const {
  return worked_well(table_.copy(context_, device_to, device_from, elements * sizeof(float)));
}

CudaDevice::Memory CudaDevice::memory() const {
  Memory memory;
  (void)went_well(table_.memory(context_, &memory.free_bytes, &memory.total_bytes));
  return memory;
}

bool CudaDevice::step(float* live, const float* correction, bool replace, float* snapshot,
                      std::uint32_t elements) const {
  return worked_well(table_.step(context_, live, correction, replace, snapshot, elements));
}

bool CudaDevice::encode(Codec codec, const gossip::FragmentView& y, std::span<const std::uint32_t> blocks,
                        std::uint64_t seed, std::span<std::int8_t> exponents, std::span<std::uint16_t> checks,
                        std::span<std::byte> values) const {
  gossip::parts::require_encode(codec, y, blocks, exponents, checks, values);
  return worked_well(
      table_.encode(context_, codec, &y, list_of(blocks), seed, exponents.data(), checks.data(), octets(values)));
}

bool CudaDevice::difference(Codec codec, const gossip::FragmentView& y, std::span<const std::uint32_t> blocks,
                            std::uint64_t seed, std::span<const std::int8_t> exponents,
                            std::span<const std::uint16_t> checks, std::span<const std::byte> values,
                            std::span<std::byte> differences, std::span<gossip::BlockOutcome> outcomes) const {
  gossip::parts::require_encode(codec, y, blocks, exponents, checks, values);
  gossip::parts::require_outcomes(codec, exponents, differences, {}, outcomes);
  GOSSAMER_CHECK(outcomes.size() == blocks.size());
  return worked_well(table_.difference(context_, codec, &y, list_of(blocks), seed, exponents.data(), checks.data(),
                                       octets(values), octets(differences), outcomes.data()));
}

bool CudaDevice::outcomes_of(Codec codec, std::span<const std::int8_t> exponents,
                             std::span<const std::byte> differences, std::span<const std::byte> wide,
                             std::span<gossip::BlockOutcome> outcomes) const {
  gossip::parts::require_outcomes(codec, exponents, differences, wide, outcomes);
  const auto* const bitmap = wide.empty() ? nullptr : octets(wide);
  return worked_well(table_.outcomes_of(context_, codec, static_cast<std::uint32_t>(outcomes.size()), exponents.data(),
                                        octets(differences), bitmap, outcomes.data()));
}

bool CudaDevice::apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
                       std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                       std::size_t block_count, const float* in, float* out) const {
  gossip::parts::require_apply(codec, shift, sign, blocks, exponents, differences, block_count);
  return worked_well(table_.apply(context_, codec, shift, sign, list_of(blocks), exponents.data(), octets(differences),
                                  static_cast<std::uint32_t>(block_count), in, out));
}

bool CudaDevice::sum(const gossip::FragmentView& y, std::size_t block_count, float* out) const {
  GOSSAMER_CHECK(y.publication != nullptr && block_count <= max_fragment_blocks);
  return worked_well(table_.sum(context_, &y, static_cast<std::uint32_t>(block_count), out));
}

bool CudaDevice::outer_step(const gossip::OuterOptions& options, const gossip::OuterFragment& fragment) const {
  const auto left_out = bounds_of(fragment.left_out);
  const auto outer = arrays_of(options, fragment, left_out);
  return worked_well(table_.outer_step(context_, &outer, static_cast<std::uint32_t>(fragment.block_count)));
}

bool CudaDevice::local_mean(std::span<const gossip::ClientFragment> clients, std::span<float> y,
                            std::span<gossip::LocalMeanOutcome> outcomes) const {
  GOSSAMER_CHECK(y.size() % block_elements == 0);
  GOSSAMER_CHECK(outcomes.size() == clients.size());
  std::vector<gossip::cuda::ClientArrays> arrays;
  arrays.reserve(clients.size());
  for (const gossip::ClientFragment& client : clients) {
    GOSSAMER_CHECK(client.device == nullptr || client.device == this);
    arrays.push_back(arrays_of(client));
  }
  std::vector<std::uint32_t> found(clients.size());
  const auto blocks = static_cast<std::uint32_t>(y.size() / block_elements);
  if (!worked_well(table_.local_mean(context_, arrays.data(), static_cast<std::uint32_t>(arrays.size()), y.data(),
                                     blocks, found.data()))) {
    return false;
  }
  for (std::size_t c = 0; c < clients.size(); ++c) {
    outcomes[c] = {.finite = (found[c] & gossip::cuda::mean_not_finite) == 0,
                   .moved = (found[c] & gossip::cuda::mean_moved) != 0,
                   .differs = (found[c] & gossip::cuda::mean_differs) != 0};
  }
  return true;
}

}  // namespace gossamer::device
