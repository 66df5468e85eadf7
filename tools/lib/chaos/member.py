"""One node of a run: its daemon, its trainer, its disk, and their last known state."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Dict, List, Optional

from board import Board
from cluster import Cluster, DaemonError, Node
from network import Host
from processes import Program

from .trainer import JOB

DISK_BYTES = 256 << 10

_libc = ctypes.CDLL(None, use_errno=True)


class Member:
    def __init__(self, cluster: Cluster, index: int, data: Path, share: float, seed: int, host: Optional[Host]):
        self.name = f"node-{index + 1}"
        self.index = index
        self.host = host
        self.node: Node = cluster.add(self.name, host=host)
        self.trainer: Optional[Program] = None
        self.board = Board(self.node.folder / "board")
        self.job: Dict[str, Any] = {}
        self.status: Dict[str, Any] = {}
        # Whether the daemon and the trainer should run now. Faults change these.
        self.daemon_up = True
        self.trainer_up = True
        self._cluster = cluster
        self._arguments = [str(data), str(self.node.folder / "board"), str(seed + index), f"{share:g}"]

    # --- the daemon

    def kill_daemon(self) -> None:
        self.daemon_up = False
        self.node.kill()

    def launch_daemon(self) -> None:
        self.daemon_up = True
        self.node.launch()

    def answers(self) -> bool:
        """Reads the daemon's report on itself. The daemon may be starting, stopped or gone."""
        if not self.daemon_up or not self.node.running():
            return False
        try:
            self.status = self.node.status()
            self.job = self.node.job(JOB) or {}
        except DaemonError:
            return False
        return True

    def linked(self) -> Optional[List[str]]:
        """The ids of the nodes that it has links to; None if it does not answer."""
        try:
            return [peer["node"] for peer in self.node.peers() if peer["up"]]
        except DaemonError:
            return None

    @property
    def id(self) -> str:
        return self.status.get("node", "")

    def private_bytes(self) -> int:
        """The daemon's memory that is not shared with its client."""
        try:
            with open(f"/proc/{self.node.program.pid}/status", encoding="ascii") as status:
                fields = dict(line.split(":", 1) for line in status)
            return 1024 * int(fields["RssAnon"].split()[0])
        except (OSError, KeyError):
            return 0

    # --- the trainer

    def start_trainer(self) -> None:
        self.trainer_up = True
        self.board = Board(self.node.folder / "board", clear=True)
        self.trainer = self._cluster.start_trainer(self.node, ["-m", "chaos.trainer", *self._arguments])

    def kill_trainer(self) -> None:
        self.trainer_up = False
        self.trainer.kill()

    def trains(self) -> bool:
        return self.trainer_up and self.trainer.running() and self.board["ready_s"] > 0

    # --- its disk

    @property
    def state(self) -> Path:
        return Path(self.node.options["node"]["state_dir"])

    def mount_small_disk(self) -> None:
        """Mounts the disk where the state will be. Raises OSError."""
        self.state.mkdir(mode=0o700)
        options = f"size={DISK_BYTES},mode=0700".encode()
        if _libc.mount(b"tmpfs", os.fsencode(self.state), b"tmpfs", 0, options) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"no small disk can be mounted ({os.strerror(error)})")

    def fill_disk(self) -> None:
        with open(self.state / "filler", "wb", buffering=0) as file:
            try:
                for _ in range(DISK_BYTES // 1024 + 1):
                    file.write(bytes(1024))
            except OSError:
                pass

    def empty_disk(self) -> None:
        (self.state / "filler").unlink(missing_ok=True)

    def unexpected_end(self) -> Optional[str]:
        """Names a program that has ended without being told to, with the end of its log."""
        for up, program, what in (
            (self.daemon_up, self.node.program, "gossamerd"),
            (self.trainer_up, self.trainer, "its trainer"),
        ):
            if up and program is not None and not program.running():
                log = "\n".join("    " + line for line in program.log_text().splitlines()[-15:])
                return f"{self.name}: {what} ended by itself with status {program.wait()}:\n{log}"
        return None
