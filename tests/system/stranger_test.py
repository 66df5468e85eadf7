"""A stranger who can reach the port, with or without an expired invitation (hostile_stranger.cpp): he completes
handshakes, or only connects, and is admitted nowhere. Whatever he does, the members train on, others can join them, and
the resources of his connections are bounded.
"""

import base64
import itertools
import json
import os
import resource
import select
import selectors
import socket
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

from curve import Handshake, a_property, greeting
from support import BUILD, PATIENCE_S, Node, SystemTest, gossamerctl, private_bytes, start_program, wait_until
from training import descriptors

HOSTILE_STRANGER = os.environ.get("GOSSAMER_HOSTILE_STRANGER", "")
ELEMENTS = 2000
# The bounds in docs/reference/wire.md: how many strangers may be there at once, and how many seconds each has.
MAX_STRANGERS = 64
STRANGER_PATIENCE_S = 10
# How many descriptors the flooded daemon may open. A quarter of them is for strangers.
FEW_DESCRIPTORS = 240
# The type of service of connections that carry sealed bulk, the largest frame, and how many frames stay incomplete.
SEALED_BULK_MARK = 28
FRAME_BYTES = 16 << 20
# A frame so small that the daemon's C library keeps its memory for another one, for a while.
KEPT_FRAME_BYTES = 4 << 20
FLOODS = 16
FLOODS_AT_ONCE = 32
FLOOD_S = 3.0
COMING_BACK = 8000
HALF_HANDSHAKES = 10000
NEWCOMERS = 3
# docs/explanation/security.md: how soon a newcomer is in, whatever the crowd at the port.
JOIN_S = 5.0
COME_AND_GO = 2000
ADDRESSES = 250
STRANGERS_BYTES = 32 << 20


def beginning_of_a_frame(mechanism: bytes, frame_bytes: int) -> bytes:
    """The greeting with this mechanism, and the header of a command."""
    return greeting(mechanism) + b"\x06" + struct.pack(">Q", frame_bytes)


def has_ended(connection: socket.socket) -> bool:
    """Whether the other end has closed it. Only reading tells: where that end's buffer is full, what was written stays."""
    try:
        while connection.recv(1 << 12):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def send_some(connection: socket.socket, piece: bytes) -> int:
    """How many bytes there was room for. Nothing fits into one that has ended."""
    try:
        return connection.send(piece)
    except OSError:
        return 0


def be_nice(node: Node, niceness: int) -> None:
    """Only the loop's thread becomes nicer. ZeroMQ's threads go on reading while it waits for a processor."""
    os.setpriority(os.PRIO_PROCESS, node.program.pid, niceness)


class Stranger(SystemTest):
    def setUp(self) -> None:
        super().setUp()
        self.nodes = self.start_nodes(2)
        self.both = [self.attach(node, np.zeros(ELEMENTS)) for node in self.nodes]

    def expired_invitation(self, node: Node) -> str:
        done = gossamerctl(BUILD, "--socket", str(node.control_socket), "invite", "--expires", "1s",
                           "--address", node.address)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        expired = time.time() + 1.1
        wait_until(lambda: time.time() > expired, PATIENCE_S, "the invitation has expired")
        return done.stdout

    def start_stranger(self, node: Node, act: str, count: int) -> subprocess.Popen:
        stranger = subprocess.Popen(
            [HOSTILE_STRANGER, act, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(stranger.stdout.close)
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        stranger.stdin.write(self.expired_invitation(node))
        stranger.stdin.flush()
        return stranger

    def told(self, stranger: subprocess.Popen) -> Dict[str, Any]:
        line = stranger.stdout.readline()
        self.assertTrue(line, "the stranger tells what became of its connections")
        return json.loads(line)

    def assert_unmoved(self) -> None:
        for node in self.nodes:
            self.assertTrue(node.running(), node.log.read_text(errors="replace")[-3000:])
        self.assert_still_exchanges(self.both)

    def test_chooses_the_routing_ids_that_come_next(self) -> None:
        """A ROUTER that has made up the routing id of one of two connections with the same id ends by an assertion."""
        with self.start_stranger(self.nodes[0], "routing-ids", 64) as stranger:
            told = self.told(stranger)
            stranger.stdin.close()
        self.assertGreater(told["secured"], 64, "an invitation is enough for a handshake")
        self.assert_unmoved()

    def test_claims_the_same_routing_ids_again_and_again(self) -> None:
        with self.start_stranger(self.nodes[0], "come-and-go", COME_AND_GO) as stranger:
            self.assertGreater(self.told(stranger)["secured"], COME_AND_GO // 2)
        self.assert_unmoved()

    def sockets(self, node: Node) -> int:
        return descriptors(node.program.pid)[0]

    def test_holds_connections(self) -> None:
        """More connections than there is room for, each with a handshake and none with a hello."""
        node = self.nodes[0]
        before = self.sockets(node)
        stranger = self.start_stranger(node, "hold", 2 * MAX_STRANGERS)
        self.told(stranger)
        wait_until(lambda: self.sockets(node) <= before + MAX_STRANGERS, PATIENCE_S, "there are only so many")
        self.assert_unmoved()
        newcomer = self.cluster.start("newcomer")
        wait_until(lambda: newcomer.status()["neighbours"] == 2, PATIENCE_S, "a member still comes in")
        # The daemon does not count connections whose handshake took too long on a busy machine. It closes them, too.
        wait_until(
            lambda: node.status()["strangers_closed"] >= MAX_STRANGERS and self.sockets(node) <= before + 16,
            STRANGER_PATIENCE_S + PATIENCE_S,
            "all had their time",
        )
        stranger.stdin.close()
        self.assertEqual(self.told(stranger)["ended"], 2 * MAX_STRANGERS)
        self.assert_unmoved()

    def begin_a_frame(self, node: Node, mechanism: bytes, mark: int = 0, frame_bytes: int = FRAME_BYTES) -> socket.socket:
        stranger = socket.socket()
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, mark)
        stranger.settimeout(PATIENCE_S)
        stranger.connect(node.endpoint)
        stranger.sendall(beginning_of_a_frame(mechanism, frame_bytes))
        stranger.setblocking(False)
        return stranger

    def test_sends_frames_that_do_not_end(self) -> None:
        """In the handshake, on connections of either kind. ZeroMQ keeps what it has of a frame, up to 16 MiB."""
        node = self.nodes[0]
        before = private_bytes(node)
        most = before
        piece = bytes(1 << 18)
        for mechanism, mark in ((b"CURVE", 0), (b"PLAIN", SEALED_BULK_MARK)):
            for number in range(FLOODS):
                with self.begin_a_frame(node, mechanism, mark) as stranger:
                    begun = time.monotonic()
                    left = FRAME_BYTES - 1  # the last byte does not come
                    while not has_ended(stranger):
                        self.assertLess(time.monotonic(), begun + PATIENCE_S, (mechanism, number))
                        select.select([stranger], [stranger] if left > 0 else [], [], 0.1)
                        left -= send_some(stranger, piece[:left])
                        most = max(most, private_bytes(node))
        self.assertLess(most - before, STRANGERS_BYTES)
        self.assertGreaterEqual(node.status()["strangers_closed"], 2 * FLOODS)
        self.assert_unmoved()

    def test_sends_frames_that_do_not_end_on_many_connections_at_once(self) -> None:
        """As fast as the daemon reads, for a while and until each has been made anew. What it grows by is given back."""
        node = self.nodes[0]
        before = private_bytes(node)
        for frame_bytes in (FRAME_BYTES, KEPT_FRAME_BYTES):
            most = self.flood(node, frame_bytes)
            print(f"grown by {(most - before) >> 20} MiB")
            self.assertLess(most - before, STRANGERS_BYTES)
            wait_until(lambda: private_bytes(node) < before + FRAME_BYTES // 2, PATIENCE_S, "memory is given back")
        self.assertGreater(node.status()["strangers_closed"], FLOODS_AT_ONCE)
        self.assert_unmoved()

    def flood(self, node: Node, frame_bytes: int) -> int:
        """The most private bytes that the daemon had."""
        piece = bytes(1 << 18)
        most = 0
        made: List[socket.socket] = []
        begun = time.monotonic()
        ended = 0
        while time.monotonic() < begun + FLOOD_S or ended <= FLOODS_AT_ONCE:
            self.assertLess(time.monotonic(), begun + PATIENCE_S, f"{ended} were closed")
            while len(made) < FLOODS_AT_ONCE:
                made.append(self.begin_a_frame(node, b"CURVE", frame_bytes=frame_bytes))
            readable, writable, _ = select.select(made, made, [], 0.1)
            for stranger in writable:
                send_some(stranger, piece)
            for stranger in filter(has_ended, readable):
                stranger.close()
                made.remove(stranger)
                ended += 1
            most = max(most, private_bytes(node))
        for stranger in made:
            stranger.close()
        return most

    def test_comes_back_from_many_addresses(self) -> None:
        """Thousands of connections, each made anew as soon as it is closed. All strangers together take less than
        STRANGERS_BYTES, and a node at another address comes in."""
        node = self.nodes[0]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for name, niceness in (("newcomer", 0), ("second", 19)):
            be_nice(node, niceness)
            self.come_back(node, name, min(COMING_BACK, hard // 2))
        self.assert_unmoved()

    def test_begins_handshakes_from_many_addresses(self) -> None:
        """Each half a handshake, with the right listening key, and begun anew as soon as it is closed. A newcomer's own
        handshakes are cut off, too; it tries again soon, blames no key, and is in within JOIN_S."""
        node = self.nodes[0]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        listening_key = base64.urlsafe_b64decode(self.expired_invitation(node).split(":")[1] + "==")[24:56]
        crowd = start_program(
            self,
            [sys.executable, Path(__file__).with_name("crowd.py"), *map(str, node.endpoint), str(HALF_HANDSHAKES),
             listening_key.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        closed = node.status()["strangers_closed"]
        wait_until(
            lambda: node.status()["strangers_closed"] > closed + 5 * HALF_HANDSHAKES, PATIENCE_S, "the crowd is at the port"
        )
        took: List[float] = []
        for number in range(NEWCOMERS):
            newcomer = self.cluster.start(f"newcomer-{number}")
            started = time.monotonic()
            wait_until(lambda: newcomer.status()["neighbours"] == 2 + number, PATIENCE_S, "a member still comes in")
            took.append(time.monotonic() - started)
            self.assertNotIn("cluster key", newcomer.log.read_text(encoding="utf-8"))
        made, _ = crowd.communicate(timeout=PATIENCE_S)
        print(f"{made.strip()} half handshakes; newcomers in after {', '.join(f'{s:.2f} s' for s in took)}")
        self.assertLess(max(took), JOIN_S)
        self.assert_unmoved()

    def come_back(self, node: Node, name: str, at_once: int) -> None:
        before = most = private_bytes(node)
        newcomer = None
        made = 0
        begun = time.monotonic()
        with selectors.DefaultSelector() as coming_back:
            while (
                time.monotonic() < begun + FLOOD_S
                or made <= 2 * COMING_BACK
                or newcomer is None
                or newcomer.status()["neighbours"] < 2
            ):
                self.assertLess(time.monotonic(), begun + PATIENCE_S, "a member still comes in")
                if newcomer is None and time.monotonic() > begun + FLOOD_S / 2:
                    newcomer = self.cluster.start(name)
                while len(coming_back.get_map()) < at_once:
                    stranger = socket.socket()
                    stranger.setblocking(False)
                    stranger.bind((f"127.1.{made % ADDRESSES}.1", 0))
                    stranger.connect_ex(node.endpoint)
                    coming_back.register(stranger, selectors.EVENT_READ | selectors.EVENT_WRITE)
                    made += 1
                for key, events in coming_back.select(0.1):
                    if events & selectors.EVENT_WRITE and send_some(key.fileobj, greeting(b"CURVE")) > 0:
                        coming_back.modify(key.fileobj, selectors.EVENT_READ)
                    elif has_ended(key.fileobj):
                        coming_back.unregister(key.fileobj)
                        key.fileobj.close()
                most = max(most, private_bytes(node))
            for key in list(coming_back.get_map().values()):
                key.fileobj.close()
        print(f"{made} connections, grown by {(most - before) >> 20} MiB")
        self.assertLess(most - before, STRANGERS_BYTES)

    def test_tells_of_many_properties(self) -> None:
        """In the handshake, for which the public half of the listening key is enough. ZeroMQ keeps each property until the
        connection ends, and takes 37 times its bytes for it."""
        node = self.nodes[0]
        listening_key = base64.urlsafe_b64decode(self.expired_invitation(node).split(":")[1] + "==")[24:56]
        names = [a_property(bytes(name), b"") for name in itertools.product(range(33, 127), repeat=2)]
        before = private_bytes(node)
        for count, niceness in ((330, 0), (2000, 0), (330, 19), (2000, 19)):
            be_nice(node, niceness)
            most, told = self.tell_of(node, listening_key, b"".join(names[:count]))
            print(f"{told} told of {count} properties, niceness {niceness}, grown by {(most - before) >> 20} MiB")
            self.assertLess(most - before, STRANGERS_BYTES)
            self.assertGreater(told, 2 * MAX_STRANGERS)
            if niceness == 0:
                wait_until(lambda: private_bytes(node) < before + FRAME_BYTES // 2, PATIENCE_S, "memory is given back")
        self.assert_unmoved()

    def tell_of(self, node: Node, listening_key: bytes, properties: bytes) -> Tuple[int, int]:
        """The most private bytes that the daemon had, and how many connections sent their properties."""
        most = told = 0
        begun = time.monotonic()
        with selectors.DefaultSelector() as telling:
            while time.monotonic() < begun + FLOOD_S or told <= 2 * MAX_STRANGERS:
                self.assertLess(time.monotonic(), begun + PATIENCE_S, f"{told} told")
                while len(telling.get_map()) < 2 * MAX_STRANGERS:
                    handshake = Handshake(listening_key)
                    stranger = socket.create_connection(node.endpoint, PATIENCE_S)
                    stranger.setblocking(False)
                    send_some(stranger, handshake.begin())
                    telling.register(stranger, selectors.EVENT_READ, (handshake, bytearray()))
                for key, _ in telling.select(0.1):
                    handshake, heard = key.data
                    try:
                        piece = key.fileobj.recv(1 << 12)
                    except OSError:
                        piece = b""
                    heard.extend(piece)
                    if len(heard) == handshake.welcome_bytes:
                        send_some(key.fileobj, handshake.answer(bytes(heard), properties))
                        told += 1
                    if not piece:
                        telling.unregister(key.fileobj)
                        key.fileobj.close()
                most = max(most, private_bytes(node))
            for key in list(telling.get_map().values()):
                key.fileobj.close()
        return most, told

    def test_floods_the_port_of_one_with_few_descriptors(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, hard))
        try:
            node = self.cluster.start("few")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.nodes.append(node)
        self.wait_for_links(self.nodes)
        before = self.sockets(node)
        flood = []
        for _ in range(3 * FEW_DESCRIPTORS):
            flood.append(socket.create_connection(node.endpoint, PATIENCE_S))
            self.addCleanup(flood[-1].close)
        client = self.attach(node, np.zeros(ELEMENTS))
        self.step_until(lambda: client.run.ready, "a client of the flooded daemon joins")
        wait_until(lambda: self.sockets(node) <= before + FEW_DESCRIPTORS // 4 + 4, PATIENCE_S, "few are kept")
        self.assertGreaterEqual(node.status()["strangers_closed"], 2 * FEW_DESCRIPTORS)
        newcomer = self.cluster.start("newcomer")
        wait_until(lambda: newcomer.status()["neighbours"] == 3, PATIENCE_S, "a member still comes in")
        self.both.append(client)
        self.assert_unmoved()


if __name__ == "__main__":
    unittest.main()
