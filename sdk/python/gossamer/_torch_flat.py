"""Tensors of a model as numbers in float32, one after the other, with what processes tell each other in front of them."""

from __future__ import annotations

import ctypes
import math
from typing import Iterable, List, Optional, Set

import torch

from . import _library, _torch_cuda

# The weight of what a new process contributes (_torch_average.py).
NEW_WEIGHT = 2.0**-40


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Of a distributed tensor (torch.distributed.tensor.DTensor), the shard in this process, in the same memory each
    time."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


class Flat:
    """Values of some tensors, in float32 in host memory, behind numbers about the process that has them."""

    # The weight, 1 if the process is new, the digest, its square, and 1 if the process's buckets cannot be used. To that 1,
    # a process that makes another round for the same step adds REPEATS.
    HEAD = 5
    REPEATS = 4096  # more than processes average with each other

    def __init__(self, sizes: List[int], often: bool = True):
        """`often`: it is averaged again and again, where the daemon maps it."""
        self.sizes = sizes
        count = self.HEAD + sum(sizes)
        self._all = torch.frombuffer(_library.average_memory(count), dtype=torch.float32) if often else torch.empty(count)
        self.values = self._all[self.HEAD :]
        self._often = often
        self.is_left_out = False  # because some of its values are not finite
        self._pinned: Optional[_torch_cuda.Pinned] = None
        self._under_way: List[torch.cuda.Event] = []

    def put(self, tensors: Iterable[Optional[torch.Tensor]]) -> None:
        gpus: Set[torch.device] = set()
        self._wait()
        for target, tensor in zip(self.values.split(self.sizes), tensors):
            if tensor is None:
                target.zero_()
            else:
                if tensor.is_cuda:
                    if not gpus and self._often:
                        self._pinned = self._pinned or _torch_cuda.Pinned(self._all, tensor.device)
                    gpus.add(tensor.device)
                target.copy_(tensor.reshape(-1), non_blocking=tensor.is_cuda)
        for gpu in gpus:
            torch.cuda.current_stream(gpu).synchronize()

    def give(self, tensors: Iterable[Optional[torch.Tensor]]) -> None:
        """What is on a GPU gets it later, on the current stream."""
        gpus: Set[torch.device] = set()
        for tensor, mean in zip(tensors, self.values.split(self.sizes)):
            if tensor is not None:
                tensor.copy_(mean.view(tensor.shape), non_blocking=tensor.is_cuda)
                if tensor.is_cuda:
                    gpus.add(tensor.device)
        self._under_way += [torch.cuda.current_stream(gpu).record_event() for gpu in gpus]

    def _wait(self) -> None:
        """Until nothing is read from here any more."""
        for event in self._under_way:
            event.synchronize()
        self._under_way.clear()

    def describe(self, is_new: bool, digest: int = 0, apart: bool = False, repeats: bool = False) -> None:
        weight = NEW_WEIGHT if is_new else 1.0
        # If a value is NaN or infinite, so is the sum. The sum may overflow to infinity without such a value.
        self.is_left_out = not math.isfinite(float(self.values.sum())) and not bool(torch.isfinite(self.values).all())
        if self.is_left_out:
            weight = 0.0
            self.values.zero_()
        elif is_new:
            self.values.mul_(weight)
        apart_and_repeats = float(apart + self.REPEATS * repeats)
        self._all[: self.HEAD] = torch.tensor([weight, float(is_new), float(digest), float(digest**2), apart_and_repeats])

    def take_mean(self) -> float:
        """Takes the mean weight out of the values. If it is 0 nobody had values, and these are NaN."""
        weight = float(self._all[0])
        if weight == 0:
            self.values.fill_(math.nan)
        elif weight != 1:
            self.values.div_(weight)
        return weight

    @property
    def some_are_new(self) -> bool:
        return float(self._all[1]) != 0

    @property
    def some_are_apart(self) -> bool:
        return float(self._all[4]) != 0

    def only_some_repeat(self, of: int) -> bool:
        """Whether, of the `of` processes that this is the mean of, some that are not new repeat, and others do not."""
        new, repeats = round(of * float(self._all[1])), round(of * float(self._all[4])) // self.REPEATS
        return 0 < repeats < of - new

    def all_have(self, digest: int) -> bool:
        """Equal digests have this mean, and no others. The numbers are small enough for float32."""
        return bool(self._all[2:4].tolist() == [digest, digest**2])

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._all.data_ptr())

    @property
    def size(self) -> int:
        return len(self._all)
