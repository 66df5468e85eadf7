"""The results of a run, for people and as JSON."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from demo.view import bytes_text

from .run import Outcome
from .trainer import BATCH

# The speeds of the stretches before and after the faults may differ by this share. If they differ more, the machine has
# changed meanwhile, and the cost of the faults cannot be measured.
MOST_DIFFERENCE = 0.05


def _median(values: Sequence[float]) -> Optional[float]:
    return sorted(values)[len(values) // 2] if values else None


def _rounded(value: Optional[float], digits: int) -> Optional[float]:
    return None if value is None else round(value, digits)


def judged(outcome: Outcome) -> bool:
    before, after = outcome.quiet_before.rate(), outcome.quiet_after.rate()
    return min(before, after) > 0 and abs(before - after) <= MOST_DIFFERENCE * (before + after) / 2


def _share(of_faulty: float, before: float, after: float) -> float:
    return round(2 * of_faulty / (before + after), 4)


def as_json(outcome: Outcome, nodes: int, seed: int, substitutes: List[str]) -> Dict[str, Any]:
    before, faulty, after = outcome.quiet_before, outcome.faulty, outcome.quiet_after
    judge = judged(outcome)
    detected = [seconds for fault in outcome.faults for seconds in fault.detected_s.values()]
    rejoined = [fault.rejoined_s for fault in outcome.faults if fault.rejoined_s is not None]
    return {
        "nodes": nodes,
        "seed": seed,
        "quiet_seconds": round(before.wall_s + after.wall_s, 1),
        "faulty_seconds": round(faulty.wall_s, 1),
        "faults": len(outcome.faults),
        "goodput": _share(faulty.rate(), before.rate(), after.rate()) if judge else None,
        "samples_per_s_before": round(nodes * BATCH * before.rate(), 1),
        "samples_per_s_faulty": round(nodes * BATCH * faulty.rate(), 1),
        "samples_per_s_after": round(nodes * BATCH * after.rate(), 1),
        "stopped_share": round(1 - faulty.seconds_undisturbed / faulty.seconds, 4),
        "survivors_share": _share(faulty.rate_undisturbed(), before.rate_undisturbed(), after.rate_undisturbed())
        if judge
        else None,
        "in_model_share": round(faulty.steps_in_model / faulty.steps_done, 4),
        "in_model_share_quiet": round(
            (before.steps_in_model + after.steps_in_model) / (before.steps_done + after.steps_done), 4
        ),
        "samples_done": round(BATCH * faulty.steps_done),
        "samples_lost": round(BATCH * (faulty.steps_done - faulty.steps_in_model)),
        "samples_lost_with_trainers": round(sum(fault.samples_lost for fault in outcome.faults)),
        "longest_step_ms": round(1000 * faulty.longest_step_s, 1),
        "longest_step_ms_before": round(1000 * before.longest_step_s, 1),
        "detect_median_s": _rounded(_median(detected), 2),
        "detect_longest_s": _rounded(max(detected, default=None), 2),
        "rejoin_median_s": _rounded(_median(rejoined), 2),
        "rejoin_longest_s": _rounded(max(rejoined, default=None), 2),
        "daemon_bytes_start": sum(outcome.memory_start),
        "daemon_bytes_end": sum(outcome.memory_end),
        "daemon_heap_bytes_start": sum(outcome.heap_start),
        "daemon_heap_bytes_end": sum(outcome.heap_end),
        "accuracy_start": round(sum(outcome.accuracy_start) / nodes, 4),
        "accuracy_end": round(sum(outcome.accuracy_end) / nodes, 4),
        "accuracy_end_lowest": round(min(outcome.accuracy_end), 4),
        "exchanges": outcome.exchanges,
        "unresolved": outcome.unresolved,
        "violations": outcome.violations,
        "messages_rejected": outcome.messages_rejected,
        "mended": outcome.mended,
        "substitutes": substitutes,
        "fault_list": [fault.as_json(outcome.faults_begun_s) for fault in outcome.faults],
    }


def _seconds(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _percent(value: Optional[float]) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def as_text(figures: Dict[str, Any]) -> List[str]:
    before, after = figures["samples_per_s_before"], figures["samples_per_s_after"]
    if figures["goodput"] is None:
        headline = (
            f"NO VERDICT: without faults the same machine did {before:.0f} samples a second before, {after:.0f} after; "
            f"they may differ by {100 * MOST_DIFFERENCE:.0f} %. Try again when it is quieter, or with more --minutes."
        )
    else:
        headline = f"{100 * figures['goodput']:.1f} % of the samples without faults ended in the model, over all nodes"
    return [
        "",
        f"{figures['faults']} faults in {figures['faulty_seconds']:.0f} s",
        headline,
        f"  samples a second: before, with, after     {before:.0f}, {figures['samples_per_s_faulty']:.0f}, {after:.0f}",
        f"  faults kept trainers from training for    {100 * figures['stopped_share']:.1f} % of the nodes' time",
        f"  the others' steps, over those without     {_percent(figures['survivors_share'])}",
        f"  of the samples done, in the model         {_percent(figures['in_model_share'])}; "
        f"{figures['samples_lost_with_trainers']} of {figures['samples_done']} died with their trainers",
        f"  longest step                              {figures['longest_step_ms']:.0f} ms "
        f"({figures['longest_step_ms_before']:.0f} ms before the first fault)",
        f"  until others noticed (median, longest)    {_seconds(figures['detect_median_s'])}, "
        f"{_seconds(figures['detect_longest_s'])}",
        f"  until back among all (median, longest)    {_seconds(figures['rejoin_median_s'])}, "
        f"{_seconds(figures['rejoin_longest_s'])}",
        f"  memory of all daemons, before and after   {bytes_text(figures['daemon_bytes_start'])}, "
        f"{bytes_text(figures['daemon_bytes_end'])}",
        f"  of it in use on their heaps               {bytes_text(figures['daemon_heap_bytes_start'])}, "
        f"{bytes_text(figures['daemon_heap_bytes_end'])}",
        f"  accuracy, before and after (lowest)       {figures['accuracy_start']:.3f}, {figures['accuracy_end']:.3f} "
        f"({figures['accuracy_end_lowest']:.3f})",
        f"  exchanges without a known end             {figures['unresolved']} of {figures['exchanges']}",
        f"  together again at the end                 {'yes' if figures['mended'] else 'NO'}",
        *(f"  {line}" for line in figures["substitutes"]),
        "",
    ]
