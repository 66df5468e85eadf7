// The log's way into systemd's journal: each line an entry with fields, over the journal's own socket.
//
// Any thread (the sink has a mutex). Fields are MESSAGE, PRIORITY, SYSLOG_IDENTIFIER, and, of a line that is about one,
// GOSSAMER_JOB and GOSSAMER_NODE. What the journal does not take is written to standard error as "<PRIORITY>message",
// which systemd reads: the sink is for a daemon whose standard error goes there.

#pragma once

#include <spdlog/sinks/sink.h>

namespace gossamer::daemon {

/// Whether systemd reads this process's standard error into the journal.
[[nodiscard]] bool journal_reads_stderr();

/// The severity of syslog(3), as a digit: 4 is a warning.
[[nodiscard]] char syslog_severity(spdlog::level::level_enum level);

[[nodiscard]] spdlog::sink_ptr make_journal_sink();

}  // namespace gossamer::daemon
