"""Gossamer on a GPU from end to end: two daemons on this machine, PyTorch clients on its GPUs. Prints a table:

- a classifier of handwritten digits is as accurate, trained on GPUs, as by the same job on processors;
- so it is with the other ways to launch a step (two streams in turn, a CUDA graph, torch.compile), and on a GPU that
  training has left no room on;
- the time of a step with and without Gossamer in alternating windows of one process, for each path between a GPU and
  the daemon (docs/how-to/gpu.md), for a model of more than 50 million parameters; most of all the median of the ratios;
- memory, of GPUs and daemons, and descriptors, after clients and daemons have died;
- exact averages of the gradients beside DistributedDataParallel with gloo, both of two processes on one GPU;
- how much of a model two nodes average in a second, by gossip at full speed and with gloo;
- what programs do with PyTorch on a GPU (uses.py);
- `gossamerctl gpus` and `gossamerctl run` know the GPUs.

Called by tests/gpu/run. Needs a build (gossamerd, gossamerctl, both plug-ins), and a Python with NumPy, the digits of
scikit-learn, and PyTorch with CUDA, which must see a GPU: otherwise it is skipped, loudly, with status 77. Status 1:
something failed. With --rehearse all of it runs on processors, quickly: with plug-ins that play GPUs in host memory or,
named by --daemon-plugin and --client-plugin, with those for GPUs, compiled for a CUDA on the processor
(tests/host_cuda). This shows that the script works, and nothing about GPUs' speed; the times mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")
USES = Path(__file__).with_name("uses.py")
EXIT_SKIPPED = 77
PARTS = ("accuracy", "ways", "uses", "device", "pinned", "averages", "rates", "deaths", "tools")
# How many uses run at a time.
USES_AT_ONCE = 5
# The plug-ins of the daemon and of the clients.
PLUGINS = ("libgossamer_cuda.so", "libgossamer_client_cuda.so")
FAKE_PLUGINS = ("libfake_cuda.so", "libfake_client_plugin.so")
# A whole training may take this long on a busy machine, or a client until it exchanges.
PATIENCE_S = 240.0
# The daemons have the default cadence, and notice a death within a second or two.
OPTIONS: Dict[str, Dict[str, Any]] = {
    "node": {"workers": 0},  # as many as the machine has cores for, as users have it
    "overlay": {"ping_ms": 100, "probe_interval_ms": 200, "probe_timeout_ms": 100, "suspicion_mult": 5},
}
# Two trainings differ by chance. If each test image is classified rightly with the probability p in both trainings,
# independently, the difference of the accuracies has the standard deviation sqrt(2 p (1 - p) / n): 0.016 for p = 0.95
# and 360 images. A difference of this many deviations is allowed. That is exceeded once in 16,000 times, or less,
# because both trainings fail mostly on the same images. After 200 steps a difference of 0.015 is exceeded one time in
# six, as with a deviation of 0.011: beside a training of 0.994 a training fails below 0.94, which is five such
# deviations away.
ALLOWED_DEVIATIONS = 4
# The driver may take this long to clear away what dead processes left.
SETTLING_S = 30.0
# Allocators keep memory that they once had; on a GPU, the driver does.
ALLOWED_GROWTH_BYTES = 32 << 20
ALLOWED_GPU_GROWTH_MIB = 64
ALLOWED_MORE_DESCRIPTORS = 8


class Scale(NamedTuple):
    """The amount of work."""

    digits_steps: int
    least_accuracy: float
    width: int
    batch: int
    pairs: int
    window_s: float
    most_ratio: Optional[float]  # None: not checked
    deaths: int  # how many clients die


MEASURED = Scale(1500, 0.95, 4096, 1024, 15, 2.0, 1.02, 5)
REHEARSED = Scale(200, 0.90, 128, 16, 3, 0.1, None, 2)


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


class Table:
    """The rows: what was checked, the result, and whether it is right (None: only reported)."""

    def __init__(self, title: str):
        self._title = title
        self._rows: List[Tuple[str, str, str]] = []
        self.failed = False

    def row(self, what: str, found: str, passed: Optional[bool]) -> None:
        verdict = "" if passed is None else "passed" if passed else "FAILED"
        self.failed |= passed is False
        self._rows.append((what, found, verdict))
        print(f"{what:<58} {found:<56} {verdict}", flush=True)

    def attempt(self, what: str, check: Callable[[], None]) -> None:
        """Makes one check. If it fails with an exception, the other checks are still made."""
        say(what)
        try:
            check()
        except Exception as error:  # every exception is reported in the check's row
            self.row(what, f"{type(error).__name__}: {error}".replace("\n", " "), False)

    def markdown(self) -> str:
        lines = [self._title, "", "| what | found | |", "| --- | --- | --- |"]
        rows = [[cell.replace("|", "/") for cell in row] for row in self._rows]
        return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def gpu_used_mib() -> int:
    """The memory used on all GPUs, by all processes."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(int(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def missing(options: argparse.Namespace) -> List[str]:
    """The things that this machine lacks."""
    lacks = []
    for program in ("gossamerd", "gossamerctl"):
        if not (options.build / "bin" / program).exists():
            lacks.append(f"{program} in {options.build / 'bin'} (build it)")
    for module in ("numpy", "torch"):
        try:
            __import__(module)
        except ImportError as error:
            lacks.append(f"the Python module {module} in {sys.executable} ({error})")
    if lacks:
        return lacks
    sys.path.insert(0, str(REPOSITORY / "sdk" / "examples"))
    import digits

    try:
        digits.load()
    except StopIteration:
        lacks.append("the digits of scikit-learn (Debian: python3-sklearn)")
    if not options.rehearse:
        import torch

        if not torch.cuda.is_available():
            lacks.append(f"a GPU that PyTorch {torch.__version__} of {sys.executable} can use")
    for plugin in (options.daemon_plugin, options.client_plugin):
        if not plugin.exists():
            lacks.append(f"{plugin} (build it with -DGOSSAMER_{'TESTS' if options.rehearse else 'CUDA'}=ON)")
    return lacks


class EndToEnd:
    def __init__(self, options: argparse.Namespace, cluster: Any, table: Table):
        self.options = options
        self.scale = REHEARSED if options.rehearse else MEASURED
        self.device = "cpu" if options.rehearse else "cuda"
        self.where = "a fake GPU" if options.rehearse else "GPUs"
        self.cluster = cluster
        self.table = table
        self.results = 0
        self.environment: Dict[str, str] = {}
        if options.rehearse:
            machine = cluster.folder / "machine"
            gpus = [f"gpu uuid=GPU-{i} name=FAKE bus=3{i}\n" for i in range(2)]
            machine.write_text("driver 550.90\n" + "".join(gpus))
            driver = options.build / "lib" / "libfake_nvml.so"
            self.environment = {"GOSSAMER_NVML": str(driver), "GOSSAMER_FAKE_NVML": str(machine)}
        else:
            self.environment = {"GOSSAMER_CLIENT_CUDA_PLUGIN": str(options.client_plugin)}

    def start_node(self, name: str, sections: Dict[str, Any]) -> Any:
        node = self.cluster.add(name, sections)
        node.environment = self.environment
        node.start()
        return node

    def start_pair(self, kind: str, gpus: Dict[str, Any], **sections: Any) -> List[Any]:
        """Starts two nodes that are linked with each other and with no earlier ones. The others are sections of their
        configuration."""
        from processes import wait_until

        self.cluster.nodes.clear()  # the earlier nodes have ended
        nodes = [self.start_node(f"{kind}-{number}", {"gpus": gpus, **sections}) for number in (1, 2)]
        wait_until(lambda: all(node.status()["neighbours"] == 1 for node in nodes), PATIENCE_S, "the nodes are linked")
        return nodes

    def end_pair(self) -> None:
        """Ends the trainers first, so that they do not wait for a daemon."""
        stubborn = self.cluster.close()
        self.cluster.trainers.clear()
        if stubborn:
            raise RuntimeError(f"{len(stubborn)} programs did not stop when asked to")

    def worker_command(self, work: str, device: str, more: Dict[str, Any]) -> List[str]:
        """`device`: "cpu" is always the processor; any other is a GPU, or a fake one in a rehearsal."""
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
        if self.options.rehearse and device == "gpu":
            flags.append(f"--play={self.options.client_plugin}")
        return [str(WORKER), work, f"--device={self.device if device == 'gpu' else device}", *flags]

    def start_worker(self, node: Any, work: str, device: str, **more: Any) -> Tuple[Any, Path]:
        """Starts the program. Returns it, and where its result will be."""
        self.results += 1
        result = self.cluster.folder / f"result-{self.results}.json"
        arguments = self.worker_command(work, device, {**more, "result": result})
        return self.cluster.start_trainer(node, arguments, self.environment), result

    def wait_for(self, program: Any, result: Path, what: str) -> Dict[str, Any]:
        from processes import wait_until

        def told_or_ended() -> bool:
            return result.exists() or not program.running()

        wait_until(told_or_ended, PATIENCE_S, what)
        if not result.exists():
            raise RuntimeError(f"{what}: the client ended with status {program.wait()}: {program.log_text()[-2000:]}")
        return dict(json.loads(result.read_text()))

    def gpu_section(self, clients: bool) -> Dict[str, Any]:
        """The section of the daemon's configuration that says whether it may work in the clients' GPU memory."""
        return {"plugin": str(self.options.daemon_plugin), "clients": clients}

    # --- the checks -----------------------------------------------------------------------------------------------

    def accuracy_on(
        self, nodes: List[Any], device: str, job: str, way: str = "plain"
    ) -> Tuple[List[float], Dict[str, Any]]:
        started = [
            self.start_worker(node, "digits", device, job=job, seed=seed, steps=self.scale.digits_steps, way=way)
            for seed, node in enumerate(nodes, 1)
        ]
        found = [self.wait_for(program, result, f"{job} is trained") for program, result in started]
        if min(one["exchanges"] for one in found) == 0:
            raise RuntimeError("nothing was exchanged")
        return [one["accuracy"] for one in found], found[0]

    def accuracy(self) -> None:
        nodes = self.start_pair("accuracy", self.gpu_section(True))
        cpu, one = self.accuracy_on(nodes, "cpu", "digits-cpu")
        images = one["test_images"]
        gpu, one = self.accuracy_on(nodes, "gpu", "digits-gpu")
        self.end_pair()
        least = self.scale.least_accuracy
        texts = [", ".join(f"{value:.4f}" for value in values) for values in (cpu, gpu)]
        self.table.row("digits on processors: accuracy of both replicas", texts[0], min(cpu) >= least)
        right = min(gpu) >= least and one["path"] == "device"
        self.table.row(f"digits on {self.where}, path {one['path']}: likewise", texts[1], right)
        difference = abs(statistics.mean(gpu) - statistics.mean(cpu))
        p = statistics.mean(cpu + gpu)
        allowed = ALLOWED_DEVIATIONS * math.sqrt(2 * p * (1 - p) / images)
        found = f"{difference:.4f} (at most {allowed:.4f})"
        self.table.row("digits: difference of the means", found, difference <= allowed)

    def ways(self) -> None:
        nodes = self.start_pair("ways", self.gpu_section(True))
        # A rehearsal has no streams and no graphs, and compiling takes long there and shows nothing new.
        for way in ("plain",) if self.options.rehearse else ("streams", "graph", "compile", "full"):
            found, one = self.accuracy_on(nodes, "gpu", f"digits-{way}", way)
            right = min(found) >= self.scale.least_accuracy and one["path"] == "device"
            texts = ", ".join(f"{value:.4f}" for value in found)
            if way == "full":  # memory that the daemon has kept may be enough for it
                told = any("has no room" in node.program.log_text() for node in nodes)
                texts = f"{texts}; the daemon {'needed host memory' if told else 'had what it needed'}"
            self.table.row(f"digits on {self.where}, {way}: likewise", texts, right)
        self.end_pair()

    def uses(self) -> None:
        if self.options.rehearse:
            say("no GPU: nothing of uses.py can be run")
            return
        sys.path[:0] = [str(USES.parent), str(self.options.build / "python")]
        from uses import USES as known

        nodes = self.start_pair("uses", self.gpu_section(True))
        wanted = self.options.uses.split(",") if self.options.uses else list(known)
        for first in range(0, len(wanted), USES_AT_ONCE):
            some = wanted[first : first + USES_AT_ONCE]
            started = {use: self.start_use(nodes, use, known[use]) for use in some}
            for use, programs in started.items():
                self.table.attempt(use, functools.partial(self.end_use, use, programs))
        self.end_pair()

    def start_use(self, nodes: List[Any], name: str, use: Any) -> List[Tuple[Any, Path]]:
        environment = {**self.environment, **use.environment}
        if environment.get("CUDA_VISIBLE_DEVICES") == "UUID":
            command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            environment["CUDA_VISIBLE_DEVICES"] = told.split()[0]
        programs = []
        for seed, node in enumerate([nodes[0]] * use.on_first + nodes[1:], 1):
            self.results += 1
            result = self.cluster.folder / f"result-{self.results}.json"
            arguments = [str(USES), name, f"--job={name}", f"--seed={seed}", f"--result={result}"]
            program = self.cluster.start_trainer(node, arguments, environment, log=f"{name}-{seed}.log")
            programs.append((program, result))
        return programs

    def end_use(self, name: str, programs: List[Tuple[Any, Path]]) -> None:
        from processes import wait_until

        found = [self.wait_for(program, result, name) for program, result in programs]
        for program, _ in programs:
            wait_until(lambda program=program: not program.running(), 30.0, f"{name} ends")
        wrong = sorted({one["wrong"] for one in found} - {""})
        if len({one.get("same") for one in found}) != 1:
            wrong.append("the models are not the same")
        text = ", ".join(sorted(one["found"] for one in found))
        self.table.row(f"digits: {name}", "; ".join([text, *wrong]), not wrong)
        for program, _ in programs:
            if wrong or "warn" in program.log_text().lower():
                print(f"--- {name}: {program.log_text()[-1500:]}", file=sys.stderr)

    def measured_by_both(self, nodes: List[Any], work: str, **more: Any) -> Dict[str, Any]:
        """What the first of two processes tells, one at each node, which meet through a file."""
        more.update(width=self.scale.width, meeting=self.cluster.folder / f"meeting-{work}")
        started = [self.start_worker(node, work, "gpu", job=work, seed=seed, **more) for seed, node in enumerate(nodes, 1)]
        return [self.wait_for(program, result, f"{work} are measured") for program, result in started][0]

    def averages(self) -> None:
        if self.options.rehearse:
            return
        nodes = self.start_pair("averages", self.gpu_section(True))
        found = self.measured_by_both(nodes, "averages", batch=self.scale.batch, pairs=8)
        self.end_pair()
        times = {kind: statistics.median(found[kind]) * 1e3 for kind in ("averages", "gloo", "without")}
        ratio = statistics.median(b / a for a, b in zip(found["averages"], found["gloo"]))
        self.table.row(
            f"{found['parameters'] / 1e6:.1f} M gradients: exact averages, DDP with gloo, neither",
            f"{times['averages']:.1f} ms, {times['gloo']:.1f} ms, {times['without']:.1f} ms; rate {ratio:.2f} of gloo's",
            None,
        )

    def rates(self) -> None:
        if self.options.rehearse:
            return
        gossip = {"period_ms": 0, "time_share": 0.0, "bandwidth_share": 0.0, "in_flight": 8}
        nodes = self.start_pair("rates", self.gpu_section(True), gossip=gossip)
        found = self.measured_by_both(nodes, "rates", pairs=3)
        self.end_pair()
        rates = {kind: statistics.median(found[kind]) / 1e9 for kind in ("gloo", "q8", "q4", "f32")}
        self.table.row(
            f"{found['parameters'] / 1e6:.1f} M parameters: averaged in a second",
            ", ".join(f"{kind} {rate:.2f} GB ({rate / rates['gloo']:.2f})" for kind, rate in rates.items()),
            None,
        )

    def step_time(self, path: str) -> None:
        """One client trains; its partner on the other node, in CPU memory, only exchanges."""
        nodes = self.start_pair(f"steps-{path}", self.gpu_section(path == "device"))
        scale = self.scale
        large = {"job": f"large-{path}", "width": scale.width, "batch": scale.batch}
        self.start_worker(nodes[1], "peer", "cpu", **large)
        more = {"pairs": scale.pairs, "window_s": scale.window_s}
        program, result = self.start_worker(nodes[0], "step-time", "gpu", **large, **more)
        found = self.wait_for(program, result, "step times are measured")
        self.end_pair()
        ratios = sorted(a / b for a, b in zip(found["with"], found["without"]))
        median = statistics.median(ratios)
        what = f"{found['parameters'] / 1e6:.1f} M parameters, path {found['path']}"
        times = {kind: statistics.median(found[kind]) * 1e3 for kind in ("with", "without")}
        self.table.row(
            f"{what}: step with, without",
            f"{times['with']:.3f} ms, {times['without']:.3f} ms, {len(ratios)} windows of {found['steps']} steps each",
            None,
        )
        self.table.row(
            f"{what}: exchanged meanwhile",
            f"{found['publications']} fragments published, {found['exchanges']} exchanges",
            found["publications"] > 0 and found["path"] == path,
        )
        self.table.row(
            f"{what}: median of the ratios (all)",
            f"{median:.4f} ({ratios[0]:.4f} to {ratios[-1]:.4f})",
            None if scale.most_ratio is None else median <= scale.most_ratio,
        )

    @staticmethod
    def footprint(nodes: List[Any]) -> Tuple[int, int]:
        """The daemons' memory in bytes, and their descriptors."""
        from training import descriptors, private_bytes

        pids = [node.program.pid for node in nodes]
        return sum(private_bytes(pid) for pid in pids), sum(sum(descriptors(pid)) for pid in pids)

    def gpu_mib(self) -> int:
        return 0 if self.options.rehearse else gpu_used_mib()

    def gpu_row(self, what: str, before_mib: int) -> None:
        """Adds a row: memory that dead processes held on a GPU is free a moment later."""
        from processes import wait_until

        if self.options.rehearse:
            return
        try:
            allowed_mib = before_mib + ALLOWED_GPU_GROWTH_MIB
            wait_until(lambda: gpu_used_mib() <= allowed_mib, SETTLING_S, "memory is given back")
            given_back = True
        except TimeoutError:
            given_back = False
        self.table.row(f"GPU memory {what}", f"{gpu_used_mib() - before_mib:+d} MiB", given_back)

    def start_held(self, node: Any, seed: int) -> Tuple[Any, Path]:
        """Starts a client that trains until it is ended; returns when it has exchanged."""
        program, result = self.start_worker(node, "hold", "gpu", job="held", seed=seed)
        self.wait_for(program, result, "a client exchanges")
        return program, result

    def deaths(self) -> None:
        """Kills clients and then daemons while they train, and lets them come back. Compares the resources held with
        those before."""
        from processes import wait_until

        idle_mib = self.gpu_mib()
        nodes = self.start_pair("deaths", self.gpu_section(True))

        def kill_client(program: Any) -> None:
            program.kill()
            wait_until(lambda: not nodes[0].job("held"), PATIENCE_S, "the daemon has noticed a client's death")

        self.start_worker(nodes[1], "hold", "gpu", job="held", seed=2)
        program, result = self.start_held(nodes[0], 1)
        kill_client(program)  # resources that are taken only once are taken here
        program, result = self.start_held(nodes[0], 1)
        (bytes_before, descriptors_before), mib_before = self.footprint(nodes), self.gpu_mib()
        for _ in range(self.scale.deaths):
            kill_client(program)
            program, result = self.start_held(nodes[0], 1)
        bytes_after, descriptors_after = self.footprint(nodes)
        what = f"after {self.scale.deaths} deaths of a client"
        grown, more = bytes_after - bytes_before, descriptors_after - descriptors_before
        self.table.row(f"daemons' memory {what}", f"{grown / (1 << 20):+.1f} MiB", grown <= ALLOWED_GROWTH_BYTES)
        self.table.row(f"daemons' descriptors {what}", f"{more:+d}", more <= ALLOWED_MORE_DESCRIPTORS)
        self.gpu_row(what, mib_before)
        for attachments, end in enumerate((nodes[0].kill, nodes[0].stop), 2):
            end()
            nodes[0].start()

            def exchanges_again(attachments: int = attachments) -> bool:
                return json.loads(result.read_text())["attachments"] >= attachments

            wait_until(exchanges_again, PATIENCE_S, "the client exchanges with the daemon that was started again")
        path = json.loads(result.read_text())["path"]
        self.table.row("training goes on after 2 deaths of its daemon", f"path {path}", path == "device")
        self.gpu_row("after 2 deaths of a daemon", mib_before)
        self.end_pair()
        self.gpu_row("when all have ended", idle_mib)

    def tools(self) -> None:
        nodes = self.start_pair("tools", self.gpu_section(True))
        control = ["--socket", str(nodes[0].control_socket)]
        ctl = [str(self.options.build / "bin" / "gossamerctl"), *control]
        environment = {
            **os.environ,
            **self.environment,
            "PYTHONPATH": str(self.options.build / "python"),
            "GOSSAMER_SOCKET": str(nodes[0].client_socket),
            "OMP_NUM_THREADS": "1",
        }

        def run(*command: str) -> subprocess.CompletedProcess:
            done = subprocess.run(
                [*ctl, *command], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(f"gossamerctl {command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
            return done

        from processes import wait_until

        def watched() -> Optional[Dict[str, Any]]:
            report = json.loads(run("gpus", "--json").stdout)
            return report if report["state"] == "watched" and report["gpus"] else None

        report = wait_until(watched, PATIENCE_S, "the daemon watches the GPUs")
        names = ", ".join(f"{gpu['name']} ({gpu['health']})" for gpu in report["gpus"])
        healthy = [gpu for gpu in report["gpus"] if gpu["health"] == "sound"]
        self.table.row("gossamerctl gpus", names, len(healthy) == len(report["gpus"]))

        pattern = self.cluster.folder / "run-{rank}.json"
        more = {"job": "placed", "steps": 50, "result": pattern}
        command = [sys.executable, *self.worker_command("digits", "gpu", more), "--alone"]
        run("run", "--gpus", "all", "--", *command)
        self.end_pair()
        told = [json.loads(path.read_text()) for path in sorted(self.cluster.folder.glob("run-*.json"))]
        visible = {one["visible"] for one in told}
        own = len(told) == len(visible) == len(healthy) and None not in visible
        if not self.options.rehearse:
            own = own and all(one["gpus"] == 1 for one in told)
        what = "gossamerctl run: each client sees its own GPU"
        self.table.row(what, ", ".join(map(str, sorted(visible, key=str))), own)

    def run(self, parts: List[str]) -> None:
        """`parts`: of PARTS."""
        checks: Dict[str, Tuple[str, Callable[[], None]]] = {
            "accuracy": ("accuracy on digits", self.accuracy),
            "ways": ("ways to launch a step", self.ways),
            "uses": ("what programs do", self.uses),
            "averages": ("exact averages", self.averages),
            "rates": ("what is averaged in a second", self.rates),
            "device": ("step time, path device", functools.partial(self.step_time, "device")),
            "pinned": ("step time, path pinned", functools.partial(self.step_time, "pinned")),
            "deaths": ("deaths of clients and daemons", self.deaths),
            "tools": ("gossamerctl gpus and run", self.tools),
        }
        for part in parts:
            self.table.attempt(*checks[part])
            self.cluster.close()
            self.cluster.trainers.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="the build folder")
    parser.add_argument("--daemon-plugin", type=Path, help="default: that of the build folder's lib")
    parser.add_argument("--client-plugin", type=Path, help="likewise")
    parser.add_argument("--table", type=Path, help="write the table here, as Markdown")
    parser.add_argument("--rehearse", action="store_true", help="on processors, quickly: shows that the script works")
    parser.add_argument("--only", metavar="PART,…", default=",".join(PARTS), help=f"parts of it: {', '.join(PARTS)}")
    parser.add_argument("--uses", metavar="USE,…", help="these only (uses.py)")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    options.build = options.build.resolve()
    names = FAKE_PLUGINS if options.rehearse else PLUGINS
    options.daemon_plugin = (options.daemon_plugin or options.build / "lib" / names[0]).resolve()
    options.client_plugin = (options.client_plugin or options.build / "lib" / names[1]).resolve()
    lacks = missing(options)
    if lacks:
        print(f"SKIPPED: NOTHING WAS RUN FROM END TO END. Missing: {'; '.join(lacks)}", file=sys.stderr)
        return EXIT_SKIPPED

    os.environ["GOSSAMER_BUILD"] = str(options.build)
    sys.path[:0] = [str(REPOSITORY / "tests" / "system"), str(REPOSITORY / "tools" / "lib")]
    import stopping
    import torch
    from cluster import Cluster

    where = "rehearsal on processors, nothing of it on a GPU" if options.rehearse else torch.cuda.get_device_name(0)
    table = Table(f"End to end: {where}; PyTorch {torch.__version__}.")
    folder = Path(tempfile.mkdtemp(prefix="gossamer-gpu-"))
    try:
        stopping.raise_stopped()
        with Cluster(options.build, folder, OPTIONS) as cluster:
            EndToEnd(options, cluster, table).run(parts)
    except stopping.Stopped as stopped:
        say(f"stopped by {stopped}")
        return 128 + stopped.number
    finally:
        if table.failed:
            for log in sorted(folder.glob("*/*.log")):
                end = log.read_text(errors="replace")[-3000:]
                print(f"--- {log.parent.name}/{log.name}, its end\n{end}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
    if options.table:
        options.table.write_text(table.markdown())
    print("something FAILED" if table.failed else "all passed")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
