"""A callback for Lightning's Trainer:

    import gossamer.lightning
    Trainer(callbacks=[gossamer.lightning.GossamerCallback(job="resnet", samples_per_step=32)]).fit(module, data)

One process per node. The same tensors are averaged or refused as in gossamer.torch.attach().
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch

from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._run import Run, RunInfo, RunStats, State
from ._trainer import TrainerRun
from .torch import TorchRun

__all__ = [
    "GossamerCallback", "Event", "EventKind", "GossamerError", "GossamerWarning", "Run", "RunInfo", "RunStats",
    "State", "TorchRun", "version",
]


class GossamerCallback(TrainerRun, lightning.pytorch.Callback):
    """Attaches the module when training begins (after a checkpoint has been loaded), steps after each optimiser step,
    and closes the run at the end. `run` is the gossamer.torch.TorchRun in between.

    job: the name that all replicas of this model share.
    samples_per_step: what each optimiser step adds to the clock: the batch size, times the batches whose gradients are
        accumulated; by default 1.
    initial_clock: samples trained before; by default computed from the trainer's steps.
    The other options are those of gossamer.torch.attach().
    """

    _steps = 0  # the trainer's steps up to the last run.step()

    def on_train_start(self, trainer: lightning.pytorch.Trainer, pl_module: lightning.pytorch.LightningModule) -> None:
        self._steps = trainer.global_step
        self._open_run(
            pl_module, trainer.optimizers, processes=trainer.world_size, steps=self._steps, samples_per_step=1
        )

    def on_before_optimizer_step(self, trainer: lightning.pytorch.Trainer, pl_module: Any, optimizer: Any) -> None:
        self._average_gradients()

    def on_train_batch_end(
        self, trainer: lightning.pytorch.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        steps, self._steps = trainer.global_step - self._steps, trainer.global_step
        self._step(steps)

    def on_train_end(self, trainer: lightning.pytorch.Trainer, pl_module: Any) -> None:
        self._close_run()

    def on_exception(self, trainer: lightning.pytorch.Trainer, pl_module: Any, exception: BaseException) -> None:
        self._close_run()
