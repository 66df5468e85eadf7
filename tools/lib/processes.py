"""Starts other programs so that none of them outlives this one. The demo and the system tests use it.

Each program runs in a process group of its own and is ended by that group's id; the kernel kills it if this process
dies without ending it. Use it from the main thread only: the kernel watches the thread that started a program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

PR_SET_PDEATHSIG = 1
# The machine counts as busy when this many programs per core want to run.
BUSY_LOAD = 1.5
# end() waits this long for a program to end by itself before it kills it.
PATIENCE_S = 5.0
POLL_S = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


def _die_with(parent: int) -> None:
    """In the new process: makes the kernel kill it when `parent` dies, and ends it now if `parent` is dead already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _before(parent: Optional[int], enter: Optional[Callable[[], None]]) -> Optional[Callable[[], None]]:
    """The new process calls this before it becomes the program."""
    if parent is None and enter is None:
        return None

    def prepare() -> None:
        if enter is not None:
            enter()
        if parent is not None:
            _die_with(parent)

    return prepare


class Program:
    """A running program and the process group that it leads. Standard error goes to `log`, and standard output, too,
    unless it is piped. The new process calls `enter` first: Host.enter() of network.py."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Optional[Dict[str, str]] = None,
        outlive_us: bool = False,
        enter: Optional[Callable[[], None]] = None,
        **popen: Any,
    ):
        with open(log, "ab") as log_file:
            popen.setdefault("stdin", subprocess.DEVNULL)
            popen.setdefault("stdout", log_file)
            self.process = subprocess.Popen(
                list(arguments),
                stderr=log_file,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=_before(None if outlive_us else os.getpid(), enter),
                **popen,
            )
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Signals the whole group. Nothing happens if it is gone."""
        if not self.running():
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit status, negative for a signal. Raises TimeoutError."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            program = os.path.basename(self.process.args[0])
            raise TimeoutError(f"waited {timeout_s:g} s in vain: {program} (process {self.pid}) ends") from None

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def end(programs: Sequence[Program], patience_s: float = PATIENCE_S) -> List[Program]:
    """Ends all of them at once: SIGTERM, and SIGKILL to those that are still there after `patience_s`.
    Returns the ones that had to be killed."""
    for program in programs:
        program.signal(signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and any(program.running() for program in programs):
        time.sleep(POLL_S)
    stubborn = [program for program in programs if program.running()]
    for program in stubborn:
        program.kill()
    return stubborn


def wait_until(condition: Any, timeout_s: float, what: str) -> Any:
    """The first true value of condition(), called every few milliseconds. Raises TimeoutError that names `what`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout_s:g} s in vain: {what}")
        time.sleep(POLL_S)


def busy() -> str:
    """Says that this machine has too much to do, for when something took too long; empty if it has not."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= BUSY_LOAD * cores:
        return ""
    return (
        f"This machine is busy: {load:.0f} programs want its {cores} cores. "
        "End some of them, or wait for them, and try again; or try with fewer --nodes."
    )


def tell_failure(error: BaseException) -> int:
    """Writes the failure to standard error. Returns the exit status for the tool."""
    print("\n".join(filter(None, (f"\nerror: {error}", busy()))), file=sys.stderr)
    return 1
