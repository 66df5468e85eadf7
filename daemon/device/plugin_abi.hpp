// What gossamerd and the plug-in libgossamer_cuda.so know of each other: one function of C that gives a table of them.
// The daemon needs neither CUDA nor a GPU to be built or started; the plug-in brings the CUDA runtime with it, linked
// statically, and needs the driver when it is used.
//
// Conventions. Every function returns a Status; after `failed`, `error(context)` says why, until the next failure, and
// the context is of no use any more but to be closed. Functions on one context may be called from several threads. No
// exception crosses the boundary. Pointers named `device_…` are the device's memory, all others the host's.
//
// Version. `version` changes when anything here does; the daemon refuses a plug-in of another one with a message.
//
// C++17, since the plug-in is compiled by the CUDA compiler.

#pragma once

#include <cstddef>
#include <cstdint>

#include "gossip/cuda/block.hpp"

namespace gossamer::device {

inline constexpr std::uint32_t plugin_version = 2;
/// The one symbol that is looked up.
inline constexpr const char* plugin_symbol = "gossamer_cuda_plugin";

/// One GPU, opened.
struct Context;
/// A communicator among several GPUs of this process, one rank each (daemon/device/reducer.hpp).
struct Communicator;

enum class Status : std::int32_t {
  done = 0,
  not_finite = 1,  ///< the call went well, and found a number that is not finite
  failed = 2,
  under_way = 3,  ///< of a communicator: ask again
  no_memory = 4,  ///< the device has no room for it now; otherwise it is as it was
};

/// Which blocks of a fragment: `count` of them; `blocks` null: the first `count`.
struct Blocks {
  const std::uint32_t* blocks;
  std::uint32_t count;
};

struct DeviceInfo {
  char name[256];
  char bus_id[32];
  std::uint64_t memory_bytes;
  std::int32_t major, minor;  ///< compute capability
  std::uint8_t uuid[16];      ///< as the driver and NVML give it
};

struct PluginTable {
  std::uint32_t version;
  std::uint32_t size_bytes;  ///< of this table

  /// How many GPUs there are. `failed` with a text if there is no driver, or it is too old.
  Status (*count)(std::int32_t* devices, char* error, std::size_t error_bytes);
  Status (*describe)(std::int32_t device, DeviceInfo* info, char* error, std::size_t error_bytes);
  /// `max_streams`: calls that may be under way at once; more wait.
  Status (*open)(std::int32_t device, std::uint32_t max_streams, Context** context, char* error,
                 std::size_t error_bytes);
  /// Frees what the context holds. Nothing may be under way in it.
  void (*close)(Context* context);
  const char* (*error)(const Context* context);

  // --- memory
  Status (*allocate)(Context* context, std::size_t bytes, void** device_memory);
  Status (*release)(Context* context, void* device_memory);
  Status (*upload)(Context* context, void* device_to, const void* from, std::size_t bytes);
  Status (*download)(Context* context, void* to, const void* device_from, std::size_t bytes);
  Status (*copy)(Context* context, void* device_to, const void* device_from, std::size_t bytes);
  /// Maps an allocation that another process has exported as a descriptor, which stays the caller's. `failed` here says
  /// nothing about the context: the text goes to `error`, and the device is as it was.
  Status (*import)(Context* context, int descriptor, std::size_t bytes, void** device_memory, char* error,
                   std::size_t error_bytes);
  Status (*forget)(Context* context, void* device_memory, std::size_t bytes);
  /// Pins host memory, so that the device reads and writes it at the same address. Text as for import().
  Status (*pin)(Context* context, void* memory, std::size_t bytes, char* error, std::size_t error_bytes);
  Status (*unpin)(Context* context, void* memory);
  /// Sets floats to zero.
  Status (*clear)(Context* context, float* device_memory, std::size_t elements);
  /// Free and total memory of the device, as the driver counts.
  Status (*memory)(Context* context, std::uint64_t* free_bytes, std::uint64_t* total_bytes);

  // --- the codec (gossip/exchange/device.hpp)
  Status (*encode)(Context* context, Codec codec, const gossip::FragmentView* device_y, Blocks blocks,
                   std::uint64_t seed, std::int8_t* exponents, std::uint16_t* checks, std::uint8_t* values);
  Status (*difference)(Context* context, Codec codec, const gossip::FragmentView* device_y, Blocks blocks,
                       std::uint64_t seed, const std::int8_t* exponents, const std::uint16_t* checks,
                       const std::uint8_t* values, std::uint8_t* differences, gossip::BlockOutcome* outcomes);
  /// `wide` null: none.
  Status (*outcomes_of)(Context* context, Codec codec, std::uint32_t count, const std::int8_t* exponents,
                        const std::uint8_t* differences, const std::uint8_t* wide, gossip::BlockOutcome* outcomes);
  Status (*apply)(Context* context, Codec codec, std::int32_t shift, std::int32_t sign, Blocks blocks,
                  const std::int8_t* exponents, const std::uint8_t* differences, std::uint32_t block_count,
                  const float* device_in, float* device_out);
  Status (*sum)(Context* context, const gossip::FragmentView* device_y, std::uint32_t block_count, float* device_out);

  // --- training
  /// `left_out` of the arrays is the host's memory; all else in them the device's.
  Status (*outer_step)(Context* context, const gossip::cuda::OuterArrays* outer, std::uint32_t block_count);
  /// `found`: a word of mean_… bits for each client.
  Status (*local_mean)(Context* context, const gossip::cuda::ClientArrays* clients, std::uint32_t count,
                       float* device_y, std::uint32_t block_count, std::uint32_t* found);
  /// live += correction (`replace`: live = correction), then snapshot = live. Nulls are left out.
  Status (*step)(Context* context, float* device_live, const float* device_correction, bool replace,
                 float* device_snapshot, std::uint32_t elements);

  // --- for measurements
  /// Seconds that the device worked in this thread's last call, without the copies over the bus.
  double (*last_kernel_s)(const Context* context);

  // --- NCCL; all fail where it is not to be had
  /// Begins a communicator of these contexts; rank r is contexts[r]. Does not wait.
  Status (*join)(Context* const* contexts, std::uint32_t count, Communicator** communicator, char* error,
                 std::size_t error_bytes);
  /// `under_way` until every rank is there, or every rank's reduction is done.
  Status (*progress)(Communicator* communicator, char* error, std::size_t error_bytes);
  /// Each rank's `device_values` become the sum over all ranks. Does not wait.
  Status (*all_reduce)(Communicator* communicator, float* const* device_values, std::size_t elements, char* error,
                       std::size_t error_bytes);
  /// Ends it, whatever it is doing.
  void (*abandon)(Communicator* communicator);
};

using PluginEntry = const PluginTable* (*)();

}  // namespace gossamer::device
