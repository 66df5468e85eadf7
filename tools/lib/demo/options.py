"""The command line of tools/demo."""

from __future__ import annotations

import argparse
from pathlib import Path

from arguments import add_seed, between

from . import plan


def parse(arguments: list) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/demo",
        description="Daemons and trainers on this machine train one model together; one node is killed, one joins.",
    )
    parser.add_argument(
        "--nodes",
        type=between(int, plan.MIN_NODES, plan.MAX_NODES),
        default=4,
        help=f"nodes at the start, {plan.MIN_NODES} to {plan.MAX_NODES}; one more joins (default: 4)",
    )
    parser.add_argument("--codec", choices=plan.CODECS, default="q8", help="how values travel (default: q8)")
    parser.add_argument(
        "--seconds",
        type=between(float, plan.MIN_SECONDS, plan.MAX_SECONDS),
        default=50.0,
        help="time to train; less than 40 leaves the model short of its best (default: 50)",
    )
    add_seed(parser, "of the images' split, the models and the batches")
    parser.add_argument("--torch", action="store_true", help="train with PyTorch instead of plain NumPy")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running, and say how to look at it")
    parser.add_argument("--build", type=Path, default=Path("build"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)
