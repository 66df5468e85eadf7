"""The common parts of the tools' command lines."""

from __future__ import annotations

import argparse
import random
from typing import Any, Callable, Optional, Sequence, Tuple, Union

MAX_SEED = 2**31 - 1
# Seeds are drawn below this, so that a seed is short to type.
DRAWN_SEEDS = 10_000


def between(kind: type, low: float, high: float) -> Callable[[str], Any]:
    """For argparse's `type`: a number of this kind within these bounds."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    parse.__name__ = "number"
    return parse


class _Ascending(argparse.Action):
    """Takes two values, the first of which is not above the second."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Union[str, Sequence[Any], None],
        option_string: Optional[str] = None,
    ) -> None:
        assert isinstance(values, list)
        if values[0] > values[1]:
            parser.error(f"{option_string}: {self.metavar[0]} is above {self.metavar[1]}")
        setattr(namespace, self.dest, values)


def add_pause(
    parser: argparse.ArgumentParser, name: str, bounds: Tuple[float, float], default: Tuple[float, float], text: str
) -> None:
    """An option for a time in seconds that is drawn again and again, between a least and a most."""
    parser.add_argument(
        name,
        type=between(float, *bounds),
        nargs=2,
        action=_Ascending,
        metavar=("LEAST", "MOST"),
        default=default,
        help=f"{text} (default: {default[0]:g} {default[1]:g})",
    )


def add_seed(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds --seed; a seed is drawn where none is given."""
    parser.add_argument(
        "--seed",
        type=between(int, 0, MAX_SEED),
        default=random.randrange(DRAWN_SEEDS),
        help=f"{text} (default: a new one each time)",
    )
