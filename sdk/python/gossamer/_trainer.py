"""What the callbacks for trainers of PyTorch models share: when a run begins and ends, and with which clock."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

import torch

from ._events import Event
from ._library import GossamerError
from .torch import TorchRun, attach


class TrainerRun:
    """A run that a trainer opens and closes. `run` is the gossamer.torch.TorchRun in between.

    job: what all replicas of this model call it.
    samples_per_step: what each optimiser step adds to the clock: the batch size, times the batches whose gradients are
        accumulated. None: what the trainer knows of it.
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
        memory: str = "auto",
        on_event: Optional[Callable[[Event], None]] = None,
        progress: Optional[bool] = None,
    ):
        super().__init__()
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
            "memory": memory,
            "on_event": on_event,
            "progress": progress,
        }

    def _open_run(self, model: torch.nn.Module, *, processes: int, steps: int, samples_per_step: int) -> None:
        """`steps`: the trainer's before this training; `samples_per_step`: if the user has not said."""
        if processes > 1:
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"the trainer runs in {processes} processes: one on each node, please, with Gossamer between them",
            )
        samples = self._samples_per_step or samples_per_step
        clock = steps * samples if self._initial_clock is None else self._initial_clock
        self.run = attach(model, samples_per_step=samples, initial_clock=clock, **self._arguments)

    @property
    def _open(self) -> Optional[TorchRun]:
        """The run, unless it is closed."""
        return None if self.run is None or self.run.closed else self.run

    def _close_run(self) -> None:
        if self.run is not None:
            self.run.close()
