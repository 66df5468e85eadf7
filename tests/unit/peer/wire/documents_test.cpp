// Tests that the numbers in the table of limits of docs/reference/wire.md are those of the constants.

#include <fstream>
#include <map>
#include <sstream>

#include "catch.hpp"
#include "gossip/membership/membership_messages.hpp"
#include "gossip/messages.hpp"
#include "gossip/replica/job_clock.hpp"
#include "peer/limits.hpp"
#include "peer/wire/capnp.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

std::string wire_page() {
  std::ifstream file(GOSSAMER_DOCS_DIR "/reference/wire.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Rows of the form: | what | `constant` | number |
std::map<std::string, long long> limits_in(const std::string& page) {
  std::map<std::string, long long> limits;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t start = line.find("| `");
    const std::size_t stop = line.find("` | ", start == std::string::npos ? 0 : start);
    if (start == std::string::npos || stop == std::string::npos) continue;
    const std::string number = line.substr(stop + 4);
    if (number.find_first_of("0123456789") > 1) continue;
    limits[line.substr(start + 3, stop - start - 3)] = std::stoll(number);
  }
  return limits;
}

}  // namespace

TEST_CASE("docs/reference/wire.md: the limits are the code's") {
  const std::map<std::string, long long> expected{
      {"max_header_bytes", max_header_bytes},
      {"max_hello_bytes", max_hello_bytes},
      {"max_payload_frames", max_payload_frames},
      {"max_payload_frame_bytes", max_payload_frame_bytes},
      {"max_wire_frame_bytes", max_wire_frame_bytes},
      {"max_cut_header_bytes", max_cut_header_bytes},
      {"max_fragment_blocks", max_fragment_blocks},
      {"max_fragments", max_fragments},
      {"min_shift_bound", min_shift_bound},
      {"max_shift_bound", max_shift_bound},
      {"min_step_exponent", min_step_exponent},
      {"max_step_exponent", max_step_exponent},
      {"max_job_name_bytes", max_job_name_bytes},
      {"max_cursor_bytes", max_cursor_bytes},
      {"max_job_settings", max_job_settings},
      {"max_average_members", gossip::max_average_members},
      {"max_taken", gossip::max_taken},
      {"max_average_round", gossip::max_average_round},
      {"max_setting_name_bytes", max_setting_name_bytes},
      {"max_setting_value_bytes", max_setting_value_bytes},
      {"max_settings_version", max_settings_version},
      {"max_settings_leap", max_settings_leap},
      {"max_clock_samples", gossip::max_clock_samples},
      {"max_layout_tensors", max_layout_tensors},
      {"max_told_tensors", max_told_tensors},
      {"max_tensor_name_bytes", max_tensor_name_bytes},
      {"max_tensor_dimensions", max_tensor_dimensions},
      {"max_summaries", max_summaries},
      {"max_summary_jobs", max_summary_jobs},
      {"max_summary_links", max_summary_links},
      {"max_summary_name_bytes", max_summary_name_bytes},
      {"max_summary_age_ms", max_summary_age_ms},
      {"max_name_bytes", max_name_bytes},
      {"max_address_bytes", max_address_bytes},
      {"max_text_bytes", max_text_bytes},
      {"max_members", max_members},
      {"max_links", max_links},
      {"max_cluster_keys", max_cluster_keys},
      {"max_message_rumours", max_message_rumours},
      {"max_sync_entries", max_sync_entries},
      {"max_shuffle_records", max_shuffle_records},
      {"max_walk_hops", max_walk_hops},
      {"max_rumour_hops", max_rumour_hops},
      {"max_patience_us", max_patience_us},
      {"max_member_address_bytes", max_member_address_bytes},
      {"max_retired_keys", max_retired_keys},
      {"max_listening_keys", max_listening_keys},
      {"max_strangers", max_strangers},
      {"stranger_patience_us", stranger_patience_us},
      {"max_stranger_bytes", max_stranger_bytes},
      {"max_denials", max_denials},
      {"max_denials_in_message", max_denials_in_message},
      {"max_deputies", max_deputies},
      {"max_deputies_in_hello", max_deputies_in_hello},
      {"max_certificates", max_certificates},
      {"max_certificates_in_message", max_certificates_in_message},
      {"max_certificate_bytes", max_certificate_bytes},
      {"max_jobs_text_bytes", max_jobs_text_bytes},
      {"max_ahead_us", max_ahead_us},
      {"max_invitation_addresses", max_invitation_addresses},
      {"max_malformed_messages", max_malformed_messages},
      {"hello_burst", hello_burst},
      {"hellos_per_s", hellos_per_s},
      {"hello_burst_of_host", hello_burst_of_host},
      {"hellos_per_s_of_host", hellos_per_s_of_host},
      {"max_throttled", max_throttled},
  };
  CHECK(limits_in(wire_page()) == expected);
}

TEST_CASE("docs/reference/wire.md: every kind of message is on the page, and the version") {
  const std::string page = wire_page();
  for (const auto field : capnp::Schema::from<wire::Header>().getUnionFields()) {
    const std::string name = field.getProto().getName().cStr();
    INFO(name);
    CHECK(page.find(name) != std::string::npos);
  }
  CHECK(page.find("This is version " + std::to_string(protocol_version_high)) != std::string::npos);
}
