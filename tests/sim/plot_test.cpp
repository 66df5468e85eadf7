// Charts: axes have round numbers that lie within them, and what cannot be drawn is left out.

#include "tools/sim/plot.hpp"

#include <cmath>
#include <limits>

#include "catch.hpp"

namespace gossamer::sim {

TEST_CASE("An axis has a few round numbers within its range") {
  CHECK(axis_ticks(0, 10, false, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(axis_ticks(1e-3, 1e3, true, 10).size() == 7);
  for (const bool logarithmic : {false, true}) {
    for (const double low : {1e-9, 0.3, 7.0, 9'000.0}) {
      for (const double factor : {1.01, 1.9, 12.0, 4e5}) {
        const auto ticks = axis_ticks(low, low * factor, logarithmic, 6);
        CHECK(ticks.size() >= 2);
        CHECK(ticks.size() <= 14);
        for (const double tick : ticks) {
          CHECK(tick >= low * (1 - 1e-9));
          CHECK(tick <= low * factor * (1 + 1e-9));
        }
      }
    }
  }
}

TEST_CASE("Axes reach wherever doubles do, and end") {
  constexpr double most = std::numeric_limits<double>::max();
  constexpr double least = std::numeric_limits<double>::denorm_min();
  for (const auto& [low, high] : {std::pair{1.0, 1e300},
                                  {1.0, most},
                                  {least, 1.0},
                                  {least, most},
                                  {least, least},
                                  {-most, most},
                                  {most, most},
                                  {-1e18, 1e18},
                                  {1e300, 1.5e300}}) {
    for (const bool logarithmic : {false, true}) {
      CHECK(axis_ticks(low, high, logarithmic, 6).size() <= 14);
      const Chart chart{"", {"time (s)"}, {"loss", logarithmic}, {{.name = "one", .points = {{0, low}, {1, high}}}}};
      const std::string svg = render_svg("", std::span(&chart, 1), 1);
      CHECK(svg.find("nan") == std::string::npos);
      CHECK(svg.find("inf") == std::string::npos);
    }
  }
  CHECK(axis_ticks(1, 1e300, true, 6).size() >= 4);
  CHECK(axis_ticks(-most, most, false, 6).size() >= 3);
}

TEST_CASE("A chart shows its names and its finite points") {
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const Chart chart{"A & B",
                    {"time (s)"},
                    {"loss", true},
                    {{.name = "one", .points = {{0, 1}, {1, nothing}, {2, 0}, {3, 10}}}, {.name = "two"}}};
  const std::string svg = render_svg("Heading <1>", std::span(&chart, 1), 1);
  CHECK(svg.find("A &amp; B") != std::string::npos);
  CHECK(svg.find("Heading &lt;1&gt;") != std::string::npos);
  CHECK(svg.find("time (s)") != std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
  const std::size_t begin = svg.find("points=\"") + 8;
  const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
  CHECK(std::count(points.begin(), points.end(), ',') == 2);
  CHECK(svg.find("prefers-color-scheme:dark") != std::string::npos);
}

}  // namespace gossamer::sim
