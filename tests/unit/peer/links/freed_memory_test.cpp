// When the C library is to keep no freed memory.

#include "peer/links/freed_memory.hpp"

#include "catch.hpp"

using namespace gossamer;
using gossamer::peer::FreedMemory;

TEST_CASE("once strangers have sent much nothing is kept, until they have been quiet for their patience") {
  FreedMemory memory;
  constexpr TimeUs patience_us = 20 * us_per_s;
  constexpr std::uint64_t little = 100'000;
  constexpr std::uint64_t much = 100 << 20;
  TimeUs now_us = 100 * us_per_s;
  CHECK_FALSE(memory.tend(0, patience_us, now_us));
  CHECK(memory.tend(little, patience_us, now_us));  // the first since long
  CHECK_FALSE(memory.tend(little, patience_us, now_us += us_per_s));
  CHECK_FALSE(memory.keeps_nothing());
  CHECK(memory.tend(much, patience_us, now_us));
  CHECK(memory.keeps_nothing());
  CHECK_FALSE(memory.tend(much, patience_us, now_us += patience_us - 1));
  CHECK(memory.tend(much, patience_us, now_us += 1));  // they go on
  CHECK(memory.keeps_nothing());
  CHECK(memory.tend(little, patience_us, now_us += patience_us));
  CHECK_FALSE(memory.keeps_nothing());
  // Their last bytes may have been in use until now.
  CHECK_FALSE(memory.tend(0, patience_us, now_us += patience_us - 1));
  CHECK(memory.tend(0, patience_us, now_us += 1));
  CHECK_FALSE(memory.tend(0, patience_us, now_us += patience_us));
}
