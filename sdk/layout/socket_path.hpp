// The places of the daemon's Unix sockets. The client library, gossamerctl and the daemon share this rule, so that they
// meet without configuration. Called at start-up and at each attempt to connect, from any thread.
//
// A path from an option or from the environment is used as it is. Otherwise the socket is in one of three folders, in
// this order: /run/gossamer (the system's daemon), $XDG_RUNTIME_DIR/gossamer (a user's daemon), /tmp/gossamer-UID
// (neither). The daemon takes the first folder that it can create and write; clients try those in which the socket
// exists. The folder in /tmp counts only if it is a real folder that belongs to this user, because anyone may create
// names there.

#pragma once

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <expected>
#include <string>
#include <vector>

#include "sdk/layout/attach.hpp"

namespace gossamer::layout {

inline constexpr const char* client_socket_environment = "GOSSAMER_SOCKET";
inline constexpr const char* control_socket_environment = "GOSSAMER_CONTROL_SOCKET";

/// The longest path that fits a socket address, without its terminator.
inline constexpr std::size_t max_socket_path_bytes = sizeof(sockaddr_un::sun_path) - 1;

namespace detail {

struct SocketFolder {
  std::string path;
  mode_t mode;       ///< the folder's mode if the daemon creates it
  bool must_be_own;  ///< everyone may write to its parent
};

[[nodiscard]] inline std::vector<SocketFolder> socket_folders() {
  std::vector<SocketFolder> folders{{"/run/gossamer", 0755, false}};
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') folders.push_back({std::string(runtime) + "/gossamer", 0700, false});
  folders.push_back({"/tmp/gossamer-" + std::to_string(geteuid()), 0700, true});
  return folders;
}

[[nodiscard]] inline bool folder_is_trusted(const SocketFolder& folder) {
  struct stat info;
  if (lstat(folder.path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
  return !folder.must_be_own || (info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0);
}

[[nodiscard]] inline std::vector<std::string> existing_sockets(const char* environment, const char* file_name) {
  const char* named = std::getenv(environment);
  if (named != nullptr && named[0] != '\0') return {named};
  std::vector<std::string> paths;
  for (const SocketFolder& folder : socket_folders()) {
    const std::string path = folder.path + "/" + file_name;
    struct stat info;
    if (folder_is_trusted(folder) && stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) paths.push_back(path);
  }
  return paths;
}

}  // namespace detail

/// The paths that a client tries, best first. A path from the environment is returned whether it exists or not.
/// Otherwise only existing sockets are returned; there are none if no daemon has run.
[[nodiscard]] inline std::vector<std::string> client_sockets() {
  return detail::existing_sockets(client_socket_environment, client_socket_name);
}

/// The paths that gossamerctl tries, by the same rule.
[[nodiscard]] inline std::vector<std::string> control_sockets() {
  return detail::existing_sockets(control_socket_environment, control_socket_name);
}

/// The folder in which the daemon puts its sockets, created if need be. An error names every folder tried and why it
/// failed.
[[nodiscard]] inline std::expected<std::string, std::string> make_socket_folder() {
  std::string problems;
  for (const detail::SocketFolder& folder : detail::socket_folders()) {
    const bool made = mkdir(folder.path.c_str(), folder.mode) == 0;
    const int mkdir_error = made ? 0 : errno;
    std::string problem;
    if (!made && mkdir_error != EEXIST) {
      problem = std::strerror(mkdir_error);
    } else if (!detail::folder_is_trusted(folder)) {
      problem = "exists but is not a folder that only this user can write";
    } else if (access(folder.path.c_str(), W_OK | X_OK) != 0) {
      problem = std::strerror(errno);
    } else {
      return folder.path;
    }
    problems += (problems.empty() ? "" : "; ") + folder.path + ": " + problem;
  }
  return std::unexpected("no folder for the sockets: " + problems +
                         ". Set the socket path in the configuration or in " + client_socket_environment + " and " +
                         control_socket_environment + ".");
}

/// The address of a socket path, or what is wrong with the path.
[[nodiscard]] inline std::expected<sockaddr_un, std::string> socket_address(const std::string& path) {
  if (path.empty() || path.size() > max_socket_path_bytes) {
    return std::unexpected("the socket's path has " + std::to_string(path.size()) + " bytes, it must have 1 to " +
                           std::to_string(max_socket_path_bytes));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

/// The message for a client or gossamerctl whose connection to the socket has ended with EACCES: why, and what to do.
/// Asks the system for the names of users and groups.
[[nodiscard]] inline std::string no_right_to(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return "its folder is closed to this user; ask who runs the daemon to open it";
  if (info.st_gid == 0) {
    return "it is for root only; let the daemon run as a user of its own, as its systemd unit does, or use it as root";
  }
  std::array<char, 4096> text;
  passwd user{};
  passwd* user_found = nullptr;
  const bool user_asked = getpwuid_r(geteuid(), &user, text.data(), text.size(), &user_found) == 0;
  const std::string user_name = user_asked && user_found != nullptr ? user_found->pw_name : std::to_string(geteuid());
  group owner{};
  group* owner_found = nullptr;
  const bool owner_asked = getgrgid_r(info.st_gid, &owner, text.data(), text.size(), &owner_found) == 0;
  const std::string owner_name =
      owner_asked && owner_found != nullptr ? owner_found->gr_name : std::to_string(info.st_gid);
  return "it is for the group " + owner_name + ", and this process of user " + user_name +
         " is not in it: as root, usermod -aG " + owner_name + " " + user_name + "; then log in again";
}

}  // namespace gossamer::layout
