"""The end of the demonstration: the figures, in words for people and as one JSON object for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

import numpy as np

from plot import Chart

from . import plan
from .baselines import Baselines
from .data import split
from .scenario import Outcome
from .view import bytes_text

# Well within this time a neighbour's death is noticed, and the exchanges with it are ended.
AFTERMATH_S = 3.0
FP32_BYTES = 4


@dataclass(frozen=True)
class Steps:
    """Times of whole training steps with gossip and without pauses, over all trainers that were there at the end. None:
    there were no such steps."""

    median_ms: Optional[float]
    longest_ms: Optional[float]
    longest_after_kill_ms: Optional[float]  # in the AFTERMATH_S after the kill


def _ms(value: Optional[float], width: int) -> str:
    return f"{'-':>{width + 3}}" if value is None else f"{value:{width}.2f} ms"


def fast_steps(orders: plan.Plan, outcome: Outcome) -> int:
    """The steps of a founder at full speed; where none is left, the slow one's steps at the others' pace."""
    survivors = [member for member in outcome.members[: orders.nodes] if not member.killed]
    return max(
        round(member.row.steps * plan.STEPS_PER_S / orders.steps_per_s(member.index)) for member in survivors
    )


def step_times(outcome: Outcome, uninterrupted_only: bool = False) -> Steps:
    """`uninterrupted_only`: only steps during which the kernel did not give the core to another program."""
    steps = np.concatenate([member.step_times() for member in outcome.members if not member.killed])
    if uninterrupted_only:
        steps = steps[steps[:, 2] == 0]
    since_kill_s = steps[:, 0] - outcome.killed_s
    times_ms, after_kill_ms = steps[:, 1], steps[(since_kill_s >= 0) & (since_kill_s < AFTERMATH_S), 1]
    return Steps(
        median_ms=float(np.median(times_ms)) if len(times_ms) else None,
        longest_ms=float(times_ms.max()) if len(times_ms) else None,
        longest_after_kill_ms=float(after_kill_ms.max()) if len(after_kill_ms) else None,
    )


def as_json(orders: plan.Plan, outcome: Outcome, baselines: Baselines) -> Dict[str, Any]:
    """Accuracies and bytes are those of the nodes that were there at the end; see README.md."""
    present = [member for member in outcome.members if not member.killed]
    jobs = [member.job for member in outcome.members if member.job]
    accuracies = [member.row.accuracy for member in present]
    blocks = sum(job["blocks"] for job in jobs)
    steps, undisturbed = step_times(outcome), step_times(outcome, uninterrupted_only=True)
    joiner = outcome.members[orders.joiner]
    return {
        "nodes": orders.nodes,
        "accuracy_mean": round(float(np.mean(accuracies)), 4),
        "accuracy_min": round(min(accuracies), 4),
        "accuracy_alone_mean": round(float(np.mean([curve[-1] for curve in baselines.alone])), 4),
        "accuracy_all_data": round(baselines.all_data[-1], 4),
        "exchanges": sum(job["exchanges_initiated"] for job in jobs),
        "unresolved": sum(member.job["unresolved"] for member in present),
        "bytes_sent_per_node": round(np.mean([member.row.bytes_sent for member in present[:-1]])),
        "wide_blocks_fraction": round(sum(job["wide_blocks"] for job in jobs) / max(blocks, 1), 5),
        "killed": outcome.members[orders.killed].name,
        "joined": joiner.name,
        "join_seconds": round(joiner.events["attached"]["attach_s"], 3),
        "longest_step_ms": None if steps.longest_ms is None else round(steps.longest_ms, 3),
        "longest_undisturbed_step_ms": None if undisturbed.longest_ms is None else round(undisturbed.longest_ms, 3),
        "median_step_ms": None if steps.median_ms is None else round(steps.median_ms, 3),
    }


def as_text(orders: plan.Plan, outcome: Outcome, baselines: Baselines) -> List[str]:
    figures = as_json(orders, outcome, baselines)
    return [
        "",
        *_accuracy(orders, outcome, baselines, figures),
        "",
        *_bytes(orders, outcome, figures),
        "",
        *_steps(outcome, figures),
        "",
        *_own_script(orders),
    ]


def charts(orders: plan.Plan, outcome: Outcome, baselines: Baselines) -> List[Chart]:
    """The mean accuracies, and that of each node. A node counts from when it is attached until it is killed."""
    members = [member for member in outcome.members if member.curve]  # one may be killed before it is attached
    curves = {member.name: tuple((np.array(member.curve) - (outcome.begin_s, 0)).T) for member in members}
    times = np.linspace(0, orders.seconds, len(baselines.all_data))
    shared = times[times >= min(own[0] for own, _ in curves.values())]
    ends = [np.nan if member.killed else None for member in members]
    each = [np.interp(shared, *curve, left=np.nan, right=end) for curve, end in zip(curves.values(), ends)]
    means = {
        "together": (shared, np.nanmean(each, axis=0)),
        "alone": (times, np.mean(baselines.alone, axis=0)),
        "all data": (times, baselines.all_data),
    }
    return [Chart("mean accuracy", means), Chart("accuracy of each node", curves)]


def _accuracy(orders: plan.Plan, outcome: Outcome, baselines: Baselines, figures: Dict[str, Any]) -> List[str]:
    parts = split(orders.seed, orders.nodes)
    lines = [
        f"Accuracy on {len(parts.held_out)} images that nobody trained on",
        f"  together  {figures['accuracy_mean']:.3f}  (mean of the {len(outcome.members) - 1} nodes at the end; "
        f"lowest {figures['accuracy_min']:.3f})",
        f"  alone     {figures['accuracy_alone_mean']:.3f}  (mean of the same trainers, each with its own part only)",
    ]
    for index, curve in enumerate(baselines.alone):
        name = orders.names()[index]
        lines.append(f"              {curve[-1]:.3f}  {name}, which sees mostly {parts.shards[index].kinds()}")
    lines.append(f"  all data  {figures['accuracy_all_data']:.3f}  (one trainer that sees every part)")
    return lines


def _bytes(orders: plan.Plan, outcome: Outcome, figures: Dict[str, Any]) -> List[str]:
    present = [member for member in outcome.members if not member.killed]
    sent = sum(member.status["bytes_sent"] for member in present)
    payload = sum(member.status["payload_bytes_sent"] for member in present)
    model_bytes = FP32_BYTES * present[0].job["elements"]
    steps = sum(member.row.steps for member in present)
    return [
        f"Where the bytes went (codec {orders.codec})",
        f"  {figures['exchanges']} exchanges of a model of {bytes_text(model_bytes)}; "
        f"{bytes_text(figures['bytes_sent_per_node'])} sent by each founder",
        f"  {100 * payload / max(sent, 1):.1f} % of it values and differences, the rest headers, pings and admission",
        f"  {bytes_text(sent / max(steps, 1))} a training step; averaging the gradients in every step would send "
        f"{bytes_text(2 * model_bytes)}",
        f"  {100 * figures['wide_blocks_fraction']:.2f} % of the blocks differed by more than the codec's range "
        "and were sent again",
    ]


def _steps(outcome: Outcome, figures: Dict[str, Any]) -> List[str]:
    after_kill = f"longest in the {AFTERMATH_S:.0f} s after the kill"
    lines = [f"{'What the training noticed':36}{'median':>9}{'longest':>11}{after_kill:>37}"]
    for what, steps in (
        ("a training step", step_times(outcome)),
        ("with the core to itself throughout", step_times(outcome, uninterrupted_only=True)),
    ):
        lines.append(
            f"  {what:34}{_ms(steps.median_ms, 6)}{_ms(steps.longest_ms, 8)}{_ms(steps.longest_after_kill_ms, 34)}"
        )
    return lines + [
        f"  {figures['joined']} joined in {figures['join_seconds']:.2f} s; "
        f"{figures['unresolved']} exchanges ended without an answer",
    ]


def _own_script(orders: plan.Plan) -> List[str]:
    if orders.torch:
        attach = [
            "    import gossamer.torch as gossamer",
            '    run = gossamer.attach(model, optimizer, job="mine")   # optimizer.step() gossips from here on',
        ]
    else:
        attach = [
            "    import gossamer",
            '    run = gossamer.attach({"w": w, "b": b}, job="mine")    # NumPy arrays, updated in place',
            "    run.step(samples=len(batch))                           # after each training step",
        ]
    return [
        "The same with your own script",
        "  start build/bin/gossamerd on each machine (docs/how-to/start-a-cluster.md); with PYTHONPATH=build/python:",
        *attach,
    ]
