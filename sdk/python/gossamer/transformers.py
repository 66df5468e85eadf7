"""A callback for Hugging Face's Trainer:

    import gossamer.transformers
    Trainer(model, arguments, ..., callbacks=[gossamer.transformers.GossamerCallback(job="bert")]).train()

One process per node. The same tensors are averaged or refused as in gossamer.torch.attach().
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._run import Run, RunInfo, RunStats, State
from ._trainer import TrainerRun
from .torch import TorchRun, _innermost

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
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        assert model is not None
        samples = args.train_batch_size * args.gradient_accumulation_steps
        inner = None if optimizer is None else _innermost(optimizer)  # Accelerate has prepared it
        optimizers = [inner] if isinstance(inner, torch.optim.Optimizer) else []
        self._open_run(model, optimizers, processes=args.world_size, steps=state.global_step, samples_per_step=samples)
        # Gradients that are scaled are averaged after the trainer has unscaled and clipped them.
        if getattr(optimizer, "scaler", self) is None and hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
            whole = optimizer.gradient_state  # knows whether the batch is the last of those whose gradients are added up
            self._unhook = _after_backward(inner, lambda: self._average_gradients() if whole.sync_gradients else None)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, optimizer: Any = None, **_: Any
    ) -> None:
        self._step(0 if getattr(optimizer, "step_was_skipped", False) else 1)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._close_run()


def _after_backward(optimizer: torch.optim.Optimizer, action: Callable[[], None]) -> Callable[[], None]:
    """Calls `action` at the end of each backward pass that adds to a gradient. Returns what undoes that. A pass within a
    pass, as some checkpoints of activations make, may end first; then `action` is called again."""
    engine = torch.autograd.Variable._execution_engine  # as DistributedDataParallel does
    waits = False

    def added(_: torch.Tensor) -> None:
        nonlocal waits
        if not waits:
            waits = True
            engine.queue_callback(ended)

    def ended() -> None:
        nonlocal waits
        waits = False
        action()

    hooks = [
        parameter.register_post_accumulate_grad_hook(added)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]

    def undo() -> None:
        for hook in hooks:
            hook.remove()

    return undo
