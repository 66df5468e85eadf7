"""The command line of tools/chaos."""

from __future__ import annotations

import argparse
from pathlib import Path

from arguments import add_pause, add_seed, between

MIN_NODES, MAX_NODES = 3, 64


def parse(arguments: list) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/chaos",
        description="Daemons and trainers on this machine, and a fault every half minute: kill -9 and SIGSTOP of daemons "
        "and trainers, and, as root, partitions, slow links and full disks. First and last a stretch without faults, to "
        "compare with. Ends with a summary for people and, as the last line, one JSON object. Exit status 3: the machine was "
        "not the same before and after, so that nothing is said of what faults cost.",
    )
    parser.add_argument(
        "--nodes", type=between(int, MIN_NODES, MAX_NODES), default=16, help="daemons, each with a trainer (default: 16)"
    )
    parser.add_argument(
        "--minutes", type=between(float, 0.1, 24 * 60.0), default=10.0, help="time with faults (default: 10)"
    )
    parser.add_argument(
        "--quiet-share",
        type=between(float, 0.05, 2.0),
        default=0.5,
        help="time without faults, as a share of that: half of it before, half after (default: 0.5)",
    )
    add_pause(parser, "--fault-every", (2.0, 3600.0), (20.0, 30.0), "seconds from one fault to the next")
    parser.add_argument("--faults", default="", metavar="KIND,...", help="only these kinds (default: all that can be done)")
    parser.add_argument("--codec", choices=("f32", "q8", "q4"), default="q8", help="how values travel (default: q8)")
    add_seed(parser, "of the faults, the data and the models")
    parser.add_argument("--build", type=Path, default=Path("build"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)
