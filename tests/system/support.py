"""The common part of the system tests: real daemons in a temporary folder, and their clients in the test's own process.

A test steps its clients itself, one after the other, so that it decides what each model holds and when. "Training"
means adding to the arrays, or nothing at all; then the sum over all replicas must stay the same.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

REPOSITORY = Path(__file__).resolve().parents[2]
# CTest names its build folder; a test that is run by hand uses the usual one.
BUILD = Path(os.environ.get("GOSSAMER_BUILD", REPOSITORY / "build"))
sys.path[:0] = [str(BUILD / "python"), str(REPOSITORY / "tools" / "lib")]

import numpy as np  # noqa: E402

import gossamer  # noqa: E402
from cluster import Cluster, Node, Options, gossamerctl, write_key  # noqa: E402, F401
from processes import wait_until  # noqa: E402, F401

# This bounds every wait for a condition; it is generous, for a machine that is busy with other things.
PATIENCE_S = 30.0
JOB = "test"
# Each addition to a replica rounds once to fp32. This bound is for sums of a few values around one.
ROUNDING = 2e-5
# Exchanges come quickly, and a death is noticed within a second or two.
QUICK: Options = {
    "gossip": {"period_ms": 5},
    "overlay": {"ping_ms": 100, "probe_interval_ms": 200, "probe_timeout_ms": 100, "suspicion_mult": 5},
    "log": {"level": "debug"},
}


@functools.lru_cache(maxsize=None)
def python_with(*modules: str) -> str:
    """The Python that has these modules: the one that tools/test --frameworks makes, or this one. Skips the test if
    neither has them."""
    code = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"
    for python in (BUILD / "frameworks" / "bin" / "python", Path(sys.executable)):
        if python.exists() and subprocess.run([python, "-c", code, *modules], stderr=subprocess.DEVNULL).returncode == 0:
            return str(python)
    raise unittest.SkipTest(f"{', '.join(modules)}: not installed; tools/test --frameworks does so")


class Client:
    """A replica of one array, attached to a node."""

    def __init__(self, node: Node, values: np.ndarray, job: str = JOB, name: str = "w", **options: Any):
        self.node = node
        self.array = np.ascontiguousarray(values, dtype=np.float32)
        self.run = gossamer.attach({name: self.array}, job=job, socket=str(node.client_socket), **options)

    def step(self, samples: int = 1) -> None:
        self.run.step(samples=samples)

    @property
    def called(self) -> str:
        """How texts of other nodes call its node."""
        return f"node {self.run.info().node_id[:8]} ({self.node.name})"

    def job(self) -> Dict[str, Any]:
        job = self.node.job(JOB)
        assert job is not None, f"{self.node.name} has no job {JOB}"
        return job


def finish_all(clients: List[Client], timeout_s: Optional[float] = PATIENCE_S) -> List[gossamer.Finish]:
    """Finishes each in a thread of its own, as if in processes of their own."""
    found: List[gossamer.Finish] = [None] * len(clients)  # type: ignore[list-item]

    def finish(index: int) -> None:
        found[index] = clients[index].run.finish(timeout_s)

    threads = [threading.Thread(target=finish, args=(index,)) for index in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def spread(clients: List[Client]) -> float:
    """The largest difference between any two replicas."""
    values = np.stack([client.array for client in clients])
    return float((values.max(axis=0) - values.min(axis=0)).max())


def total(clients: List[Client]) -> np.ndarray:
    """The sum over the replicas, for each element."""
    return np.sum([client.array.astype(np.float64) for client in clients], axis=0)


def train_at_random(clients: List[Client], rounds: int, random: np.random.Generator) -> np.ndarray:
    """Each adds to its model in each round. Returns the sum of what they have added."""
    added = np.zeros(clients[0].array.shape)
    for _ in range(rounds):
        for client in clients:
            before = client.array.copy()
            client.array += (0.01 * random.standard_normal(before.shape)).astype(np.float32)
            added += client.array.astype(np.float64) - before
            client.step()
    return added


def free_port() -> int:
    """For a program that cannot choose a port itself; another program may be faster."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start_other_program(test: unittest.TestCase, greeting: bytes) -> str:
    """HOST:PORT of a server that is no node: it says this to whoever connects, and closes the connection."""
    serving = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            while True:
                connection, _ = serving.accept()
                with connection:
                    connection.sendall(greeting)
        except OSError:
            pass  # the test is over, or the other end is gone

    threading.Thread(target=serve, daemon=True).start()
    test.addCleanup(serving.close)
    return f"127.0.0.1:{serving.getsockname()[1]}"


def processes_with(file: str, text: str) -> List[int]:
    """Processes with this text in a file of /proc/PID, such as cmdline or environ."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (process / file).read_bytes():
                found.append(int(process.name))
        except OSError:
            pass  # it has ended in the meantime, or is another user's
    return found


def programs_naming(folder: Path) -> List[int]:
    """Processes whose arguments name a file of this folder."""
    return processes_with("cmdline", str(folder))


def private_bytes(node: Node) -> int:
    """Memory of the daemon that is not shared with its clients."""
    with open(f"/proc/{node.program.pid}/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return 1024 * int(fields["RssAnon"].split()[0])


def start_with_library(node: Node, variable: str, **environment: str) -> None:
    """Starts a daemon into which the library is loaded that the environment variable names. (From a copy: the loader takes
    a path with a space in it for two, and goes on without it.)"""
    library = shutil.copy(os.environ[variable], node.folder)
    node.environment = {"LD_PRELOAD": str(library), **environment}
    node.start()
    assert node.program is not None
    if str(library) not in Path(f"/proc/{node.program.pid}/maps").read_text(encoding="utf-8"):
        raise RuntimeError(f"{library} is not loaded")


def start_program(test: unittest.TestCase, arguments: List[Any], **options: Any) -> subprocess.Popen:
    """It is gone after the test, and its pipes are closed. The options are those of subprocess.Popen."""
    program = subprocess.Popen(arguments, **options)
    test.addCleanup(program.__exit__, None, None, None)
    test.addCleanup(program.kill)
    return program


class ToolTest(unittest.TestCase):
    """Runs one of the programs in tools/lib in a temporary folder of its own. Nothing of it may be left."""

    TOOL: str

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="g-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def start(self, *options: str) -> subprocess.Popen:
        return start_program(
            self,
            [sys.executable, "-m", self.TOOL, "--build", str(BUILD), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": f"{REPOSITORY / 'tools' / 'lib'}:{BUILD / 'python'}",
                "TMPDIR": str(self.folder),
            },
        )

    def programs_left(self) -> List[int]:
        return programs_naming(self.folder)

    def assert_nothing_left(self) -> None:
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertEqual(self.programs_left(), [])


class SystemTest(unittest.TestCase):
    """Has a cluster of its own, which is gone after the test. The daemons' logs are shown if it fails."""

    def setUp(self) -> None:
        warnings.simplefilter("ignore", gossamer.GossamerWarning)
        self.folder = Path(tempfile.mkdtemp(prefix="gossamer-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.cluster = Cluster(BUILD, self.folder, QUICK)
        self.addCleanup(self._end)
        self.clients: List[Client] = []

    def _end(self) -> None:
        for client in self.clients:
            client.run.close()
        stubborn = self.cluster.close()
        if self._faults() > self._faults_before:
            for node in self.cluster.nodes:
                log = node.log.read_text(errors="replace") if node.log.exists() else ""
                print(f"--- {node.name}, the end of its log\n{log[-4000:]}", file=sys.stderr)
        if stubborn:
            raise AssertionError(f"{len(stubborn)} programs did not stop when asked to")

    def run(self, result: Optional[unittest.TestResult] = None) -> Optional[unittest.TestResult]:
        self._result = result
        self._faults_before = self._faults()
        return super().run(result)

    def _faults(self) -> int:
        return len(self._result.errors) + len(self._result.failures) if self._result else 0

    def start_nodes(self, count: int, options: Optional[Options] = None) -> List[Node]:
        """Nodes that are started and linked, each with every other."""
        nodes = [self.cluster.start(f"node-{index + 1}", options) for index in range(count)]
        self.wait_for_links(nodes)
        return nodes

    def wait_for_links(self, nodes: List[Node]) -> None:
        wait_until(
            lambda: all(node.status()["neighbours"] == len(nodes) - 1 for node in nodes), PATIENCE_S, "all are linked"
        )

    def attach(self, node: Node, values: np.ndarray, **options: Any) -> Client:
        client = Client(node, values, **options)
        self.clients.append(client)
        return client

    def step_until(
        self,
        condition: Callable[[], bool],
        what: str,
        clients: Optional[List[Client]] = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Steps without training until the condition holds."""

        def step_and_look() -> bool:
            for client in self.clients if clients is None else clients:
                client.step()
            return condition()

        wait_until(step_and_look, patience_s, what)

    def publish(self, client: Client) -> None:
        """Steps until the daemon has the present values of the array, which must be one fragment: of several, one alone
        may have been published."""
        self.assertEqual(client.run.info().fragments, 1, "attach() with fragment_elements that hold the whole array")
        before = client.run.info().publications
        self.step_until(lambda: client.run.info().publications > before, "the client has published", [client])

    def converge(self, clients: List[Client], expected_total: np.ndarray, tolerance: float = 1e-4) -> None:
        """Steps until the replicas agree and their sum is right. During an exchange one side may have moved and the
        other not, but only for a moment, and by less and less."""

        def agree() -> bool:
            return spread(clients) <= tolerance and error() <= ROUNDING

        def error() -> float:
            return float(np.abs(total(clients) - expected_total).max())

        try:
            self.step_until(agree, "the replicas agree", clients)
        except TimeoutError:
            self.fail(f"the replicas differ by {spread(clients):g}, their sum is off by {error():g}")

    def assert_still_exchanges(self, clients: List[Client]) -> None:
        """Whatever happened before, training goes on: a change at the first client reaches the others."""
        clients[0].array += 1
        before = [client.array.copy() for client in clients[1:]]
        self.step_until(
            lambda: all((client.array != old).all() for client, old in zip(clients[1:], before)),
            "a change reaches the other replicas",
            clients,
        )


class OperatedTest(SystemTest):
    """Operators give commands to the nodes, by gossamerctl."""

    def ctl(self, node: Node, *arguments: str) -> subprocess.CompletedProcess:
        return gossamerctl(BUILD, "--socket", str(node.control_socket), *arguments)

    def ask(self, node: Node, *arguments: str) -> Any:
        done = self.ctl(node, "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def error_of(self, node: Node, *arguments: str) -> str:
        done = self.ctl(node, *arguments)
        self.assertEqual(done.returncode, 3, done.stdout)
        return done.stderr
