"""Finds libgossamer.so.1 and declares its functions as gossamer.h does. Everything here is private to the package."""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
import threading
import weakref
from pathlib import Path
from typing import Any, Iterator, Set

FILE_NAME = "libgossamer.so.1"


class GossamerError(RuntimeError):
    """A call that failed. `status` is the name of the C library's status, such as "GOSSAMER_UNSUPPORTED"."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


class GossamerWarning(UserWarning):
    """Training goes on, but not as asked for: for instance, there is no daemon yet."""


# These are values of gossamer_status.
OK = 0
NO_DAEMON = 5
REJECTED = 6
TIMEOUT = 7
BAD_MEMORY = 8
FORKED = 9
BUSY = 10
NOT_LOADED = 11
NO_DEVICE = 12
NOT_FINITE = 13
INTERRUPTED = 14
DUE = 15

# gossamer_load and gossamer_store: context, tensor, first element, elements
Load = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64)
Store = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64)

# These are values of gossamer_dtype.
F32, F64, F16, BF16, I8, I16, I32, I64, U8, BOOL = range(10)
DTYPE_BYTES = (4, 8, 2, 2, 1, 2, 4, 8, 1, 1)

# The keys are the names that users give to a gossamer_role.
ROLES = {"param": 0, "buffer": 1, "local": 2}
MEMORIES = {"auto": 0, "resident": 1, "lean": 2}

# These are values of gossamer_device.
HOST, CUDA = range(2)

# The index is a gossamer_path.
PATHS = ("host", "device", "pinned")
METHODS = ("gossip", "average", "server")
AVERAGE_CODECS = ("f32", "q8")

# These are values of gossamer_average_wait.
WAIT_ENTRY = 1
WAIT_MEMBERS = 2
WAIT_CONTRIBUTIONS = 3
WAIT_LATE = 4
WAIT_VALUES = 5


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("job", ctypes.c_char_p),
        ("socket_path", ctypes.c_char_p),
        ("fragment_elements", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("step_budget_bytes", ctypes.c_uint64),
        ("initial_clock_samples", ctypes.c_uint64),
        ("memory", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("settings", ctypes.c_char_p),
        ("parts", ctypes.c_uint32),
        ("part", ctypes.c_uint32),
        ("replica", ctypes.c_char_p),
    ]


class Slice(ctypes.Structure):
    _fields_ = [("offset", ctypes.POINTER(ctypes.c_uint64)), ("size", ctypes.POINTER(ctypes.c_uint64))]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_uint32),
        ("role", ctypes.c_uint32),
        ("dimensions", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_uint64)),
        ("data", ctypes.c_void_p),
        ("slice", ctypes.POINTER(Slice)),
        ("reserved_more", ctypes.c_uint64),
    ]


class Info(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("state", ctypes.c_uint32),
        ("attached", ctypes.c_uint32),
        ("clock_samples", ctypes.c_uint64),
        ("global_clock_samples", ctypes.c_uint64),
        ("steps", ctypes.c_uint64),
        ("exchanges", ctypes.c_uint64),
        ("publications", ctypes.c_uint64),
        ("neighbours", ctypes.c_uint32),
        ("fragments_pulled", ctypes.c_uint32),
        ("fragments", ctypes.c_uint32),
        ("fragment_elements", ctypes.c_uint32),
        ("elements", ctypes.c_uint64),
        ("layout_hash", ctypes.c_uint64),
        ("attachments", ctypes.c_uint64),
        ("node_id", ctypes.c_uint8 * 16),
        ("message", ctypes.c_char * 256),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("consensus", ctypes.c_double),
        ("age_samples", ctypes.c_uint64),
        ("unresolved", ctypes.c_uint64),
        ("quarantines", ctypes.c_uint64),
        ("period_us", ctypes.c_uint64),
        ("pulled_bytes", ctypes.c_uint64),
        ("serving_ns", ctypes.c_uint64),
        ("client_index", ctypes.c_uint32),
        ("clients", ctypes.c_uint32),
        ("window_bytes", ctypes.c_uint64),
        ("path", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("trained_samples", ctypes.c_uint64),
        ("method", ctypes.c_uint32),
        ("average_steps", ctypes.c_uint32),
        ("average_members", ctypes.c_uint32),
        ("average_codec", ctypes.c_uint32),
        ("outer_momentum", ctypes.c_double),
        ("corrections", ctypes.c_uint64),
        ("parts", ctypes.c_uint32),
        ("part", ctypes.c_uint32),
    ]


class FinishInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("agreed", ctypes.c_uint32),
        ("saver", ctypes.c_uint32),
        ("members", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("distance", ctypes.c_double),
        ("clock_samples", ctypes.c_uint64),
    ]


class AverageOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("at_least", ctypes.c_uint32),
        ("grace_ms", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_int64),
        ("codec", ctypes.c_uint32),
        ("exact", ctypes.c_uint32),
        ("layout", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class AverageInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("of", ctypes.c_uint32),
        ("joined", ctypes.c_uint32),
        ("round", ctypes.c_uint64),
        ("waits_for", ctypes.c_uint32),
        ("members", ctypes.c_uint32),
        ("differs", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


def _candidates() -> Iterator[str]:
    """The places where the library may be, best first: beside the package in a wheel, a build folder or an installation
    prefix, then wherever the dynamic linker looks."""
    package = Path(__file__).resolve().parent
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    yield str(package / FILE_NAME)
    for parent in list(package.parents)[:5]:
        for folder in (parent / "lib", parent / "lib" / multiarch):
            if (folder / FILE_NAME).exists():
                yield str(folder / FILE_NAME)
    yield FILE_NAME


def _open() -> ctypes.CDLL:
    named = os.environ.get("GOSSAMER_LIBRARY")
    tried = []
    for path in [named] if named else _candidates():
        try:
            found = ctypes.CDLL(path)
            if hasattr(found, "gossamer_open"):
                return found
            tried.append(f"{path} is another library")
        except OSError as error:
            tried.append(str(error))
    raise ImportError(
        "Gossamer's client library was not found. Install it, or set GOSSAMER_LIBRARY to the path of "
        f"{FILE_NAME}. Tried: " + "; ".join(tried)
    )


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The library, loaded at the first use."""
    lib = _open()
    run = ctypes.c_void_p
    status = ctypes.c_int
    declarations = {
        "gossamer_options_init": (None, [ctypes.POINTER(Options)]),
        "gossamer_open": (
            status,
            [
                ctypes.POINTER(Options),
                ctypes.POINTER(Tensor),
                ctypes.c_size_t,
                ctypes.POINTER(run),
                ctypes.c_char_p,
                ctypes.c_size_t,
            ],
        ),
        "gossamer_wait_ready": (status, [run, ctypes.c_int64]),
        "gossamer_count_step": (status, [run, ctypes.c_uint64]),
        "gossamer_serve_due": (status, [run]),
        "gossamer_info": (status, [run, ctypes.POINTER(Info)]),
        "gossamer_set_tensor_data": (status, [run, ctypes.c_size_t, ctypes.c_void_p]),
        "gossamer_set_stream": (status, [run, ctypes.c_void_p]),
        "gossamer_set_transfer": (status, [run, Load, Store, ctypes.c_void_p]),
        "gossamer_log": (status, [run, ctypes.c_char_p, ctypes.c_double]),
        "gossamer_logged": (
            status,
            [run, ctypes.c_char_p, *[ctypes.POINTER(ctypes.c_double)] * 2, ctypes.POINTER(ctypes.c_uint32)],
        ),
        "gossamer_set_cursor": (status, [run, ctypes.c_char_p, ctypes.c_size_t]),
        "gossamer_get_cursor": (status, [run, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]),
        "gossamer_members": (status, [run, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]),
        "gossamer_finish": (status, [run, ctypes.c_int64, ctypes.POINTER(FinishInfo)]),
        "gossamer_average": (
            status,
            [
                run,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.POINTER(AverageOptions),
                ctypes.POINTER(AverageInfo),
            ],
        ),
        "gossamer_average_leave": (status, [run, ctypes.c_char_p]),
        "gossamer_average_memory": (ctypes.c_void_p, [ctypes.c_size_t]),
        "gossamer_average_memory_free": (None, [ctypes.c_void_p]),
        "gossamer_close": (None, [run]),
        "gossamer_last_error": (ctypes.c_char_p, [run]),
        "gossamer_status_name": (ctypes.c_char_p, [status]),
        "gossamer_version": (ctypes.c_char_p, []),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


class Calls:
    """The library's functions for one run. Calls of other threads wait for the one that is under way, so that a run may be
    closed by any of them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # re-entrant, because a call of the library may call back into Python
        # gossamer_count_step() never waits, so it is called without releasing Python's own lock.
        self.gossamer_count_step = ctypes.PyDLL(None, handle=library()._handle).gossamer_count_step
        self.gossamer_count_step.argtypes = library().gossamer_count_step.argtypes

    def __getattr__(self, name: str) -> Any:
        function = getattr(library(), name)

        def call(*arguments: Any) -> Any:
            with self.lock:
                return function(*arguments)

        setattr(self, name, call)
        return call


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def status_name(status: int) -> str:
    return _text(library().gossamer_status_name(status))


_average_memory: Set[int] = set()  # the addresses where it begins


def average_memory(count: int) -> ctypes.Array[ctypes.c_float]:
    """float32 zeros in memory that the daemon maps, too, so that averaging them copies nothing. Freed with the array."""
    lib = library()
    address = lib.gossamer_average_memory(count)
    if not address:
        raise MemoryError(f"there is no shared memory for {count} numbers")
    _average_memory.add(address)
    kind: Any = type("Floats", (ctypes.c_float * count,), {})  # ctypes' own array types have no weak references
    floats: ctypes.Array[ctypes.c_float] = kind.from_address(address)
    weakref.finalize(floats, _free_average_memory, address).atexit = False
    return floats


def is_average_memory(address: int) -> bool:
    return address in _average_memory


def _free_average_memory(address: int) -> None:
    _average_memory.discard(address)
    library().gossamer_average_memory_free(address)


def version() -> str:
    """The version of the client library."""
    return _text(library().gossamer_version())
