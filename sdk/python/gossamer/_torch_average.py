"""The method "average" for PyTorch: exact means of the gradients before each step, or of the models after every few.

All processes then hold the same model, to the bit. A process is *new* while its model may be another one: when it comes
or was left out, after an exchange has changed its model, and when the job's method was another one. What a process
contributes has a weight: 1, or, while it is new, 2^-40. Beside others of weight 1 that is less than float32 can tell, so
the values do not count; among new ones alone it is a scale like any other. A mean weight other than 1 tells all of them
at once that one is new. They then average their whole state, the optimizer's too, with the same weights, and hold the
same bits again. NaN and infinity have the weight 0.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple

import torch

from . import _library
from ._library import GossamerError
from ._shared import average_options

if TYPE_CHECKING:
    from .torch import TorchRun

NEW_WEIGHT = 2.0**-40
# Who waits for others is told so after this time.
TELL_AFTER_S = 30.0
LOOK_INTERVAL_S = 0.1
# The state is averaged under a name of its own. If one of those that were to take part dies, all of them try again.
STATE_TIMEOUT_S = 20.0
OUTER_RATE = 0.7  # as in the exchange's outer steps (gossip/exchange/outer.hpp)
# What is averaged, and its name.
GRADIENTS = "gradients"
MODELS = "models"


class _MethodChanged(Exception):
    """The job is averaged in another way now."""


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Of a distributed tensor (torch.distributed.tensor.DTensor), the shard in this process, in the same memory each
    time."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def _trained(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"] if tensor.requires_grad]


class _Flat:
    """A weight and, behind it, the values of some tensors: in float32, in host memory."""

    def __init__(self, sizes: List[int]):
        self.sizes = sizes
        self._all = torch.empty(1 + sum(sizes), dtype=torch.float32)
        self.values = self._all[1:]

    def put(self, tensors: Iterable[Optional[torch.Tensor]]) -> None:
        for target, tensor in zip(self.values.split(self.sizes), tensors):
            if tensor is None:
                target.zero_()
            else:
                target.copy_(tensor.reshape(-1))

    def give(self, tensors: Iterable[Optional[torch.Tensor]]) -> None:
        for tensor, mean in zip(tensors, self.values.split(self.sizes)):
            if tensor is not None:
                tensor.copy_(mean.view(tensor.shape))

    def weigh(self, weight: float) -> None:
        # NaN or infinity make the sum such a value. It may also be infinite without one.
        if not math.isfinite(float(self.values.sum())) and not bool(torch.isfinite(self.values).all()):
            weight = 0.0
            self.values.zero_()
        elif weight != 1:
            self.values.mul_(weight)
        self._all[0] = weight

    def mean_weight(self) -> float:
        """Takes it out of the values. If nobody had values, they are NaN."""
        weight = float(self._all[0])
        if weight == 0:
            self.values.fill_(math.nan)
        elif weight != 1:
            self.values.div_(weight)
        return weight

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._all.data_ptr())

    @property
    def size(self) -> int:
        return len(self._all)


class ExactAverages:
    """What a run of a PyTorch model averages. The run owns this, so each method is given it. Call them with
    torch.no_grad()."""

    def __init__(self) -> None:
        self._averaged: Optional[str] = None  # GRADIENTS or MODELS, by the job's settings
        self._flat: Optional[_Flat] = None
        self._new = True
        self._newcomers: Optional[Tuple[int, int]] = None  # a round that has found new ones, and its contributions
        self._look_at_s = 0.0  # when the settings are looked at again
        self._corrections = 0  # as far as they are known
        self._has_gradients = False  # those of the next step are averaged already
        self._steps = 0  # since the models were averaged
        self._told = False  # that training goes on alone, or waits
        self._anchor: Optional[torch.Tensor] = None  # the model after the last outer step
        self._momentum: Optional[torch.Tensor] = None

    def average_gradients(self, run: TorchRun, optimizer: torch.optim.Optimizer) -> None:
        """Before a step of the optimizer, unless the method is another one or it has been done for this step. The model's
        buffers, such as batch-norm statistics, are averaged, too."""
        if self._has_gradients or self._follow(run) != GRADIENTS:
            return
        if isinstance(optimizer, torch.optim.LBFGS):
            raise GossamerError("GOSSAMER_UNSUPPORTED", "LBFGS cannot average gradients: it decides by local losses")
        parameters = _trained(optimizer)
        gradients = [None if p.grad is None else local_part(p.grad) for p in parameters]
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise GossamerError("GOSSAMER_UNSUPPORTED", "sparse gradients cannot be averaged: make layers with sparse=False")
        buffers = run._averaged_tensors("buffer")
        # A parameter that has a gradient at no process is to keep none.
        present = torch.tensor([float(gradient is not None) for gradient in gradients])
        flat = self._flat_for([local_part(p).numel() for p in parameters] + [t.numel() for t in [*buffers, present]])
        flat.put([*gradients, *buffers, present])
        if self._mean(run, flat) is None:
            return
        self._has_gradients = True
        for parameter, share in zip(parameters, flat.values[-len(parameters) :].tolist()):
            if share > 0 and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat.give([*[None if p.grad is None else local_part(p.grad) for p in parameters], *buffers])

    def after_step(self, run: TorchRun, optimizer: torch.optim.Optimizer) -> None:
        self._has_gradients = False
        if self._newcomers is not None:
            self._share(run, _state_of(run, optimizer))
            run._tensors_changed()
        if self._averaged == GRADIENTS or self._follow(run) != MODELS:
            return
        self._steps += 1
        if self._steps >= run.info().average_steps:
            self._steps = 0
            self._average_models(run)
            run._tensors_changed()

    def leave(self, run: TorchRun) -> None:
        """The process takes part no more, and others do not wait for it."""
        if self._averaged is not None and not run.closed:
            run._leave_average(self._averaged.encode())
        self._averaged = self._flat = self._newcomers = self._anchor = self._momentum = None
        self._new = True
        self._has_gradients = False

    def _follow(self, run: TorchRun) -> Optional[str]:
        """What the job's settings want to be averaged."""
        # Where nothing is averaged, steps are short.
        if self._averaged is None and time.monotonic() < self._look_at_s:
            return None
        self._look_at_s = time.monotonic() + LOOK_INTERVAL_S
        info = run.info()
        # A daemon that has gone away may only be restarting. The next average waits for it a while.
        wanted = self._averaged
        if info.attached:
            wanted = None if info.method != "average" else GRADIENTS if info.average_steps <= 1 else MODELS
        if wanted != self._averaged:
            self.leave(run)
            self._averaged = wanted
        if info.corrections != self._corrections:
            self._corrections = info.corrections
            self._new = True
        return self._averaged

    def _flat_for(self, sizes: List[int]) -> _Flat:
        if self._flat is None or self._flat.sizes != sizes:
            self._flat = _Flat(sizes)
        return self._flat

    def _mean(self, run: TorchRun, flat: _Flat) -> Optional[_library.AverageInfo]:
        """None: there is none, and this process goes on alone."""
        assert self._averaged is not None
        flat.weigh(NEW_WEIGHT if self._new else 1.0)
        try:
            options = average_options(self._averaged, at_least=max(1, run.info().average_members))
            found = run._average(flat.pointer, flat.size, options, waits=lambda waited_s: self._waits(run, waited_s))
        except _MethodChanged:
            self.leave(run)
            return None
        except GossamerError as error:
            if error.status != "GOSSAMER_NO_DAEMON":
                raise
            self.leave(run)
            self._tell(run, f"training goes on alone, until a daemon is back: {error}")
            return None
        self._told = False
        if flat.mean_weight() != 1:
            self._newcomers = (found.round, found.of)
        if found.joined:
            self._new = True  # it was left out of rounds, and says so with the next one
        return found

    def _waits(self, run: TorchRun, waited_s: float) -> None:
        info = run.info()
        if info.attached and info.method != "average":
            raise _MethodChanged
        if waited_s > TELL_AFTER_S:
            self._tell(run, f"a step waits for other processes: {run._last_error()}")

    def _tell(self, run: TorchRun, message: str) -> None:
        if not self._told:
            self._told = True
            run._warn(f"job '{run._job}': {message}")

    def _share(self, run: TorchRun, state: List[torch.Tensor]) -> None:
        """All that took part in the round that has found new ones average their state."""
        assert self._newcomers is not None
        (number, of), self._newcomers = self._newcomers, None
        flat = _Flat([tensor.numel() for tensor in state])
        flat.put(state)
        flat.weigh(NEW_WEIGHT if self._new else 1.0)
        options = average_options(f"state.{number}", at_least=of)
        try:
            run._average(flat.pointer, flat.size, options, STATE_TIMEOUT_S)
        except (TimeoutError, GossamerError) as error:
            if "numbers under this name" in str(error):
                raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"the processes have different optimizers: {error}") from None
            if isinstance(error, GossamerError) and error.status != "GOSSAMER_NO_DAEMON":
                raise
            self._new = True  # one has died; the next round finds new ones again
            return
        run._leave_average(options.name)
        if flat.mean_weight() != 0:
            flat.give(state)
            self._new = False

    def _average_models(self, run: TorchRun) -> None:
        tensors = run._averaged_tensors()
        flat = self._flat_for([tensor.numel() for tensor in tensors])
        flat.put(tensors)
        if self._mean(run, flat) is None:
            return
        momentum = run.info().outer_momentum
        if momentum == 0:
            self._newcomers, self._new = None, False  # all have the same state, which is the model
            return flat.give(tensors)
        self._outer_step(flat.values, momentum)
        flat.give(tensors)
        if self._newcomers is not None:
            assert self._momentum is not None
            self._share(run, [*tensors, self._momentum])
            flat.put(tensors)
        self._anchor = flat.values.clone()

    def _outer_step(self, model: torch.Tensor, momentum: float) -> None:
        if self._momentum is None:
            self._momentum = torch.zeros_like(model)
        if self._anchor is not None:
            self._momentum.mul_(momentum).add_(model - self._anchor)
        model.add_(self._momentum, alpha=OUTER_RATE * momentum)


def _state_of(run: TorchRun, optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """The model, and what the optimizer keeps for each parameter, in an order that all processes have."""
    state = run._averaged_tensors()
    for parameter in _trained(optimizer):
        kept: Dict[str, Any] = optimizer.state.get(parameter, {})
        state += [local_part(kept[name]) for name in sorted(kept) if isinstance(kept[name], torch.Tensor)]
    return [tensor for tensor in state if tensor.is_floating_point()]
