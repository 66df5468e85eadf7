"""What is said of the methods' runs: a table, curves, and JSON."""

from __future__ import annotations

import argparse
from typing import Any, Dict, List

from plot import Chart, svg

from .run import Outcome, Part

POINTS = 10  # points of a curve
GOOD = 0.9  # the summary says when this accuracy was reached


def _accuracy_at(part: Part, time_s: float) -> float:
    """Of the last report by then."""
    before = [report["accuracy"] for report in part.reports if report["time_s"] <= time_s]
    return before[-1] if before else 0.0


def _present(outcome: Outcome) -> List[Part]:
    return [part for part in outcome.parts if not part.killed and part.reports]


def _mean_at(outcome: Outcome, time_s: float) -> float:
    present = _present(outcome)
    return sum(_accuracy_at(part, outcome.begin_s + time_s) for part in present) / max(len(present), 1)


def _fine(seconds: float) -> List[float]:
    return [seconds * k / 200 for k in range(201)]


def as_plot(outcomes: List[Outcome], options: argparse.Namespace) -> str:
    times = _fine(options.seconds)
    lines = {outcome.method: (times, [_mean_at(outcome, time_s) for time_s in times]) for outcome in outcomes}
    heading = f"{options.nodes} nodes, seed {options.seed}"
    for name, unit in (("every", " steps"), ("slow", " x"), ("kill", " s"), ("mbit", " Mbit/s"), ("latency_ms", " ms")):
        value = getattr(options, name)
        if value and value != 1:
            heading += f", {name.replace('_ms', '')} {value:g}{unit}"
    return svg(heading, [Chart("mean accuracy of the nodes that are alive at the end", lines)], options.seconds)


def figures(outcome: Outcome, seconds: float) -> Dict[str, Any]:
    present = _present(outcome)
    times = [seconds * (point + 1) / POINTS for point in range(POINTS)]
    curve = [round(_mean_at(outcome, time_s), 4) for time_s in times]
    errors = sorted({part.reports[-1]["error"] for part in present if part.reports[-1].get("error")})
    return {
        "method": outcome.method,
        "accuracy": curve[-1],
        "accuracy_least": min((_accuracy_at(part, outcome.begin_s + seconds) for part in present), default=0.0),
        "seconds_to_good": next((time_s for time_s in _fine(seconds) if _mean_at(outcome, time_s) >= GOOD), None),
        "steps": sum(part.reports[-1]["steps"] for part in present),
        "longest_step_s": max((part.reports[-1]["longest_step_s"] for part in present), default=0.0),
        "mb_sent": None if outcome.bytes_sent is None else outcome.bytes_sent / 1e6,
        "daemon_cpu_s": outcome.cpu_s,
        "trainer_cpu_s": sum(part.reports[-1]["cpu_s"] for part in present),
        "stuck": outcome.stuck,
        "errors": errors,
        "curve": curve,
    }


def as_text(found: List[Dict[str, Any]], options: argparse.Namespace) -> List[str]:
    lines = [
        "",
        f"{'method':<9}{'accuracy':>9}{'least':>8}{f'to {GOOD:g}':>9}{'steps':>8}{'longest':>10}{'MB sent':>9}{'CPU s':>8}",
    ]
    for one in found:
        good = "never" if one["seconds_to_good"] is None else f"{one['seconds_to_good']:.1f} s"
        sent = "-" if one["mb_sent"] is None else f"{one['mb_sent']:.1f}"
        lines.append(
            f"{one['method']:<9}{one['accuracy']:>9.4f}{one['accuracy_least']:>8.4f}{good:>9}{one['steps']:>8}"
            f"{1000 * one['longest_step_s']:>7.0f} ms{sent:>9}{one['daemon_cpu_s'] + one['trainer_cpu_s']:>8.1f}"
        )
        for error in one["errors"]:
            lines.append(f"          ended early: {error}")
        if one["stuck"]:
            lines.append(f"          {one['stuck']} trainers waited for others when the time was over")
    lines += ["", "mean accuracy over time:"]
    times = "".join(f"{options.seconds * (point + 1) / POINTS:>7.0f}" for point in range(POINTS))
    lines.append(f"{'seconds':<9}{times}")
    for one in found:
        lines.append(f"{one['method']:<9}" + "".join(f"{accuracy:>7.3f}" for accuracy in one["curve"]))
    return lines
