// Has an operator's key file sign what the daemon says is to be signed (daemon/cluster/cluster_commands.hpp).
//
// The daemon need not be trusted: what it asks to sign is compared with what was typed, the statement is made here, and
// what was signed is shown. The key never leaves this process. For the commands of gossamerctl, on its only thread.

#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "peer/keys/authority.hpp"
#include "tools/ctl/commands.hpp"

namespace gossamer::ctl {

inline constexpr const char* key_file_help = "The key file of the cluster's authority, or of a deputy, if it has one";

/// Microseconds since 1970, by the clock here.
[[nodiscard]] TimeUs time_of_day();

/// Whether the item is what the operator wants to sign.
using IsAsAsked = std::function<bool(const nlohmann::json& item)>;

/// Sends a request. If the daemon answers with something to sign, signs it, and sends the request again with that.
[[nodiscard]] JsonAnswer decide(nlohmann::json request, const std::string& key_file, const IsAsAsked& is_as_asked,
                                const Invocation& call);
/// The key in the file, if the daemon's answer names it as the authority's or as that of a deputy who may sign `what`.
[[nodiscard]] std::expected<peer::SigningKey, ControlError> signing_key(const std::string& key_file,
                                                                        const nlohmann::json& answer,
                                                                        const std::string& what = "");
/// Signs all items, and shows them to the operator.
[[nodiscard]] JsonAnswer signatures_for(const nlohmann::json& items, const peer::SigningKey& key);
/// The decision in words, for the operator who signs it.
[[nodiscard]] std::string words_of_decision(const nlohmann::json& item);
/// Hexadecimal digits as the daemon writes them.
[[nodiscard]] std::string digits_of(std::string typed);
/// Asks the question on the terminal. True for the answer y, Y or yes; false without a terminal.
[[nodiscard]] bool is_confirmed(const std::string& question);

}  // namespace gossamer::ctl
