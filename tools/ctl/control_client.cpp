#include "tools/ctl/control_client.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/socket_path.hpp"
#include "tools/ctl/commands.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

struct NoConnection {
  std::string why;         ///< the cause, as a phrase
  bool forbidden = false;  ///< whether this user may not use the socket
};

std::expected<FileDescriptor, NoConnection> connect_to(const std::string& path) {
  const auto address = layout::socket_address(path);
  if (!address) return std::unexpected(NoConnection{address.error()});
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{answer_timeout.count(), 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0) return socket;
  if (errno == EACCES) return std::unexpected(NoConnection{layout::no_right_to(path), true});
  if (errno == EPROTOTYPE)
    return std::unexpected(NoConnection{"programs train over it; gossamerctl wants the control socket beside it"});
  return std::unexpected(NoConnection{std::strerror(errno)});
}

/// Sends a line and receives one. An error is a phrase that says what went wrong.
std::expected<std::string, std::string> answer_to(const std::string& question, const FileDescriptor& socket) {
  if (::send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(question.size()))
    return std::unexpected(fmt::format("the question could not be sent: {}", std::strerror(errno)));
  std::string line;
  std::array<char, 16 * 1024> part;
  while (line.size() <= max_answer_bytes) {
    const ssize_t got = ::recv(socket.get(), part.data(), part.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN)
      return std::unexpected(
          fmt::format("no answer within {} s; what was asked for may still be done", answer_timeout.count()));
    if (got < 0) return std::unexpected(fmt::format("the answer could not be read: {}", std::strerror(errno)));
    if (got == 0) return std::unexpected("the connection was closed before the answer was complete");
    line.append(part.data(), static_cast<std::size_t>(got));
    if (line.back() == '\n') return line;
  }
  return std::unexpected("the answer is longer than any this tool expects");
}

ControlError no_daemon(const std::vector<std::string>& tried) {
  const std::string where = tried.empty() ? "there is no control socket in the usual places"
                                          : fmt::format("no daemon answers at {}", fmt::join(tried, "; "));
  return {Failure::no_daemon,
          fmt::format("{}: is gossamerd running? If its socket is elsewhere, name it with --socket or {}.", where,
                      layout::control_socket_environment)};
}

}  // namespace

JsonAnswer request(const std::vector<std::string>& sockets, const nlohmann::json& request) {
  std::vector<std::string> tried;
  for (const std::string& path : sockets) {
    const auto socket = connect_to(path);
    if (!socket) {
      if (socket.error().forbidden)
        return std::unexpected(
            ControlError{Failure::no_daemon, fmt::format("{} may not be used: {}", path, socket.error().why)});
      tried.push_back(fmt::format("{} ({})", path, socket.error().why));
      continue;
    }
    const auto bad = [&](const std::string& what) {
      return std::unexpected(ControlError{Failure::bad_answer, fmt::format("{}: {}", path, what)});
    };
    const auto line = answer_to(request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n", *socket);
    if (!line) return bad(line.error());
    nlohmann::json answer = nlohmann::json::parse(*line, nullptr, false);
    if (!answer.is_object()) return bad("the answer is not a JSON object: is this a control socket of gossamerd?");
    if (answer.contains("error"))
      return bad(safe_text(answer["error"].is_string() ? answer["error"].get<std::string>() : answer["error"].dump()));
    return answer;
  }
  return std::unexpected(no_daemon(tried));
}

std::string Invocation::client_socket() const {
  if (!socket_given && std::getenv(layout::client_socket_environment) != nullptr) return "";
  for (const std::string& control : sockets) {
    const auto beside = std::filesystem::path(control).parent_path() / layout::client_socket_name;
    if (std::error_code error; std::filesystem::is_socket(beside, error)) return beside.string();
  }
  return "";
}

}  // namespace gossamer::ctl
