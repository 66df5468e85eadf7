// The daemon's report about itself to people: plain values that the node fills in and gossamerctl shows, and their
// JSON.
//
// Made on the loop's thread when a command arrives; no state. The keys are the members' names, and a contract with
// scripts: add keys, and never rename one. Counters count from the daemon's start unless they say otherwise.

#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gossamer::daemon {

/// A finding of the watch (daemon/report/watch.hpp): one thing that keeps a job from averaging well, and what to do.
struct FindingStatus {
  std::string rule = {};    ///< one of watch_rules: "drift"
  std::string grade = {};   ///< warning or problem
  std::string job = {};     ///< empty: the finding is about a link or the node itself, and so about all jobs
  std::string node = {};    ///< the other node's id; empty: about this node
  std::string name = {};    ///< the other node's name
  std::string text = {};    ///< what was found, a sentence
  std::string advice = {};  ///< the next step
  double since_s = 0;       ///< how long the finding has held
};

struct NodeStatus {
  std::string version;
  std::string node;  ///< id, 32 hexadecimal digits
  std::string name;
  std::string address;  ///< the address listened on
  std::uint64_t incarnation = 0;
  double uptime_s = 0;
  std::string state;             ///< running, drained, leaving or stopping
  std::uint32_t neighbours = 0;  ///< links that are up
  std::uint32_t peers = 0;       ///< known nodes, whether their links are up or not
  std::uint64_t links_lost = 0;
  std::uint32_t members = 0;       ///< other nodes in the cluster; with a partial view, only the active view
  std::uint32_t view = 0;          ///< the members that this node keeps links to
  std::uint32_t passive_view = 0;  ///< other known members, from which lost ones are replaced
  bool partial_view = false;       ///< the cluster is larger than full_view_limit
  /// 0: this node answers in time; each step above it makes the node that much more patient with others
  std::uint32_t health = 0;
  std::uint64_t deaths = 0;       ///< members that this node has declared dead
  std::uint64_t refutations = 0;  ///< claims that this node is dead, which it has refuted
  std::uint32_t jobs = 0;
  std::uint32_t clients = 0;
  std::uint64_t memory_bytes = 0;           ///< host memory shared with clients now
  std::uint64_t device_memory_bytes = 0;    ///< GPU memory shared with clients now
  std::uint64_t device_overflow_bytes = 0;  ///< host memory used in place of GPU memory, on GPUs without room
  std::uint32_t clients_awaited = 0;  ///< clients of the last daemon that have not come back yet (with systemd only)
  std::string limits_near;            ///< limits that are nearly used up; empty: none
  std::string page;                   ///< the URL of the status page and the metrics; empty: they are off
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;  ///< size of all messages' frames, before encryption
  std::uint64_t bytes_received = 0;
  std::uint64_t payload_bytes_sent = 0;  ///< the part of bytes_sent that is values, differences and data to decode them
  std::uint64_t payload_bytes_received = 0;
  std::uint64_t messages_rejected = 0;   ///< messages that were malformed or out of bounds
  std::uint64_t decisions_refused = 0;   ///< messages with decisions for the cluster that were not followed
  std::uint64_t admissions_refused = 0;  ///< connections refused for a wrong or missing cluster key
  std::uint64_t handshakes_failed = 0;   ///< connections that did not complete the CURVE handshake
  std::uint64_t strangers_closed = 0;    ///< connections closed before admission: too slow, too many, or sent too much
  std::uint64_t link_attempts = 0;       ///< links that this node has dialled
  std::uint64_t link_attempts_failed = 0;
  std::uint64_t sends_full = 0;  ///< messages not taken because the link's queue was full
  /// The end of this node's certificate, in microseconds since 1970; 0: it has none, or the cluster asks for none.
  std::int64_t certificate_ends_us = 0;
  std::vector<FindingStatus> findings;  ///< what the watch finds now
  double cpu_s = 0;                     ///< of the whole process
  /// Bytes in use on the heap. The process holds more pages than that, because the allocator keeps those it once had.
  std::uint64_t heap_bytes = 0;
};

struct PeerStatus {
  std::string node;
  std::string name;
  std::string address;
  bool up = false;
  bool dialled_by_us = false;
  std::string bulk;                   ///< how bulk is protected: sealed, plain or curve
  double round_trip_ms = 0;           ///< 0: not measured yet
  double last_round_trip_ms = 0;      ///< from the newest heartbeat that came back
  double least_round_trip_ms = 0;     ///< over the last seconds
  double goodput_mbit_s = 0;          ///< rate of the link while more is waiting; 0: not measured in the last minute
  std::uint64_t queued_bytes = 0;     ///< waiting to be sent
  std::uint64_t under_way_bytes = 0;  ///< bulk data sent and not acknowledged
  double up_s = 0;                    ///< since the link came up
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::string note;  ///< why the link is down, if it is
};

struct ClusterMemberStatus {
  std::string node;
  std::string name;     ///< empty: there was never a link
  std::string address;  ///< empty: the node only dials out
  std::string state;    ///< alive or suspected
  bool linked = false;
  std::uint64_t incarnation = 0;
  double heard_s = 0;  ///< time since this node heard from it directly
};

/// Another node's latest known report on one of its jobs. It came directly or through other nodes.
struct JobSummaryStatus {
  std::string job;
  std::string state;
  std::uint64_t clock = 0;
  double consensus = 0;
  std::uint32_t tracer_round = 0;  ///< gossip/replica/tracer.hpp; 0: none
  double mixing_per_s = 0;         ///< as in JobStatus
};

struct SummaryStatus {
  std::string node;
  std::string name;
  double age_s = 0;
  std::uint32_t neighbours = 0;
  double goodput_mbit_s = 0;  ///< goodput of the node's fastest link
  std::vector<JobSummaryStatus> jobs;
  std::vector<std::string> linked;  ///< the first digits of its neighbours' ids
};

/// One client of a job at this node.
struct ClientStatus {
  std::uint64_t pid = 0;
  std::string state = {};  ///< joining, running, draining or quarantined
  std::uint64_t clock = 0;
  std::uint64_t steps = 0;
  double published_s = 0;    ///< time since its last publication, or since it attached
  std::string buffers = {};  ///< where its shared memory is: host, or the UUID of a GPU
  bool keeps = false;        ///< it does not train: gossamerctl keep
  std::uint32_t parts = 1;   ///< processes that hold the replica together; the others have no connection of their own
};

/// A neighbour as one job sees it.
struct PartnerStatus {
  std::string node;
  /// joining, running or draining; absent: it does not run the job; "other layout": it runs the job with another layout
  std::string state;
  bool linked = false;
  bool keeps = false;                       ///< nobody trains the job there (gossamerctl keep)
  std::uint64_t clock = 0;                  ///< in samples, as it last reported
  std::uint64_t exchanges = 0;              ///< exchanges done with it, in both roles, since it is known
  std::uint64_t busy = 0;                   ///< requests that it turned down because it was busy
  double exchanged_s = 0;                   ///< time since the last exchange with it; 0: there was none yet
  double answer_ms = 0;                     ///< smoothed, from request to reply; 0: not known
  double goodput_mbit_s = 0;                ///< smoothed, in the exchanges with it; 0: not known
  double consensus = 0;                     ///< ‖y_j − y_i‖ / ‖y‖, smoothed over the exchanges with it
  std::uint64_t blocks = 0;                 ///< blocks offered in the exchanges with it
  std::uint64_t wide_blocks = 0;            ///< blocks of these that differed by more than the range
  std::uint64_t unresolved = 0;             ///< exchanges with it whose outcome at its end cannot be known any more
  double age_intervals = 0;                 ///< age of its values in its own publication intervals, smoothed
  std::uint32_t quarantined_fragments = 0;  ///< fragments in which it holds NaN or infinity, as it said when last asked
};

/// A number that programs of a job have logged (gossamer_log()).
struct LoggedStatus {
  std::string name;
  double value = 0;         ///< the mean over the processes here
  double mean = 0;          ///< the mean over the nodes that `nodes` counts
  std::uint64_t nodes = 0;  ///< this node, and the neighbours that report the number
};

/// The settings that all replicas of a job share.
struct SettingsStatus {
  std::uint64_t version = 0;  ///< 0: nobody has given any
  std::map<std::string, std::string> values = {};

  friend bool operator==(const SettingsStatus&, const SettingsStatus&) = default;
};

struct JobFigures {
  std::string job;
  std::string state;  ///< joining, running, draining or quarantined
  std::string codec;
  SettingsStatus settings;
  std::string method;  ///< gossip, average or server
  std::string layout;  ///< the layout's hash, 16 hexadecimal digits
  std::uint32_t clients = 0;
  std::vector<ClientStatus> processes;  ///< the clients, in the order in which they attached
  std::uint64_t clock = 0;
  std::uint64_t global_clock = 0;
  std::uint64_t steps = 0;  ///< of all attached clients
  std::uint64_t elements = 0;
  std::uint32_t fragments = 0;
  std::uint32_t neighbours = 0;  ///< replicas of this job in reach
  std::uint64_t publications = 0;
  std::uint64_t exchanges = 0;            ///< in both roles
  std::uint64_t exchanges_initiated = 0;  ///< exchanges done as initiator
  std::uint64_t exchanges_answered = 0;   ///< exchanges done as responder
  std::uint64_t busy = 0;                 ///< answers received that said busy
  std::uint64_t refused = 0;
  std::uint64_t unresolved = 0;   ///< exchanges committed here whose outcome at the other end cannot be known any more
  std::uint64_t undone = 0;       ///< exchanges committed here and undone, because the other end will never commit them
  std::uint64_t asked_after = 0;  ///< replies whose acknowledgement is overdue now
  std::uint64_t violations = 0;   ///< replies that did not fit their request
  std::uint64_t blocks = 0;       ///< blocks offered in exchanges
  std::uint64_t wide_blocks = 0;  ///< blocks of these that differed by more than the range
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t payload_bytes_received = 0;
  double age_samples = 0;  ///< samples trained since the publication that is gossiped, as the mean over fragments
  std::uint32_t quarantined_fragments = 0;
  std::uint32_t fragments_pulled = 0;  ///< counts while joining
  std::uint32_t donors = 0;            ///< nodes that fragments are being pulled from
  std::uint64_t pulled_bytes = 0;
  double join_s = 0;                        ///< how long joining took; 0 while it has not ended
  std::uint32_t fragments_handed_over = 0;  ///< counts while the node leaves
  std::uint32_t in_flight = 0;
  double mean_shift = 0;         ///< over the exchanges done
  double mean_disagreement = 0;  ///< estimate of the mean |difference| of an element
  std::uint64_t busy_sent = 0;   ///< answers given that said busy
  std::uint64_t refused_sent = 0;
  std::uint64_t follow_ups = 0;    ///< exchanges of wide blocks that this node began
  std::uint64_t repeats_sent = 0;  ///< requests and replies sent again
  std::uint64_t clipped = 0;       ///< exchanges with a partner whose distance was beyond [gossip] clip
  std::uint64_t outer_steps = 0;
  std::uint64_t quarantines = 0;  ///< times a fragment was found to hold NaN or infinity
  double consensus = 0;           ///< distance to partners over the model's own norm, smoothed; 0 before any exchange
  double mixing_per_s = 0;        ///< exchanges alone shrink differences by e^−mixing_per_s each second; 0: not known
  double spectral_gap = 0;        ///< the share of differences that goes between two exchanges here; 0: not known
  std::vector<std::uint32_t> tracer_rounds;  ///< the latest rounds, the present one last (gossip/replica/tracer.hpp)
  double period_s = 0;                       ///< time between two exchanges of a fragment that the node starts
  double wanted_period_s = 0;                ///< as configured; period_s may be longer to keep to the shares
  std::string period_limit;                  ///< the option that makes period_s longer, or "step"; empty: none
  double codec_error_sum = 0;  ///< sum over exchanges: bound on quantisation noise over the difference, 0 to 1 each
  double age_sum = 0;          ///< sum over exchanges of the age of the partner's values, in publication intervals
  double fragment_idle_s = 0;  ///< time since the last exchange of the fragment that has waited longest
  std::vector<std::uint64_t> ages;  ///< exchanges by the values' age: up to 1, 2, 4, 8, 16, 64 intervals, and older
  std::uint64_t gpu_means = 0;      ///< means of a fragment over clients on several GPUs of the node
  std::uint64_t gpu_means_through_host = 0;  ///< means of these that were summed in host memory, without NCCL
  std::uint64_t gpu_means_failed = 0;        ///< means that failed because some client was out of reach
  std::uint64_t checkpoints_written = 0;
  std::uint64_t checkpoints_failed = 0;
  std::uint64_t checkpoint_clock = 0;   ///< clock of the latest checkpoint written
  double checkpoint_s = 0;              ///< time since that checkpoint was written
  std::vector<PartnerStatus> partners;  ///< the neighbours of the job
  std::string note;                     ///< a problem, in words for people; empty: none
};
struct JobStatus : JobFigures {
  std::vector<LoggedStatus> logged = {};  ///< numbers that the job's programs have logged
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FindingStatus, rule, grade, job, node, name, text, advice, since_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeStatus, version, node, name, address, incarnation, uptime_s, state, neighbours,
                                   peers, links_lost, members, view, passive_view, partial_view, health, deaths,
                                   refutations, jobs, clients, memory_bytes, device_memory_bytes, device_overflow_bytes,
                                   clients_awaited, limits_near, page, messages_sent, messages_received, bytes_sent,
                                   bytes_received, payload_bytes_sent, payload_bytes_received, messages_rejected,
                                   decisions_refused, admissions_refused, handshakes_failed, strangers_closed,
                                   link_attempts, link_attempts_failed, sends_full, certificate_ends_us, findings,
                                   cpu_s, heap_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PeerStatus, node, name, address, up, dialled_by_us, bulk, round_trip_ms,
                                   last_round_trip_ms, least_round_trip_ms, goodput_mbit_s, queued_bytes,
                                   under_way_bytes, up_s, messages_sent, messages_received, bytes_sent, bytes_received,
                                   note)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClusterMemberStatus, node, name, address, state, linked, incarnation, heard_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobSummaryStatus, job, state, clock, consensus, tracer_round, mixing_per_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SummaryStatus, node, name, age_s, neighbours, goodput_mbit_s, jobs, linked)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientStatus, pid, state, clock, steps, published_s, buffers, keeps, parts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PartnerStatus, node, state, linked, keeps, clock, exchanges, busy, exchanged_s,
                                   answer_ms, goodput_mbit_s, consensus, blocks, wide_blocks, unresolved, age_intervals,
                                   quarantined_fragments)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoggedStatus, name, value, mean, nodes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SettingsStatus, version, values)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobFigures, job, state, codec, settings, layout, clients, processes, clock,
                                   global_clock, steps, elements, fragments, neighbours, publications, exchanges,
                                   exchanges_initiated, exchanges_answered, busy, refused, unresolved, undone,
                                   violations, blocks, wide_blocks, payload_bytes_sent, payload_bytes_received,
                                   age_samples, quarantined_fragments, fragments_pulled, donors, pulled_bytes, join_s,
                                   fragments_handed_over, in_flight, mean_shift, mean_disagreement, busy_sent,
                                   refused_sent, follow_ups, repeats_sent, clipped, outer_steps, quarantines, consensus,
                                   mixing_per_s, spectral_gap, tracer_rounds, period_s, wanted_period_s, period_limit,
                                   codec_error_sum, age_sum, fragment_idle_s, ages, gpu_means, gpu_means_through_host,
                                   gpu_means_failed, checkpoints_written, checkpoints_failed, checkpoint_clock,
                                   checkpoint_s, partners, note)
inline void to_json(nlohmann::json& object, const JobStatus& job) {
  to_json(object, static_cast<const JobFigures&>(job));
  object["logged"] = job.logged;
  object["method"] = job.method;
}
inline void from_json(const nlohmann::json& object, JobStatus& job) {
  from_json(object, static_cast<JobFigures&>(job));
  job.logged = object.value("logged", std::vector<LoggedStatus>{});
}

/// The control socket's answers: {"node": {...}}, {"peers": [...]}, {"members": [...]}, {"jobs": [...]}.
[[nodiscard]] inline nlohmann::json status_answer(const NodeStatus& node) {
  return {{"node", node}};
}
[[nodiscard]] inline nlohmann::json peers_answer(const std::vector<PeerStatus>& peers) {
  return {{"peers", peers}};
}
[[nodiscard]] inline nlohmann::json members_answer(const std::vector<ClusterMemberStatus>& members) {
  return {{"members", members}};
}
[[nodiscard]] inline nlohmann::json jobs_answer(const std::vector<JobStatus>& jobs) {
  return {{"jobs", jobs}};
}

}  // namespace gossamer::daemon
