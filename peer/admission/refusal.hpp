// Says why a decision that a member tells of is not followed, in the words of the log and of the audit.
//
// Used by peer/admission/ only. Pure, any thread.

#pragma once

#include <string>

#include "gossip/types.hpp"
#include "peer/keys/certificate.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {

enum class Refusal {
  ahead,       ///< It is dated more than max_ahead_us ahead of the clock here.
  not_signed,  ///< Neither the authority nor any deputy, present or dismissed, has signed it.
  no_right,    ///< A deputy has signed it who may not.
  no_room,     ///< The table is full.
};

/// True for a date that is not believed, so that nobody can make a decision that no later one replaces.
[[nodiscard]] inline bool is_too_far_ahead(TimeUs dated_at, TimeUs time_of_day) {
  return dated_at > time_of_day + max_ahead_us;
}

/// `what`: the decision, for example "cluster key 0123456789abcdef".
[[nodiscard]] inline std::string words_of(Refusal why, const std::string& what, TimeUs dated_at) {
  switch (why) {
    case Refusal::ahead:
      return what + ", dated " + date_text(dated_at) +
             ", which is more than a day ahead of the clock here: correct the clock of that node, or of this one, and "
             "decide it again";
    case Refusal::not_signed:
      return what + ", not signed by whoever decides in the cluster (gossamerctl authority show)";
    case Refusal::no_right:
      return what + ", signed by a deputy who may not decide that (gossamerctl authority show)";
    case Refusal::no_room:
      break;
  }
  return what + ", for which there is no room here: as many as can be kept are known";
}

}  // namespace gossamer::peer
