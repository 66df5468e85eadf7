"""A callback for Hugging Face's Trainer:

    import gossamer.transformers
    Trainer(model, arguments, ..., callbacks=[gossamer.transformers.GossamerCallback(job="bert")]).train()

One process per node. The same tensors are averaged or refused as in gossamer.torch.attach().
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._run import Run, RunInfo, RunStats, State
from ._trainer import TrainerRun
from .torch import TorchRun

__all__ = [
    "GossamerCallback", "Event", "EventKind", "GossamerError", "GossamerWarning", "Run", "RunInfo", "RunStats",
    "State", "TorchRun", "version",
]


class GossamerCallback(TrainerRun, TrainerCallback):
    """Attaches the model when training begins, steps after each optimiser step, and closes the run at the end. `run` is
    the gossamer.torch.TorchRun in between.

    job: the name that all replicas of this model share.
    samples_per_step: what each optimiser step adds to the clock; by default the batch size times the batches whose
        gradients are accumulated.
    initial_clock: samples trained before; by default computed from the trainer's steps, so that a run that resumes
        from a checkpoint continues its clock.
    The other options are those of gossamer.torch.attach().
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Optional[torch.nn.Module] = None,
        **_: Any,
    ) -> None:
        assert model is not None
        samples = args.train_batch_size * args.gradient_accumulation_steps
        self._open_run(model, processes=args.world_size, steps=state.global_step, samples_per_step=samples)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, optimizer: Any = None, **_: Any
    ) -> None:
        if (run := self._open) is not None and not getattr(optimizer, "step_was_skipped", False):
            run.step()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._close_run()
