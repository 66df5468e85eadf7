"""Runs the chaos and makes sure that nothing of it is left, however it ends: programs die with this one, and networks
and small disks with the programs.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import List, Optional

from .options import parse

options = parse(sys.argv[1:])  # before the slow imports, which --help does not need

import numpy as np  # noqa: E402

from cluster import Cluster, DaemonError  # noqa: E402
from demo import data  # noqa: E402
from demo.view import View  # noqa: E402
from network import Network, NetworkUnavailable  # noqa: E402
from processes import tell_failure  # noqa: E402
from stopping import Stopped, let_nothing_stop_us, raise_stopped  # noqa: E402

from . import summary  # noqa: E402
from .faults import Faults  # noqa: E402
from .member import Member  # noqa: E402
from .run import ChaosError, Run  # noqa: E402

# The trainers together take this share of the machine's processors; the daemons and this program have the rest.
TRAINERS_SHARE = 0.7
# Each fragment is exchanged four times a second; the model is one fragment.
SETTINGS = {"gossip": {"codec": options.codec, "period_ms": 250}, "node": {"io_threads": 1}}
EXIT_NOT_JUDGED = 3
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def keep_mounts_to_ourselves() -> None:
    """Makes later mounts end with this process and its programs. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"no small disks can be mounted ({os.strerror(error)})")


def write_shards(folder: Path) -> List[Path]:
    split = data.split(options.seed, options.nodes)
    paths = []
    for index, shard in enumerate(split.shards):
        paths.append(folder / f"shard-{index + 1}.npz")
        np.savez(
            paths[-1],
            images=shard.images,
            labels=shard.labels,
            held_out_images=split.held_out.images,
            held_out_labels=split.held_out.labels,
        )
    return paths


def make_members(cluster: Cluster, network: Optional[Network], disks: bool) -> List[Member]:
    members = []
    share = min(1.0, TRAINERS_SHARE * len(os.sched_getaffinity(0)) / options.nodes)
    for index, shard in enumerate(write_shards(cluster.folder)):
        host = network.add() if network else None
        member = Member(cluster, index, shard, share, options.seed, host)
        if disks:
            member.mount_small_disk()
        members.append(member)
        # Later nodes dial the nodes that have started.
        member.node.start()
    return members


def chaos(folder: Path, view: View) -> int:
    substitutes = []
    network = None
    disks = True
    try:
        network = Network()
    except NetworkUnavailable as error:
        substitutes.append(f"No networks can be cut or slowed down here: {error}. Instead of partitions, daemons stand still.")
    try:
        keep_mounts_to_ourselves()
    except OSError as error:
        disks = False
        substitutes.append(f"No disk was filled: {error.strerror}.")
    random = Random(options.seed)
    cluster = Cluster(options.build, folder, SETTINGS)
    try:
        view.say(f"{options.nodes} daemons and {options.nodes} trainers on {os.cpu_count()} cores; seed {options.seed}")
        for line in substitutes:
            view.say(line)
        members = make_members(cluster, network, disks)
        faults = Faults(random, members, network, disks, options.fault_every[0])
        if options.faults:
            faults.only(options.faults.split(","))
        run = Run(members, faults, view, random, tuple(options.fault_every))
        run.start()
        outcome = run.go(options.minutes * 60 * options.quiet_share / 2, options.minutes * 60)
    finally:
        let_nothing_stop_us()
        for program in [node.program for node in cluster.nodes if node.program] + cluster.trainers:
            program.signal(signal.SIGCONT)
        cluster.close()
        if network is not None:
            network.close()
    figures = summary.as_json(outcome, options.nodes, options.seed, substitutes)
    for line in summary.as_text(figures):
        view.say(line)
    view.say(json.dumps(figures))
    if not outcome.mended:
        return 1
    return EXIT_NOT_JUDGED if figures["goodput"] is None else 0


def main() -> int:
    raise_stopped()
    folder = Path(tempfile.mkdtemp(prefix="gossamer-chaos-"))
    try:
        return chaos(folder, View(sys.stdout))
    except Stopped as stopped:
        print(f"\nended by {stopped}", file=sys.stderr)
        return 128 + stopped.number
    except (ChaosError, DaemonError, TimeoutError, OSError, ValueError) as error:
        return tell_failure(error)
    finally:
        unmount_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def unmount_below(folder: Path) -> None:
    libc = ctypes.CDLL(None)
    for state in folder.glob("node-*/state"):
        libc.umount2(os.fsencode(state), 2)  # 2 is MNT_DETACH; does nothing if it is not mounted


sys.exit(main())
