"""The meaning of "flat", and the verdicts, for each daemon that stayed throughout, and for the answers of all.

Memory and descriptors vary: a model's fragment is held here and given back there. So time is cut into bins, and the
least value in each bin, when little was under way, must not grow. A straight line is laid through these values by the
median of all slopes between two of them (Theil 1950, Sen 1968), which a few odd bins do not move, with the interval
that Sen gives for it. If the lower end of that interval is above the bound, the value grows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from .samples import Answer, Look

# This first share of the time is not judged, because allocators still take memory for each thread, and links still
# adjust their windows.
WARM_UP_SHARE = 0.2
BINS = 30
LEAST_BINS = 6
# A death keeps the other nodes busy for seconds, so shorter bins would not be independent of each other.
LEAST_BIN_S = 10.0
# In standard errors: with this, one flat line in 250 is called growing.
CONFIDENCE_DEVIATE = 2.65
# Allowed growth: in an hour; in the whole time; and in the whole time as a share of the level. Less growth than the
# second cannot be told from filling tables, kept buffers and one more link.
ALLOWED = {
    "heap": (2 << 20, 1 << 20, 0.0),
    "private": (8 << 20, 16 << 20, 0.10),
    "descriptors": (0, 3, 0.0),
    "threads": (0, 0.5, 0.0),
}
WORDS = {"heap": "its memory in use", "private": "its resident memory"}
# An answer takes at most this long. On a busy machine it takes at most this many times as long as a program that does
# nothing.
ANSWER_MS = 100.0
ANSWER_TIMES_NOTHING = 10.0
# The median time of an answer, over that of a program that does nothing, grows at most this many times until the end.
ANSWER_SLOWER = 2.0


@dataclass(frozen=True)
class Slope:
    """The slope of a line per hour, with its interval, and the line's height in the middle."""

    per_hour: float
    least: float
    most: float
    level: float


@dataclass(frozen=True)
class Verdict:
    flat: bool
    what: str


def slope_of(times_s: Sequence[float], values: Sequence[float], bins: int = BINS) -> Optional[Slope]:
    """The slope through the least value of each bin; nothing where too few bins have a value."""
    times, heights = np.asarray(times_s, float), np.asarray(values, float)
    if len(times) == 0:
        return None
    bins = max(LEAST_BINS, min(bins, int(np.ptp(times) / LEAST_BIN_S)))
    edges = np.linspace(times.min(), times.max() + 1e-6, bins + 1)
    where = np.digitize(times, edges)
    points = [(times[where == b].mean(), heights[where == b].min()) for b in range(1, bins + 1) if (where == b).any()]
    n = len(points)
    if n < LEAST_BINS:
        return None
    slopes = sorted(
        (points[j][1] - points[i][1]) / (points[j][0] - points[i][0]) for i in range(n) for j in range(i + 1, n)
    )
    within = CONFIDENCE_DEVIATE * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = int((len(slopes) - within) / 2), int((len(slopes) + within) / 2)
    return Slope(
        3600 * float(np.median(slopes)),
        3600 * slopes[max(low, 0)],
        3600 * slopes[min(high, len(slopes) - 1)],
        float(np.median([height for _, height in points])),
    )


def after_warm_up(samples: Sequence, end_s: float) -> List:
    return [sample for sample in samples if sample.at_s >= WARM_UP_SHARE * end_s]


def thirds(samples: Sequence, value: Callable[[object], float]) -> Tuple[List[float], List[float]]:
    """The first and the last third by time."""
    if not samples:
        return [], []
    begin, end = samples[0].at_s, samples[-1].at_s
    first = [value(sample) for sample in samples if sample.at_s <= begin + (end - begin) / 3]
    last = [value(sample) for sample in samples if sample.at_s >= end - (end - begin) / 3]
    return first, last


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0


def of_daemon(looks: Sequence[Look]) -> Tuple[Dict[str, float], List[Verdict]]:
    """Judges a daemon that stayed, after the warm-up."""
    name = looks[0].daemon
    times = [look.at_s for look in looks]
    figures: Dict[str, float] = {}
    verdicts: List[Verdict] = []

    hours = (times[-1] - times[0]) / 3600 or 1.0
    long_enough = times[-1] - times[0] >= LEAST_BINS * LEAST_BIN_S
    if not long_enough:
        verdicts.append(Verdict(False, f"{name}: {times[-1] - times[0]:.0f} s do not show what grows: run for longer"))
    for what, (per_hour, in_all, share) in ALLOWED.items():
        values = [getattr(look, what) for look in looks]
        slope = slope_of(times, values)
        if slope is None:
            verdicts.append(Verdict(False, f"{name}: too few samples of its {what}: run for longer"))
            continue
        figures |= {f"{what}_{key}": value for key, value in asdict(slope).items()}
        figures[f"{what}_peak"] = max(values)
        allowed = max(per_hour, in_all / hours) + share * slope.level / hours
        if slope.least > allowed and long_enough:
            unit, by = ("", 1) if what not in WORDS else (" MB", 1e6)
            verdicts.append(
                Verdict(
                    False,
                    f"{name}: {WORDS.get(what, what)}: {slope.per_hour / by:+.1f}{unit} an hour "
                    f"({slope.least / by:.1f} to {slope.most / by:.1f}; allowed {allowed / by:.1f})",
                )
            )
    return figures, verdicts


def of_answers(answers: Sequence[Answer], looks: Sequence[Look]) -> Tuple[Dict[str, float], List[Verdict]]:
    """Judges the answers and the `looks` at all daemons, after the warm-up."""
    figures: Dict[str, float] = {}
    columns = {
        "tool": [answer.tool_ms for answer in answers],
        "nothing": [answer.nothing_ms for answer in answers],
        "control": [look.answer_ms for look in looks],
    }
    for name, values in columns.items():
        figures |= {f"{name}_ms_p50": percentile(values, 50), f"{name}_ms_p99": percentile(values, 99)}
        figures[f"{name}_ms_max"] = max(values, default=0.0)
    bound = max(ANSWER_MS, ANSWER_TIMES_NOTHING * figures["nothing_ms_p99"])
    late = [answer for answer in answers if answer.tool_ms > bound]
    wrong = [answer for answer in answers if answer.status != 0]
    verdicts = []
    figures |= {"answers": len(answers), "answer_bound_ms": bound, "late": len(late), "wrong": len(wrong)}
    figures["over_100_ms"] = sum(answer.tool_ms > ANSWER_MS for answer in answers)
    if late:
        at = ", ".join(f"{answer.daemon} after {answer.at_s:.0f} s: {answer.tool_ms:.0f} ms" for answer in late[:5])
        verdicts.append(Verdict(False, f"gossamerctl: {len(late)} answers took longer than {bound:.0f} ms ({at})"))
    if wrong:
        at = ", ".join(f"{answer.daemon} after {answer.at_s:.0f} s" for answer in wrong[:5])
        verdicts.append(Verdict(False, f"gossamerctl: {len(wrong)} times it got no answer ({at})"))
    times = [np.median(part) for part in thirds(answers, lambda answer: answer.tool_ms)]
    nothing = [np.median(part) for part in thirds(answers, lambda answer: answer.nothing_ms)]
    figures["tool_over_nothing_first"], figures["tool_over_nothing_last"] = times[0] / nothing[0], times[1] / nothing[1]
    if times[1] / nothing[1] > ANSWER_SLOWER * times[0] / nothing[0]:
        verdicts.append(
            Verdict(
                False,
                f"gossamerctl becomes slower: the middle answer took {times[0] / nothing[0]:.1f} times as long as a "
                f"program that does nothing, at first, and {times[1] / nothing[1]:.1f} times at the end",
            )
        )
    return figures, verdicts
