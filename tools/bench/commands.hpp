// The subcommands of gossamer-bench, with one file for each. An add_…_command() declares the subcommand with its
// options; its work runs when the command line is parsed. Main thread.

#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "peer/limits.hpp"

namespace gossamer::bench {

/// Adds an option for numbers from `least` to `most`, whose default --help shows.
template <class Value, class Bound>
void add_number(CLI::App* command, const std::string& name, Value& value, Bound least, Bound most,
                const std::string& text) {
  command->add_option(name, value, text)->capture_default_str()->check(CLI::Range(least, most));
}

/// Adds --bulk.
inline void add_bulk(CLI::App* command, peer::BulkProtection& bulk) {
  std::map<std::string, peer::BulkProtection> names;
  for (const peer::BulkProtection one :
       {peer::BulkProtection::sealed, peer::BulkProtection::plain, peer::BulkProtection::curve})
    names.emplace(peer::name_of(one), one);
  command->add_option("--bulk", bulk, "How the values are protected, as [overlay] bulk (default: sealed)")
      ->transform(CLI::CheckedTransformer(names));
}

/// The codec's kernels beside STREAM's triad and copy.
void add_codec_command(CLI::App& app);

/// gossamer_step() of the client library, beside the memory traffic that it must cause.
void add_step_command(CLI::App& app);

/// Two daemons that average a model, beside raw ZeroMQ with CURVE.
void add_exchange_command(CLI::App& app);

/// Several links of one node, by its number of I/O threads.
void add_links_command(CLI::App& app);

}  // namespace gossamer::bench
