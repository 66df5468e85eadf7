"""A cluster of gossamerd on this machine. Each daemon has its own keys, state, sockets and configuration, all under one
folder, and one cluster key admits them all. The demo and the system tests use it from the main thread.

A daemon listens on a free port of the loopback interface and dials those that were started before it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import processes
import stopping
from network import Host

START_TIMEOUT_S = 15.0
# A daemon on a busy machine may have to wait for a processor.
ANSWER_TIMEOUT_S = 10.0
# A Unix socket's address is limited, and the names of the node and the socket follow the folder.
MAX_FOLDER_BYTES = 70

Options = Dict[str, Dict[str, Any]]


class DaemonError(RuntimeError):
    """A daemon that does not start or does not answer."""


def toml(options: Options) -> str:
    """The configuration file with these sections. JSON's strings, numbers and lists are TOML's as well."""
    lines = []
    for section, values in options.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def ask(control_socket: Path, command: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Dict[str, Any]:
    """The daemon's answer to a command (status, peers, members, jobs). Raises DaemonError."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(control_socket))
            connection.sendall(json.dumps({"command": command}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline() or b"null")
    except (OSError, ValueError) as error:
        raise DaemonError(f"{control_socket}: {error}") from error
    if not isinstance(answer, dict) or "error" in answer:
        raise DaemonError(f"{control_socket}: {command}: {answer}")
    return answer


class Node:
    """One daemon and its folder. It can be killed and started again on the same state. With a host it runs there and
    listens at the host's address; the sockets in its folder can be reached from everywhere."""

    def __init__(
        self,
        build: Path,
        folder: Path,
        name: str,
        options: Options,
        outlive_us: bool = False,
        host: Optional[Host] = None,
    ):
        self.name = name
        self.folder = folder
        self.config = folder / "gossamer.toml"
        self.log = folder / "gossamerd.log"
        self.sockets = folder / "run"
        self.client_socket = self.sockets / "client.sock"
        self.control_socket = self.sockets / "control.sock"
        self.program: Optional[processes.Program] = None
        self._daemon = build / "bin" / "gossamerd"
        self._outlive_us = outlive_us
        self.host = host
        self.environment: Dict[str, str] = {}
        folder.mkdir(mode=0o700)
        self.sockets.mkdir(mode=0o700)
        self.options: Options = {
            "node": {"name": name, "state_dir": str(folder / "state"), "socket_dir": str(self.sockets), "workers": 1},
            "overlay": {"listen": f"tcp://{host.address if host else '127.0.0.1'}:0"},
            "metrics": {"listen": ""},
        }
        for section, values in options.items():
            self.options.setdefault(section, {}).update(values)

    def use(self, build: Path) -> None:
        """It starts the gossamerd of this build from now on."""
        self._daemon = build / "bin" / "gossamerd"

    def reload(self) -> None:
        """Lets the running daemon read its options again."""
        assert self.program is not None
        self.config.write_text(toml(self.options))
        self.program.signal(signal.SIGHUP)

    def launch(self) -> None:
        """Starts the daemon; see wait_for_start()."""
        self.config.write_text(toml(self.options))
        with stopping.held():
            self.program = processes.Program(
                [str(self._daemon), "--config", str(self.config)],
                self.log,
                self.environment,
                outlive_us=self._outlive_us,
                enter=self.host.enter if self.host else None,
            )

    def wait_for_start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the daemon answers. A later start keeps its address."""
        assert self.program is not None
        program = self.program

        def answers() -> bool:
            if not program.running():
                raise DaemonError(f"{self.name}: gossamerd ended with status {program.wait()}:\n{program.log_text()}")
            try:
                self.options["overlay"]["listen"] = self.status()["address"]
                return True
            except DaemonError:
                return False

        processes.wait_until(answers, timeout_s, f"{self.name} answers at {self.control_socket}")

    def start(self) -> None:
        self.launch()
        self.wait_for_start()

    @property
    def address(self) -> str:
        """tcp://host:port, known once it has started."""
        return self.options["overlay"]["listen"]

    @property
    def endpoint(self) -> Tuple[str, int]:
        """Host and port of `address`, for a socket of one's own."""
        host, port = self.address.removeprefix("tcp://").split(":")
        return host, int(port)

    def running(self) -> bool:
        return self.program is not None and self.program.running()

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        if self.program is not None:
            self.program.kill()

    def stop(self, timeout_s: float = 10.0) -> int:
        """Ends it with SIGTERM. Returns the exit status."""
        assert self.program is not None
        self.program.signal(signal.SIGTERM)
        return self.program.wait(timeout_s)

    def status(self) -> Dict[str, Any]:
        return ask(self.control_socket, "status")["node"]

    def peers(self) -> List[Dict[str, Any]]:
        return ask(self.control_socket, "peers")["peers"]

    def members(self) -> List[Dict[str, Any]]:
        return ask(self.control_socket, "members")["members"]

    def jobs(self) -> List[Dict[str, Any]]:
        return ask(self.control_socket, "jobs")["jobs"]

    def job(self, name: str) -> Optional[Dict[str, Any]]:
        return next((job for job in self.jobs() if job["job"] == name), None)


class Cluster:
    """The daemons, and the trainers that belong to them. Ends them all when the `with` block is left."""

    def __init__(self, build: Path, folder: Path, options: Optional[Options] = None, outlive_us: bool = False):
        if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
            raise ValueError(f"{folder} is too long a path for Unix sockets below it; set TMPDIR to a shorter one")
        self.build = build
        self.folder = folder
        self.nodes: List[Node] = []
        self.trainers: List[processes.Program] = []
        self._options = options or {}
        self._outlive_us = outlive_us
        self.cluster_key = folder / "cluster.key"
        write_key(self.cluster_key)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def add(self, name: str, options: Optional[Options] = None, host: Optional[Host] = None) -> Node:
        """Adds a node that dials all present ones. It is not started yet."""
        merged: Options = {"overlay": {"cluster_key_file": str(self.cluster_key), "peers": self.addresses()}}
        for source in (self._options, options or {}):
            for section, values in source.items():
                merged.setdefault(section, {}).update(values)
        node = Node(self.build, self.folder / name, name, merged, self._outlive_us, host)
        self.nodes.append(node)
        return node

    def start(self, name: str, options: Optional[Options] = None, host: Optional[Host] = None) -> Node:
        node = self.add(name, options, host)
        node.start()
        return node

    def addresses(self) -> List[str]:
        return [node.address for node in self.nodes if not node.address.endswith(":0")]

    def start_trainer(
        self,
        node: Node,
        arguments: List[str],
        environment: Optional[Dict[str, str]] = None,
        python: Optional[str] = None,
        log: str = "trainer.log",
        **popen: Any,
    ) -> processes.Program:
        """Starts a Python program that finds the SDK, and this node's daemon. `python`: this one without it. `log`: in the
        node's folder."""
        search = [str(self.build / "python"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        with stopping.held():
            trainer = processes.Program(
                [python or sys.executable, *arguments],
                node.folder / log,
                {
                    "PYTHONPATH": os.pathsep.join(filter(None, search)),
                    "GOSSAMER_SOCKET": str(node.client_socket),
                    # Several trainers share this machine's cores; with more threads they would only disturb one
                    # another.
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    **(environment or {}),
                },
                outlive_us=self._outlive_us,
                **popen,
            )
            self.trainers.append(trainer)
        return trainer

    def close(self) -> List[processes.Program]:
        """Ends the trainers, then the daemons. Returns the programs that had to be killed."""
        daemons = [node.program for node in self.nodes if node.program is not None]
        return processes.end(self.trainers) + processes.end(daemons)


def write_key(path: Path) -> None:
    """A new cluster key: 64 hexadecimal digits that only this user can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")


def gossamerctl(build: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(build / "bin" / "gossamerctl"), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
