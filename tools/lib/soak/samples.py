"""The measurements: each daemon's memory, descriptors and threads, its report on itself, and how long it and
gossamerctl take to answer. They are written to CSV files at once.
"""

from __future__ import annotations

import csv
import os
import subprocess
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from cluster import DaemonError, ask

from .party import Party

# The first is how often every daemon is measured. The second is how often gossamerctl is started, for one daemon after
# the other.
LOOK_EVERY_S = 2.0
ANSWER_EVERY_S = 0.5
# A program that does nothing. Starting gossamerctl cannot take less time than starting this.
NOTHING = "/usr/bin/true"
TOOL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Look:
    """The measurements of one daemon. Memory is in bytes."""

    at_s: float
    daemon: str
    pid: int
    private: int  # resident memory that is not shared with its clients
    shared: int  # resident part of its clients' memory
    heap: int  # the part of the private memory that is in use
    descriptors: int
    threads: int
    answer_ms: float  # time until the control socket answered "status"


@dataclass(frozen=True)
class Answer:
    """How long `gossamerctl status` took from start to end, and how long a program that does nothing took right before
    it."""

    at_s: float
    daemon: str
    tool_ms: float
    nothing_ms: float
    status: int


class Samples:
    def __init__(self, folder: Path, tool: Path, staying: Sequence[str]):
        self.staying = list(staying)
        self.looks: List[Look] = []
        self.answers: List[Answer] = []
        self.begun_s = time.monotonic()
        self._tool = str(tool)
        self._files = []
        self._looks_csv = self._csv(folder / "daemons.csv", Look)
        self._answers_csv = self._csv(folder / "gossamerctl.csv", Answer)
        self._next_look_s = self._next_answer_s = 0.0
        self._turn = 0
        self._answering: Set[int] = set()  # daemons that have answered once, and must answer from then on

    def turn(self, parties: Sequence[Party], now: float) -> None:
        there = [party for party in parties if party.up and party.node.running()]
        if now >= self._next_look_s:
            self._next_look_s = now + LOOK_EVERY_S
            for party in there:
                self._look(party)
        there = [party for party in there if party.node.program.pid in self._answering]
        if now >= self._next_answer_s and there:
            self._next_answer_s = now + ANSWER_EVERY_S
            self._turn += 1
            self._answer(there[self._turn % len(there)])

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _csv(self, path: Path, kind: type) -> Any:
        file = open(path, "w", encoding="utf-8", newline="")
        self._files.append(file)
        writer = csv.DictWriter(file, [field.name for field in fields(kind)])
        writer.writeheader()
        return writer

    def _look(self, party: Party) -> None:
        pid = party.node.program.pid
        begin = time.perf_counter()
        try:
            status = ask(party.node.control_socket, "status", TOOL_TIMEOUT_S)["node"]
        except DaemonError:
            if pid in self._answering:
                raise
            return  # it is still starting
        answer_ms = 1000 * (time.perf_counter() - begin)
        self._answering.add(pid)
        process = of_process(pid)
        if process is None:
            return
        look = Look(
            at_s=round(time.monotonic() - self.begun_s, 3),
            daemon=party.name,
            pid=pid,
            heap=status["heap_bytes"],
            answer_ms=round(answer_ms, 3),
            **process,
        )
        self.looks.append(look)
        self._looks_csv.writerow(asdict(look))

    def _answer(self, party: Party) -> None:
        nothing_ms, _ = timed([NOTHING])
        at_s = time.monotonic() - self.begun_s
        tool_ms, status = timed([self._tool, "--socket", str(party.node.control_socket), "status"])
        answer = Answer(round(at_s, 3), party.name, round(tool_ms, 3), round(nothing_ms, 3), status)
        self.answers.append(answer)
        self._answers_csv.writerow(asdict(answer))


def timed(command: List[str]) -> Tuple[float, int]:
    """Returns milliseconds and the exit status."""
    begin = time.perf_counter()
    nothing = subprocess.DEVNULL
    status = subprocess.run(
        command, stdin=nothing, stdout=nothing, stderr=nothing, timeout=TOOL_TIMEOUT_S, check=False
    ).returncode
    return 1000 * (time.perf_counter() - begin), status


def of_process(pid: int) -> Optional[Dict[str, int]]:
    """Nothing if the process has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            values = dict(line.split(":", 1) for line in status)
        return {
            "private": 1024 * int(values["RssAnon"].split()[0]),
            "shared": 1024 * int(values["RssShmem"].split()[0]),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(values["Threads"]),
        }
    except (OSError, KeyError):
        return None
