"""A run: one model attached to the daemon of this machine. gossamer.attach() and gossamer.torch.attach() return it.

One thread at a time may use a run. It holds references to the tensors' memory until it is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import gc
import numbers
import operator
import os
import sys
import time
import types
import warnings
import weakref
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from . import _library
from ._events import LOOK_INTERVAL_S, Event, EventKind, events_between
from ._library import GossamerError, GossamerWarning
from ._options import AttachOptions, check_options
from ._progress import Progress
from ._shared import Shared, slice_ms

# A daemon on the same machine answers in milliseconds; one that is being started takes a little longer.
DAEMON_TIMEOUT_S = 5.0
# The C library takes at most this many samples or bytes.
MAX_COUNT = 2**62
# No clock is larger, in samples (gossamer.h).
MAX_CLOCK = 2**53


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
    message: str  # why no daemon has the run; "" while attached
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
    neighbours: int  # replicas of the job in reach
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


def _bad_argument(message: str) -> GossamerError:
    return GossamerError("GOSSAMER_BAD_ARGUMENT", message)


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str) or "\0" in value:
        raise _bad_argument(f"{what} must be a string, not {value!r}")


def _count(value: Any, what: str, limit: int = MAX_COUNT) -> int:
    """Checks that `value` is a whole number within the C library's type, which would take any other for a different
    one."""
    try:
        count = operator.index(value)
    except TypeError:
        raise _bad_argument(f"{what} must be a whole number, not {value!r}") from None
    if not 0 <= count <= limit:
        raise _bad_argument(f"{what} must be from 0 to {limit}, not {count}")
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


def _c_options(options: AttachOptions) -> _library.Options:
    check_options(options)
    _check_text(options["job"], "job")
    socket = options.get("socket")
    if not isinstance(socket, (str, bytes, os.PathLike, type(None))):
        raise _bad_argument(f"socket must be a path, not {socket!r}")
    on_event = options.get("on_event")
    if on_event is not None and not callable(on_event):
        raise _bad_argument(f"on_event must be something that can be called with an Event, not {on_event!r}")
    memory = options.get("memory", "auto")
    if memory not in _library.MEMORIES:
        raise _bad_argument(f"memory must be one of {', '.join(_library.MEMORIES)}, not {memory!r}")
    result = _library.Options()
    _library.library().gossamer_options_init(ctypes.byref(result))
    result.job = options["job"].encode()
    result.socket_path = None if socket is None else os.fsencode(socket)
    result.fragment_elements = _count(options.get("fragment_elements", 0), "fragment_elements", 2**32 - 1)
    result.step_budget_bytes = _count(options.get("step_budget_bytes", 0), "step_budget_bytes")
    result.initial_clock_samples = _count(options.get("initial_clock", 0), "initial_clock", MAX_CLOCK)
    result.memory = _library.MEMORIES[memory]
    result.settings = _settings_text(options.get("settings") or {})
    return result


def _c_tensor(spec: TensorSpec) -> _library.Tensor:
    _check_text(spec.name, "the name of a tensor")
    if spec.role not in _library.ROLES:
        raise _bad_argument(f"tensor '{spec.name}' has the unknown role '{spec.role}': use param, buffer or local")
    return _library.Tensor(
        name=spec.name.encode(),
        dtype=spec.dtype,
        role=_library.ROLES[spec.role],
        dimensions=len(spec.shape),
        shape=(ctypes.c_uint64 * len(spec.shape))(*spec.shape),
        data=spec.pointer or None,
    )


def _warn(message: str) -> None:
    """Warns at the line of the user's program that led here, however many calls of this package are in between."""
    package = os.path.dirname(__file__) + os.sep
    level = 1
    frame: Optional[types.FrameType] = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(package):
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
        except BaseException as error:  # the call on the run that this is in raises it again
            self.error = error
        return 1

    def _store(self, _: Any, tensor: int, first: int, count: int) -> None:
        try:
            self.store(tensor, first, count)
        except BaseException as error:
            self.error = error


class HostCopies(Transfer):
    """A transfer to arrays on the host. It remembers which elements have changed there until the framework's tensors
    get them."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: Dict[int, List[Tuple[int, int]]] = {}

    def store(self, tensor: int, first: int, count: int) -> None:
        self._changed.setdefault(tensor, []).append((first, count))

    def taken_changes(self) -> Dict[int, List[Tuple[int, int]]]:
        """By tensor, the pieces (first, count) that have changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed


class _Periodic:
    """Something that step() calls when it is time. Without an action, step() looks for events; an action that did so
    would keep the run alive."""

    def __init__(self, interval_s: float, action: Optional[Callable[[], None]]):
        self.interval_s = interval_s
        self.action = action
        self.next_s = time.monotonic() + interval_s
        self.under_way = False  # whether it is being called


def check_roles(roles: Mapping[str, str], names: Iterable[str], what: str) -> None:
    """Refuses roles of tensors that the model does not have. `what` is the framework's word for its tensors."""
    unknown = sorted(map(str, set(roles) - set(names)))
    if unknown:
        raise _bad_argument(f"roles are given for {what} that do not exist: {', '.join(unknown)}")


# The open runs of this process. A model is in one of them at most.
_open_runs: "weakref.WeakSet[Run]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_open_runs.clear)


def _runs_of(model: Set[int]) -> "List[weakref.ref[Run]]":
    """The open runs that share memory with this model."""
    return [weakref.ref(run) for run in _open_runs if not run.closed and not model.isdisjoint(run._model())]


def _close_former(model: Set[int], job: str) -> None:
    """Closes the former run of a model that is attached again, for instance by a notebook's cell that is run a second
    time. Two runs of a model would each take the other's corrections for training."""
    if any(former is not None and former._job != job for former in (found() for found in _runs_of(model))):
        gc.collect()  # a run that the program has dropped may only wait for this
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


def _close(
    lib: ctypes.CDLL, handle: ctypes.c_void_p, owners: List[Any], transfer: Optional[Transfer] = None
) -> None:
    """A `transfer` is ended first: nobody would see its changes, and at exit the things that it needs may be gone."""
    if transfer is not None:
        transfer.ended = True
    lib.gossamer_close(handle)
    handle.value = None  # the library refuses later calls on the run
    owners.clear()


class Run(Shared):
    """One model attached to the daemon. Make it with gossamer.attach() or gossamer.torch.attach()."""

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
        if cuda_stream is not None:
            c_options.device, c_options.stream = _library.CUDA, cuda_stream or None
        self._lib = _library.library()
        self._owners = [spec.owner for spec in tensors]
        self._pointers = [0 if spec.role == "local" or 0 in spec.shape else spec.pointer for spec in tensors]
        _close_former(self._model(), options["job"])
        self._handle = ctypes.c_void_p()
        self._c_step = self._lib.gossamer_step
        self._transfer = transfer
        self._job = options["job"]
        self._progress = options.get("progress")
        self._begin_s = time.monotonic()
        self._periodic: List[_Periodic] = []
        self._last_calls: Optional[List[_Periodic]] = None  # set by close(): what is still to be called once more
        self._next_look_s: Optional[float] = None
        # Also runs when the object is collected, and at exit. It keeps the tensors' memory alive until then.
        self._finalizer = weakref.finalize(self, _close, self._lib, self._handle, self._owners, transfer)
        with self._closed_unless_done():
            self._open(tensors, c_options)
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
        if type(samples) is not int or not 0 <= samples <= MAX_COUNT:  # ctypes takes other numbers modulo 2^64
            samples = _count(samples, "samples")
        status = self._c_step(self._handle, samples)
        if status != _library.OK:
            self._report(status)
        elif self._transfer is not None:
            self._raise_transfer_error()
        if self._next_look_s is not None and time.monotonic() >= self._next_look_s:
            self._look()

    def wait(self, timeout_s: Optional[float] = None) -> bool:
        """Waits until the run takes part in the training; if others train already, until the model is pulled.

        Gives up with a warning when no daemon has accepted the run within five seconds, or when `timeout_s` has passed.
        Returns `ready`. Training may go on in any case; the run attaches by itself later.
        """
        progress = Progress(self._job) if Progress.wanted(self._progress) else None
        try:
            return self._wait(float("inf") if timeout_s is None else timeout_s, progress)
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
            if not averages and self.info().method == "average":
                self._warn(
                    f"job '{self._job}' has the method average, so the model is not exchanged: call run.average() for gradients "
                    "or models, or give gossamer.torch.attach() the optimizer (docs/how-to/average-exactly.md)"
                )

    def _wait(self, limit_s: float, progress: Optional[Progress]) -> bool:
        begin = time.monotonic()
        while True:
            status = self._lib.gossamer_wait_ready(self._open_handle(), slice_ms(begin + limit_s))
            waited_s = time.monotonic() - begin
            if progress is not None:
                progress.show(self.info())
            if self._on_event is not None:
                self._look_for_events()
            if status == _library.OK:
                return True
            if status in (_library.NO_DAEMON, _library.BUSY) and waited_s < min(limit_s, DAEMON_TIMEOUT_S):
                continue
            if status == _library.TIMEOUT and waited_s < limit_s:
                continue
            if status in (_library.NO_DAEMON, _library.BUSY, _library.TIMEOUT, _library.REJECTED):
                self._warn(f"training goes on alone for now: {self._last_error()}")
                return False
            self._report(status)

    def info(self) -> RunInfo:
        c_info = _library.Info(size=ctypes.sizeof(_library.Info))
        self._check(self._lib.gossamer_info(self._open_handle(), ctypes.byref(c_info)))
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
        )

    def _publications(self) -> int:
        """The number that info() has, read in a microsecond or two, for every step."""
        c_info = _library.Info(size=ctypes.sizeof(_library.Info))
        self._check(self._lib.gossamer_info(self._open_handle(), ctypes.byref(c_info)))
        return int(c_info.publications)

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
        self._periodic = [entry for entry in self._periodic if entry.action is not None]
        self._on_event = callback
        if callback is not None:
            self._seen = self.info()
            self._periodic.append(_Periodic(LOOK_INTERVAL_S, None))
        self._set_next_look()

    def every(self, interval_s: float, action: Callable[[], None]) -> None:
        """Calls `action` from step() whenever that many seconds have passed, and once more from close(). An action may
        close the run. It is then not called again: the run is closed when its call of close() returns."""
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
        """Detaches from the daemon. The tensors stay as they are and are not touched any more. May be called twice, and
        by the actions of every() and on_event."""
        try:
            self._call_for_the_last_time()
        finally:  # also if one of them raises an exception
            self._periodic = []
            if self._finalizer.detach() is not None:
                _close(self._lib, self._handle, self._owners)
        self._raise_transfer_error()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

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
        each is called once."""
        if self._last_calls is None:
            self._last_calls = [entry for entry in self._periodic if not entry.under_way]
        while self._last_calls and not self.closed:
            self._act(self._last_calls.pop(0))

    def _set_next_look(self) -> None:
        self._next_look_s = min((entry.next_s for entry in self._periodic), default=None)

    def _look_for_events(self) -> None:
        before, self._seen = self._seen, self.info()
        for event in events_between(before, self._seen):
            if self._on_event is not None and not self.closed:
                self._on_event(event)

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
        self._check(self._lib.gossamer_set_tensor_data(self._open_handle(), index, pointer))
        self._owners[index] = owner
        self._pointers[index] = pointer

    def _model(self) -> Set[int]:
        """Tells a model from others in this process: addresses of its tensors, or ids of objects that the run holds."""
        return {pointer for pointer in self._pointers if pointer}
