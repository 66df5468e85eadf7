// Tests what a user is told of a wrong use.

#pragma once

#include <functional>
#include <string>

#include "tools/sim/commands.hpp"

namespace gossamer::sim {

/// The text of the UsageError that `action` throws; empty if it throws none.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

}  // namespace gossamer::sim
