"""The commands gossamerd, gossamerctl and gossamer-sim of a wheel that has the programs inside (tools/packages --wheel)."""

import os
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = Path(__file__).resolve().parent / "bin"


def _become(name: str) -> NoReturn:
    program = FOLDER / name
    if not program.exists():
        sys.exit(
            f"{name}: this installation of gossamer-sgd has the Python package and the client library only. Install the "
            f"Debian package gossamer, or a wheel with the programs: tools/packages --wheel makes one"
        )
    os.execv(program, [name, *sys.argv[1:]])


def gossamerd() -> NoReturn:
    _become("gossamerd")


def gossamerctl() -> NoReturn:
    _become("gossamerctl")


def gossamer_sim() -> NoReturn:
    _become("gossamer-sim")
