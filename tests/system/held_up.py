"""Runs a command, and holds up random processes that it starts, one after the other, as a machine does that has other
work: each is stopped (SIGSTOP) for a short time, and goes on. What fails then has assumed an order, or a time.

    python3 tests/system/held_up.py --seed 1 -- ctest --test-dir build -L system -j8 --output-on-failure

ctest itself is left alone, and so are processes that a test has stopped, and nsenter, which would not go on.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List

from support import processes_with

MARK = "GOSSAMER_HELD_UP"
LEFT_ALONE = ("ctest", "nsenter")
MOST_AT_ONCE = 4
LONGEST_MEANS = 6


def running(mark: str) -> List[int]:
    """The processes to choose from."""
    found = []
    for number in processes_with("environ", f"{mark}\0"):
        process = Path("/proc") / str(number)
        try:
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            names = [(folder / "comm").read_text().strip() for folder in (process, process.parent / parent)]
        except OSError:  # it has ended
            continue
        if state in "RSD" and names[0] not in LEFT_ALONE and names[1] != "nsenter":
            found.append(number)
    return found


def send(number: signal.Signals, process: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def hold_up(command: "subprocess.Popen[bytes]", mark: str, chance: random.Random, mean_s: float) -> None:
    held: Dict[int, float] = {}
    try:
        while command.poll() is None:
            now = time.monotonic()
            for process in [process for process, until in held.items() if until < now]:
                del held[process]
                send(signal.SIGCONT, process)
            choice = [process for process in running(mark) if process != command.pid]
            if choice and len(held) < MOST_AT_ONCE:
                process = chance.choice(choice)
                held[process] = now + min(chance.expovariate(1 / mean_s), LONGEST_MEANS * mean_s)
                send(signal.SIGSTOP, process)
            time.sleep(chance.uniform(0.02, 0.1))
    finally:
        for process in held:
            send(signal.SIGCONT, process)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mean", type=float, default=0.12, help="mean time for which one is held, in seconds")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    value = str(os.getpid())
    command = subprocess.Popen(options.command, env={**os.environ, MARK: value})
    hold_up(command, f"{MARK}={value}", random.Random(options.seed), options.mean)
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())
