// What libgossamer and its plug-in libgossamer_client_cuda.so know of each other: one function of C that gives a table.
// The library needs neither CUDA nor a GPU; the plug-in brings the CUDA runtime with it, linked statically, works in
// the process's primary context (the one that PyTorch, JAX and programs of the CUDA runtime use), and needs the driver.
//
// The *pass* over the fragments that are due at a step (sdk/layout/shared_memory.hpp, "Life of a fragment") is one
// launch on the training stream. For each piece it does x += correction or x = correction, and snapshot = x, in one
// reading and one writing of each (sdk/cuda/element.hpp); the last thread of a fragment then makes everything visible
// to the system and stores the fragment's word. So the host waits for nothing: a fragment is due until its word says
// that it has been published, and who reads the word then finds what it speaks of.
//
// Conventions. Functions return a Status; unless it is `done`, the text is in `error`. A context is used by one thread
// at a time. The calling thread's current device is as it was afterwards. No exception crosses the boundary.
//
// Version. `version` changes when anything here does; libgossamer refuses a plug-in of another one with a message.
//
// C++17, since the plug-in is compiled by the CUDA compiler.

#pragma once

#include <cstddef>
#include <cstdint>

namespace gossamer::client::cuda {

inline constexpr std::uint32_t plugin_version = 1;
/// The one symbol that is looked up.
inline constexpr const char* plugin_symbol = "gossamer_client_cuda_plugin";
/// Names another file than the usual one: for tests.
inline constexpr const char* plugin_variable = "GOSSAMER_CLIENT_CUDA_PLUGIN";

/// One GPU, for one run.
struct Context;

enum class Status : std::int32_t {
  done = 0,
  failed = 1,      ///< the device is of no use to the run any more
  no_memory = 2,   ///< the device, or the host, has no room for it; otherwise all is as it was
  impossible = 3,  ///< not permitted here (exporting, pinning, this stream): otherwise all is as it was
  busy = 4,        ///< too many passes are under way: all is as it was, try again later
};

/// Type of x.
enum class Element : std::uint8_t { f32 = 0, f64 = 1, bf16 = 2 };
enum class Mode : std::uint8_t { none = 0, add = 1, replace = 2 };

/// A stretch of one tensor. Addresses as the device has them.
struct Piece {
  void* x;
  const float* correction;  ///< null with Mode::none
  float* snapshot;
  std::uint32_t count;
  std::uint32_t dither;    ///< of bf16 (sdk/c/fused_pass.hpp)
  std::uint32_t fragment;  ///< which of the pass's fragments it is in: index of a Publication
  Element element;
  Mode mode;
};

/// What is stored once all pieces of a fragment are done.
struct Publication {
  std::uint64_t* word;  ///< as the device has it
  std::uint64_t value;
};

/// Device memory that another process can map.
struct SharedMemory {
  void* base;           ///< as the device has it
  std::uint64_t bytes;  ///< rounded up to what the driver shares
  std::int32_t descriptor;
};

/// The most that one pass has.
struct PassLimits {
  std::uint32_t pieces;
  std::uint32_t publications;
};

struct PluginTable {
  std::uint32_t version;
  std::uint32_t size_bytes;  ///< of this table

  /// On which GPU an address is; -1: in host memory.
  Status (*locate)(const void* address, std::int32_t* device, char* error, std::size_t error_bytes);
  /// Takes the tables for passes, so that no launch has to.
  Status (*open)(std::int32_t device, PassLimits limits, Context** context, char* error, std::size_t error_bytes);
  /// Frees all that the context holds but shared and pinned memory. Nothing may be under way, unless the device has
  /// failed.
  void (*close)(Context* context);
  void (*uuid)(const Context* context, std::uint8_t uuid[16]);

  /// Zeros. The descriptor becomes the caller's.
  Status (*share)(Context* context, std::uint64_t bytes, SharedMemory* memory, char* error, std::size_t error_bytes);
  void (*unshare)(Context* context, const SharedMemory* memory);
  /// Pins `bytes` of host memory from `memory`, aligned to pages; `device_memory`: where the device finds it.
  Status (*pin)(Context* context, void* memory, std::uint64_t bytes, void** device_memory, char* error,
                std::size_t error_bytes);
  void (*unpin)(Context* context, void* memory);

  /// Launches the pass on `stream` (a cudaStream_t). Never waits. The arrays are copied.
  Status (*launch)(Context* context, void* stream, const Piece* pieces, std::uint32_t piece_count,
                   const Publication* publications, std::uint32_t publication_count, char* error,
                   std::size_t error_bytes);
  /// Begins to copy between addresses of the device, beside all streams.
  Status (*copy)(Context* context, void* to, const void* from, std::uint64_t bytes, char* error,
                 std::size_t error_bytes);
  /// Whether all passes and copies have ended. Never waits. `failed`: the device has failed.
  Status (*idle)(Context* context, bool* idle, char* error, std::size_t error_bytes);
  /// Time that passes which launch() and idle() have seen the end of took on the device, in all.
  std::uint64_t (*pass_ns)(const Context* context);
};

using PluginEntry = const PluginTable* (*)();

}  // namespace gossamer::client::cuda
