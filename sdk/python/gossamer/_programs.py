"""The commands of a wheel that has the programs inside. tools/lib/wheel.py makes them: no other installation has them,
because they would come before the programs of a Debian package.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = Path(__file__).resolve().parent / "bin"


def _become(name: str) -> NoReturn:
    os.execv(FOLDER / name, [name, *sys.argv[1:]])


def gossamerd() -> NoReturn:
    _become("gossamerd")


def gossamerctl() -> NoReturn:
    _become("gossamerctl")


def gossamer_sim() -> NoReturn:
    _become("gossamer-sim")
