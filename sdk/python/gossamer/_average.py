"""What run.average() takes and gives: numbers and arrays of any framework, alone or in lists and dicts."""

from __future__ import annotations

import copy
import ctypes
import numbers
import sys
import zlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

from . import _library
from ._library import GossamerError


@dataclass(frozen=True)
class Average:
    """A mean over processes."""

    values: Any  # as they were given: numbers, arrays or tensors, alone or in lists, tuples and dicts
    of: int  # contributions in the mean, this one included
    joined: bool  # the process became a member with this call: for the first time, or again after it was left out
    round: int  # the same at all processes that have this mean


def average_memory(shape: Union[int, Tuple[int, ...]]) -> Any:
    """A NumPy array of float32 zeros in memory that the daemon maps, too: run.average(values, in_place=True) then copies
    nothing. torch.from_numpy() makes a tensor of it. All averages under one name are then of this array. Processes that are
    forked share it. Raises MemoryError."""
    numpy = _numpy()
    lengths = (shape,) if isinstance(shape, int) else tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not all(isinstance(length, numbers.Integral) for length in lengths):
        raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"the shape is {shape!r}, not a whole number or a tuple of them")
    count = 1
    for length in lengths:
        count *= length
    if min(lengths, default=1) < 1:
        raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"there are no values to average in an array of the shape {lengths}")
    return numpy.frombuffer(_library.average_memory(count), numpy.float32).reshape(lengths)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise GossamerError("GOSSAMER_UNSUPPORTED", "run.average() needs NumPy") from None
    return numpy


def _is_torch(leaf: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


def _refused(leaf: Any, why: str = "") -> GossamerError:
    return GossamerError(
        "GOSSAMER_UNSUPPORTED",
        f"a {type(leaf).__name__} cannot be averaged{why}: give numbers, arrays or tensors, alone or in lists, tuples and "
        "dicts",
    )


def _to_array(leaf: Any) -> Any:
    """The values as a float32 array in host memory."""
    numpy = _numpy()
    if isinstance(leaf, numpy.ma.MaskedArray):
        raise _refused(leaf)
    try:
        if _is_torch(leaf):
            if leaf.is_complex():
                raise _refused(leaf, " if it is complex")
            leaf = leaf.detach().float().cpu().numpy()
        array = numpy.asarray(leaf)
    except GossamerError:
        raise
    except Exception as error:  # whatever the framework raises
        raise _refused(leaf, f" ({error})") from None
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise _refused(leaf, f" ({array.dtype})")
    return array.astype(numpy.float32, copy=False)


def _like(leaf: Any, array: Any) -> Any:
    """The mean in the form of what was given. Integers become floats."""
    if _is_torch(leaf):
        import torch

        dtype = leaf.dtype if leaf.dtype.is_floating_point else torch.float32
        return torch.from_numpy(array.copy()).to(device=leaf.device, dtype=dtype)
    if isinstance(leaf, (int, float)):
        return float(array)
    if type(leaf).__module__.split(".")[0] in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy.array(array)
    dtype = getattr(leaf, "dtype", None)
    return array.astype(dtype) if dtype is not None and getattr(dtype, "kind", "") == "f" else array.copy()


def _can_put(leaf: Any) -> bool:
    if _is_torch(leaf):
        overlaps = any(stride == 0 and length > 1 for stride, length in zip(leaf.stride(), leaf.shape))  # expand()
        return bool(leaf.dtype.is_floating_point) and not overlaps
    return isinstance(leaf, _numpy().ndarray) and leaf.dtype.kind == "f" and leaf.flags.writeable


def _put(leaf: Any, array: Any) -> Any:
    """The mean in the place of what was given."""
    if _is_torch(leaf):
        import torch

        with torch.no_grad():
            return leaf.copy_(torch.from_numpy(array))
    leaf[...] = array
    return leaf


def _items(values: Dict[Any, Any]) -> List[Tuple[Any, Any]]:
    """In an order that all processes have, however each has filled its dict."""
    return sorted(values.items(), key=lambda item: str(item[0]))


def _leaves(values: Any) -> List[Any]:
    if isinstance(values, dict):
        return [leaf for _, item in _items(values) for leaf in _leaves(item)]
    if isinstance(values, (list, tuple)):
        return [leaf for item in values for leaf in _leaves(item)]
    return [values]


def _described(values: Any, shapes: Iterator[Tuple[int, ...]]) -> Any:
    """Keys and shapes, the same at all processes that average the same."""
    if isinstance(values, dict):
        return [(str(key), _described(item, shapes)) for key, item in _items(values)]
    if isinstance(values, (list, tuple)):
        return [_described(item, shapes) for item in values]
    return next(shapes)


def _rebuilt(values: Any, taken: Callable[[Any], Any]) -> Any:
    if isinstance(values, dict):
        rebuilt = copy.copy(values)  # of the same type, such as OrderedDict
        for key, item in _items(values):
            rebuilt[key] = _rebuilt(item, taken)
        return rebuilt
    if isinstance(values, (list, tuple)):
        items = [_rebuilt(item, taken) for item in values]
        if hasattr(values, "_fields"):  # a named tuple
            return type(values)(*items)
        return items if isinstance(values, list) else tuple(items)
    return taken(values)


class Flat:
    """The values one after the other, as the C library takes them."""

    def __init__(self, values: Any, in_place: bool, memory: Callable[[int], Any]):
        """`memory(size)` is where they are put, unless they are in such memory already."""
        self._values = values
        self._in_place = in_place
        leaves = _leaves(values)
        arrays = [_to_array(leaf) for leaf in leaves]
        self._shapes: List[Tuple[int, ...]] = [array.shape for array in arrays]
        size = sum(array.size for array in arrays)
        if size == 0:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "there are no values to average")
        for leaf in leaves:
            if in_place and not _can_put(leaf):
                raise GossamerError(
                    "GOSSAMER_UNSUPPORTED",
                    f"a {type(leaf).__name__} that cannot be written, holds no floats, or uses memory twice cannot be averaged in "
                    "place: give NumPy arrays or PyTorch tensors of floats, or leave in_place out and take the result's values",
                )
        only = arrays[0] if len(arrays) == 1 and arrays[0].flags.c_contiguous else None
        self._stays = in_place and only is not None and _library.is_average_memory(only.ctypes.data)
        self._arrays = [array.reshape(-1) for array in arrays]
        self._flat = self._arrays[0] if self._stays else memory(size)
        if not self._stays:
            self._put_together()

    def _put_together(self) -> None:
        _numpy().concatenate(self._arrays, out=self._flat)

    @property
    def fill(self) -> Optional[Callable[[], None]]:
        """Puts the values there again. None: they are nowhere else."""
        return None if self._stays else self._put_together

    @property
    def layout(self) -> int:
        """A digest of keys and shapes; 0 for a number and for one array of one dimension."""
        if not isinstance(self._values, (dict, list, tuple)) and len(self._shapes[0]) <= 1:
            return 0
        return zlib.crc32(repr(_described(self._values, iter(self._shapes))).encode())

    @property
    def size(self) -> int:
        return int(self._flat.size)

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._flat.ctypes.data)

    def values(self) -> Any:
        """In the form in which they were given."""
        if self._stays:
            return self._values
        take = _put if self._in_place else _like
        place: Dict[str, int] = {"leaf": 0, "first": 0}

        def taken(leaf: Any) -> Any:
            shape = self._shapes[place["leaf"]]
            size = 1
            for length in shape:
                size *= length
            first = place["first"]
            place["leaf"] += 1
            place["first"] = first + size
            return take(leaf, self._flat[first : first + size].reshape(shape))

        return _rebuilt(self._values, taken)
