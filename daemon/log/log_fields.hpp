// Finds in the words of a log line which job and which node it is about, so that programs get them as fields.
//
// The whole daemon follows one convention: a line about a job begins with "job NAME: ", and another node is called
// "node " and the eight digits of NodeId::brief(). The result depends on the text alone; any thread may call this.

#pragma once

#include <string_view>

namespace gossamer::daemon {

/// Views into the text. An empty view means that the line is about no job, or no node.
struct LogFields {
  std::string_view job;
  std::string_view node;     ///< the first node that the line names
  std::string_view message;  ///< the text without the job's prefix
};

[[nodiscard]] LogFields fields_of(std::string_view text);

}  // namespace gossamer::daemon
