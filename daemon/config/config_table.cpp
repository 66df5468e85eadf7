// The rows of the table of options (config_table.hpp), and what follows from a row alone: the form of its values and
// the commented sample. Called from config.cpp. Pure functions.

#include "daemon/config/config_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "daemon/system/http_server.hpp"
#include "daemon/system/user_rights.hpp"
#include "gossip/overloaded.hpp"
#include "peer/address.hpp"
#include "peer/admission/denials.hpp"
#include "peer/admission/invitation.hpp"
#include "sdk/layout/names.hpp"

namespace gossamer::daemon {
namespace {

constexpr double most_seed = 9'007'199'254'740'992;  // 2^53: exact in every tool that reads numbers as doubles

constexpr Option node_options[] = {
    {.key = "name",
     .field = [](Config& c) -> OptionField { return &c.node.name; },
     .form = TextForm::name,
     .text = "The node's name in tables and logs. Empty: the host's name. A node is identified by its key, never by "
             "this name."},
    {.key = "state_dir",
     .field = [](Config& c) -> OptionField { return &c.node.state_dir; },
     .text = "Folder of the node's key pair, cluster key and lock; one daemon at a time uses it. Empty: "
             "/var/lib/gossamer if it can be written, else $XDG_STATE_HOME/gossamer or ~/.local/state/gossamer."},
    {.key = "socket_dir",
     .field = [](Config& c) -> OptionField { return &c.node.socket_dir; },
     .text = "Folder of the sockets for training processes (client.sock, average.sock) and gossamerctl (control.sock). "
             "Empty: the first that can be used of /run/gossamer, $XDG_RUNTIME_DIR/gossamer and /tmp/gossamer-UID; "
             "with another folder, set GOSSAMER_SOCKET for training processes."},
    {.key = "workers",
     .field = [](Config& c) -> OptionField { return &c.node.workers; },
     .bounds = {0, 256, "threads"},
     .text = "Threads that encode and average. 0: one a core, at most 8. More keep up with faster links; each takes "
             "a core from training while it works. From 4 on, half as many more, at most 4, encrypt what is large."},
    {.key = "io_threads",
     .field = [](Config& c) -> OptionField { return &c.node.io_threads; },
     .bounds = {0, 64, "threads"},
     .text =
         "Threads of ZeroMQ that move bytes. 0: 1, or 3 on machines with 8 cores and more. One does about 3 GB/s, or 1 "
         "GB/s where bulk goes through CURVE, sent and received together. A link stays with one: more help only with "
         "several fast links, and each takes a core from training while it works. Odd numbers spread links better "
         "than even ones."},
};

constexpr Option overlay_options[] = {
    {.key = "listen",
     .field = [](Config& c) -> OptionField { return &c.overlay.listen; },
     .form = TextForm::listen,
     .text = "Address to listen on for other nodes. The default is reachable from this machine only; for a cluster, "
             "tcp://*:26746 or the address of one network. Port 0 takes any free one. Here and in other addresses of "
             "nodes, tcp:// may be left out; the port may not."},
    {.key = "advertise",
     .field = [](Config& c) -> OptionField { return &c.overlay.advertise; },
     .form = TextForm::advertised,
     .reloads = true,
     .text =
         "Address that others should dial, where it differs from `listen`, as tcp://host:port. Empty: the "
         "address listened on, and with `listen` at * or 0.0.0.0 the one where others see this node; a machine that "
         "moves to another network is found again by itself. \"none\": nobody can dial this node, it dials out "
         "only (behind a NAT, say)."},
    {.key = "bulk",
     .field = [](Config& c) -> OptionField { return &c.overlay.bulk; },
     .text =
         "How models are protected on their way. sealed: each message is encrypted and authenticated by AES-256-GCM, "
         "or "
         "ChaCha20-Poly1305 without a processor for AES. plain: authenticated only, so that everybody on the way can "
         "read the models; it holds between nodes that all say so, and saves a tenth or more of the processor time of "
         "an exchange. curve: by ZeroMQ's CURVE, which costs more, as between older nodes. Where the two ends differ, "
         "the safer one holds."},
    {.key = "interface",
     .field = [](Config& c) -> OptionField { return &c.overlay.interface; },
     .text =
         "Network interface that every connection with other nodes goes through, coming or going, as `ip link` names "
         "it. Nodes on the same machine then reach this one through it or not at all. Empty: as the machine "
         "routes."},
    {.key = "peers",
     .field = [](Config& c) -> OptionField { return &c.overlay.peers; },
     .form = TextForm::address,
     .reloads = true,
     .text =
         "Nodes to join through, each as tcp://host:port. One that is up is enough: it tells of all others. Each is "
         "dialled again and again while it is listed and not a member. At most 1024, of which the first 64, in the "
         "order of their texts, are asked to introduce a newcomer."},
    {.key = "cluster_key_file",
     .field = [](Config& c) -> OptionField { return &c.overlay.cluster_key_file; },
     .text = "File with the key that admits nodes; the same on every node, readable for the daemon only. Empty: "
             "cluster.key in the state folder, made at the first start."},
    {.key = "join",
     .field = [](Config& c) -> OptionField { return &c.overlay.join; },
     .form = TextForm::invitation,
     .text = "Invitation to a cluster, the line that `gossamerctl invite` printed on a member. Used while there is no "
             "cluster key file, which it brings; without effect after that. The line is a secret until it expires: let "
             "nobody else read this file. Empty: none."},
    {.key = "denied",
     .field = [](Config& c) -> OptionField { return &c.overlay.denied; },
     .form = TextForm::node_id,
     .reloads = true,
     .text = "Ids of nodes that get no link to this one, whatever key they hold and whatever other members say; "
             "`gossamerctl deny` does so for the whole cluster. At most 1024."},
    {.key = "ping_ms",
     .field = [](Config& c) -> OptionField { return &c.overlay.ping_ms; },
     .bounds = {20, 60'000, "ms"},
     .text =
         "Time between two signs of life on a link. A short time finds losses sooner but costs more small messages."},
    {.key = "link_timeout_ms",
     .field = [](Config& c) -> OptionField { return &c.overlay.link_timeout_ms; },
     .bounds = {100, 600'000, "ms"},
     .text = "A link that has been silent for this long is taken for lost and dialled again; its connection for bulk "
             "may be for ten times as long. At least twice ping_ms. Shorter reacts sooner; longer mistakes fewer "
             "pauses for losses, which cost only a new link."},
    {.key = "probe_interval_ms",
     .field = [](Config& c) -> OptionField { return &c.overlay.probe_interval_ms; },
     .bounds = {100, 60'000, "ms"},
     .text =
         "In each interval one member is probed; a member whose link has broken comes first. A crash is "
         "declared after about this time and suspicion_mult times it again. A short interval finds crashes sooner but "
         "costs more messages, of about 100 bytes each way. 5000 with profile internet."},
    {.key = "probe_timeout_ms",
     .field = [](Config& c) -> OptionField { return &c.overlay.probe_timeout_ms; },
     .bounds = {50, 30'000, "ms"},
     .text = "A member that has not answered a probe for this long is probed through three others. Must be above the "
             "round trips of the network, and less than probe_interval_ms. 3000 with profile internet."},
    {.key = "suspicion_mult",
     .field = [](Config& c) -> OptionField { return &c.overlay.suspicion_mult; },
     .bounds = {1, 100},
     .text = "A member that nobody reaches is first suspected, for max(1, log10(members)) times this many "
             "probe_interval_ms, and up to six times as long while no other node suspects it. In that time it can "
             "refute the suspicion. With more, fewer pauses are mistaken for deaths; but exchanges with a dead member "
             "wait longer. 6 with "
             "profile internet."},
    {.key = "full_view_limit",
     .field = [](Config& c) -> OptionField { return &c.overlay.full_view_limit; },
     .bounds = {1, 64, "nodes"},
     .text = "In a cluster of up to this many other nodes, every node has a link to every other. In a larger one each "
             "node keeps links to some only (active_view). A larger limit averages faster, and costs a link and its "
             "heartbeats for each node. The same on every node."},
    {.key = "active_view",
     .field = [](Config& c) -> OptionField { return &c.overlay.active_view; },
     .bounds = {2, 32, "nodes"},
     .text = "Neighbours that a node looks for in a cluster larger than full_view_limit; it takes two more if asked. "
             "More mix faster and survive more losses at once, and cost a link each."},
    {.key = "passive_view",
     .field = [](Config& c) -> OptionField { return &c.overlay.passive_view; },
     .bounds = {2, 256, "nodes"},
     .text = "Other members that a node remembers in such a cluster, to replace neighbours that it loses. Four times "
             "active_view finds "
             "one even after many have died at once."},
};

constexpr Option gossip_options[] = {
    {.key = "profile",
     .field = [](Config& c) -> OptionField { return &c.gossip.profile; },
     .reloads = true,
     .text = "The network that the defaults suit. lan: machines in one network, equal or not. internet: sites some 50 "
             "Mbit/s and 100 ms apart; codec q4, period_ms 1000 and partners weighted, and for the overlay, from the "
             "next start, probe_interval_ms 5000, probe_timeout_ms 3000 and suspicion_mult 6, where this file does not "
             "say otherwise."},
    {.key = "method",
     .field = [](Config& c) -> OptionField { return &c.gossip.method; },
     .reloads = true,
     .shared = true,
     .text =
         "What the training processes of a job do with each other. gossip: the daemons exchange the model in the "
         "background, and no step waits. average: they exchange nothing, and attach() for PyTorch averages exactly, "
         "as average_steps says; who waits for whom is said in docs/how-to/average-exactly.md. server: each fragment "
         "is "
         "exchanged with the node that owns it only, and no step waits; the owners are the nodes that keep the job "
         "(gossamerctl keep), or all if there are none. Give it to the job, so that all its processes have the same."},
    {.key = "average_steps",
     .field = [](Config& c) -> OptionField { return &c.gossip.average_steps; },
     .bounds = {1, 1'000'000, "steps"},
     .reloads = true,
     .shared = true,
     .text =
         "With the method average. 1: the gradients are averaged before each step of the optimizer. More: the models "
         "are, after so many steps, followed by an outer step if there is an outer_momentum."},
    {.key = "average_members",
     .field = [](Config& c) -> OptionField { return &c.gossip.average_members; },
     .bounds = {1, 256, "processes"},
     .reloads = true,
     .shared = true,
     .text =
         "With the method average: wait until so many processes of the job take part, also if fewer are left of them "
         "later. 1: whoever is there goes on."},
    {.key = "average_codec",
     .field = [](Config& c) -> OptionField { return &c.gossip.average_codec; },
     .reloads = true,
     .shared = true,
     .text = "With the method average: how gradients travel. f32 is exact. q8 rounds them to 8 bits, a quarter of the "
             "bytes, and adds what rounding has taken away to the next ones; all processes still get the same bits. "
             "For slow links."},
    {.key = "codec",
     .field = [](Config& c) -> OptionField { return &c.gossip.codec; },
     .reloads = true,
     .shared = true,
     .text =
         "How values travel: q8 sends one byte an element, q4 half a byte with more noise, f32 four bytes, as the "
         "reference. auto: q8, and q4 over links below 1 Gbit/s that were measured to be too slow for q8 at this "
         "period. Averages agree exactly at both ends with each. What is exchanged with nodes that keep the job goes "
         "as q8 instead of q4."},
    {.key = "period_ms",
     .field = [](Config& c) -> OptionField { return &c.gossip.period_ms; },
     .bounds = {0, 3'600'000, "ms"},
     .reloads = true,
     .shared = true,
     .text = "Shortest time between two exchanges of one fragment that this node starts. Shorter keeps replicas "
             "closer together and sends more bytes. Where half a training step is longer, that is the shortest. 0: as "
             "often as the links allow, however long steps are."},
    {.key = "in_flight",
     .field = [](Config& c) -> OptionField { return &c.gossip.in_flight; },
     .bounds = {1, 1024},
     .reloads = true,
     .text = "Exchanges that a node has under way at once for one job, each of a different fragment. More hide the "
             "network's latency and take more memory: two fragments' bytes each."},
    {.key = "mixing_budget",
     .field = [](Config& c) -> OptionField { return &c.gossip.mixing_budget; },
     .bounds = {0.125, 1.0},
     .reloads = true,
     .shared = true,
     .text = "All exchanges of a fragment under way at a node may together move it by at most this share of the "
             "differences. 1 suits a local network; 0.5 keeps long-distance links, where values are older, stable."},
    {.key = "exchange_lifetime_ms",
     .field = [](Config& c) -> OptionField { return &c.gossip.exchange_lifetime_ms; },
     .bounds = {100, 3'600'000, "ms"},
     .reloads = true,
     .text = "How long a node waits for the answer to an exchange, and keeps its own answers for repeated requests. At "
             "least twice link_timeout_ms, so that a lost link is noticed and made again in that time. Longer rides "
             "out longer "
             "pauses and holds memory longer."},
    {.key = "range",
     .field = [](Config& c) -> OptionField { return &c.gossip.range; },
     .bounds = {2.0, 64.0},
     .reloads = true,
     .shared = true,
     .text = "Largest difference that a quantised value can carry, as a multiple of the mean one expected in its "
             "block. Wider makes steps coarser (more noise); tighter leaves more blocks out, to be tried again."},
    {.key = "partners",
     .field = [](Config& c) -> OptionField { return &c.gossip.partners; },
     .reloads = true,
     .shared = true,
     .text =
         "Whom a fragment is averaged with next. random takes anybody but the last one, and holds up best "
         "when nodes come and go; weighted prefers neighbours with fast links, and leaves none out; the schedules "
         "(hypercube, base, one-peer-exponential, ring, torus, regular) suit a fixed set of equals that all see each "
         "other; hub sends everyone to one."},
    {.key = "weights",
     .field = [](Config& c) -> OptionField { return &c.gossip.weights; },
     .reloads = true,
     .shared = true,
     .text =
         "What a replica's training counts for in the mean. equal: each training step alike. samples: by the samples "
         "of a step, as the programs count them, so that a node with a batch of 8 does not move one with a batch of "
         "256 as far as itself; ratios beyond 64 count as 64. For optimizers such as Adam, whose steps are as long "
         "whatever the batch, and for experts of a mixture. Without effect on exact averages and servers."},
    {.key = "clip",
     .field = [](Config& c) -> OptionField { return &c.gossip.clip; },
     .bounds = {0, 1000},
     .reloads = true,
     .shared = true,
     .text =
         "Limits what one exchange moves to this many times the usual amount, which is the lower median over partners. "
         "The default costs trusted nodes nothing, and holds off one of four or more that goes wild: from 4 up, an "
         "exchange may always move a quarter of the model's norm. Below 4 it also holds off honest members that are "
         "far from all others, as between two groups with different data. 0: off."},
    {.key = "dense_clip",
     .field = [](Config& c) -> OptionField { return &c.gossip.dense_clip; },
     .bounds = {0, 1000},
     .reloads = true,
     .text = "At most this counts as clip in a cluster that asks for certificates, while the node trains and is linked "
             "with three quarters of the others, so that nobody depends on a single link. 2 then holds off hostile "
             "members, and costs honest ones nothing while they train. 1000: clip alone counts; 0: off there."},
    {.key = "clock_pace",
     .field = [](Config& c) -> OptionField { return &c.gossip.clock_pace; },
     .bounds = {1, 64},
     .reloads = true,
     .text =
         "How many times as fast as all others one of three or more nodes may train, for the job's clock to keep up "
         "with it. A member that lies about its clock makes the schedules of others so many times too fast. Raise "
         "it where you trust all members and one is much faster than the rest: the log then says so."},
    {.key = "outer_momentum",
     .field = [](Config& c) -> OptionField { return &c.gossip.outer_momentum; },
     .bounds = {0, 0.9},
     .reloads = true,
     .shared = true,
     .text = "Momentum on the replica's movement by training and mixing in each outer_period_ms. 0.5 is "
             "worth trying where a fragment is exchanged less often than about every 16 steps; it costs two more "
             "copies of the model in memory and sends nothing. 0: off."},
    {.key = "outer_period_ms",
     .field = [](Config& c) -> OptionField { return &c.gossip.outer_period_ms; },
     .bounds = {1, 3'600'000, "ms"},
     .reloads = true,
     .shared = true,
     .text = "Shortest time between two outer steps of a fragment; three exchanges should fit in. Without effect while "
             "outer_momentum is 0."},
    {.key = "time_share",
     .field = [](Config& c) -> OptionField { return &c.gossip.time_share; },
     .bounds = {0, 1.0},
     .reloads = true,
     .text = "The share of a training process's time that gossip may take. The period grows until gossip keeps to it, "
             "up to ten minutes, or up to one minute where replicas are far apart. Larger keeps replicas of a large "
             "model closer together; "
             "0: no limit."},
    {.key = "bandwidth_share",
     .field = [](Config& c) -> OptionField { return &c.gossip.bandwidth_share; },
     .bounds = {0, 1.0},
     .reloads = true,
     .text =
         "The share of the network's capacity that exchanges may take. The period grows until exchanges keep to it. "
         "The capacity is the measured rate of the fastest link while more data was waiting; it is not known before "
         "that. Larger keeps replicas closer together, and leaves less to others on the same network; 0: no limit."},
    {.key = "max_mbit_s",
     .field = [](Config& c) -> OptionField { return &c.gossip.max_mbit_s; },
     .bounds = {0, 1'000'000, "Mbit/s"},
     .reloads = true,
     .text =
         "The rate at which this node may send, for all jobs and links together. Fragments then take turns, the oldest "
         "first, and replicas are further apart. Counts messages with their encryption, not TCP/IP headers (about "
         "4 %). 0: no limit."},
    {.key = "link_max_mbit_s",
     .field = [](Config& c) -> OptionField { return &c.gossip.link_max_mbit_s; },
     .bounds = {0, 1'000'000, "Mbit/s"},
     .reloads = true,
     .text = "The rate at which this node may send to one neighbour, for all jobs together. 0: no limit."},
    {.key = "seed",
     .field = [](Config& c) -> OptionField { return &c.gossip.seed; },
     .bounds = {0, most_seed},
     .text = "Seed of every random choice, for tests. 0: from the system."},
};

constexpr Option limits_options[] = {
    {.key = "clients",
     .field = [](Config& c) -> OptionField { return &c.limits.clients; },
     .bounds = {1, 4096},
     .text = "The number of training processes attached at once. More are refused with a message."},
    {.key = "jobs",
     .field = [](Config& c) -> OptionField { return &c.limits.jobs; },
     .bounds = {1, 4096},
     .text = "The number of jobs at once. More are refused with a message."},
    {.key = "memory_mib",
     .field = [](Config& c) -> OptionField { return &c.limits.memory_mib; },
     .bounds = {0, 1 << 30, "MiB"},
     .text = "Memory shared with all training processes together: three times the size of their models in fp32. 0: "
             "four fifths of the machine's memory."},
    {.key = "clients_per_user",
     .field = [](Config& c) -> OptionField { return &c.limits.clients_per_user; },
     .bounds = {0, 4096},
     .text = "The same limit as `clients`, for each user. 0: three quarters of it, so that nobody takes all; for root "
             "and the user that runs gossamerd, all of it."},
    {.key = "jobs_per_user",
     .field = [](Config& c) -> OptionField { return &c.limits.jobs_per_user; },
     .bounds = {0, 4096},
     .text = "The same limit as `jobs`, for each user. 0: as for `clients_per_user`."},
    {.key = "memory_per_user_mib",
     .field = [](Config& c) -> OptionField { return &c.limits.memory_per_user_mib; },
     .bounds = {0, 1 << 30, "MiB"},
     .text = "The same limit as `memory_mib`, for each user. 0: as for `clients_per_user`."},
    {.key = "memory_per_client_mib",
     .field = [](Config& c) -> OptionField { return &c.limits.memory_per_client_mib; },
     .bounds = {0, 1 << 30, "MiB"},
     .text = "The same limit as `memory_mib`, for each training process. 0: no limit for each process."},
};

constexpr Option rights_options[] = {
    {.key = "train",
     .field = [](Config& c) -> OptionField { return &c.rights.train; },
     .form = TextForm::grant,
     .reloads = true,
     .text = "Who may train which jobs, and read their models so. An entry is \"WHO: JOBS\": a user's name, a group's "
             "after @, or * for all, and names of jobs, with * and ?, and commas between them, as in "
             "[\"anna: *\", \"@vision: vision-*,speech\"]. Whoever is named must reach the sockets, too: by "
             "default the group gossamer does. Root and the user that gossamerd runs as may train all."},
    {.key = "steer",
     .field = [](Config& c) -> OptionField { return &c.rights.steer; },
     .form = TextForm::grant,
     .reloads = true,
     .text = "Who may change the settings of which jobs with `gossamerctl job set`, for all their nodes, and have "
             "checkpoints of them written, besides root and the user that gossamerd runs as. Entries are as for "
             "`train`."},
};

constexpr Option metrics_options[] = {
    {.key = "listen",
     .field = [](Config& c) -> OptionField { return &c.metrics.listen; },
     .form = TextForm::loopback,
     .text = "Where the status page (/) and the metrics (/metrics) are served, by plain HTTP. Only addresses of this "
             "machine are taken: nothing there is encrypted or asks who you are, and every user of the machine may "
             "look. To look from elsewhere, put an SSH tunnel or a reverse proxy in front, or collect on this machine. "
             "Port 0 takes any free one, which `gossamerctl status` shows. Empty: neither page nor metrics."},
};

constexpr Option checkpoints_options[] = {
    {.key = "folder",
     .field = [](Config& c) -> OptionField { return &c.checkpoints.folder; },
     .text = "Folder of the checkpoints, one folder for each job in it; several nodes may share it. Empty: checkpoints "
             "in the state folder. The systemd unit lets the daemon write below /var/lib/gossamer only: for another "
             "folder, add ReadWritePaths= to it (systemctl edit gossamerd)."},
    {.key = "period_s",
     .field = [](Config& c) -> OptionField { return &c.checkpoints.period_s; },
     .bounds = {0, 30 * 86'400, "s"},
     .reloads = true,
     .text = "A checkpoint of every job that runs here is written once in this time. 0: only when gossamerctl "
             "checkpoint asks. Shorter loses less to a crash of all nodes, and writes 4 bytes a parameter each time."},
    {.key = "keep",
     .field = [](Config& c) -> OptionField { return &c.checkpoints.keep; },
     .bounds = {1, 10'000, "files"},
     .reloads = true,
     .text = "This many of the files that this node has written for a job are kept: the latest. Files of other nodes, "
             "imported files and anything else in the folder are never removed. More take more of the disk."},
    {.key = "restore",
     .field = [](Config& c) -> OptionField { return &c.checkpoints.restore; },
     .reloads = true,
     .text =
         "The model that a job begins with at this node while no other node runs it. \"imported\": the file that "
         "gossamerctl import has placed, or else the training process's own model. \"latest\": the imported file, or "
         "else the checkpoint in the folder with the most training, so that a cluster that was stopped as a whole goes "
         "on where it was; a job that is to begin again from nothing then needs another name, or an empty folder."},
};

constexpr Option gpus_options[] = {
    {.key = "library",
     .field = [](Config& c) -> OptionField { return &c.gpus.library; },
     .text = "NVIDIA's management library, which comes with the driver: a name that the loader finds, or a path. It is "
             "loaded if it is there; without it the daemon runs all the same. While it is loaded, the driver takes the "
             "GPUs to be in use: stop the daemon to reset one. Empty: GPUs are not looked at."},
    {.key = "clients",
     .field = [](Config& c) -> OptionField { return &c.gpus.clients; },
     .text =
         "Whether models that training processes have in a GPU's memory are averaged there, so that only compressed "
         "bytes cross the bus. It costs the GPU memory that CUDA needs for one more process, and time of the GPU. "
         "false: such processes exchange through pinned host memory, and processors average."},
    {.key = "plugin",
     .field = [](Config& c) -> OptionField { return &c.gpus.plugin; },
     .text = "The plug-in for GPUs, which is loaded when a process first offers a model in GPU memory. Empty: where "
             "the package gossamer-cuda installs it. Without it such processes use pinned host memory."},
    {.key = "nccl",
     .field = [](Config& c) -> OptionField { return &c.gpus.nccl; },
     .text = "NCCL, by which models on several GPUs are averaged: the path of its library, such as "
             ".../site-packages/nvidia/nccl/lib/libnccl.so.2 of a Python package. Empty: libnccl.so.2, where the "
             "loader finds it (Debian: libnccl2). Without it sums go through host memory."},
};

constexpr Option log_options[] = {
    {.key = "level",
     .field = [](Config& c) -> OptionField { return &c.log.level; },
     .reloads = true,
     .text = "The level from which messages are logged. debug logs more of links and clients, trace every exchange. Of "
             "warnings that are alike five a minute are logged, and of all up to \"warning\" 2,000 at once and five a "
             "second after that. The log says how many are left out."},
    {.key = "file",
     .field = [](Config& c) -> OptionField { return &c.log.file; },
     .text = "File to append to; opened again on reload, so that it can be rotated. Empty: standard error, which "
             "systemd keeps in the journal."},
    {.key = "format",
     .field = [](Config& c) -> OptionField { return &c.log.format; },
     .text = "\"text\" is for people. \"keyvalue\" (key=value, as in logfmt) and \"json\" (an object a line) are for "
             "programs that collect logs: time in UTC, level, the job that a line is about, message. In every format, "
             "warnings that differ only in numbers are logged five times a minute and counted beyond that."},
};

constexpr OptionSection sections[] = {
    {"node", "This machine.", node_options},
    {"overlay", "Links to other nodes. Every link is encrypted, and admitted by the cluster key.", overlay_options},
    {"gossip", "How replicas are averaged.", gossip_options},
    {"limits", "Limits on what local training processes take.", limits_options},
    {"rights", "What this machine's users may do with jobs.", rights_options},
    {"metrics", "The node's status page, and metrics for Prometheus.", metrics_options},
    {"checkpoints", "Models on the disk, in safetensors files. A disk that fails or is full never holds up training.",
     checkpoints_options},
    {"gpus",
     "The machine's GPUs: what `gossamerctl gpus`, `doctor` and the metrics tell of them, and models that are averaged "
     "in their memory.",
     gpus_options},
    {"log", "The daemon's log.", log_options},
};

std::string quoted_choices(std::span<const char* const> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

std::string toml_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) {
      quoted += fmt::format("\\u{:04X}", code);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string address_problem(const std::string& text, peer::AddressUse use) {
  const auto address = peer::parse_address(text, use);
  return address ? std::string{} : address.error();
}

void append_wrapped(std::string& out, std::string_view text) {
  constexpr std::size_t width = 100;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column == 0 || column + 1 + word.size() > width) {
      out += column == 0 ? "#" : "\n#";
      column = 1;
    }
    out += ' ';
    out += word;
    column += 1 + word.size();
  }
  out += '\n';
}

}  // namespace

std::span<const OptionSection> option_sections() {
  return sections;
}

std::string text_problem(TextForm form, const std::string& text) {
  switch (form) {
    case TextForm::any:
      return {};
    case TextForm::name:
      if (text.size() > max_node_name_bytes)
        return fmt::format("has {} bytes; it must have at most {}", text.size(), max_node_name_bytes);
      return is_plain_text(text, max_node_name_bytes) ? std::string{}
                                                      : "must be UTF-8 without control or invisible characters";
    case TextForm::advertised:
      return text.empty() || text == "none" ? std::string{} : address_problem(text, peer::AddressUse::dial);
    case TextForm::address:
      return address_problem(text, peer::AddressUse::dial);
    case TextForm::listen:
      return address_problem(text, peer::AddressUse::listen);
    case TextForm::invitation: {
      if (text.empty()) return {};
      const auto invitation = peer::parse_invitation(text);
      return invitation ? std::string{} : invitation.error();
    }
    case TextForm::loopback: {
      if (text.empty()) return {};
      const auto endpoint = loopback_endpoint(text);
      return endpoint ? std::string{} : endpoint.error();
    }
    case TextForm::grant:
      return grant_problem(text);
    case TextForm::node_id:
      return peer::parse_node_id(text) ? std::string{}
                                       : fmt::format("\"{}\" is no node's id, which has 32 hexadecimal digits", text);
  }
  return {};
}

std::string allowed_values(const Option& option) {
  Config config;
  const auto of_form = [&]() -> std::string {
    switch (option.form) {
      case TextForm::name:
        return fmt::format("a string of at most {} bytes", max_node_name_bytes);
      case TextForm::listen:
      case TextForm::address:
        return "a string like \"tcp://host:26746\"";
      case TextForm::advertised:
        return "a string like \"tcp://host:26746\", \"none\", or \"\"";
      case TextForm::invitation:
        return "a line of gossamerctl invite, or \"\"";
      case TextForm::loopback:
        return "a string like \"127.0.0.1:9746\", or \"\"";
      case TextForm::grant:
      case TextForm::node_id:
      case TextForm::any:
        break;
    }
    return "a string";
  };
  const auto between = [&](const char* kind) {
    const auto& [least, most, unit] = option.bounds;
    return fmt::format("{} from {} to {}{}{}", kind, least, most, *unit == '\0' ? "" : " ", unit);
  };
  return std::visit(Overloaded{
                        [&](std::string*) { return of_form(); },
                        [](std::filesystem::path*) -> std::string { return "an absolute path, or \"\""; },
                        [&](std::int64_t*) { return between("a whole number"); },
                        [&](double*) { return between("a number"); },
                        [](bool*) -> std::string { return "true or false"; },
                        [&](std::vector<std::string>*) -> std::string {
                          switch (option.form) {
                            case TextForm::node_id:
                              return "a list of strings of 32 hexadecimal digits";
                            case TextForm::grant:
                              return "a list of strings like \"@group: job-*\"";
                            default:
                              return "a list of strings like \"tcp://host:26746\"";
                          }
                        },
                        []<class Choice>(Choice*) { return quoted_choices(names_of(Choice{})); },
                    },
                    option.field(config));
}

std::string toml_value(const Option& option, Config config) {
  return std::visit(Overloaded{
                        [](std::string* value) { return toml_string(*value); },
                        [](std::filesystem::path* value) { return toml_string(value->string()); },
                        [](std::int64_t* value) { return fmt::format("{}", *value); },
                        [](bool* value) -> std::string { return *value ? "true" : "false"; },
                        [](double* value) {
                          std::string text = fmt::format("{}", *value);
                          return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
                        },
                        [](std::vector<std::string>* value) {
                          std::vector<std::string> items;
                          std::ranges::transform(*value, std::back_inserter(items), toml_string);
                          return fmt::format("[{}]", fmt::join(items, ", "));
                        },
                        [](auto* choice) { return toml_string(names_of(*choice)[static_cast<std::size_t>(*choice)]); },
                    },
                    option.field(config));
}

std::string commented_defaults() {
  std::string out;
  append_wrapped(out,
                 "Configuration of gossamerd. Every option has a working default, which is what stands here: keep only "
                 "what you change. `gossamerd --check-config` says what is wrong with a file; `systemctl reload "
                 "gossamerd` or SIGHUP takes over the options marked \"on reload\", the others need a restart. "
                 "`gossamerctl job set` gives a job its own values of the options marked so, which then hold at all "
                 "its nodes.");
  for (const OptionSection& section : sections) {
    out += '\n';
    append_wrapped(out, section.text);
    out += fmt::format("[{}]\n", section.name);
    for (const Option& option : section.options) {
      out += '\n';
      append_wrapped(out, option.text);
      append_wrapped(out, fmt::format("({}{}{})", allowed_values(option), option.reloads ? "; on reload" : "",
                                      option.shared ? "; a job may have its own" : ""));
      out += fmt::format("{} = {}\n", option.key, toml_value(option, Config{}));
    }
  }
  return out;
}

}  // namespace gossamer::daemon
