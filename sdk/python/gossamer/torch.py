"""Attaching a PyTorch model:

    import gossamer.torch as gossamer
    run = gossamer.attach(model, optimizer, job="resnet")

From then on optimizer.step() also does run.step(). Parameters are averaged with the other replicas; so are
floating-point buffers (batch-norm statistics); integer buffers stay here.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

import torch

from . import _library
from ._library import GossamerError, GossamerWarning, version
from ._run import Run, RunInfo, RunOptions, State, TensorSpec

__all__ = ["attach", "TorchRun", "Run", "RunInfo", "State", "GossamerError", "GossamerWarning", "version"]

_DTYPES = {
    torch.float32: _library.F32,
    torch.float64: _library.F64,
    torch.float16: _library.F16,
    torch.bfloat16: _library.BF16,
    torch.int8: _library.I8,
    torch.int16: _library.I16,
    torch.int32: _library.I32,
    torch.int64: _library.I64,
    torch.uint8: _library.U8,
    torch.bool: _library.BOOL,
}


class _Place(NamedTuple):
    """Where a module keeps a tensor: looked up at each step, because modules and users replace tensors."""

    name: str
    role: str
    holder: Dict[str, Any]  # a module's _parameters or _buffers
    key: str

    def tensor(self) -> torch.Tensor:
        tensor = self.holder.get(self.key)
        if tensor is None:
            raise _refuse(self.name, "has been taken out of the model since the run was attached")
        return tensor


def _refuse(name: str, reason: str) -> GossamerError:
    return GossamerError("GOSSAMER_UNSUPPORTED", f"tensor '{name}' {reason}")


def _places(model: torch.nn.Module) -> List[_Place]:
    """All parameters, then all buffers, each tensor once, under the names that state_dict() gives them."""
    places = []
    seen: Set[int] = set()
    for kind in ("_parameters", "_buffers"):
        for prefix, module in model.named_modules():
            for key, tensor in getattr(module, kind).items():
                if tensor is None or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                name = f"{prefix}.{key}" if prefix else key
                if torch.nn.parameter.is_lazy(tensor):
                    raise _refuse(name, "has no shape yet: run one batch through the model before attaching it")
                role = "param" if kind == "_parameters" else "buffer" if tensor.is_floating_point() else "local"
                places.append(_Place(name, role, getattr(module, kind), key))
    return places


def _spec(place: _Place) -> TensorSpec:
    tensor = place.tensor()
    if tensor.dtype not in _DTYPES:
        raise _refuse(place.name, f"has the dtype {tensor.dtype}, which cannot be averaged: use torch.float32")
    if place.role != "local":
        if tensor.device.type != "cpu":
            raise _refuse(
                place.name,
                f"is on {tensor.device}, but only models in CPU memory can be attached yet: move it with model.to('cpu')",
            )
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise _refuse(place.name, "is not contiguous: attach a model whose tensors are dense and row-major")
    pointer = 0 if place.role == "local" else tensor.data_ptr()
    # The alias keeps the memory alive even if the model lets go of it.
    return TensorSpec(place.name, _DTYPES[tensor.dtype], place.role, tuple(tensor.shape), pointer, tensor.detach())


class TorchRun(Run):
    """A run of a PyTorch model."""

    def __init__(self, model: torch.nn.Module, options: RunOptions, samples_per_step: int):
        self._places = _places(model)
        specs = [_spec(place) for place in self._places]
        self._specs = specs
        super().__init__(specs, options)
        # What each optimizer.step() adds to the clock; may be changed at any time, with the size of the batch.
        self.samples_per_step = samples_per_step
        self._unhook: Optional[Callable[[], None]] = None

    def step(self, samples: Optional[int] = None) -> None:
        """Call after each optimiser step, unless attach() was given the optimizer. Never waits for the network."""
        self._follow_moved_tensors()
        super().step(self.samples_per_step if samples is None else samples)

    def wait(self, timeout_s: Optional[float] = None) -> bool:
        self._follow_moved_tensors()
        return super().wait(timeout_s)

    def hook(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes optimizer.step() do step() afterwards, until the run is closed."""
        if self._unhook is not None:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "this run is already hooked to an optimizer")
        self._unhook = _after_step(optimizer, self._step_if_open)

    def close(self) -> None:
        if self._unhook is not None:
            self._unhook()
            self._unhook = None
        if not self.closed:
            self._follow_moved_tensors()
        super().close()

    def _step_if_open(self) -> None:
        if not self.closed:
            self.step()

    def _follow_moved_tensors(self) -> None:
        for index, place in enumerate(self._places):
            if place.role == "local" or place.tensor().data_ptr() == self._specs[index].pointer:
                continue
            before, now = self._specs[index], _spec(place)
            if (now.dtype, now.shape) != (before.dtype, before.shape):
                raise _refuse(place.name, "has changed its dtype or shape since the run was attached: attach again")
            self._move_tensor(index, now.pointer, now.owner)
            self._specs[index] = now


def _after_step(optimizer: torch.optim.Optimizer, action: Callable[[], None]) -> Callable[[], None]:
    """Calls `action` after each optimizer.step(); returns what undoes that."""
    if hasattr(optimizer, "register_step_post_hook"):  # PyTorch 2
        return optimizer.register_step_post_hook(lambda *_: action()).remove

    original = optimizer.step

    # Learning-rate schedulers want a bound method that they can wrap in their turn, and look at its attributes.
    @functools.wraps(original)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        action()
        return result

    optimizer.step = types.MethodType(step, optimizer)

    def undo() -> None:
        # Whoever wrapped the method after us holds on to ours, which does nothing once the run is closed.
        if getattr(optimizer.step, "__func__", None) is step:
            optimizer.step = original

    return undo


def attach(
    model: torch.nn.Module,
    optimizer: Optional[torch.optim.Optimizer] = None,
    *,
    job: str,
    samples_per_step: int = 1,
    wait: bool = True,
    timeout_s: Optional[float] = None,
    socket: Optional[str] = None,
    fragment_elements: int = 0,
    step_budget_bytes: int = 0,
    initial_clock: int = 0,
) -> TorchRun:
    """Attaches a model to the daemon of this machine; if the job is already running elsewhere, takes over its model.

    model: in CPU memory, its parameters in float32 or float64.
    optimizer: optimizer.step() then also does run.step(); without it, call run.step() yourself.
    job: what all replicas of this model call it.
    samples_per_step: what each step adds to the clock, normally the batch size.
    The rest is as in gossamer.attach().
    """
    options = RunOptions(job, socket, fragment_elements, step_budget_bytes, initial_clock)
    run = TorchRun(model, options, samples_per_step)
    if wait:
        run.wait(timeout_s)
    if optimizer is not None:
        run.hook(optimizer)
    return run
