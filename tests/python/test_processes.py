"""A run beside other processes and threads of the program: forked data loaders, started programs, and threads that
train other jobs. None of them disturbs the run, waits for it, or keeps its daemon from noticing its end.
"""

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import unittest

import numpy as np

import gossamer
from contract_daemon import NOWHERE, PATIENCE_S, ContractDaemon, eventually

WORKERS = 4
FORKS = 40


def square(value):
    return value * value


def exit_status(child):
    """The exit status of a child that must not hang."""
    ended = []
    waiter = threading.Thread(target=lambda: ended.append(os.waitpid(child, 0)[1]), daemon=True)
    waiter.start()
    waiter.join(PATIENCE_S)
    if not ended:
        os.kill(child, 9)
        waiter.join()
        raise AssertionError("a forked child did not end")
    return os.waitstatus_to_exitcode(ended[0])


def open_files():
    """The files that the descriptors of this process lead to."""
    names = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            names.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            pass  # the descriptor of the listing itself
    return names


class DataLoaders(unittest.TestCase):
    def trains_on(self, run, client, array):
        """The parent's run is unchanged."""
        before = array.copy()
        client.make_due([1.0] * len(array))
        run.step()
        np.testing.assert_array_equal(array, before + 1)
        self.assertTrue(run.info().attached)

    def with_loaders(self, method):
        array = np.zeros(100, np.float32)
        with ContractDaemon() as daemon, gossamer.attach({"w": array}, job="test", socket=daemon.path) as run:
            client = daemon.client()
            with multiprocessing.get_context(method).Pool(WORKERS) as pool:
                pending = pool.map_async(square, range(1000))
                for _ in range(10):
                    self.trains_on(run, client, array)
                self.assertEqual(pending.get(PATIENCE_S)[999], 999 * 999)
            self.trains_on(run, client, array)

    def test_forked(self):
        self.with_loaders("fork")

    def test_spawned(self):
        self.with_loaders("spawn")

    def test_a_child_that_ends_in_any_way_leaves_the_run_alone(self):
        array = np.zeros(100, np.float32)
        with ContractDaemon() as daemon, gossamer.attach({"w": array}, job="test", socket=daemon.path) as run:
            client = daemon.client()

            def closes():
                run.close()

            def steps():
                try:
                    run.step()
                except gossamer.GossamerError:
                    return
                raise AssertionError("a run of the parent trained in the child")

            def exits():
                # Runs the C library's exit handlers, but not Python's, which belong to the test.
                ctypes.CDLL(None).exit(0)

            for action in (closes, steps, exits):
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        action()
                        status = 0
                    finally:
                        os._exit(status)
                self.assertEqual(exit_status(child), 0, action.__name__)
                self.trains_on(run, client, array)

    def test_forked_while_the_connection_is_tried_again_and_again(self):
        """The run's own thread holds its locks from time to time; a child that closes the run must not wait for
        them."""
        with ContractDaemon(*[(3, "busy")] * 1000) as daemon:
            run = gossamer.attach({"w": np.zeros(10, np.float32)}, job="test", socket=daemon.path, wait=False)
            for _ in range(FORKS):
                child = os.fork()
                if child == 0:
                    run.close()
                    os._exit(0)
                self.assertEqual(exit_status(child), 0)
            run.close()


class Programs(unittest.TestCase):
    def test_a_program_that_is_started_gets_nothing_of_the_run(self):
        with ContractDaemon() as daemon:
            before = open_files()
            with gossamer.attach({"w": np.zeros(10, np.float32)}, job="test", socket=daemon.path):
                of_the_run = open_files() - before
                self.assertTrue(any("memfd:" in name for name in of_the_run), of_the_run)
                given = subprocess.run(
                    ["find", "/proc/self/fd", "-printf", r"%l\n"], capture_output=True, text=True, close_fds=False, check=True
                ).stdout.splitlines()
                self.assertEqual(of_the_run & set(given), set())

    def test_the_end_of_the_program_closes_what_it_left_open(self):
        program = f"""
import threading, numpy as np, gossamer
run = gossamer.attach({{"w": np.zeros(10, np.float32)}}, job="test", socket={NOWHERE!r}, wait=False)
threading.Thread(target=lambda: [run.step() for _ in range(1000)]).start()
"""
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program], timeout=PATIENCE_S, capture_output=True, text=True
        )
        self.assertEqual((result.returncode, result.stderr), (0, ""))


class Threads(unittest.TestCase):
    def test_each_trains_a_job_of_its_own(self):
        with ContractDaemon() as daemon:
            failures = []

            def train(number):
                try:
                    array = np.zeros(64, np.float32)
                    with gossamer.attach({"w": array}, job=f"job-{number}", socket=daemon.path) as run:
                        for step in range(300):
                            array += 1
                            run.step(samples=number + 1)
                        self.assertEqual(run.clock, 300 * (number + 1))
                        np.testing.assert_array_equal(array, 300)
                except BaseException as failure:
                    failures.append(failure)

            threads = [threading.Thread(target=train, args=(number,)) for number in range(WORKERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            self.assertEqual(failures, [])
            self.assertTrue(eventually(lambda: len(daemon._clients) == WORKERS))


if __name__ == "__main__":
    unittest.main()
