#include "daemon/report/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>

#include "daemon/report/watch.hpp"
#include "gossip/plain_text.hpp"
#include "gossip/replica/age_counts.hpp"
#include "sdk/layout/names.hpp"

namespace gossamer::daemon {
namespace {

using enum MetricType;

constexpr double bytes_per_megabit = 1e6 / 8;

template <class Number>
constexpr double real(Number number) {
  return static_cast<double>(number);
}
/// NaN stands for a number that is not known.
template <class Number>
constexpr double real(const std::optional<Number>& number) {
  return number ? real(*number) : std::numeric_limits<double>::quiet_NaN();
}

/// A metric with one value for each thing of its kind: the node, a job, a link, a GPU.
template <class Status>
struct Row : Metric {
  /// The member of Status that holds the value, or a function that computes it.
  std::variant<double Status::*, std::uint32_t Status::*, std::uint64_t Status::*, std::optional<double> Status::*,
               std::optional<std::uint64_t> Status::*, double (*)(const Status&)>
      value;

  [[nodiscard]] double of(const Status& status) const {
    return std::visit([&](const auto read) { return real(std::invoke(read, status)); }, value);
  }
};

constexpr Metric build_info = {
    "gossamer_build_info", gauge, "", "1; the labels say which node this is, and which version runs.",
    "Join by instance to name nodes in tables. Several versions at once are all right while a "
    "cluster is brought up to date."};
constexpr std::array node_states = {"running", "drained", "leaving", "stopping"};
constexpr Metric node_state = {"gossamer_node_state", gauge, "",
                               "1 for the state that the node is in, 0 for the others.",
                               "drained: an operator has drained it; gossamerctl drain --off ends that."};

constexpr Metric findings = {"gossamer_findings", gauge, "",
                             "Findings of the watch now, by the rule in the label; 0 where all is well.",
                             "gossamerctl status says each in words, with what to do; the rules are below."};

constexpr Row<NodeStatus> node_rows[] = {
    {"gossamer_uptime_seconds", gauge, "seconds", "How long the daemon has been running.",
     "Short again and again: the daemon crashes or is restarted; look at its log.", &NodeStatus::uptime_s},
    {"gossamer_neighbours", gauge, "", "Links to other nodes that are up.",
     "0: the node learns nothing from others; gossamerctl peers says why.", &NodeStatus::neighbours},
    {"gossamer_known_nodes", gauge, "", "Other nodes that are known, linked or not.",
     "Grows with every node that was ever linked; compare with gossamer_members.", &NodeStatus::peers},
    {"gossamer_members", gauge, "",
     "Other nodes in the cluster as this node sees it; in a cluster larger than [overlay] full_view_limit, those that "
     "it keeps links to.",
     "Differs between nodes for long: the network divides the cluster; gossamerctl members.", &NodeStatus::members},
    {"gossamer_links_lost_total", counter, "", "Links that went down without a goodbye.",
     "More than a few an hour: an unstable network, or machines too busy for heartbeats ([overlay] link_timeout_ms).",
     &NodeStatus::links_lost},
    {"gossamer_link_attempts_total", counter, "", "Links that this node dialled.",
     "For comparison with the failed ones.", &NodeStatus::link_attempts},
    {"gossamer_link_attempts_failed_total", counter, "", "Dialled links that nobody answered, or that were refused.",
     "Grows steadily: a configured peer is gone or a port is closed; the note in gossamerctl peers says which.",
     &NodeStatus::link_attempts_failed},
    {"gossamer_member_deaths_total", counter, "", "Members that this node declared dead.",
     "Compare with the crashes that you know of; further ones come from broken networks or machines that stood "
     "still.",
     &NodeStatus::deaths},
    {"gossamer_refutations_total", counter, "", "Claims of other nodes that this node is dead, which it refuted.",
     "Grows: this machine stands still at times, or its network does. Give the daemon more of a core.",
     &NodeStatus::refutations},
    {"gossamer_patience", gauge, "",
     "0: the node answers probes in time; each step above it, up to 8, makes the node that much more patient with "
     "others.",
     "Above 0 for minutes: the machine is too busy for its daemon.", &NodeStatus::health},
    {"gossamer_jobs", gauge, "", "Jobs that have clients here.", "0: nothing trains on this machine.",
     &NodeStatus::jobs},
    {"gossamer_clients", gauge, "", "Training processes that are attached.",
     "Fewer than you started: one has ended, or could not attach; it says why.", &NodeStatus::clients},
    {"gossamer_clients_awaited", gauge, "",
     "Training processes that were attached to the daemon before this one, and are not back (with systemd only).",
     "Above 0 after 30 s: these processes ended while no daemon ran; the log names them.",
     &NodeStatus::clients_awaited},
    {"gossamer_client_memory_bytes", gauge, "bytes", "Memory shared with training processes.",
     "Bounded by [limits] memory_mib, if that is set.", &NodeStatus::memory_bytes},
    {"gossamer_client_device_memory_bytes", gauge, "bytes",
     "Memory of GPUs shared with training processes, in which their models are averaged.",
     "0 while processes train on GPUs: they exchange through host memory; gossamerctl clients shows which, and the "
     "log why.",
     &NodeStatus::device_memory_bytes},
    {"gossamer_gpu_overflow_bytes", gauge, "bytes",
     "Memory for clients on GPUs that is in host memory because their GPU has no room.",
     "Above 0 for long: the GPU reaches it over the bus, slowly; let training leave it room. The log says which GPU.",
     &NodeStatus::device_overflow_bytes},
    {"gossamer_limits_near", gauge, "", "1 if a limit of [limits] is more than 80 % used.",
     "gossamerctl status says which; more training processes will soon be refused.",
     [](const NodeStatus& n) { return n.limits_near.empty() ? 0.0 : 1.0; }},
    {"gossamer_sent_messages_total", counter, "", "Messages sent to other nodes.", "For rates.",
     &NodeStatus::messages_sent},
    {"gossamer_received_messages_total", counter, "", "Messages received from other nodes.", "For rates.",
     &NodeStatus::messages_received},
    {"gossamer_sent_bytes_total", counter, "bytes", "Bytes of all messages sent, before encryption.",
     "More than you want to pay for: [gossip] max_mbit_s, a longer period_ms, codec q4.", &NodeStatus::bytes_sent},
    {"gossamer_received_bytes_total", counter, "bytes", "Bytes of all messages received, before encryption.",
     "Too much: set [gossip] max_mbit_s at the nodes that send it.", &NodeStatus::bytes_received},
    {"gossamer_sent_payload_bytes_total", counter, "bytes",
     "The part of the bytes sent that is values, differences and what decodes them.",
     "Below 90 % of all in a busy cluster: many small messages; models are small or the period is short.",
     &NodeStatus::payload_bytes_sent},
    {"gossamer_received_payload_bytes_total", counter, "bytes",
     "The part of the bytes received that is values, differences and what decodes them.", "As for what is sent.",
     &NodeStatus::payload_bytes_received},
    {"gossamer_sends_full_total", counter, "", "Messages that a link did not accept because its queue was full.",
     "Grows: a neighbour reads more slowly than is sent to it; gossamer_link_queued_bytes says which.",
     &NodeStatus::sends_full},
    {"gossamer_messages_rejected_total", counter, "",
     "Messages that were malformed, out of bounds, or not allowed by their sender's certificate.",
     "Not 0: a faulty or hostile member; the log names it, gossamerctl deny excludes it.",
     &NodeStatus::messages_rejected},
    {"gossamer_decisions_refused_total", counter, "",
     "Messages with decisions for the cluster (denials, keys, deputies, certificates, settings of jobs) that were not "
     "followed: not signed by whoever may, or out of bounds.",
     "Grows: a member decides what it may not, or is older than the authority; gossamerctl audit names it.",
     &NodeStatus::decisions_refused},
    {"gossamer_certificate_end_timestamp_seconds", gauge, "seconds",
     "When this node's certificate ends, in seconds since 1970; 0: it has none, or the cluster asks for none.",
     "Less than two weeks ahead: gossamerctl approve --renew makes another; when it has ended, the node has no links.",
     [](const NodeStatus& n) { return static_cast<double>(n.certificate_ends_us) / 1e6; }},
    {"gossamer_admissions_refused_total", counter, "",
     "Nodes that were refused because of their key, invitation, certificate, version or a denial, or because they "
     "asked too often.",
     "Grows: somebody with an old key, or who does not belong here; the log says from where.",
     &NodeStatus::admissions_refused},
    {"gossamer_handshakes_failed_total", counter, "",
     "Connections to the listening port that did not complete the handshake.",
     "Grows: port scanners, or nodes of another cluster.", &NodeStatus::handshakes_failed},
    {"gossamer_strangers_closed_total", counter, "",
     "Connections to the listening port that were closed because they were not admitted in time, sent much before, or "
     "were too many.",
     "Grows fast: somebody floods the port; the log says from where, and a packet filter can block it.",
     &NodeStatus::strangers_closed},
    {"gossamer_cpu_seconds_total", counter, "seconds", "Processor time of the daemon, all threads.",
     "A rate near [node] workers: gossip is limited by the processor.", &NodeStatus::cpu_s},
    {"gossamer_heap_bytes", gauge, "bytes", "Memory in use on the daemon's heap, without what it shares with clients.",
     "Grows for hours without more jobs or links: a leak, please report it.", &NodeStatus::heap_bytes},
};

constexpr Metric job_info = {"gossamer_job_info", gauge, "",
                             "1; the labels say how the job's values travel, and its layout.",
                             "Replicas with different layouts under one name do not meet."};
constexpr std::array job_states = {"joining", "running", "draining", "quarantined"};
constexpr Metric job_state = {"gossamer_job_state", gauge, "",
                              "1 for the state that the replica is in, 0 for the others.",
                              "joining for minutes: gossamerctl jobs shows how far the pull is. quarantined: the model "
                              "holds NaN or infinity."};

constexpr Metric job_logged = {"gossamer_job_logged", gauge, "",
                               "What the programs here have logged last, by its name in the label.",
                               "NaN or infinite: the training has gone wrong there."};
constexpr Metric job_logged_mean = {"gossamer_job_logged_mean", gauge, "",
                                    "The mean of it over this node and the neighbours that tell of it.",
                                    "Far from the value here: the node's data are others, or its learning rate is."};

constexpr Row<JobStatus> job_rows[] = {
    {"gossamer_job_clients", gauge, "", "Training processes of the job at this node.",
     "0 for a moment while a job ends.", &JobStatus::clients},
    {"gossamer_job_clock_samples", gauge, "samples", "Samples that this node's replica has been trained on.",
     "Stands still: training has stopped. Its rate is the node's throughput.", &JobStatus::clock},
    {"gossamer_job_global_clock_samples", gauge, "samples",
     "The largest clock of any replica of the job that is known and believed.",
     "Programs set their schedules by it. Far above this replica's own clock: this one trains more slowly, or came "
     "late.",
     &JobStatus::global_clock},
    {"gossamer_job_steps", gauge, "", "Training steps of all clients that are here now.",
     "Its rate is steps a second; falls when a client goes.", &JobStatus::steps},
    {"gossamer_job_elements", gauge, "", "Elements of the model that are averaged.", "For sizes.",
     &JobStatus::elements},
    {"gossamer_job_fragments", gauge, "", "Fragments of the model.", "For rates of exchanges a fragment.",
     &JobStatus::fragments},
    {"gossamer_job_neighbours", gauge, "", "Replicas of the job in reach.",
     "0 while others train it: links are down, names or layouts differ; the note in gossamerctl jobs says so.",
     &JobStatus::neighbours},
    {"gossamer_job_publications_total", counter, "", "Snapshots of fragments that clients published.",
     "Stands still while the clock runs: the client does not call step().", &JobStatus::publications},
    {"gossamer_job_exchanges_initiated_total", counter, "", "Completed exchanges that this node began.",
     "No growth in a minute although there are neighbours: all are busy or refuse; see those counters.",
     &JobStatus::exchanges_initiated},
    {"gossamer_job_exchanges_answered_total", counter, "", "Completed exchanges that other nodes began.",
     "Far fewer than initiated: others do not reach this node.", &JobStatus::exchanges_answered},
    {"gossamer_job_exchanges_in_flight", gauge, "", "Exchanges under way that this node began.",
     "At [gossip] in_flight all the time: latency bounds the rate; raise it.", &JobStatus::in_flight},
    {"gossamer_job_exchange_period_seconds", gauge, "seconds",
     "Time between two exchanges of a fragment that this node starts: [gossip] period_ms, or longer to keep to "
     "time_share and bandwidth_share.",
     "Far above period_ms: time_share or bandwidth_share holds it back.", &JobStatus::period_s},
    {"gossamer_job_follow_ups_total", counter, "", "Exchanges of wide blocks that this node began.",
     "As many as exchanges: replicas are far apart, or heavy-tailed; [gossip] range.", &JobStatus::follow_ups},
    {"gossamer_job_busy_received_total", counter, "", "Requests that were answered busy.",
     "More than the exchanges: the period is too short for this number of replicas; lengthen period_ms.",
     &JobStatus::busy},
    {"gossamer_job_busy_sent_total", counter, "", "Requests of others that were answered busy.",
     "As for those received.", &JobStatus::busy_sent},
    {"gossamer_job_refused_received_total", counter, "", "Requests that were refused.",
     "Grows: the other end is draining, has another layout or a bad number; its log says so.", &JobStatus::refused},
    {"gossamer_job_refused_sent_total", counter, "", "Requests of others that were refused.",
     "Grows: see this node's state and log.", &JobStatus::refused_sent},
    {"gossamer_job_repeats_total", counter, "", "Requests and replies that were sent again because no answer came.",
     "Grows: links lose what is sent, or answers take long.", &JobStatus::repeats_sent},
    {"gossamer_job_unresolved_total", counter, "",
     "Exchanges committed here whose outcome at the other end cannot be known any more.",
     "Each may have changed the sum over the replicas by one half of an exchange. The cause is a training process "
     "that died, or an end that was away for ten minutes; many mean unstable machines.",
     &JobStatus::unresolved},
    {"gossamer_job_undone_total", counter, "",
     "Exchanges committed here and undone, because the other end never will commit them.",
     "Harmless: deaths and broken links cut these off. Many mean unstable machines or links.", &JobStatus::undone},
    {"gossamer_job_replies_asked_after", gauge, "",
     "Replies that were not acknowledged in time; this node asks what has become of them.",
     "Not 0 for long: the node that they answer has not come back.", &JobStatus::asked_after},
    {"gossamer_job_violations_total", counter, "", "Replies that did not fit their request.",
     "Not 0: a hostile member, or a fault in Gossamer.", &JobStatus::violations},
    {"gossamer_job_clipped_total", counter, "",
     "Exchanges with a partner that is farther away than [gossip] clip allows.",
     "Grows with one partner: it is poisoned, or honest and far from all others.", &JobStatus::clipped},
    {"gossamer_job_blocks_total", counter, "", "Blocks offered in exchanges.",
     "Divides the wide blocks, to give their share.", &JobStatus::blocks},
    {"gossamer_job_wide_blocks_total", counter, "",
     "Blocks offered in exchanges that differed by more than the codec's range.",
     "Over a tenth for long: replicas drift apart faster than they are averaged.", &JobStatus::wide_blocks},
    {"gossamer_job_sent_payload_bytes_total", counter, "bytes", "Values and differences sent for the job.",
     "Its rate divided by the clock's rate is bytes a sample.", &JobStatus::payload_bytes_sent},
    {"gossamer_job_received_payload_bytes_total", counter, "bytes", "Values and differences received for the job.",
     "As for those sent.", &JobStatus::payload_bytes_received},
    {"gossamer_job_consensus_distance_ratio", gauge, "",
     "Distance to the partners of the latest exchanges over the norm of the model, smoothed; 0 before any.",
     "Grows over time: replicas drift apart; exchange more often (period_ms), or lower the learning rate.",
     &JobStatus::consensus},
    {"gossamer_job_mixing_rate_per_second", gauge, "1 / second",
     "Exchanges alone shrink differences between replicas by the factor e to the minus this in each second, as "
     "measured on numbers that are averaged along; 0: not known.",
     "The distance of replicas is the difference that training adds, divided by this. Falls: links or nodes have "
     "become slow; [gossip] partners, period_ms.",
     &JobStatus::mixing_per_s},
    {"gossamer_job_spectral_gap_ratio", gauge, "",
     "The share of the differences that goes between two exchanges of a fragment at this node, 0 to 1; 0: not known.",
     "Pairs chosen at random have 0.2 or more, a ring of 32 has 0.01; below that, parts of the cluster hardly meet.",
     &JobStatus::spectral_gap},
    {"gossamer_job_disagreement", gauge, "", "Mean difference of an element between replicas, estimated.",
     "It is in the model's units; compare jobs by gossamer_job_consensus_distance_ratio.",
     &JobStatus::mean_disagreement},
    {"gossamer_job_age_samples", gauge, "samples", "Samples trained since the oldest publication that is gossiped.",
     "Grows: the client publishes too seldom, or the daemon has no time to ask.", &JobStatus::age_samples},
    {"gossamer_job_quarantined_fragments", gauge, "", "Fragments that hold NaN or infinity now.",
     "Not 0: training has diverged; lower the learning rate, or go back to a checkpoint. The others are not touched.",
     &JobStatus::quarantined_fragments},
    {"gossamer_job_quarantines_total", counter, "", "Times that a fragment was found to hold NaN or infinity.",
     "As above.", &JobStatus::quarantines},
    {"gossamer_job_outer_steps_total", counter, "", "Outer steps taken.", "0 unless [gossip] outer_momentum is set.",
     &JobStatus::outer_steps},
    {"gossamer_job_pulled_fragments", gauge, "", "Fragments that were pulled from others when the replica joined.",
     "Stands still below gossamer_job_fragments while the job is joining: its donors are gone or slow.",
     &JobStatus::fragments_pulled},
    {"gossamer_job_pulled_bytes", gauge, "bytes", "Bytes that were pulled.", "Its rate is the speed of a pull.",
     &JobStatus::pulled_bytes},
    {"gossamer_job_join_seconds", gauge, "seconds", "How long joining took; 0 while it goes on.", "For comparison.",
     &JobStatus::join_s},
    {"gossamer_job_gpu_means_total", counter, "", "Means of a fragment over clients on several GPUs of this node.",
     "0: all clients are on one GPU, or in host memory.", &JobStatus::gpu_means},
    {"gossamer_job_gpu_means_through_host_total", counter, "",
     "Means over several GPUs that were summed in host memory, without NCCL.",
     "Grows: NCCL is not installed, or the GPUs do not come together; the log says why.",
     &JobStatus::gpu_means_through_host},
    {"gossamer_job_gpu_means_failed_total", counter, "",
     "Means in which some GPU was out of reach; what its clients have learned is averaged later.",
     "Grows: a GPU fails, or sums over NCCL fail; the log says which.", &JobStatus::gpu_means_failed},
    {"gossamer_job_checkpoints_total", counter, "", "Checkpoints that were written.",
     "0 with [checkpoints] period_s = 0.", &JobStatus::checkpoints_written},
    {"gossamer_job_checkpoints_failed_total", counter, "", "Checkpoints that could not be written.",
     "Grows: the disk is full or failing, or the client takes no step; the log and gossamerctl jobs say which.",
     &JobStatus::checkpoints_failed},
    {"gossamer_job_checkpoint_clock_samples", gauge, "samples", "Clock of the latest checkpoint; 0: there is none.",
     "If all nodes are lost, the training between this clock and the job's clock is lost.",
     &JobStatus::checkpoint_clock},
};

constexpr Metric codec_error = {
    "gossamer_job_codec_error_ratio", summary, "",
    "For each exchange, the norm of the most that quantisation added, divided by that of the difference averaged, 0 to "
    "1.",
    "Mean near 1: differences have become as small as a step, which is right at consensus; far "
    "from it, q8 instead of q4."};
constexpr Metric exchange_age = {"gossamer_job_exchange_age_intervals", histogram, "publication intervals",
                                 "For each exchange, the age of this node's values, in its own publication intervals.",
                                 "Many beyond 4, from where values are given less weight: the client publishes too "
                                 "seldom for the period, or exchanges take too long."};

constexpr Metric link_info = {"gossamer_link_info", gauge, "", "1; the labels give the node's name and address.",
                              "Join by peer to name links in tables."};
constexpr Row<PeerStatus> link_rows[] = {
    {"gossamer_link_up", gauge, "", "1 if the link is up.", "0: gossamerctl peers says why.",
     [](const PeerStatus& p) { return p.up ? 1.0 : 0.0; }},
    {"gossamer_link_round_trip_seconds", gauge, "seconds", "Round trip of heartbeats, smoothed; 0: not measured.",
     "Far above the least: data wait in a queue on the way; if they are this node's, set [gossip] link_max_mbit_s.",
     [](const PeerStatus& p) { return p.round_trip_ms / 1e3; }},
    {"gossamer_link_least_round_trip_seconds", gauge, "seconds",
     "The least round trip of the last seconds; 0: not measured.", "The network's latency without queues.",
     [](const PeerStatus& p) { return p.least_round_trip_ms / 1e3; }},
    {"gossamer_link_goodput_bytes_per_second", gauge, "bytes per second",
     "The link's rate while more is waiting; 0: nothing had to wait in the last minute.",
     "Far below what the network should carry: a bad cable, a busy neighbour, the wrong interface.",
     [](const PeerStatus& p) { return p.goodput_mbit_s * bytes_per_megabit; }},
    {"gossamer_link_queued_bytes", gauge, "bytes", "Bytes waiting to be sent.",
     "Always a second's worth: the link cannot carry what the period asks for; use codec auto or q4.",
     &PeerStatus::queued_bytes},
    {"gossamer_link_under_way_bytes", gauge, "bytes", "Bytes sent and not acknowledged.", "Shows how pacing works.",
     &PeerStatus::under_way_bytes},
    {"gossamer_link_sent_bytes_total", counter, "bytes", "Bytes sent over the link, before encryption.", "For rates.",
     &PeerStatus::bytes_sent},
    {"gossamer_link_received_bytes_total", counter, "bytes", "Bytes received over the link.", "For rates.",
     &PeerStatus::bytes_received},
};
constexpr Metric links_left_out = {"gossamer_links_left_out", gauge, "",
                                   "Known nodes whose links are not shown here because there are too many.",
                                   "Not 0 in large clusters; links that are up come first."};

constexpr Metric gpu_watch_state = {
    "gossamer_gpu_watch_state", gauge, "",
    "1 for the present state of watching the GPUs, 0 for the other states: watched, none (no driver or no GPU), off, "
    "stuck.",
    "stuck: the driver does not answer; nvidia-smi hangs, too. Restart the machine. The other figures of GPUs are "
    "old."};
constexpr std::array gpu_watch_states = {"watched", "none", "off", "stuck"};
constexpr Metric gpu_info = {"gossamer_gpu_info", gauge, "", "1; the labels give index, name and PCI bus.",
                             "Join by gpu to name GPUs in tables."};
constexpr Metric gpu_health = {"gossamer_gpu_health", gauge, "",
                               "1 for the GPU's health, 0 for the others: sound, warning, ill.",
                               "warning, ill: gossamerctl doctor says why and what to do."};
constexpr std::array gpu_healths = {"sound", "warning", "ill"};
constexpr Metric gpu_xids = {
    "gossamer_gpu_xid_errors_total", counter, "",
    "Errors of the kind in the label xid that the driver has reported since the daemon started, the latest kinds.",
    "The number is NVIDIA's; 13, 31, 43 and 45 are most often a program's fault. gossamerctl gpus says what the others "
    "mean."};

/// A figure that the driver does not tell is left out.
constexpr Row<gpus::Gpu> gpu_rows[] = {
    {"gossamer_gpu_memory_bytes", gauge, "bytes", "Memory of the GPU.", "For shares.", &gpus::Gpu::memory_total_bytes},
    {"gossamer_gpu_used_memory_bytes", gauge, "bytes", "Memory of the GPU in use.",
     "Near all of it: the next allocation of the training fails.", &gpus::Gpu::memory_used_bytes},
    {"gossamer_gpu_utilisation_ratio", gauge, "", "Share of the last moments in which a kernel ran, 0 to 1.",
     "Far below 1 while it trains: the GPU waits for data.", &gpus::Gpu::utilisation_ratio},
    {"gossamer_gpu_temperature_celsius", gauge, "degrees Celsius", "Temperature of the chip.",
     "Near 90: it slows itself down; look at fans and air.", &gpus::Gpu::temperature_c},
    {"gossamer_gpu_power_watts", gauge, "watts", "Power that the GPU draws.",
     "Always at the limit: the GPU is slowed down.", &gpus::Gpu::power_w},
    {"gossamer_gpu_power_limit_watts", gauge, "watts", "The most power that the GPU may draw.", "For comparison.",
     &gpus::Gpu::power_limit_w},
    {"gossamer_gpu_ecc_corrected", gauge, "", "Memory errors that were corrected, since the driver was loaded.",
     "Many an hour: the memory ages; rows will be replaced.", &gpus::Gpu::ecc_corrected},
    {"gossamer_gpu_ecc_uncorrected", gauge, "", "Memory errors that were not corrected, since the driver was loaded.",
     "Not 0: what ran then may be wrong; reset the GPU as gossamerctl doctor says.", &gpus::Gpu::ecc_uncorrected},
    {"gossamer_gpu_rows_remapped", gauge, "", "Memory rows that were replaced by spare rows, for good.",
     "Grows: the memory wears out.", &gpus::Gpu::rows_remapped},
    {"gossamer_gpu_clients", gauge, "", "Clients of this daemon that use the GPU.",
     "0 while its neighbours train: a client has ended, or never saw it.",
     [](const gpus::Gpu& g) {
       return real(std::ranges::count_if(g.processes, [](const auto& process) { return !process.job.empty(); }));
     }},
};

// --- the text format ----------------------------------------------------------------------------------------------

/// Prometheus takes any UTF-8, but an address or a name may have other bytes.
std::string label_value(std::string_view text) {
  if (!is_plain_text(text, text.size())) return "?";
  std::string value;
  for (const char c : text) {
    if (c == '"' || c == '\\') value += '\\';
    value += c;
  }
  return value;
}

std::string label(const char* name, std::string_view value) {
  return fmt::format("{}=\"{}\"", name, label_value(value));
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

class Text {
 public:
  void begin(const Metric& metric) {
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", metric.name, metric.help, metric.name, type_name(metric.type));
  }
  void sample(std::string_view name, std::string_view labels, double value) {
    text_ += name;
    if (!labels.empty()) text_ += fmt::format("{{{}}}", labels);
    text_ += fmt::format(" {}\n", number(value));
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// One series for each possible state; the series of the present state is 1, the others are 0.
template <class States>
void states(Text& text, const Metric& metric, const States& all, const std::string& labels, std::string_view state) {
  for (const char* const one : all) {
    text.sample(metric.name, labels + (labels.empty() ? "" : ",") + label("state", one), state == one ? 1 : 0);
  }
}

std::string labels_of(const JobStatus& job) {
  return label("job_name", job.job);
}
std::string labels_of(const PeerStatus& peer) {
  return label("peer", peer.node);
}

std::string labels_of(const gpus::Gpu& gpu) {
  return label("gpu", gpu.uuid.empty() ? std::to_string(gpu.index) : gpu.uuid);
}

/// Whether NaN means that the value is not known, so that it is left out. Of other things NaN is written as a value.
template <class Status>
constexpr bool may_be_absent = std::is_same_v<Status, gpus::Gpu>;

template <class Status, std::size_t count>
void write_rows(Text& text, const Row<Status> (&rows)[count], const std::vector<Status>& all) {
  if (all.empty()) return;
  for (const Row<Status>& row : rows) {
    text.begin(row);
    for (const Status& one : all) {
      const double value = row.of(one);
      if (may_be_absent<Status> && std::isnan(value)) continue;
      text.sample(row.name, labels_of(one), value);
    }
  }
}

void write_node(Text& text, const NodeStatus& node) {
  text.begin(build_info);
  text.sample(
      build_info.name,
      fmt::format("{},{},{}", label("version", node.version), label("node", node.node), label("name", node.name)), 1);
  text.begin(node_state);
  states(text, node_state, node_states, "", node.state);
  text.begin(findings);
  for (const WatchRule& rule : watch_rules) {
    text.sample(findings.name, label("rule", rule.name),
                real(std::ranges::count(node.findings, rule.name, &FindingStatus::rule)));
  }
  for (const Row<NodeStatus>& row : node_rows) {
    text.begin(row);
    text.sample(row.name, "", row.of(node));
  }
}

void write_ages(Text& text, const JobStatus& job) {
  const std::string name = exchange_age.name;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < job.ages.size(); ++i) {
    count += job.ages[i];
    const std::string bound = i < gossip::age_bounds.size() ? number(gossip::age_bounds[i]) : "+Inf";
    text.sample(name + "_bucket", labels_of(job) + "," + label("le", bound), real(count));
  }
  text.sample(name + "_sum", labels_of(job), job.age_sum);
  text.sample(name + "_count", labels_of(job), real(count));
}

void write_logged(Text& text, const Metric& metric, const std::vector<JobStatus>& jobs, double LoggedStatus::*value) {
  text.begin(metric);
  for (const JobStatus& job : jobs) {
    for (const LoggedStatus& logged : job.logged)
      text.sample(metric.name, labels_of(job) + "," + label("name", logged.name), logged.*value);
  }
}

void write_jobs(Text& text, const std::vector<JobStatus>& jobs) {
  if (jobs.empty()) return;
  text.begin(job_info);
  for (const JobStatus& job : jobs) {
    text.sample(job_info.name,
                fmt::format("{},{},{}", labels_of(job), label("codec", job.codec), label("layout", job.layout)), 1);
  }
  text.begin(job_state);
  for (const JobStatus& job : jobs)
    states(text, job_state, job_states, labels_of(job), job.state);
  write_rows(text, job_rows, jobs);
  write_logged(text, job_logged, jobs, &LoggedStatus::value);
  write_logged(text, job_logged_mean, jobs, &LoggedStatus::mean);
  text.begin(codec_error);
  for (const JobStatus& job : jobs) {
    text.sample(std::string(codec_error.name) + "_sum", labels_of(job), job.codec_error_sum);
    text.sample(std::string(codec_error.name) + "_count", labels_of(job), real(job.exchanges));
  }
  text.begin(exchange_age);
  for (const JobStatus& job : jobs)
    write_ages(text, job);
}

void write_links(Text& text, std::vector<PeerStatus> peers) {
  std::erase_if(peers, [](const PeerStatus& peer) { return peer.node.empty(); });  // an address that never answered
  std::ranges::stable_sort(peers, [](const PeerStatus& a, const PeerStatus& b) { return a.up && !b.up; });
  text.begin(links_left_out);
  text.sample(links_left_out.name, "", real(peers.size() - std::min(peers.size(), max_metric_links)));
  if (peers.size() > max_metric_links) peers.resize(max_metric_links);
  if (peers.empty()) return;
  text.begin(link_info);
  for (const PeerStatus& peer : peers) {
    text.sample(link_info.name,
                fmt::format("{},{},{}", labels_of(peer), label("name", peer.name), label("address", peer.address)), 1);
  }
  write_rows(text, link_rows, peers);
}

void write_gpus(Text& text, const gpus::GpuReport& report) {
  text.begin(gpu_watch_state);
  states(text, gpu_watch_state, gpu_watch_states, "", report.state);
  if (report.gpus.empty()) return;
  text.begin(gpu_info);
  for (const gpus::Gpu& gpu : report.gpus) {
    text.sample(gpu_info.name,
                fmt::format("{},{},{},{}", labels_of(gpu), label("index", std::to_string(gpu.index)),
                            label("name", gpu.name), label("pci_bus", gpu.pci_bus)),
                1);
  }
  text.begin(gpu_health);
  for (const gpus::Gpu& gpu : report.gpus)
    states(text, gpu_health, gpu_healths, labels_of(gpu), name_of(gpu.health));
  text.begin(gpu_xids);
  for (const gpus::Gpu& gpu : report.gpus)
    for (const gpus::XidSeen& seen : gpu.xids)
      text.sample(gpu_xids.name, labels_of(gpu) + "," + label("xid", std::to_string(seen.code)), real(seen.count));
  write_rows(text, gpu_rows, report.gpus);
}

// --- the document -------------------------------------------------------------------------------------------------

void append_table(std::string& out, const std::vector<Metric>& metrics) {
  out += "| metric | type | unit | what it is | what to do |\n| --- | --- | --- | --- | --- |\n";
  for (const Metric& metric : metrics) {
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", metric.name, type_name(metric.type), metric.unit, metric.help,
                       metric.advice);
  }
}

template <class Rows>
std::vector<Metric> joined(std::vector<Metric> list, const Rows& rows) {
  for (const Metric& row : rows)
    list.push_back(row);
  return list;
}

std::vector<Metric> node_metrics() {
  return joined({build_info, node_state, findings}, node_rows);
}
std::vector<Metric> job_metrics() {
  std::vector<Metric> list = joined({job_info, job_state, job_logged, job_logged_mean}, job_rows);
  list.insert(list.end(), {codec_error, exchange_age});
  return list;
}
std::vector<Metric> link_metrics() {
  return joined({links_left_out, link_info}, link_rows);
}
std::vector<Metric> gpu_metrics() {
  return joined({gpu_watch_state, gpu_info, gpu_health, gpu_xids}, gpu_rows);
}

}  // namespace

const char* type_name(MetricType type) {
  constexpr std::array names = {"gauge", "counter", "summary", "histogram"};
  return names[static_cast<std::size_t>(type)];
}

std::vector<Metric> metric_list() {
  return joined(joined(joined(node_metrics(), job_metrics()), link_metrics()), gpu_metrics());
}

std::string metrics_text(const Observed& observed) {
  Text text;
  write_node(text, observed.node);
  write_jobs(text, observed.jobs);
  write_links(text, observed.peers);
  write_gpus(text, observed.gpus);
  return text.take();
}

std::string metrics_document() {
  std::string out = R"(# Metrics

What `gossamerd` serves at `http://127.0.0.1:9746/metrics` (`[metrics] listen`) in Prometheus' text format, what each
number means, and what to do about it. This page is what `gossamerd --print-metrics` prints; a test compares them.

Counters begin at 0 with the daemon, those of a job with its replica.

## Of the node

)";
  append_table(out, node_metrics());
  out += R"(
### What the watch looks for

Each is said in words, with the cause and the next step, in the log, by `gossamerctl status`, `explain` and `top`, and on the
status page.

| rule | what it means |
| --- | --- |
)";
  for (const WatchRule& rule : watch_rules)
    out += fmt::format("| `{}` | {} |\n", rule.name, rule.what);
  out += R"(
## Of each job

With the label `job_name`; Prometheus itself has a label `job`. A node has at most `[limits] jobs` of them.

)";
  append_table(out, job_metrics());
  out += fmt::format(R"(
## Of each link

With the label `peer`, the other node's id. At most {} are shown, those that are up first.

)",
                     max_metric_links);
  append_table(out, link_metrics());
  out += R"(
## Of each GPU

With the label `gpu`, its UUID, as far as NVIDIA's driver tells (`[gpus] library`); what it does not tell is left out.
The figures are a few seconds old, those of a driver that hangs older.

)";
  append_table(out, gpu_metrics());
  return out;
}

}  // namespace gossamer::daemon
