"""A run's figures in TensorBoard:

    import gossamer.tensorboard
    gossamer.tensorboard.log(run, torch.utils.tensorboard.SummaryWriter())

Imports nothing: a writer is anything with add_scalar(tag, value, step), as of torch.utils.tensorboard and tensorboardX.
"""

from __future__ import annotations

from typing import Any, Protocol

from ._run import Run, RunStats

__all__ = ["log"]

# The fields of RunStats that are shown, with their units in the chart's title.
_SCALARS = {
    "clock": "clock_samples",
    "global_clock": "global_clock_samples",
    "age_samples": "age_samples",
    "neighbours": "neighbours",
    "exchanges": "exchanges",
    "unresolved": "unresolved",
    "quarantines": "quarantines",
    "bytes_sent": "bytes_sent",
    "bytes_received": "bytes_received",
    "consensus": "consensus",
    "period_s": "period_s",
    "step_share": "step_share",
}


class Writer(Protocol):
    """The part of a SummaryWriter that is needed."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> Any: ...


def log(run: Run, writer: Writer, every_s: float = 10.0, prefix: str = "gossamer/") -> None:
    """Writes run.stats and run.logged every `every_s` seconds, from run.step(), and once more when the run is closed: close the writer
    after it. The charts' step is the number of optimiser steps."""

    def write() -> None:
        stats: RunStats = run.stats
        for field, tag in _SCALARS.items():
            writer.add_scalar(prefix + tag, getattr(stats, field), stats.steps)
        for name, logged in run.logged.items():
            writer.add_scalar(prefix + name, logged.value, stats.steps)
            if logged.nodes > 0:
                writer.add_scalar(f"{prefix}{name}_mean", logged.mean, stats.steps)

    run.every(every_s, write)
