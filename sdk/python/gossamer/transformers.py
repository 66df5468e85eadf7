"""A callback for Hugging Face's Trainer:

    import gossamer.transformers
    Trainer(model, arguments, ..., callbacks=[gossamer.transformers.GossamerCallback(job="bert")]).train()

One process per node. What is averaged, and what is refused, is as in gossamer.torch.attach().
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

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


class GossamerCallback(TrainerCallback):
    """Attaches the model when training begins, steps after each optimiser step, and closes the run at the end. `run` is
    the gossamer.torch.TorchRun in between.

    job: what all replicas of this model call it.
    samples_per_step: what each optimiser step adds to the clock; by default the batch size times the batches whose
        gradients are accumulated.
    initial_clock: samples trained before; by default what the trainer's steps so far come to, so that a run that resumes
        from a checkpoint continues its clock.
    The rest is as in gossamer.torch.attach().
    """

    def __init__(
        self,
        *,
        job: str,
        samples_per_step: Optional[int] = None,
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
        self.run: Optional[TorchRun] = None
        self._samples_per_step = samples_per_step
        self._initial_clock = initial_clock
        self._arguments: Dict[str, Any] = {
            "job": job,
            "roles": roles,
            "wait": wait,
            "timeout_s": timeout_s,
            "socket": socket,
            "fragment_elements": fragment_elements,
            "step_budget_bytes": step_budget_bytes,
            "on_event": on_event,
            "progress": progress,
        }

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Optional[torch.nn.Module] = None,
        **_: Any,
    ) -> None:
        if args.world_size > 1:
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"the trainer runs in {args.world_size} processes: one on each node, please, with Gossamer between them",
            )
        assert model is not None
        samples = self._samples_per_step or args.train_batch_size * args.gradient_accumulation_steps
        clock = state.global_step * samples if self._initial_clock is None else self._initial_clock
        self.run = attach(model, samples_per_step=samples, initial_clock=clock, **self._arguments)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, optimizer: Any = None, **_: Any
    ) -> None:
        if self.run is not None and not self.run.closed and not getattr(optimizer, "step_was_skipped", False):
            self.run.step()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.run is not None:
            self.run.close()
