"""A run's figures in TensorBoard:

    import gossamer.tensorboard
    gossamer.tensorboard.log(run, torch.utils.tensorboard.SummaryWriter())

Imports nothing: a writer is anything with add_scalar(tag, value, step), as of torch.utils.tensorboard and tensorboardX.
"""

from __future__ import annotations

from typing import Any, Dict, Protocol

from ._figures import check_arguments, write_every
from ._run import Run

__all__ = ["log"]


class Writer(Protocol):
    """The part of a SummaryWriter that is needed."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> Any: ...


def log(run: Run, writer: Writer, every_s: float = 10.0, prefix: str = "gossamer/") -> None:
    """Writes run.stats and run.logged every `every_s` seconds, from run.step(), and once more when the run is closed:
    close the writer after it. The charts' step is the run's clock, in samples."""
    what = "writer must be a SummaryWriter of torch.utils.tensorboard or tensorboardX"
    check_arguments(run, prefix, hasattr(writer, "add_scalar"), what, writer)

    def write(figures: Dict[str, float], clock: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, clock)

    write_every(run, every_s, prefix, write)
