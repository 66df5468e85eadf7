"""A client of gossamerd in plain Python, written from docs/reference/shared-memory.md alone, so it shows gaps of that
page. It is no library: it tries to attach once, serves all due fragments at every step, and reads and writes its own
lists of numbers.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import math
import mmap
import os
import socket
import struct
from typing import List, NamedTuple, Sequence, Tuple

import xxhash

PAGE_BYTES = 4096
TENSORS_OFFSET, HEADER_BYTES = 28672, 512
TENSOR_BYTES, FRAGMENT_BYTES, REPLY_BYTES = 96, 64, 256
REQUEST_MAGIC, MEMORY_MAGIC = 0x6863617474612D67, 0x31726D6173736F67
RESUME, KEPT = 1, 4
F32, F64, I64 = 0, 1, 7
PARAM, BUFFER, LOCAL = 0, 1, 2
RUNNING = 2

# These are offsets in the header.
CLOCK, STEPS, PUBLICATIONS, DUE_SEQUENCE, STATE, GLOBAL_CLOCK, NEIGHBOURS, VERSION = 192, 200, 208, 256, 260, 264, 276, 320

WITH_CLIENT, CORRECTION_VALID, REPLACE, SERVING = 1, 2, 4, 1 << 8
COMMITS = (2**23 - 1) << 9


class Tensor(NamedTuple):
    name: str
    dtype: int
    role: int
    shape: Tuple[int, ...]
    values: List[float]  # row-major; changed in place; empty if local

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class Refused(RuntimeError):
    """The daemon's status and message."""


def layout_hash(fragment_elements: int, tensors: Sequence[Tensor]) -> int:
    described = b"g-layout" + struct.pack("<IIQ", 1, fragment_elements, len(tensors))
    for tensor in tensors:
        name = tensor.name.encode()
        described += struct.pack("<I", len(name)) + name
        described += struct.pack("<BBB", tensor.dtype if tensor.role == LOCAL else F32, tensor.role, len(tensor.shape))
        described += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
    return xxhash.xxh3_64_intdigest(described, seed=0)


# Python has no atomic operations of its own; GCC's library has them.
_compare_exchange = ctypes.CDLL("libatomic.so.1").__atomic_compare_exchange_8
_compare_exchange.restype = ctypes.c_bool
_compare_exchange.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_int]
SEQUENTIAL = (5, 5)  # __ATOMIC_SEQ_CST, for success and failure


def _pages(size: int) -> int:
    return (size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES


class MinimalClient:
    """One run: open() lays the model out in shared memory, attach() hands it to a daemon, step() serves it."""

    def __init__(self, job: str, tensors: Sequence[Tensor], fragment_elements: int):
        self.tensors = tensors
        self.fragment_elements = fragment_elements
        self._mixed = [tensor for tensor in tensors if tensor.role != LOCAL]
        self.elements = sum(tensor.elements for tensor in self._mixed)
        self.fragments = -(-self.elements // fragment_elements)
        names = b"".join(tensor.name.encode() for tensor in tensors)
        self._names_offset = TENSORS_OFFSET + TENSOR_BYTES * len(tensors)
        self._fragments_offset = _pages(self._names_offset + len(names))
        self._buffers_offset = _pages(self._fragments_offset + FRAGMENT_BYTES * self.fragments)
        self._stride = 4 * fragment_elements
        self._total = _pages(self._buffers_offset + 3 * self.fragments * self._stride)
        self._file = os.memfd_create("minimal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self._file, 0, self._total)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._memory = mmap.mmap(self._file, self._total)
        self._doorbell = os.eventfd(0, os.EFD_CLOEXEC) if hasattr(os, "eventfd") else _eventfd()
        self._socket: socket.socket | None = None
        self._seen = None  # due_sequence when all fragments were last looked at
        self._given = False
        self._kept: List[int] = []  # the descriptor that a daemon has given it to keep
        self._write_tables(job, names)
        for fragment in range(self.fragments):
            self._write_buffer(fragment, 0, self._fragment_values(fragment))
            self._store_word(fragment, publication=0, correction=1, generation=1)
        self._word32(VERSION).value = 4

    def attach(self, path: str, timeout_s: float = 10.0) -> str:
        """Returns the node's id, in hexadecimal. Raises Refused, or OSError without a daemon."""
        if self._socket is not None:
            self._socket.close()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(timeout_s)
        self._socket.connect(path)
        flags = (RESUME if self._given else 0) | (KEPT if self._kept else 0)
        request = struct.pack("=QIIQQ", REQUEST_MAGIC, 1, flags, self._total, os.getpid())
        rights = array.array("i", [self._file, self._doorbell, *self._kept])
        self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        reply, control, _, _ = self._socket.recvmsg(REPLY_BYTES, socket.CMSG_SPACE(rights.itemsize))
        for level, kind, content in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._keep(list(array.array("i", content)))
        magic, version, status, node, message = struct.unpack("=QII16s224s", reply)
        if (magic, version) != (REQUEST_MAGIC, 1):
            raise Refused("the answer is not a daemon's")
        if status != 0:
            raise Refused(f"{status}: {message.split(bytes(1))[0].decode()}")
        self._given = True
        self._seen = None  # the client looks at every word after each attachment
        return node.hex()

    def step(self, samples: int = 1) -> int:
        """Serves due fragments. Returns how many there were."""
        self._word64(CLOCK).value += samples
        self._word64(STEPS).value += 1
        due = self._word32(DUE_SEQUENCE).value
        if due == self._seen:
            return 0
        served = sum(self._serve(fragment) for fragment in range(self.fragments))
        self._seen = due
        if served:
            os.write(self._doorbell, struct.pack("=Q", 1))
        return served

    @property
    def state(self) -> int:
        return self._word32(STATE).value

    @property
    def neighbours(self) -> int:
        return self._word32(NEIGHBOURS).value

    @property
    def global_clock(self) -> int:
        return self._word64(GLOBAL_CLOCK).value

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._keep([])
        os.close(self._file)
        os.close(self._doorbell)

    def _keep(self, descriptors: List[int]) -> None:
        for old in self._kept:
            os.close(old)
        self._kept = descriptors

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _write_tables(self, job: str, names: bytes) -> None:
        header = struct.pack(
            "=QQQQIIIIQQQQQQ64s",
            *(MEMORY_MAGIC, self._total, layout_hash(self.fragment_elements, self.tensors), self.elements),
            *(self.fragment_elements, self.fragments, len(self.tensors), HEADER_BYTES),
            *(TENSORS_OFFSET, self._names_offset, len(names), self._fragments_offset, self._buffers_offset, self._stride),
            job.encode(),
        )
        self._memory[: len(header)] = header
        self._memory[self._names_offset : self._names_offset + len(names)] = names
        name_offset, first_element = self._names_offset, 0
        for index, tensor in enumerate(self.tensors):
            mixed = tensor.role != LOCAL
            shape = tensor.shape + (0,) * (8 - len(tensor.shape))
            name_bytes = len(tensor.name.encode())
            entry = struct.pack(
                "=QIBBBB8QQQ",
                *(name_offset, name_bytes, tensor.dtype, tensor.role, len(tensor.shape), 0, *shape),
                *(first_element if mixed else 0, tensor.elements),
            )
            at = TENSORS_OFFSET + TENSOR_BYTES * index
            self._memory[at : at + TENSOR_BYTES] = entry
            name_offset += name_bytes
            first_element += tensor.elements if mixed else 0

    def _word64(self, offset: int) -> ctypes.c_uint64:
        """Read and written as a whole. The machine keeps the order of other stores (x86-64)."""
        return ctypes.c_uint64.from_buffer(self._memory, offset)

    def _word32(self, offset: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_buffer(self._memory, offset)

    def _store_word(self, fragment: int, publication: int, correction: int, generation: int, commits: int = 0) -> None:
        word = publication << 4 | correction << 6 | commits | (generation % 2**32) << 32
        self._word64(self._fragments_offset + FRAGMENT_BYTES * fragment).value = word

    def _buffer_offset(self, fragment: int, index: int) -> int:
        return self._buffers_offset + (3 * fragment + index) * self._stride

    def _write_buffer(self, fragment: int, index: int, values: Sequence[float]) -> None:
        struct.pack_into(f"={len(values)}f", self._memory, self._buffer_offset(fragment, index), *values)

    # ---- fragments -------------------------------------------------------------------------------------------------

    def _places(self, fragment: int) -> List[Tuple[List[float], int]]:
        """For each element of a fragment, its list and its place there."""
        begin = fragment * self.fragment_elements
        end = min(begin + self.fragment_elements, self.elements)
        places, first = [], 0
        for tensor in self._mixed:
            for i in range(max(begin - first, 0), min(end - first, tensor.elements)):
                places.append((tensor.values, i))
            first += tensor.elements
        return places

    def _fragment_values(self, fragment: int) -> List[float]:
        return [values[i] for values, i in self._places(fragment)]

    def _serve(self, fragment: int) -> bool:
        word = self._word64(self._fragments_offset + FRAGMENT_BYTES * fragment).value
        if not word & WITH_CLIENT:
            return False
        publication, correction = word >> 4 & 3, word >> 6 & 3
        if publication > 2 or correction > 2 or publication == correction:
            raise RuntimeError(f"an impossible word: {word:#x}")
        if not self._begin_to_serve(fragment, word):
            return False
        places = self._places(fragment)
        if word & CORRECTION_VALID:
            change = struct.unpack_from(f"={len(places)}f", self._memory, self._buffer_offset(fragment, correction))
            for (values, i), c in zip(places, change):
                values[i] = c if word & REPLACE else values[i] + c
        spare = 3 - publication - correction
        self._write_buffer(fragment, spare, [values[i] for values, i in places])
        self._word64(self._fragments_offset + FRAGMENT_BYTES * fragment + 8).value = self._word64(CLOCK).value
        self._word64(PUBLICATIONS).value += 1
        self._store_word(fragment, publication=spare, correction=correction, generation=(word >> 32) + 1, commits=word & COMMITS)
        return True

    def _begin_to_serve(self, fragment: int, word: int) -> bool:
        """False if the daemon has just recalled it."""
        at = self._word64(self._fragments_offset + FRAGMENT_BYTES * fragment)
        return _compare_exchange(ctypes.byref(at), ctypes.byref(ctypes.c_uint64(word)), word | SERVING, *SEQUENTIAL)


def _eventfd() -> int:
    """For Python before 3.10."""
    close_on_exec = 0o2000000
    descriptor = ctypes.CDLL(None, use_errno=True).eventfd(0, close_on_exec)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "eventfd")
    return descriptor
