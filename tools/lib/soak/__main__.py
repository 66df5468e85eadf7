"""Runs the soak and makes sure that only its output is left, however it ends."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import List

from .options import parse

options = parse(sys.argv[1:])  # before the slow imports, which --help does not need

from cluster import Cluster, DaemonError  # noqa: E402
from processes import tell_failure, wait_until  # noqa: E402
from stopping import Stopped, let_nothing_stop_us, raise_stopped  # noqa: E402

from . import summary  # noqa: E402
from .churn import Churn, LateError  # noqa: E402
from .party import Client, Party, forget_ended  # noqa: E402
from .samples import Samples  # noqa: E402

SETTINGS = {"gossip": {"period_ms": options.period_ms}, "node": {"io_threads": 1}}
# On every second daemon the clients share one job, and so one replica. On the others they have two jobs.
JOBS = ("first", "second")
START_TIMEOUT_S = 120.0
TURN_S = 0.05
TELL_EVERY_S = 60.0


class SoakError(RuntimeError):
    """A program has ended by itself."""


def say(text: str) -> None:
    print(text, flush=True)


def make_parties(cluster: Cluster) -> List[Party]:
    """The last party is the guest, with as few clients as any."""
    elements = int(options.parameters / options.clients)
    parties = []
    for index in range(options.daemons + 1):
        name = f"node-{index + 1}" if index < options.daemons else "guest"
        party = Party(cluster, name, stays=index < options.daemons // 2)
        count = options.clients // options.daemons + (index < options.clients % options.daemons)
        for number in range(count):
            job = JOBS[number % 2 if index % 2 == 0 else 0]
            seed = options.seed + len(parties) * 1000 + number
            party.clients.append(Client(party, number, job, elements, options.step_ms, seed))
        parties.append(party)
        if index < options.daemons:
            party.up = True
            party.node.start()  # later nodes dial the nodes that have started
    return parties


def check(parties: List[Party]) -> None:
    for party in parties:
        ended = party.unexpected_end()
        if ended is not None:
            raise SoakError(ended)


def soak(folder: Path, output: Path) -> int:
    cluster = Cluster(options.build, folder, SETTINGS)
    samples = None
    try:
        say(
            f"{options.daemons} daemons, {options.clients} clients, {options.parameters:.3g} parameters in all, "
            f"{options.minutes:g} minutes; seed {options.seed}; output in {output}"
        )
        parties = make_parties(cluster)
        members, guest = parties[:-1], parties[-1]
        begun_s = time.monotonic()
        for party in members:
            party.start_clients()
        wait_until(
            lambda: check(parties) or all(party.whole() for party in members), START_TIMEOUT_S, "all clients take part"
        )
        staying = [party.name for party in members if party.stays]
        samples = Samples(output, options.build / "bin" / "gossamerctl", staying)
        churn = Churn(Random(options.seed), members, guest, options.churn_every)
        say(f"all take part after {time.monotonic() - begun_s:.1f} s; {', '.join(staying)} stay throughout")
        loads: List[float] = []
        end_s, tell_s = samples.begun_s + 60 * options.minutes, samples.begun_s + TELL_EVERY_S
        while (now := time.monotonic()) < end_s or not churn.quiet:
            if now >= end_s:
                churn.begin_no_more()
            churn.turn(now)
            check(parties)
            samples.turn(parties, now)
            if now >= tell_s:
                tell_s += TELL_EVERY_S
                loads.append(os.getloadavg()[0])
                forget_ended(cluster, [client for party in parties for client in party.clients])
                last = {look.daemon: look for look in samples.looks if look.daemon in staying}
                memory = ", ".join(f"{look.private / 1e6:.0f}" for look in last.values())
                say(f"{(now - samples.begun_s) / 60:5.1f} min  {sum(churn.done.values())} came or went; MB: {memory}")
            time.sleep(max(0.0, TURN_S - (time.monotonic() - now)))
        loads.append(os.getloadavg()[0])
    finally:
        let_nothing_stop_us()
        cluster.close()
        if samples is not None:
            samples.close()
    steps = summary.Steps(parties, samples.begun_s)
    figures = summary.figures_of(samples, steps, churn.done, churn.back_s, loads, os.cpu_count() or 1)
    heading = f"{options.daemons} daemons, {options.clients} clients, {options.parameters:.3g} parameters"
    summary.draw(output / "soak.svg", heading, samples, steps)
    for line in summary.as_text(figures):
        say(line)
    (output / "soak.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    say(json.dumps(figures))
    return 1 if figures["not_flat"] else 0


def main() -> int:
    raise_stopped()
    folder = Path(tempfile.mkdtemp(prefix="gossamer-soak-"))
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        return soak(folder, options.output)
    except Stopped as stopped:
        print(f"\nended by {stopped}", file=sys.stderr)
        return 128 + stopped.number
    except (SoakError, LateError, DaemonError, TimeoutError, OSError, ValueError) as error:
        return tell_failure(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


sys.exit(main())
