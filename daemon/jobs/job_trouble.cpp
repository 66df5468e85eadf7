#include "daemon/jobs/job_trouble.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ranges>
#include <utility>
#include <vector>

#include "gossip/resembles.hpp"

namespace gossamer::daemon {

namespace {

/// A program that does not train for still_us, and for the time of still_steps of its steps, has stopped or does
/// something else.
constexpr TimeUs still_us = 15 * us_per_s;
constexpr TimeUs still_steps = 20;
/// Clocks below this are not judged, in samples: the first steps do not show how fast a replica is.
constexpr std::uint64_t least_told_clock = 10'000;
/// A program whose clock is this many times as far as any other's is asked whether it counts right.
constexpr std::uint64_t told_lead = 16;
constexpr TimeUs quarantine_warnings_us = 60 * us_per_s;
/// Largest number of nodes that are named.
constexpr std::size_t most_named = 4;

std::string of_another_layout(const std::string& stranger) {
  return fmt::format(
      "node {} runs a job of this name with another layout, so they do not gossip: give both the same tensors (names, "
      "shapes, types, order) and options (share_second_moments, correct_drift), or rename one of the jobs",
      stranger);
}

/// Why the program trains alone although others could be there; empty if nothing is known to be wrong.
std::string keeps_apart(const JobTrouble::Scene& scene) {
  const gossip::Neighbours& neighbours = scene.replica.neighbours();
  if (neighbours.sound_partners() > 0) return {};
  if (neighbours.partners() > 0)
    return "the model of every other node in reach that runs the job holds NaN or infinity, so nothing is "
           "averaged with it: look at the training there";
  if (const auto& stranger = neighbours.layout_stranger()) return of_another_layout(scene.host.called(*stranger));
  if (!scene.alone) return {};
  for (const std::string& other : scene.host.jobs_elsewhere()) {
    if (other != scene.job && resembles(scene.job, other))
      return fmt::format("no other node in reach runs the job {}, but others run {}: is the name mistyped?", scene.job,
                         other);
  }
  return {};
}

/// A node's clock is ahead of all others by so much that it is not believed.
std::string disbelieves(const gossip::JobClock::Claim& claim, const JobHost& host) {
  return fmt::format(
      "node {} says that its replica has seen {} samples, and no other that it is anywhere near: it is not believed; "
      "if that is wrong, look at that node's gossamerctl jobs, or deny it",
      host.called(claim.node), claim.clock);
}

/// Why the end of the run is waited for.
std::string holds_end_up(const JobTrouble::Scene& scene) {
  const TimeUs then_us = scene.now_us - still_us;
  std::vector<std::string> late;
  const auto finishes_too = [&](pid_t pid) {
    return std::ranges::any_of(scene.programs, [pid](const auto& one) { return one.finishes && one.pid == pid; });
  };
  if (std::ranges::any_of(scene.programs, &JobTrouble::Program::finishes)) {
    for (const JobTrouble::Program& program : scene.programs) {
      if (program.finishes || program.stepped_us > then_us) continue;
      late.push_back(finishes_too(program.pid) ? fmt::format("another run of process {} of this node", program.pid)
                                               : fmt::format("process {} of this node", program.pid));
    }
  }
  const gossip::FinishReport report = scene.replica.finish_report();
  if (report.begun && !report.over) {
    for (const NodeId& node : scene.replica.neighbours().idle_since(then_us))
      late.push_back("the program of node " + scene.host.called(node));
  }
  if (late.empty()) return {};
  return fmt::format(
      "the end of the run waits for {}, which neither finishes nor has trained for {} s: if its steps are not as long "
      "as that, it has failed, so end it, or call finish() or close() there",
      fmt::join(late | std::views::take(most_named), ", "), still_us / us_per_s);
}

/// The run is over, and another node says that the job is further than this node believes.
std::string ends_with_another_clock(const JobTrouble::Scene& scene) {
  const auto& ahead = scene.replica.job_clock().ahead();
  const std::uint64_t clock = scene.replica.job_clock().value();
  if (!ahead || ahead->clock <= clock || !scene.replica.finish_report().over) return {};
  return fmt::format(
      "the run is over, and the clocks at its end differ: node {} has seen {} samples, and is believed up to {}, since "
      "no other is anywhere near; if it is that fast, raise [gossip] clock_pace",
      scene.host.called(ahead->node), ahead->clock, clock);
}

}  // namespace

std::string cannot_follow(const JobOptions& options) {
  return "keeps out of exchanges, because this node cannot follow the job's settings: " + options.objection();
}

void JobTrouble::look(const Scene& scene) {
  growth_.look(scene.now_us, scene.replica.fragments().root_mean_square());
  for_people_ = stands_still(scene);
  if (const auto& claim = scene.replica.job_clock().disbelieved()) for_people_ = disbelieves(*claim, scene.host);
  if (std::string text = ends_with_another_clock(scene); !text.empty()) for_people_ = std::move(text);
  if (!scene.options.objection().empty()) {
    for_programs_ = cannot_follow(scene.options);
  } else {
    for_programs_ = scene.dropped;
    for (std::string text : {grows(scene), keeps_apart(scene), holds_end_up(scene), runs_ahead(scene)})
      if (for_programs_.empty()) for_programs_ = std::move(text);
  }
  if (!for_programs_.empty()) for_people_ = for_programs_;
}

void JobTrouble::warn(const std::string& job, const JobOptions& options, const gossip::Replica& replica,
                      JobHost& host) {
  if (const auto& stranger = replica.neighbours().layout_stranger(); stranger && stranger != warned_.layout) {
    warned_.layout = stranger;
    host.log().warn("job {}: {}", job, of_another_layout(host.called(*stranger)));
  }
  if (const auto& liar = replica.neighbours().settings_liar(); liar && liar != warned_.settings) {
    warned_.settings = liar;
    host.log().warn(
        "job {}: node {} has settings of a version that no {} changes lead to, so they are not followed: deny the "
        "node, or start the job under another name if they are right",
        job, host.called(*liar), max_settings_leap);
  }
  if (const auto& claim = replica.job_clock().disbelieved(); claim && claim->node != warned_.clock) {
    warned_.clock = claim->node;
    host.log().warn("job {}: {}", job, disbelieves(*claim, host));
  }
  const auto& ahead = replica.job_clock().ahead();
  if (ahead && ahead->clock > least_told_clock + 2 * replica.job_clock().value() && ahead->node != warned_.pace &&
      !replica.finish_report().begun) {
    warned_.pace = ahead->node;
    host.log().warn(
        "job {}: node {} says that its replica has seen {} samples, more than twice as many as any other: the job's "
        "clock follows it {} times as fast as the others train; if it is that fast, raise [gossip] clock_pace",
        job, host.called(ahead->node), ahead->clock, options.get().clock_pace);
  }
}

void JobTrouble::warn_of_quarantines(const std::string& job, std::uint64_t quarantines, JobHost& host) {
  const TimeUs now_us = host.now_us();
  const bool is_soon = warned_quarantines_us_ && now_us - *warned_quarantines_us_ < quarantine_warnings_us;
  if (quarantines <= warned_quarantines_ || is_soon) return;
  warned_quarantines_us_ = now_us;
  host.log().warn(
      "job {}: the model here held NaN or infinity in {} of its fragments since the last such line, and those are not "
      "averaged until they are finite: look at the training's loss",
      job, quarantines - std::exchange(warned_quarantines_, quarantines));
}

/// A text that changes is told to the program again, so the first figure stays while the model grows. Texts for
/// programs have 255 characters at most.
const std::string& JobTrouble::grows(const Scene& scene) {
  const auto times = scene.replica.fragments().quarantined() > 0 ? std::nullopt : growth_.without_bound();
  if (!times) grows_.clear();
  if (!times || !grows_.empty()) return grows_;
  return grows_ = fmt::format(
             "the model grows without bound ({:.1g} times as large within a minute), here or at another node, and "
             "averaging carries that to all: end that training, and resume from a checkpoint with a smaller learning "
             "rate",
             *times);
}

/// This node is ahead of all others by so much that they do not believe it, or soon will not. The text stays as it is
/// for as long as that lasts.
const std::string& JobTrouble::runs_ahead(const Scene& scene) {
  const gossip::Neighbours& neighbours = scene.replica.neighbours();
  std::uint64_t furthest = 0;
  for (const auto& [node, neighbour] : neighbours) {
    if (neighbours.is_sound(neighbour)) furthest = std::max(furthest, neighbour.info.clock);
  }
  const std::uint64_t own = scene.replica.clock();
  const bool ahead = furthest > 0 && own / told_lead >= furthest && own >= least_told_clock;
  if (!ahead) ahead_.clear();
  if (!ahead || !ahead_.empty()) return ahead_;
  return ahead_ = fmt::format(
             "this node had counted {} samples when no other had more than {}, so they follow its clock slowly, if at "
             "all: "
             "are the samples of each step right? If it is that fast, raise [gossip] clock_pace on the others",
             own, furthest);
}

std::string JobTrouble::stands_still(const Scene& scene) {
  const std::uint64_t clock = scene.replica.clock();
  if (std::exchange(clock_, clock) != clock) trained_us_ = scene.now_us;
  if (!scene.trains || scene.replica.finish_report().begun || trained_us_ == 0) return {};
  const TimeUs least_us = std::max(still_us, still_steps * scene.step_us);
  const TimeUs idle_us = scene.now_us - trained_us_;
  if (idle_us >= least_us)
    return fmt::format("its programs have not trained for {} s: {}", idle_us / us_per_s,
                       scene.options.get().method == layout::Method::average
                           ? "are they stopped, or do they wait for others in an average? The log says for whom"
                           : "are they stopped, or busy with something else?");
  for (const Program& program : scene.programs) {
    const TimeUs still_for_us = scene.now_us - program.stepped_us;
    if (!program.finishes && still_for_us >= least_us)
      return fmt::format(
          "process {} has not trained for {} s, while others of this node have: is it stopped, or busy with "
          "something else?",
          program.pid, still_for_us / us_per_s);
  }
  return {};
}

}  // namespace gossamer::daemon
