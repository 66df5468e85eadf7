"""A fake daemon: the daemon's side of the shared-memory contract (docs/reference/shared-memory.md), over a real socket and memfd.

It runs in threads of the test: it accepts clients, sets their state, and makes fragments due with corrections.
"""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import tempfile
import threading
import time
from typing import List, Optional, Tuple

PATIENCE_S = 20.0
NOWHERE = "/nonexistent/gossamer.sock"  # nobody listens there

ATTACH_MAGIC = 0x6863617474612D67
ATTACH_DEVICE = 2  # a bit of a request's flags
ACCEPTED, VERSION_DIFFERS, BAD_LAYOUT, JOB_BUSY = range(4)
NO_DEVICE, NOT_PERMITTED = 6, 8
JOINING, RUNNING, DRAINING, QUARANTINED = 1, 2, 3, 4

# These are offsets in the header.
FRAGMENT_ELEMENTS, FRAGMENT_COUNT = 32, 36
FRAGMENTS_OFFSET, BUFFERS_OFFSET, BUFFER_STRIDE = 72, 80, 88
JOB, CLOCK, FINISHING, FINISH_ANSWER = 96, 192, 224, 472
DUE_SEQUENCE, STATE, GLOBAL_CLOCK, FRAGMENTS_PULLED, NEIGHBOURS, EXCHANGES = 256, 260, 264, 272, 276, 280
CLOCK_BASE = 288
BYTES_SENT, BYTES_RECEIVED, CONSENSUS, AGE_SAMPLES, PERIOD_US = 400, 408, 416, 424, 448

WITH_CLIENT, CORRECTION_VALID, REPLACE, EMPTY, COMMITS = 1, 2, 4, 8, (2**23 - 1) << 9
FRAGMENT_BYTES = 64


def eventually(condition, patience_s: float = PATIENCE_S) -> bool:
    """Waits for the condition. False if it is not true within the bound."""
    limit = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.001)
    return True


class Client:
    """One attached training process, as the daemon sees it. For a client that offers GPU memory, a memfd stands in for
    that memory and can be mapped here."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        request, descriptors, _, _ = socket.recv_fds(connection, 64, 3)
        magic, _, self.flags, size, _ = struct.unpack("=QIIQQ", request[:32])
        self.offers_gpu = bool(self.flags & ATTACH_DEVICE)
        assert magic == ATTACH_MAGIC and len(descriptors) == (3 if self.offers_gpu else 2)
        self.memory = mmap.mmap(descriptors[0], size)
        self.buffers = self.memory
        if self.offers_gpu:
            _, bytes_offered = struct.unpack("=16sQ", request[32:])
            self.buffers = mmap.mmap(descriptors[2], bytes_offered)
        for descriptor in descriptors:
            os.close(descriptor)

    def reply(self, status: int, message: str = "") -> None:
        self.connection.send(struct.pack("=QII16s224s", ATTACH_MAGIC, 1, status, b"\xab" * 16, message.encode()))

    def accept(self, state: int = RUNNING) -> None:
        self.set_u32(STATE, state)
        self.reply(ACCEPTED)

    def u32(self, offset: int) -> int:
        return struct.unpack_from("=I", self.memory, offset)[0]

    def u64(self, offset: int) -> int:
        return struct.unpack_from("=Q", self.memory, offset)[0]

    def set_u32(self, offset: int, value: int) -> None:
        struct.pack_into("=I", self.memory, offset, value)

    def set_u64(self, offset: int, value: int) -> None:
        struct.pack_into("=Q", self.memory, offset, value)

    def set_f64(self, offset: int, value: float) -> None:
        struct.pack_into("=d", self.memory, offset, value)

    def _word_offset(self, fragment: int) -> int:
        return self.u64(FRAGMENTS_OFFSET) + FRAGMENT_BYTES * fragment

    def _buffer_offset(self, fragment: int, index: int) -> int:
        begin = 0 if self.offers_gpu else self.u64(BUFFERS_OFFSET)
        return begin + (3 * fragment + index) * self.u64(BUFFER_STRIDE)

    def is_due(self, fragment: int = 0) -> bool:
        return bool(self.u64(self._word_offset(fragment)) & WITH_CLIENT)

    def publication(self, count: int, fragment: int = 0) -> List[float]:
        index = self.u64(self._word_offset(fragment)) >> 4 & 3
        return list(struct.unpack_from(f"={count}f", self.buffers, self._buffer_offset(fragment, index)))

    def make_due(self, correction: Optional[List[float]], fragment: int = 0, replace: bool = False) -> None:
        """Hands a fragment over, with a correction unless that is None, and announces it. In lean memory, the kernel
        takes pages when they are touched here and by the client."""
        word = self.u64(self._word_offset(fragment))
        publication, old = word >> 4 & 3, word >> 6 & 3
        spare = 3 - publication - old
        values = array.array("f", correction or [])
        struct.pack_into(f"={len(values)}f", self.buffers, self._buffer_offset(fragment, spare), *values)
        flags = WITH_CLIENT | (REPLACE if replace else 0) | (0 if correction is None else CORRECTION_VALID)
        kept = word >> 32 << 32 | word & (EMPTY | COMMITS)
        self.set_u64(self._word_offset(fragment), kept | publication << 4 | spare << 6 | flags)
        self.set_u32(DUE_SEQUENCE, (self.u32(DUE_SEQUENCE) + 1) % 2**32)

    def is_gone(self) -> bool:
        """Whether the run was closed, or its process has ended."""
        try:
            return self.connection.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.connection.close()
        self.memory.close()
        self.buffers.close()


class ContractDaemon:
    """Listens in a temporary folder. The clients get `replies` in turn. Later clients are accepted, but those that
    offer GPU memory only with `gpu`."""

    def __init__(self, *replies: Tuple[int, str], state: int = RUNNING, gpu: bool = False):
        self._folder = tempfile.TemporaryDirectory(prefix="gossamer-test-")
        self.path = os.path.join(self._folder.name, "client.sock")
        self._replies = list(replies)
        self._state = state
        self._gpu = gpu
        self._clients: List[Client] = []
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(4)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            client = Client(connection)
            if self._replies:
                client.reply(*self._replies.pop(0))
                client.close()
                continue
            if client.offers_gpu and not self._gpu:
                client.reply(NO_DEVICE, "this daemon has no GPU")
                client.close()
                continue
            client.accept(self._state)
            with self._changed:
                self._clients.append(client)
                self._changed.notify_all()

    def client(self, index: int = 0) -> Client:
        """The client that was accepted as number `index`; waits for it."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._clients) > index, PATIENCE_S):
                raise AssertionError("no client attached")
            return self._clients[index]

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        for client in self._clients:
            client.close()
        self._folder.cleanup()

    def __enter__(self) -> ContractDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
