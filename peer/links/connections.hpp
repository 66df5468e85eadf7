// Knows the connections to the listening port, and decides which of them are to be closed.
//
// A connection is a stranger's until a hello has been accepted on it. Strangers hold descriptors and memory of this
// process, so each has `patience`, may send `max_stranger_bytes`, and there are at most `max_strangers` of them. If
// there is one more, a stranger of the host that has the most is closed. So a host that floods the port closes its own
// connections, and nodes at other addresses still come in. Addresses of one IPv6 network of 64 bits are one host. Of
// hosts that have equally many, one goes that has lately come most often: whoever is closed and comes back at once,
// from many addresses, closes its own connections, too. A node whose handshakes are cut off comes less often than
// usual_arrivals. Of the rest, and of a host's connections, one goes that has got least far in the handshake; among
// equals chance decides between hosts, so that somebody with many addresses cannot know whom it drives out. When a link
// ends, its connections are strangers again.
//
// Does no I/O: the listener tells of connections by their descriptors, and closes those that are named. One owner.

#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gossip/random.hpp"
#include "peer/limits.hpp"
#include "peer/links/tcp_connection.hpp"

namespace gossamer::peer {

class Connections {
 public:
  struct End {
    std::string host;
    int port = 0;
    bool operator==(const End&) const = default;
  };
  struct Closing {
    enum class Why { too_many, late, too_much /* has been sent */ };
    int descriptor = -1;
    End end;  ///< the other end; compare it before closing, since the descriptor may be reused
    Why why = Why::too_many;
  };

  /// A connection that has ended.
  struct Ended {
    End end;
    bool admitted = false;
    bool spoke = false;       ///< a message has come on it
    std::uint64_t order = 0;  ///< higher than that of each that had connected before
  };

  Connections(std::size_t max_strangers, TimeUs patience) : max_strangers_(max_strangers), patience_(patience) {}

  /// A stranger has connected. Names the connection that has to be closed to make room for it, if there is one.
  [[nodiscard]] std::optional<Closing> opened(int descriptor, End end, TimeUs now);
  /// A stranger has connected and gone before its address could be read. closed() comes next.
  void had_ended(int descriptor, TimeUs now);
  /// A connection has ended; nothing if it is not known.
  std::optional<Ended> closed(int descriptor);
  /// True if a message has come on the connection.
  [[nodiscard]] bool has_spoken(int descriptor) const;
  [[nodiscard]] bool is_admitted(int descriptor, const End& end) const;
  /// The first message has come on the connection. May be called before opened().
  void spoke(int descriptor, const End& end, TimeUs now);
  /// `routing_id` is not empty. May be called before opened(), since messages and events come by different sockets.
  void admit(int descriptor, const End& end, const std::string& routing_id);
  /// The connection is a stranger's from now on, if it is still there.
  void dismiss(const std::string& routing_id, TimeUs now);
  /// The strangers whose time is over. Each is named once.
  [[nodiscard]] std::vector<Closing> take_late(TimeUs now);
  /// The strangers that have sent too much, each named once. `bytes_on` gives the bytes that have ever come and gone on
  /// a descriptor. Bytes that came on a connection before it was dismissed do not count.
  [[nodiscard]] std::vector<Closing> take_greedy(const std::function<TcpBytes(int)>& bytes_on);
  [[nodiscard]] std::size_t strangers() const { return strangers_; }
  /// The order of the connection that has come last.
  [[nodiscard]] std::uint64_t last_order() const { return opened_; }
  [[nodiscard]] TimeUs patience() const { return patience_; }

 private:
  /// How far a stranger has got in the handshake, as of the last look.
  enum class Progress {
    silent,     ///< it has sent nothing
    greets,     ///< it has sent something
    is_heard,   ///< it was answered more than a greeting: it knows the listening key, or has a ticket
    is_unseen,  ///< nobody has looked yet
  };
  struct Connection {
    End end;
    std::string routing_id;                       ///< empty: a stranger's
    TimeUs since = 0;                             ///< since when it is a stranger's
    std::optional<std::uint64_t> bytes_then = 0;  ///< bytes that had come on it by `since`; nothing: not looked at yet
    std::uint64_t order = 0;
    bool spoke = false;
    Progress progress = Progress::is_unseen;
  };

  using Table = std::map<int, Connection>;

  /// The strangers of one host (host_of()).
  struct Host {
    std::map<std::uint64_t, int> strangers;  ///< their descriptors, by order
    std::uint32_t excess = 0;                ///< by how many it has come more often than usual_arrivals
  };

  void put(int descriptor, Connection connection);
  void count(int descriptor, const Connection& connection);
  void discount(const Connection& connection);
  void note_arrival(const std::string& host, TimeUs now);
  [[nodiscard]] std::vector<const Host*> crowded_hosts() const;
  [[nodiscard]] Table::iterator one_too_many();
  /// Returns what is behind it.
  Table::iterator take_out(Table::iterator which);
  /// Takes out the strangers for which `is_over` is true, and names them.
  [[nodiscard]] std::vector<Closing> take(Closing::Why why,
                                          const std::function<bool(int descriptor, Connection&)>& is_over);

  std::size_t max_strangers_;
  TimeUs patience_;
  Table connections_;                    // the key is the descriptor
  std::map<std::string, Host> of_host_;  ///< under a flood each that comes has to be quick
  /// How often each host has come since recent_since_, and in as long a time before. At most max_throttled hosts each.
  std::unordered_map<std::string, std::uint32_t> recent_, earlier_;
  TimeUs recent_since_ = 0;
  std::size_t strangers_ = 0;
  std::uint64_t opened_ = 0;
  gossip::Random random_{1};
};

}  // namespace gossamer::peer
