// Values that people choose by name on the command line. Pure; any thread.

#pragma once

#include <fmt/format.h>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "gossip/types.hpp"
#include "tools/sim/commands.hpp"

namespace gossamer::sim {

/// A value and its name.
template <class Value>
using Named = std::pair<std::string_view, Value>;

inline constexpr Named<Codec> codecs[] = {{"f32", Codec::f32}, {"q8", Codec::q8}, {"q4", Codec::q4}};

/// The value that is called `name`. Throws UsageError, with all names, if there is none. `what` says what is named, for
/// instance "partition".
template <class Value, std::size_t count>
[[nodiscard]] Value value_named(std::string_view what, std::string_view name, const Named<Value> (&values)[count]) {
  std::string names;
  for (const auto& [known, value] : values) {
    if (known == name) return value;
    names += fmt::format("{}{}",
                         &known == &values[0].first           ? ""
                         : &known == &values[count - 1].first ? " and "
                                                              : ", ",
                         known);
  }
  throw UsageError(fmt::format("unknown {} '{}'; there are {}", what, name, names));
}

}  // namespace gossamer::sim
