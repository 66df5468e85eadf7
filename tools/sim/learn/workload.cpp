#include "tools/sim/learn/workload.hpp"

#include "tools/sim/commands.hpp"

namespace gossamer::sim {

namespace {
constexpr std::size_t mlp_hidden = 64;
constexpr std::size_t text_hidden = 128;
}  // namespace

std::unique_ptr<Workload> make_workload(std::string_view name, const WorkloadOptions& options) {
  if (name == "quadratic") return make_quadratic(options.quadratic);
  if (name == "logistic") return make_digits(options.digits_file, 0);
  if (name == "mlp") return make_digits(options.digits_file, options.hidden > 0 ? options.hidden : mlp_hidden);
  if (name == "text") return make_text(options.text_file, options.hidden > 0 ? options.hidden : text_hidden);
  throw UsageError("unknown workload '" + std::string(name) + "'; there are quadratic, logistic, mlp and text");
}

}  // namespace gossamer::sim
