"""A run's figures in Weights & Biases:

    import gossamer.wandb
    gossamer.wandb.log(run, wandb.init(project="digits"))

Imports nothing: wandb_run is anything with log() and define_metric(), as wandb.init() returns it.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Protocol

from ._figures import CLOCK, check_arguments, write_every
from ._run import Run

__all__ = ["log"]


class WandbRun(Protocol):
    """The part of a wandb.Run that is needed."""

    def log(self, data: Dict[str, Any], *, commit: Optional[bool]) -> Any: ...

    def define_metric(self, name: str, step_metric: str) -> Any: ...


def log(run: Run, wandb_run: WandbRun, every_s: float = 10.0, prefix: str = "gossamer/", commit: bool = False) -> None:
    """Writes the figures as gossamer.tensorboard.log() does: finish wandb_run after the run is closed. The x axis is the
    run's clock, in samples, as a metric of its own. W&B drops what is logged with a step that has passed, so no step is
    taken here: the figures go into the row of the program's next wandb_run.log(). Nothing waits for the network.

    commit: each writing is a row of its own, which takes one of W&B's steps: for a program that logs nothing to W&B itself.
    """
    fits = hasattr(wandb_run, "log") and hasattr(wandb_run, "define_metric")
    check_arguments(run, prefix, fits, "wandb_run must be what wandb.init() returned", wandb_run)
    prefix = prefix.replace("*", "_")
    defined = {prefix + CLOCK}

    def write(figures: Dict[str, float], clock: int) -> None:
        figures = {name.replace("*", "_"): value for name, value in figures.items()}  # "*" makes a pattern in W&B
        for name in figures.keys() - defined:
            wandb_run.define_metric(name, step_metric=prefix + CLOCK)
            defined.add(name)
        wandb_run.log({**figures, prefix + CLOCK: clock}, commit=commit)

    write_every(run, every_s, prefix, write)
