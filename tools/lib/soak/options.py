"""The command line of tools/soak."""

from __future__ import annotations

import argparse
from pathlib import Path

from arguments import add_pause, add_seed, between


def parse(arguments: list) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/soak",
        description="Daemons and training processes on this machine for as long as one likes, while half of the daemons "
        "and all of the processes come and go, in order and by kill -9. Samples memory, descriptors and threads of each "
        "daemon, the time that gossamerctl takes and that a training step spends in Gossamer. Ends with a table, "
        "verdicts, CSV files and a plot, and one JSON object as the last line. Exit status: 0 if all is flat, 1 if "
        "not or if something ended by itself, 2 for wrong usage.",
    )
    parser.add_argument("--minutes", type=between(float, 0.2, 7 * 24 * 60.0), default=30.0, help="time (default: 30)")
    parser.add_argument("--daemons", type=between(int, 2, 64), default=8, help="half of them stay (default: 8)")
    parser.add_argument(
        "--clients",
        type=between(int, 2, 512),
        default=16,
        help="training processes, dealt out over the daemons (default: 16)",
    )
    parser.add_argument(
        "--parameters",
        type=between(float, 1e3, 1e11),
        default=1e8,
        help="elements of all models together; each takes 16 bytes of memory (default: 1e8)",
    )
    add_pause(parser, "--churn-every", (1.0, 3600.0), (8.0, 12.0), "seconds from one coming or going to the next")
    parser.add_argument(
        "--step-ms",
        type=between(float, 1.0, 60_000.0),
        default=100.0,
        help="what a training step takes on a device that is not there: the clients sleep this long (default: 100)",
    )
    parser.add_argument(
        "--period-ms",
        type=between(int, 1, 60_000),
        default=1000,
        help="the daemons' period_ms: how often a fragment is exchanged (default: 1000)",
    )
    add_seed(parser, "of what comes and goes")
    parser.add_argument(
        "--output", type=Path, default=Path("soak"), help="folder for the CSV files and the plot (default: soak)"
    )
    parser.add_argument("--build", type=Path, default=Path("build"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.clients < options.daemons:
        parser.error("--clients: fewer than --daemons")
    if options.output.exists() and not options.output.is_dir():
        parser.error(f"--output: {options.output} is not a folder")
    return options
