"""Hostile training processes at the socket that every user may write to: requests and memory that are nearly right or
not at all, memory that changes under the daemon at any time, floods. The daemons survive, another user's job beside
them is trained exactly as without them, and the resources of the hostile ones are given back.
"""

import array
import os
import random
import socket
import struct
import threading
import time
import unittest
from typing import Callable, List, Optional, Sequence

import numpy as np

import minimal_client
from minimal_client import F32, PARAM, MinimalClient, Refused, Tensor
from support import JOB, PATIENCE_S, Node, SystemTest, wait_until

EVIL = "evil"
FRAGMENT_ELEMENTS = 256
ELEMENTS = 700
GOOD_ELEMENTS = 3000
DAMAGE_S, SCRIBBLE_S, FLOOD = 2.0, 4.0, 200
# Numbers that damage a model, and a few sound ones.
SPECIAL = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-45, 0.0, 1.0], np.float32)


def seed() -> int:
    chosen = int(os.environ.get("GOSSAMER_SEED", random.SystemRandom().randrange(2**32)))
    print(f"GOSSAMER_SEED={chosen}", flush=True)
    return chosen


class HostileClient(MinimalClient):
    """It begins with a valid model."""

    def __init__(self, job: str = EVIL):
        super().__init__(job, [Tensor("w", F32, PARAM, (ELEMENTS,), [1.0] * ELEMENTS)], FRAGMENT_ELEMENTS)

    def damage(self, numbers: random.Random) -> None:
        """Damages a few bytes of the header and the tables."""
        for _ in range(numbers.choice([1, 1, 2, 8, 64])):
            at = numbers.randrange(minimal_client.HEADER_BYTES)
            if numbers.random() < 0.4:
                at = numbers.randrange(minimal_client.TENSORS_OFFSET, self._buffers_offset)
            self._memory[at] = numbers.choice([0, 1, 0x7F, 0x80, 0xFF, numbers.randrange(256)])

    def scribble(self, numbers: random.Random, noise: np.random.Generator) -> None:
        """Writes anything anywhere: valid and invalid words, counters, values, whole buffers."""
        kind = numbers.randrange(5)
        if kind == 0:
            fragment = numbers.randrange(self.fragments)
            word = self._word64(self._fragments_offset + minimal_client.FRAGMENT_BYTES * fragment)
            bits = numbers.getrandbits(64)
            word.value = bits if numbers.random() < 0.2 else bits & 0xFFFFFFFF000000F7
        elif kind == 1:
            self._word64(8 * numbers.randrange(minimal_client.HEADER_BYTES // 8)).value = numbers.getrandbits(64)
        elif kind == 2:
            self._word64(8 * numbers.randrange(self._buffers_offset // 8)).value = numbers.getrandbits(64)
        else:
            values = np.frombuffer(self._memory, np.float32, offset=self._buffers_offset)
            if kind == 3:
                values[noise.integers(0, len(values), 64)] = noise.choice(SPECIAL, 64)
            else:
                values[:] = noise.standard_normal(len(values)).astype(np.float32) * 10.0 ** numbers.randrange(-30, 30)
            del values

    def ring(self) -> None:
        try:
            os.eventfd_write(self._doorbell, 1)
        except BlockingIOError:
            pass

    def gone(self) -> bool:
        """Whether the daemon has dropped it."""
        self._socket.setblocking(False)
        try:
            return self._socket.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def ask(path: str, request: bytes, descriptors: Sequence[int]) -> Optional[int]:
    """The status of the answer; None without an answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(path)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            connection.sendmsg([request], rights)
            reply = connection.recv(minimal_client.REPLY_BYTES)
        except OSError:
            return None
        return struct.unpack_from("=QII", reply)[2] if len(reply) == minimal_client.REPLY_BYTES else None


class HostileClients(SystemTest):
    def setUp(self) -> None:
        super().setUp()
        self.nodes = self.start_nodes(2)
        start = np.arange(GOOD_ELEMENTS, dtype=np.float32)
        self.good = [self.attach(node, start * 0) for node in self.nodes]
        self.added = 0.0
        self.incarnations = [node.status()["incarnation"] for node in self.nodes]
        self.memory_bytes = [node.status()["memory_bytes"] for node in self.nodes]
        self.seed = seed()
        self.stopped = threading.Event()
        self.threads: List[threading.Thread] = []
        self.failures_in_threads: List[BaseException] = []
        self.exchanged = 0
        self.counts = {"attached": 0, "refused": 0, "let go": 0}

    def train(self, seconds: float, enough: Callable[[], bool] = lambda: True) -> None:
        """The good clients train in the meantime: a few hundred exact steps; more until the hostile ones have tried
        enough."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or not enough():
            if time.monotonic() > end + PATIENCE_S:
                self.fail(f"the hostile ones have tried too little: {self.counts}, {self.exchanged} exchanges")
            self.good[0].array += 1 / 64
            self.added += 1 / 64
            for client in self.good:
                client.step()
            evil = self.nodes[0].job(EVIL)
            self.exchanged = max(self.exchanged, evil["exchanges"] if evil else 0)
            time.sleep(0.005)

    def begin(self, act, *arguments) -> None:
        def run() -> None:
            try:
                act(*arguments)
            except BaseException as failure:  # reported at the end
                self.failures_in_threads.append(failure)

        thread = threading.Thread(target=run)
        self.threads.append(thread)
        self.addCleanup(thread.join)
        self.addCleanup(self.stopped.set)
        thread.start()

    def end(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)
        self.assertEqual(self.failures_in_threads, [])

    def assert_unharmed(self) -> None:
        for node, incarnation, memory_bytes in zip(self.nodes, self.incarnations, self.memory_bytes):
            self.assertTrue(node.running(), f"{node.name} has died")
            wait_until(lambda node=node: node.status()["clients"] == 1, PATIENCE_S, "the hostile ones are gone")
            status = node.status()
            self.assertEqual((status["incarnation"], status["memory_bytes"]), (incarnation, memory_bytes))
        self.converge(self.good, np.full(GOOD_ELEMENTS, self.added))

    def damaged_requests(self, node: Node, numbers: random.Random) -> None:
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        self.addCleanup(os.close, write_end)
        while not self.stopped.is_set():
            client = HostileClient()
            try:
                if numbers.random() < 0.5:
                    client.damage(numbers)
                    try:
                        client.attach(str(node.client_socket))
                        self.counts["attached"] += 1
                    except Refused:
                        self.counts["refused"] += 1
                    continue
                request = bytearray(
                    struct.pack("=QIIQQ", minimal_client.REQUEST_MAGIC, 1, 0, client._total, os.getpid())
                )
                for _ in range(numbers.randrange(3)):
                    request[numbers.randrange(len(request))] = numbers.randrange(256)
                size = numbers.choice([len(request)] * 4 + [0, 1, 31, 33, 4096])
                usual = [client._file, client._doorbell]
                some = [read_end, write_end, client._file, client._doorbell, 0]
                descriptors = usual if numbers.random() < 0.5 else numbers.choices(some, k=numbers.randrange(12))
                status = ask(str(node.client_socket), bytes(request.ljust(size, b"\0"))[:size], descriptors)
                self.counts["attached" if status == 0 else "refused"] += 1
            finally:
                client.close()

    def scribbles(self, node: Node, numbers: random.Random) -> None:
        noise = np.random.default_rng(numbers.getrandbits(64))
        while not self.stopped.is_set():
            client = HostileClient()
            try:
                client.attach(str(node.client_socket))
                self.counts["attached"] += 1
                self.misbehave(client, numbers, noise)
                self.counts["let go"] += client.gone()
            except Refused:
                self.counts["refused"] += 1
            finally:
                client.close()

    def misbehave(self, client: HostileClient, numbers: random.Random, noise: np.random.Generator) -> None:
        """Misbehaves for a part of a second. First it keeps to the rules until it has joined, so that its later writes
        are exchanged."""
        begin = time.monotonic()
        honest_s = numbers.choice([0, 0.3, 0.3])
        length_s = honest_s + numbers.uniform(0.02, 0.4)
        while not self.stopped.is_set() and time.monotonic() < begin + length_s and not client.gone():
            if time.monotonic() > begin + honest_s:
                client.scribble(numbers, noise)
                client.ring()
            if numbers.random() < 0.5:
                try:
                    client.step()
                except (RuntimeError, struct.error, OverflowError):  # it may stumble over its own writes
                    pass
            time.sleep(0.0005)

    def test_damaged_requests_and_memory(self) -> None:
        for number, node in enumerate(self.nodes):
            self.begin(self.damaged_requests, node, random.Random(f"{self.seed} damage {number}"))
        self.train(DAMAGE_S, lambda: self.counts["refused"] > 100)
        self.end()
        print(self.counts, flush=True)
        self.assert_unharmed()

    def test_memory_that_changes_all_the_time(self) -> None:
        for number, node in enumerate(self.nodes):
            self.begin(self.scribbles, node, random.Random(f"{self.seed} scribble {number}"))
        # The values that these clients write must be exchanged, too.
        self.train(
            SCRIBBLE_S, lambda: self.counts["attached"] > 5 and self.counts["let go"] > 0 and self.exchanged > 0
        )
        self.end()
        print(self.counts, flush=True)
        self.assert_unharmed()

    def test_ever_new_jobs_keep_nobody_out(self) -> None:
        """What former clients leave behind ends by itself, and counts for no limit."""
        limited = self.cluster.start("limited", {"limits": {"jobs": 3}})
        with_attached = HostileClient("held")
        with_attached.attach(str(limited.client_socket))
        self.addCleanup(with_attached.close)
        for number in range(50):
            client = HostileClient(f"{EVIL}-{number}")
            client.attach(str(limited.client_socket))
            client.close()
        self.assertNotIn("which is its limit", limited.log.read_text())
        self.assertEqual(limited.job("held")["clients"], 1)

    def test_floods(self) -> None:
        path = str(self.nodes[0].client_socket)
        silent = []
        for _ in range(FLOOD):  # say nothing
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            try:
                connection.connect(path)
            except BlockingIOError:
                pass  # the backlog is full
            silent.append(connection)
        self.train(0.5)
        for connection in silent:
            connection.close()
        # Attaches more jobs and clients than the daemon accepts.
        many = [HostileClient(f"{EVIL}-{number}") for number in range(80)]
        refused = 0
        for client in many:
            try:
                client.attach(path)
            except Refused as refusal:
                self.assertIn("[limits]", str(refusal))
                refused += 1
        self.assertGreater(refused, 0)
        self.assertIn("clients: ", self.nodes[0].status()["limits_near"])
        self.train(0.5)
        for client in many:
            client.close()
        self.assert_unharmed()


if __name__ == "__main__":
    unittest.main()
