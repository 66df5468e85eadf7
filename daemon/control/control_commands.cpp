#include "daemon/control/control_commands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

namespace gossamer::daemon {

nlohmann::json answer_from(const std::vector<ControlCommand>& table, const nlohmann::json& request,
                           const std::function<bool(CommandFor)>& may) {
  const std::string name = request.at("command");
  const auto row = std::ranges::find(table, name, &ControlCommand::name);
  if (row == table.end()) {
    std::vector<std::string> everyones;
    std::vector<std::string> owners;
    for (const ControlCommand& command : table)
      (command.whom == CommandFor::everyone ? everyones : owners).emplace_back(command.name);
    return {{"error", fmt::format("command \"{}\" is not known; there are {}, and for root and the user that gossamerd "
                                  "runs as {}",
                                  name, fmt::join(everyones, ", "), fmt::join(owners, ", "))}};
  }
  if (!may(row->whom)) {
    return {{"error", fmt::format("this command is for {}: try it with sudo",
                                  row->whom == CommandFor::steerers
                                      ? "root, the user that gossamerd runs as and whom [rights] steer names"
                                      : "root and the user that gossamerd runs as")}};
  }
  return row->answer(request);
}

}  // namespace gossamer::daemon
