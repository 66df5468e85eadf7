#include "tests/host_cuda/grid.hpp"

#include <setjmp.h>  // _setjmp leaves signals alone
#include <sys/mman.h>
#include <ucontext.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/host_cuda/kernel_language.hpp"

namespace host_cuda {

thread_local constinit uint3 thread_index{};
thread_local constinit uint3 group_index{};
thread_local constinit uint3 group_size{};
thread_local constinit uint3 group_count{};

namespace {

constexpr std::size_t stack_bytes = 64 << 10;
/// After the end of some groups, about this many in a grid, the grid pauses this long, so that other threads can look
/// at memory in between.
constexpr std::chrono::microseconds pause{100};
constexpr unsigned pauses_a_grid = 3;

enum class State : std::uint8_t { can_run, at_barrier, meets, ended };

struct Group;

struct GpuThread {
  State state = State::ended;
  unsigned number = 0;
  Group* group = nullptr;
  // The call at which the thread meets other lanes, with its mask and values.
  Meeting meeting{};
  std::uint32_t mask = 0;
  std::uint32_t value = 0;
  LaneValues values{};
  // Whether the thread has begun to run on its own stack.
  bool begun = false;
  jmp_buf here{};
  ucontext_t first{};
};

/// The stacks of a group's threads, in one piece. Unused ones take no memory.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    if (at_ != nullptr) munmap(at_, max_threads_a_group * stack_bytes);
  }
  [[nodiscard]] void* of(unsigned thread) {
    if (at_ == nullptr) {
      at_ = mmap(nullptr, max_threads_a_group * stack_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at_ == MAP_FAILED) std::abort();
    }
    return static_cast<char*>(at_) + thread * stack_bytes;
  }

 private:
  void* at_ = nullptr;
};

struct Group {
  unsigned number = 0;
  unsigned alive = 0;
  unsigned at_barrier = 0;
  std::vector<std::unique_ptr<GpuThread>> threads;
  Stacks stacks;
};

/// The state of one thread of the host.
struct Scheduler {
  std::array<Group, resident_groups> groups;
  std::vector<GpuThread*> can_run;
  GpuThread* current = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::string fault;
  std::minstd_rand random;
  jmp_buf here{};
  bool busy = false;
};

Scheduler& scheduler() {
  // When a thread of the host ends, the stacks of its GPU threads are freed.
  thread_local Scheduler the_scheduler;
  return the_scheduler;
}

void switch_out() {
  Scheduler& s = scheduler();
  if (_setjmp(s.current->here) == 0) _longjmp(s.here, 1);
}

void let_run(GpuThread& thread) {
  thread.state = State::can_run;
  scheduler().can_run.push_back(&thread);
}

void release_barrier_if_all_are_there(Group& group) {
  if (group.alive == 0 || group.at_barrier < group.alive) return;
  group.at_barrier = 0;
  for (const auto& thread : group.threads) {
    if (thread->state == State::at_barrier) let_run(*thread);
  }
}

/// The life of a GPU thread: one kernel after the other.
[[noreturn]] void live() {
  while (true) {
    Scheduler& s = scheduler();
    (*s.kernel)();
    s.current->state = State::ended;
    --s.current->group->alive;
    release_barrier_if_all_are_there(*s.current->group);
    switch_out();
  }
}

void begin(GpuThread& thread) {
  getcontext(&thread.first);
  thread.first.uc_stack.ss_sp = thread.group->stacks.of(thread.number);
  thread.first.uc_stack.ss_size = stack_bytes;
  thread.first.uc_link = nullptr;
  makecontext(&thread.first, live, 0);
  thread.begun = true;
  setcontext(&thread.first);
}

void switch_in(GpuThread& thread) {
  Scheduler& s = scheduler();
  s.current = &thread;
  thread_index.x = thread.number;
  group_index.x = thread.group->number;
  if (_setjmp(s.here) != 0) return;
  if (thread.begun) _longjmp(thread.here, 1);
  begin(thread);
}

void start(Group& group, unsigned number, unsigned threads) {
  group.number = number;
  group.alive = threads;
  group.at_barrier = 0;
  while (group.threads.size() < threads)
    group.threads.push_back(std::make_unique<GpuThread>());
  for (unsigned t = 0; t < threads; ++t) {
    group.threads[t]->number = t;
    group.threads[t]->group = &group;
    let_run(*group.threads[t]);
  }
}

/// After a fault, no GPU thread continues where it stopped.
void forget_all(Scheduler& s) {
  s.can_run.clear();
  for (Group& group : s.groups) {
    group.alive = 0;
    group.threads.clear();
  }
}

std::string why_nobody_can_run(const Scheduler& s) {
  for (const Group& group : s.groups) {
    for (const auto& thread : group.threads) {
      if (thread->state == State::at_barrier)
        return "a barrier that not all threads of group " + std::to_string(group.number) + " come to";
      if (thread->state == State::meets)
        return "lane " + std::to_string(thread->number % warp_lanes) + " of group " + std::to_string(group.number) +
               " waits for lanes of its mask that do not come";
    }
  }
  return "";
}

}  // namespace

std::string run_grid(unsigned groups, unsigned threads_a_group, const std::function<void()>& kernel,
                     std::uint64_t seed) {
  if (threads_a_group == 0 || threads_a_group > max_threads_a_group || groups == 0) return "a grid of no such size";
  Scheduler& s = scheduler();
  if (s.busy) std::abort();
  s.busy = true;
  s.kernel = &kernel;
  s.fault.clear();
  s.random.seed(static_cast<std::uint32_t>(seed * 2654435761U + 1));
  group_size = {threads_a_group, 1, 1};
  group_count = {groups, 1, 1};
  unsigned begun = 0;
  while (s.fault.empty()) {
    for (Group& group : s.groups) {
      if (group.alive != 0 || begun == groups) continue;
      if (begun >= resident_groups && s.random() % groups < pauses_a_grid) std::this_thread::sleep_for(pause);
      start(group, begun++, threads_a_group);
    }
    if (s.can_run.empty()) {
      s.fault = why_nobody_can_run(s);
      break;
    }
    const std::size_t chosen = s.random() % s.can_run.size();
    GpuThread& next = *s.can_run[chosen];
    s.can_run[chosen] = s.can_run.back();
    s.can_run.pop_back();
    switch_in(next);
  }
  if (!s.fault.empty()) forget_all(s);
  s.busy = false;
  return s.fault;
}

void fault(const std::string& what) {
  Scheduler& s = scheduler();
  s.fault = what + " (thread " + std::to_string(s.current->number) + " of group " +
            std::to_string(s.current->group->number) + ")";
  switch_out();
  std::abort();
}

void group_barrier() {
  GpuThread& self = *scheduler().current;
  self.state = State::at_barrier;
  ++self.group->at_barrier;
  release_barrier_if_all_are_there(*self.group);
  switch_out();
}

void give_way() {
  Scheduler& s = scheduler();
  if (s.random() % 2 == 0) return;
  let_run(*s.current);
  switch_out();
}

unsigned own_lane() {
  return scheduler().current->number % warp_lanes;
}

LaneValues meet(Meeting meeting, std::uint32_t mask, std::uint32_t value) {
  GpuThread& self = *scheduler().current;
  const unsigned first = self.number / warp_lanes * warp_lanes;
  if ((mask >> own_lane() & 1) == 0) fault("a lane is not in its own mask");
  self.state = State::meets;
  self.meeting = meeting;
  self.mask = mask;
  self.value = value;
  LaneValues values{};
  bool all = true;
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    if (first + lane >= group_size.x) fault("a mask names lanes that the group does not have");
    const GpuThread& other = *self.group->threads[first + lane];
    if (other.state == State::ended) fault("a mask names a lane that has ended");
    const bool there = other.state == State::meets && other.mask == mask && other.meeting == meeting;
    const bool waits_for_this_one = other.state == State::meets && (other.mask >> own_lane() & 1) != 0;
    if (waits_for_this_one && !there)
      fault("lanes wait for each other in different functions, or with different masks");
    all = all && there;
    values[lane] = other.value;
  }
  if (all) {
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      GpuThread& other = *self.group->threads[first + lane];
      other.values = values;
      let_run(other);
    }
  }
  switch_out();
  return self.values;
}

}  // namespace host_cuda
