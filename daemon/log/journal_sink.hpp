// Writes the log into systemd's journal: each line becomes an entry with fields, sent over the journal's own socket.
//
// Any thread may use it; the sink has a mutex. The fields are MESSAGE, PRIORITY and SYSLOG_IDENTIFIER, and GOSSAMER_JOB
// and GOSSAMER_NODE where a line is about one. An entry that the journal does not take is written to standard error as
// "<PRIORITY>message", which systemd reads; the sink is meant for a daemon whose standard error goes there.

#pragma once

#include <spdlog/sinks/sink.h>

namespace gossamer::daemon {

/// Whether systemd reads this process's standard error into the journal.
[[nodiscard]] bool journal_reads_stderr();

/// The severity of syslog(3), as a digit: 4 is a warning.
[[nodiscard]] char syslog_severity(spdlog::level::level_enum level);

[[nodiscard]] spdlog::sink_ptr make_journal_sink();

}  // namespace gossamer::daemon
