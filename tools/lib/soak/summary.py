"""The results: the table, the verdicts, the plot and the JSON object."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from plot import Chart, svg

from .party import Party
from .samples import Answer, Look, Samples
from .trainer import STEPS_FILE
from .verdicts import Verdict, after_warm_up, of_answers, of_daemon, percentile

MB = 1e6


class Steps:
    """The clients' records: for each second, the median and the longest time that a step spent in Gossamer."""

    def __init__(self, parties: Sequence[Party], begun_s: float):
        rows: List[List[float]] = []
        self.count = 0
        for path in (client.folder / STEPS_FILE for party in parties for client in party.clients):
            for line in path.read_text(encoding="ascii").splitlines() if path.exists() else []:
                values = [float(value) for value in line.split(",")] if line.count(",") == 3 else []
                # the last line of a client that was killed may be cut off
                if len(values) == 4 and values[0] >= begun_s:
                    rows.append([values[0] - begun_s, values[2] / 1000, values[3] / 1000])
                    self.count += int(values[1])
        rows.sort()
        self.times, self.median_ms, self.longest_ms = np.array(rows).T if rows else np.zeros((3, 0))


def judge(samples: Samples, end_s: float) -> Tuple[Dict[str, Dict[str, float]], Dict[str, float], List[Verdict]]:
    """Judges each daemon that stayed, and the answers. Returns the figures, and what is not flat."""
    looks: List[Look] = after_warm_up(samples.looks, end_s)
    answers: List[Answer] = after_warm_up(samples.answers, end_s)
    daemons: Dict[str, Dict[str, float]] = {}
    verdicts: List[Verdict] = []
    for name in samples.staying:
        mine = [look for look in looks if look.daemon == name]
        if not mine:
            verdicts.append(Verdict(False, f"{name}: was not looked at once: run for longer"))
            continue
        daemons[name], wrong = of_daemon(mine)
        verdicts += wrong
    if not answers:
        return daemons, {}, [*verdicts, Verdict(False, "gossamerctl was not called once: run for longer")]
    figures, wrong = of_answers(answers, looks)
    return daemons, figures, verdicts + wrong


def as_text(figures: Dict[str, Any]) -> List[str]:
    lines = ["", "daemon      in use, MB                     resident, MB                   descriptors        threads"]
    lines.append("            level an hour  (interval)      level an hour  (interval)      level an hour most level an hour")
    for name, of in figures["daemons"].items():
        cells = [f"{name:10}"]
        for what in ("heap", "private"):
            if f"{what}_level" in of:
                between = f"({of[f'{what}_least'] / MB:.1f} to {of[f'{what}_most'] / MB:.1f})"
                cells.append(f"{of[f'{what}_level'] / MB:7.1f}{of[f'{what}_per_hour'] / MB:7.1f} {between:15}")
        for what in ("descriptors", "threads"):
            if f"{what}_level" in of:
                cells.append(f"{of[f'{what}_level']:5.0f}{of[f'{what}_per_hour']:8.1f}")
                cells += [f"{of[f'{what}_peak']:5.0f}"] if what == "descriptors" else []
        lines.append(" ".join(cells))
    control = figures["control"]
    if control:
        lines += ["", "milliseconds                       p50     p99     max"]
        for key, what in (
            ("tool", "gossamerctl status, start to end"),
            ("nothing", "a program that does nothing"),
            ("control", "the daemon's answer alone"),
        ):
            lines.append(f"{what:32}" + "".join(f"{control[f'{key}_ms_{p}']:8.1f}" for p in ("p50", "p99", "max")))
        lines.append(
            f"{control['answers']} answers, {control['over_100_ms']} took longer than 100 ms; the middle one over doing "
            f"nothing: {control['tool_over_nothing_first']:.2f} at first, {control['tool_over_nothing_last']:.2f} at last"
        )
    steps = figures["steps"]
    lines.append(
        f"a step's time in Gossamer: middle {steps['median_ms']:.3f} ms, longest of a second {steps['longest_ms_p50']:.1f} "
        f"(p50) {steps['longest_ms_p99']:.1f} (p99) ms; {steps['count']} steps"
    )
    went = ", ".join(f"{count} x {kind}" for kind, count in sorted(figures["churn"].items()))
    lines.append(f"came and went: {went or 'nothing'}")
    lines.append(
        f"back after {figures['back_s_p50']:.1f} s (p50), {figures['back_s_max']:.1f} s at most; "
        f"load {figures['load_mean']:.1f} on {figures['cores']} cores"
    )
    lines.append("")
    lines += [f"NOT FLAT  {what}" for what in figures["not_flat"]] or ["flat: memory, descriptors, threads, answers"]
    return lines


def figures_of(
    samples: Samples, steps: Steps, churn: "Counter[str]", back_s: List[float], loads: List[float], cores: int
) -> Dict[str, Any]:
    end_s = max((look.at_s for look in samples.looks), default=0.0)
    daemons, control, verdicts = judge(samples, end_s)
    return {
        "seconds": round(end_s, 1),
        "daemons": {name: {key: round(value, 3) for key, value in of.items()} for name, of in daemons.items()},
        "control": {key: round(value, 3) for key, value in control.items()},
        "steps": {
            "count": steps.count,
            "median_ms": round(percentile(steps.median_ms, 50), 4),
            "longest_ms_p50": round(percentile(steps.longest_ms, 50), 3),
            "longest_ms_p99": round(percentile(steps.longest_ms, 99), 3),
        },
        "churn": dict(churn),
        "back_s_p50": round(percentile(back_s, 50), 2),
        "back_s_max": round(max(back_s, default=0.0), 2),
        "load_mean": round(float(np.mean(loads)), 2) if loads else 0.0,
        "cores": cores,
        "not_flat": [verdict.what for verdict in verdicts if not verdict.flat],
    }


def draw(path: Path, heading: str, samples: Samples, steps: Steps) -> None:
    def lines(value: str, scale: float = 1.0) -> Dict[str, Any]:
        found = {}
        for name in samples.staying:
            mine = [look for look in samples.looks if look.daemon == name]
            found[name] = ([look.at_s for look in mine], [getattr(look, value) / scale for look in mine])
        return found

    at_s = [answer.at_s for answer in samples.answers]
    charts = [
        Chart("resident, not shared, MB", lines("private", MB)),
        Chart("in use on the heap, MB", lines("heap", MB)),
        Chart("shared with clients, MB", lines("shared", MB)),
        Chart("open descriptors", lines("descriptors")),
        Chart(
            "gossamerctl status, ms",
            {
                "start to end": (at_s, [answer.tool_ms for answer in samples.answers]),
                "a program that does nothing": (at_s, [answer.nothing_ms for answer in samples.answers]),
            },
        ),
        Chart(
            "the daemon's answer alone, ms",
            {"all daemons": ([look.at_s for look in samples.looks], [look.answer_ms for look in samples.looks])},
        ),
        Chart("longest step in Gossamer, ms", {"all clients": (steps.times, steps.longest_ms)}),
    ]
    end_s = max((look.at_s for look in samples.looks), default=0.0)
    path.write_text(svg(heading, charts, end_s), encoding="utf-8")
