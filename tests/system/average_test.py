"""run.average() between real daemons: the same bits everywhere, whoever comes, leaves or dies."""

import collections
import concurrent.futures
import fcntl
import functools
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np

from support import BUILD, JOB, PATIENCE_S, Client, SystemTest, gossamer, wait_until

MODEL = 300_000
STEPS = 200
# The program averages once, forks a child that stays, and prints the child's number.
DYING = f"""
import sys; sys.path.insert(0, {str(BUILD / "python")!r})
import os, time, numpy, gossamer
run = gossamer.attach({{"w": numpy.zeros(8, numpy.float32)}}, job={JOB!r})
run.average(3.0, at_least=2)
child = os.fork()
if child: print(child, flush=True)
time.sleep(600)
"""


class Averaging(SystemTest):
    def clients_at(self, *nodes: Any) -> List[Client]:
        return [self.attach(node, np.zeros(8, np.float32)) for node in nodes]

    def at_once(self, *calls: Callable[[], Any]) -> List[Any]:
        """The results of calls that wait for each other. An exception in one of them is raised."""
        results: Dict[int, Any] = {}

        def run(index: int, call: Callable[[], Any]) -> None:
            try:
                results[index] = call()
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(4 * PATIENCE_S)
            self.assertFalse(thread.is_alive(), "an average does not end")
        for result in results.values():
            if isinstance(result, Exception):
                raise result
        return [results[index] for index in range(len(calls))]

    def average_all(self, clients: List[Client], values: List[Any], **options: Any) -> List[Any]:
        options = {"at_least": len(clients), "timeout_s": PATIENCE_S, **options}
        return self.at_once(
            *[lambda c=c, v=v: c.run.average(v, **options) for c, v in zip(clients, values)]  # type: ignore[misc]
        )

    def wait_until_told(self, call: Callable[[], Any], pattern: str) -> None:
        """Waits until the time-out of the call, which may be too short for a busy machine, says what is missing."""

        text = ""
        until = time.monotonic() + PATIENCE_S
        while re.search(pattern, text) is None:
            self.assertLess(time.monotonic(), until, f"told {text!r}, and not {pattern}")
            with self.assertRaises(TimeoutError) as caught:
                call()
            text = str(caught.exception)

    def assert_mean(self, averages: List[Any], values: List[np.ndarray]) -> None:
        for average in averages:
            self.assertEqual(average.of, len(values))
            self.assertEqual(average.round, averages[0].round)
            np.testing.assert_array_equal(average.values, averages[0].values)
        np.testing.assert_allclose(averages[0].values, np.mean(values, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6)

    def test_the_mean_is_the_same_bits_everywhere(self) -> None:
        nodes = self.start_nodes(3)
        clients = self.clients_at(*nodes, nodes[0])
        for size in (1, 5, 1000, 700_001):
            values = [np.random.default_rng(i).normal(size=size).astype(np.float32) for i in range(4)]
            self.assert_mean(self.average_all(clients, values, name=f"of-{size}"), values)
        rounds = []
        for step in range(50):
            values = [np.full((3, 2), i + step, np.float32) for i in range(4)]
            averages = self.average_all(clients, values)
            self.assert_mean(averages, values)
            self.assertEqual([average.joined for average in averages], [step == 0] * 4)
            rounds.append(averages[0].round)
        self.assertEqual(rounds, sorted(set(rounds)))

    def test_numbers_lists_and_dicts_come_back_as_they_went(self) -> None:
        [node] = self.start_nodes(1)
        [client] = self.clients_at(node)
        given = {"loss": 0.5, "hits": 3, "grads": [np.ones((2, 3)), (np.zeros(4, np.float16),)]}
        found = client.run.average(given, timeout_s=PATIENCE_S).values
        self.assertEqual((found["loss"], found["hits"]), (0.5, 3.0))
        self.assertEqual(found["grads"][0].dtype, np.float64)
        self.assertEqual(found["grads"][0].shape, (2, 3))
        self.assertEqual(found["grads"][1][0].dtype, np.float16)
        Point = collections.namedtuple("Point", "x y")
        self.assertEqual(client.run.average(Point(1, 2), name="point", timeout_s=PATIENCE_S).values, Point(1, 2))
        ordered = collections.OrderedDict(b=2.0, a=1.0)
        self.assertEqual(type(client.run.average(ordered, name="o", timeout_s=PATIENCE_S).values), collections.OrderedDict)
        masked = np.ma.masked_array([1.0, 2.0], [True, False])
        for wrong in ([], "text", np.array(["a"]), None, 1j, masked, unittest):
            with self.assertRaisesRegex(gossamer.GossamerError, "average"):
                client.run.average(wrong, timeout_s=PATIENCE_S)
        for options in ({"name": "a\0b"}, {"name": 3}, {"at_least": None}, {"timeout_s": float("nan")}, {"grace_s": -1}):
            with self.assertRaises(gossamer.GossamerError):
                client.run.average(1.0, **options)
        with self.assertRaisesRegex(gossamer.GossamerError, "a name of its own"):
            client.run.average([1.0, 2.0], timeout_s=PATIENCE_S)

    def test_a_name_is_used_by_one_thread_at_a_time(self) -> None:
        nodes = self.start_nodes(2)
        first, second = self.clients_at(*nodes)

        def meanwhile() -> Any:
            wait_until(lambda: bool(first.run._averaging), PATIENCE_S, "the first thread averages")
            with self.assertRaisesRegex(gossamer.GossamerError, "another thread averages under the name 'average'"):
                first.run.average(100.0, at_least=2, timeout_s=PATIENCE_S)
            self.assertEqual(first.run.average(100.0, name="other", timeout_s=PATIENCE_S).values, 100.0)
            return second.run.average(3.0, at_least=2, timeout_s=PATIENCE_S)

        def waits() -> Any:
            return first.run.average(1.0, at_least=2, timeout_s=PATIENCE_S)

        for average in self.at_once(waits, meanwhile):
            self.assertEqual(average.values, 2.0)

    def test_dicts_are_the_same_in_whatever_order_they_were_filled(self) -> None:
        clients = self.clients_at(*self.start_nodes(2))
        averages = self.average_all(clients, [{"a": 1.0, "b": 10.0}, {"b": 30.0, "a": 3.0}])
        for average in averages:
            self.assertEqual(average.values, {"a": 2.0, "b": 20.0})
        self.assertEqual(list(averages[1].values), ["b", "a"])

    def test_who_comes_and_leaves(self) -> None:
        nodes = self.start_nodes(3)
        first, second = self.clients_at(nodes[0], nodes[1])
        self.assert_mean(self.average_all([first, second], [np.float32(1), np.float32(3)]), [1, 3])
        [third] = self.clients_at(nodes[2])
        values = [np.float32(1), np.float32(3), np.float32(8)]
        averages = self.average_all([first, second, third], values)
        self.assert_mean(averages, values)
        self.assertEqual([average.joined for average in averages], [False, False, True])
        second.run.close()
        self.clients.remove(second)

        def two_are_left() -> bool:
            pair = self.average_all([first, third], [np.float32(1), np.float32(2)], at_least=1)
            return bool(pair[0].of == pair[1].of == 2)

        wait_until(two_are_left, PATIENCE_S, "the two that are left average")

    def test_a_late_one_is_named_and_the_others_go_on_after_a_time_out(self) -> None:
        nodes = self.start_nodes(2)
        early, late = self.clients_at(*nodes)
        self.average_all([early, late], [1.0, 2.0])
        self.wait_until_told(lambda: early.run.average(1.0, timeout_s=3), "no contribution yet from [0-9a-f]{8}")
        # The program that gave up averages again.
        averages = self.average_all([early, late], [5.0, 7.0])
        self.assertEqual([average.values for average in averages], [6.0, 6.0])

    def test_a_late_one_of_the_same_node_is_named_by_its_process(self) -> None:
        (node,) = self.start_nodes(1)
        early, late = self.clients_at(node, node)
        self.average_all([early, late], [1.0, 2.0])
        late_one = f"no contribution yet from process {os.getpid()} of this node"
        self.wait_until_told(lambda: early.run.average(1.0, timeout_s=3), late_one)

    def test_the_log_says_whom_an_average_waits_for(self) -> None:
        nodes = self.start_nodes(2)
        early, late = self.clients_at(*nodes)
        self.average_all([early, late], [1.0, 2.0])
        self.wait_until_told(lambda: early.run.average(1.0, timeout_s=13), "no contribution yet from [0-9a-f]{8}")
        self.assertRegex(nodes[0].log.read_text(), "still waits for an average: no contribution yet from [0-9a-f]{8}")

    def test_too_few_and_of_another_size(self) -> None:
        nodes = self.start_nodes(2)
        first, second = self.clients_at(*nodes)
        self.wait_until_told(lambda: first.run.average(1.0, at_least=2, timeout_s=3), "1 of the 2 members")

        def differs(client: Client, values: Any, codec: str) -> str:
            with self.assertRaises(TimeoutError) as caught:
                client.run.average(values, name=name, at_least=2, timeout_s=4, codec=codec)
            return str(caught.exception)

        def one_is_told() -> bool:
            told = self.at_once(lambda: differs(first, *ours), lambda: differs(second, *theirs))
            return any(f"({other.node.name}) {said}" in text for text, other in zip(told, (second, first)))

        for name, ours, theirs, said in (
            ("size", (np.zeros(3), "f32"), (np.zeros(5), "f32"), "averages "),
            ("shape", (np.zeros((2, 3)), "f32"), (np.zeros((3, 2)), "f32"), "averages numbers under this name that have other"),
            ("keys", ({"x": 1, "y": 2}, "f32"), ({"y": 1, "z": 2}, "f32"), "averages numbers under this name that have other"),
            ("codec", (np.zeros(3), "f32"), (np.zeros(3), "q8"), "averages with the codec "),
        ):
            wait_until(one_is_told, PATIENCE_S, f"one is told of another {name}")

    def test_the_majority_is_told_who_averages_something_else(self) -> None:
        nodes = self.start_nodes(3)
        clients = self.clients_at(*nodes)
        values = [np.zeros(3), np.zeros(3), {"x": 0.0, "y": 0.0, "z": 0.0}]

        def told(client: Client, given: Any) -> str:
            with self.assertRaises(TimeoutError) as caught:
                client.run.average(given, at_least=3, timeout_s=4)
            return str(caught.exception)

        def both_are_told() -> bool:
            texts = self.at_once(*[functools.partial(told, *pair) for pair in zip(clients, values)])
            return all(f"({nodes[2].name}) averages numbers under this name that have other" in text for text in texts[:2])

        wait_until(both_are_told, PATIENCE_S, "the majority is told")

    def test_in_place(self) -> None:
        nodes = self.start_nodes(2)
        first, second = (client.run for client in self.clients_at(*nodes))
        shared, whole = gossamer.average_memory((2, 300)), np.full((2, 300), 3.0)
        parts = [[np.full(400, value), np.full((2, 100), value, np.float32)] for value in (1.0, 3.0)]
        shared[:] = 1
        for number in range(1, 4):
            found, other = self.at_once(
                lambda: first.average(shared, at_least=2, in_place=True),
                lambda: second.average(whole, at_least=2, in_place=True),
            )
            self.assertIs(found.values, shared)
            self.assertIs(other.values, whole)
            found, other = self.at_once(
                lambda: first.average(parts[0], name="parts", at_least=2, in_place=True),
                lambda: second.average(parts[1], name="parts", at_least=2, in_place=True),
            )
            self.assertIs(other.values[0], parts[1][0])
            for values in (shared, whole, *parts[0], *parts[1]):
                self.assertTrue((values == number + 1).all(), values)
                values += 1
        for refused in (1.0, np.zeros(3, np.int32), np.broadcast_to(np.float32(1), 3)):
            with self.assertRaisesRegex(gossamer.GossamerError, "in place"):
                first.average(refused, name="refused", in_place=True)
        with self.assertRaisesRegex(gossamer.GossamerError, "a name of its own"):
            first.average(np.zeros(600))

    def test_a_daemon_that_is_killed_while_values_wait_in_it(self) -> None:
        """They may be half replaced. What the program still has is contributed again; of values in place it is told."""
        nodes = self.start_nodes(2)
        first, second = (client.run for client in self.clients_at(*nodes))
        self.at_once(lambda: first.average(0.0, at_least=2), lambda: second.average(0.0, at_least=2))

        def meanwhile_killed(call: Callable[[], Any]) -> "concurrent.futures.Future[Any]":
            with self.assertRaises(TimeoutError):  # a call whose message replaces an earlier one
                first.average(0.0, name="message", at_least=9, timeout_s=0.001)
            waiting = pool.submit(call)
            wait_until(lambda: "not there yet: " in first._last_error(), PATIENCE_S, "the daemon says that it waits")
            nodes[0].kill()
            nodes[0].start()
            return waiting

        options = {"name": "n", "at_least": 2, "timeout_s": 4 * PATIENCE_S}
        shared = gossamer.average_memory(3)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            found = meanwhile_killed(lambda: first.average(np.ones(MODEL), **options))
            second.average(np.full(MODEL, 3.0), **options)
            self.assertTrue((found.result().values == 2).all())
            told = meanwhile_killed(lambda: first.average(shared, name="shared", at_least=2, in_place=True))
            with self.assertRaisesRegex(gossamer.GossamerError, "put them there again and call again"):
                told.result()

    def test_a_death_in_the_middle_loses_no_round(self) -> None:
        nodes = self.start_nodes(4)
        clients = self.clients_at(*nodes)
        self.average_all(clients, [np.zeros(MODEL, np.float32)] * 4)
        dead = random.randrange(4)
        seen: List[List[Any]] = [[], [], [], []]
        killed = threading.Event()
        end_s = time.monotonic() + 3 * PATIENCE_S

        def goes_on(averages: List[Any]) -> bool:
            without = sum(of < 4 for _, of, _ in averages)
            return time.monotonic() < end_s and not (killed.is_set() and without >= 5)

        def train(index: int) -> None:
            model = np.full(MODEL, index, np.float32)
            while goes_on(seen[index]):
                average = clients[index].run.average(model, timeout_s=4 * PATIENCE_S)
                seen[index].append((average.round, average.of, average.values[7]))
                model = average.values + np.float32(index)
            clients[index].run.close()  # the others do not wait for it any more

        def train_without_daemon() -> None:
            with self.assertRaisesRegex(gossamer.GossamerError, "no gossamerd answers"):
                train(dead)

        def kill() -> None:
            wait_until(lambda: all(len(averages) >= 5 for averages in seen), PATIENCE_S, "all average")
            nodes[dead].kill()
            killed.set()

        self.at_once(kill, train_without_daemon, *[lambda i=i: train(i) for i in range(4) if i != dead])
        by_round: Dict[int, Any] = {}
        for averages in seen:
            for number, of, value in averages:
                self.assertEqual(by_round.setdefault(number, (of, value)), (of, value), f"round {number}")
        self.assertTrue(any(of == 3 for of, _ in by_round.values()), "the survivors went on")
        survivors = [averages for index, averages in enumerate(seen) if index != dead]
        self.assertEqual(survivors[0][: len(seen[dead])], survivors[1][: len(seen[dead])])

    def test_gradients_averaged_at_each_step_train_as_one_process_with_all_data(self) -> None:
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed")
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(96, 10, generator=generator)
        targets = torch.sin(inputs.sum(dim=1, keepdim=True))

        def trained(batch: slice, averaged: Callable[[Any], Any]) -> Any:
            first = torch.Generator().manual_seed(2)
            model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=first))
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            losses = []
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch])
                loss.backward()
                gradients = averaged([parameter.grad for parameter in model.parameters()])
                for parameter, gradient in zip(model.parameters(), gradients):
                    parameter.grad.copy_(gradient)
                optimizer.step()
                losses.append(float(torch.nn.functional.mse_loss(model(inputs), targets)))
            return losses, [parameter.detach().numpy() for parameter in model.parameters()]

        clients = self.clients_at(*self.start_nodes(3))

        def distributed(index: int) -> Any:
            run = clients[index].run
            return trained(
                slice(32 * index, 32 * index + 32),
                lambda gradients: run.average(gradients, name="gradients", at_least=3, timeout_s=PATIENCE_S).values,
            )

        results = self.at_once(*[lambda i=i: distributed(i) for i in range(3)])
        alone, _ = trained(slice(None), lambda gradients: gradients)
        for losses, parameters in results:
            np.testing.assert_allclose(losses, alone, rtol=1e-3)
            for mine, first in zip(parameters, results[0][1]):
                np.testing.assert_array_equal(mine, first)
        self.assertLess(alone[-1], 0.5 * alone[0])

    def test_a_stranger_at_the_socket_is_told_what_is_wrong(self) -> None:
        [node] = self.start_nodes(1)
        [client] = self.clients_at(node)
        for sent in (b"x", bytes(152), bytes(153), struct.pack("<QIIQ", 0x6761726576612D67, 9, 0, 1) + bytes(128)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.settimeout(PATIENCE_S)
                stranger.connect(str(node.sockets / "average.sock"))
                stranger.send(sent)
                reply = stranger.recv(256)
                self.assertEqual(struct.unpack_from("<I", reply, 16)[0], 3, reply)
                self.assertGreater(len(reply[32:].rstrip(b"\0")), 10)
                self.assertEqual(stranger.recv(256), b"")
        self.assertEqual(client.run.average(2.0, timeout_s=PATIENCE_S).values, 2.0)

    def test_what_a_stranger_sends_costs_the_daemon_nothing(self) -> None:
        [node] = self.start_nodes(1)
        [client] = self.clients_at(node)
        client.run.average(2.0, timeout_s=PATIENCE_S)
        assert node.program is not None
        descriptors = Path(f"/proc/{node.program.pid}/fd")
        before = len(list(descriptors.iterdir()))

        def told(elements: int, memories: int) -> bytes:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.settimeout(PATIENCE_S)
                stranger.connect(str(node.sockets / "average.sock"))
                files = [os.memfd_create("x", os.MFD_ALLOW_SEALING) for _ in range(memories)]
                for file in files:
                    os.ftruncate(file, 4 * elements)
                    fcntl.fcntl(file, 1033, 0x2 | 0x4)  # F_ADD_SEALS: shrink, grow
                opened = struct.pack("<QIIQ64s64s", 0x6761726576612D67, 1, 0, elements, b"job", b"name")
                socket.send_fds(stranger, [opened], files)
                for file in files:
                    os.close(file)
                return stranger.recv(256)[32:].rstrip(b"\0")

        self.assertIn(b"one descriptor", told(1, 0))
        for _ in range(10):
            self.assertIn(b"one descriptor", told(1, 3))
        for bits in (28, 34):  # no memory is behind these lengths
            self.assertRegex(told(1 << bits, 1), b"memory|machine has")
        wait_until(lambda: len(list(descriptors.iterdir())) <= before, PATIENCE_S, "no descriptor is left")
        self.assertEqual(client.run.average(2.0, timeout_s=PATIENCE_S).values, 2.0)

    def test_a_process_that_dies_is_gone_although_its_child_lives(self) -> None:
        nodes = self.start_nodes(2)
        [client] = self.clients_at(nodes[0])
        dying = subprocess.Popen(
            [sys.executable, "-c", DYING], env={**os.environ, "GOSSAMER_SOCKET": str(nodes[1].client_socket)},
            stdout=subprocess.PIPE,
        )
        self.addCleanup(dying.stdout.close)
        self.addCleanup(dying.wait)
        self.addCleanup(dying.kill)
        self.assertEqual(client.run.average(1.0, at_least=2, timeout_s=PATIENCE_S).of, 2)
        child = int(dying.stdout.readline())
        self.addCleanup(os.kill, child, signal.SIGKILL)
        dying.kill()
        self.assertEqual(client.run.average(1.0, timeout_s=PATIENCE_S).of, 1)


if __name__ == "__main__":
    unittest.main()
