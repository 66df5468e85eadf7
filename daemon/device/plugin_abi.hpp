// The interface between gossamerd and the plug-in libgossamer_cuda.so: one function of C that returns a table of
// functions. The daemon needs neither CUDA nor a GPU to be built or started. The plug-in contains the CUDA runtime,
// linked statically, and needs the driver when it is used.
//
// Conventions. Every function returns a Status. After `failed`, `error(context)` says why until the next failure, and
// the context can only be closed. Several threads may call functions on one context. No exception crosses the boundary.
// Pointers named `device_…` point to the device's memory, all others to the host's.
//
// Version. `version` changes when anything here changes; the daemon refuses a plug-in of another version with a
// message.
//
// C++17, because the CUDA compiler compiles the plug-in.

#pragma once

#include <cstddef>
#include <cstdint>

#include "gossip/cuda/block.hpp"

namespace gossamer::device {

inline constexpr std::uint32_t plugin_version = 2;
/// The only symbol that the daemon looks up.
inline constexpr const char* plugin_symbol = "gossamer_cuda_plugin";

/// One GPU, opened.
struct Context;
/// A communicator among several GPUs of this process, one rank each (daemon/device/reducer.hpp).
struct Communicator;

enum class Status : std::int32_t {
  done = 0,
  not_finite = 1,  ///< the call went well, and found a number that is not finite
  failed = 2,
  under_way = 3,  ///< a communicator is not ready yet: ask again
  no_memory = 4,  ///< the device has no room now; nothing else is wrong with it
};

/// The blocks of a fragment that a call works on: `count` of them. If `blocks` is null, these are the first `count`.
struct Blocks {
  const std::uint32_t* blocks;
  std::uint32_t count;
};

struct DeviceInfo {
  char name[256];
  char bus_id[32];
  std::uint64_t memory_bytes;
  std::int32_t major, minor;  ///< compute capability
  std::uint8_t uuid[16];      ///< as the driver and NVML report it
};

struct PluginTable {
  std::uint32_t version;
  std::uint32_t size_bytes;  ///< the size of this table

  /// Counts the GPUs. `failed` with a text if there is no driver, or it is too old.
  Status (*count)(std::int32_t* devices, char* error, std::size_t error_bytes);
  Status (*describe)(std::int32_t device, DeviceInfo* info, char* error, std::size_t error_bytes);
  /// At most `max_streams` calls are under way at once; more wait.
  Status (*open)(std::int32_t device, std::uint32_t max_streams, Context** context, char* error,
                 std::size_t error_bytes);
  /// Frees all that the context holds. Nothing may be under way in it.
  void (*close)(Context* context);
  const char* (*error)(const Context* context);

  // --- memory
  Status (*allocate)(Context* context, std::size_t bytes, void** device_memory);
  Status (*release)(Context* context, void* device_memory);
  Status (*upload)(Context* context, void* device_to, const void* from, std::size_t bytes);
  Status (*download)(Context* context, void* to, const void* device_from, std::size_t bytes);
  Status (*copy)(Context* context, void* device_to, const void* device_from, std::size_t bytes);
  /// Maps an allocation that another process has exported as a descriptor, which stays the caller's. `failed` says
  /// nothing about the context here: the text goes to `error`, and the device is unchanged.
  Status (*import)(Context* context, int descriptor, std::size_t bytes, void** device_memory, char* error,
                   std::size_t error_bytes);
  Status (*forget)(Context* context, void* device_memory, std::size_t bytes);
  /// Pins host memory, so that the device reads and writes it at the same address. The text of an error is as for
  /// import().
  Status (*pin)(Context* context, void* memory, std::size_t bytes, char* error, std::size_t error_bytes);
  Status (*unpin)(Context* context, void* memory);
  /// Sets floats to zero.
  Status (*clear)(Context* context, float* device_memory, std::size_t elements);
  /// Free and total memory of the device, as the driver counts it.
  Status (*memory)(Context* context, std::uint64_t* free_bytes, std::uint64_t* total_bytes);

  // --- the codec (gossip/exchange/device.hpp)
  Status (*encode)(Context* context, Codec codec, const gossip::FragmentView* device_y, Blocks blocks,
                   std::uint64_t seed, std::int8_t* exponents, std::uint16_t* checks, std::uint8_t* values);
  Status (*difference)(Context* context, Codec codec, const gossip::FragmentView* device_y, Blocks blocks,
                       std::uint64_t seed, const std::int8_t* exponents, const std::uint16_t* checks,
                       const std::uint8_t* values, std::uint8_t* differences, gossip::BlockOutcome* outcomes);
  /// If `wide` is null, no block is wide.
  Status (*outcomes_of)(Context* context, Codec codec, std::uint32_t count, const std::int8_t* exponents,
                        const std::uint8_t* differences, const std::uint8_t* wide, gossip::BlockOutcome* outcomes);
  Status (*apply)(Context* context, Codec codec, std::int32_t shift, std::int32_t sign, Blocks blocks,
                  const std::int8_t* exponents, const std::uint8_t* differences, std::uint32_t block_count,
                  const float* device_in, float* device_out);
  Status (*sum)(Context* context, const gossip::FragmentView* device_y, std::uint32_t block_count, float* device_out);

  // --- training
  /// `left_out` of the arrays is in the host's memory; the other arrays are in the device's.
  Status (*outer_step)(Context* context, const gossip::cuda::OuterArrays* outer, std::uint32_t block_count);
  /// `found` has a word of mean_… bits for each client.
  Status (*local_mean)(Context* context, const gossip::cuda::ClientArrays* clients, std::uint32_t count,
                       float* device_y, std::uint32_t block_count, std::uint32_t* found);
  /// live += correction (`replace`: live = correction), then snapshot = live. Null arrays are left out.
  Status (*step)(Context* context, float* device_live, const float* device_correction, bool replace,
                 float* device_snapshot, std::uint32_t elements);

  // --- for measurements
  /// How many seconds the device worked in this thread's last call, without the copies over the bus.
  double (*last_kernel_s)(const Context* context);

  // --- NCCL; without NCCL, all of these fail
  /// Begins a communicator of these contexts, where rank r is contexts[r]. Does not wait.
  Status (*join)(Context* const* contexts, std::uint32_t count, Communicator** communicator, char* error,
                 std::size_t error_bytes);
  /// Returns `under_way` until every rank is there, or every rank's reduction is done.
  Status (*progress)(Communicator* communicator, char* error, std::size_t error_bytes);
  /// Each rank's `device_values` become the sum over all ranks. Does not wait.
  Status (*all_reduce)(Communicator* communicator, float* const* device_values, std::size_t elements, char* error,
                       std::size_t error_bytes);
  /// Ends the communicator, whatever it is doing.
  void (*abandon)(Communicator* communicator);
};

using PluginEntry = const PluginTable* (*)();

}  // namespace gossamer::device
