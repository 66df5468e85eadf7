"""Cuts a PyTorch model into the stages of a pipeline, by what its layers take when they are run."""

from __future__ import annotations

import copy
import inspect
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch

from ._run import _bad_argument

# Each layer is run this often, and the shortest time counts, because other programs can only make a run longer.
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
        """The layers of one stage of a torch.nn.Sequential, and of those in it, under the names that they have in the
        whole model."""
        lists = {name.rpartition(".")[0] for names in self.stages for name in names}
        for module in (self._model, *map(self._model.get_submodule, sorted(lists))):
            if type(module).forward is not torch.nn.Sequential.forward:
                raise _bad_argument(
                    f"{type(module).__name__} is no torch.nn.Sequential, or one with a forward() of its own: "
                    "give split_spec to torch.distributed.pipelining.pipeline()"
                )
        result = torch.nn.Sequential()
        for name in self.stages[stage]:
            parent, _, key = name.rpartition(".")
            if parent and parent not in dict(result.named_children()):
                result.add_module(parent, torch.nn.Sequential())
            result.get_submodule(parent).add_module(key, self._model.get_submodule(name))
        return result


def linear_partition(costs: Sequence[float], stages: int) -> List[int]:
    """Cuts a sequence into so many stages that the largest sum is the least possible. Returns where each begins. Exact,
    by dynamic programming over the last cut; O(stages * n²)."""
    count = len(costs)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # least[k][i]: if the first i items are cut into k + 1 stages in the best way, the largest stage's sum, and where
    # the last stage begins
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
            seen[name] = (_mapped(args, _leaf), {key: _mapped(value, _leaf) for key, value in kwargs.items()})

        if "with_kwargs" in inspect.signature(layer.register_forward_pre_hook).parameters:
            return layer.register_forward_pre_hook(before, with_kwargs=True)
        return layer.register_forward_pre_hook(before)  # before PyTorch 2, hooks see positional arguments only

    layers = _layers(model)
    hooks = [watch(name, layer) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            own = _mapped(sample, torch.clone)  # the first layer may work in place
            model(*own) if isinstance(own, tuple) else model(own)
    finally:
        for hook in hooks:
            hook.remove()
    if twice:
        has_state = layers[twice[0]].state_dict()
        raise _bad_argument(
            f"the layer '{twice[0]}' is called several times in a pass, so the model has no order of stages"
            + ("" if has_state else ": make an object of its own for each place")
        )
    return seen


def _floating(values: Any) -> List[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values] if values.is_floating_point() else []
    if isinstance(values, dict):
        values = list(values.values())
    return [tensor for value in values for tensor in _floating(value)] if isinstance(values, (list, tuple)) else []


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same lists, tuples and dictionaries of other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        items = [_mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)  # named tuples have fields
    if isinstance(value, dict):
        result = copy.copy(value)
        for key, item in value.items():
            result[key] = _mapped(item, change)
        return result
    return value


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())


def _pass(layer: torch.nn.Module, inputs: Any, leaves: Any) -> None:
    args, kwargs = inputs
    outputs = [tensor for tensor in _floating(layer(*args, **kwargs)) if tensor.requires_grad]
    wanted = [tensor for tensor in (*layer.parameters(), *_floating(leaves)) if tensor.requires_grad]
    if outputs and wanted:
        torch.autograd.grad([tensor.sum() for tensor in outputs], wanted, allow_unused=True)


def _seconds(layer: torch.nn.Module, leaves: Any) -> float:
    devices = {tensor.device.type for tensor in (*layer.parameters(), *_floating(leaves))} - {"cpu"}

    def now() -> float:
        for device in devices:
            getattr(torch, device).synchronize()
        return time.perf_counter()

    taken = []
    for _ in range(RUNS + 1):
        inputs = _mapped(leaves, torch.clone)  # a layer may not change leaves in place
        begin = now()
        _pass(layer, inputs, leaves)
        taken.append(now() - begin)
    return min(taken[1:])  # the first run may load what the others find loaded


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def _bytes(layer: torch.nn.Module, leaves: Any) -> float:
    args, kwargs = _mapped(leaves, torch.clone)
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


@contextmanager
def _buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Puts back what a pass changes of the buffers, replaces or makes, as batch norms and caches do."""
    kept = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, buffers in kept:
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value in values:
                if buffer.shape != value.shape:
                    buffer.resize_(value.shape)
                buffer.copy_(value)


def _check_stages(stages: int, layers: int) -> None:
    if type(stages) is not int or not 1 <= stages <= layers:
        raise _bad_argument(f"stages must be from 1 to the number of the model's layers, {layers}, not {stages!r}")


def partition(model: torch.nn.Module, sample: Any, *, stages: int, prefer: str = "speed") -> Partition:
    """Cuts a model into the stages of a pipeline, for torch.distributed.pipelining: of all cuts between layers, that
    whose slowest (or largest) stage is the least. Layers are the model's children, and those of its lists of layers.
    Each is run by itself, forward and backward, with what comes to it of the sample.

    model: a torch.nn.Sequential, or another module that pipeline() can trace; its parameters and buffers do not change.
    sample: a micro-batch as the model takes it, or a tuple of arguments.
    stages: their number.
    prefer: "speed" measures the time of each layer, "memory" counts bytes: parameters with their gradients and an
        optimizer with two moments, and what the backward pass keeps of a micro-batch.
    """
    if prefer not in ("speed", "memory"):
        raise _bad_argument(f'prefer must be "speed" or "memory", not {prefer!r}')
    _check_stages(stages, len(_layers(model)))
    measure = _seconds if prefer == "speed" else _bytes
    with _buffers_kept(model), torch.random.fork_rng(), torch.inference_mode(False), torch.enable_grad():
        inputs = _inputs(model, sample)
        _check_stages(stages, len(inputs))  # a layer may not have been called
        costs = [measure(model.get_submodule(name), leaves) for name, leaves in inputs.items()]
    names = list(inputs)
    begins = linear_partition(costs, stages)
    bounds = list(zip(begins, [*begins[1:], len(names)]))
    return Partition(
        stages=tuple(tuple(names[first:end]) for first, end in bounds),
        costs=tuple(sum(costs[first:end]) for first, end in bounds),
        _model=model,
    )
