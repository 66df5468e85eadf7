/* Gossamer's client library: attaches a training process to the gossamerd of its machine.
 *
 * A training program names its tensors, calls gossamer_step() after each optimiser step, and never waits for the
 * network: the daemon averages the model with other nodes and hands corrections back through shared memory. Without a
 * daemon, or when it dies, training goes on alone and the library attaches by itself when a daemon is there.
 *
 * Conventions
 *  1. Every call returns a gossamer_status; GOSSAMER_OK is 0. No call throws, prints, exits or installs a signal
 *     handler.
 *  2. A run is opaque and independent of other runs. The library only compares their memory, and refuses a tensor that
 *     is in another open run. One thread at a time may use a run.
 *  3. Tensors stay the caller's. Their memory must stay valid and in place from gossamer_open() to gossamer_close(), or
 *     be replaced with gossamer_set_tensor_data(). The library reads and writes it only inside calls on the run.
 *     Everything else passed in (names, shapes, options) is copied.
 *  4. Structures that may grow start with their size in bytes; set it as gossamer_options_init() does, or to sizeof.
 *     Fields called `reserved` are zero.
 *  5. After a call on a run has failed, gossamer_last_error() gives its message: what is wrong and what to do. The
 *     text is valid until the next call on that run. gossamer_open(), which has no run yet, writes it to a buffer.
 *  6. Times are in milliseconds, sizes in bytes, clocks in training samples, up to 2^53; units end the names.
 *  7. After fork() a run works in the parent only: in the child every call on it returns GOSSAMER_FORKED, but
 *     gossamer_close(), which frees the handle. A child that wants a run opens its own.
 *  8. A symbol of version GOSSAMER_1 keeps its meaning for as long as the library's file is libgossamer.so.1.
 */
#ifndef GOSSAMER_H
#define GOSSAMER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In C++ an enumeration without a fixed type may hold only values near the named ones, so that others could not be
   checked for. */
#ifdef __cplusplus
#define GOSSAMER_ENUM_TYPE : int
#else
#define GOSSAMER_ENUM_TYPE
#endif

#if defined(__GNUC__)
#define GOSSAMER_API __attribute__((visibility("default")))
#else
#define GOSSAMER_API
#endif

typedef enum gossamer_status GOSSAMER_ENUM_TYPE {
  GOSSAMER_OK = 0,
  GOSSAMER_BAD_ARGUMENT = 1, /* an argument makes no sense: see the message */
  GOSSAMER_UNSUPPORTED = 2,  /* a tensor that Gossamer cannot average: the message names it */
  GOSSAMER_NO_MEMORY = 3,    /* the process, or shared memory, has no room for the model */
  GOSSAMER_SYSTEM_ERROR = 4, /* the operating system refused something */
  GOSSAMER_NO_DAEMON = 5,    /* no daemon answered in time; the library goes on trying */
  GOSSAMER_REJECTED = 6,     /* the daemon refuses this model or this library: the message says why */
  GOSSAMER_TIMEOUT = 7,      /* attached, but not ready in time */
  GOSSAMER_BAD_MEMORY = 8,   /* the daemon left an impossible value in shared memory; it was ignored */
  GOSSAMER_FORKED = 9,       /* the run belongs to the process that opened it */
  GOSSAMER_BUSY = 10,        /* the daemon refuses the run for now; the library goes on trying */
  GOSSAMER_NOT_LOADED = 11,  /* the program's `load` could not bring a tensor's values; its fragment stays due */
  GOSSAMER_NO_DEVICE = 12,   /* the GPU, its driver or the package gossamer-cuda is missing, or the GPU has failed */
  GOSSAMER_NOT_FINITE = 13,  /* the model holds NaN or infinity: the others finish without it */
  GOSSAMER_INTERRUPTED = 14, /* the daemon has gone away, and may have changed the values to average in place */
  GOSSAMER_DUE = 15 /* no error: gossamer_count_step() has counted the step, and gossamer_serve_due() has work */
} gossamer_status;

/* Element type of a tensor. param and buffer tensors are f32, f64 or bf16, and replicas of a job may differ in it;
   local tensors may have any type. */
typedef enum gossamer_dtype GOSSAMER_ENUM_TYPE {
  GOSSAMER_F32 = 0,
  GOSSAMER_F64 = 1, /* averaged in fp32 precision: corrections are added to the double */
  GOSSAMER_F16 = 2,
  GOSSAMER_BF16 = 3, /* the upper half of a float; corrections are rounded up or down at random, so that none is lost in
                        the mean */
  GOSSAMER_I8 = 4,
  GOSSAMER_I16 = 5,
  GOSSAMER_I32 = 6,
  GOSSAMER_I64 = 7,
  GOSSAMER_U8 = 8,
  GOSSAMER_BOOL = 9
} gossamer_dtype;

typedef enum gossamer_role GOSSAMER_ENUM_TYPE {
  GOSSAMER_PARAM = 0,  /* averaged with the other replicas */
  GOSSAMER_BUFFER = 1, /* averaged, but never touched by an outer optimiser; it follows the data by itself (batch-norm
                        * statistics), so a correction takes it no further than to the average that it was for */
  GOSSAMER_LOCAL = 2   /* never leaves this process; listed so that replicas can compare their models */
} gossamer_role;

/* How much memory a run shares with the daemon. Replicas of a job may differ in it. */
typedef enum gossamer_memory GOSSAMER_ENUM_TYPE {
  GOSSAMER_MEMORY_AUTO = 0,     /* resident if the machine has the memory for it, or else lean */
  GOSSAMER_MEMORY_RESIDENT = 1, /* 12 bytes for each element, all the time: three copies of the model in fp32 */
  GOSSAMER_MEMORY_LEAN = 2      /* memory only for fragments in use, taken when they are needed: 12 bytes for each
                                   element of at most 8 fragments, or 64 MiB if that is more. Serving a fragment takes
                                   longer, and exchanges wait for one more step. Fragments need 1024 elements. A node
                                   has one such client for each job */
} gossamer_memory;

/* The place of a run's tensors. */
typedef enum gossamer_device GOSSAMER_ENUM_TYPE {
  GOSSAMER_HOST = 0, /* in host memory */
  GOSSAMER_CUDA = 1 /* in the memory of one NVIDIA GPU: `data` are device pointers. gossamer_step() launches at most one
                       kernel on the training stream, and never waits for the device. Needs the package gossamer-cuda.
                       Such a run cannot be lean */
} gossamer_device;

/* The memory through which a run exchanges its fragments with the daemon. */
typedef enum gossamer_path GOSSAMER_ENUM_TYPE {
  GOSSAMER_PATH_HOST = 0,   /* host memory, where the tensors are, too */
  GOSSAMER_PATH_DEVICE = 1, /* the GPU's memory, shared with the daemon: only compressed bytes cross the bus */
  GOSSAMER_PATH_PINNED = 2  /* pinned host memory, which the GPU reads and writes, as the daemon cannot use the GPU's */
} gossamer_path;

/* The daemon's work for the run. */
typedef enum gossamer_state GOSSAMER_ENUM_TYPE {
  GOSSAMER_DETACHED = 0,   /* no daemon: training alone */
  GOSSAMER_JOINING = 1,    /* the model is being agreed on, or pulled from other nodes */
  GOSSAMER_RUNNING = 2,    /* exchanging */
  GOSSAMER_DRAINING = 3,   /* the daemon is stopping */
  GOSSAMER_QUARANTINED = 4 /* the model holds NaN or infinity, and is not exchanged until it does not */
} gossamer_state;

/* What the processes of a job do with each other: one of the job's settings, the same for all of them. */
typedef enum gossamer_method GOSSAMER_ENUM_TYPE {
  GOSSAMER_GOSSIP = 0,  /* the daemons exchange the model, and no step waits */
  GOSSAMER_AVERAGE = 1, /* the daemons exchange nothing; the program calls gossamer_average() */
  GOSSAMER_SERVER = 2   /* the daemons exchange each part of the model with the node that owns it, and no step waits */
} gossamer_method;

/* Bits of gossamer_options.flags. */
typedef enum gossamer_flag GOSSAMER_ENUM_TYPE {
  GOSSAMER_KEEPS = 1 /* nobody trains with the run: it holds the model for the other nodes. It begins with what it pulls
                        from them, and waits until there is something to pull. The program calls gossamer_step() every
                        few milliseconds with 0 samples, or with those by which the job's clock is ahead of its own */
} gossamer_flag;

typedef struct gossamer_run gossamer_run;

typedef struct gossamer_options {
  size_t size;
  /* 1 to 63 letters, digits, '.', '_' or '-', with neither '.' nor '-' in front: the same for all replicas */
  const char* job;
  const char* socket_path;        /* NULL: $GOSSAMER_SOCKET, or else gossamerd's default place */
  uint32_t fragment_elements;     /* unit of exchange, a power of two from 256 to 4194304, the same for all replicas.
                                     0: an eighth of the model, rounded up, from 4096 to 1048576 elements, or the
                                     smallest power of two that holds the model if that is less */
  uint32_t flags;                 /* gossamer_flag, or 0 */
  uint64_t step_budget_bytes;     /* one step publishes at most this many bytes of fragments (4 an element), but always
                                     one fragment; more limits staleness, less limits a step's time. 0: 16 MiB */
  uint64_t initial_clock_samples; /* samples trained before, if the program continues from a checkpoint */
  uint32_t memory;                /* gossamer_memory */
  uint32_t device;                /* gossamer_device: where all param and buffer tensors are */
  void* stream;                   /* with GOSSAMER_CUDA: the CUDA stream that trains (a cudaStream_t); NULL is the
                                     default stream */
  const char* settings;           /* how the job is averaged, if it begins with this run: NAME=VALUE each, separated by
                                     white space, as for `gossamerctl job set`; 3072 bytes at most. A job that runs
                                     already keeps its own. NULL: the nodes' own options hold */
  /* A replica may be in the memory of several processes of this machine: shards, tensor-parallel parts, stages of a
     pipeline. Each opens the run as one of its parts, and lists all tensors of the whole model, each with the slice
     that it holds; what several hold counts once. Other nodes may cut the model otherwise, or not at all. The processes
     step together: each calls gossamer_step() as often as the others, with its own share of the samples, which are
     added up. */
  uint32_t parts;      /* 0 or 1: this process holds all of the model. At most 64; gossamer_open() waits for all */
  uint32_t part;       /* index of this process among them */
  const char* replica; /* with more than one part: a name, with the rules for a job's, that the parts of this replica
                          share, and no other open run of this machine has */
} gossamer_options;

/* The slice of a tensor that this process holds, of a replica in parts. */
typedef struct gossamer_slice {
  const uint64_t* offset; /* `dimensions` numbers: the first index in each dimension */
  const uint64_t* size;   /* `dimensions` numbers: the slice's shape. With a zero, the process holds nothing of it */
} gossamer_slice;

typedef struct gossamer_tensor {
  const char* name;    /* UTF-8, 1 to 255 bytes, unique in the run */
  uint32_t dtype;      /* gossamer_dtype */
  uint32_t role;       /* gossamer_role */
  uint32_t dimensions; /* 0 to 8; 0 is a scalar */
  uint32_t reserved;
  const uint64_t* shape;       /* `dimensions` sizes, outermost first; zeros are allowed */
  void* data;                  /* contiguous, row-major; NULL is allowed if the tensor is local or empty */
  const gossamer_slice* slice; /* NULL: all of the tensor is at `data`. Otherwise this slice of it is, contiguous */
  uint64_t reserved_more;
} gossamer_tensor;

typedef struct gossamer_run_info {
  size_t size;
  uint32_t state;    /* gossamer_state */
  uint32_t attached; /* 1 while a daemon has accepted the run and its socket is open */
  /* Samples that this replica's model has seen: what gossamer_step() has counted, and before that
     initial_clock_samples, or what a model that was taken over had seen if that is more. Save it with the model: it is
     the next initial_clock_samples. */
  uint64_t clock_samples;
  uint64_t global_clock_samples; /* the largest known and plausible clock of a replica: for schedules */
  uint64_t steps;
  uint64_t exchanges;        /* done by this node for this job */
  uint64_t publications;     /* fragments handed to the daemon */
  uint32_t neighbours;       /* replicas of this job in reach; 0 while detached */
  uint32_t fragments_pulled; /* while joining, out of `fragments` */
  uint32_t fragments;
  uint32_t fragment_elements;
  uint64_t elements; /* of all param and buffer tensors */
  uint64_t layout_hash;
  uint64_t attachments; /* how often a daemon has accepted the run */
  uint8_t node_id[16];  /* the daemon's; zero before the first attachment */
  char message[256]; /* why no daemon has the run. While attached: what keeps the run apart from other nodes that could
                        take part, or with GOSSAMER_PATH_PINNED why the GPU's memory is not shared, or empty */
  /* The daemon counts these from when it accepted the run; 0 before its first report. */
  uint64_t bytes_sent;     /* payload of the job's exchanges */
  uint64_t bytes_received; /* payload of the job's exchanges */
  double consensus;        /* |y_j - y_i| / |y| (2-norms) as the latest exchanges found it: how far apart this replica
                              and those it meets are; 0 before any exchange */
  uint64_t age_samples;    /* samples trained since the oldest fragment was published */
  uint64_t unresolved;     /* exchanges whose outcome at the other end cannot be known any more */
  uint64_t quarantines;    /* times a fragment was found to hold NaN or infinity */
  uint64_t period_us;      /* time between two exchanges of a fragment that this node begins */
  uint64_t pulled_bytes;   /* bytes of the model that were pulled from other nodes */
  uint64_t serving_ns;     /* total time that steps have spent on due fragments, without other threads' time */
  uint32_t client_index;   /* index of this client among those that train the job at this node, as they attached */
  uint32_t clients;        /* number of clients that train the job at this node; 1 without a daemon */
  uint64_t window_bytes;   /* 0: the run's memory is resident. Otherwise lean: fragments take this much at most */
  uint32_t path;           /* gossamer_path */
  uint32_t reserved;       /* 0 */
  /* What gossamer_step() has counted in this run. */
  uint64_t trained_samples;
  uint32_t method;          /* gossamer_method: what the job's settings ask of the program */
  uint32_t average_steps;   /* with GOSSAMER_AVERAGE. 1: gradients before each step; more: models after so many steps */
  uint32_t average_members; /* with GOSSAMER_AVERAGE: at_least of gossamer_average() */
  uint32_t average_codec;   /* with GOSSAMER_AVERAGE: gossamer_average_codec, for gradients */
  double outer_momentum;    /* for outer steps after exact means of models; 0: none */
  uint64_t corrections;     /* publications with which the exchange has changed the tensors' values */
  uint32_t parts;           /* processes that hold the replica together; 1: this one holds it all */
  uint32_t part;            /* index of this process among them */
} gossamer_run_info;

/* The end of a run: see gossamer_finish(). */
typedef struct gossamer_finish_info {
  size_t size;
  uint32_t agreed;   /* 1: `members` have finished and hold the same model but for `distance`; nobody in reach trains */
  uint32_t saver;    /* 1: this process is the one to save the model: its node has the smallest id of all */
  uint32_t members;  /* replicas in reach that finish and are finite, with this one */
  uint32_t reserved; /* 0 */
  double distance;   /* |y_j - y_i| / |y| (2-norms): the largest in the last exchanges of all fragments; infinite if
                        this replica holds NaN or infinity */
  uint64_t clock_samples; /* the largest clock of any replica that is known */
} gossamer_finish_info;

/* How the values of gossamer_average() travel between nodes. */
typedef enum gossamer_average_codec GOSSAMER_ENUM_TYPE {
  GOSSAMER_AVERAGE_F32 = 0, /* in fp32 */
  GOSSAMER_AVERAGE_Q8 = 1   /* rounded to 8 bits, with a scale for each 256. All get the same bits; what rounding has
                               taken away is added to the next contribution. For gradients */
} gossamer_average_codec;

/* How gossamer_average() averages. Set `size` and `timeout_ms`; 0 is the default of all others. */
typedef struct gossamer_average_options {
  size_t size;
  const char* name;   /* of what is averaged, with the rules for a job's name; NULL: "average" */
  uint32_t at_least;  /* waits until so many processes average, at each call, for instance all that were
                         started; 0: 1 */
  uint32_t grace_ms;  /* once more than half have contributed, waits at most this long for the others, whose
                         contributions are in the next round; 0: for ever, but not for one that dies */
  int64_t timeout_ms; /* < 0: for ever */
  uint32_t codec;     /* gossamer_average_codec, the same at all processes */
  uint32_t exact;     /* with GOSSAMER_AVERAGE_Q8: so many of the first values travel in fp32 all the same */
  uint32_t layout;   /* what the values are, for instance a hash of their names and shapes: with another one, or another
                        count, a process is not averaged with, and the message of the timeout says so */
  uint32_t reserved; /* 0 */
} gossamer_average_options;

/* What a call of gossamer_average() still waits for. */
typedef enum gossamer_average_wait GOSSAMER_ENUM_TYPE {
  GOSSAMER_WAIT_NOT_TOLD = 0,      /* the daemon has not said it */
  GOSSAMER_WAIT_ENTRY = 1,         /* the process is no member yet */
  GOSSAMER_WAIT_MEMBERS = 2,       /* there are fewer members than `at_least` */
  GOSSAMER_WAIT_CONTRIBUTIONS = 3, /* not all members have contributed, and it is not known which */
  GOSSAMER_WAIT_LATE = 4,          /* some members have not: the message names them */
  GOSSAMER_WAIT_VALUES = 5         /* the values are on their way */
} gossamer_average_wait;

typedef struct gossamer_average_info {
  size_t size;
  uint32_t of;     /* contributions in the mean, this one included */
  uint32_t joined; /* 1: the process has become a member with this call, for the first time or again after it was left
                      out. Others may have averaged without it meanwhile */
  uint64_t round;  /* the same at all processes that have this mean */
  /* With GOSSAMER_TIMEOUT, when all above is 0: */
  uint32_t waits_for; /* gossamer_average_wait */
  uint32_t members;   /* processes that take part, as far as the daemon has told, this one included */
  /* With GOSSAMER_TIMEOUT and GOSSAMER_OK: */
  uint32_t differs;  /* 1: a node averages values of another count, codec or layout under this name */
  uint32_t reserved; /* 0 */
} gossamer_average_info;

/* Sets every field to its default and `size` to the structure's. `job` must still be given. */
GOSSAMER_API void gossamer_options_init(gossamer_options* options);

/* Registers the model and starts to look for a daemon in the background; does not wait for one. Takes three times the
 * model's size (fp32) of shared memory, unless it is opened lean (gossamer_memory). On failure *run is NULL and
 * `error`, if not NULL, holds a message cut to `error_bytes` with its terminator. */
GOSSAMER_API gossamer_status gossamer_open(const gossamer_options* options, const gossamer_tensor* tensors,
                                           size_t tensor_count, gossamer_run** run, char* error, size_t error_bytes);

/* Waits until the daemon says that the run takes part. Takes over the fragments that a joining node pulls from its
 * neighbours in the meantime. timeout_ms < 0 waits for ever.
 * GOSSAMER_OK; GOSSAMER_NO_DAEMON: no daemon within the time; GOSSAMER_BUSY: refused until then, for instance because
 * of a limit; GOSSAMER_TIMEOUT: attached, but still joining; GOSSAMER_REJECTED, at once: waiting would not help.
 * Training may go on alone after each of these. */
GOSSAMER_API gossamer_status gossamer_wait_ready(gossamer_run* run, int64_t timeout_ms);

/* Call after each optimiser step, with the number of samples it trained on. With nothing due it makes no system call
 * and takes nanoseconds. Otherwise it adds the daemon's corrections to the fragments that are due and publishes them,
 * up to the step budget. With GOSSAMER_CUDA this is launched on the stream, after the program's earlier launches. It is
 * an error while the stream is captured into a graph. GOSSAMER_NO_DEVICE: the GPU has failed, and the run is of no more
 * use. */
GOSSAMER_API gossamer_status gossamer_step(gossamer_run* run, uint64_t samples);

/* gossamer_step() in two calls, for programs that have to look at their tensors before these are read, for instance
 * whether they are still where they were. gossamer_count_step() counts the step and reads no tensor. It returns
 * GOSSAMER_DUE if fragments may be due: gossamer_serve_due() then does with them what gossamer_step() does. */
GOSSAMER_API gossamer_status gossamer_count_step(gossamer_run* run, uint64_t samples);
GOSSAMER_API gossamer_status gossamer_serve_due(gossamer_run* run);

/* Fills *info. The caller has set its `size` to that of the structure, or of an earlier version of it. */
GOSSAMER_API gossamer_status gossamer_info(gossamer_run* run, gossamer_run_info* info);

/* The memory of tensor `index` (in the order of gossamer_open()) is now at `data`, with the same values and shape. On a
 * GPU, passes launched before go on with the old memory: free it in the order of the stream. If two tensors share
 * memory then, steps that have work end with GOSSAMER_BAD_ARGUMENT and leave all tensors as they are. */
GOSSAMER_API gossamer_status gossamer_set_tensor_data(gossamer_run* run, size_t index, void* data);

/* With GOSSAMER_CUDA: calls on the run launch on this stream (a cudaStream_t) from now on. The caller orders it after
 * the former stream. */
GOSSAMER_API gossamer_status gossamer_set_stream(gossamer_run* run, void* stream);

/* For tensors whose values live elsewhere than at `data`, which then holds a copy in host memory. The values may be
 * on a device, in arrays that cannot be changed, or in float16. Calls on the run name the elements that they read or
 * change, and only those. Both are called inside gossamer_step(), gossamer_wait_ready() and gossamer_close(), by the
 * same thread, must not call functions of this run, and may be called several times for a tensor, for `count` elements
 * from `first`, counted in row-major order.
 *
 * gossamer_open() reads `data` itself: all values must be there then.
 *
 * load brings the elements' values to `data`. It returns 0, or else the fragment is left as it was and stays due, and
 * the call returns GOSSAMER_NOT_LOADED. It is not called for elements that are about to be replaced.
 * store is called after elements at `data` have changed: the program sets its own values to them before it trains
 * on. */
typedef int (*gossamer_load)(void* context, size_t tensor, uint64_t first, uint64_t count);
typedef void (*gossamer_store)(void* context, size_t tensor, uint64_t first, uint64_t count);

/* NULL for both ends the transfer. Only one of them is GOSSAMER_BAD_ARGUMENT. */
GOSSAMER_API gossamer_status gossamer_set_transfer(gossamer_run* run, gossamer_load load, gossamer_store store,
                                                   void* context);

/* The cursor: up to 4096 bytes in which the program keeps its place in the data. They are opaque to Gossamer, travel
 * with the model to nodes that join, and outlive the daemon. Set it as often as you like: it takes no system call.
 * GOSSAMER_BAD_ARGUMENT if it is longer. */
GOSSAMER_API gossamer_status gossamer_set_cursor(gossamer_run* run, const void* bytes, size_t length);

/* The cursor that the program has set last, or the one that came with the model if the model was taken over later.
 * *length is its length, 0 if there is none. GOSSAMER_BAD_ARGUMENT if `size` bytes do not hold it; with `buffer` NULL
 * only *length is set. */
GOSSAMER_API gossamer_status gossamer_get_cursor(gossamer_run* run, void* buffer, size_t size, size_t* length);

/* The nodes in reach that run this job, this one included: ids of 16 bytes, ascending, at most `capacity` and at most
 * 256. *count is their number. Without a daemon it is the last daemon's id alone, or none if there never was one. In a
 * large cluster a node knows only some of the others. */
GOSSAMER_API gossamer_status gossamer_members(gossamer_run* run, uint8_t (*ids)[16], size_t capacity, size_t* count);

/* Reports one of the program's numbers, such as its loss, under a name of 1 to 31 bytes; at most 8 names in a run. The
 * daemon shows the latest value, and the mean over the job's nodes. It takes no system call. GOSSAMER_BAD_ARGUMENT for
 * a name that cannot be, or one too many. */
GOSSAMER_API gossamer_status gossamer_log(gossamer_run* run, const char* name, double value);

/* A number that was logged, and its mean over the nodes that are known to have logged it, this one included. *nodes is
 * their number: 0 until the daemon has told, a fraction of a second later. GOSSAMER_BAD_ARGUMENT for a name that was
 * never logged. */
GOSSAMER_API gossamer_status gossamer_logged(gossamer_run* run, const char* name, double* value, double* mean,
                                             uint32_t* nodes);

/* The program has stopped training: exchanges with the others as fast as the links allow, until all replicas in reach
 * have finished, too, and agree. Their mean is then in the tensors, and one of them is told to save it. The call serves
 * due fragments while it waits; timeout_ms < 0 waits for ever. It waits for replicas that still train, but not for one
 * that dies. Without others it ends within two seconds, as they might be back. Without a daemon it ends at once; but if
 * one has gone away, ten seconds after that, as it might be restarted, and one that has not accepted the run yet has
 * ten seconds from gossamer_open(). GOSSAMER_OK; GOSSAMER_TIMEOUT: not agreed in time; *info has the present state, and
 * more than one process may later be told to save. GOSSAMER_NOT_FINITE: the tensors hold NaN or infinity. The others
 * finish without this replica, which is told at once: `agreed` and `saver` are 0, `distance` is infinite.
 * GOSSAMER_REJECTED, at once: the daemon refuses the run, for its layout or the user's rights; `agreed` and `saver` are
 * 0. Calling it again goes on. gossamer_step() ends finishing. `info`, whose `size` the caller has set, may be NULL. */
GOSSAMER_API gossamer_status gossamer_finish(gossamer_run* run, int64_t timeout_ms, gossamer_finish_info* info);

/* Replaces `count` fp32 values by their exact mean over all processes of the job that call this with the same name: the
 * same bits everywhere, the sum in fp32 in the order of their ids. For metrics, gradients, models; it has nothing to do
 * with the exchange of the model, and is the one call that waits for others. There is no world size: a process takes
 * part from its first call until gossamer_close() or its end, and all that take part have to call. One that dies is
 * left out within the time in which its node is known to be dead, and nobody rolls back. At most 256 processes.
 * GOSSAMER_OK: the mean is in `values`. GOSSAMER_TIMEOUT: not yet; the message says whom it waits for. The contribution
 * stays: call again with the same count to go on waiting, or gossamer_average_leave(). GOSSAMER_NO_DAEMON: no daemon
 * within the time. GOSSAMER_REJECTED: the call can never succeed; the message says why. `options` and `info` may be
 * NULL. */
GOSSAMER_API gossamer_status gossamer_average(gossamer_run* run, float* values, size_t count,
                                              const gossamer_average_options* options, gossamer_average_info* info);

/* The process averages no more under this name (NULL: "average"), and the others do not wait for it. A contribution
 * that was under way may still count. */
GOSSAMER_API gossamer_status gossamer_average_leave(gossamer_run* run, const char* name);

/* `count` fp32 zeros in memory that the daemon can map, too. gossamer_average() with this pointer and `count` averages
 * them where they are; from elsewhere it copies them into such memory, and the mean back. All calls under one name are
 * then given this memory. While a call has not ended (GOSSAMER_TIMEOUT), leave the values alone. If the daemon goes
 * away meanwhile, the call ends with GOSSAMER_INTERRUPTED: put the values there again and call again. Forked children
 * share the memory. NULL: there is none. */
GOSSAMER_API float* gossamer_average_memory(size_t count);
/* NULL is allowed. */
GOSSAMER_API void gossamer_average_memory_free(float* values);

/* Serves due fragments, detaches and frees the run. NULL is allowed. The tensors are not touched afterwards; but if a
 * GPU has not reached a launched pass within ten seconds, it does so later, and the memory for it is never freed. */
GOSSAMER_API void gossamer_close(gossamer_run* run);

/* The message of the last call on this run that failed; "" if none has. Read it before the next call on the run, which
 * may free it, and not among the arguments of one expression with that call. */
GOSSAMER_API const char* gossamer_last_error(const gossamer_run* run);

/* "GOSSAMER_OK" and so on; "unknown gossamer_status" for other numbers. */
GOSSAMER_API const char* gossamer_status_name(gossamer_status status);

/* The library's version, such as "0.1.0". */
GOSSAMER_API const char* gossamer_version(void);

#ifdef __cplusplus
}
#endif

#endif /* GOSSAMER_H */
