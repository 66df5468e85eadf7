"""Runs the methods one after the other, and makes sure that nothing of them is left, however it ends."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import List

from .options import parse

options = parse(sys.argv[1:])  # before the slow imports, which --help does not need

from cluster import DaemonError  # noqa: E402
from network import Network, NetworkUnavailable  # noqa: E402
from processes import tell_failure  # noqa: E402
from stopping import Stopped, let_nothing_stop_us, raise_stopped  # noqa: E402

from . import summary  # noqa: E402
from .run import Outcome, Run  # noqa: E402


def what_is_missing(method: str) -> str:
    if method == "gloo" and importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed (apt-get install python3-torch)"
    if method == "hivemind" and options.hivemind_python is None:
        return "it is not installed (tools/compare --with-hivemind)"
    return ""


def compare(folder: Path) -> List[Outcome]:
    outcomes = []
    for method in options.methods:
        if missing := what_is_missing(method):
            print(f"{method}: left out, {missing}", flush=True)
            continue
        print(f"{method}: {options.nodes} nodes, {options.seconds:g} s ...", flush=True)
        network = Network() if options.mbit or options.latency_ms else None
        try:
            here = folder / method
            here.mkdir()
            outcomes.append(Run(method, options, here, network).run())
        finally:
            if network is not None:
                network.close()
    return outcomes


def main() -> int:
    raise_stopped()
    folder = Path(tempfile.mkdtemp(prefix="g-compare-"))
    try:
        print(f"seed {options.seed}")
        outcomes = compare(folder)
        found = [summary.figures(outcome, options.seconds) for outcome in outcomes]
        print("\n".join(summary.as_text(found, options)))
        if options.plot:
            options.plot.write_text(summary.as_plot(outcomes, options))
        if options.json:
            print(json.dumps({"seed": options.seed, "nodes": options.nodes, "methods": found}))
        return 0
    except Stopped as stopped:
        print(f"\nended by {stopped}", file=sys.stderr)
        return 128 + stopped.number
    except (DaemonError, NetworkUnavailable, RuntimeError, TimeoutError, OSError, ValueError) as error:
        return tell_failure(error)
    finally:
        let_nothing_stop_us()
        shutil.rmtree(folder, ignore_errors=True)


sys.exit(main())
