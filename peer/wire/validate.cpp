#include "peer/wire/validate.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "gossip/job_settings.hpp"
#include "gossip/plain_text.hpp"
#include "gossip/replica/job_clock.hpp"
#include "peer/address.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

using Fault = std::optional<std::string_view>;

bool is_codec(Codec codec) {
  return codec == Codec::f32 || codec == Codec::q8 || codec == Codec::q4;
}
bool is_shift(std::uint8_t shift) {
  return shift >= min_shift_bound && shift <= max_shift_bound;
}
bool is_reason(RefuseReason reason) {
  return static_cast<std::uint8_t>(reason) <= max_refuse_reason;
}
bool is_exponent(std::int8_t exponent) {
  return exponent >= min_step_exponent && exponent <= max_step_exponent;
}

std::size_t count_bits(std::span<const std::byte> bitmap) {
  std::size_t count = 0;
  for (const std::byte b : bitmap)
    count += static_cast<std::size_t>(std::popcount(std::to_integer<unsigned>(b)));
  return count;
}

/// True if the bits of the last byte that stand for no block are zero.
bool is_tail_clear(std::span<const std::byte> bitmap, std::size_t blocks) {
  return blocks % 8 == 0 || (std::to_integer<unsigned>(bitmap.back()) >> blocks % 8) == 0;
}

bool is_side_sound(const ExchangeRequest& request) {
  const auto exponents = request.side.as<std::int8_t>().first(request.block_count);
  const bool pad_is_zero = request.block_count % 2 == 0 || request.side.data[request.block_count] == std::byte{0};
  return pad_is_zero && std::ranges::all_of(exponents, is_exponent);
}

bool is_sound(const std::optional<TracerValues>& tracer) {
  return !tracer || (tracer->round > 0 && std::ranges::all_of(tracer->values, [](double value) {
                       return std::abs(value) <= max_tracer_value;  // false for NaN
                     }));
}

Fault check(const ExchangeRequest& request) {
  if (!is_codec(request.codec)) return "unknown codec";
  if (request.fragment >= max_fragments) return "fragment index out of bounds";
  if (!is_shift(request.min_shift)) return "shift out of bounds";
  if (request.clock > gossip::max_clock_samples) return "clock out of bounds";
  if (!(request.clip >= 0) || std::isinf(request.clip)) return "clip out of bounds";
  if (!(request.weight >= 0) || std::isinf(request.weight)) return "weight out of bounds";
  if (!(request.usual >= 0) || std::isinf(request.usual)) return "usual distance out of bounds";
  if (request.block_count == 0 || request.block_count > max_fragment_blocks) return "block count out of bounds";
  if (!request.blocks.empty()) {
    if (request.blocks.size() > bitmap_bytes(max_fragment_blocks)) return "block bitmap too long";
    if (count_bits(request.blocks.data) != request.block_count) return "block bitmap and block count disagree";
  }
  if (request.side.size() != side_bytes(request.codec, request.block_count)) return "side frame has a wrong size";
  if (request.values.size() != request.block_count * codec_block_bytes(request.codec)) {
    return "value frame has a wrong size";
  }
  if (!is_side_sound(request)) return "step exponent out of bounds";
  if (!is_sound(request.tracer)) return "tracer out of bounds";
  return {};
}

Fault check_done(const ExchangeReply& reply) {
  if (reply.reason != RefuseReason::none) return "a reply that is done gives a reason";
  if (!is_sound(reply.tracer)) return "tracer out of bounds";
  if (!is_shift(reply.shift)) return "shift out of bounds";
  if (reply.block_count == 0) return "block count out of bounds";
  if (reply.differences.size() != reply.block_count * codec_block_bytes(reply.codec)) {
    return "difference frame has a wrong size";
  }
  if (!reply.halvings.empty() && !(reply.limited && reply.halvings.size() == reply.block_count)) {
    return "the scaling of limited blocks has a wrong size";
  }
  const bool lattice = reply.codec != Codec::f32;
  if (lattice && reply.limited) return "a lattice reply has limited differences";
  if (!lattice && !(reply.wide.empty() && reply.asked.empty())) return "an f32 reply has wide blocks";
  if (reply.wide.empty()) return reply.asked.empty() ? Fault{} : "steps are asked for and no block is wide";
  if (reply.wide.size() != bitmap_bytes(reply.block_count)) return "wide bitmap has a wrong size";
  if (!is_tail_clear(reply.wide.data, reply.block_count)) return "wide bitmap has bits beyond the last block";
  if (reply.asked.size() != reply.block_count) return "asked frame has a wrong size";
  if (!std::ranges::all_of(reply.asked.as<std::int8_t>(), is_exponent)) return "step exponent out of bounds";
  return {};
}

Fault check(const ExchangeReply& reply) {
  if (!is_codec(reply.codec)) return "unknown codec";
  if (static_cast<std::uint8_t>(reply.status) > static_cast<std::uint8_t>(ReplyStatus::refused))
    return "unknown status";
  if (!is_reason(reply.reason)) return "unknown reason";
  if (reply.fragment >= max_fragments) return "fragment index out of bounds";
  if (reply.block_count > max_fragment_blocks) return "block count out of bounds";
  if (reply.clock > gossip::max_clock_samples) return "clock out of bounds";
  if (reply.status == ReplyStatus::done) return check_done(reply);
  if (reply.status == ReplyStatus::refused && reply.reason == RefuseReason::none) return "refused without a reason";
  if (!(reply.wide.empty() && reply.asked.empty() && reply.differences.empty()) || reply.limited ||
      !reply.halvings.empty()) {
    return "a reply that is not done has payload";
  }
  return {};
}

Fault check(const ExchangeAck& ack) {
  return static_cast<std::uint8_t>(ack.outcome) > max_outcome ? "unknown outcome" : Fault{};
}

Fault check(const ExchangeInquiry& inquiry) {
  return inquiry.fragment >= max_fragments ? "fragment index out of bounds" : Fault{};
}

Fault check(const JobInfo& info) {
  if (!is_plain_text(info.name, max_job_name_bytes)) return "job name is too long or not plain UTF-8";
  if (static_cast<std::uint8_t>(info.state) > static_cast<std::uint8_t>(ReplicaState::draining)) return "unknown state";
  if (info.clock > gossip::max_clock_samples) return "clock out of bounds";
  if (static_cast<std::uint8_t>(info.finishing) > max_finishing) return "unknown stage of finishing";
  if (const Fault fault = fault_of(info.settings)) return fault;
  for (const LoggedValue& logged : info.logged)
    if (logged.name.empty() || !is_plain_text(logged.name, max_logged_name_bytes))
      return "the name of a logged value is empty, too long or not plain UTF-8";
  if (info.fragment_elements == 0) {
    return info.fragments == 0 && info.elements == 0 ? Fault{} : "elements without a fragment size";
  }
  if (info.fragment_elements > max_fragment_elements || info.fragment_elements % block_elements != 0) {
    return "fragment size out of bounds";
  }
  if (info.elements > std::uint64_t{max_fragments} * info.fragment_elements) return "too many elements";
  if (info.fragments != (info.elements + info.fragment_elements - 1) / info.fragment_elements) {
    return "fragment count and elements disagree";
  }
  return {};
}

Fault check(const JobQuery&) {
  return {};
}

Fault check(const LayoutQuery& query) {
  return query.first_tensor >= max_layout_tensors ? "tensor out of bounds" : Fault{};
}

Fault check(const LayoutTensor& tensor) {
  if (tensor.name.empty() || !is_plain_text(tensor.name, max_tensor_name_bytes))
    return "the name of a tensor is empty, too long or not plain UTF-8";
  if (tensor.dtype > max_tensor_dtype || tensor.role > max_tensor_role) return "a tensor of an unknown kind";
  return tensor.shape.size() > max_tensor_dimensions ? "a tensor with too many dimensions" : Fault{};
}

Fault check(const LayoutReply& reply) {
  if (reply.tensor_count > max_layout_tensors || reply.tensors.size() > max_told_tensors) return "too many tensors";
  if (reply.tensors.size() > reply.tensor_count || reply.first_tensor > reply.tensor_count - reply.tensors.size())
    return "tensors beyond the last";
  if (reply.fragment_elements > max_fragment_elements) return "fragment size out of bounds";
  for (const LayoutTensor& tensor : reply.tensors) {
    if (const Fault fault = check(tensor)) return fault;
  }
  return {};
}

Fault check(const PullRequest& request) {
  return request.fragment >= max_fragments ? "fragment index out of bounds" : Fault{};
}

Fault check(const PullReply& reply) {
  if (reply.fragment >= max_fragments) return "fragment index out of bounds";
  if (!is_reason(reply.reason)) return "unknown reason";
  if (reply.reason != RefuseReason::none && !reply.values.empty()) return "values beside a refusal";
  if (reply.clock > gossip::max_clock_samples) return "clock out of bounds";
  if (reply.cursor.size() > max_cursor_bytes) return "the cursor is too long";
  if (!reply.cursor.empty() && reply.values.empty()) return "a cursor without values";
  if (reply.values.size() > max_payload_frame_bytes || reply.values.size() % codec_block_bytes(Codec::f32) != 0) {
    return "value frame has a wrong size";
  }
  return {};
}

Fault check(const JobSummary& job) {
  if (!is_plain_text(job.name, max_job_name_bytes)) return "job name is too long or not plain UTF-8";
  if (static_cast<std::uint8_t>(job.state) > static_cast<std::uint8_t>(ReplicaState::draining)) return "unknown state";
  if (!std::isfinite(job.consensus) || job.consensus < 0) return "a distance that is no number";
  if (!std::isfinite(job.mixing_per_s) || job.mixing_per_s < 0) return "a rate that is no number";
  return {};
}

Fault check(const NodeSummary& summary) {
  if (!is_plain_text(summary.name, max_summary_name_bytes)) return "name is too long or not plain UTF-8";
  if (summary.age_ms > max_summary_age_ms) return "a summary is too old";
  if (summary.jobs.size() > max_summary_jobs) return "too many jobs";
  if (summary.linked.size() > max_summary_links) return "too many links";
  for (const JobSummary& job : summary.jobs) {
    if (const Fault fault = check(job)) return fault;
  }
  return {};
}

Fault check(const Summaries& summaries) {
  if (summaries.nodes.size() > max_summaries) return "too many summaries";
  for (const NodeSummary& summary : summaries.nodes) {
    if (const Fault fault = check(summary)) return fault;
  }
  return {};
}

/// True if each item is larger than the one before.
bool is_ascending(const auto& items) {
  return std::ranges::adjacent_find(items, std::greater_equal{}) == items.end();
}

bool are_counted(const std::vector<gossip::Contribution>& contributions) {
  return std::ranges::all_of(contributions, [](const gossip::Contribution& contribution) {
    return contribution.number <= gossip::max_average_round;
  });
}

Fault check(const gossip::RoundPlan& plan) {
  const std::size_t most = gossip::max_average_members;
  if (!are_counted(plan.contributions)) return "number of a contribution out of bounds";
  if (plan.contributions.size() > most || plan.members.size() > most) return "too many members";
  if (!is_ascending(plan.members) || !is_ascending(plan.voters)) return "members out of order";
  if (std::ranges::adjacent_find(plan.contributions, std::greater_equal{}, &gossip::Contribution::from) !=
      plan.contributions.end()) {
    return "contributions out of order";
  }
  if (plan.voters.empty() != plan.members.empty() || !std::ranges::includes(plan.members, plan.voters))
    return "voters that are no members";
  return {};
}
Fault check(const gossip::RoundReady& ready) {
  if (ready.contribution > gossip::max_average_round) return "number of a contribution out of bounds";
  return ready.at_least > gossip::max_average_members ? "number of members out of bounds" : Fault{};
}
Fault check(const gossip::RoundPart& part) {
  return part.fragment > max_fragments || static_cast<std::uint8_t>(part.kind) > gossip::max_round_part_kind
             ? "a part out of bounds"
             : Fault{};
}
Fault check(const gossip::AverageNote& note) {
  if (note.from.life == 0) return "a sender without a life";
  if (note.message.round > gossip::max_average_round) return "round out of bounds";
  return std::visit(
      [](const auto& body) -> Fault {
        if constexpr (requires { body.contribution; }) {
          return check(body);
        } else if constexpr (requires { body.taken; }) {
          return are_counted(body.taken) ? check(body.plan) : Fault("number of a contribution out of bounds");
        } else if constexpr (requires { body.plan; }) {
          return check(body.plan);
        } else if constexpr (requires { body.accepted; }) {
          const Fault fault = check(body.ready);
          return fault || !body.accepted ? fault : check(body.accepted->plan);
        } else if constexpr (requires { body.part; }) {
          return check(body.part);
        } else {
          return {};
        }
      },
      note.message.body);
}
Fault check(const gossip::AverageValues& values) {
  if (values.from.life == 0 || values.to.life == 0) return "values without a sender or a receiver";
  if (values.round > gossip::max_average_round) return "round out of bounds";
  if (values.values.empty()) return "value frame has a wrong size";
  return check(values.part);
}

Fault check_self_description(const std::string& address, const std::string& name) {
  if (!address.empty() && !parse_address(address, AddressUse::listen)) return "not an address";
  if (!is_plain_text(name, max_name_bytes)) return "name is too long or not plain UTF-8";
  return {};
}

Fault check(const DeputyList& list) {
  if (list.records.size() > max_deputies) return "too many deputies";
  const bool plain =
      std::ranges::all_of(list.records, [](const Deputy& d) { return is_plain_text(d.name, max_name_bytes); });
  return plain ? Fault{} : "name is too long or not plain UTF-8";
}
Fault check(const Hello& hello) {
  if (hello.version_low > hello.version_high) return "version range is empty";
  if (hello.channel != Channel::control && hello.channel != Channel::bulk) return "unknown channel";
  const Fault fault = check(hello.deputies);
  return fault ? fault : check_self_description(hello.address, hello.name);
}
Fault check(const Welcome& welcome) {
  const Fault fault = check(welcome.deputies);
  return fault ? fault : check_self_description(welcome.address, welcome.name);
}
Fault check(const Rejected& rejected) {
  return is_plain_text(rejected.text, max_text_bytes) ? Fault{} : "text is too long or not plain UTF-8";
}
Fault check(const Heartbeat&) {
  return {};
}
Fault check(const HeartbeatEcho&) {
  return {};
}
Fault check(const Goodbye& goodbye) {
  return is_plain_text(goodbye.text, max_text_bytes) ? Fault{} : "text is too long or not plain UTF-8";
}

Fault check(const DenialList& list) {
  if (list.records.size() > max_denials_in_message) return "too many denials";
  const bool plain =
      std::ranges::all_of(list.records, [](const Denial& d) { return is_plain_text(d.reason, max_text_bytes); });
  return plain ? Fault{} : "text is too long or not plain UTF-8";
}
Fault check(const RingState& ring) {
  if (ring.keys.empty() || ring.keys.size() > max_cluster_keys) return "number of keys out of bounds";
  if (ring.retired.size() > max_retired_keys) return "too many retired keys";
  const auto is_zero = [](const RingKey& k) { return k.key.key.same_as(Secret()); };
  return std::ranges::any_of(ring.keys, is_zero) ? "a key of zeros" : Fault{};
}
Fault check(const CertificateList& list) {
  return list.records.size() > max_certificates_in_message ? "too many certificates" : Fault{};
}
Fault check(const InvitationClaim&) {
  return {};
}
Fault check(const InvitationGrant& grant) {
  const Fault fault = check(grant.ring);
  return fault ? fault : check(grant.deputies);
}
Fault check(const BulkOffer&) {
  return {};
}
Fault check(const BulkAck& ack) {
  // The bound keeps differences between two such times from overflowing.
  constexpr TimeUs most = std::numeric_limits<TimeUs>::max() / 4;
  if (ack.received_at < 0 || ack.received_at > most) return "a time out of range";
  return {};
}

}  // namespace

std::optional<std::string_view> fault_of(const Message& message) {
  return std::visit([](const auto& m) { return check(m); }, message);
}
std::optional<std::string_view> fault_of(const ControlMessage& message) {
  return std::visit([](const auto& m) { return check(m); }, message);
}

std::optional<std::string_view> fault_of(const BulkPart& part) {
  const bool first = part.offset == 0;
  if (first == part.frame_bytes.empty() || first == part.header.empty())
    return "a part neither begins a message nor continues one";
  if (part.frame_bytes.size() > max_payload_frames) return "too many frames";
  if (std::ranges::any_of(part.frame_bytes, [](std::uint32_t bytes) { return bytes > max_payload_frame_bytes; })) {
    return "a payload frame is too large";
  }
  if (part.header.size() > max_cut_header_bytes) return "the header of a message in parts is too large";
  if (part.payload_bytes() == 0) return "a part without payload";
  return {};
}

}  // namespace gossamer::peer
