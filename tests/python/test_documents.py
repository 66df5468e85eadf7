"""Runs the programs of the documents as they stand there: each block that is marked as Python, with a fake daemon.
Programs whose framework is missing are skipped, with a message that says which.
"""

import contextlib
import importlib.util
import io
import os
import re
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path

import gossamer
from contract_daemon import CLOCK, FINISH_ANSWER, FINISHING, ContractDaemon

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    (f"{name}, program {number}", code)
    for name in (
        "tutorial/two-machines.md",
        "how-to/train-in-python.md",
        "how-to/resume-and-finish.md",
        "how-to/migrate.md",
    )
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", (DOCUMENTS / name).read_text(), re.S | re.M), 1)
]


@contextlib.contextmanager
def finishing(daemon):
    """All agree as soon as a program has stopped training."""
    stop = threading.Event()

    def answer() -> None:
        client = daemon.client()
        while not stop.wait(0.01):
            number = client.u32(FINISHING)
            if number:
                client.set_u64(FINISH_ANSWER, number << 32 | 1 << 16 | 3)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def in_new_folder():
    """Removes the files that programs save."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="gossamer-test-") as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


@contextlib.contextmanager
def quiet():
    """Hides the programs' output. A warning of Gossamer, for instance "training goes on alone", is an error."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("error", gossamer.GossamerWarning)
        yield


class Documents(unittest.TestCase):
    def test_programs_run(self) -> None:
        run = 0
        for name, code in BLOCKS:
            modules = re.findall(r"^import (\w+)", code, re.M)
            missing = [module for module in modules if importlib.util.find_spec(module) is None]
            if missing:
                print(f"SKIPPED: {name}: {', '.join(missing)} missing", file=sys.stderr)
                continue
            with self.subTest(name), in_new_folder(), ContractDaemon() as daemon, finishing(daemon), quiet():
                os.environ["GOSSAMER_SOCKET"] = daemon.path
                exec(compile(code, name, "exec"), {"__name__": "__main__"})
                self.assertGreater(daemon.client().u64(CLOCK), 0)
                run += 1
        self.assertGreaterEqual(len(BLOCKS), 6)
        self.assertGreater(run, 0)


if __name__ == "__main__":
    unittest.main()
