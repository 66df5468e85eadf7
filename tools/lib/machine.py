"""A machine that systemd-nspawn boots, with a systemd of its own, for tests of installed or started services. Needs
root and the packages systemd and systemd-container.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import List, Optional, Sequence

from processes import Program, end, wait_until

# The machine may take this long to boot, to run a command, and to halt.
PATIENCE_S = 60.0


def why_not() -> str:
    """The missing things; empty if nothing is missing."""
    if os.geteuid() != 0:
        return "one must be root"
    if shutil.which("systemd-nspawn") is None:
        return "not installed: systemd-container (apt-get install systemd-container)"
    if not Path("/usr/lib/systemd/systemd").exists():
        return "not installed: systemd"
    return ""


class Machine:
    """A machine that boots in the constructor's root folder when boot() is called."""

    def __init__(
        self, root: Path, log: Path, arguments: Sequence[str] = (), hostname: str = "", network: Optional[str] = None
    ):
        """`arguments` are further ones for systemd-nspawn. Its console goes to `log`. Several machines at once each
        need a hostname. `network` is the path of a network namespace (Host.path of network.py); without it the machine
        has only its own loopback."""
        self.root = root
        self.name = f"gossamer-{os.getpid()}" + (f"-{hostname}" if hostname else "")
        self._log = log
        self._arguments = [f"--network-namespace-path={network}" if network else "--private-network"]
        self._arguments += [f"--hostname={hostname}"] if hostname else []
        self._arguments += arguments
        self._nspawn: Optional[Program] = None

    def boot(self) -> None:
        """Returns when systemd is up. Raises TimeoutError with the console's last lines if it does not get there."""
        self._nspawn = Program(
            ["systemd-nspawn", f"--directory={self.root}", f"--machine={self.name}", "--boot", "--register=no"]
            + ["--keep-unit", "--console=pipe", *self._arguments],
            self._log,
        )
        try:
            wait_until(self._booted, PATIENCE_S, "the machine boots")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self._nspawn.log_text()[-2000:]}") from None

    def _booted(self) -> bool:
        if self._nspawn is None or not self._nspawn.running():
            raise TimeoutError("systemd-nspawn has ended")
        state = self.enter("systemctl", "is-system-running").stdout.strip() if self._leader() else ""
        return state in ("running", "degraded")

    def _leader(self) -> List[str]:
        """The first process in the machine; none before it has booted."""
        if self._nspawn is None or not self._nspawn.running():
            return []
        return Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text("ascii").split()[:1]

    def entered(self, *command: str) -> List[str]:
        """The command as it is run in the machine."""
        return ["nsenter", "-t", self._leader()[0], "-m", "-u", "-i", "-n", "-p", "-C", *command]

    def enter(
        self, *command: str, given: str = "", timeout_s: float = PATIENCE_S
    ) -> "subprocess.CompletedProcess[str]":
        """Runs the command in the machine; `given` is its standard input."""
        return subprocess.run(
            self.entered(*command), input=given, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def halt(self) -> None:
        """Works also if the machine has not booted, or is halted already."""
        if self._nspawn is None:
            return
        for leader in self._leader():
            os.kill(int(leader), signal.SIGRTMIN + 3)  # systemd halts on this signal
            try:
                self._nspawn.wait(PATIENCE_S)
            except TimeoutError:
                pass
        end([self._nspawn])
        folder = Path("/run/systemd/nspawn/propagate") / self.name  # systemd leaves this folder behind
        if folder.exists():
            folder.rmdir()
