"""Gradients in buckets, each averaged under a name of its own, so that this goes on while the backward pass computes others.

Averages under several names have no members in common: somebody may be let into one of them a step before it is let into
another. So buckets are for an *epoch*: the processes of one round of the job's own average (_torch_average.py), in which
none was new. Their buckets have the number of that round in their names, and want the contributions of all of them. After
each later round all of its processes know whether it still had just these, and all leave the epoch if not.

A bucket begins early, in the backward pass, when each of its parameters has got as many gradients as before the last step.
What a program does to them afterwards, or a backward pass more, is found when the step wants them. The process then says
so in the round, and all of them average these gradients once more, as they are by then.

If one of them dies between the round and the last of its buckets, nobody gets the mean of that bucket. The others then make
another round for the same step. One that gave up a bucket too early finds in that round that the others do not repeat
theirs, and takes their state over.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from . import _library
from ._shared import average_options
from ._torch_flat import Flat, local_part

if TYPE_CHECKING:
    from .torch import TorchRun

MOST_BUCKETS = 8
# A model that would not fill two such buckets has none, because each round costs time, too.
LEAST_NUMBERS = 1 << 18
# After the program has changed gradients of a bucket under way, no bucket begins early for this many steps.
CAREFUL_STEPS = 32


def split(sizes: Sequence[int]) -> List[List[int]]:
    """Indices of parameters for each bucket, in the order in which a backward pass computes their gradients, about. No
    buckets: too small a model."""
    least = max(LEAST_NUMBERS, -(-sum(sizes) // MOST_BUCKETS))
    buckets: List[List[int]] = [[]]
    numbers = 0  # elements in the last bucket
    for index in reversed(range(len(sizes))):
        if numbers >= least:
            buckets.append([])
            numbers = 0
        buckets[-1].append(index)
        numbers += sizes[index]
    return buckets if len(buckets) > 1 else []


class _Bucket:
    def __init__(self, number: int, indices: List[int], sizes: Sequence[int]):
        self.number = number
        self.indices = indices
        self.flat = Flat([sizes[index] for index in indices])
        self.options: Optional[_library.AverageOptions] = None  # set while it is averaged
        self.has_mean = False
        self.looks: List[Tuple[int, int, float]] = []  # what _look_at() gave for the gradients that it was filled with
        self.waits_for = 0  # how many gradients must still come before it may begin early


def _look_at(gradient: Optional[torch.Tensor]) -> Tuple[int, int, float]:
    """Another one if the gradient was changed, also through its `.data`."""
    if gradient is None:
        return (0, 0, 0.0)
    return (gradient.data_ptr(), gradient._version, float(gradient.sum()))


class Buckets:
    """Of one run, for the parameters of its optimizer. The processes of an epoch have the same ones. Call with
    torch.no_grad()."""

    def __init__(self, sizes: Sequence[int], buckets: List[List[int]]):
        """`sizes` of all gradients, and what split() makes of them."""
        self._buckets = [_Bucket(number, indices, sizes) for number, indices in enumerate(buckets)]
        self._place = {index: bucket for bucket in self._buckets for index in bucket.indices}
        self.epoch: Optional[Tuple[int, int]] = None  # a round, and the number of its contributions
        self._codec = "f32"
        self._fired = [0] * len(sizes)  # for each parameter, how often a gradient came since the last step
        self._expected = [0] * len(sizes)
        self._changed = False  # a gradient came after its bucket had begun
        self._careful = 0
        self._parameters: List[weakref.ref[torch.Tensor]] = []
        self._unhook: Callable[[], Any] = lambda: None

    def follow(self, run: TorchRun, parameters: List[torch.Tensor], codec: str) -> None:
        """Begins buckets early from the next backward pass on."""
        self._codec = codec
        if len(parameters) == len(self._parameters) and all(p is own() for p, own in zip(parameters, self._parameters)):
            return
        self._unhook()
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        itself, of = weakref.ref(self), weakref.ref(run)
        removals = []
        for index, parameter in enumerate(parameters):
            # Only parameters on the processor begin early: gradients of shards are reduced after these hooks, and a
            # device computes a gradient after its hook has run.
            if parameter.device.type != "cpu" or hasattr(parameter, "to_local"):
                continue

            def fired(index: int = index) -> None:
                buckets, run = itself(), of()
                if buckets is not None and run is not None and not run.closed:
                    with torch.no_grad():
                        buckets._got_gradient(run, index)

            removals.append(_after_gradient(parameter, fired))

        def remove_all() -> None:
            for remove in removals:
                remove()

        self._unhook = weakref.finalize(self, remove_all)
        self._unhook.atexit = False  # type: ignore[attr-defined]

    def _got_gradient(self, run: TorchRun, index: int) -> None:
        self._fired[index] += 1
        bucket = self._place[index]
        if bucket.options is not None:
            self._changed = True
        elif self._fired[index] <= self._expected[index]:
            bucket.waits_for -= 1
            if bucket.waits_for == 0 and self.epoch is not None and self._careful == 0:
                self._begin(run, bucket, early=True)

    def _gradient(self, index: int) -> Optional[torch.Tensor]:
        parameter = self._parameters[index]()
        return None if parameter is None or parameter.grad is None else local_part(parameter.grad)

    def _look(self, bucket: _Bucket) -> List[Tuple[int, int, float]]:
        return [_look_at(self._gradient(index)) for index in bucket.indices]

    def _begin(self, run: TorchRun, bucket: _Bucket, early: bool = False) -> None:
        assert self.epoch is not None
        bucket.looks = self._look(bucket) if early else []
        self._fill(bucket)
        bucket.options = average_options(
            self._name(bucket), self.epoch[1], codec=self._codec, exact=bucket.flat.HEAD
        )
        fill = functools.partial(self._fill, bucket)
        bucket.has_mean = run._begin_average(bucket.flat.pointer, bucket.flat.size, bucket.options, fill)

    def _name(self, bucket: _Bucket) -> str:
        assert self.epoch is not None
        return f"gradients.{self.epoch[0]}.{bucket.number}"

    def _fill(self, bucket: _Bucket) -> None:
        bucket.flat.put([self._gradient(index) for index in bucket.indices])
        bucket.flat.describe(is_new=False)

    def begin_rest(self, run: TorchRun) -> bool:
        """Before the round of a step: begins what has not begun yet. False: what was begun cannot be used, or some gradients
        are no finite numbers."""
        usable = self.epoch is not None and not self._changed
        for bucket in self._buckets:
            if self.epoch is not None and bucket.options is None:
                self._begin(run, bucket)
            elif usable:
                usable = bucket.looks == self._look(bucket)
        self._careful = CAREFUL_STEPS if self.epoch is not None and not usable else max(0, self._careful - 1)
        self._changed = False
        if any(self._fired):  # not if the round is made once more for the same step
            self._expected, self._fired = self._fired, [0] * len(self._fired)
        for bucket in self._buckets:
            bucket.waits_for = sum(self._expected[index] for index in bucket.indices)
        return usable and not any(bucket.flat.is_left_out for bucket in self._buckets)

    def finish(self, run: TorchRun, use: bool, waits: Callable[[_library.AverageInfo, float], None]) -> None:
        """Waits for the means of all buckets, which all processes of the epoch have begun, and puts them in the gradients'
        place if they are of `use`. Raises what run._average() raises; `waits` is as there."""
        for bucket in self._buckets:
            assert bucket.options is not None
            if not bucket.has_mean:
                fill = functools.partial(self._fill, bucket)
                run._average(bucket.flat.pointer, bucket.flat.size, bucket.options, waits=waits, fill=fill)
            bucket.options = None
            if use:
                bucket.flat.take_mean()
                bucket.flat.give([self._gradient(index) for index in bucket.indices])

    def leave(self, run: TorchRun) -> None:
        """The epoch is over."""
        if self.epoch is not None and not run.closed:
            for bucket in self._buckets:
                run._leave_average(self._name(bucket).encode())
        self.epoch = None
        for bucket in self._buckets:
            bucket.options = None

    def close(self, run: TorchRun) -> None:
        self.leave(run)
        self._unhook()
        self._parameters = []


def _after_gradient(parameter: torch.Tensor, fired: Callable[[], None]) -> Callable[[], None]:
    """Calls it each time after a backward pass has added to the parameter's gradient. Returns what ends that."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # PyTorch 2.1
        removal: Callable[[], None] = parameter.register_post_accumulate_grad_hook(lambda _: fired()).remove
        return removal
    with torch.enable_grad():
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    handle = node.register_hook(lambda *_: fired())
    kept = [node]  # keeps the node alive, because the parameter does not

    def remove() -> None:
        handle.remove()
        kept.clear()

    return remove
