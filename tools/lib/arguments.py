"""What the command lines of the tools share."""

from __future__ import annotations

import argparse
from typing import Any, Callable


def between(kind: type, low: float, high: float) -> Callable[[str], Any]:
    """For argparse's `type`: a number of this kind within these bounds."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    parse.__name__ = "number"
    return parse
