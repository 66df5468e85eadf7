// NCCL over the fake runtime: libnccl.so.2 with the functions that the daemon's plug-in calls, for communicators that
// are not blocking. A communicator is ready, and a sum begins, only after its state was asked for a few times. A sum
// waits on every rank's stream until all ranks are there, so that an absent rank holds the others.

#include <nccl.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/host_cuda/runtime.hpp"

namespace {

/// The ranks of a communicator, and their present sum.
struct Clique {
  explicit Clique(int ranks) : ranks(ranks) {}
  const int ranks;
  int joined = 0;
  bool aborted = false;
  int arrived = 0;
  int left = 0;
  std::vector<float> sum;
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int asked = 0;  ///< how often the state was asked for since the last operation began
  std::vector<std::function<void()>> begun;
};

namespace {

/// An operation shows only after the state was read this often.
constexpr int questions = 2;

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, std::shared_ptr<Clique>> cliques;
  std::uint64_t next_id = 1;
};

World& world() {
  static auto* const the_world = new World;
  return *the_world;
}

thread_local int group_depth = 0;

std::uint64_t number_of(const ncclUniqueId& id) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  return number;
}

/// One rank's part of a sum, on its stream.
void add_up(const std::shared_ptr<Clique>& clique, const float* send, float* receive, std::size_t count) {
  std::unique_lock lock(world().mutex);
  Clique& c = *clique;
  // A sum begins when all ranks have left the previous one.
  world().changed.wait(lock, [&] { return c.aborted || c.left == 0; });
  if (c.aborted) return;
  c.sum.resize(count);
  for (std::size_t e = 0; e < count; ++e)
    c.sum[e] = c.arrived == 0 ? send[e] : c.sum[e] + send[e];
  if (++c.arrived == c.ranks) {
    c.arrived = 0;
    c.left = c.ranks;
    world().changed.notify_all();
  } else {
    world().changed.wait(lock, [&] { return c.aborted || c.left != 0; });
    if (c.aborted) return;
  }
  std::memcpy(receive, c.sum.data(), count * sizeof(float));
  if (--c.left == 0) world().changed.notify_all();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(world().mutex);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &world().next_id, sizeof world().next_id);
  ++world().next_id;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  --group_depth;
  return ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0 || (ranks > 1 && group_depth == 0)) return ncclInvalidUsage;
  if (rank < 0 || rank >= ranks) return ncclInvalidArgument;
  const std::lock_guard lock(world().mutex);
  auto& clique = world().cliques[number_of(id)];
  if (!clique) clique = std::make_shared<Clique>(ranks);
  ++clique->joined;
  *comm = new ncclComm{.clique = clique, .rank = rank, .asked = 0, .begun = {}};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = ncclInProgress;
  if (++comm->asked <= questions) return ncclSuccess;
  for (const auto& work : std::exchange(comm->begun, {}))
    work();
  const std::lock_guard lock(world().mutex);
  if (comm->clique->joined == comm->clique->ranks) *state = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  // Nothing new may begin before the communicator is ready and all earlier operations are known to be done.
  if (type != ncclFloat || op != ncclSum || comm->asked <= questions || !comm->begun.empty()) return ncclInvalidUsage;
  comm->asked = 0;
  comm->begun.emplace_back([=, clique = comm->clique] {
    (void)host_cuda::enqueue(
        stream, [=] { add_up(clique, static_cast<const float*>(send), static_cast<float*>(receive), count); });
  });
  return ncclInProgress;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(world().mutex);
    comm->clique->aborted = true;
  }
  world().changed.notify_all();
  delete comm;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) {
  return "a fake error of NCCL";
}

}  // extern "C"
