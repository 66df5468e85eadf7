"""The things besides its model that a run shares with the others: the cursor, the members, and the end. A part of
Run."""

from __future__ import annotations

import ctypes
import json
import numbers
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _library
from ._average import Average, Flat, average_memory
from ._library import GossamerError

MAX_CURSOR_BYTES = 4096
MAX_MEMBERS = 256
# The C library waits this long at a time, so that Ctrl-C is heard.
WAIT_SLICE_MS = 100
# Of several runs that finish together, each has so long at a time.
TURN_MS = 10
# A call with a shorter timeout may be polling, so it gives no warning when its time is up.
TOLD_AFTER_S = 5.0
# The time for a daemon that is being started or restarted.
AVERAGE_DAEMON_TIMEOUT_S = 10.0

Cursor = Union[Dict[str, Any], bytes, None]


@dataclass(frozen=True)
class Finish:
    """The end of a run. A model with NaN or infinity neither agrees nor saves, and its distance is infinite."""

    agreed: bool  # the `members` have finished and hold the same model within `distance`; nobody in reach trains
    saver: bool  # this process is the one to save the model
    members: int  # replicas that finished and are finite, as far as known here, and this one
    distance: float  # ‖y_j − y_i‖ / ‖y‖, the largest found by the last exchanges
    clock: int  # samples: how far the job is, as Run.global_clock
    experts: Dict[str, Finish] = field(default_factory=dict)  # of each expert that this process holds (PyTorch)


@dataclass(frozen=True)
class Logged:
    """A number that log() was given."""

    value: float  # the latest one here
    mean: float  # over the nodes below
    nodes: int  # known to have logged one of this name, with this node; 0: the daemon has not told yet


def slice_ms(end_s: float) -> int:
    """How long to wait next if all waiting ends at that monotonic time."""
    return int(max(0, min(WAIT_SLICE_MS, (end_s - time.monotonic()) * 1000)))


def finish_together(runs: Sequence[Shared], timeout_s: Optional[float]) -> List[Finish]:
    """Finishes all of them, taking turns, since each of them has to serve what others ask for."""
    begin_s = time.monotonic()
    limit_s = limit_of(timeout_s)
    ends: Dict[int, Finish] = {}
    while len(ends) < len(runs):
        for number, run in enumerate(runs):
            if number in ends:
                continue
            wait_ms = slice_ms(begin_s + limit_s)
            end = run._finish_for(wait_ms if len(ends) + 1 == len(runs) else min(wait_ms, TURN_MS), begin_s, limit_s)
            if end is not None:
                ends[number] = end
    return [ends[number] for number in range(len(runs))]


class Shared:
    """A subclass has _lib, _open_handle(), _report(status), _last_error() and _warn(message)."""

    _lib: _library.Calls

    def __init__(self) -> None:
        self._average_memory: Dict[str, Any] = {}
        self._averaging: Dict[str, object] = {}  # the call that is under way under each name
        self._logged: Dict[str, None] = {}  # names, in the order in which they were first logged

    def _open_handle(self) -> ctypes.c_void_p:
        raise NotImplementedError

    def _report(self, status: int) -> None:
        raise NotImplementedError

    def _last_error(self) -> str:
        raise NotImplementedError

    def _warn(self, message: str) -> None:
        raise NotImplementedError

    def _wait_on(self) -> None:
        """Called now and then while a call waits for others."""

    def _why_alone(self) -> str:
        """Why the others do not come."""
        return self._last_error()

    def _check(self, status: int) -> None:
        if status != _library.OK:
            self._report(status)

    @property
    def cursor(self) -> Cursor:
        """The program's place in its data: a dict, or bytes, of at most 4096 bytes (a dict as JSON). It travels with
        the model to nodes that join. After attach() it is the cursor of the replica that the model came from, until the
        program sets its own. None if there is none. What is returned is a copy: after changing it, assign it."""
        buffer = ctypes.create_string_buffer(MAX_CURSOR_BYTES)
        length = ctypes.c_size_t()
        self._check(self._lib.gossamer_get_cursor(self._open_handle(), buffer, len(buffer), ctypes.byref(length)))
        content = buffer.raw[: length.value]
        if not content:
            return None
        if content.startswith(b"{"):
            try:
                found = json.loads(content)
                if isinstance(found, dict):
                    return found
            except (ValueError, RecursionError):
                pass  # the bytes begin like JSON, but are not JSON
        return content

    @cursor.setter
    def cursor(self, value: Cursor) -> None:
        if value is None:
            content = b""
        elif isinstance(value, (bytes, bytearray, memoryview)):
            content = bytes(value)
        elif isinstance(value, dict):
            try:
                content = json.dumps(value, separators=(",", ":")).encode()
            except (TypeError, ValueError) as error:
                raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"the cursor cannot be written as JSON: {error}") from None
        else:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"the cursor is a {type(value).__name__}; use a dict or bytes")
        self._check(self._lib.gossamer_set_cursor(self._open_handle(), content, len(content)))

    def log(self, **values: float) -> None:
        """Tells numbers of the program's, such as log(loss=0.3, accuracy=0.91), of at most 8 names. The latest ones, and
        their means over the job's nodes, are in `logged`, in `gossamerctl jobs`, on the status page and in the metrics.
        Give numbers: float() of a tensor on a GPU waits for the GPU, so do it as seldom as you would print it."""
        for name, value in values.items():
            try:
                text, number = name.encode(), float(value)
            except (TypeError, ValueError, OverflowError) as error:  # also for names that do not fit UTF-8
                raise _bad(f"log() was given {name!r} = {value!r}: {error}") from None
            if b"\0" in text:
                raise _bad(f"log() was given the name {name!r}, with a zero in it")
            self._check(self._lib.gossamer_log(self._open_handle(), text, number))
            self._logged[name] = None

    @property
    def logged(self) -> Dict[str, Logged]:
        """The numbers that log() was given: `value` here, `mean` over `nodes` nodes that are known to have logged one of
        this name. nodes is 0 until the daemon has told, a fraction of a second later."""
        found = {}
        for name in self._logged:
            value, mean, nodes = ctypes.c_double(), ctypes.c_double(), ctypes.c_uint32()
            pointers = (ctypes.byref(value), ctypes.byref(mean), ctypes.byref(nodes))
            self._check(self._lib.gossamer_logged(self._open_handle(), name.encode(), *pointers))
            found[name] = Logged(value.value, mean.value, nodes.value)
        return found

    @property
    def members(self) -> List[str]:
        """The nodes in reach that run this job, with this one, as hexadecimal ids in ascending order. In a large
        cluster a node knows only some of the others."""
        ids = ((ctypes.c_uint8 * 16) * MAX_MEMBERS)()
        count = ctypes.c_size_t()
        self._check(self._lib.gossamer_members(self._open_handle(), ids, MAX_MEMBERS, ctypes.byref(count)))
        return [bytes(one).hex() for one in ids[: min(count.value, MAX_MEMBERS)]]

    def finish(self, timeout_s: Optional[float] = 60.0) -> Finish:
        """Call this when training is over. It averages as fast as the network allows until all replicas in reach have
        finished and agree, and returns with their mean in the tensors. It waits for replicas that still train, at most
        `timeout_s` (None: for ever). Save the model if the result says `saver`. Training may go on afterwards. Without
        a daemon it returns at once; but if one has gone away, ten seconds after that, as it might be restarted, and one that
        has not accepted the run yet has ten seconds from attach(). If the model holds NaN or infinity, or the daemon refuses
        the run, it warns and returns at once, and does not save: the others finish without it."""
        return finish_together([self], timeout_s)[0]

    def _finish_for(self, wait_ms: int, begin_s: float, limit_s: float) -> Optional[Finish]:
        """Finishes for so long. None: it has to go on."""
        found = _library.FinishInfo(size=ctypes.sizeof(_library.FinishInfo))
        status = self._lib.gossamer_finish(self._open_handle(), wait_ms, ctypes.byref(found))
        if status in (_library.NOT_FINITE, _library.REJECTED):
            self._warn(self._last_error())
        elif status != _library.TIMEOUT:
            self._check(status)
        waited_s = time.monotonic() - begin_s
        if status == _library.TIMEOUT and waited_s < limit_s:
            self._wait_on()
            return None
        if status == _library.TIMEOUT and waited_s >= TOLD_AFTER_S:
            self._warn(
                f"the run has not ended within {waited_s:.0f} s, so this model is this process's own: {self._why_alone()}"
            )
        return Finish(
            agreed=bool(found.agreed),
            saver=bool(found.saver),
            members=found.members,
            distance=found.distance,
            clock=found.clock_samples,
        )

    def average(
        self,
        values: Any,
        *,
        name: str = "average",
        at_least: int = 1,
        grace_s: float = 0.0,
        timeout_s: Optional[float] = None,
        codec: str = "f32",
        in_place: bool = False,
    ) -> Average:
        """The exact mean over all processes of the job that call this with the same name: the same bits everywhere. For
        metrics, gradients, models. It waits for the others, and has nothing to do with the exchange of the model, which
        goes on meanwhile.

        There is no world size. A process takes part from its first call until the run is closed, and all that take part
        have to call. One that dies is left out as soon as its node is known to be dead. Nobody rolls back. Under a name
        one thread at a time averages.

        values: a number, an array or tensor of any framework, or lists, tuples and dicts of these; averaged in float32.
            Processes that give other keys or shapes are not averaged with, and the TimeoutError says so.
        at_least: wait until so many processes take part, for instance all that were started. It holds for each call: no
            mean is made where fewer of them are left.
        grace_s: once more than half have contributed, wait at most this long for the others. What they contribute is in
            the next mean. 0: wait for all of them.
        codec: "q8" rounds what travels between nodes to 8 bits, with a scale for each 256 values, and adds what rounding has
            taken away to the next contribution: for gradients over slow links.
        timeout_s: raise TimeoutError after this, which says who is waited for, and take part no more until the next call.
        in_place: the mean takes the place of the values, which are NumPy arrays or PyTorch tensors of floats. If they are
            one array of gossamer.average_memory(), nothing is copied.
        """
        limit_s = limit_of(timeout_s)
        options = average_options(name, at_least, grace_s, codec)
        call = object()
        if self._averaging.setdefault(name, call) is not call:
            raise _bad(f"another thread averages under the name {name!r}: give each a name of its own, the same everywhere")
        try:
            flat = Flat(values, in_place, lambda size: self._average_memory_for(name, size))
            options.layout = flat.layout
            found = self._average(flat.pointer, flat.size, options, limit_s, fill=flat.fill)
            return Average(values=flat.values(), of=found.of, joined=bool(found.joined), round=found.round)
        finally:
            del self._averaging[name]

    def leave_average(self, name: str = "average") -> None:
        """This process averages no more under this name: the others do not wait for it, and what the daemon keeps for the
        name is given back. A contribution that is under way may still count."""
        self._leave_average(_name(name))

    def _average(
        self,
        pointer: ctypes.c_void_p,
        size: int,
        options: _library.AverageOptions,
        limit_s: float = float("inf"),
        waits: Callable[[_library.AverageInfo, float], None] = lambda found, waited_s: None,
        fill: Optional[Callable[[], None]] = None,
    ) -> _library.AverageInfo:
        """Averages the float32 values there, in place. Meanwhile `waits` is called, with what the call waits for and the
        seconds so far. If it raises an exception, the process takes part no more. `fill` puts the values there again, if a
        daemon has gone away that may have changed them."""
        found = _library.AverageInfo(size=ctypes.sizeof(_library.AverageInfo))
        begin = time.monotonic()
        try:
            while True:
                options.timeout_ms = slice_ms(begin + limit_s)
                status = self._lib.gossamer_average(
                    self._open_handle(), pointer, size, ctypes.byref(options), ctypes.byref(found)
                )
                if status == _library.OK:
                    return found
                waited_s = time.monotonic() - begin
                waits(found, waited_s)
                if status == _library.INTERRUPTED and fill is not None:
                    fill()
                    continue
                patience_s = AVERAGE_DAEMON_TIMEOUT_S if status == _library.NO_DAEMON else float("inf")
                if status in (_library.TIMEOUT, _library.NO_DAEMON) and waited_s < min(limit_s, patience_s):
                    continue
                if status == _library.TIMEOUT:
                    raise TimeoutError(self._last_error())
                self._check(status)
        except BaseException:  # also Ctrl-C: this contribution must not be taken for the values of the next call
            self._leave_average(options.name)
            raise

    def _begin_average(
        self, pointer: ctypes.c_void_p, size: int, options: _library.AverageOptions, fill: Callable[[], None]
    ) -> bool:
        """Contributes the values there, as far as it can without waiting. True: the mean is there already. False: _average()
        with the same arguments waits for it, and tells of errors. `fill`: as there."""
        options.timeout_ms = 0
        found = _library.AverageInfo(size=ctypes.sizeof(_library.AverageInfo))
        status = self._lib.gossamer_average(
            self._open_handle(), pointer, size, ctypes.byref(options), ctypes.byref(found)
        )
        if status == _library.INTERRUPTED:
            fill()
        return bool(status == _library.OK)

    def _average_memory_for(self, name: str, size: int) -> Any:
        """What is averaged under a name is as large each time."""
        if name not in self._average_memory or self._average_memory[name].size != size:
            self._average_memory[name] = average_memory(size)
        return self._average_memory[name]

    def _leave_average(self, name: bytes) -> None:
        self._average_memory.pop(name.decode(), None)
        self._lib.gossamer_average_leave(self._open_handle(), name)


def average_options(
    name: str, at_least: int = 1, grace_s: float = 0.0, codec: str = "f32", exact: int = 0
) -> _library.AverageOptions:
    """With the codec q8 the first `exact` values travel in float32 all the same."""
    if codec not in _library.AVERAGE_CODECS:
        raise _bad(f"codec is {codec!r}, none of {', '.join(_library.AVERAGE_CODECS)}")
    return _library.AverageOptions(
        size=ctypes.sizeof(_library.AverageOptions),
        name=_name(name),
        at_least=_positive(at_least, "at_least"),
        grace_ms=int(_seconds(grace_s, "grace_s") * 1000 + 0.999),
        codec=_library.AVERAGE_CODECS.index(codec),
        exact=exact,
    )


def _bad(message: str) -> GossamerError:
    return GossamerError("GOSSAMER_BAD_ARGUMENT", message)


def _name(name: str) -> bytes:
    if not isinstance(name, str) or "\0" in name:
        raise _bad(f"the name of an average is {name!r}, not 1 to 63 letters, digits, '.', '_' or '-'")
    return name.encode()


def _positive(number: int, name: str) -> int:
    if not isinstance(number, numbers.Integral) or not 1 <= number <= MAX_MEMBERS:
        raise _bad(f"{name} is {number!r}, not a number from 1 to {MAX_MEMBERS}")
    return int(number)


def _seconds(seconds: float, name: str) -> float:
    if not isinstance(seconds, numbers.Real) or not 0 <= seconds <= 1e6:
        raise _bad(f"{name} is {seconds!r}, not from 0 to 1,000,000 seconds")
    return float(seconds)


def limit_of(timeout_s: Optional[float]) -> float:
    """Seconds that may pass. None: as many as it takes."""
    if timeout_s is None or timeout_s == float("inf"):
        return float("inf")
    return _seconds(timeout_s, "timeout_s")
