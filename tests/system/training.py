"""Clusters with real trainers, for the tests of faults: daemons and small trainers (trainer.py) as processes of their
own, their progress, and the conditions that hold after any fault.

Waits are for conditions. The failure detector decides how long a death takes to be noticed: a few seconds here.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from support import PATIENCE_S, Node, Options, SystemTest, wait_until
from board import Board
from network import Host
from processes import Program

TRAINER = Path(__file__).with_name("trainer.py")
# At this distance to the optimum, relative to its norm, a model counts as learned. One of four trainers alone stays at
# 0.7 or more.
TARGET = 0.1
# Exchanges that may be under way between two nodes when one is lost: those that either began, and as many again whose
# acknowledgement had not arrived.
IN_FLIGHT = 4
UNRESOLVED_PER_LOSS = 4 * IN_FLIGHT
QUICK_TRAINING: Options = {
    "gossip": {"period_ms": 20, "exchange_lifetime_ms": 4000, "in_flight": IN_FLIGHT},
    "overlay": {
        "ping_ms": 100,
        "link_timeout_ms": 800,
        "probe_interval_ms": 200,
        "probe_timeout_ms": 100,
        "suspicion_mult": 3,
    },
    "log": {"level": "debug"},
}
# A daemon may hold this much more memory after a fault than before it, because allocators keep memory.
ALLOWED_GROWTH_BYTES = 24 << 20
# The test's control connections may be open.
ALLOWED_MORE_SOCKETS = 4
# ZeroMQ's descriptors at the dialling end of a link. After a fault, the other end may dial.
DESCRIPTORS_PER_DIALLED_LINK = 6


def private_bytes(pid: int) -> int:
    """Memory of a process that is not shared with others."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return 1024 * int(fields["RssAnon"].split()[0])


def descriptors(pid: int) -> Tuple[int, int]:
    """The numbers of sockets and of other descriptors."""
    sockets = others = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            is_socket = os.readlink(entry.path).startswith("socket:")
        except FileNotFoundError:
            continue  # closed in the meantime
        sockets, others = sockets + is_socket, others + (not is_socket)
    return sockets, others


class Member:
    """A node, its trainer, and the trainer's report on itself."""

    def __init__(self, node: Node, number: int, count: int):
        self.node = node
        self.number = number  # its part of the data, out of `count`
        self.count = count
        self.trainer: Optional[Program] = None
        self.board = Board(node.folder / "board")

    def losses(self) -> int:
        """Exchanges whose outcome this node does not know."""
        return sum(job["unresolved"] for job in self.node.jobs())

    def job(self) -> Dict:
        return next(iter(self.node.jobs()), {})


class TrainingTest(SystemTest):
    """`nodes` members, each with a trainer."""

    elements = 2000

    def setUp(self) -> None:
        super().setUp()
        self.task_path = self.folder / "task"
        self.task_path.write_bytes(bytes(8))
        self.task = np.memmap(self.task_path, np.int64, "r+", shape=(1,))
        self.members: List[Member] = []

    def start_members(self, count: int, hosts: Optional[List[Host]] = None) -> List[Member]:
        """Members that are started, linked and training."""
        for number in range(count):
            self.add_member(number, count, hosts[number] if hosts else None)
        self.wait_for_neighbours({member: count - 1 for member in self.members})
        self.assert_learns()
        return self.members

    def add_member(self, number: int, count: int, host: Optional[Host] = None, **more: Dict[str, Any]) -> Member:
        """`more` has sections of the node's configuration."""
        options: Options = {}
        for source in (QUICK_TRAINING, more):
            for section, values in source.items():
                options.setdefault(section, {}).update(values)
        member = Member(self.cluster.add(f"node-{len(self.cluster.nodes) + 1}", options, host), number, count)
        member.node.start()
        self.members.append(member)
        self.start_trainer(member)
        return member

    def start_trainer(self, member: Member) -> None:
        arguments = [member.number, member.count, member.node.folder / "board", self.task_path, self.elements]
        member.board = Board(member.node.folder / "board", clear=True)
        member.trainer = self.cluster.start_trainer(member.node, [str(TRAINER), *map(str, arguments)])

    def wait_for_neighbours(self, expected: Dict[Member, int]) -> None:
        wait_until(
            lambda: all(member.node.status()["neighbours"] == count for member, count in expected.items()),
            PATIENCE_S,
            f"{', '.join(member.node.name for member in expected)} have {set(expected.values())} neighbours",
        )

    def assert_learns(self, members: Optional[List[Member]] = None) -> None:
        """Checks that training goes on: these get a new task, which none of them can learn alone, and all learn it."""
        members = self.members if members is None else members
        self.task[0] += 1
        try:
            wait_until(lambda: all(self.has_learned(member) for member in members), PATIENCE_S, "all learn")
        except TimeoutError:
            scores = {member.node.name: (member.board["task"], member.board["score"]) for member in members}
            self.fail(f"task {self.task[0]} is not learned by all: (task, error) are {scores}")

    def has_learned(self, member: Member) -> bool:
        return member.board["task"] == self.task[0] and member.board["score"] < TARGET

    def assert_sound(
        self,
        losses: int = 0,
        members: Optional[List[Member]] = None,
        rejected_by: Optional[Dict[Member, int]] = None,
    ) -> None:
        """Checks by the counters that nobody was harmed. `losses`: how often a node has lost another. `rejected_by`:
        the nodes that were sent malformed messages, and how many."""
        for member in self.members if members is None else members:
            name = member.node.name
            self.assertTrue(member.node.running(), f"{name} runs")
            self.assertTrue(member.trainer.running(), f"the trainer of {name} runs")
            status = member.node.status()
            rejected = (rejected_by or {}).get(member, 0)
            self.assertEqual(status["messages_rejected"], rejected, f"{name} was sent malformed messages")
            self.assertLessEqual(member.losses(), UNRESOLVED_PER_LOSS * losses, f"{name}: exchanges without an end")
            for job in member.node.jobs():
                self.assertEqual((job["violations"], job["quarantined_fragments"]), (0, 0), name)
            log = member.node.log.read_text(errors="replace")
            serious = [line for line in log.splitlines() if re.match(r"\S+ \S+ (error|critical)", line)]
            self.assertEqual(serious, [], name)

    def footprint(self) -> Dict[int, tuple]:
        """For each daemon by its process: bytes, sockets, other descriptors."""
        pids = [member.node.program.pid for member in self.members if member.node.running()]
        return {pid: (private_bytes(pid), *descriptors(pid)) for pid in pids}

    def assert_no_leak(self, before: Dict[int, tuple]) -> None:
        """Daemons that have run since then hold hardly more than then. Descriptors of links end with the links."""

        other_nodes = len(self.members) - 1
        allowed = (ALLOWED_GROWTH_BYTES, ALLOWED_MORE_SOCKETS, DESCRIPTORS_PER_DIALLED_LINK * other_nodes)

        def grown() -> List[str]:
            after = self.footprint()
            return [
                f"process {pid}: from {before[pid]} to {after[pid]} (bytes, sockets, other descriptors)"
                for pid in after.keys() & before.keys()
                if any(now > then + more for now, then, more in zip(after[pid], before[pid], allowed))
            ]

        try:
            wait_until(lambda: not grown(), PATIENCE_S, "what was taken is given back")
        except TimeoutError:
            self.fail("; ".join(grown()))

    def steps_of(self, members: List[Member]) -> List[float]:
        return [member.board["steps"] for member in members]

    def wait_for_steps(self, members: List[Member], more: int) -> None:
        """Waits until each of these has trained this many steps more."""
        before = self.steps_of(members)
        wait_until(
            lambda: all(now >= then + more for now, then in zip(self.steps_of(members), before)),
            PATIENCE_S,
            f"{more} more steps",
        )


def stop(program: Program) -> None:
    program.signal(signal.SIGSTOP)


def resume(program: Program) -> None:
    program.signal(signal.SIGCONT)


def hold(seconds: float) -> None:
    """A fault that lasts for a given time, like a pause; not for waiting until something has happened."""
    time.sleep(seconds)
