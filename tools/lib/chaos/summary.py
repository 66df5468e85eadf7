"""What came of it, for people and as JSON."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from demo.view import bytes_text

from .run import Outcome

# A published figure for such a run of torchft: 32 replicas on 16 cores, 62 faults in 30 minutes (docs/operating.md).
PUBLISHED_BEST = 0.977


def _median(values: Sequence[float]) -> Optional[float]:
    return sorted(values)[len(values) // 2] if values else None


def _rounded(value: Optional[float], digits: int) -> Optional[float]:
    return None if value is None else round(value, digits)


def as_json(outcome: Outcome, nodes: int, seed: int, substitutes: List[str]) -> Dict[str, Any]:
    quiet = outcome.quiet_before.plus(outcome.quiet_after)
    detected = [seconds for fault in outcome.faults for seconds in fault.detected_s.values()]
    rejoined = [fault.rejoined_s for fault in outcome.faults if fault.rejoined_s is not None]
    return {
        "nodes": nodes,
        "seed": seed,
        "quiet_seconds": round(quiet.wall_s, 1),
        "faulty_seconds": round(outcome.faulty.wall_s, 1),
        "faults": len(outcome.faults),
        "steps_per_s_quiet": round(quiet.rate(), 4),
        "steps_per_s_quiet_before": round(outcome.quiet_before.rate(), 4),
        "steps_per_s_quiet_after": round(outcome.quiet_after.rate(), 4),
        "steps_per_s_faulty": round(outcome.faulty.rate(), 4),
        "throughput_of_survivors": round(outcome.faulty.rate() / quiet.rate(), 4) if quiet.rate() else 0.0,
        "throughput_of_all": round(outcome.faulty.rate_of_all() / quiet.rate_of_all(), 4) if quiet.rate_of_all() else 0.0,
        "longest_step_ms": round(1000 * outcome.faulty.longest_step_s, 1),
        "longest_step_ms_before": round(1000 * outcome.quiet_before.longest_step_s, 1),
        "samples_lost": round(sum(fault.samples_lost for fault in outcome.faults)),
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


def as_text(figures: Dict[str, Any]) -> List[str]:
    share = 100 * figures["throughput_of_survivors"]
    return [
        "",
        f"{figures['faults']} faults in {figures['faulty_seconds']:.0f} s",
        f"  steps of trainers that no fault stopped   {share:.1f} % of those without faults "
        f"({figures['steps_per_s_faulty']:.2f} and {figures['steps_per_s_quiet']:.2f} a second; "
        f"published best of a peer: {100 * PUBLISHED_BEST:.1f} %)",
        f"  steps of all trainers                     {100 * figures['throughput_of_all']:.1f} %",
        f"  longest step, pauses left out             {figures['longest_step_ms']:.0f} ms "
        f"({figures['longest_step_ms_before']:.0f} ms before the first fault)",
        f"  samples lost with killed trainers         {figures['samples_lost']}",
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
