// Which lines the log holds back.

#include "daemon/log/repeat_filter.hpp"

#include "tests/unit/catch.hpp"

using namespace gossamer::daemon;

namespace {

constexpr std::uint64_t burst = 5;
const RepeatFilter::Time begin{std::chrono::hours(1'000'000)};

}  // namespace

TEST_CASE("lines that differ in numbers only are said a few times a minute, and the rest is counted") {
  RepeatFilter filter(burst);
  for (std::uint64_t i = 0; i < 20; ++i)
    CHECK(filter.say("job 7: no memory for " + std::to_string(i * 1000) + " bytes", begin) == (i < burst));
  CHECK(filter.say("job seven: no memory", begin));
  CHECK(filter.over(begin + std::chrono::seconds(59)).empty());
  const auto over = filter.over(begin + RepeatFilter::window);
  REQUIRE(over.size() == 1);
  CHECK(over[0].line == "job 7: no memory for 0 bytes");
  CHECK(over[0].count == 20 - burst);
  CHECK(filter.over(begin + RepeatFilter::window).empty());
  CHECK(filter.say("job 7: no memory for 5 bytes", begin + RepeatFilter::window));
}

TEST_CASE("what is remembered is bounded, and nothing that was held back is lost") {
  RepeatFilter filter(burst);
  const auto name = [](std::size_t i) {
    std::string text;
    for (; i > 0; i /= 26)
      text += static_cast<char>('a' + i % 26);
    return text + "!";
  };
  std::uint64_t said = 0;
  std::uint64_t told = 0;
  const std::size_t kinds = 3 * RepeatFilter::max_kinds;
  constexpr std::uint64_t repeats = 8;
  for (std::size_t i = 0; i < kinds; ++i) {
    for (std::uint64_t n = 0; n < repeats; ++n)
      said += filter.say(name(i), begin + std::chrono::milliseconds(i)) ? 1 : 0;
  }
  for (const auto& held_back : filter.over(begin + std::chrono::hours(1)))
    told += held_back.count;
  CHECK(said == kinds * burst);
  CHECK(said + told == kinds * repeats);
}

TEST_CASE("a clock that is set back holds nothing back for ever") {
  RepeatFilter filter(burst);
  for (int i = 0; i < 10; ++i)
    static_cast<void>(filter.say("x", begin));
  CHECK(filter.over(begin - std::chrono::hours(24)).size() == 1);
  CHECK(filter.say("x", begin - std::chrono::hours(24)));
}

TEST_CASE("of lines that are all different so many are said at once, and then so many a second") {
  LineBudget budget;
  std::uint64_t said = 0;
  const auto say = [&](RepeatFilter::Time now, int lines) {
    for (int i = 0; i < lines; ++i)
      said += budget.take(now) ? 1 : 0;
    return std::exchange(said, 0);
  };
  CHECK(say(begin, 5000) == LineBudget::burst);
  CHECK(budget.take_left_out() == 3000);
  CHECK(budget.take_left_out() == 0);
  CHECK(say(begin + std::chrono::seconds(10), 100) == 10 * LineBudget::per_s);
  CHECK(say(begin + std::chrono::hours(24), 5000) == LineBudget::burst);
  CHECK(say(begin, 1) == 0);  // the clock is set back
  CHECK(say(begin + std::chrono::seconds(1), 10) == LineBudget::per_s);
}
