#include "tools/bench/thread_time.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>

namespace gossamer::bench {
namespace {

std::filesystem::path tasks_of(pid_t process) {
  return fmt::format("/proc/{}/task", process);
}

std::set<pid_t> threads_of(pid_t process) {
  std::set<pid_t> threads;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(tasks_of(process), error))
    threads.insert(std::stoi(entry.path().filename()));
  return threads;
}

/// The thread's CPU time; 0 if it has ended.
double cpu_s_of(pid_t process, pid_t thread) {
  // "schedstat" has the nanoseconds on a processor, the nanoseconds waiting for one, and the number of time slices.
  std::ifstream file(tasks_of(process) / std::to_string(thread) / "schedstat");
  double used_ns = 0;
  file >> used_ns;
  return used_ns * 1e-9;
}

}  // namespace

double own_cpu_s() {
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) throw std::runtime_error("threads have no clock here");
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double cpu_s(pid_t process, std::string_view name) {
  double sum_s = 0;
  for (const pid_t thread : threads_of(process)) {
    std::ifstream file(tasks_of(process) / std::to_string(thread) / "comm");
    std::string called;
    std::getline(file, called);
    if (called.starts_with(name)) sum_s += cpu_s_of(process, thread);
  }
  return sum_s;
}

StartedThreads::StartedThreads() : before_(threads_of(getpid())) {}

void StartedThreads::note() {
  const std::set<pid_t> now = threads_of(getpid());
  threads_.clear();
  std::set_difference(now.begin(), now.end(), before_.begin(), before_.end(), std::inserter(threads_, threads_.end()));
}

double StartedThreads::cpu_s() const {
  const std::vector<double> each_s = each_cpu_s();
  return std::accumulate(each_s.begin(), each_s.end(), 0.0);
}

std::vector<double> StartedThreads::each_cpu_s() const {
  std::vector<double> each_s;
  for (const pid_t thread : threads_)
    each_s.push_back(cpu_s_of(getpid(), thread));
  return each_s;
}

}  // namespace gossamer::bench
