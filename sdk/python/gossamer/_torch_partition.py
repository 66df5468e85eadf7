"""Cuts a PyTorch model into the stages of a pipeline, by what its layers take when they are run."""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Dict, List, Sequence, Tuple

import torch

from ._run import _bad_argument

# Each layer is run so often, and the shortest time counts: other programs only make it longer.
RUNS = 5
# Bytes for each byte of parameters: the parameter, its gradient, and two moments of the optimizer.
BYTES_OF_TRAINING = 4


@dataclass(frozen=True)
class Partition:
    """A model's layers, cut into stages that follow each other."""

    stages: Tuple[Tuple[str, ...], ...]  # the names of each stage's layers, in their order
    costs: Tuple[float, ...]  # what each stage takes: seconds of a forward and a backward pass, or bytes
    _model: torch.nn.Module

    @property
    def split_spec(self) -> Dict[str, Any]:
        """For torch.distributed.pipelining.pipeline(): where each stage but the first begins."""
        from torch.distributed.pipelining import SplitPoint

        return {stage[0]: SplitPoint.BEGINNING for stage in self.stages[1:]}

    def module(self, stage: int) -> torch.nn.Sequential:
        """The layers of one stage of a torch.nn.Sequential, under the names that they have in the whole model."""
        if not isinstance(self._model, torch.nn.Sequential):
            raise _bad_argument("the model is no torch.nn.Sequential: give split_spec to torch.distributed.pipelining.pipeline()")
        return torch.nn.Sequential(OrderedDict((name, self._model.get_submodule(name)) for name in self.stages[stage]))


def linear_partition(costs: Sequence[float], stages: int) -> List[int]:
    """Cuts a sequence into so many stages that the largest sum is the least possible. Returns where each begins. Exact,
    by dynamic programming over the last cut; O(stages * n²)."""
    count = len(costs)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # least[k][i]: the least largest sum of the first i items in k + 1 stages, and where the last of these begins
    least = [[(sums[i], 0) for i in range(count + 1)]]
    for k in range(1, stages):
        before = least[-1]
        row = [(float("inf"), 0)] * (count + 1)
        for i in range(k + 1, count + 1):
            row[i] = min((max(before[j][0], sums[i] - sums[j]), j) for j in range(k, i))
        least.append(row)
    begins = []
    end = count
    for k in reversed(range(stages)):
        end = least[k][end][1]
        begins.append(end)
    return begins[::-1]


def _layers(model: torch.nn.Module) -> "OrderedDict[str, torch.nn.Module]":
    """What a cut may be between: the children of the model, and instead of lists of layers these."""
    found: "OrderedDict[str, torch.nn.Module]" = OrderedDict()
    for name, child in model.named_children():
        if isinstance(child, (torch.nn.Sequential, torch.nn.ModuleList)) and len(child) > 0:
            found.update((f"{name}.{key}", layer) for key, layer in child.named_children())
        else:
            found[name] = child
    return found


def _inputs(model: torch.nn.Module, sample: Any) -> "OrderedDict[str, Tuple[Any, Any]]":
    """The layers in the order in which they are called, each with its arguments."""
    seen: "OrderedDict[str, Tuple[Any, Any]]" = OrderedDict()
    twice = []

    def watch(name: str, layer: torch.nn.Module) -> Any:
        def before(_: torch.nn.Module, args: Any, kwargs: Any = MappingProxyType({})) -> None:
            if name in seen:
                twice.append(name)
            seen[name] = (args, dict(kwargs))

        if "with_kwargs" in inspect.signature(layer.register_forward_pre_hook).parameters:
            return layer.register_forward_pre_hook(before, with_kwargs=True)
        return layer.register_forward_pre_hook(before)  # before PyTorch 2, of positional arguments only

    hooks = [watch(name, layer) for name, layer in _layers(model).items()]
    try:
        with torch.no_grad():
            model(*sample) if isinstance(sample, tuple) else model(sample)
    finally:
        for hook in hooks:
            hook.remove()
    if twice:
        raise _bad_argument(f"the layer '{twice[0]}' is called several times in a pass, so the model has no order of stages")
    return seen


def _floating(values: Any) -> List[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values] if values.is_floating_point() else []
    if isinstance(values, dict):
        values = list(values.values())
    return [tensor for value in values for tensor in _floating(value)] if isinstance(values, (list, tuple)) else []


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.is_floating_point())
    if isinstance(value, (list, tuple)):
        return type(value)(_detached(item) for item in value)
    return {key: _detached(item) for key, item in value.items()} if isinstance(value, dict) else value


def _pass(layer: torch.nn.Module, args: Any, kwargs: Any) -> None:
    outputs = [tensor for tensor in _floating(layer(*args, **kwargs)) if tensor.requires_grad]
    wanted = [tensor for tensor in (*layer.parameters(), *_floating(args), *_floating(kwargs)) if tensor.requires_grad]
    if outputs and wanted:
        torch.autograd.grad([tensor.sum() for tensor in outputs], wanted, allow_unused=True)


def _seconds(layer: torch.nn.Module, args: Any, kwargs: Any) -> float:
    cuda = any(tensor.is_cuda for tensor in (*layer.parameters(), *_floating(args)))

    def now() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    taken = []
    for _ in range(RUNS + 1):
        begin = now()
        _pass(layer, args, kwargs)
        taken.append(now() - begin)
    return min(taken[1:])  # the first may load what the others have


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def _bytes(layer: torch.nn.Module, args: Any, kwargs: Any) -> float:
    own = {_storage(tensor).data_ptr() for tensor in layer.parameters()}
    kept: Dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = _storage(tensor)
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = layer(*args, **kwargs)
    del outputs
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in layer.parameters())
    return float(BYTES_OF_TRAINING * parameters + sum(kept.values()))


def partition(model: torch.nn.Module, sample: Any, *, stages: int, prefer: str = "speed") -> Partition:
    """Cuts a model into the stages of a pipeline, for torch.distributed.pipelining: of all cuts between layers, that
    whose slowest (or largest) stage is the least. Layers are the model's children, and those of its lists of layers.
    Each is run by itself, forward and backward, with what comes to it of the sample.

    model: a torch.nn.Sequential, or another module that pipeline() can trace; it is not changed.
    sample: a micro-batch as the model takes it, or a tuple of arguments.
    stages: their number.
    prefer: "speed" measures the time of each layer, "memory" counts bytes: parameters with their gradients and an
        optimizer with two moments, and what the backward pass keeps of a micro-batch.
    """
    if prefer not in ("speed", "memory"):
        raise _bad_argument(f'prefer must be "speed" or "memory", not {prefer!r}')
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with torch.random.fork_rng():
        inputs, costs = _measured(model, sample, stages, _seconds if prefer == "speed" else _bytes)
    with torch.no_grad():  # batch norms have counted these passes
        for name, value in model.named_buffers():
            value.copy_(buffers[name])
    names = list(inputs)
    begins = linear_partition(costs, stages)
    bounds = list(zip(begins, [*begins[1:], len(names)]))
    return Partition(
        stages=tuple(tuple(names[first:end]) for first, end in bounds),
        costs=tuple(sum(costs[first:end]) for first, end in bounds),
        _model=model,
    )


def _measured(model: torch.nn.Module, sample: Any, stages: int, measure: Any) -> Tuple[Any, List[float]]:
    inputs = _inputs(model, sample)
    if type(stages) is not int or not 1 <= stages <= len(inputs):
        raise _bad_argument(f"stages must be from 1 to the number of the model's layers, {len(inputs)}, not {stages!r}")
    calls = inputs.items()
    return inputs, [measure(model.get_submodule(name), _detached(args), _detached(kwargs)) for name, (args, kwargs) in calls]
