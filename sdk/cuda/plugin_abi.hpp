// The interface between libgossamer and its plug-in libgossamer_client_cuda.so: one function of C that returns a table
// of functions. The library needs neither CUDA nor a GPU. The plug-in contains the CUDA runtime, linked statically. It
// works in the process's primary context (the one that PyTorch, JAX and programs of the CUDA runtime use), and needs
// the driver.
//
// The *pass* over the fragments that are due at a step (sdk/layout/shared_memory.hpp, "Life of a fragment") is one
// launch on the training stream. For each piece it does x += correction or x = correction, and snapshot = x, with each
// element read once and written once (sdk/cuda/element.hpp). The last thread of a fragment then makes all writes
// visible to the system and stores the fragment's word. The host waits for nothing: a fragment is due until its word
// says that it has been published, and whoever reads the word then finds the published values.
//
// Conventions. Functions return a PassStatus; unless it is `done`, `error` has the text. One thread at a time uses a
// context. The calling thread's current device is unchanged afterwards. No exception crosses the boundary.
//
// Version. `version` changes when anything here changes; libgossamer refuses a plug-in of another version with a
// message.
//
// C++17, because the CUDA compiler compiles the plug-in.

#pragma once

#include <cstddef>
#include <cstdint>

namespace gossamer::client::cuda {

inline constexpr std::uint32_t plugin_version = 2;
/// The only symbol that the library looks up.
inline constexpr const char* plugin_symbol = "gossamer_client_cuda_plugin";
/// This environment variable names another file than the usual one, for tests.
inline constexpr const char* plugin_variable = "GOSSAMER_CLIENT_CUDA_PLUGIN";

/// One GPU for one run.
struct Context;

enum class PassStatus : std::int32_t {
  done = 0,
  failed = 1,      ///< the run cannot use the device any more
  no_memory = 2,   ///< the device or the host has no room; nothing else has changed
  impossible = 3,  ///< not permitted here (exporting, pinning, this stream); nothing has changed
  busy = 4,        ///< too many passes are under way; nothing has changed, and the caller may try again later
};

/// The type of x.
enum class Element : std::uint8_t { f32 = 0, f64 = 1, bf16 = 2 };
/// add_within: element::sum_within().
enum class Mode : std::uint8_t { none = 0, add = 1, replace = 2, add_within = 3 };

/// A stretch of one tensor. The addresses are the device's.
struct Piece {
  void* x;
  const float* correction;  ///< null with Mode::none
  float* snapshot;
  std::uint32_t count;
  std::uint32_t dither;    ///< for bf16 (sdk/c/fused_pass.hpp)
  std::uint32_t fragment;  ///< the fragment it belongs to: the index of a Publication in the pass
  Element element;
  Mode mode;
  const float* before = nullptr;  ///< with Mode::add_within, the snapshot that the correction is for
};

/// The word that is stored once all pieces of a fragment are done.
struct Publication {
  std::uint64_t* word;  ///< at the device's address
  std::uint64_t value;
};

/// Device memory that another process can map.
struct SharedMemory {
  void* base;           ///< at the device's address
  std::uint64_t bytes;  ///< rounded up to the driver's unit of sharing
  std::int32_t descriptor;
};

/// The limits of one pass.
struct PassLimits {
  std::uint32_t pieces;
  std::uint32_t publications;
};

struct ClientPluginTable {
  std::uint32_t version;
  std::uint32_t size_bytes;  ///< the size of this table

  /// Finds the GPU that an address is on; -1: host memory.
  PassStatus (*locate)(const void* address, std::int32_t* device, char* error, std::size_t error_bytes);
  /// Allocates the tables for passes, so that no launch has to.
  PassStatus (*open)(std::int32_t device, PassLimits limits, Context** context, char* error, std::size_t error_bytes);
  /// Frees all that the context holds, except shared and pinned memory. Nothing may be under way, unless the device has
  /// failed.
  void (*close)(Context* context);
  void (*uuid)(const Context* context, std::uint8_t uuid[16]);

  /// Makes memory that another process can map, filled with zeros. The caller owns the descriptor.
  PassStatus (*share)(Context* context, std::uint64_t bytes, SharedMemory* memory, char* error,
                      std::size_t error_bytes);
  void (*unshare)(Context* context, const SharedMemory* memory);
  /// Pins `bytes` of host memory from `memory`, which is aligned to pages. `device_memory` is its address on the
  /// device.
  PassStatus (*pin)(Context* context, void* memory, std::uint64_t bytes, void** device_memory, char* error,
                    std::size_t error_bytes);
  void (*unpin)(Context* context, void* memory);

  /// Launches the pass on `stream` (a cudaStream_t). Never waits. The arrays are copied.
  PassStatus (*launch)(Context* context, void* stream, const Piece* pieces, std::uint32_t piece_count,
                       const Publication* publications, std::uint32_t publication_count, char* error,
                       std::size_t error_bytes);
  /// Begins a copy between addresses of the device, on a stream of its own.
  PassStatus (*copy)(Context* context, void* to, const void* from, std::uint64_t bytes, char* error,
                     std::size_t error_bytes);
  /// Whether all passes and copies have ended. Never waits. `failed`: the device has failed.
  PassStatus (*idle)(Context* context, bool* idle, char* error, std::size_t error_bytes);
  /// The total time on the device of the passes whose end launch() or idle() has seen.
  std::uint64_t (*pass_ns)(const Context* context);
};

using ClientPluginEntry = const ClientPluginTable* (*)();

}  // namespace gossamer::client::cuda
