"""The command line of tools/compare."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import List

from arguments import add_seed, between

METHODS = {
    "gossip": "Gossamer: exchanges, no step waits",
    "average": "Gossamer: run.average() of the models every --every steps",
    "server": "Gossamer: each part of the model has an owner, no step waits",
    "gloo": "torch.distributed: all_reduce of the models every --every steps, as DistributedDataParallel with gloo",
    "hivemind": "hivemind: means of all models in the background, no step waits",
    "alone": "no communication",
}


def _methods(text: str) -> List[str]:
    names = text.split(",")
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(METHODS)}")
    return names


def _script(text: str) -> Path:
    path = Path(text).resolve()
    try:
        source = path.read_text()
        compile(source, str(path), "exec")
    except (OSError, SyntaxError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: {error}") from None
    if "make" not in source:
        raise argparse.ArgumentTypeError(f"{text} has no make(seed, node, nodes)")
    return path


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/compare",
        description="Trains one small network by several methods, one after the other: the same images, models, batches "
        "and time. Each node has its own part of the images, with few kinds of digits.",
        epilog="Methods: " + "; ".join(f"{name}: {text}" for name, text in METHODS.items()) + ".",
    )
    parser.add_argument("--methods", type=_methods, default=list(METHODS), help="comma-separated (default: all)")
    parser.add_argument("--nodes", type=between(int, 2, 32), default=4, help="(default: 4)")
    parser.add_argument("--seconds", type=between(float, 2, 3600), default=20.0, help="to train (default: 20)")
    parser.add_argument("--every", type=between(int, 1, 10_000), default=1, help="steps between averages or exchanges (default: 1)")
    parser.add_argument(
        "--servers", type=between(int, 0, 32), default=1,
        help="nodes that keep the model for the method server, beside the others (default: 1; 0: those that train own it)",
    )
    parser.add_argument("--steps-per-s", type=between(float, 1, 1000), default=50.0, help="of a node (default: 50)")
    parser.add_argument("--slow", type=between(float, 1, 100), default=1.0, help="node 1 takes so many times as long")
    parser.add_argument(
        "--kill", type=between(float, 0, 3600), default=0.0, metavar="SECOND", help="when the last node dies (default: never)"
    )
    parser.add_argument("--mbit", type=between(float, 1, 100_000), help="rate of each node's network; needs root")
    parser.add_argument("--latency-ms", type=between(float, 1, 1000), help="of each node's network, there and back; needs root")
    parser.add_argument(
        "--script", type=_script, metavar="FILE",
        help="a Python file whose make(seed, node, nodes) gives what is trained, instead of the digits: an object with `weights` "
        "(names and float32 arrays), step() and accuracy()",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the accuracy over time to this SVG file")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    add_seed(parser, "of the images' split, the model and the batches")
    parser.add_argument("--with-hivemind", action="store_true", help="install hivemind from PyPI in the build folder")
    parser.add_argument("--build", type=Path, default=Path("build"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    installed = options.build / "hivemind" / "bin" / "python"
    here = sys.executable if importlib.util.find_spec("hivemind") else None
    options.hivemind_python = str(installed) if installed.exists() else here
    return options
