"""The common part of the callbacks for trainers of PyTorch models: when a run begins and ends, and with which clock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Callable, Optional, Sequence

import torch

from ._library import GossamerError
from ._options import AttachOptions, check_options
from ._run import _close_trainer_runs, _trainer_runs, check_samples_per_step
from .torch import TorchRun, attach

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TrainerRun:
    """A run that a trainer opens and closes. `run` is the gossamer.torch.TorchRun in between.

    job: the name that all replicas of this model share.
    samples_per_step: what each optimiser step adds to the clock: the batch size, times the batches whose gradients are
        accumulated. None: as the trainer says.
    initial_clock: samples trained before; by default computed from the trainer's steps, so that a run that resumes
        from a checkpoint continues its clock.
    The other options are those of gossamer.torch.attach().
    """

    def __init__(
        self,
        *,
        samples_per_step: Optional[int] = None,
        share_second_moments: bool = False,
        **options: Unpack[AttachOptions],
    ):
        super().__init__()
        check_options(options)
        self.run: Optional[TorchRun] = None
        self._unhook: Callable[[], None] = lambda: None
        self._samples_per_step = None if samples_per_step is None else check_samples_per_step(samples_per_step)
        self._options = options
        self._share_second_moments = share_second_moments

    def _open_run(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        processes: int,
        steps: int,
        samples_per_step: int,
    ) -> None:
        """`steps` are the trainer's steps before this training. `samples_per_step` is used if the user has given none.
        With one optimizer, its step() is the run's, too."""
        if processes > 1:
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"the trainer runs in {processes} processes: one on each node, please, with Gossamer between them",
            )
        self._unhook()  # removes the hook of a training that has failed
        samples = self._samples_per_step or samples_per_step
        options = self._options.copy()
        if options.get("initial_clock") is None:
            options["initial_clock"] = steps * samples
        _close_trainer_runs(options["job"])
        self.run = attach(
            model,
            optimizers[0] if len(optimizers) == 1 else None,
            samples_per_step=samples,
            share_second_moments=self._share_second_moments,
            **options,
        )
        _trainer_runs[self.run] = threading.get_ident()

    @property
    def _open(self) -> Optional[TorchRun]:
        """The run, unless it is closed."""
        return None if self.run is None or self.run.closed else self.run

    def _step(self, count: int) -> None:
        """The trainer has made so many steps."""
        if count > 0 and (run := self._open) is not None and run._hooked_optimizer() is None:
            run.step(count * run.samples_per_step)

    def _average_gradients(self) -> None:
        """Before the trainer clips them."""
        if (run := self._open) is not None and run._hooked_optimizer() is not None:
            run.average_gradients()

    def _close_run(self) -> None:
        self._unhook()
        if self.run is not None:
            self.run.close()
