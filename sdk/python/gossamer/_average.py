"""What run.average() takes and gives: numbers and arrays of any framework, alone or in lists and dicts."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Tuple

from ._library import GossamerError


@dataclass(frozen=True)
class Average:
    """A mean over processes."""

    values: Any  # as they were given: numbers, arrays or tensors, alone or in lists, tuples and dicts
    of: int  # contributions in the mean, this one included
    joined: bool  # the process became a member with this call: for the first time, or again after it was left out
    round: int  # the same at all processes that have this mean


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise GossamerError("GOSSAMER_UNSUPPORTED", "run.average() needs NumPy") from None
    return numpy


def _is_of(leaf: Any, module: str) -> bool:
    return type(leaf).__module__.split(".")[0] in (module, module + "lib")


def _to_array(leaf: Any) -> Any:
    """The values as a float32 array in host memory."""
    numpy = _numpy()
    if _is_of(leaf, "torch"):
        leaf = leaf.detach().float().cpu().numpy()
    array = numpy.asarray(leaf)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise GossamerError("GOSSAMER_UNSUPPORTED", f"a {type(leaf).__name__} of {array.dtype} cannot be averaged")
    return array.astype(numpy.float32)


def _like(leaf: Any, array: Any) -> Any:
    """The mean in the form of what was given. Integers become floats."""
    if _is_of(leaf, "torch"):
        import torch

        dtype = leaf.dtype if leaf.dtype.is_floating_point else torch.float32
        return torch.from_numpy(array.copy()).to(device=leaf.device, dtype=dtype)
    if isinstance(leaf, (int, float)):
        return float(array)
    if _is_of(leaf, "jax"):
        return sys.modules["jax"].numpy.asarray(array)
    dtype = getattr(leaf, "dtype", None)
    return array.astype(dtype) if dtype is not None and getattr(dtype, "kind", "") == "f" else array.copy()


def _leaves(values: Any) -> List[Any]:
    if isinstance(values, dict):
        return [leaf for key in values for leaf in _leaves(values[key])]
    if isinstance(values, (list, tuple)):
        return [leaf for item in values for leaf in _leaves(item)]
    return [values]


def _rebuilt(values: Any, taken: Callable[[Any], Any]) -> Any:
    if isinstance(values, dict):
        return {key: _rebuilt(item, taken) for key, item in values.items()}
    if isinstance(values, (list, tuple)):
        items = [_rebuilt(item, taken) for item in values]
        return items if isinstance(values, list) else tuple(items)
    return taken(values)


class Flat:
    """The values one after the other, as the C library takes them."""

    def __init__(self, values: Any):
        self._values = values
        arrays = [_to_array(leaf) for leaf in _leaves(values)]
        self._shapes: List[Tuple[int, ...]] = [array.shape for array in arrays]
        if sum(array.size for array in arrays) == 0:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "there are no values to average")
        self._flat = _numpy().concatenate([array.reshape(-1) for array in arrays])

    @property
    def size(self) -> int:
        return int(self._flat.size)

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._flat.ctypes.data)

    def values(self) -> Any:
        """In the form in which they were given."""
        place: Dict[str, int] = {"leaf": 0, "first": 0}

        def taken(leaf: Any) -> Any:
            shape = self._shapes[place["leaf"]]
            size = 1
            for length in shape:
                size *= length
            first = place["first"]
            place["leaf"] += 1
            place["first"] = first + size
            return _like(leaf, self._flat[first : first + size].reshape(shape))

        return _rebuilt(self._values, taken)
