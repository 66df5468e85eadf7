// The connections to the listening port, and which of them are to be closed.
//
// A connection is a stranger's until a hello has been accepted on it. Strangers hold descriptors and memory of this
// process, so they get `patience` and no more, and there are at most `max_strangers` of them: one more, and the oldest
// goes of the host that has the most. So who floods the port from one address closes his own connections, and nodes at
// other addresses still come in. When a link ends, its connections are strangers again.
//
// Decides only: the listener tells it of connections by their descriptors and closes what it names. One owner.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::peer {

class Connections {
 public:
  struct End {
    std::string host;
    int port = 0;
    bool operator==(const End&) const = default;
  };
  struct Closing {
    int descriptor = -1;
    End end;            ///< the other one; whoever closes looks whether it is still there
    bool late = false;  ///< it had its time; otherwise there were too many
  };

  Connections(std::size_t max_strangers, TimeUs patience) : max_strangers_(max_strangers), patience_(patience) {}

  /// A stranger has connected. Names the one that has to go for it, if any.
  [[nodiscard]] std::optional<Closing> opened(int descriptor, End end, TimeUs now);
  /// True if it was an admitted one.
  bool closed(int descriptor);
  /// `routing_id`: not empty. Also before it has been told of: messages and events come by different ways.
  void admit(int descriptor, const End& end, const std::string& routing_id);
  /// It is a stranger from now on, if it is still there.
  void dismiss(const std::string& routing_id, TimeUs now);
  /// Those whose time is over. Each is named once.
  [[nodiscard]] std::vector<Closing> take_late(TimeUs now);
  [[nodiscard]] std::size_t strangers() const;

 private:
  struct Connection {
    End end;
    std::string routing_id;  ///< empty: a stranger
    TimeUs since = 0;        ///< a stranger
    std::uint64_t order = 0;
  };

  [[nodiscard]] std::map<int, Connection>::iterator one_too_many();

  std::size_t max_strangers_;
  TimeUs patience_;
  std::map<int, Connection> connections_;  // by descriptor
  std::uint64_t opened_ = 0;
};

}  // namespace gossamer::peer
