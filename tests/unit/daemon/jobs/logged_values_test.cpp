// Tests the means of what programs have logged.

#include "daemon/jobs/logged_values.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

std::unique_ptr<layout::Logged> memory_with(const std::vector<LoggedValue>& values) {
  auto memory = std::make_unique<layout::Logged>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(memory->entries[i].name, values[i].name.data(), values[i].name.size());
    memory->entries[i].value = std::bit_cast<std::uint64_t>(values[i].value);
  }
  memory->count = static_cast<std::uint32_t>(values.size());
  return memory;
}

}  // namespace

TEST_CASE("logged values are averaged over the processes here, and over the nodes that tell of them") {
  const auto first = memory_with({{"loss", 1}, {"accuracy", 0.5}});
  const auto second = memory_with({{"loss", 2}});
  const std::vector<layout::Logged*> here = {first.get(), second.get()};
  const std::vector<std::vector<LoggedValue>> others = {{{"loss", 3}, {"other", 7}}, {}, {{"loss", 6}}};
  const auto means = means_of_logged(here, others);
  REQUIRE(means.size() == 2);
  CHECK(means[0].name == "accuracy");
  CHECK((means[0].value == 0.5 && means[0].mean == 0.5 && means[0].nodes == 1));
  CHECK(means[1].name == "loss");
  CHECK(means[1].value == 1.5);
  CHECK(means[1].mean == Approx(3.5));
  CHECK(means[1].nodes == 3);
  tell_means(*second, means);
  CHECK(std::bit_cast<double>(second->entries[0].mean.load()) == Approx(3.5));
  CHECK(second->entries[0].nodes == 3);
}

TEST_CASE("a client may write what it likes where it logs") {
  const auto memory = memory_with({{"", 1}, {"a\nb", 2}, {"good", std::nan("")}, {std::string(32, 'x'), 4}});
  memory->count = 0xffffffff;
  const std::vector<layout::Logged*> here = {memory.get()};
  const auto means = means_of_logged(here, {});
  REQUIRE(means.size() == 1);
  CHECK(means[0].name == "good");
  CHECK(std::isnan(means[0].value));
  tell_means(*memory, means);
  CHECK(memory->entries[2].nodes == 1);
}

TEST_CASE("no more names are told than may be") {
  std::vector<LoggedValue> values;
  for (std::size_t i = 0; i < max_logged; ++i)
    values.push_back({"a" + std::to_string(i), 0});
  const auto first = memory_with(values);
  const auto second = memory_with({{"b", 1}});
  const std::vector<layout::Logged*> here = {first.get(), second.get()};
  CHECK(means_of_logged(here, {}).size() == max_logged);
}
