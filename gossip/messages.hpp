// Messages between nodes about a job, as values. peer/ turns them into frames and back; gossip/ and the daemon decide
// on them. A message that comes to gossip/ from peer/ has been checked against the limits named here (sizes of frames,
// enumerations, bounds). Only the receiver can check whether it fits the job (layout, fragment, block count).

#pragma once

#include <array>
#include <optional>
#include <variant>

#include "gossip/average_messages.hpp"

namespace gossamer {

/// An exchange is named by its initiator and a counter that the initiator never reuses, not even after a restart.
struct ExchangeId {
  NodeId initiator = {};
  std::uint64_t counter = 0;

  friend auto operator<=>(const ExchangeId&, const ExchangeId&) = default;
};

/// Weights are powers of two: an exchange moves an end by 2^-shift of the difference.
inline constexpr std::uint8_t min_shift_bound = 1;
inline constexpr std::uint8_t max_shift_bound = 12;

/// How far a replica's publication is behind its client. It affects the mixing weight.
struct Age {
  std::uint64_t samples = 0;  ///< samples trained since the publication that the values come from
  std::uint64_t cadence = 0;  ///< samples this replica usually trains between two publications (0: not known yet)
};

/// Numbers that are averaged along with fragment 0, to measure the rate of mixing: gossip/replica/tracer.hpp.
inline constexpr std::size_t tracer_values = 4;
inline constexpr double max_tracer_value = 1e3;
struct TracerValues {
  std::uint32_t round = 0;                        ///< not 0; the next round's values are drawn anew
  std::array<double, tracer_values> values = {};  ///< finite, at most max_tracer_value in size

  friend bool operator==(const TracerValues&, const TracerValues&) = default;
};

/// Initiator to responder. With n blocks included:
///   side:   n × i8 step exponents, padded to even, then n × u16 checks (little endian); for f32 n × i8 limits (the
///           initiator takes no difference beyond 2^limit), padded to even
///   values: n × codec_block_bytes(codec): low bits of k (see gossip/codec/lattice.hpp), or fp32 values for f32
struct ExchangeRequest {
  std::uint64_t counter = 0;
  JobKey job = {};
  std::uint32_t fragment = 0;
  Codec codec = Codec::q8;
  std::uint64_t seed = 0;      ///< both ends derive the dither from it
  std::uint8_t min_shift = 1;  ///< what is left of the initiator's mixing budget: its weight is at most 2^-min_shift
  bool pushes = false;         ///< the initiator takes the responder's y over, so quantisation noise stays in that y
  std::uint64_t clock = 0;     ///< the initiator's training progress in samples
  Age age = {};
  float clip = 0;   ///< the initiator moves by at most half of this (2-norm over all blocks); 0: any distance
  float usual = 0;  ///< DistanceRecord::usual() of the initiator (gossip/codec/influence.hpp)
  float weight =
      0;  ///< where replicas weigh by their samples, those of the initiator's steps; 0: it has trained nothing
  std::uint32_t block_count = 0;  ///< blocks included (n)
  Bytes blocks = {};              ///< bitmap of included blocks, bit b of byte b/8; empty: all of them
  Bytes side = {};
  Bytes values = {};
  std::optional<TracerValues> tracer = {};  ///< with fragment 0; none: none drawn yet, or an older version sent this
};

enum class ReplyStatus : std::uint8_t {
  done = 0,     ///< the responder has committed; the initiator must commit as well
  busy = 1,     ///< nothing was committed; try another partner
  refused = 2,  ///< nothing was committed, and a repeat will not be accepted; `reason` says why
};

/// The reason of a refusal. It is not an error of the network; each reason is counted and shown.
enum class RefuseReason : std::uint8_t {
  none = 0,
  unknown_job = 1,     ///< no such job here
  layout_differs = 2,  ///< the job's name is known, but its layout differs
  bad_request = 3,     ///< fragment index, block list or frame sizes do not fit the layout
  not_finite = 4,      ///< NaN or infinity in the values sent
  quarantined = 5,     ///< the responder's own fragment holds NaN or infinity
  draining = 6,        ///< the responder is leaving
  expired = 7,         ///< an exchange so old that its reply is no longer kept
};
inline constexpr std::uint8_t max_refuse_reason = 7;

/// Responder to initiator. `wide` and `asked` are only for lattice codecs.
///   wide:        bitmap over the n included blocks, in their order; empty: none is wide
///   asked:       n × i8, the step exponents that the responder wants (meaningful where wide); empty if none is wide
///   differences: n × codec_block_bytes(codec): D = k_j − k_i, or fp32 y_j − y_i for f32; zeros where wide
struct ExchangeReply {
  std::uint64_t counter = 0;
  JobKey job = {};
  std::uint32_t fragment = 0;
  ReplyStatus status = ReplyStatus::busy;
  RefuseReason reason = RefuseReason::none;
  Codec codec = Codec::q8;
  std::uint8_t shift = 1;  ///< the initiator commits 2^-shift · s · D, and the responder the same or by its own weight
  std::uint64_t clock = 0;
  Age age = {};
  std::uint32_t block_count = 0;
  Bytes wide = {};
  Bytes asked = {};
  Bytes differences = {};
  bool limited = false;  ///< f32: the ends are further apart than the differences say, which are scaled down
  Bytes halvings = {};   ///< if limited, for each block: how many powers of two. Empty: an older build does not tell
  std::optional<TracerValues> tracer = {};  ///< the responder's numbers, before both commit their shares of them
};

/// The state of the initiator's half of an exchange whose other half the responder has committed.
enum class Outcome : std::uint8_t {
  taken = 0,    ///< it is committed, and outlives the daemon
  never = 1,    ///< it is not committed and never will be: the responder is to undo its half
  unknown = 2,  ///< nobody can tell any more
};
inline constexpr std::uint8_t max_outcome = 2;

/// Initiator to responder: the reply need not be kept any longer.
struct ExchangeAck {
  std::uint64_t counter = 0;
  Outcome outcome = Outcome::taken;
};

/// Responder to initiator: what has become of this exchange? Its acknowledgement is long overdue. The answer is an
/// ExchangeAck, unless the exchange is still under way.
struct ExchangeInquiry {
  std::uint64_t counter = 0;
  JobKey job = {};
  std::uint32_t fragment = 0;
};

/// The state of a replica, as its neighbours need to know it.
enum class ReplicaState : std::uint8_t {
  absent = 0,    ///< no client of this job here
  joining = 1,   ///< a client is attached; its model is not yet chosen or not yet pulled
  running = 2,   ///< trains and gossips
  draining = 3,  ///< about to leave: starts and answers nothing new
};

inline constexpr std::size_t max_job_name_bytes = 63;

/// The stage of finishing: the program has stopped training, and waits until the replicas hold one model.
enum class Finishing : std::uint8_t {
  no = 0,       ///< trains
  begun = 1,    ///< exchanges until it agrees with the other finishing replicas
  settled = 2,  ///< agrees with those it has met
  over = 3,     ///< all replicas that it knows of agree: its program has been told
};
inline constexpr std::uint8_t max_finishing = 3;

/// Largest size of a cursor: a program's note of its place in the data. Nobody else reads it.
inline constexpr std::size_t max_cursor_bytes = 4096;

/// One of a job's settings, as text: a node can pass on what it does not know.
struct JobSetting {
  std::string name = {};
  std::string value = {};

  friend auto operator<=>(const JobSetting&, const JobSetting&) = default;
};

/// The settings that all replicas of a job share. They change as a whole. The newest version wins, and of changes made
/// at the same time the one of the larger author. So all nodes come to the same settings, in whatever order they hear.
struct JobSettings {
  std::uint64_t version = 0;  ///< 0: nobody has given any
  NodeId author = {};
  std::vector<JobSetting> values = {};  ///< ascending by name; each node uses its own value for any other option
  /// The signature of the cluster's authority, if the cluster has one. gossip/ does not check it.
  std::optional<std::array<std::uint8_t, 64>> signature = {};

  friend auto operator<=>(const JobSettings&, const JobSettings&) = default;
};
inline constexpr std::size_t max_job_settings = 32;
inline constexpr std::size_t max_setting_name_bytes = 31;
inline constexpr std::size_t max_setting_value_bytes = 63;
inline constexpr std::uint64_t max_settings_version = std::uint64_t{1} << 48;
/// Newer settings without a signature are accepted only if their version is at most this much larger, so that no member
/// can use up all versions.
inline constexpr std::uint64_t max_settings_leap = std::uint64_t{1} << 20;

/// A number that a job's programs tell of themselves, such as a loss (run.log()).
struct LoggedValue {
  std::string name = {};
  double value = 0;  ///< may be NaN or infinite
};
inline constexpr std::size_t max_logged = 8;
inline constexpr std::size_t max_logged_name_bytes = 31;

/// A replica's report about itself. It is sent when a replica changes state or settings, when a link comes up, and as
/// the answer to a JobQuery.
struct JobInfo {
  JobKey job = {};
  std::string name = {};
  ReplicaState state = ReplicaState::absent;
  std::uint64_t clock = 0;
  std::uint64_t elements = 0;
  std::uint32_t fragments = 0;
  std::uint32_t fragment_elements = 0;
  Finishing finishing = Finishing::no;
  /// The node's exchanges with smaller counters are over: the replica that began them is gone. 0: sent by an older
  /// version, whose exchanges are over once it is absent.
  std::uint64_t first_exchange = 0;
  /// A fragment of this replica holds NaN or infinity. The others finish without this replica.
  bool quarantined = false;
  JobSettings settings = {};
  /// No process here trains the job: the node holds the model for the others.
  bool keeps = false;
  /// The node takes the model, and gives nothing to others. Not sent: the receiver takes it from the sender's rights.
  bool follows = false;
  /// With `keeps`: how many replicas in its reach train, and the smallest id of those that could save the final model.
  /// While the sender itself joins: how many others are joining and will train.
  std::uint32_t trainers = 0;
  NodeId first_trainer = {};
  /// The values that the node's programs have logged, each averaged over the programs.
  std::vector<LoggedValue> logged = {};
};

/// "What is the state of this job at your node?" The answer is always a JobInfo.
struct JobQuery {
  JobKey job = {};
};

/// "What are this job's tensors?" A node asks this if it is to keep the job and none of its processes knows the model.
/// The answer is always a LayoutReply.
struct LayoutQuery {
  JobKey job = {};  ///< a layout_hash of 0 means any layout under this name
  std::uint32_t first_tensor = 0;
};

/// A tensor of a layout, see sdk/layout/shared_memory.hpp.
struct LayoutTensor {
  std::string name = {};
  std::uint8_t dtype = 0;
  std::uint8_t role = 0;
  std::vector<std::uint64_t> shape = {};  ///< outermost first

  friend bool operator==(const LayoutTensor&, const LayoutTensor&) = default;
};
inline constexpr std::uint32_t max_layout_tensors = 1U << 20;
inline constexpr std::size_t max_told_tensors = 64;  ///< in one message
inline constexpr std::size_t max_tensor_name_bytes = 255;
inline constexpr std::size_t max_tensor_dimensions = 8;
inline constexpr std::uint8_t max_tensor_dtype = 9;
inline constexpr std::uint8_t max_tensor_role = 2;

/// Some tensors of a layout, in the layout's order. The node that asked checks that all of the layout's tensors
/// together have the hash in `job`.
struct LayoutReply {
  JobKey job = {};
  std::uint32_t fragment_elements = 0;
  std::uint32_t tensor_count = 0;  ///< of the layout; 0: the job is not known here, and the rest is empty
  std::uint32_t first_tensor = 0;
  std::vector<LayoutTensor> tensors = {};  ///< from first_tensor on; at most max_told_tensors
};

/// A joiner asks for a fragment's present values.
struct PullRequest {
  JobKey job = {};
  std::uint32_t fragment = 0;
};

/// `values`: the whole fragment in fp32 with its padding; empty if the pull is refused. `hash`: the XXH3-64 of these
/// bytes. `cursor`: the giver's cursor, with fragment 0; empty: none. It belongs to `clock`; the values may be a little
/// older.
struct PullReply {
  JobKey job = {};
  std::uint32_t fragment = 0;
  RefuseReason reason = RefuseReason::none;
  std::uint64_t clock = 0;
  std::uint64_t hash = 0;
  Bytes values = {};
  std::vector<std::byte> cursor = {};
};

/// A summary of one job at one node, for people (gossip/membership/summaries.hpp).
struct JobSummary {
  std::string name = {};
  ReplicaState state = ReplicaState::absent;
  std::uint64_t clock = 0;
  float consensus = 0;             ///< distance to its partners over the model's norm; finite, not negative
  std::uint32_t tracer_round = 0;  ///< gossip/replica/tracer.hpp; 0: none
  float mixing_per_s = 0;          ///< MixingEstimate::per_s; 0: not known; finite, not negative
};

inline constexpr std::size_t max_summaries = 32;  ///< in one message
inline constexpr std::size_t max_summary_jobs = 4;
inline constexpr std::size_t max_summary_links = 32;
inline constexpr std::size_t max_summary_name_bytes = 63;
/// Older summaries are not passed on.
inline constexpr std::uint32_t max_summary_age_ms = 3'600'000;

/// A node's report about itself, `age_ms` ago. Each node that passes it on adds to the age.
struct NodeSummary {
  NodeId node = {};
  std::uint64_t incarnation = 0;  ///< identifies the node's life
  std::uint64_t number = 0;       ///< counts within that life; the larger is the newer
  std::uint32_t age_ms = 0;
  std::string name = {};
  std::uint32_t neighbours = 0;
  std::uint64_t goodput_bytes_s = 0;       ///< of its fastest link; 0: not measured lately
  std::vector<JobSummary> jobs = {};       ///< at most max_summary_jobs
  std::vector<std::uint32_t> linked = {};  ///< NodeId::prefix() of neighbours, at most max_summary_links of them
};

struct Summaries {
  std::vector<NodeSummary> nodes = {};  ///< at most max_summaries
};

/// Size of a message's frames without its header. It depends on the codec.
[[nodiscard]] inline std::size_t payload_bytes(const ExchangeRequest& request) {
  return request.blocks.size() + request.side.size() + request.values.size();
}
[[nodiscard]] inline std::size_t payload_bytes(const ExchangeReply& reply) {
  return reply.wide.size() + reply.asked.size() + reply.differences.size();
}

using Message =
    std::variant<ExchangeRequest, ExchangeReply, ExchangeAck, ExchangeInquiry, JobInfo, JobQuery, PullRequest,
                 PullReply, Summaries, gossip::AverageNote, gossip::AverageValues, LayoutQuery, LayoutReply>;

/// Size of a request's side frame for n blocks: exponents, a pad byte if n is odd, and checks unless the codec is f32.
[[nodiscard]] constexpr std::size_t side_bytes(Codec codec, std::size_t blocks) {
  return (blocks + 1) / 2 * 2 + (codec == Codec::f32 ? 0 : 2 * blocks);
}
[[nodiscard]] constexpr std::size_t bitmap_bytes(std::size_t blocks) {
  return (blocks + 7) / 8;
}

}  // namespace gossamer
