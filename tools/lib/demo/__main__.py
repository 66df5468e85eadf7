"""Runs the demonstration and makes sure that nothing of it is left, however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from .options import parse

options = parse(sys.argv[1:])  # before the imports that take time, or that --help could do without

from cluster import Cluster, DaemonError  # noqa: E402

from . import baselines, summary  # noqa: E402
from .member import MemberError  # noqa: E402
from .plan import GOSSIP_PERIOD_MS, Plan  # noqa: E402
from .scenario import Scenario  # noqa: E402
from .view import View  # noqa: E402

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal asked us to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def stop(number: int, _frame: Any) -> None:
    for other in STOPPING_SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # ending takes a moment, and must not be cut short
    raise Stopped(number)


def how_to_look(cluster: Cluster) -> str:
    control = next(node for node in cluster.nodes if node.running()).control_socket
    programs = [node.program for node in cluster.nodes] + cluster.trainers
    pids = " ".join(str(program.pid) for program in programs if program.running())
    control_tool = os.path.relpath(cluster.build / "bin" / "gossamerctl")
    return f"""
The cluster goes on in {cluster.folder}. Look at it:
    {control_tool} status --socket {control}
    {control_tool} peers --socket {control}
    {control_tool} jobs --socket {control}
    less {cluster.folder}/*/gossamerd.log
End it:
    kill {pids}; rm -r {cluster.folder}"""


def demonstrate(cluster: Cluster, view: View) -> int:
    plan = Plan(options.nodes, options.codec, options.seconds, options.seed, options.torch)
    view.say(
        f"{plan.nodes} daemons and {plan.nodes} trainers learn handwritten digits together: {plan.seconds:.0f} s, "
        f"codec {plan.codec}, seed {plan.seed}"
    )
    outcome = Scenario(plan, cluster, view, options.keep).run()
    view.say("\nTraining the same network without gossip, for comparison ...")
    compared = baselines.measure(plan, summary.fast_steps(plan, outcome))
    for line in summary.as_text(plan, outcome, compared) + outcome.unclean:
        view.say(line)
    if options.keep:
        view.say(how_to_look(cluster))
    if options.json:
        view.say(json.dumps(summary.as_json(plan, outcome, compared)))
    return 1 if outcome.unclean else 0


def main() -> int:
    for number in STOPPING_SIGNALS:
        signal.signal(number, stop)
    view = View(sys.stdout)
    folder = Path(tempfile.mkdtemp(prefix="gossamer-demo-"))
    cluster = None
    kept = False
    try:
        settings = {"gossip": {"codec": options.codec, "period_ms": GOSSIP_PERIOD_MS}}
        cluster = Cluster(options.build, folder, settings, outlive_us=options.keep)
        status = demonstrate(cluster, view)
        kept = options.keep and status == 0
        return status
    except Stopped as stopped:
        print(f"\nended by {stopped}", file=sys.stderr)
        return 128 + stopped.number
    except (DaemonError, MemberError, TimeoutError, OSError, ValueError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    finally:
        if not kept:
            for number in STOPPING_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            if cluster is not None:
                cluster.close()
            shutil.rmtree(folder, ignore_errors=True)


sys.exit(main())
