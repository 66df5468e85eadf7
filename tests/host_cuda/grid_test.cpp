// The grid that stands in for a GPU's. Correct kernels give correct results in any order; wrong kernels give wrong
// results in some order, or end with a message about what would hang a GPU.

#include <vector>

#include "catch.hpp"
#include "tests/host_cuda/kernel_language.hpp"

namespace {

constexpr unsigned threads = 96;
constexpr std::uint64_t seeds = 30;

std::string run(unsigned groups, unsigned threads_a_group, std::uint64_t seed, const std::function<void()>& kernel) {
  return host_cuda::run_grid(groups, threads_a_group, kernel, seed);
}

}  // namespace

TEST_CASE("each thread of each group runs once") {
  std::vector<int> runs(7 * threads);
  REQUIRE(run(7, threads, 1, [&] { ++runs[blockIdx.x * blockDim.x + threadIdx.x]; }).empty());
  CHECK(runs == std::vector<int>(runs.size(), 1));
}

TEST_CASE("behind a barrier all is seen that came before it, and without one it is not") {
  const auto wrong_seeds = [](bool barrier) {
    int wrong = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      std::vector<int> written(threads);
      std::vector<int> read(threads);
      REQUIRE(run(1, threads, seed, [&] {
                written[threadIdx.x] = 1;
                if (barrier) __syncthreads();
                read[threadIdx.x] = written[(threadIdx.x + 1) % threads];
              }).empty());
      if (read != std::vector<int>(threads, 1)) ++wrong;
    }
    return wrong;
  };
  CHECK(wrong_seeds(true) == 0);
  CHECK(wrong_seeds(false) == seeds);
}

TEST_CASE("a barrier waits for those that have not ended") {
  int passed = 0;
  REQUIRE(run(1, threads, 1, [&] {
            if (threadIdx.x % 2 == 0) return;
            __syncthreads();
            ++passed;
          }).empty());
  CHECK(passed == threads / 2);
}

TEST_CASE("lanes give each other what a warp's would") {
  std::vector<unsigned> crossed(threads), sums(threads), largest(threads);
  std::vector<float> below(threads);
  std::vector<int> any(threads);
  REQUIRE(run(1, threads, 1, [&] {
            const unsigned t = threadIdx.x;
            constexpr unsigned all = 0xffffffff;
            const unsigned half = t % 32 < 16 ? 0x0000ffff : 0xffff0000;
            crossed[t] = __shfl_xor_sync(all, t, 5);
            below[t] = __shfl_down_sync(half, static_cast<float>(t), 3, 16);
            sums[t] = __reduce_add_sync(half, t);
            largest[t] = __reduce_max_sync(all, t);
            any[t] = __any_sync(half, t == 40 ? 7 : 0);
          }).empty());
  for (unsigned t = 0; t < threads; ++t) {
    CHECK(crossed[t] == (t ^ 5));
    CHECK(below[t] == static_cast<float>(t % 16 < 13 ? t + 3 : t));
    CHECK(sums[t] == 16 * (t / 16 * 16) + 120);
    CHECK(largest[t] == t / 32 * 32 + 31);
    CHECK(any[t] == (t / 16 == 2 ? 1 : 0));
  }
}

TEST_CASE("atomic operations lose nothing, and others do") {
  bool lost = false;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    unsigned bits = 0;
    unsigned count = 0;
    unsigned plain = 0;
    int last = 0;
    constexpr unsigned groups = 5;
    REQUIRE(run(groups, 32, seed, [&] {
              atomicOr(&bits, 1U << threadIdx.x);
              const unsigned seen = plain;
              __threadfence_system();
              plain = seen + 1;
              if (atomicInc(&count, groups * 32 - 1) == groups * 32 - 1) ++last;
            }).empty());
    CHECK(bits == 0xffffffff);
    CHECK(count == 0);
    CHECK(last == 1);
    lost = lost || plain != groups * 32;
  }
  CHECK(lost);
}

TEST_CASE("what a GPU would hang in, or has no meaning there, is told, and the next grid runs") {
  const auto told = [](const std::function<void()>& kernel) { return run(2, 64, 1, kernel); };
  CHECK_THAT(told([] {
               if (threadIdx.x == 3) (void)__any_sync(0xffffffff, 1);
             }),
             Catch::Contains("a lane that has ended") || Catch::Contains("lanes of its mask that do not come"));
  CHECK_THAT(told([] { (void)__any_sync(1U << (threadIdx.x + 1) % 32, 1); }), Catch::Contains("not in its own mask"));
  CHECK_THAT(told([] {
               if (threadIdx.x % 2 == 0) {
                 (void)__any_sync(0xffffffff, 1);
               } else {
                 (void)__reduce_add_sync(0xffffffff, 1);
               }
             }),
             Catch::Contains("different functions"));
  CHECK_THAT(told([] { (void)__shfl_xor_sync(threadIdx.x % 32 < 16 ? 0xffffU : 0xffff0000U, 1, 16); }),
             Catch::Contains("not in the mask"));
  CHECK_THAT(told([] {
               if (threadIdx.x < 32) {
                 __syncthreads();
               } else {
                 (void)__any_sync(0xffffffff, threadIdx.x == 40 ? 1 : 0);
                 if (threadIdx.x == 40) (void)__any_sync(0xffffffff, 1);
               }
             }),
             !Catch::Matchers::Equals(""));
  int runs = 0;
  CHECK(told([&] { ++runs; }).empty());
  CHECK(runs == 128);
}
