"""A callback for Lightning's Trainer:

    import gossamer.lightning
    Trainer(callbacks=[gossamer.lightning.GossamerCallback(job="resnet", samples_per_step=32)]).fit(module, data)

One process per node. What is averaged, and what is refused, is as in gossamer.torch.attach().
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

import lightning.pytorch

from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._run import Run, RunInfo, RunStats, State
from .torch import TorchRun, attach

__all__ = [
    "GossamerCallback",
    "Event",
    "EventKind",
    "GossamerError",
    "GossamerWarning",
    "Run",
    "RunInfo",
    "RunStats",
    "State",
    "TorchRun",
    "version",
]


class GossamerCallback(lightning.pytorch.Callback):
    """Attaches the module when training begins (after a checkpoint has been loaded), steps after each optimiser step, and
    closes the run at the end. `run` is the gossamer.torch.TorchRun in between.

    job: what all replicas of this model call it.
    samples_per_step: what each optimiser step adds to the clock: the batch size, times the batches whose gradients are
        accumulated.
    initial_clock: samples trained before; by default what the trainer's steps so far come to.
    The rest is as in gossamer.torch.attach().
    """

    def __init__(
        self,
        *,
        job: str,
        samples_per_step: int = 1,
        roles: Optional[Mapping[str, str]] = None,
        wait: bool = True,
        timeout_s: Optional[float] = None,
        socket: Optional[str] = None,
        fragment_elements: int = 0,
        step_budget_bytes: int = 0,
        initial_clock: Optional[int] = None,
        on_event: Optional[Callable[[Event], None]] = None,
        progress: Optional[bool] = None,
    ):
        super().__init__()
        self.run: Optional[TorchRun] = None
        self._samples_per_step = samples_per_step
        self._initial_clock = initial_clock
        self._steps = 0  # the trainer's, up to the last run.step()
        self._arguments: Dict[str, Any] = {
            "job": job,
            "samples_per_step": samples_per_step,
            "roles": roles,
            "wait": wait,
            "timeout_s": timeout_s,
            "socket": socket,
            "fragment_elements": fragment_elements,
            "step_budget_bytes": step_budget_bytes,
            "on_event": on_event,
            "progress": progress,
        }

    def on_train_start(self, trainer: lightning.pytorch.Trainer, pl_module: lightning.pytorch.LightningModule) -> None:
        if trainer.world_size > 1:
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"the trainer runs in {trainer.world_size} processes: one on each node, please, with Gossamer between them",
            )
        self._steps = trainer.global_step
        clock = self._steps * self._samples_per_step if self._initial_clock is None else self._initial_clock
        self.run = attach(pl_module, initial_clock=clock, **self._arguments)

    def on_train_batch_end(
        self, trainer: lightning.pytorch.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        steps, self._steps = trainer.global_step - self._steps, trainer.global_step
        if steps > 0 and self.run is not None and not self.run.closed:
            self.run.step(steps * self._samples_per_step)

    def on_train_end(self, trainer: lightning.pytorch.Trainer, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: lightning.pytorch.Trainer, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self.run is not None:
            self.run.close()
