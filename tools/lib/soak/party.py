"""One daemon and its training processes."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import List, Optional, Sequence

from board import Board
from cluster import Cluster
from processes import Program


class Client:
    """One training process. Each has a folder of its own, which outlives it."""

    def __init__(self, party: "Party", index: int, job: str, elements: int, step_ms: float, seed: int):
        self.name = f"{party.name}.{index + 1}"
        self.job = job
        self.folder = party.folder / f"client-{index + 1}"
        self.folder.mkdir()
        self.program: Optional[Program] = None
        self.up = False  # whether the program should run
        self._party = party
        self._arguments = [str(self.folder), job, str(elements), f"{step_ms:g}", str(seed)]
        self.board = Board(self.folder / "board", clear=True)

    def start(self) -> None:
        self.board = Board(self.folder / "board", clear=True)
        self.program = self._party.cluster.start_trainer(self._party.node, ["-m", "soak.trainer", *self._arguments])
        self.up = True

    def kill(self) -> None:
        self.up = False
        self.program.kill()

    def ask_to_end(self) -> None:
        self.up = False
        self.program.signal(signal.SIGTERM)

    def takes_part(self) -> bool:
        return self.up and self.board["ready_s"] > 0


class Party:
    """`stays`: its daemon runs throughout, and is judged."""

    def __init__(self, cluster: Cluster, name: str, stays: bool):
        self.cluster = cluster
        self.name = name
        self.stays = stays
        self.node = cluster.add(name)
        self.folder: Path = self.node.folder
        self.clients: List[Client] = []
        self.up = False
        self._leaving: Optional[Program] = None

    def launch(self) -> None:
        self.up = True
        self.node.launch()

    def start_clients(self) -> None:
        for client in self.clients:
            client.start()

    def kill_daemon(self) -> None:
        self.up = False
        self.node.kill()

    def kill_all(self) -> None:
        self.kill_daemon()
        for client in self.clients:
            client.kill()

    def leave(self) -> None:
        """The daemon hands over what was learned here and ends; over() then ends the clients."""
        self.up = False
        tool = [str(self.cluster.build / "bin" / "gossamerctl"), "--socket", str(self.node.control_socket)]
        self._leaving = Program([*tool, "leave", "--timeout", "5"], self.folder / "leave.log")

    def over(self) -> bool:
        """Whether the daemon and the clients have ended. The clients are told to end when the daemon has ended."""
        if self.node.running() or (self._leaving is not None and self._leaving.running()):
            return False
        for client in self.clients:
            if client.up:
                client.ask_to_end()
        return not any(client.program.running() for client in self.clients)

    def become_a_stranger(self) -> None:
        """The next daemon has new keys and a new address."""
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        self.node.options["overlay"]["listen"] = "tcp://127.0.0.1:0"

    def unexpected_end(self) -> Optional[str]:
        """Names a program that has ended without being told to, with the end of its log."""
        watched = [(self.up, self.node.program, f"{self.name}: gossamerd")]
        watched += [(client.up, client.program, f"{client.name}: the training process") for client in self.clients]
        for up, program, what in watched:
            if up and program is not None and not program.running():
                log = "\n".join("    " + line for line in program.log_text().splitlines()[-15:])
                return f"{what} ended by itself with status {program.wait()}:\n{log}"
        return None

    def whole(self) -> bool:
        return self.up and all(client.takes_part() for client in self.clients)


def forget_ended(cluster: Cluster, keep: Sequence[Client]) -> None:
    """Makes the cluster forget ended programs: it keeps every program that it ever started, and a soak starts
    thousands."""
    running = {client.program for client in keep}
    cluster.trainers[:] = [program for program in cluster.trainers if program in running or program.running()]
