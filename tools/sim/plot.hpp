// Draws line charts as SVG, for people who read a simulation's results. The file needs no other files, and follows the
// viewer's light or dark setting.
//
// Pure; any thread.

#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gossamer::sim {

struct Series {
  std::string name = {};  ///< empty: the series is not in the legend
  std::vector<std::pair<double, double>> points =
      {};                  ///< left out: values that are not finite, or on a log axis not positive normal numbers
  std::size_t colour = 0;  ///< one of 8; larger numbers start again
};

struct Axis {
  std::string label;  ///< with its unit: "time (s)"
  bool logarithmic = false;
};

struct Chart {
  std::string title;
  Axis x;
  Axis y;
  std::vector<Series> series = {};
};

/// Draws charts side by side in rows of `columns`, under one heading.
[[nodiscard]] std::string render_svg(const std::string& heading, std::span<const Chart> charts,
                                     std::size_t columns = 2);

/// The numbers on an axis from low to high: about `wanted` of them, at 1, 2 or 5 times a power of ten.
[[nodiscard]] std::vector<double> axis_ticks(double low, double high, bool logarithmic, int wanted);

}  // namespace gossamer::sim
