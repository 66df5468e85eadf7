#include "sdk/c/client_run.hpp"

#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "sdk/c/fused_pass.hpp"
#include "sdk/c/training_time.hpp"
#include "sdk/layout/names.hpp"

namespace gossamer::client {
namespace {

constexpr std::uint64_t default_step_budget_bytes = std::uint64_t{16} << 20;
/// gossamer_wait_ready() and gossamer_finish() look again after this time, which is short beside the time that a
/// fragment takes over any network.
constexpr std::chrono::microseconds ready_poll_interval{500};
/// gossamer_wait_ready(), gossamer_finish() and gossamer_close() wait at most this long for the GPU, which is longer
/// than any training step.
constexpr std::chrono::milliseconds settle_limit{10'000};
/// gossamer_finish() waits at most this long for a daemon that has gone away, or has not accepted the run yet. A daemon
/// that is restarted is back by then, and the attachment's thread has found it: it looks every two seconds at least.
constexpr std::chrono::milliseconds daemon_patience{10'000};
/// A daemon that runs raises its heartbeat several times a second.
constexpr std::chrono::seconds silence_patience{10};
constexpr std::string_view silent_daemon =
    "gossamerd has not looked at this run for ten seconds: is it stopped, or the machine overloaded? Training goes on "
    "alone until it does";

/// A signal ends the wait early; the caller then looks again at once.
void wait_to_look_again() {
  const timespec interval{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(ready_poll_interval).count()};
  nanosleep(&interval, nullptr);
}

[[nodiscard]] gossamer_state known_state(std::uint32_t state) {
  return state <= GOSSAMER_QUARANTINED ? static_cast<gossamer_state>(state) : GOSSAMER_DETACHED;
}

[[nodiscard]] std::uint64_t step_budget_of(const gossamer_options& options) {
  return options.step_budget_bytes == 0 ? default_step_budget_bytes : options.step_budget_bytes;
}

[[nodiscard]] Result<Placed> place_on_host(const ClientReplica& replica, const gossamer_options& options) {
  auto memory = RunMemory::create(replica, options);
  if (!memory) return std::unexpected(memory.error());
  return Placed{std::move(*memory), nullptr, {}, nullptr};
}

/// Makes or maps the memory of a replica in parts, and waits for the other parts.
[[nodiscard]] Result<Placed> place_part(ClientReplica& replica, const gossamer_options& options) {
  if (options.part == 0) {
    auto parts = ReplicaParts::found(options, replica);
    if (!parts) return std::unexpected(parts.error());
    auto placed = place_on_host(replica, options);
    if (!placed) return placed;
    if (placed->memory.window_bytes() != 0)
      return fail(GOSSAMER_NO_MEMORY, "there is too little memory for a replica in parts, which cannot be lean");
    placed->doorbell = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!placed->doorbell) return fail_errno("could not create an eventfd");
    auto whole = (*parts)->gather(replica, placed->memory.file(), placed->doorbell.get());
    if (!whole) return std::unexpected(whole.error());
    placed->parts = std::move(*parts);
    return placed;
  }
  auto joined = ReplicaParts::join(options, replica);
  if (!joined) return std::unexpected(joined.error());
  auto memory = RunMemory::share(std::move(joined->memory), replica);
  if (!memory) return std::unexpected(memory.error());
  memory->publish_part(replica);
  if (auto whole = joined->parts->all_met(); !whole) return std::unexpected(whole.error());
  return Placed{std::move(*memory), nullptr, std::move(joined->doorbell), std::move(joined->parts)};
}

[[nodiscard]] Result<Placed> place_on_device(const ClientReplica& replica, const gossamer_options& options) {
  auto opened = DevicePass::open(replica, options.stream, step_budget_of(options));
  if (!opened) return std::unexpected(opened.error());
  std::unique_ptr<DevicePass> device = std::move(*opened);
  if (auto shared = device->share(layout::device_bytes(plan_for(replica))); !shared)
    return std::unexpected(shared.error());
  auto created = RunMemory::create_for_device(replica, options,
                                              device->shares() ? layout::BuffersIn::device : layout::BuffersIn::memory);
  if (!created) return std::unexpected(created.error());
  RunMemory memory = std::move(*created);
  auto published = device->use(memory);
  if (published) published = device->publish_all(replica, options.initial_clock_samples);
  if (published) {
    memory.complete();
    return Placed{std::move(memory), std::move(device), {}, nullptr};
  }
  // The memory is never unmapped while a kernel may still write to it. Otherwise the device releases it before it is
  // unmapped.
  if (const auto idle = device->idle(); idle && !*idle) {
    device->abandon();
    memory.abandon();
  }
  device.reset();
  return std::unexpected(published.error());
}

[[nodiscard]] Result<Placed> place(ClientReplica& replica, const gossamer_options& options) {
  if (options.parts > 1) return place_part(replica, options);
  return options.device == GOSSAMER_CUDA ? place_on_device(replica, options) : place_on_host(replica, options);
}

[[nodiscard]] Result<void> cannot_load() {
  return fail(GOSSAMER_NOT_LOADED, "the program could not bring a tensor's values to host memory");
}

std::string_view name_of_logged(const layout::LoggedEntry& entry) {
  return entry.name;
}

}  // namespace

ClientRun::ClientRun(ClientReplica replica, std::unique_ptr<OpenTensors> open_tensors, Placed placed, ForkGuard guard,
                     const gossamer_options& options)
    : replica_(std::move(replica)),
      open_tensors_(std::move(open_tensors)),
      memory_(std::move(placed.memory)),
      device_(std::move(placed.device)),
      guard_(std::move(guard)),
      doorbell_(std::move(placed.doorbell)),
      parts_(std::move(placed.parts)),
      layout_hash_(memory_.header().layout_hash),
      step_budget_bytes_(step_budget_of(options)),
      initial_clock_(options.initial_clock_samples),
      job_(options.job),
      socket_path_(options.socket_path == nullptr ? "" : options.socket_path),
      attachment_(memory_.take_file(), memory_.size_bytes(), doorbell_.get(),
                  options.socket_path == nullptr ? "" : options.socket_path, seen_due_sequence_, look_again,
                  device_descriptors()) {}

Result<std::unique_ptr<ClientRun>> ClientRun::open(const gossamer_options& options,
                                                   std::span<const gossamer_tensor> tensors) {
  if (options.job == nullptr || !layout::is_job_name(options.job)) {
    return fail(GOSSAMER_BAD_ARGUMENT, std::string("the job needs a name of ") + layout::job_name_form);
  }
  if ((options.flags & ~std::uint32_t{GOSSAMER_KEEPS}) != 0)
    return fail(GOSSAMER_BAD_ARGUMENT, "unknown flags: this library is older than the program");
  if (options.memory > GOSSAMER_MEMORY_LEAN || options.device > GOSSAMER_CUDA) {
    return fail(GOSSAMER_BAD_ARGUMENT,
                "memory is none of gossamer_memory, or device none of gossamer_device, that this library knows");
  }
  if (options.device == GOSSAMER_HOST && options.stream != nullptr)
    return fail(GOSSAMER_BAD_ARGUMENT, "a stream is given, but device says that the tensors are in host memory");
  if (options.device == GOSSAMER_CUDA && options.memory == GOSSAMER_MEMORY_LEAN)
    return fail(GOSSAMER_BAD_ARGUMENT, "a run on a GPU cannot be lean: leave memory at auto");
  if (options.initial_clock_samples > layout::max_clock_samples)
    return fail(GOSSAMER_BAD_ARGUMENT, "initial_clock_samples is negative, or beyond 2^53");
  if (options.settings != nullptr && std::string_view(options.settings).size() > layout::max_settings_bytes) {
    return fail(GOSSAMER_BAD_ARGUMENT,
                "the settings take more than " + std::to_string(layout::max_settings_bytes) + " bytes");
  }
  if (options.parts > 1) {
    if (auto sound = ReplicaParts::check(options); !sound) return std::unexpected(sound.error());
  }
  auto replica = ClientReplica::create(tensors, options.fragment_elements);
  if (!replica) return std::unexpected(replica.error());
  const auto& all = replica->tensors();
  const auto cut = std::ranges::find_if_not(all, &ClientTensor::whole);
  if (options.parts <= 1 && cut != all.end()) {
    return fail(GOSSAMER_BAD_ARGUMENT,
                "tensor '" + cut->name + "' has a slice, but nobody holds the rest: set `parts`, `part` and `replica`");
  }
  auto open_tensors = OpenTensors::enter(*replica, options.job);
  if (!open_tensors) return std::unexpected(open_tensors.error());
  auto placed = place(*replica, options);
  if (!placed) return std::unexpected(placed.error());
  auto guard = ForkGuard::create();
  if (!guard) return std::unexpected(guard.error());
  if (!placed->doorbell) placed->doorbell = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!placed->doorbell) return fail_errno("could not create an eventfd");
  auto run = std::make_unique<ClientRun>(std::move(*replica), std::move(*open_tensors), std::move(*placed),
                                         std::move(*guard), options);
  if (!run->attaches()) return run;
  if (ReplicaParts* parts = run->parts_.get(); parts != nullptr)
    run->attachment_.end_when_readable(parts->watch(), [parts] { return parts->missing(); });
  if (auto started = run->attachment_.start(); !started) return std::unexpected(started.error());
  return run;
}

/// All parts add their samples to one clock. Part 0 also looks for fragments that are due, and every part looks for
/// turns that it has to make.
Result<bool> ClientRun::count_step_with_parts(std::uint64_t samples) {
  if (samples > layout::max_clock_samples - parts_->clock())
    return fail(GOSSAMER_BAD_ARGUMENT, "the number of samples is negative, or brings the clock beyond 2^53");
  parts_->add_samples(samples);
  const std::uint64_t steps = one_more_step();
  trained_steps_ += samples > 0 ? 1 : 0;
  if (parts_->set_finishing(false) && !parts_->leads()) last_finishing_ = parts_->finish().number;
  tend_parts();
  bool due = false;
  if (parts_->leads()) {
    memory_.header().steps.store(steps, std::memory_order_relaxed);
    memory_.header().trained_steps.store(trained_steps_, std::memory_order_relaxed);
    due = sees_due();
  }
  return due || parts_->has_turns();
}

/// Called at each step and while a call waits: does what each part does for itself, and what part 0 does for all.
void ClientRun::tend_parts() {
  const std::string gone = parts_->gone(false);
  // If two parts store their clocks in the wrong order, part 0 stores the right one later.
  memory_.header().clock.store(parts_->clock(), std::memory_order_relaxed);
  if (!parts_->leads()) return;
  memory_.header().serving_ns.store(parts_->serving_ns(), std::memory_order_relaxed);
  const AttachmentStatus status = attachment_.status();
  parts_->tell_attachment(status);
  if (gone.empty() && !parts_->ready() && is_ready(status) && parts_->quiet()) parts_->set_ready();
}

/// A replica in parts finishes while all its parts do.
void ClientRun::tend_finishing() {
  const bool finishes = parts_ == nullptr || parts_->all_finish();
  if (finishing_ != 0 && !finishes) take_finishing_back();
  if (finishing_ != 0 || !finishes) return;
  last_finishing_ = std::max<std::uint32_t>(last_finishing_ + 1, 1);
  finishing_ = last_finishing_;
  memory_.header().finishing.store(finishing_, std::memory_order_release);
  ring_doorbell();
}

Result<void> ClientRun::parts_are_whole() {
  if (parts_ == nullptr) return {};
  tend_parts();
  const std::string gone = parts_->gone(true);
  return gone.empty() ? Result<void>{} : fail(GOSSAMER_REJECTED, gone);
}

AttachmentStatus ClientRun::attachment_status() const {
  if (attaches()) return attachment_.status();
  AttachmentStatus status = parts_->attachment();
  const std::string gone = parts_->gone(false);
  if (gone.empty()) return status;
  status.attached = false;
  status.rejected = status.rejected_for_good = true;
  status.message = gone;
  return status;
}

/// Makes this part's passes over the fragments whose turn it is. False: some values could not be loaded, and their
/// turns stay.
bool ClientRun::make_turns(bool waits) {
  bool loaded = true;
  parts_->make_turns(trained_steps_, waits, [&](std::uint32_t fragment, const layout::Word& word) {
    const bool made = make_turn(fragment, word) == Served::fragment;
    loaded = loaded && made;
    return made;
  });
  return loaded;
}

/// The dither depends only on the fragment and its generation, so that parts that hold the same elements round their
/// bfloat16 alike.
ClientRun::Served ClientRun::make_turn(std::uint32_t fragment, const layout::Word& word) {
  if (!(word.correction_valid && word.replace) && !load(fragment)) return Served::not_loaded;
  pass(fragment, word, mix(mix(fragment) + word.generation));
  ++publications_;
  corrections_ += word.correction_valid ? 1 : 0;
  if (parts_->is_last(fragment)) {
    store_published(fragment, word, parts_->add_publication());
    ring_doorbell();
  }
  if (word.correction_valid) store(fragment);
  return Served::fragment;
}

/// Time is measured only when something is due, because measuring costs as much as many idle steps.
Result<void> ClientRun::serve_due() {
  if (finishing_ != 0) take_finishing_back();
  const TrainingTime time;
  const std::uint64_t publications_before = publications_;
  auto result = serve_due(step_budget_bytes_);
  if (publications_ == publications_before) return result;
  const std::uint64_t taken_ns = time.taken_ns();
  serving_ns_ += taken_ns;
  if (device_ != nullptr) serving_ns_ += device_->take_pass_ns();  // for passes that have ended since the last step
  if (parts_ == nullptr) {
    memory_.header().serving_ns.store(serving_ns_, std::memory_order_relaxed);
  } else {
    parts_->add_serving(taken_ns);
  }
  return result;
}

Result<void> ClientRun::serve_due(std::uint64_t budget_bytes) {
  if (auto apart = replica_.check_moved(); !apart) return apart;
  if (device_ != nullptr) {
    const auto ready = tend_device();
    if (!ready) return std::unexpected(ready.error());
    if (!*ready) return {};
    device_->begin();
  }
  const bool waits = budget_bytes == no_budget;
  if (!attaches()) return make_turns(waits) ? Result<void>{} : cannot_load();
  turns_at_ = waits ? 0 : trained_steps_ + 1;
  std::uint64_t seen = seen_due_sequence_.load(std::memory_order_acquire);
  const std::uint32_t due = memory_.header().due_sequence.load(std::memory_order_acquire);
  std::uint64_t served_bytes = 0;
  bool more_due = false;
  bool impossible = false;
  bool not_loaded = false;
  bool no_memory = false;
  const std::uint32_t count = replica_.fragment_count();
  const std::uint32_t start = next_fragment_;
  for (std::uint32_t i = 0; i < count && !more_due; ++i) {
    const std::uint32_t fragment = (start + i) % count;
    const std::uint64_t bytes = replica_.fragment_bytes(fragment);
    // One fragment is always allowed, so that a small budget delays fragments but never starves them.
    if (served_bytes > 0 && bytes > budget_bytes - std::min(budget_bytes, served_bytes)) {
      more_due = true;
      next_fragment_ = fragment;
      break;
    }
    const Served served = serve_fragment(fragment);
    if (served == Served::fragment) served_bytes += bytes;
    impossible = impossible || served == Served::impossible;
    not_loaded = not_loaded || served == Served::not_loaded;
    no_memory = no_memory || served == Served::no_memory;
  }
  DevicePass::Launch launch;
  if (served_bytes > 0 && device_ == nullptr && parts_ == nullptr) ring_doorbell();
  if (parts_ != nullptr && !make_turns(waits)) not_loaded = true;
  if (served_bytes > 0 && device_ != nullptr) {
    launch = device_->launch();
    count_launched(launch);
    more_due = more_due || launch.left > 0;
  }
  // If the attachment's thread has asked for another look in the meantime, its value stays.
  seen_due_sequence_.compare_exchange_strong(seen, more_due || not_loaded || no_memory ? look_again : due,
                                             std::memory_order_relaxed);
  if (launch.problem) return std::unexpected(*launch.problem);
  if (impossible) {
    return fail(GOSSAMER_BAD_MEMORY,
                "gossamerd left an impossible word in shared memory; its fragment is left alone. Training goes on; "
                "restart gossamerd, and report this if it was not tampered with");
  }
  if (no_memory) {
    return fail(GOSSAMER_NO_MEMORY,
                "there is no memory for a fragment that gossamerd wants; it stays due. Training goes on");
  }
  return not_loaded ? cannot_load() : Result<void>{};
}

ClientRun::Served ClientRun::serve_fragment(std::uint32_t fragment) {
  layout::FragmentEntry& entry = memory_.fragment(fragment);
  layout::Word word = layout::Word::unpack(entry.word.load(std::memory_order_acquire));
  if (!word.valid() || (word.empty && memory_.window_bytes() == 0)) return Served::impossible;
  if (!word.with_client || word.serving) return Served::nothing;
  // From here on the daemon cannot recall the fragment. If it has just done so, it will offer the fragment again.
  std::uint64_t due = word.pack();
  word.serving = true;
  if (!entry.word.compare_exchange_strong(due, word.pack(), std::memory_order_acq_rel)) return Served::nothing;
  if (parts_ != nullptr) {
    parts_->begin_turn(fragment, word, turns_at_);
    return Served::fragment;
  }
  const Served served = device_ != nullptr ? add_to_pass(fragment, word) : serve(fragment, word);
  if (served == Served::fragment) {
    corrections_ += word.correction_valid ? 1 : 0;
  } else {
    word.serving = false;  // the word is as it was: nothing has been touched
    entry.word.store(word.pack(), std::memory_order_release);
  }
  return served;
}

ClientRun::Served ClientRun::serve(std::uint32_t fragment, layout::Word word) {
  if (memory_.window_bytes() != 0 && !prepare(fragment, word)) return Served::no_memory;
  if (!(word.correction_valid && word.replace) && !load(fragment)) return Served::not_loaded;
  dither_ = mix(dither_ + 1);
  pass(fragment, word, dither_);
  store_published(fragment, word, ++publications_);
  if (word.correction_valid) store(fragment);
  return Served::fragment;
}

void ClientRun::pass(std::uint32_t fragment, const layout::Word& word, std::uint32_t dither) {
  const ClientReplica::Correction mode = !word.correction_valid ? ClientReplica::Correction::none
                                         : word.replace         ? ClientReplica::Correction::replace
                                                                : ClientReplica::Correction::add;
  replica_.serve(fragment, mode, memory_.buffer(fragment, word.correction), memory_.buffer(fragment, word.publication),
                 memory_.buffer(fragment, word.spare()), dither);
}

void ClientRun::store_published(std::uint32_t fragment, layout::Word word, std::uint64_t publications) {
  layout::FragmentEntry& entry = memory_.fragment(fragment);
  entry.publication_clock.store(counted(), std::memory_order_relaxed);
  memory_.header().publications.store(publications, std::memory_order_relaxed);
  ++word.generation;
  word.publication = word.spare();
  word.correction_valid = word.replace = word.with_client = word.empty = word.serving = false;
  entry.word.store(word.pack(), std::memory_order_release);
}

ClientRun::Served ClientRun::add_to_pass(std::uint32_t fragment, const layout::Word& word) {
  dither_ = mix(dither_ + 1);
  memory_.fragment(fragment).publication_clock.store(clock_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  device_->add(replica_, fragment, word, dither_);
  return Served::fragment;
}

void ClientRun::count_launched(const DevicePass::Launch& launch) {
  if (device_->failed()) give_device_up();
  if (launch.launched == 0) return;
  publications_ += launch.launched;
  memory_.header().publications.store(publications_, std::memory_order_relaxed);
  attachment_.watch();
}

/// The daemon is told, because it would otherwise wait for words that nobody will store.
void ClientRun::give_device_up() {
  if (given_up_) return;
  given_up_ = true;
  attachment_.end(device_->failure().error().message);
}

/// Called before fragments are served. False: none can be served now.
Result<bool> ClientRun::tend_device() {
  Result<bool> ready = true;
  if (device_->failed()) {
    ready = device_->failure();
  } else if (attachment_.wants_host_memory()) {
    ready = move_to_host_memory();
  }
  if (device_->failed()) give_device_up();
  if (!ready || !*ready) seen_due_sequence_.store(look_again, std::memory_order_relaxed);
  return ready;
}

/// The fragments' buffers move to the run's memory unchanged. Nobody is attached during the move, and nothing waits.
/// True when it is done.
Result<bool> ClientRun::move_to_host_memory() {
  const auto idle = device_->idle();
  if (!idle || !*idle) return idle;
  if (!device_->moves()) {
    if (auto begun = device_->begin_move(); !begun) return std::unexpected(begun.error());
    return false;
  }
  device_->end_move();
  memory_.header().buffers_in = static_cast<std::uint64_t>(layout::BuffersIn::memory);
  attachment_.offer_host_memory();
  return true;
}

/// Finds out whether the device has failed; a step finds out when it launches.
Result<void> ClientRun::look_at_device() {
  if (device_ == nullptr || device_->idle()) return {};
  give_device_up();
  return device_->failure();
}

/// Waits until all launched passes have ended, or the limit is over. At the limit, the program's stream has not reached
/// them yet.
Result<void> ClientRun::settle() {
  if (device_ == nullptr) return {};
  const auto settled = device_->settle(settle_limit);
  if (device_->failed()) give_device_up();
  if (!settled) return std::unexpected(settled.error());
  return {};
}

DeviceDescriptors ClientRun::device_descriptors() {
  if (device_ == nullptr) return {};
  return {.under_way = &device_->words_under_way(),
          .memory = device_->take_descriptor(),
          .offer = device_->shares() ? device_->offer() : layout::DeviceOffer{},
          .plan = memory_.plan(),
          .why_pinned = device_->why()};
}

/// Memory that the device may still use after the limit is never unmapped.
void ClientRun::serve_the_last() {
  if (device_ == nullptr) {
    if (parts_ == nullptr) {
      (void)serve_due(no_budget);
    } else {
      (void)make_turns(true);  // the other parts may have gone, so no new turn is begun
    }
    return;
  }
  const auto until = std::chrono::steady_clock::now() + settle_limit;
  while (serve_due(no_budget) && seen_due_sequence_.load(std::memory_order_relaxed) == look_again &&
         std::chrono::steady_clock::now() < until)
    wait_to_look_again();
  (void)settle();
  ring_doorbell();
  attachment_.end_thread();
  const auto idle = device_->idle();
  if (!idle || *idle) return;  // a device that has failed does nothing more
  device_->abandon();
  memory_.abandon();
}

Result<void> ClientRun::set_tensor_data(std::size_t index, void* data) {
  if (device_ != nullptr && index < replica_.tensors().size()) {
    if (auto usable = device_->check(replica_.tensors()[index], data); !usable) return usable;
  }
  void* const before = index < replica_.tensors().size() ? replica_.tensors()[index].data : nullptr;
  if (auto set = replica_.set_data(index, data); !set) return set;
  auto moved = open_tensors_->move(replica_.tensors()[index], before, data);
  if (!moved) (void)replica_.set_data(index, before);
  return moved;
}

/// Maps the buffers that the pass over a fragment of lean memory reads and writes.
bool ClientRun::prepare(std::uint32_t fragment, const layout::Word& word) const {
  const std::uint64_t bytes = replica_.fragment_bytes(fragment);
  if (word.correction_valid && !memory_.prepare(fragment, word.correction, bytes, false)) return false;
  return memory_.prepare(fragment, word.spare(), bytes, true);
}

bool ClientRun::load(std::uint32_t fragment) const {
  if (load_ == nullptr) return true;
  return std::ranges::all_of(replica_.pieces(fragment), [this](const ClientReplica::Piece& piece) {
    return load_(transfer_context_, piece.tensor, piece.tensor_offset, piece.count) == 0;
  });
}

/// Called after the word was stored, so that no correction is added twice whatever the program's function does.
void ClientRun::store(std::uint32_t fragment) const {
  if (store_ == nullptr) return;
  for (const ClientReplica::Piece& piece : replica_.pieces(fragment))
    store_(transfer_context_, piece.tensor, piece.tensor_offset, piece.count);
}

Result<void> ClientRun::set_stream(void* stream) {
  if (device_ == nullptr)
    return fail(GOSSAMER_BAD_ARGUMENT, "the run's tensors are in host memory, where nothing is launched on a stream");
  device_->set_stream(stream);
  return {};
}

Result<void> ClientRun::set_transfer(gossamer_load load, gossamer_store store, void* context) {
  if ((load == nullptr) != (store == nullptr)) {
    return fail(GOSSAMER_BAD_ARGUMENT, "load and store go together: give both, or neither");
  }
  if (device_ != nullptr && load != nullptr)
    return fail(GOSSAMER_BAD_ARGUMENT, "load and store are for tensors in host memory; the run's are on a GPU");
  load_ = load;
  store_ = store;
  transfer_context_ = context;
  return {};
}

bool ClientRun::is_ready(const AttachmentStatus& status) const {
  const std::uint32_t state = memory_.header().state.load(std::memory_order_acquire);
  return status.attached && (state == GOSSAMER_RUNNING || state == GOSSAMER_QUARANTINED);
}

Result<void> ClientRun::wait_ready(std::int64_t timeout_ms) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (true) {
    if (auto whole = parts_are_whole(); !whole) return whole;
    const AttachmentStatus status = attachment_status();
    // asked before serving, so that fragments that were due when the run became ready are served
    const bool ready = is_ready(status) && (attaches() || parts_->ready());
    if (auto served = serve_due(no_budget); !served) return served;
    if (ready && all_had_turns()) {
      if (parts_ != nullptr && attaches()) parts_->set_ready();
      return settle();
    }
    if (auto sound = look_at_device(); !sound) return sound;
    if (status.rejected_for_good) return fail(GOSSAMER_REJECTED, status.message);
    if (timeout_ms >= 0 && Clock::now() - begin >= std::chrono::milliseconds(timeout_ms)) {
      if (status.rejected) return fail(GOSSAMER_BUSY, status.message);
      if (!status.attached) return fail(GOSSAMER_NO_DAEMON, status.message);
      return fail(GOSSAMER_TIMEOUT, "attached, but the model has not been agreed on with the other nodes yet");
    }
    wait_to_look_again();
  }
}

void ClientRun::info(gossamer_run_info& info) const {
  const AttachmentStatus status = attachment_status();
  const layout::Header& header = memory_.header();
  info.state = status.attached ? known_state(header.state.load(std::memory_order_acquire)) : GOSSAMER_DETACHED;
  info.attached = status.attached;
  info.clock_samples = clock();
  info.global_clock_samples = global_clock(info.clock_samples);
  info.trained_samples = counted() - initial_clock_;
  info.steps = steps_.load(std::memory_order_relaxed);
  info.exchanges = header.exchanges.load(std::memory_order_relaxed);
  info.publications = publications_;
  info.neighbours = status.attached ? header.neighbours.load(std::memory_order_relaxed) : 0;
  info.fragments_pulled = header.fragments_pulled.load(std::memory_order_relaxed);
  info.fragments = replica_.fragment_count();
  info.fragment_elements = replica_.fragment_elements();
  info.elements = replica_.elements();
  info.layout_hash = layout_hash_;
  info.attachments = status.attachments;
  std::ranges::copy(status.node_id, info.node_id);
  const std::string_view message = status.attached && is_silent() ? silent_daemon : std::string_view(status.message);
  copy_text(message, info.message, sizeof info.message);
  info.bytes_sent = header.bytes_sent.load(std::memory_order_relaxed);
  info.bytes_received = header.bytes_received.load(std::memory_order_relaxed);
  const auto consensus = std::bit_cast<double>(header.consensus.load(std::memory_order_relaxed));
  info.consensus = std::isfinite(consensus) && consensus > 0 ? consensus : 0;
  info.age_samples = header.age_samples.load(std::memory_order_relaxed);
  info.unresolved = header.unresolved.load(std::memory_order_relaxed);
  info.quarantines = header.quarantines.load(std::memory_order_relaxed);
  info.period_us = header.period_us.load(std::memory_order_relaxed);
  info.pulled_bytes = header.pulled_bytes.load(std::memory_order_relaxed);
  info.serving_ns = serving_ns_;
  const std::uint64_t place = status.attached ? header.place.load(std::memory_order_relaxed) : 0;
  info.clients = std::max<std::uint32_t>(static_cast<std::uint32_t>(place >> 32), 1);
  info.window_bytes = memory_.window_bytes();
  info.path = device_ == nullptr ? GOSSAMER_PATH_HOST : device_->shares() ? GOSSAMER_PATH_DEVICE : GOSSAMER_PATH_PINNED;
  // What the last daemon said holds until the next one says more: the job is the same.
  const auto method = layout::MethodWord::unpack(header.method.load(std::memory_order_relaxed));
  info.method = static_cast<std::uint32_t>(method.method);
  info.average_steps = method.steps;
  info.average_members = method.members;
  info.average_codec = method.codec;
  const auto momentum = std::bit_cast<double>(header.outer_momentum.load(std::memory_order_relaxed));
  info.outer_momentum = momentum > 0 && momentum < 1 ? momentum : 0;
  info.corrections = corrections_;
  info.parts = parts_ == nullptr ? 1 : parts_->count();
  info.part = parts_ == nullptr ? 0 : parts_->part();
  info.client_index = std::min(static_cast<std::uint32_t>(place), info.clients - 1);
}

/// Whether the attached daemon has stopped working. A daemon of an older version has no heartbeat and never counts as
/// silent.
bool ClientRun::is_silent() const {
  const auto now = std::chrono::steady_clock::now();
  const std::uint64_t heartbeat = memory_.header().heartbeat.load(std::memory_order_relaxed);
  if (std::exchange(heartbeat_, heartbeat) != heartbeat || heartbeat == 0) heard_at_ = now;
  return now - heard_at_ > silence_patience;
}

/// The daemon computes the replica's clock in the same way, so a checkpoint of the program's and one of the daemon's
/// say the same.
std::uint64_t ClientRun::clock() const {
  const std::uint64_t base = memory_.header().clock_base.load(std::memory_order_relaxed);
  const std::uint64_t own = counted();
  return own + std::min(base, layout::max_clock_samples - own);
}

/// `clock` is what the caller has read from clock(), which the daemon may raise at any time.
std::uint64_t ClientRun::global_clock(std::uint64_t clock) const {
  const std::uint64_t told = memory_.header().global_clock.load(std::memory_order_relaxed);
  global_clock_ = std::max({global_clock_, clock, std::min(told, layout::max_clock_samples)});
  return global_clock_;
}

Result<void> ClientRun::log(std::string_view name, double value) {
  if (!attaches()) return {};
  layout::Logged& logged = memory_.logged();
  const auto known = logged.known();
  const auto found = std::ranges::find(known, name, name_of_logged);
  const bool is_new = found == known.end();
  if (is_new) {
    if (name.empty() || !is_plain_text(name, layout::max_logged_name_bytes)) {
      return fail(GOSSAMER_BAD_ARGUMENT, "a logged value needs a name of 1 to " +
                                             std::to_string(layout::max_logged_name_bytes) +
                                             " bytes of UTF-8 without control or invisible characters");
    }
    if (known.size() == layout::max_logged) {
      return fail(GOSSAMER_BAD_ARGUMENT, "'" + std::string(name) + "' would be one name too many: a run logs at most " +
                                             std::to_string(layout::max_logged));
    }
    std::ranges::copy(name, logged.entries[known.size()].name);
  }
  logged.entries[found - known.begin()].value.store(std::bit_cast<std::uint64_t>(value), std::memory_order_relaxed);
  if (is_new) logged.count.store(static_cast<std::uint32_t>(known.size() + 1), std::memory_order_release);
  return {};
}

Result<void> ClientRun::logged(std::string_view name, double& value, double& mean, std::uint32_t& nodes) const {
  const auto known = memory_.logged().known();
  const auto entry = std::ranges::find(known, name, name_of_logged);
  if (entry == known.end()) return fail(GOSSAMER_BAD_ARGUMENT, "'" + std::string(name) + "' was never logged");
  nodes = static_cast<std::uint32_t>(entry->nodes.load(std::memory_order_acquire));
  value = std::bit_cast<double>(entry->value.load(std::memory_order_relaxed));
  mean = nodes == 0 ? value : std::bit_cast<double>(entry->mean.load(std::memory_order_relaxed));
  return {};
}

Result<void> ClientRun::set_cursor(std::span<const std::byte> cursor) {
  if (cursor.size() > layout::max_cursor_bytes) {
    return fail(GOSSAMER_BAD_ARGUMENT, "the cursor has " + std::to_string(cursor.size()) + " bytes; at most " +
                                           std::to_string(layout::max_cursor_bytes) +
                                           " travel with the model: keep positions in it, not data");
  }
  if (!attaches()) return {};
  layout::Header& header = memory_.header();
  job_cursor_then_ = header.job_cursor.load(std::memory_order_relaxed);
  layout::store_slot(header.own_cursor, memory_.own_cursor(), cursor);
  return {};
}

Result<void> ClientRun::get_cursor(std::span<std::byte> buffer, std::size_t& length) const {
  const layout::Header& header = memory_.header();
  const bool from_job = header.job_cursor.load(std::memory_order_acquire) != job_cursor_then_;
  const std::vector<std::byte> cursor = from_job ? layout::load_slot(header.job_cursor, memory_.job_cursor())
                                                 : layout::load_slot(header.own_cursor, memory_.own_cursor());
  length = cursor.size();
  if (buffer.data() == nullptr) return {};
  if (cursor.size() > buffer.size()) {
    return fail(GOSSAMER_BAD_ARGUMENT, "the cursor has " + std::to_string(cursor.size()) + " bytes, the buffer " +
                                           std::to_string(buffer.size()));
  }
  std::ranges::copy(cursor, buffer.begin());
  return {};
}

std::vector<std::byte> ClientRun::members() const {
  const AttachmentStatus status = attachment_status();
  if (status.attached) {
    std::vector<std::byte> ids = layout::load_slot(memory_.header().members, memory_.members());
    if (!ids.empty() && ids.size() % sizeof status.node_id == 0) return ids;
  }
  if (status.attachments == 0) return {};
  const auto own = std::as_bytes(std::span(status.node_id));
  return {own.begin(), own.end()};
}

void ClientRun::take_finishing_back() {
  finishing_ = 0;
  memory_.header().finishing.store(0, std::memory_order_release);
  ring_doorbell();
}

/// Whether there is nobody to agree with: there never was a daemon, or none any more, or one that refuses the run. A
/// daemon that has not answered yet is waited for.
bool ClientRun::is_alone(const AttachmentStatus& status) {
  if (status.attached) return false;
  return status.nobody_answers || status.rejected_for_good ||
         std::chrono::steady_clock::now() - status.lost_at >= daemon_patience;
}

gossamer_finish_info ClientRun::finish_so_far(const AttachmentStatus& status, bool& spoiled) const {
  gossamer_finish_info info{};
  spoiled = false;
  info.members = 1;
  info.saver = 1;
  info.clock_samples = global_clock(clock());
  if (parts_ != nullptr) {
    const PartsFinish told = parts_->finish();
    // Once part 0 has told the others that finishing has ended, this does not change: they may go before part 0 looks
    // again.
    const bool is_end = told.number == finishing_ && (told.info.agreed != 0 || told.spoiled);
    if (attaches() ? is_end : told.number > last_finishing_) {
      spoiled = told.spoiled;
      return told.info;
    }
    if (!attaches()) return info;
  }
  const layout::Header& header = memory_.header();
  if (finishing_ == 0) return info;
  const auto answer = layout::FinishAnswer::unpack(header.finish_answer.load(std::memory_order_acquire));
  if (status.attached && answer.number == finishing_) {
    const auto distance = std::bit_cast<double>(header.finish_distance.load(std::memory_order_relaxed));
    info.agreed = answer.agreed;
    info.saver = answer.saver;
    spoiled = answer.spoiled;
    info.members = answer.members;
    // The daemon stores this clock before the answer, and it is the same for all. This process's own clock is not used:
    // where several clients train at a node, it may be ahead of the model that they share.
    info.clock_samples = std::min(header.global_clock.load(std::memory_order_relaxed), layout::max_clock_samples);
    info.distance = distance >= 0 ? distance : 0;
  } else if (is_alone(status)) {
    info.agreed = 1;
  }
  return info;
}

Result<void> ClientRun::finish(std::int64_t timeout_ms, gossamer_finish_info& info) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  if (parts_ != nullptr) (void)parts_->set_finishing(true);
  while (true) {
    if (attaches()) tend_finishing();
    bool spoiled = false;
    // asked before serving, so that fragments that are due by then are served
    const AttachmentStatus status = attachment_status();
    info = finish_so_far(status, spoiled);
    auto served = serve_due(no_budget);
    if (served && parts_ == nullptr && !status.attached && status.rejected_for_good) {
      info.agreed = info.saver = 0;
      served = fail(GOSSAMER_REJECTED, "this model is no part of the job, and not the one to save: " + status.message);
    }
    if (served) served = look_at_device();
    bool ended = (info.agreed != 0 || spoiled) && all_had_turns();
    if (parts_ != nullptr) {
      const auto whole = finish_with_parts(info, spoiled, ended);
      if (served) served = whole;
    }
    const bool over = ended || (timeout_ms >= 0 && Clock::now() - begin >= std::chrono::milliseconds(timeout_ms));
    if (!served || over) {
      seen_due_sequence_.store(look_again, std::memory_order_relaxed);  // so that the next step ends finishing
      return served ? end_finish(info, spoiled) : served;
    }
    wait_to_look_again();
  }
}

/// Part 0 tells the others how far finishing has come. At its end each part says whether what it holds is finite, so
/// that all of them return the same.
Result<void> ClientRun::finish_with_parts(gossamer_finish_info& info, bool& spoiled, bool& ended) {
  auto whole = parts_are_whole();
  if (!ended) info.agreed = info.saver = 0;
  if (attaches() && finishing_ != 0)
    parts_->tell_finish({.number = finishing_, .spoiled = ended && spoiled, .info = info});
  if (!ended) return whole;
  const std::uint32_t number = attaches() ? finishing_ : parts_->finish().number;
  if (std::exchange(verdict_of_, number) != number) parts_->set_verdict(number, replica_.finite());
  const std::optional<bool> finite = parts_->verdict(number);
  ended = finite.has_value();
  if (!ended) {
    info.agreed = info.saver = 0;
    return whole;
  }
  spoiled = spoiled || !*finite;
  return {};  // a part that has gone by now has finished
}

/// A replica without a partner has its model checked by nobody else, so it is checked here before the program is told
/// to save it.
Result<void> ClientRun::end_finish(gossamer_finish_info& info, bool spoiled) {
  if (auto settled = settle(); !settled) return settled;
  if (spoiled || (info.saver != 0 && device_ == nullptr && !replica_.finite())) {
    info.agreed = info.saver = 0;
    info.distance = std::numeric_limits<double>::infinity();
    return fail(GOSSAMER_NOT_FINITE,
                "the model holds NaN or infinity, so it is not the one to save, and the others finish without it: take "
                "a checkpoint, or the model that they save");
  }
  if (info.agreed != 0) return {};
  return fail(GOSSAMER_TIMEOUT, "the replicas in reach have not all finished, or do not agree yet");
}

void ClientRun::abandon() {
  attachment_.abandon();
  if (parts_ != nullptr) parts_->abandon();
  if (device_ != nullptr) device_->abandon();
  memory_.abandon();
}

Result<void> ClientRun::average(std::span<float> values, const gossamer_average_options& options,
                                gossamer_average_info& info) {
  const std::string name = options.name == nullptr ? default_average : options.name;
  if (!layout::is_job_name(name))
    return fail(GOSSAMER_BAD_ARGUMENT,
                std::string("the name of an average has the form of a job's: ") + layout::job_name_form);
  if (const AttachmentStatus status = attachment_status(); !status.attached && status.rejected_for_good)
    return fail(GOSSAMER_REJECTED, "this process has no part in the job, so it averages nothing: " + status.message);
  if (options.codec > GOSSAMER_AVERAGE_Q8 || options.exact > layout::AverageFormWord::most_exact)
    return fail(GOSSAMER_BAD_ARGUMENT, "codec is none of gossamer_average_codec that this library knows");
  return averages_.try_emplace(name, job_, name, socket_path_).first->second.average(values, options, info);
}

}  // namespace gossamer::client
