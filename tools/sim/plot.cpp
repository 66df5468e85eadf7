#include "tools/sim/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace gossamer::sim {

namespace {

constexpr double chart_width = 520;
constexpr double chart_height = 354;
constexpr double heading_height = 44;
constexpr double left = 72;
constexpr double right = 18;
constexpr double top = 78;  // room for three rows of names
constexpr double bottom = 52;
constexpr double character_width = 6.6;  // the legend's letters, roughly

/// Okabe & Ito's colours, which colour-blind people can tell apart, slightly changed to suit both backgrounds.
constexpr std::array<const char*, 8> colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f"};

constexpr const char* style =
    "<style>\n"
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#222}\n"
    ".background{fill:#fff}.heading{font-size:17px;font-weight:600}.title{font-size:14px;font-weight:600}\n"
    ".grid{stroke:#ddd;stroke-width:1}.frame{stroke:#888;stroke-width:1;fill:none}\n"
    ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n"
    "@media (prefers-color-scheme:dark){text{fill:#ddd}.background{fill:#15181c}.grid{stroke:#333a42}"
    ".frame{stroke:#777}}\n"
    "</style>\n";

const char* colour_of(const Series& series) {
  return colours[series.colour % colours.size()];
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

/// The range of one coordinate and its place on the page.
class Scale {
 public:
  Scale(bool logarithmic, double from, double to) : logarithmic_(logarithmic), from_(from), to_(to) {}

  [[nodiscard]] bool shows(double value) const { return std::isfinite(value) && (!logarithmic_ || value >= smallest); }
  void include(double value) {
    if (!shows(value)) return;
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  /// Call this once everything is included. Afterwards nothing lies on the edge, and nothing divides by zero or
  /// overflows, also near the limits of doubles.
  void finish() {
    if (!(low_ <= high_)) low_ = logarithmic_ ? 1 : 0, high_ = logarithmic_ ? 10 : 1;
    if (logarithmic_) {
      const double margin = std::exp(0.04 * std::max(std::log(high_) - std::log(low_), std::log(1.5)));
      low_ = std::max(low_ / margin, smallest);
      high_ = std::min(high_ * margin, largest);
    } else {
      const double margin = std::max(high_ * 0.04 - low_ * 0.04, std::max(std::fabs(high_), 1e-12) * 1e-3);
      const bool from_zero = low_ >= 0 && low_ < 0.3 * high_;
      low_ = from_zero ? 0 : std::max(low_ - margin, -largest);
      high_ = std::min(high_ + margin, largest);
    }
  }
  [[nodiscard]] double at(double value) const {
    const double share = logarithmic_ ? (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_))
                                      : (value / 2 - low_ / 2) / (high_ / 2 - low_ / 2);
    return from_ + share * (to_ - from_);
  }
  [[nodiscard]] std::vector<double> ticks(int wanted) const { return axis_ticks(low_, high_, logarithmic_, wanted); }

 private:
  static constexpr double smallest = std::numeric_limits<double>::min();
  static constexpr double largest = std::numeric_limits<double>::max();

  bool logarithmic_;
  double from_;
  double to_;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

std::string number(double value) {
  return fmt::format("{:.6g}", value + 0.0);  // not "-0"
}

std::string grid(const Chart& chart, const Scale& x, const Scale& y) {
  std::string out;
  for (const double tick : x.ticks(6)) {
    out += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>", x.at(tick), top,
                       chart_height - bottom);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x.at(tick),
                       chart_height - bottom + 17, number(tick));
  }
  for (const double tick : y.ticks(6)) {
    out += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", left,
                       chart_width - right, y.at(tick));
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 6, y.at(tick) + 4,
                       number(tick));
  }
  const double middle = (top + chart_height - bottom) / 2;
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (left + chart_width - right) / 2,
                     chart_height - 14, escaped(chart.x.label));
  out += fmt::format("<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n", middle,
                     escaped(chart.y.label));
  out += fmt::format("<rect class=\"frame\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", left, top,
                     chart_width - left - right, chart_height - top - bottom);
  return out;
}

/// The names beside their colours above the frame, in as many rows as they need.
std::string legend(const Chart& chart) {
  std::string out;
  std::size_t names = 0;
  for (const Series& series : chart.series)
    names += series.name.empty() ? 0 : 1;
  if (names < 2) return out;
  double x = left;
  double y = 38;
  for (const Series& series : chart.series) {
    if (series.name.empty()) continue;
    const double width = 32 + character_width * static_cast<double>(series.name.size());
    if (x + width > chart_width - right + 8) {
      x = left;
      y += 15;
    }
    out += fmt::format("<line class=\"line\" stroke=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>",
                       colour_of(series), x, x + 16, y, y);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\">{}</text>\n", x + 20, y + 4, escaped(series.name));
    x += width;
  }
  return out;
}

std::string line(const Series& series, const Scale& x, const Scale& y) {
  std::string points;
  for (const auto& [at, value] : series.points) {
    if (x.shows(at) && y.shows(value)) points += fmt::format("{:.1f},{:.1f} ", x.at(at), y.at(value));
  }
  return fmt::format("<polyline class=\"line\" stroke=\"{}\" points=\"{}\"><title>{}</title></polyline>\n",
                     colour_of(series), points, escaped(series.name));
}

std::string render_chart(const Chart& chart) {
  Scale x(chart.x.logarithmic, left, chart_width - right);
  Scale y(chart.y.logarithmic, chart_height - bottom, top);
  for (const Series& series : chart.series) {
    for (const auto& [at, value] : series.points) {
      if (!x.shows(at) || !y.shows(value)) continue;
      x.include(at);
      y.include(value);
    }
  }
  x.finish();
  y.finish();
  std::string out = fmt::format("<text class=\"title\" x=\"{}\" y=\"22\">{}</text>\n", left, escaped(chart.title));
  out += legend(chart) + grid(chart, x, y);
  for (const Series& series : chart.series)
    out += line(series, x, y);
  return out;
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, bool logarithmic, int wanted) {
  std::vector<double> ticks;
  if (const double decades = std::log10(high) - std::log10(low); logarithmic && decades > 1.2) {
    const int every = std::max(1, static_cast<int>(std::ceil(decades / wanted)));
    for (int power = static_cast<int>(std::floor(std::log10(low))); power <= std::log10(high); ++power) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = digit * std::pow(10.0, power);
        const bool wide = decades > 2.5 && (digit > 1 || power % every != 0);
        if (tick >= low && tick <= high && !wide) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const double raw = high / wanted - low / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double digit = raw / power <= 1 ? 1 : raw / power <= 2 ? 2 : raw / power <= 5 ? 5 : 10;
  const double step = digit * power;
  // There are at most `wanted` + 1 ticks. The bound also ends the loop where adding a step does not change a double.
  const double first = std::ceil(low / step);
  for (int n = 0; n <= wanted && (first + n) * step - high <= std::fabs(high) * 1e-12; ++n)
    ticks.push_back((first + n) * step);
  return ticks;
}

std::string render_svg(const std::string& heading, std::span<const Chart> charts, std::size_t columns) {
  const std::size_t rows = (charts.size() + columns - 1) / columns;
  const double width = chart_width * static_cast<double>(columns);
  const double height = heading_height + chart_height * static_cast<double>(rows);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n",
      width, height);
  out += fmt::format("<title>{}</title>\n{}", escaped(heading), style);
  out += fmt::format("<rect class=\"background\" width=\"{}\" height=\"{}\"/>\n", width, height);
  out += fmt::format("<text class=\"heading\" x=\"{}\" y=\"30\">{}</text>\n", left, escaped(heading));
  for (std::size_t n = 0; n < charts.size(); ++n) {
    const std::size_t row = n / columns;
    out += fmt::format("<g transform=\"translate({} {})\">\n", chart_width * static_cast<double>(n % columns),
                       heading_height + chart_height * static_cast<double>(row));
    out += render_chart(charts[n]) + "</g>\n";
  }
  return out + "</svg>\n";
}

}  // namespace gossamer::sim
