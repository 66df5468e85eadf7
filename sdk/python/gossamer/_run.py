"""A run: one model attached to the daemon of this machine. gossamer.attach() and gossamer.torch.attach() return it.

One thread at a time may use a run. It holds references to the tensors' memory until it is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import gc
import math
import numbers
import operator
import os
import reprlib
import stat
import sys
import threading
import time
import types
import warnings
import weakref
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from . import _library
from ._drift import MARK, DriftCorrection, averages_models
from ._events import LOOK_INTERVAL_S, Event, EventKind, events_between
from ._library import GossamerError, GossamerWarning
from ._options import AttachOptions, check_options
from ._progress import Progress
from ._shared import Finish, Shared, limit_of, slice_ms

# A daemon on the same machine answers in milliseconds; one that is being started takes a little longer.
DAEMON_TIMEOUT_S = 5.0
# A program is warned when it has been alone for this long.
ALONE_S = 60.0
# The C library takes at most this many samples or bytes.
MAX_COUNT = 2**62
# A Unix socket's address has room for this many bytes (socket_path.hpp).
MAX_SOCKET_PATH_BYTES = 107
# No clock is larger, in samples (gossamer.h).
MAX_CLOCK = 2**53
# The daemon's message has one of these, followed by the reason, if it refuses the settings given to attach().
REFUSED_SETTINGS = (": the settings given to the job: ", ": settings: ")


class State(enum.Enum):
    """The daemon's work for a run."""

    DETACHED = 0  # no daemon: training alone
    JOINING = 1  # the model is being agreed on, or pulled from other nodes
    RUNNING = 2  # exchanging
    DRAINING = 3  # the daemon is stopping
    QUARANTINED = 4  # the model holds NaN or infinity, and is not exchanged until it does not


@dataclass(frozen=True)
class RunInfo:
    """The state of a run. Clocks are in samples."""

    state: State
    attached: bool
    clock: int  # see Run.clock
    global_clock: int
    steps: int
    exchanges: int
    publications: int
    neighbours: int
    fragments_pulled: int
    fragments: int
    fragment_elements: int
    elements: int
    layout_hash: int
    attachments: int
    node_id: str  # the daemon's, in hexadecimal; "" before the first attachment
    # Why no daemon has the run. While attached: what keeps it apart from other nodes that could take part ("": nothing
    # that is known), or with the path "pinned" why the GPU's own memory does not serve.
    message: str
    # This node's daemon counts these from when it accepted the run.
    bytes_sent: int  # payload of the job's exchanges
    bytes_received: int
    consensus: float  # |y_j - y_i| / |y|, 2-norms, in the latest exchanges: how far the replicas are apart
    age_samples: int  # samples trained since the oldest fragment was published
    unresolved: int  # exchanges whose outcome at the other end cannot be known any more
    quarantines: int  # times a fragment was found to hold NaN or infinity
    period_us: int  # time between two exchanges of a fragment that this node begins
    pulled_bytes: int  # bytes of the model that were pulled from other nodes
    serving_ns: int  # total time that steps have spent on due fragments
    client_index: int  # index of this client among those that train the job at this node, as they attached
    clients: int  # number of clients that train the job at this node
    window_bytes: int  # 0: its memory is resident. Otherwise it is lean, and fragments take this much at most
    # The memory through which the run exchanges with the daemon: "host"; for a model on a GPU "device", which is that
    # GPU's memory, or "pinned", which is host memory that the GPU reads and writes.
    path: str
    trained: int  # samples that step() has counted in this run
    # What the job's settings ask of the program: "gossip", "server", or "average" for exact means.
    method: str
    average_steps: int  # with "average". 1: gradients before each step; more: models after so many steps
    average_members: int  # with "average": so many processes at least take part in a mean
    average_codec: str  # with "average", of gradients: "f32", or "q8" for 8 bits
    outer_momentum: float  # for outer steps after exact means of models; 0: none
    corrections: int  # fragments with which the exchange has changed the tensors' values
    parts: int  # processes that hold the replica together; 1: this one holds it all
    part: int  # index of this process among them

    @property
    def ready(self) -> bool:
        """Whether the run takes part in the training."""
        return self.state in (State.RUNNING, State.QUARANTINED)


@dataclass(frozen=True)
class RunStats:
    """The figures that a training script logs. Clocks are in samples; bytes are the payload that this node has
    exchanged for the job since its daemon accepted the run."""

    state: State
    steps: int
    clock: int
    global_clock: int
    age_samples: int  # samples trained since the oldest fragment was published
    neighbours: int  # replicas of the job in reach; 0 while detached
    exchanges: int
    unresolved: int  # exchanges whose outcome at the other end cannot be known any more
    quarantines: int  # times a fragment was found to hold NaN or infinity
    bytes_sent: int
    bytes_received: int
    consensus: float  # |y_j - y_i| / |y|, 2-norms, in the latest exchanges: how far the replicas are apart
    period_s: float  # time between two exchanges of a fragment that this node begins
    step_share: float  # share of the time since attach() returned that step() has spent on due fragments


@dataclass
class TensorSpec:
    """One tensor as the C library wants it. `owner` keeps the memory at `pointer` alive."""

    name: str
    dtype: int
    role: str
    shape: Sequence[int]
    pointer: int
    owner: Any
    # If this process holds only a slice: the shape of the whole tensor, and where the slice begins in it.
    whole: Optional[Tuple[Sequence[int], Sequence[int]]] = None


def _bad_argument(message: str) -> GossamerError:
    return GossamerError("GOSSAMER_BAD_ARGUMENT", message)


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise _bad_argument(f"{what} must be a string, not {value!r}")


def _check_on_event(callback: Any) -> None:
    if callback is not None and not callable(callback):
        raise _bad_argument(f"on_event must be something that can be called with an Event, not {callback!r}")


def _count(value: Any, what: str, limit: int = MAX_COUNT) -> int:
    """Checks that `value` is a whole number within the C library's type, which would take any other for a different
    one."""
    try:
        count = operator.index(value)
    except TypeError:
        raise _bad_argument(f"{what} must be a whole number, not {reprlib.repr(value)}") from None
    if not 0 <= count <= limit:
        raise _bad_argument(f"{what} must be from 0 to {limit}, not {count}")
    return count


def check_samples_per_step(value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if not 1 <= count <= MAX_COUNT:
        raise _bad_argument(
            f"samples_per_step must be a whole number from 1, not {value!r}: give the batch size, times the batches whose "
            "gradients are accumulated"
        )
    return count


def _settings_text(settings: Any) -> bytes:
    """NAME=VALUE each, as gossamer_options wants them."""
    if not isinstance(settings, Mapping):
        raise _bad_argument(f"settings must be a mapping of names to values, not {settings!r}")
    words = []
    for name, value in settings.items():
        _check_text(name, "the name of a setting")
        if isinstance(value, bool) or not isinstance(value, (str, numbers.Real)):
            raise _bad_argument(f"setting {name} must be a string or a number, not {value!r}")
        text = str.__str__(value) if isinstance(value, str) else str(value)
        word = f"{name}={text}"
        if not name or "=" in name or not text or word.split() != [word] or not word.isprintable():
            raise _bad_argument(f"setting {name!r} and its value {text!r} must be plain text without white space")
        words.append(word)
    return " ".join(words).encode()


def _socket_path(options: AttachOptions) -> bytes:
    """The path that the program or its environment names; empty: the daemon is looked for in its usual places."""
    socket = options.get("socket")
    if not isinstance(socket, (str, bytes, os.PathLike, type(None))):
        raise _bad_argument(f"socket must be a path, not {socket!r}")
    return os.fsencode(os.environ.get("GOSSAMER_SOCKET", "") if socket is None else socket)


def _check_socket(path: bytes) -> None:
    """Refuses a path where no daemon can come to be."""
    if len(path) > MAX_SOCKET_PATH_BYTES:
        raise _bad_argument(
            f"the path of the socket has {len(path)} bytes, and may have {MAX_SOCKET_PATH_BYTES}: use a shorter one, for instance "
            f"through a symbolic link to its folder ({os.fsdecode(path)})"
        )
    try:
        mode = os.stat(path).st_mode
    except OSError:  # there may be a daemon later
        return
    if not stat.S_ISSOCK(mode):
        what = "folder" if stat.S_ISDIR(mode) else "file"
        raise _bad_argument(f"{os.fsdecode(path)} is a {what}, and not gossamerd's socket: give the path of its client.sock")


def _c_options(options: AttachOptions) -> _library.Options:
    check_options(options)
    _check_text(options["job"], "job")
    socket = _socket_path(options)
    _check_socket(socket)
    _check_on_event(options.get("on_event"))
    memory = options.get("memory", "auto")
    if memory not in list(_library.MEMORIES):
        raise _bad_argument(f"memory must be one of {', '.join(_library.MEMORIES)}, not {memory!r}")
    result = _library.Options()
    _library.library().gossamer_options_init(ctypes.byref(result))
    result.job = options["job"].encode()
    result.socket_path = socket or None
    result.fragment_elements = _count(options.get("fragment_elements", 0), "fragment_elements", 2**32 - 1)
    result.step_budget_bytes = _count(options.get("step_budget_bytes", 0), "step_budget_bytes")
    result.initial_clock_samples = _count(options.get("initial_clock", 0), "initial_clock", MAX_CLOCK)
    result.memory = _library.MEMORIES[memory]
    result.settings = _settings_text(options.get("settings") or {})
    part, replica = options.get("part"), options.get("replica")
    if part is not None:
        try:
            index, parts = part
        except (TypeError, ValueError):
            raise _bad_argument(f"part must be the index of this process and the number of parts, not {part!r}") from None
        result.part, result.parts = _count(index, "part", 2**32 - 1), _count(parts, "parts", 2**32 - 1)
    if replica is not None:
        _check_text(replica, "replica")
        result.replica = replica.encode()
    if (part is None) != (replica is None):
        raise _bad_argument("part and replica go together: part=(0, 2), and a replica's name that both processes share")
    if part is not None and result.part >= result.parts:
        raise _bad_argument(f"part must be an index below the number of parts, not {part!r}")
    return result


def _with_drift_corrected(tensors: Sequence[TensorSpec], options: AttachOptions) -> List[TensorSpec]:
    """The layout of a run that corrects its drift."""
    if options.get("part") is not None:
        raise _bad_argument("correct_drift is for a model that one process holds")
    for spec in tensors:
        if spec.role == "param" and spec.dtype == _library.BF16:
            raise _bad_argument(
                f"correct_drift adds too little at each step for bfloat16 ('{spec.name}'): train float32 parameters, or give "
                "the optimizer's float32 copies (PyTorch: masters=)"
            )
    return [*tensors, TensorSpec(MARK, _library.F32, "local", (0,), 0, None)]


def slices_of(options: AttachOptions, names: Iterable[str]) -> Dict[str, Tuple[Sequence[int], Sequence[int]]]:
    """Where the slices of tensors are in the whole: name -> (shape of the whole, offset in it)."""
    slices = options.get("slices") or {}
    if not isinstance(slices, Mapping):
        raise _bad_argument(f"slices must be a mapping of names to (shape of the whole, offset), not {slices!r}")
    unknown = sorted(map(str, set(slices) - set(names)))
    if unknown:
        raise _bad_argument(f"slices are given for tensors that do not exist: {', '.join(unknown)}")
    for name, value in slices.items():
        try:
            shape, offset = value
            lengths = {len(shape), len(offset)}
        except (TypeError, ValueError):
            raise _bad_argument(f"the slice of '{name}' must be (shape of the whole, offset in it), not {value!r}") from None
        for number in (*shape, *offset):
            _count(number, f"the slice of '{name}'")
        if len(lengths) != 1:
            raise _bad_argument(f"the slice of '{name}' has a shape and an offset of different dimensions: {value!r}")
    return dict(slices)


def _c_tensor(spec: TensorSpec) -> _library.Tensor:
    _check_text(spec.name, "the name of a tensor")
    if spec.role not in _library.ROLES:
        raise _bad_argument(f"tensor '{spec.name}' has the unknown role '{spec.role}': use param, buffer or local")
    dimensions = len(spec.shape)

    def numbers_of(values: Sequence[int]) -> Any:
        return (ctypes.c_uint64 * dimensions)(*values)

    part = None
    if spec.whole is not None:
        if len(spec.whole[0]) != dimensions:
            raise _bad_argument(f"tensor '{spec.name}' has {dimensions} dimensions, and its whole {len(spec.whole[0])}")
        part = ctypes.pointer(_library.Slice(numbers_of(spec.whole[1]), numbers_of(spec.shape)))
    return _library.Tensor(
        name=spec.name.encode(),
        dtype=spec.dtype,
        role=_library.ROLES[spec.role],
        dimensions=dimensions,
        shape=numbers_of(spec.shape if spec.whole is None else spec.whole[0]),
        data=spec.pointer or None,
        slice=part,
    )


# A warning points at a line of the user's program, so it skips frames in these packages.
_LIBRARIES = ("gossamer", "torch", "weakref", "contextlib")


def _warn(message: str) -> None:
    """Warns at the line of the user's program that led here, however many calls of libraries are in between."""
    level = 1
    frame: Optional[types.FrameType] = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, GossamerWarning, stacklevel=level)


class Transfer:
    """For tensors whose values live elsewhere than in the memory that the C library was given: brings the values there,
    and takes changed ones back. Elements are counted in row-major order."""

    def __init__(self) -> None:
        self.error: Optional[BaseException] = None
        self.put_off = False  # whether load() put something off in the present call of the C library
        self.ended = False
        self.c_load = _library.Load(self._load)
        self.c_store = _library.Store(self._store)

    def load(self, tensor: int, first: int, count: int) -> Optional[bool]:
        """Brings the values of these elements to the memory given to the C library. Called inside run.step(). False:
        not yet; the fragment stays due, and the values are asked for again at the next step."""
        raise NotImplementedError

    def store(self, tensor: int, first: int, count: int) -> None:
        """These elements have changed in that memory. Called inside run.step()."""
        raise NotImplementedError

    def _load(self, _: Any, tensor: int, first: int, count: int) -> int:
        if self.ended:
            return 1
        try:
            if self.load(tensor, first, count) is not False:
                return 0
            self.put_off = True
        except BaseException as error:  # the call on the run that led here raises it again
            self.error = error
        return 1

    def _store(self, _: Any, tensor: int, first: int, count: int) -> None:
        try:
            self.store(tensor, first, count)
        except BaseException as error:
            self.error = error


class HostCopies(Transfer):
    """A transfer to arrays on the host. It remembers which elements have changed there until the framework's tensors
    get them. Until then the host is ahead of them: finish() and wait() may serve a fragment many times before."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: Dict[int, Dict[Tuple[int, int], None]] = {}

    def store(self, tensor: int, first: int, count: int) -> None:
        self._changed.setdefault(tensor, {})[first, count] = None

    def is_ahead(self, tensor: int, first: int, count: int) -> bool:
        """Whether this piece has changed, and the framework's tensor has yet to get it. A fragment has the same pieces each
        time."""
        return (first, count) in self._changed.get(tensor, ())

    def taken_changes(self) -> Dict[int, List[Tuple[int, int]]]:
        """By tensor, the pieces (first, count) that have changed since the last call."""
        changed, self._changed = self._changed, {}
        return {tensor: list(pieces) for tensor, pieces in changed.items()}


class _Periodic:
    """Something that step() calls when it is time. Without an action, step() looks at the run; an action that did so would
    keep the run alive."""

    def __init__(self, interval_s: float, action: Optional[Callable[[], None]]):
        self.interval_s = interval_s
        self.action = action
        self.next_s = time.monotonic() + interval_s
        self.under_way = False  # whether the action is being called now


class _Stillness:
    """Looks whether the program changes the values that were attached: not if it trains others, for instance those of a
    new array, or of a model that was made again. It looks at the first steps, later now and then, and at each one again
    once a step has changed nothing."""

    STEPS = 50  # a learning rate may be 0 in the first ones
    REST = 50  # steps between later looks
    STEPS_AT_THE_END = 10  # enough if the run is closed after them
    BYTES = 64  # looked at in each tensor

    def __init__(self) -> None:
        self._steps = 0
        self._seen: Optional[List[bytes]] = None
        self._later = False

    def rest(self) -> bool:
        """The program changes the values. False: it does not do so at each step, so later looks would tell nothing."""
        if self._later and self._steps > 0:
            return False
        self._steps, self._seen, self._later = 0, None, True
        return True

    def leave(self, places: List[Tuple[int, int]]) -> None:
        """At the end of a step. `places`: pointer and size in bytes of each tensor that is trained."""
        self._seen = [ctypes.string_at(pointer, min(size, self.BYTES)) for pointer, size in places]

    def come(self, places: List[Tuple[int, int]]) -> Optional[bool]:
        """At the beginning of the next: whether the program changes anything. None: that is not known yet."""
        if not self._seen:  # nothing is trained, or it was not looked at yet
            return None
        if any(ctypes.string_at(at, len(seen)) != seen for (at, _), seen in zip(places, self._seen)):
            return True
        self._steps += 1
        return False if self._steps == self.STEPS else None

    def end(self, places: List[Tuple[int, int]]) -> Optional[int]:
        """When the run is closed: how many of the first steps have changed nothing, if these are many enough."""
        if self._later:
            return None
        return self._steps if self.come(places) is not True and self._steps > self.STEPS_AT_THE_END else None


class _Overwriting:
    """Looks in the first steps whether corrections last: not if the program writes values of its own over them, as an
    optimizer does that keeps a copy of the weights. What lasts of a correction c is <d, c> / |c|², where d is the change
    from before it until the next step. That is 1 if c lasts, and 0 if not, plus a noise, which is averaged out over a number
    of corrections. Of d and c, only what differs from the usual counts: corrections keep replicas together that their steps
    drive apart, and so are usually about as long as a step, in the opposite direction."""

    CORRECTIONS = 30  # fewer corrections allow no verdict
    STEPS = 5000  # no verdict after these: it stops looking
    FLOATS = 16  # looked at, all in one tensor
    CERTAIN = 6  # standard errors from which a difference counts as certain

    def __init__(self) -> None:
        self._steps = 0
        self._before: Optional[Tuple[float, ...]] = None  # the values before the last step's corrections
        self._change: Tuple[float, ...] = ()  # by the last step's corrections
        self._usual: Tuple[float, ...] = (0.0,) * self.FLOATS  # change until the next step, smoothed
        self._usual_correction: Tuple[float, ...] = (0.0,) * self.FLOATS
        self._corrections = 0
        # Sums over the corrections: of p = <d, c>, of s = |c|², and of p², p s and s².
        self._p = self._s = self._pp = self._ps = self._ss = 0.0

    def come(self, values: Tuple[float, ...]) -> Optional[bool]:
        """At the beginning of a step: whether corrections are overwritten. None: that is not known yet."""
        if self._before is not None:
            change = tuple(now - then for now, then in zip(values, self._before))
            if any(self._change):
                self._count(change)
                if (verdict := self._verdict()) is not None:
                    return verdict
            if math.isfinite(sum(change) + sum(self._change)):
                self._usual = _smoothed(self._usual, change)
                self._usual_correction = _smoothed(self._usual_correction, self._change)
        self._before = values
        self._steps += 1
        return False if self._steps == self.STEPS else None

    def leave(self, values: Tuple[float, ...]) -> None:
        """At its end."""
        if self._before is not None:
            self._change = tuple(after - before for after, before in zip(values, self._before))

    def _count(self, change: Tuple[float, ...]) -> None:
        unusual = [c - usual for c, usual in zip(self._change, self._usual_correction)]
        square = sum(c * c for c in unusual)
        product = sum((d - usual) * c for d, usual, c in zip(change, self._usual, unusual))
        if square > 0 and math.isfinite(square + product):
            self._corrections += 1
            self._p += product
            self._s += square
            self._pp += product * product
            self._ps += product * square
            self._ss += square * square

    def _verdict(self) -> Optional[bool]:
        if self._corrections < self.CORRECTIONS:
            return None
        lasts = self._p / self._s
        rest = self._pp - 2 * lasts * self._ps + lasts * lasts * self._ss  # the sum of (p - lasts * s)²
        error = math.sqrt(max(rest, 0)) / self._s
        if 1 - lasts > self.CERTAIN * error and lasts < 0.25:
            return True
        return False if lasts > max(0.5, self.CERTAIN * error) else None


def _smoothed(usual: Tuple[float, ...], values: Tuple[float, ...]) -> Tuple[float, ...]:
    return tuple(before + 0.25 * (value - before) for before, value in zip(usual, values))


def roles_of(options: AttachOptions) -> Dict[str, str]:
    roles = options.get("roles") or {}
    if not isinstance(roles, Mapping):
        raise _bad_argument(f"roles must be a mapping of names to roles, not {roles!r}")
    return dict(roles)


def check_roles(roles: Mapping[str, str], names: Iterable[str], what: str) -> None:
    """Refuses roles of tensors that the model does not have. `what` is the framework's word for its tensors."""
    unknown = sorted(map(str, set(roles) - set(names)))
    if unknown:
        raise _bad_argument(f"roles are given for {what} that do not exist: {', '.join(unknown)}")


# close() waits at most this long for a call in another thread. Every call takes less time than this.
CLOSE_PATIENCE_S = 30.0
# The open runs of this process. A model is in one of them at most.
_open_runs: "weakref.WeakSet[Run]" = weakref.WeakSet()


def _runs_of(model: Set[int]) -> "List[weakref.ref[Run]]":
    """The open runs that share memory with this model."""
    return [weakref.ref(run) for run in list(_open_runs) if not run.closed and not model.isdisjoint(run._model())]


def _let_go_of_inherited(model: Set[int]) -> None:
    for run in list(_open_runs):
        if run._pid != os.getpid() and not model.isdisjoint(run._model()):
            run._let_go()


def _close_former(model: Set[int], job: str) -> None:
    """Closes the former run of a model that is attached again, for instance by a notebook's cell that is run a second
    time. Two runs of a model would each take the other's corrections for training. In a forked process, a run of the process
    that it was forked from is only let go."""
    _let_go_of_inherited(model)
    if any(former is not None and former._job != job for former in (found() for found in _runs_of(model))):
        gc.collect()  # a run that the program has dropped may only be waiting for the garbage collector
    for found in _runs_of(model):
        former = found()
        if former is None:
            continue
        if former._job != job:
            raise _bad_argument(
                f"this model is attached to the job '{former._job}' already, and would take the corrections of that job for "
                f"training in '{job}': close that run first (run.close())"
            )
        former.close()
        _warn(f"this model was attached to the job '{job}' before: that run was closed, and this one goes on")


# The open runs of trainers' callbacks, with the threads that train.
_trainer_runs: "weakref.WeakKeyDictionary[Run, int]" = weakref.WeakKeyDictionary()


def _close_trainer_runs(job: str) -> None:
    """Closes what a trainer has left open in this thread, because its training has failed: nobody trains it, and it would
    count as a replica of this node and keep others waiting. A notebook keeps it alive by the traceback."""
    for run, thread in list(_trainer_runs.items()):
        if run._job != job or run.closed or run._pid != os.getpid() or thread != threading.get_ident():
            continue
        run.close()
        _warn(f"a training of the job '{job}' has ended without closing its run, perhaps by an exception: it was closed")


def _close(
    lib: _library.Calls, handle: ctypes.c_void_p, owners: List[Any], transfer: Optional[Transfer] = None
) -> None:
    """A `transfer` is ended first: nobody would see its changes, and at exit the things that it needs may be gone."""
    if transfer is not None:
        transfer.ended = True
    if not lib.lock.acquire(timeout=CLOSE_PATIENCE_S):
        return  # the process is ending while one of its threads is in a call
    try:
        pointer, handle.value = handle.value, None  # from now on the library refuses calls on the run
        lib.gossamer_close(pointer)
        owners.clear()
    finally:
        lib.lock.release()


def _unlock_inherited() -> None:
    """In a forked process: the thread that was in a call is not there."""
    for run in list(_open_runs):
        run._lib.lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_inherited)


def _check_only_model(run: Run) -> None:
    """A process may train several replicas of a model, but those of one job and daemon have the same tensors."""

    def is_other(one: Run) -> bool:
        return one._place == run._place and one._layout != run._layout and not one.closed

    if any(map(is_other, list(_open_runs))):
        gc.collect()  # a run that the program has dropped may only be waiting for the garbage collector
    if any(map(is_other, list(_open_runs))):
        raise _bad_argument(
            f"another model, with other tensors, is attached to the job '{run._job}' in this process, and a job has one model: "
            "give each a name of its own, or attach both as one (a torch.nn.ModuleList, or one dict of arrays). If the other is "
            "trained no longer, close its run first (run.close()). If no variable has that run any more, the "
            "traceback of an error may (sys.last_traceback): this error has taken its place, so attach once more"
        )


class Run(Shared):
    """One model attached to the daemon. Make it with gossamer.attach() or gossamer.torch.attach()."""

    _ADVICE = "train the arrays that were attached, in place (w -= ...; not w = w - ..., which makes another array)"

    def __init__(
        self,
        tensors: Sequence[TensorSpec],
        options: AttachOptions,
        transfer: Optional[Transfer] = None,
        cuda_stream: Optional[int] = None,
    ):
        """`cuda_stream` is a pointer to the stream that trains, for tensors in GPU memory."""
        super().__init__()
        c_options = _c_options(options)
        if options.get("correct_drift", False):
            tensors = _with_drift_corrected(tensors, options)
        if cuda_stream is not None:
            c_options.device, c_options.stream = _library.CUDA, cuda_stream or None
        self._lib = _library.Calls()
        self._owners = [spec.owner for spec in tensors]
        self._pointers = [0 if spec.role == "local" or 0 in spec.shape else spec.pointer for spec in tensors]
        self._trained_bytes = [
            _library.DTYPE_BYTES[spec.dtype] * math.prod(spec.shape) if spec.role == "param" else 0 for spec in tensors
        ]
        # On a GPU, or with copies of the tensors, looking would take too long.
        self._stillness = _Stillness() if transfer is None and cuda_stream is None else None
        self._sampled = next(  # the tensor in which _Overwriting looks at values
            (
                index
                for index, spec in enumerate(tensors)
                if spec.role == "param" and spec.dtype == _library.F32 and math.prod(spec.shape) >= _Overwriting.FLOATS
            ),
            None,
        )
        self._still_rest = 0  # steps until the next look
        self._overwriting = _Overwriting() if self._stillness is not None and self._sampled is not None else None
        _close_former(self._model(), options["job"])
        self._pid = os.getpid()
        self._handle = ctypes.c_void_p()
        self._c_count = self._lib.gossamer_count_step
        self._transfer = transfer
        self._drift: Optional[DriftCorrection] = None
        self._job = options["job"]
        self._place = (self._pid, self._job, _socket_path(options))
        self._layout = [
            (spec.name, spec.role, tuple(spec.shape if spec.whole is None else spec.whole[0])) for spec in tensors
        ]
        _check_only_model(self)
        self._progress = options.get("progress")
        self._begin_s = time.monotonic()
        self._periodic: List[_Periodic] = [_Periodic(LOOK_INTERVAL_S, None)]
        self._alone_since_s: Optional[float] = None
        self._told_alone = False
        self._finished_at: Optional[int] = None  # steps
        self._told_messages: Set[str] = set()
        self._detached_since_s: Optional[float] = self._begin_s  # None: the program was warned
        self._last_calls: Optional[List[_Periodic]] = None  # set by close(): actions to be called a last time
        self._next_look_s: Optional[float] = None
        # Also runs when the object is collected, and at exit. It keeps the tensors' memory alive until then.
        self._finalizer = weakref.finalize(self, _close, self._lib, self._handle, self._owners, transfer)
        with self._closed_unless_done():
            self._open(tensors, c_options)
            if options.get("correct_drift", False):
                self._drift = self._drift_correction()
            self._on_event: Optional[Callable[[Event], None]] = None
            self._seen = self.info()  # the run's state when it was last looked for events
            self.on_event = options.get("on_event")
            if self._on_event is not None:  # a daemon may have accepted the run already, which is an event, too
                self._seen = replace(self._seen, state=State.DETACHED, attached=False, attachments=0, neighbours=0)

    def _open(self, tensors: Sequence[TensorSpec], c_options: _library.Options) -> None:
        c_tensors = (_library.Tensor * max(len(tensors), 1))(*[_c_tensor(spec) for spec in tensors])
        message = ctypes.create_string_buffer(1024)
        status = self._lib.gossamer_open(
            ctypes.byref(c_options), c_tensors, len(tensors), ctypes.byref(self._handle), message, len(message)
        )
        if status != _library.OK:
            raise GossamerError(_library.status_name(status), message.value.decode(errors="replace"))
        _open_runs.add(self)
        transfer = self._transfer
        if transfer is not None:
            self._check(self._lib.gossamer_set_transfer(self._handle, transfer.c_load, transfer.c_store, None))

    @contextlib.contextmanager
    def _closed_unless_done(self) -> Iterator[None]:
        """Around the parts of an attach(). If one of them fails or is interrupted, the program does not get the run, and
        cannot close it; a traceback that a notebook keeps would keep it open."""
        try:
            yield
        except BaseException:
            self._finalizer()
            raise

    def step(self, samples: int = 1) -> None:
        """Call after each optimiser step, with the number of samples it trained on. Never waits for the network."""
        if type(samples) is not int or not 0 <= samples <= MAX_COUNT:  # because ctypes takes larger numbers modulo 2^64
            samples = _count(samples, "samples")
        if self._stillness is not None and not self.closed:
            if self._still_rest > 0:
                self._still_rest -= 1
            else:
                self._look_whether_still(samples)
        if self._overwriting is not None and not self.closed:
            self._look_whether_overwritten(samples)
        if self._drift is not None and not self.closed:
            self._correct_drift(self._drift, samples > 0)
        status = self._c_count(self._handle, samples)
        if status == _library.DUE:
            self._follow_tensors()
            status = self._serve_due()
        if status != _library.OK:
            self._report(status)
        elif self._transfer is not None:
            self._raise_transfer_error()
        if self._stillness is not None and self._still_rest == 0 and not self.closed:
            self._stillness.leave(self._trained_places())
        if self._overwriting is not None and not self.closed:
            self._overwriting.leave(self._sample())
        if self._next_look_s is not None and time.monotonic() >= self._next_look_s:
            self._look()

    def _follow_tensors(self) -> None:
        """Called if the step is about to read the tensors, and write them: they may have moved."""

    def _serve_due(self) -> int:
        if self._drift is not None:
            self._drift.hold(self._parameters())
        status: int = self._lib.gossamer_serve_due(self._handle)
        if self._drift is not None:
            self._drift.take(self._parameters(), self._drift.corrections_since(self._c_info()))
        return status

    def _correct_drift(self, drift: DriftCorrection, trained: bool) -> None:
        info = self._c_info()
        drift.follow(info)
        values = self._parameters()
        if drift.step(values, trained):
            self._set_parameters(values)
        if averages_models(info):  # the mean will be in the place of these
            drift.hold(values)

    def _drift_correction(self) -> DriftCorrection:
        """Of the parameters, in the arithmetic of the framework."""
        raise NotImplementedError

    def _parameters(self) -> List[Any]:
        """The present values of the parameters, in arrays of the framework."""
        raise NotImplementedError

    def _set_parameters(self, values: List[Any]) -> None:
        """These were changed, in place where that is possible."""

    def _trained_places(self) -> List[Tuple[int, int]]:
        return [(pointer, size) for pointer, size in zip(self._pointers, self._trained_bytes) if pointer and size]

    def _sample(self) -> Tuple[float, ...]:
        assert self._sampled is not None
        return tuple((ctypes.c_float * _Overwriting.FLOATS).from_address(self._pointers[self._sampled]))

    def _look_whether_overwritten(self, samples: int) -> None:
        assert self._overwriting is not None
        overwritten = self._overwriting.come(self._sample()) if samples > 0 else None
        if overwritten is None:
            return
        self._overwriting = None
        if overwritten:
            self._warn(
                f"what comes from other nodes does not last in the model of the job '{self._job}': each step writes values "
                "that do not build on the present ones, as an optimizer does that keeps a copy of the weights. Let it begin "
                "each step from the model's values, or attach its copy (PyTorch: masters=)"
            )

    def _look_whether_still(self, samples: int) -> None:
        assert self._stillness is not None
        trains = self._stillness.come(self._trained_places()) if samples > 0 else None
        if trains is True and self._stillness.rest():
            self._still_rest = _Stillness.REST
        elif trains is not None:
            self._stillness = None
        if trains is False and self.info().state is not State.QUARANTINED:  # NaN stays NaN in each step
            self._tell_of_stillness(_Stillness.STEPS)

    def _tell_of_stillness(self, steps: int) -> None:
        self._warn(
            f"{steps} steps have changed nothing in the model of the job '{self._job}': if its learning rate is not 0, {self._ADVICE}"
        )

    def wait(self, timeout_s: Optional[float] = None) -> bool:
        """Waits until the run takes part in the training; if others train already, until the model is pulled.

        Gives up with a warning when no daemon has accepted the run within five seconds, or when `timeout_s` has passed.
        Returns `ready`. Training may go on in any case; the run attaches by itself later. Settings that the daemon does not
        take are an error.
        """
        progress = Progress(self._job) if Progress.wanted(self._progress) else None
        try:
            return self._wait(limit_of(timeout_s), progress)
        finally:
            if progress is not None and not self.closed:
                progress.end(self.info())
            if not self.closed and self.info().steps == 0:
                self._begin_s = time.monotonic()

    def _wait_if_asked(self, options: AttachOptions, averages: bool = False) -> None:
        """The part of an attach() that may take long. `averages`: the run averages by itself if the job's method says so."""
        if not options.get("wait", True):
            return
        with self._closed_unless_done():
            self.wait(options.get("timeout_s"))
            self._check_method()
            unused = [name for name in options.get("settings") or {} if name.startswith("average_")]
            if unused and self.info().method != "average":
                self._warn(
                    f"the settings {', '.join(unused)} count with the method average only, and the job '{self._job}' has the "
                    f"method {self.info().method}: give \"method\": \"average\", too"
                )
            if not averages and self.info().method == "average":
                self._warn(
                    f"job '{self._job}' has the method average, so the model is not exchanged, and nothing here averages by "
                    f"itself: let the job gossip (gossamerctl job set {self._job} method=gossip), call run.average() in a loop "
                    "of your own, or give gossamer.torch.attach() the optimizer, one only (docs/how-to/average-exactly.md)"
                )

    def _check_method(self) -> None:
        info = self.info()
        if info.parts > 1 and info.method == "average":
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"job '{self._job}' has the method average, and this process holds a part of the model only: exact averages are "
                "of whole models. Let it gossip, or give each shard a job of its own",
            )

    def _wait(self, limit_s: float, progress: Optional[Progress]) -> bool:
        begin = time.monotonic()
        patience_s = min(limit_s, DAEMON_TIMEOUT_S)
        looked_at_place = False
        while True:
            status = self._lib.gossamer_wait_ready(self._open_handle(), slice_ms(begin + limit_s))
            waited_s = time.monotonic() - begin
            if progress is not None:
                progress.show(self.info())
            if self._on_event is not None:
                self._look_for_events()
            if status == _library.OK:
                return True
            if status in (_library.NO_DAEMON, _library.BUSY) and waited_s < patience_s:
                if not looked_at_place:
                    looked_at_place = True
                    self._look_at_place(patience_s)
                continue
            if status == _library.TIMEOUT and waited_s < limit_s:
                continue
            if status == _library.REJECTED and any(words in self._last_error() for words in REFUSED_SETTINGS):
                self._detached_since_s = None
                self._report(status)
            if status in (_library.NO_DAEMON, _library.BUSY, _library.TIMEOUT, _library.REJECTED):
                self._tell_detached(self._last_error())
                return False
            self._report(status)

    def _look_at_place(self, patience_s: float) -> None:
        """Before a daemon is waited for: tells at once what is wrong with the place where it should be."""
        path = os.fsdecode(self._place[2])
        folder = os.path.dirname(os.path.abspath(path))
        if path and not os.path.lexists(folder) and patience_s > 1:
            self._warn(f"gossamerd's socket should be in {folder}, which does not exist: waiting {patience_s:.0f} s for it")
        if os.strerror(errno.EPROTOTYPE) in self._last_error():
            raise _bad_argument(f"{path} is the socket of another program, or gossamerctl's: give gossamerd's client.sock")

    def info(self) -> RunInfo:
        c_info = self._c_info()
        node_id = bytes(c_info.node_id)
        return RunInfo(
            state=State(c_info.state),
            attached=bool(c_info.attached),
            clock=c_info.clock_samples,
            global_clock=c_info.global_clock_samples,
            steps=c_info.steps,
            exchanges=c_info.exchanges,
            publications=c_info.publications,
            neighbours=c_info.neighbours,
            fragments_pulled=c_info.fragments_pulled,
            fragments=c_info.fragments,
            fragment_elements=c_info.fragment_elements,
            elements=c_info.elements,
            layout_hash=c_info.layout_hash,
            attachments=c_info.attachments,
            node_id=node_id.hex() if any(node_id) else "",
            message=c_info.message.decode(errors="replace"),
            bytes_sent=c_info.bytes_sent,
            bytes_received=c_info.bytes_received,
            consensus=c_info.consensus,
            age_samples=c_info.age_samples,
            unresolved=c_info.unresolved,
            quarantines=c_info.quarantines,
            period_us=c_info.period_us,
            pulled_bytes=c_info.pulled_bytes,
            serving_ns=c_info.serving_ns,
            client_index=c_info.client_index,
            clients=c_info.clients,
            window_bytes=c_info.window_bytes,
            path=_library.PATHS[c_info.path],
            trained=c_info.trained_samples,
            method=_library.METHODS[c_info.method] if c_info.method < len(_library.METHODS) else "gossip",
            average_steps=c_info.average_steps,
            average_members=c_info.average_members,
            average_codec=_library.AVERAGE_CODECS[min(c_info.average_codec, 1)],
            outer_momentum=c_info.outer_momentum,
            corrections=c_info.corrections,
            parts=c_info.parts,
            part=c_info.part,
        )

    def _c_info(self) -> _library.Info:
        """What info() has, read in a microsecond or two, for every step."""
        c_info = _library.Info(size=ctypes.sizeof(_library.Info))
        self._check(self._lib.gossamer_info(self._open_handle(), ctypes.byref(c_info)))
        return c_info

    @property
    def stats(self) -> RunStats:
        """Figures to log. Reading them takes some microseconds."""
        info = self.info()
        elapsed_s = time.monotonic() - self._begin_s
        return RunStats(
            state=info.state,
            steps=info.steps,
            clock=info.clock,
            global_clock=info.global_clock,
            age_samples=info.age_samples,
            neighbours=info.neighbours,
            exchanges=info.exchanges,
            unresolved=info.unresolved,
            quarantines=info.quarantines,
            bytes_sent=info.bytes_sent,
            bytes_received=info.bytes_received,
            consensus=info.consensus,
            period_s=info.period_us / 1e6,
            step_share=info.serving_ns / 1e9 / elapsed_s if elapsed_s > 0 else 0.0,
        )

    @property
    def on_event(self) -> Optional[Callable[[Event], None]]:
        """Called with an Event when something has happened to the run. step() and wait() call it, in their thread, at
        most a quarter of a second of training late, and let its exceptions out. None: no events are wanted."""
        return self._on_event

    @on_event.setter
    def on_event(self, callback: Optional[Callable[[Event], None]]) -> None:
        _check_on_event(callback)
        self._on_event = callback
        if callback is not None:
            self._seen = self.info()
        self._set_next_look()

    def every(self, interval_s: float, action: Callable[[], None]) -> None:
        """Calls `action` from step() whenever that many seconds have passed, and once more from close(). An action may
        close the run. It is then not called again: the run is closed when its call of close() returns."""
        if not callable(action):
            raise _bad_argument(f"the action must be something that can be called without arguments, not {action!r}")
        if not isinstance(interval_s, numbers.Real) or not interval_s >= 0:
            raise _bad_argument(f"interval_s must be a number of seconds from 0, not {interval_s!r}")
        self._periodic.append(_Periodic(interval_s, action))
        self._set_next_look()

    @property
    def ready(self) -> bool:
        """Whether the run takes part in the training now."""
        return self.info().ready

    @property
    def clock(self) -> int:
        """The samples that this replica's model has seen: what step() has counted, and before that `initial_clock`, or
        what a model that was taken over had seen if that is more. Save it with the model, as the next
        `initial_clock`."""
        return self.info().clock

    @property
    def global_clock(self) -> int:
        """How far the job is: the largest known and plausible clock of any replica. A learning-rate schedule should
        follow it."""
        return self.info().global_clock

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Detaches from the daemon. The tensors stay as they are and are not touched any more. May be called twice, by the
        actions of every() and on_event, and by another thread: a call that waits there raises GossamerError."""
        try:
            self._call_for_the_last_time()
        finally:  # also if an action raises an exception
            self._periodic = []
            _open_runs.discard(self)
            if self._finalizer.detach() is not None:
                _close(self._lib, self._handle, self._owners)
        self._raise_transfer_error()

    def _let_go(self) -> None:
        self._periodic = []
        self._finalizer()

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError("a run cannot be copied or pickled: it belongs to the process that attached it; call attach() there")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _: Any, error: Optional[BaseException], __: Any) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            _warn(f"closing the run of the job '{self._job}' has failed, too: {failure}")  # the first error is raised

    def _open_handle(self) -> ctypes.c_void_p:
        if not self._finalizer.alive:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "the run is closed")
        return self._handle

    def _last_error(self) -> str:
        message: bytes = self._lib.gossamer_last_error(self._handle)
        return message.decode(errors="replace")

    def _look(self) -> None:
        now_s = time.monotonic()
        for entry in list(self._periodic):
            if now_s >= entry.next_s and not self.closed:  # an action may have closed the run
                entry.next_s = now_s + entry.interval_s
                self._act(entry)
        self._set_next_look()

    def _act(self, entry: _Periodic) -> None:
        entry.under_way = True
        try:
            if entry.action is None:
                self._look_for_events()
            else:
                entry.action()
        finally:
            entry.under_way = False

    def _call_for_the_last_time(self) -> None:
        """An action that calls close() comes here again. Then it goes on with what the first call has left, so that
        each is called once. In a process that was forked nothing is called: the run goes on in the first."""
        if self._pid != os.getpid():
            return
        if self._stillness is not None and not self.closed:
            steps, self._stillness = self._stillness.end(self._trained_places()), None
            if steps is not None:
                self._tell_of_stillness(steps)
        if self._last_calls is None:
            self._last_calls = [entry for entry in self._periodic if not entry.under_way]
        while self._last_calls and not self.closed:
            self._act(self._last_calls.pop(0))

    def _set_next_look(self) -> None:
        self._next_look_s = min((entry.next_s for entry in self._periodic), default=None)

    def _wait_on(self) -> None:
        self._look()

    def _why_alone(self) -> str:
        return self.info().message or self._last_error()

    def finish(self, timeout_s: Optional[float] = 60.0) -> Finish:
        found = super().finish(timeout_s)
        self._has_finished(found)
        return found

    def _has_finished(self, end: Finish) -> None:
        if end.agreed:
            self._finished_at = self.info().steps
        self._look_for_events()

    def _look_for_events(self) -> None:
        before, self._seen = self._seen, self.info()
        self._warn_of(before, self._seen)
        for event in events_between(before, self._seen):
            if self._on_event is not None and not self.closed:
                self._on_event(event)

    def _warn_of(self, before: RunInfo, now: RunInfo) -> None:
        """Of what a program is told that has no on_event."""
        if now.state is State.QUARANTINED and before.state is not State.QUARANTINED:
            _warn(
                f"the model of the job '{self._job}' holds NaN or infinity: it is not averaged until it holds numbers again, and "
                "the other nodes go on without it"
            )
        since_s = self._detached_since_s
        if now.attached:
            self._detached_since_s = time.monotonic()
        elif since_s is not None and (self._is_refused() or time.monotonic() - since_s > ALONE_S):
            # The parts of a replica may close one after the other when they have finished.
            if now.parts == 1 or now.steps != self._finished_at:
                self._tell_detached(now.message)
        if now.attached and now.path != "pinned" and now.message and now.message not in self._told_messages:
            self._told_messages.add(now.message)
            self._warn(f"job '{self._job}': {now.message}")
        if now.state is not State.RUNNING or now.neighbours > 0 or now.clients > 1:
            self._alone_since_s = None
        elif self._alone_since_s is None:
            self._alone_since_s = time.monotonic()
        elif not self._told_alone and time.monotonic() - self._alone_since_s > ALONE_S:
            self._told_alone = True
            self._warn(
                f"no other node has run the job '{self._job}' with this model for {ALONE_S:.0f} s, so training goes on alone: "
                "'gossamerctl explain' says why"
            )

    def _is_refused(self) -> bool:
        """Whether the daemon will not take the run as it is."""
        return bool(self._lib.gossamer_wait_ready(self._open_handle(), 0) == _library.REJECTED)

    def _tell_detached(self, why: str) -> None:
        self._detached_since_s = None
        self._warn(f"training goes on alone for now: {why}")

    def _warn(self, message: str) -> None:
        if self._on_event is not None:
            self._on_event(Event(EventKind.WARNING, message, self.info()))
        _warn(message)

    def _raise_transfer_error(self) -> None:
        if self._transfer is not None and self._transfer.error is not None:
            error, self._transfer.error = self._transfer.error, None
            raise error

    def _report(self, status: int) -> None:
        self._open_handle()
        self._raise_transfer_error()
        if status == _library.NOT_LOADED and self._transfer is not None and self._transfer.put_off:
            return
        if status == _library.BAD_MEMORY:
            self._warn(self._last_error())
            return
        name = _library.status_name(status)
        if status == _library.FORKED:
            raise GossamerError(name, "the run belongs to the process that this one was forked from: attach one here")
        raise GossamerError(name, self._last_error() or name)

    def _move_tensor(self, index: int, pointer: int, owner: Any) -> None:
        """The values of a tensor are at `pointer` from now on."""
        with self._lib.lock:
            self._check(self._lib.gossamer_set_tensor_data(self._open_handle(), index, pointer))
            self._owners[index] = owner
            self._pointers[index] = pointer

    def _model(self) -> Set[int]:
        """Tells a model from others in this process: addresses of its tensors, or ids of objects that the run holds."""
        return {pointer for pointer in self._pointers if pointer}
