// What the daemon tells people about itself: plain values that the node fills in and gossamerctl shows, and their JSON.
//
// Made on the loop's thread when a command arrives; no state. The keys are the members' names, and a contract with
// scripts: add, do not rename. Numbers count since the daemon's start unless they say otherwise.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gossamer::daemon {

/// What the watch has found (daemon/report/watch.hpp): one thing that keeps a job from averaging well, and what to do.
struct FindingStatus {
  std::string rule;    ///< one of watch_rules: "drift"
  std::string grade;   ///< warning or problem
  std::string job;     ///< empty: of a link or the disk, whatever the job
  std::string node;    ///< the other node's id; empty: about this node
  std::string name;    ///< that node's
  std::string text;    ///< what was found, a sentence
  std::string advice;  ///< the next step
  double since_s = 0;  ///< how long it has been so
};

/// What is wrong with the disk that state and checkpoints go to, and the next step.
struct DiskTrouble {
  std::string text;
  std::string advice;
};

struct NodeStatus {
  std::string version;
  std::string node;  ///< id, 32 hexadecimal digits
  std::string name;
  std::string address;  ///< listened on
  std::uint64_t incarnation = 0;
  double uptime_s = 0;
  std::string state;             ///< running, drained, leaving or stopping
  std::uint32_t neighbours = 0;  ///< links that are up
  std::uint32_t peers = 0;       ///< nodes known, up or not
  std::uint64_t links_lost = 0;
  std::uint32_t members = 0;       ///< in the cluster without this node; with a partial view the active view
  std::uint32_t view = 0;          ///< of them, those that links are kept to
  std::uint32_t passive_view = 0;  ///< others known of, to replace losses from
  bool partial_view = false;       ///< the cluster is larger than full_view_limit
  std::uint32_t health = 0;       ///< 0: this node answers in time; each more makes it once more as patient with others
  std::uint64_t deaths = 0;       ///< of members, declared by this node
  std::uint64_t refutations = 0;  ///< of claims that this node is dead
  std::uint32_t jobs = 0;
  std::uint32_t clients = 0;
  std::uint64_t memory_bytes = 0;           ///< shared with clients, now: the host's
  std::uint64_t device_memory_bytes = 0;    ///< likewise, of GPUs
  std::uint64_t device_overflow_bytes = 0;  ///< host memory that stands in for that of GPUs without room
  std::uint32_t clients_awaited = 0;        ///< attached to the last daemon, and not back yet (with systemd only)
  std::string limits_near;                  ///< those that are nearly used up; empty: none
  std::string page;                         ///< where the status page and the metrics are, a URL; empty: nowhere
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;  ///< frames of all messages, before encryption
  std::uint64_t bytes_received = 0;
  std::uint64_t payload_bytes_sent = 0;  ///< of those, the values, differences and what decodes them
  std::uint64_t payload_bytes_received = 0;
  std::uint64_t messages_rejected = 0;   ///< malformed or out of bounds
  std::uint64_t admissions_refused = 0;  ///< wrong or no cluster key
  std::uint64_t handshakes_failed = 0;   ///< connections at the listening port that did not get through CURVE
  std::uint64_t strangers_closed = 0;    ///< connections there that were not admitted in time, or were too many
  std::uint64_t link_attempts = 0;       ///< dialled
  std::uint64_t link_attempts_failed = 0;
  std::uint64_t sends_full = 0;         ///< messages not taken because the link's queue was full
  std::vector<FindingStatus> findings;  ///< of the watch, now
  double cpu_s = 0;                     ///< of the whole process
  /// In use on the heap. Pages that the process holds are more: the allocator keeps what it once had.
  std::uint64_t heap_bytes = 0;
};

struct PeerStatus {
  std::string node;
  std::string name;
  std::string address;
  bool up = false;
  bool dialled_by_us = false;
  double round_trip_ms = 0;           ///< 0: not measured yet
  double last_round_trip_ms = 0;      ///< of the newest heartbeat that came back
  double least_round_trip_ms = 0;     ///< of the last seconds
  double goodput_mbit_s = 0;          ///< what the link takes while more is waiting; 0: not seen in the last minute
  std::uint64_t queued_bytes = 0;     ///< waiting to be sent
  std::uint64_t under_way_bytes = 0;  ///< of bulk, sent and not acknowledged
  double up_s = 0;                    ///< since the link came up
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::string note;  ///< why it is down, if it is
};

struct MemberStatus {
  std::string node;
  std::string name;     ///< empty: never linked
  std::string address;  ///< empty: it only dials out
  std::string state;    ///< alive or suspected
  bool linked = false;
  std::uint64_t incarnation = 0;
  double heard_s = 0;  ///< since it was last heard of first hand
};

/// What another node said of itself, or others of it, some time ago.
struct JobSummaryStatus {
  std::string job;
  std::string state;
  std::uint64_t clock = 0;
  double consensus = 0;
  std::uint32_t tracer_round = 0;  ///< gossip/replica/tracer.hpp; 0: none
  double mixing_per_s = 0;         ///< as JobStatus's
};

struct SummaryStatus {
  std::string node;
  std::string name;
  double age_s = 0;
  std::uint32_t neighbours = 0;
  double goodput_mbit_s = 0;  ///< of its fastest link
  std::vector<JobSummaryStatus> jobs;
};

/// One client of a job at this node.
struct ClientStatus {
  std::uint64_t pid = 0;
  std::string state = {};  ///< joining, running, draining or quarantined
  std::uint64_t clock = 0;
  std::uint64_t steps = 0;
  double published_s = 0;    ///< since its last publication, or its coming
  std::string buffers = {};  ///< where what it shares with the daemon is: host, or the UUID of a GPU
};

/// A neighbour as one job sees it.
struct PartnerStatus {
  std::string node;
  std::string state;  ///< joining, running or draining; absent: it does not run the job; "other layout"
  bool linked = false;
  std::uint64_t clock = 0;                  ///< samples, as it told last
  std::uint64_t exchanges = 0;              ///< done with it, both roles, since it is known
  std::uint64_t busy = 0;                   ///< requests that it turned down because it was busy
  double exchanged_s = 0;                   ///< since the last exchange with it; 0: none yet
  double answer_ms = 0;                     ///< smoothed, from request to reply; 0: not known
  double goodput_mbit_s = 0;                ///< of the same exchanges
  double consensus = 0;                     ///< ‖y_j − y_i‖ / ‖y‖, smoothed over the exchanges with it
  std::uint64_t blocks = 0;                 ///< offered in the exchanges with it
  std::uint64_t wide_blocks = 0;            ///< of those, the models differed by more than the range
  std::uint64_t unresolved = 0;             ///< exchanges with it of which nobody can tell whether it did its half
  double age_intervals = 0;                 ///< how old what it brings is, in its own publication intervals, smoothed
  std::uint32_t quarantined_fragments = 0;  ///< that it holds NaN or infinity in, as it said when it was asked last
};

struct JobStatus {
  std::string job;
  std::string state;  ///< joining, running, draining or quarantined
  std::string codec;
  std::string layout;  ///< its hash, 16 hexadecimal digits
  std::uint32_t clients = 0;
  std::uint64_t pid = 0;                ///< of the client that has been here longest
  std::vector<ClientStatus> processes;  ///< the clients, in the order of their coming
  std::uint64_t clock = 0;
  std::uint64_t global_clock = 0;
  std::uint64_t steps = 0;  ///< of all clients that are here
  std::uint64_t elements = 0;
  std::uint32_t fragments = 0;
  std::uint32_t neighbours = 0;  ///< replicas of this job in reach
  std::uint64_t publications = 0;
  std::uint64_t exchanges = 0;            ///< done, both roles
  std::uint64_t exchanges_initiated = 0;  ///< done as initiator
  std::uint64_t exchanges_answered = 0;   ///< done as responder
  std::uint64_t busy = 0;                 ///< answers received that said busy
  std::uint64_t refused = 0;
  std::uint64_t unresolved = 0;   ///< committed here, and nobody can tell any more whether at the other end, too
  std::uint64_t undone = 0;       ///< committed here, and undone, since the other end never will
  std::uint64_t asked_after = 0;  ///< replies that nobody has acknowledged in time: now
  std::uint64_t violations = 0;   ///< replies that did not fit their request
  std::uint64_t blocks = 0;       ///< offered in exchanges
  std::uint64_t wide_blocks = 0;  ///< of those, the models differed by more than the range
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t payload_bytes_received = 0;
  double age_samples = 0;  ///< mean over fragments: trained since the publication that is gossiped
  std::uint32_t quarantined_fragments = 0;
  std::uint32_t fragments_pulled = 0;  ///< while joining
  std::uint32_t donors = 0;            ///< nodes that fragments are under way from
  std::uint64_t pulled_bytes = 0;
  double join_s = 0;                        ///< how long joining took, 0 if it has not ended
  std::uint32_t fragments_handed_over = 0;  ///< while the node leaves
  std::uint32_t in_flight = 0;
  double mean_shift = 0;         ///< of the exchanges done
  double mean_disagreement = 0;  ///< mean |difference| an element, estimated
  std::uint64_t busy_sent = 0;   ///< answers given that said busy
  std::uint64_t refused_sent = 0;
  std::uint64_t follow_ups = 0;    ///< exchanges of wide blocks, as initiator
  std::uint64_t repeats_sent = 0;  ///< requests and replies said again
  std::uint64_t clipped = 0;       ///< exchanges with a partner beyond [gossip] clip
  std::uint64_t outer_steps = 0;
  std::uint64_t quarantines = 0;  ///< times a fragment was found to hold NaN or infinity
  double consensus = 0;           ///< distance to partners over the model's own norm, smoothed; 0 before any exchange
  double mixing_per_s = 0;        ///< by exchanges alone replicas come closer by e^−this a second; 0: not known
  double spectral_gap = 0;        ///< and by this share between two exchanges of a fragment at this node; 0: not known
  std::vector<std::uint32_t> tracer_rounds;  ///< the last ones, the present one last (gossip/replica/tracer.hpp)
  double period_s = 0;                       ///< between two exchanges of a fragment that the node starts
  double wanted_period_s = 0;                ///< as configured: it is longer to keep to its shares of time and network
  std::string period_limit;                  ///< the option for whose sake it is longer; empty: it is not
  double codec_error_sum = 0;       ///< over exchanges: most that quantisation added, over the difference; 0 to 1 each
  double age_sum = 0;               ///< over exchanges: age of what was brought, in publication intervals
  double fragment_idle_s = 0;       ///< since the last exchange of the fragment that has waited longest for one
  std::vector<std::uint64_t> ages;  ///< exchanges by that age: up to 1, 2, 4, 8, 16, 64 intervals, and older
  std::uint64_t gpu_means = 0;      ///< of a fragment, over clients on several GPUs of the node
  std::uint64_t gpu_means_through_host = 0;  ///< of those, summed in host memory, without NCCL
  std::uint64_t gpu_means_failed = 0;        ///< in which some client was out of reach
  std::uint64_t checkpoints_written = 0;
  std::uint64_t checkpoints_failed = 0;
  std::uint64_t checkpoint_clock = 0;   ///< of the latest that was written
  double checkpoint_s = 0;              ///< since it was
  std::vector<PartnerStatus> partners;  ///< the neighbours
  std::string note;                     ///< what is wrong, for people; empty if nothing is
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FindingStatus, rule, grade, job, node, name, text, advice, since_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeStatus, version, node, name, address, incarnation, uptime_s, state, neighbours,
                                   peers, links_lost, members, view, passive_view, partial_view, health, deaths,
                                   refutations, jobs, clients, memory_bytes, device_memory_bytes, device_overflow_bytes,
                                   clients_awaited, limits_near, page, messages_sent, messages_received, bytes_sent,
                                   bytes_received, payload_bytes_sent, payload_bytes_received, messages_rejected,
                                   admissions_refused, handshakes_failed, strangers_closed, link_attempts,
                                   link_attempts_failed, sends_full, findings, cpu_s, heap_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PeerStatus, node, name, address, up, dialled_by_us, round_trip_ms,
                                   last_round_trip_ms, least_round_trip_ms, goodput_mbit_s, queued_bytes,
                                   under_way_bytes, up_s, messages_sent, messages_received, bytes_sent, bytes_received,
                                   note)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemberStatus, node, name, address, state, linked, incarnation, heard_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobSummaryStatus, job, state, clock, consensus, tracer_round, mixing_per_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SummaryStatus, node, name, age_s, neighbours, goodput_mbit_s, jobs)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientStatus, pid, state, clock, steps, published_s, buffers)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PartnerStatus, node, state, linked, clock, exchanges, busy, exchanged_s, answer_ms,
                                   goodput_mbit_s, consensus, blocks, wide_blocks, unresolved, age_intervals,
                                   quarantined_fragments)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobStatus, job, state, codec, layout, clients, pid, processes, clock, global_clock,
                                   steps, elements, fragments, neighbours, publications, exchanges, exchanges_initiated,
                                   exchanges_answered, busy, refused, unresolved, undone, violations, blocks,
                                   wide_blocks, payload_bytes_sent, payload_bytes_received, age_samples,
                                   quarantined_fragments, fragments_pulled, donors, pulled_bytes, join_s,
                                   fragments_handed_over, in_flight, mean_shift, mean_disagreement, busy_sent,
                                   refused_sent, follow_ups, repeats_sent, clipped, outer_steps, quarantines, consensus,
                                   mixing_per_s, spectral_gap, tracer_rounds, period_s, wanted_period_s, period_limit,
                                   codec_error_sum, age_sum, fragment_idle_s, ages, gpu_means, gpu_means_through_host,
                                   gpu_means_failed, checkpoints_written, checkpoints_failed, checkpoint_clock,
                                   checkpoint_s, partners, note)

/// The control socket's answers: {"node": {...}}, {"peers": [...]}, {"members": [...]}, {"jobs": [...]}.
[[nodiscard]] nlohmann::json status_answer(const NodeStatus& node);
[[nodiscard]] nlohmann::json peers_answer(const std::vector<PeerStatus>& peers);
[[nodiscard]] nlohmann::json members_answer(const std::vector<MemberStatus>& members);
[[nodiscard]] nlohmann::json jobs_answer(const std::vector<JobStatus>& jobs);

}  // namespace gossamer::daemon
