"""The means of DistributedDataParallel's buckets. Each begins in DDP's hook, and goes on while the backward pass computes
other buckets. The hook of the last bucket waits for all of them, since by then nothing is left to compute. No thread is
needed: the daemons do the work, and Ctrl-C and errors come out of backward().

DDP's buckets are those of one process: it makes others after its first step, so a newcomer has other ones than the rest.
And averages under several names have no members in common. So buckets begin early in an *epoch* only (as in
_torch_buckets.py): its processes have agreed in a *round* on who they are, and on how DDP has cut the gradients. Where
they are cut differently, the epoch has all gradients in one average, in the order of the model's parameters.

A round is an average of a few numbers under the module's own name. One follows when a process has all means of an epoch, or
knows that they do not come, because somebody has died or is new. Each process says in it which epoch has given it the
means. If all say the same, all use these means. If not, a new epoch of all processes of the round averages the gradients
once more, and a round follows again. So nobody uses a mean that another process lacks.

A small model has no epochs: the round has its gradients.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from . import _library, _torch_buckets
from ._library import GossamerError
from ._shared import average_options
from ._torch_average import STUCK_AFTER_S
from ._torch_flat import Flat

if TYPE_CHECKING:
    from ._run import RunInfo
    from .torch import TorchRun

# The program is told that a backward pass waits for others.
TELL_AFTER_S = 30.0
# How long a mean of an epoch is waited for, by what for. To give it up loses a second and no more, because a round and
# another epoch follow. Who is late may be slow; but if all voters of a new average die, nobody says any more who is late.
EPOCH_PATIENCE_S = {
    **STUCK_AFTER_S,
    _library.WAIT_MEMBERS: 5.0,
    _library.WAIT_CONTRIBUTIONS: 5.0,
    _library.WAIT_LATE: 60.0,
}
# Backward passes are counted modulo this, so that the sum over all processes is exact in float32.
PASSES = 4096
# A number that all must have is averaged as so many bits: their means are 0 or 1 if all have the same, and only then.
BITS = 32
# In a round each process gives these numbers: whether it is new, how many backward passes it has made, the digest of its
# buckets' form, and the number of the epoch that has given it the means.
FORM = slice(2, 2 + BITS)
ATTEMPT = slice(2 + BITS, 2 + 2 * BITS)
HEAD = 2 + 2 * BITS


class _Again(Exception):
    """The round has to begin anew."""


class _Bucket(NamedTuple):
    """One of DDP's."""

    places: Tuple[int, ...]  # of its parameters in the model
    parameters: List[torch.Tensor]
    buffer: torch.Tensor  # their gradients, one after the other
    future: "torch.futures.Future[torch.Tensor]"

    @property
    def sizes(self) -> List[int]:
        return [parameter.numel() for parameter in self.parameters]


class _Chunk:
    """Gradients that are averaged under one name."""

    def __init__(self, name: str, sizes: List[int], pieces: Callable[[List[_Bucket]], List[torch.Tensor]]):
        """`pieces` gives the gradients, of these sizes."""
        self.name = name
        self.pieces = pieces
        self.flat = Flat(sizes)
        self.options: Optional[_library.AverageOptions] = None  # set while it is averaged
        self.has_mean = False

    def fill(self, buckets: List[_Bucket]) -> None:
        self.flat.put(self.pieces(buckets))


class _Epoch:
    def __init__(self, name: str, found: _library.AverageInfo, buckets: List[_Bucket], codec: str, alike: bool):
        """For the processes of the round `found`. `alike`: their buckets have the same form."""
        self.number: int = found.round
        self.of: int = found.of
        self.codec = codec if alike else "f32"
        self.form = _form(buckets, codec) if alike else None
        self.places = [bucket.places for bucket in buckets] if alike else []
        self.was_averaged = False
        # By the number of buckets after which a chunk may begin.
        self.chunks: Dict[int, _Chunk] = {}
        if not alike:
            self.chunks[len(buckets)] = _Chunk(f"{name}.{found.round}", _sizes_in_order(buckets), _in_order)
            return
        # A daemon has only so many averages, so several small buckets are one chunk.
        sizes = [sum(bucket.sizes) for bucket in buckets]
        for indices in _torch_buckets.split(sizes[::-1]) or [list(reversed(range(len(sizes))))]:
            first, last = len(sizes) - 1 - indices[0], len(sizes) - 1 - indices[-1]
            self.chunks[last + 1] = _Chunk(
                f"{name}.{found.round}.{first}", sizes[first : last + 1], functools.partial(_buffers, slice(first, last + 1))
            )

    def begin_early(self, run: TorchRun, buckets: List[_Bucket]) -> None:
        """What can begin with the last of these. Never waits."""
        if len(buckets) in self.chunks:
            self._begin(run, self.chunks[len(buckets)], buckets)

    def _begin(self, run: TorchRun, chunk: _Chunk, buckets: List[_Bucket]) -> None:
        chunk.fill(buckets)
        chunk.options = average_options(chunk.name, self.of, codec=self.codec, exact=Flat.HEAD)
        fill = functools.partial(chunk.fill, buckets)
        chunk.has_mean = run._begin_average(chunk.flat.pointer, chunk.flat.size, chunk.options, fill)

    def finish(self, run: TorchRun, buckets: List[_Bucket], waits: "_Waits") -> bool:
        """Begins what has not begun, and waits for all. False: somebody has died, or has gone on without the epoch."""
        for chunk in self.chunks.values():
            if chunk.options is None:
                self._begin(run, chunk, buckets)
        # At first, the members of each name still come.
        limits = {**EPOCH_PATIENCE_S, _library.WAIT_MEMBERS: 0.0} if self.was_averaged else EPOCH_PATIENCE_S
        for chunk in self.chunks.values():
            assert chunk.options is not None
            if not chunk.has_mean:
                fill = functools.partial(chunk.fill, buckets)
                try:
                    run._average(chunk.flat.pointer, chunk.flat.size, chunk.options, waits=waits.until(limits), fill=fill)
                except TimeoutError:
                    return False
            chunk.options = None
        self.was_averaged = True
        return True

    def give(self, buckets: List[_Bucket]) -> None:
        for chunk in self.chunks.values():
            chunk.flat.give(chunk.pieces(buckets))

    def leave(self, run: TorchRun) -> None:
        for chunk in self.chunks.values():
            run._leave_average(chunk.name.encode())


class _Waits:
    """For calls that wait: they end if the job's settings have changed, and the program is told of a long wait."""

    def __init__(self, run: TorchRun, check: Callable[[RunInfo], None]):
        self._run = run
        self._check = check
        self._told = False

    def until(self, limits: Dict[int, float]) -> Callable[[_library.AverageInfo, float], None]:
        """Raises TimeoutError if the others do not come. `limits`: in seconds, by what the call waits for."""

        def waits(found: _library.AverageInfo, waited_s: float) -> None:
            why = self._run._last_error()
            self._check(self._run.info())
            if waited_s > limits.get(found.waits_for, float("inf")):
                raise TimeoutError(why)
            if waited_s > TELL_AFTER_S:
                self.tell(f"a backward pass waits for other processes: {why}")

        return waits

    def tell(self, message: str) -> None:
        """Once."""
        if not self._told:
            self._told = True
            self._run._warn(f"job '{self._run._job}': {message}")


class _Module:
    """A module of DDP, by its parameters' places in the model."""

    def __init__(self, places: List[int], parameters: List[torch.Tensor]):
        """In the order of the model."""
        self._name = f"ddp.{zlib.crc32(repr(places).encode())}"
        # Gradients have their parameters' strides, and are averaged as they are in memory.
        self._layout = zlib.crc32(repr([(tuple(p.shape), p.stride()) for p in parameters]).encode())
        sizes = [parameter.numel() for parameter in parameters]
        self._is_small = sum(sizes) < 2 * _torch_buckets.LEAST_NUMBERS
        self._flat = Flat([HEAD, *(sizes if self._is_small else [])])
        self._is_new = True  # has taken part in no round
        self._passes = 0  # modulo PASSES; the same at all processes
        self.epoch: Optional[_Epoch] = None

    def average(
        self, run: TorchRun, buckets: List[_Bucket], begun: Optional[_Epoch], check: Callable[[RunInfo], None]
    ) -> None:
        """Puts the means in the buckets, which have begun in the epoch `begun`."""
        codec = run.info().average_codec
        waits = _Waits(run, check)
        if self._is_small:
            self._round(run, buckets, codec, None, waits)
            self._flat.give([None, *_in_order(buckets)])
        else:
            if self.epoch is not None and self.epoch.form is not None:
                if self.epoch is not begun or self.epoch.form != _form(buckets, codec):
                    self.leave_epoch(run)
            self._average_in_epoch(run, buckets, codec, waits)
        self._passes = (self._passes + 1) % PASSES

    def _average_in_epoch(self, run: TorchRun, buckets: List[_Bucket], codec: str, waits: _Waits) -> None:
        while True:
            attempt = self.epoch
            if attempt is not None and not attempt.finish(run, buckets, waits):
                attempt = None
                self.leave_epoch(run)  # before the round: others in the epoch wait for this process
            found = self._round(run, buckets, codec, attempt, waits)
            agreed = self._all_have(ATTEMPT) and (attempt is not None or found.of == 1)
            alike = self._all_have(FORM)
            if agreed and attempt is not None:
                attempt.give(buckets)
            stays = agreed and attempt is not None and attempt.of == found.of and (attempt.form is not None or not alike)
            if not stays:
                self.leave_epoch(run)
                if found.of > 1:
                    self.epoch = _Epoch(self._name, found, buckets, codec, alike)
            if agreed:
                return

    def leave_epoch(self, run: TorchRun) -> None:
        if self.epoch is not None:
            self.epoch.leave(run)
            self.epoch = None

    def leave(self, run: TorchRun) -> None:
        """The others do not wait for this process."""
        self.leave_epoch(run)
        run._leave_average(self._name.encode())

    def _round(
        self, run: TorchRun, buckets: List[_Bucket], codec: str, attempt: Optional[_Epoch], waits: _Waits
    ) -> _library.AverageInfo:
        form = _form(buckets, codec)
        head = [float(self._is_new), float(self._passes)] + _bits(form) + _bits(0 if attempt is None else attempt.number + 1)

        def fill() -> None:
            self._flat.put([torch.tensor(head), *(_in_order(buckets) if self._is_small else [])])

        while True:
            try:
                found = self._wait_for_round(run, fill, waits)
                break
            except _Again:
                pass
            except TimeoutError as stuck:
                waits.tell(f"the processes that are left begin anew: {stuck}")
        self._compare_passes(run, found)
        return found

    def _wait_for_round(self, run: TorchRun, fill: Callable[[], None], waits: _Waits) -> _library.AverageInfo:
        members = run.info().average_members
        until_stuck = waits.until(STUCK_AFTER_S)

        def until_changed(found: _library.AverageInfo, waited_s: float) -> None:
            until_stuck(found, waited_s)
            # While members are missing there is no plan that has this contribution, and it may be taken back.
            info = run.info()
            if found.waits_for == _library.WAIT_MEMBERS and info.attached and info.average_members != members:
                raise _Again

        fill()
        # In float32 always: processes that learn of another codec one after the other would not meet.
        options = average_options(self._name, max(1, members))
        options.layout = self._layout
        return run._average(self._flat.pointer, self._flat.size, options, waits=until_changed, fill=fill)

    def _compare_passes(self, run: TorchRun, found: _library.AverageInfo) -> None:
        """A process that was left out may have missed backward passes of the others."""
        new, passes = self._flat.values[:2].tolist()
        others = found.of - round(new * found.of)  # that are not new
        common = round(passes * found.of / others) if others else 0
        if self._is_new:
            self._is_new, self._passes = False, common
        elif found.joined and common != self._passes:
            self._is_new, self._passes = True, 0
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"job '{run._job}': this process was left out, for instance because its machine or its daemon stood still, and "
                "the others have made steps without it, so its model is another one: take over model and optimizer from "
                "another process, or begin anew",
            )

    def _all_have(self, bits: slice) -> bool:
        """The same number, in the last round."""
        means: List[float] = self._flat.values[bits].tolist()
        return all(mean in (0.0, 1.0) for mean in means)


class DdpAverages:
    """What a run averages for DDP. The run owns this, so each method is given it."""

    def __init__(self) -> None:
        self._modules: Dict[Tuple[int, ...], _Module] = {}
        self._order: Dict[int, int] = {}  # the places of parameters in the model, by their ids
        self._buckets: List[_Bucket] = []  # of the backward pass that is under way
        self._epoch: Optional[_Epoch] = None  # in which these have begun
        self._error: Optional[BaseException] = None  # what backward() is to raise
        self._was_average = False  # the job's method

    def average(self, run: TorchRun, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
        """DDP's hook. An error ends the backward pass, but not before DDP has got all its futures, because it is of no use
        without them. Then the gradients are this process's own."""
        if bucket.index() == 0:
            self._begin_pass(run)
        future = self._add(bucket.buffer(), bucket.parameters())
        try:
            if self._error is None:
                self._begin(run, bucket.index())
                if bucket.is_last():
                    self._finish(run)
        except BaseException as error:  # also Ctrl-C
            self._error = error
            self.leave(run)
        if bucket.is_last():
            buckets, self._buckets = self._buckets, []
            for one in buckets:
                one.future.set_result(one.buffer)
            if self._error is not None:
                _raise_from_backward(self._error)
                self._error = None
        return future

    def leave(self, run: TorchRun) -> None:
        """The process takes part no more, until the next backward pass."""
        self._epoch = None
        if not run.closed:
            for module in self._modules.values():
                module.leave(run)

    def _begin_pass(self, run: TorchRun) -> None:
        if self._buckets:  # the last one has failed, or that of another module goes on
            for bucket in self._buckets:
                bucket.future.set_exception(_two_at_once())
            self.leave(run)
            self._buckets = []
        self._error = None
        self._epoch = None
        self._order = {}
        for index, place in enumerate(run._places):
            for one in (place, place.copy):
                if one is not None:
                    self._order[id(one.holder.get(one.key))] = index

    def _add(self, buffer: torch.Tensor, parameters: List[torch.Tensor]) -> "torch.futures.Future[torch.Tensor]":
        # The future of a GPU's tensor makes the stream of whoever waits for it wait for the copies to the GPU.
        devices = [buffer.device] if buffer.is_cuda else None
        future: "torch.futures.Future[torch.Tensor]" = torch.futures.Future(devices=devices)
        places = tuple(self._order.get(id(parameter), -1) for parameter in parameters)
        self._buckets.append(_Bucket(places, parameters, buffer, future))
        return future

    def _begin(self, run: TorchRun, index: int) -> None:
        """What can begin with the last bucket."""
        bucket = self._buckets[-1]
        if index != len(self._buckets) - 1:
            raise _two_at_once()
        if -1 in bucket.places:
            raise GossamerError(
                "GOSSAMER_BAD_ARGUMENT",
                f"DistributedDataParallel trains parameters that are not those attached to the job '{run._job}': attach the model "
                "that it wraps, and register the hook with that run",
            )
        if bucket.buffer.layout != torch.strided:
            raise GossamerError("GOSSAMER_UNSUPPORTED", "sparse gradients cannot be averaged: make layers with sparse=False")
        if bucket.buffer.is_complex():
            raise GossamerError("GOSSAMER_UNSUPPORTED", "complex gradients cannot be averaged")
        if index == 0:
            epochs = [module.epoch for module in self._modules.values() if module.epoch is not None]
            self._epoch = next((epoch for epoch in epochs if epoch.places[:1] == [bucket.places]), None)
        if self._epoch is not None and self._epoch.places[index : index + 1] == [bucket.places]:
            self._epoch.begin_early(run, self._buckets)
        else:
            self._epoch = None

    def _finish(self, run: TorchRun) -> None:
        """All buckets are here."""
        self._check(run, run.info())
        parameters = sorted(
            (pair for bucket in self._buckets for pair in zip(bucket.places, bucket.parameters)), key=lambda pair: pair[0]
        )
        places = tuple(place for place, _ in parameters)
        if places not in self._modules:
            self._modules[places] = _Module(list(places), [parameter for _, parameter in parameters])
        module = self._modules[places]
        module.average(run, self._buckets, self._epoch, functools.partial(self._check, run))

    def _check(self, run: TorchRun, info: RunInfo) -> None:
        if info.method == "average":
            self._was_average = True
        elif info.attached and self._was_average:
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"the job '{run._job}' has the method {info.method} now, and DistributedDataParallel's hook averages exactly: set "
                "method=average again, or train without the hook",
            )


def _in_order(buckets: List[_Bucket]) -> List[torch.Tensor]:
    """The gradients in the order of the model's parameters, as they are in the buckets' memory."""
    pieces: List[Tuple[int, torch.Tensor]] = []
    for bucket in buckets:
        pieces += zip(bucket.places, bucket.buffer.split(bucket.sizes))
    return [piece for _, piece in sorted(pieces, key=lambda one: one[0])]


def _sizes_in_order(buckets: List[_Bucket]) -> List[int]:
    return [piece.numel() for piece in _in_order(buckets)]


def _buffers(some: slice, buckets: List[_Bucket]) -> List[torch.Tensor]:
    return [bucket.buffer for bucket in buckets[some]]


def _form(buckets: List[_Bucket], codec: str) -> int:
    """A digest of what the processes of an epoch must have in common."""
    return zlib.crc32(repr((codec, [bucket.places for bucket in buckets])).encode())


def _bits(number: int) -> List[float]:
    return [float(number >> bit & 1) for bit in range(BITS)]


def _two_at_once() -> GossamerError:
    return GossamerError(
        "GOSSAMER_UNSUPPORTED",
        "two modules of DistributedDataParallel share a run in one backward pass: make one of them, or attach each to a job of "
        "its own",
    )


def _raise_from_backward(error: BaseException) -> None:
    """As the last thing that backward() does. DDP calls something at its end, too, and is of no use if that is not called:
    so a callback that is called before adds one that comes after. Before 2, PyTorch makes a RuntimeError of what a hook
    raises itself."""
    engine = torch.autograd.Variable._execution_engine

    def raises() -> None:
        raise error

    engine.queue_callback(lambda: engine.queue_callback(raises))
