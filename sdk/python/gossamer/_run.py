"""A run: one model attached to the daemon of this machine. What gossamer.attach() and gossamer.torch.attach() return.

One thread at a time may use a run. It holds references to the tensors' memory until it is closed.
"""

from __future__ import annotations

import ctypes
import enum
import os
import sys
import time
import warnings
import weakref
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence

from . import _library
from ._library import GossamerError, GossamerWarning

# A daemon on the same machine answers in milliseconds; one that is being started takes a little longer.
DAEMON_TIMEOUT_S = 5.0
# How long the C library waits at a time, so that Ctrl-C is heard.
WAIT_SLICE_MS = 100


class State(enum.Enum):
    """What the daemon does for a run."""

    DETACHED = 0  # no daemon: training alone
    JOINING = 1  # the model is being agreed on, or pulled from other nodes
    RUNNING = 2  # exchanging
    DRAINING = 3  # the daemon is stopping
    QUARANTINED = 4  # the model holds NaN or infinity, and is not exchanged until it does not


@dataclass(frozen=True)
class RunInfo:
    """How a run stands. Clocks are in samples."""

    state: State
    attached: bool
    clock: int
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
    node_id: str  # of the daemon, in hexadecimal; "" before the first attachment
    message: str  # what keeps the run from a daemon; "" while attached


@dataclass
class TensorSpec:
    """One tensor as the C library wants it. `owner` is whatever keeps the memory at `pointer` alive."""

    name: str
    dtype: int
    role: str
    shape: Sequence[int]
    pointer: int
    owner: Any


@dataclass
class RunOptions:
    job: str
    socket: Optional[str] = None
    fragment_elements: int = 0
    step_budget_bytes: int = 0
    initial_clock: int = 0


def _c_tensor(spec: TensorSpec) -> _library.Tensor:
    if spec.role not in _library.ROLES:
        raise GossamerError(
            "GOSSAMER_BAD_ARGUMENT", f"tensor '{spec.name}' has the unknown role '{spec.role}': use param, buffer or local"
        )
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
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, GossamerWarning, stacklevel=level)


def _close(lib: ctypes.CDLL, handle: ctypes.c_void_p, owners: List[Any]) -> None:
    lib.gossamer_close(handle)
    owners.clear()


class Run:
    """One model attached to the daemon. Make it with gossamer.attach() or gossamer.torch.attach()."""

    def __init__(self, tensors: Sequence[TensorSpec], options: RunOptions):
        self._lib = _library.library()
        self._owners = [spec.owner for spec in tensors]
        c_options = _library.Options()
        self._lib.gossamer_options_init(ctypes.byref(c_options))
        c_options.job = options.job.encode()
        c_options.socket_path = None if options.socket is None else os.fsencode(options.socket)
        c_options.fragment_elements = options.fragment_elements
        c_options.step_budget_bytes = options.step_budget_bytes
        c_options.initial_clock_samples = options.initial_clock
        c_tensors = (_library.Tensor * max(len(tensors), 1))(*[_c_tensor(spec) for spec in tensors])
        handle = ctypes.c_void_p()
        message = ctypes.create_string_buffer(1024)
        status = self._lib.gossamer_open(
            ctypes.byref(c_options), c_tensors, len(tensors), ctypes.byref(handle), message, len(message)
        )
        if status != _library.OK:
            raise GossamerError(_library.status_name(status), message.value.decode(errors="replace"))
        self._handle = handle
        # Also runs when the object is collected and at exit; keeps the tensors' memory alive until then.
        self._finalizer = weakref.finalize(self, _close, self._lib, handle, self._owners)

    def step(self, samples: int = 1) -> None:
        """Call after each optimiser step, with the number of samples it trained on. Never waits for the network."""
        status = self._lib.gossamer_step(self._open_handle(), samples)
        if status != _library.OK:
            self._report(status)

    def wait(self, timeout_s: Optional[float] = None) -> bool:
        """Waits until the run takes part in the training: until the model is pulled, if others are already at it.

        Gives up with a warning when no daemon has taken the run within five seconds, or when `timeout_s` has passed.
        Returns `ready`. Training may go on in any case; the run attaches by itself later.
        """
        begin = time.monotonic()
        limit_s = float("inf") if timeout_s is None else timeout_s
        while True:
            left_ms = (begin + limit_s - time.monotonic()) * 1000
            status = self._lib.gossamer_wait_ready(self._open_handle(), int(max(0, min(WAIT_SLICE_MS, left_ms))))
            waited_s = time.monotonic() - begin
            if status == _library.OK:
                return True
            if status in (_library.NO_DAEMON, _library.BUSY) and waited_s < min(limit_s, DAEMON_TIMEOUT_S):
                continue
            if status == _library.TIMEOUT and waited_s < limit_s:
                continue
            if status in (_library.NO_DAEMON, _library.BUSY, _library.TIMEOUT, _library.REJECTED):
                _warn(f"training goes on alone for now: {self._last_error()}")
                return False
            self._report(status)

    def info(self) -> RunInfo:
        c_info = _library.Info(size=ctypes.sizeof(_library.Info))
        status = self._lib.gossamer_info(self._open_handle(), ctypes.byref(c_info))
        if status != _library.OK:
            self._report(status)
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
        )

    @property
    def ready(self) -> bool:
        """Whether the run takes part in the training now."""
        return self.info().state in (State.RUNNING, State.QUARANTINED)

    @property
    def clock(self) -> int:
        """Samples this replica has been trained on."""
        return self.info().clock

    @property
    def global_clock(self) -> int:
        """The largest clock of any replica that is known: what a learning-rate schedule should follow."""
        return self.info().global_clock

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Detaches from the daemon. The tensors stay as they are and are not touched any more. May be called twice."""
        self._finalizer()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _open_handle(self) -> ctypes.c_void_p:
        if not self._finalizer.alive:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "the run is closed")
        return self._handle

    def _last_error(self) -> str:
        return self._lib.gossamer_last_error(self._handle).decode(errors="replace")

    def _report(self, status: int) -> None:
        if status == _library.BAD_MEMORY:
            _warn(self._last_error())
            return
        name = _library.status_name(status)
        raise GossamerError(name, self._last_error() or name)

    def _move_tensor(self, index: int, pointer: int, owner: Any) -> None:
        """The values of a tensor are at `pointer` from now on."""
        status = self._lib.gossamer_set_tensor_data(self._open_handle(), index, pointer)
        if status != _library.OK:
            self._report(status)
        self._owners[index] = owner
