#include "daemon/device/nccl.hpp"

#include <cstdio>
#include <exception>
#include <string>

#ifdef GOSSAMER_NCCL

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <vector>

namespace gossamer::device {
namespace {

/// All functions of the library, or in `missing` the name of the first that is not there.
struct Library {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  std::string missing;
};

template <class Function>
void find(void* handle, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) missing = std::string("libnccl.so.2 has no ") + name + "; a newer NCCL is needed";
}

Library load() {
  Library library;
  // The library stays loaded until the process ends, because its threads may outlive every communicator.
  void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.missing = std::string(
                          "NCCL is not installed: install libnccl2, or name the library of a Python package in "
                          "[gpus] nccl: ") +
                      dlerror();
    return library;
  }
  find(handle, "ncclGetUniqueId", library.get_unique_id, library.missing);
  find(handle, "ncclCommInitRankConfig", library.init, library.missing);
  find(handle, "ncclCommGetAsyncError", library.async_error, library.missing);
  find(handle, "ncclCommAbort", library.abort, library.missing);
  find(handle, "ncclAllReduce", library.all_reduce, library.missing);
  find(handle, "ncclGroupStart", library.group_start, library.missing);
  find(handle, "ncclGroupEnd", library.group_end, library.missing);
  find(handle, "ncclGetErrorString", library.error_string, library.missing);
  return library;
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

struct NcclRank {
  int device = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

/// Collects the results of several calls, and keeps the first error.
class NcclOutcome {
 public:
  void check(const char* what, ncclResult_t result) {
    if (result == ncclSuccess || !text_.empty()) return;
    if (result == ncclInProgress) {
      under_way_ = true;
      return;
    }
    text_ = std::string(what) + ": " + library().error_string(result);
  }
  void check(const char* what, cudaError_t result) {
    if (result == cudaSuccess || !text_.empty()) return;
    text_ = std::string(what) + ": " + cudaGetErrorString(result);
  }
  void wait() { under_way_ = true; }
  [[nodiscard]] bool good() const { return text_.empty(); }
  [[nodiscard]] Status told(char* error, std::size_t error_bytes) const {
    if (text_.empty()) return under_way_ ? Status::under_way : Status::done;
    std::snprintf(error, error_bytes, "%s", text_.c_str());
    return Status::failed;
  }

 private:
  std::string text_;
  bool under_way_ = false;
};

}  // namespace

struct Communicator {
  std::vector<NcclRank> ranks;
  bool reducing = false;
};

namespace nccl {
namespace {

void join_all(Communicator& made, Context* const* contexts, NcclOutcome& outcome) {
  ncclUniqueId id{};
  outcome.check("ncclGetUniqueId", library().get_unique_id(&id));
  for (std::size_t r = 0; r < made.ranks.size() && outcome.good(); ++r) {
    NcclRank& rank = made.ranks[r];
    rank.device = device_of(*contexts[r]);
    outcome.check("cudaSetDevice", cudaSetDevice(rank.device));
    outcome.check("cudaStreamCreate", cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
  }
  if (!outcome.good()) return;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const int count = static_cast<int>(made.ranks.size());
  outcome.check("ncclGroupStart", library().group_start());
  for (int r = 0; r < count; ++r) {
    NcclRank& rank = made.ranks[static_cast<std::size_t>(r)];
    outcome.check("cudaSetDevice", cudaSetDevice(rank.device));
    outcome.check("ncclCommInitRankConfig", library().init(&rank.comm, count, id, r, &config));
  }
  outcome.check("ncclGroupEnd", library().group_end());
  outcome.wait();
}

}  // namespace

Status join(Context* const* contexts, std::uint32_t count, Communicator** communicator, char* error,
            std::size_t error_bytes) {
  *communicator = nullptr;
  try {
    if (!library().missing.empty()) {
      std::snprintf(error, error_bytes, "%s", library().missing.c_str());
      return Status::failed;
    }
    auto* const made = new Communicator;
    *communicator = made;
    made->ranks.resize(count);
    NcclOutcome outcome;
    join_all(*made, contexts, outcome);
    const Status status = outcome.told(error, error_bytes);
    if (status != Status::failed) return status;
  } catch (const std::exception& exception) {
    std::snprintf(error, error_bytes, "%s", exception.what());
  }
  abandon(*communicator);
  *communicator = nullptr;
  return Status::failed;
}

Status progress(Communicator* communicator, char* error, std::size_t error_bytes) {
  NcclOutcome outcome;
  for (const NcclRank& rank : communicator->ranks) {
    ncclResult_t state = ncclSuccess;
    outcome.check("ncclCommGetAsyncError", library().async_error(rank.comm, &state));
    outcome.check("NCCL", state);
    if (!communicator->reducing || !outcome.good()) continue;
    const cudaError_t reduced = cudaStreamQuery(rank.stream);
    if (reduced == cudaErrorNotReady) {
      outcome.wait();
    } else {
      outcome.check("a reduction", reduced);
    }
  }
  const Status status = outcome.told(error, error_bytes);
  if (status != Status::under_way) communicator->reducing = false;
  return status;
}

Status all_reduce(Communicator* communicator, float* const* device_values, std::size_t elements, char* error,
                  std::size_t error_bytes) {
  NcclOutcome outcome;
  outcome.check("ncclGroupStart", library().group_start());
  for (std::size_t r = 0; r < communicator->ranks.size(); ++r) {
    const NcclRank& rank = communicator->ranks[r];
    outcome.check("cudaSetDevice", cudaSetDevice(rank.device));
    outcome.check("ncclAllReduce", library().all_reduce(device_values[r], device_values[r], elements, ncclFloat,
                                                        ncclSum, rank.comm, rank.stream));
  }
  outcome.check("ncclGroupEnd", library().group_end());
  outcome.wait();
  communicator->reducing = true;
  return outcome.told(error, error_bytes);
}

void abandon(Communicator* communicator) {
  if (communicator == nullptr) return;
  // Errors are ignored, because nothing more is done with it. A rank that is not aborted yet may still wait for the
  // work on another one's stream.
  for (const NcclRank& rank : communicator->ranks) {
    (void)cudaSetDevice(rank.device);
    if (rank.comm != nullptr) (void)library().abort(rank.comm);
  }
  for (const NcclRank& rank : communicator->ranks) {
    (void)cudaSetDevice(rank.device);
    if (rank.stream != nullptr) (void)cudaStreamDestroy(rank.stream);
  }
  delete communicator;
}

}  // namespace nccl
}  // namespace gossamer::device

#else  // built without nccl.h

namespace gossamer::device::nccl {
namespace {

Status refuse(char* error, std::size_t error_bytes) {
  std::snprintf(error, error_bytes, "this plug-in was built without NCCL: build it where nccl.h is installed");
  return Status::failed;
}

}  // namespace

Status join(Context* const*, std::uint32_t, Communicator** communicator, char* error, std::size_t error_bytes) {
  *communicator = nullptr;
  return refuse(error, error_bytes);
}
Status progress(Communicator*, char* error, std::size_t error_bytes) {
  return refuse(error, error_bytes);
}
Status all_reduce(Communicator*, float* const*, std::size_t, char* error, std::size_t error_bytes) {
  return refuse(error, error_bytes);
}
void abandon(Communicator*) {}

}  // namespace gossamer::device::nccl

#endif
