// What a line of the log is about, taken from its words, so that programs find it as fields of its own.
//
// The words are a convention of the whole daemon: what is about a job begins with "job NAME: ", and another node is
// called "node " and the eight digits of NodeId::brief(). A function of the text alone; any thread.

#pragma once

#include <string_view>

namespace gossamer::daemon {

/// Views into the text that was looked at. Empty: the line is about none.
struct LogFields {
  std::string_view job;
  std::string_view node;     ///< the first that is named
  std::string_view message;  ///< the text without the job's prefix
};

[[nodiscard]] LogFields fields_of(std::string_view text);

}  // namespace gossamer::daemon
