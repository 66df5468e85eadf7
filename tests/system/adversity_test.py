"""Bad input in the wild: garbage on every port and socket, strangers, models that do not match."""

import array
import os
import secrets
import socket
import struct
import unittest

import numpy as np

from support import BUILD, JOB, PATIENCE_S, SystemTest, gossamer, gossamerctl, wait_until, write_key

ELEMENTS = 2000
# The beginning of a ZMTP 3.1 greeting that asks for CURVE, as a peer sends it.
ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)


class Garbage(SystemTest):
    def setUp(self) -> None:
        super().setUp()
        self.nodes = self.start_nodes(2)
        self.both = [self.attach(node, np.zeros(ELEMENTS)) for node in self.nodes]

    def throw(self, kind: int, address, pieces) -> None:
        """Connects, sends the pieces, and leaves. The other side may hang up at any time."""
        family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
        with socket.socket(family, kind) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(address)
            try:
                for piece in pieces:
                    connection.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass

    def assert_unmoved(self) -> None:
        for node in self.nodes:
            self.assertTrue(node.running(), node.log.read_text()[-3000:])
        self.assert_still_exchanges(self.both)

    def test_on_the_port(self) -> None:
        for pieces in (
            [b"GET / HTTP/1.1\r\n\r\n"],
            [secrets.token_bytes(100_000)],
            [b"\xff" * 64],
            [ZMTP_GREETING],
            [ZMTP_GREETING, secrets.token_bytes(5000)],
            # A command frame that claims to be 2^63 bytes long.
            [ZMTP_GREETING, b"\x06" + struct.pack(">Q", 1 << 63) + b"\x05HELLO"],
            [],
        ):
            self.throw(socket.SOCK_STREAM, self.nodes[0].endpoint, pieces)
        self.assert_unmoved()

    def test_on_the_control_socket(self) -> None:
        path = str(self.nodes[0].control_socket)
        for pieces in (
            [secrets.token_bytes(1000) + b"\n"],
            [b"null\n", b"[]\n", b"{}\n", b'{"command": 7}\n', b'{"command": "fly"}\n'],
            [b"[" * 60_000 + b"\n"],
            [b"x" * 70_000] * 20,  # a line that never ends
            [b'{"command": "sta'],
        ):
            self.throw(socket.SOCK_STREAM, path, pieces)
        self.assert_unmoved()

    def test_control_answers_say_what_is_wrong(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(self.nodes[0].control_socket))
            with connection.makefile("rwb", buffering=0) as stream:
                for line in (b"not json", b"[1]", b'{"command": "fly"}', b"{}"):
                    stream.write(line + b"\n")
                    self.assertIn(b'"error"', stream.readline())
                # No text of a library is passed on.
                for line in (b'{"command": "deny"}', b'{"command": "join", "line": 7}', b'{"command": "deputy_set"}',
                             b'{"command": "authority_set", "authority": [], "signatures": 1}'):  # fmt: skip
                    stream.write(line + b"\n")
                    answer = stream.readline()
                    self.assertIn(b'"error"', answer)
                    self.assertNotIn(b"exception", answer)
                stream.write(b'{"command": "status"}\n')  # and then a correct line
                self.assertIn(b'"node"', stream.readline())

    def test_on_the_client_socket(self) -> None:
        path = str(self.nodes[0].client_socket)
        for pieces in ([b""], [b"x"], [secrets.token_bytes(32)], [secrets.token_bytes(60_000)], [bytes(32)] * 100):
            self.throw(socket.SOCK_SEQPACKET, path, pieces)
        self.assert_unmoved()

    def test_descriptors_that_are_not_what_they_should_be(self) -> None:
        """A correct handshake with a wrong memory: a pipe, an empty or unsealed memfd, random bytes in it."""
        magic, version = 0x6863617474612D67, 1
        unsealed = os.memfd_create("empty")
        noise = os.memfd_create("noise", os.MFD_ALLOW_SEALING)
        os.write(noise, secrets.token_bytes(1 << 16))
        # These are F_ADD_SEALS with F_SEAL_SHRINK | F_SEAL_GROW, as in the client library.
        import fcntl

        fcntl.fcntl(noise, 1033, 0x2 | 0x4)
        pipe_read, pipe_write = os.pipe()
        event = os.eventfd(0)
        descriptors = [unsealed, noise, pipe_read, pipe_write, event]
        self.addCleanup(lambda: [os.close(fd) for fd in descriptors])
        for sent in ([], [unsealed], [unsealed, event], [pipe_read, event], [noise, event], [noise, noise], descriptors):
            request = struct.pack("<QIIQQ", magic, version, 0, 1 << 16, os.getpid())
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))] if sent else []
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(PATIENCE_S)
                connection.connect(str(self.nodes[0].client_socket))
                connection.sendmsg([request], rights)
                answer = connection.recv(1024)
                if answer:  # otherwise it has just hung up
                    status, message = struct.unpack_from("<I", answer, 12)[0], answer[32:].split(b"\0")[0]
                    self.assertNotEqual(status, 0)
                    self.assertGreater(len(message), 10, "the refusal says why")
        self.assert_unmoved()

    def test_many_idle_connections(self) -> None:
        """A client that connects and says nothing keeps nobody else out for good."""
        idle = []
        for _ in range(100):
            for path, kind in (
                (self.nodes[0].control_socket, socket.SOCK_STREAM),
                (self.nodes[0].client_socket, socket.SOCK_SEQPACKET),
            ):
                connection = socket.socket(socket.AF_UNIX, kind)
                connection.settimeout(PATIENCE_S)
                idle.append(connection)
                try:
                    connection.connect(str(path))
                except OSError:
                    pass  # refused for now
        self.assert_still_exchanges(self.both)
        for connection in idle:
            connection.close()
        self.nodes[0].status()
        self.assert_unmoved()


class Strangers(SystemTest):
    def test_wrong_cluster_key(self) -> None:
        """A node with another key is admitted nowhere. Both logs and `peers` say why, and no log has a key."""
        nodes = self.start_nodes(2)
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        other_key = self.folder / "other.key"
        write_key(other_key)
        stranger = self.cluster.start("stranger", {"overlay": {"cluster_key_file": str(other_key)}})
        alone = self.attach(stranger, np.ones(ELEMENTS))
        self.assertTrue(alone.run.ready, "it trains alone meanwhile")

        wait_until(
            lambda: any("key" in peer["note"] for peer in stranger.peers()), PATIENCE_S, "the stranger is told why"
        )
        self.assertEqual(stranger.status()["neighbours"], 0)
        for node in nodes:
            self.assertEqual(node.status()["neighbours"], 1)
        self.assert_still_exchanges(clients)
        np.testing.assert_array_equal(alone.array, 1)
        for key_file in (other_key, self.cluster.cluster_key):
            secret = key_file.read_text().strip()
            for node in self.cluster.nodes:
                self.assertNotIn(secret, node.log.read_text())

    def test_model_of_another_shape(self) -> None:
        """The same job name with another model: the two do not mix, and both are told."""
        nodes = self.start_nodes(3)
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes[:2]]
        different = self.attach(nodes[2], np.ones(ELEMENTS + 1))
        wait_until(lambda: "layout" in different.job()["note"], PATIENCE_S, "it is told that its layout differs")
        self.assert_still_exchanges(clients)
        different.step()
        np.testing.assert_array_equal(different.array, 1)
        self.assertEqual(different.job()["exchanges"], 0)
        shown = gossamerctl(BUILD, "jobs", "--json", "--socket", str(nodes[2].control_socket))
        self.assertIn("layout", shown.stdout)

    def test_bad_numbers_stay_at_home(self) -> None:
        """A model with NaN is kept out of gossip until it is finite again; the neighbour's is not touched."""
        nodes = self.start_nodes(2)
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        clients[0].array[7] = np.nan
        self.step_until(lambda: clients[0].job()["quarantined_fragments"] == 1, "it is quarantined")
        self.step_until(lambda: clients[0].run.info().state == gossamer.State.QUARANTINED, "its client is told")
        self.assertTrue(np.isfinite(clients[1].array).all())
        clients[0].array[7] = 0
        self.step_until(lambda: clients[0].run.info().state == gossamer.State.RUNNING, "it is back")
        self.assert_still_exchanges(clients)


if __name__ == "__main__":
    unittest.main()
