"""One method's run: daemons if it needs them, trainers, a death, and what the trainers have reported."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from cluster import Cluster, Node
from network import Host, Network, bytes_sent
from processes import POLL_S, Program, wait_until

from .trainer import JOB, Orders

START_TIMEOUT_S = 60.0
# By then trainers that begin together have found each other, and agreed on a model.
BEGIN_AFTER_S = 3.0
# A trainer that has not ended by then is waiting for another.
END_TIMEOUT_S = 5.0
WITH_DAEMONS = ("gossip", "average", "server")


@dataclass
class Part:
    """One node's part in a run."""

    trainer: Program
    node: Optional[Node] = None
    killed: bool = False
    reports: List[Dict[str, Any]] = field(default_factory=list)
    unread: bytes = b""

    def listen(self) -> None:
        self.unread += self.trainer.process.stdout.read() or b""
        *lines, self.unread = self.unread.split(b"\n")
        self.reports += [json.loads(line) for line in lines if line.startswith(b"{")]

    def ended(self) -> bool:
        return bool(self.reports) and self.reports[-1].get("done", False)


@dataclass(frozen=True)
class Outcome:
    method: str
    begin_s: float  # on the clock of the reports
    parts: List[Part]
    stuck: int  # trainers that had not ended in time
    bytes_sent: Optional[int]  # the sum over all nodes; None: not known
    cpu_s: float  # processor time of the daemons


def _free_address(host: Optional[Host]) -> str:
    if host is not None:
        return f"tcp://{host.address}:29400"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class Run:
    def __init__(self, method: str, options: argparse.Namespace, folder: Path, network: Optional[Network]):
        self.method = method
        self.options = options
        period_ms = max(1, round(1000 * options.every / options.steps_per_s))
        self.cluster = Cluster(options.build, folder, {"gossip": {"period_ms": period_ms}})
        servers = options.servers if method == "server" else 0
        self.hosts: List[Optional[Host]] = [None] * (options.nodes + servers)
        if network is not None:
            delay_s = (options.latency_ms or 0) / 4000  # a round trip passes four hosts
            self.hosts = [network.add(delay_s) for _ in self.hosts]
            for host in self.hosts:
                if options.mbit and host is not None:
                    host.limit(options.mbit)
        self.parts: List[Part] = []

    def run(self) -> Outcome:
        with self.cluster:
            self._start()
            begin_s = time.monotonic() + BEGIN_AFTER_S
            end_s = begin_s + self.options.seconds
            for part in self.parts:
                part.trainer.process.stdin.write(f"{begin_s} {end_s}\n".encode())
                part.trainer.process.stdin.flush()
            while time.monotonic() < end_s + END_TIMEOUT_S and not all(p.ended() or p.killed for p in self.parts):
                if self.options.kill and time.monotonic() >= begin_s + self.options.kill:
                    self._kill(self.parts[-1])
                for part in self.parts:
                    part.listen()
                time.sleep(POLL_S)
            present = [part for part in self.parts if not part.killed]
            daemons = [node.status() for node in self.cluster.nodes if node.running()]
            sent: Optional[int] = None
            if self.hosts[0] is not None:
                sent = sum(bytes_sent(host) for host in self.hosts if host is not None)
            elif daemons:
                sent = sum(daemon["bytes_sent"] for daemon in daemons)
            return Outcome(
                method=self.method,
                begin_s=begin_s,
                parts=self.parts,
                stuck=sum(not part.ended() for part in present),
                bytes_sent=sent,
                cpu_s=sum(daemon["cpu_s"] for daemon in daemons),
            )

    def _start(self) -> None:
        nodes: List[Node] = []
        for index, host in enumerate(self.hosts):
            node = self.cluster.add(f"node-{index + 1}", host=host)
            if self.method in WITH_DAEMONS:
                node.start()
            nodes.append(node)
        if self.method in WITH_DAEMONS:
            wait_until(
                lambda: all(node.status()["neighbours"] == len(nodes) - 1 for node in nodes),
                START_TIMEOUT_S,
                "all daemons are linked",
            )
        for node in nodes[self.options.nodes :]:
            keep = [str(self.options.build / "bin" / "gossamerctl"), "--socket", str(node.control_socket), "keep", JOB]
            self.cluster.trainers.append(Program(keep, node.folder / "keeper.log"))
        meeting = _free_address(self.hosts[0])
        for index, node in enumerate(nodes[: self.options.nodes]):
            host = self.hosts[index]
            slowness = self.options.slow if index == 0 else 1.0
            orders = Orders(
                method=self.method,
                node=index,
                nodes=self.options.nodes,
                seed=self.options.seed,
                every=self.options.every,
                pause_s=slowness / self.options.steps_per_s,
                address=host.address if host is not None else "127.0.0.1",
                meeting=meeting,
                folder=str(self.cluster.folder),
                script=str(self.options.script or ""),
            )
            trainer = self.cluster.start_trainer(
                node,
                ["-m", "compare.trainer", orders.to_json()],
                {"GLOO_SOCKET_IFNAME": "eth0"} if host is not None else None,
                python=self.options.hivemind_python if self.method == "hivemind" else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                enter=host.enter if host is not None else None,
            )
            self.parts.append(Part(trainer, node if self.method in WITH_DAEMONS else None))
        for part in self.parts:
            if part.trainer.process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"a trainer ended by itself:\n{part.trainer.log_text()[-2000:]}")
            os.set_blocking(part.trainer.process.stdout.fileno(), False)

    def _kill(self, part: Part) -> None:
        """As when the machine loses power."""
        if part.killed:
            return
        part.killed = True
        if part.node is not None:
            part.node.kill()
        part.trainer.kill()
