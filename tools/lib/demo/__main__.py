"""Runs the demonstration and makes sure that nothing of it is left, however it ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import List

from .options import parse

options = parse(sys.argv[1:])  # before the slow imports, which --help does not need

from cluster import Cluster, DaemonError  # noqa: E402
from plot import Chart, in_characters, svg  # noqa: E402
from processes import busy, tell_failure  # noqa: E402
from stopping import Stopped, let_nothing_stop_us, raise_stopped  # noqa: E402

from . import baselines, summary  # noqa: E402
from .member import MemberError  # noqa: E402
from .plan import GOSSIP_PERIOD_MS, Plan  # noqa: E402
from .scenario import Scenario  # noqa: E402
from .view import View  # noqa: E402


def how_to_look(cluster: Cluster) -> str:
    control = shlex.quote(str(next(node for node in cluster.nodes if node.running()).control_socket))
    programs = [node.program for node in cluster.nodes] + cluster.trainers
    pids = " ".join(str(program.pid) for program in programs if program.running())
    control_tool = shlex.quote(os.path.relpath(cluster.build / "bin" / "gossamerctl"))
    folder = shlex.quote(str(cluster.folder))
    return f"""
The cluster goes on in {cluster.folder}. Look at it:
    {control_tool} status --socket {control}
    {control_tool} peers --socket {control}
    {control_tool} jobs --socket {control}
    less {folder}/*/gossamerd.log
End it:
    kill {pids}; for pid in {pids}; do tail --pid=$pid -s 0.1 -f /dev/null; done; rm -r {folder}"""


def draw(plan: Plan, charts: List[Chart], view: View) -> None:
    picture = options.build / "demo.svg"
    heading = f"{plan.nodes} nodes and one that joins, codec {plan.codec}, seed {plan.seed}"
    picture.write_text(svg(heading, charts, plan.seconds))
    where = f"The same, and the curve of each node: {os.path.relpath(picture)}"
    for line in ("", *in_characters(charts[0], plan.seconds), "", where):
        view.say(line)


def demonstrate(cluster: Cluster, view: View) -> int:
    plan = Plan(options.nodes, options.codec, options.seconds, options.seed, options.torch)
    view.say(
        f"{plan.nodes} daemons and {plan.nodes} trainers learn handwritten digits together: {plan.seconds:.0f} s, "
        f"codec {plan.codec}, seed {plan.seed}"
    )
    outcome = Scenario(plan, cluster, view, options.keep).run()
    view.say("\nTraining the same network without gossip, for comparison ...")
    compared = baselines.measure(plan, summary.fast_steps(plan, outcome))
    for line in summary.as_text(plan, outcome, compared):
        view.say(line)
    draw(plan, summary.charts(plan, outcome, compared), view)
    if outcome.unclean:
        print("\n".join(filter(None, (*(f"\nerror: {line}" for line in outcome.unclean), busy()))), file=sys.stderr)
    if options.keep:
        view.say(how_to_look(cluster))
    if options.json:
        view.say(json.dumps(summary.as_json(plan, outcome, compared)))
    return 1 if outcome.unclean else 0


def main() -> int:
    raise_stopped()
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
        return tell_failure(error)
    finally:
        if not kept:
            let_nothing_stop_us()
            if cluster is not None:
                cluster.close()
            shutil.rmtree(folder, ignore_errors=True)


sys.exit(main())
