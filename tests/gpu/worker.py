"""A training process of end_to_end.py, attached to the daemon at $GOSSAMER_SOCKET. It writes its results to --result,
as JSON, in one rename.

  digits      trains the convolutional network of the examples, finishes, and reports its accuracy; --way: how a step is
              launched, or on a GPU that has no room left
  hold        trains it until it is ended, and reports when it exchanges
  peer        holds a large model and steps without training until it is ended
  step-time   trains a large model in alternating windows with and without Gossamer, and reports how long steps take
  averages    trains it with exact averages of the gradients, by Gossamer's method and by DistributedDataParallel with gloo
              in turn, beside its other rank
  rates       averages it as fast as it can with its other rank: by gossip with each codec, and with gloo's sums

With --play the model is in CPU memory, which stands for a fake GPU's memory (tests/python/fake_gpu.py).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import nn

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "sdk" / "examples"), str(REPOSITORY / "tests" / "python")]

import digits  # noqa: E402
import gossamer.torch as gossamer  # noqa: E402
from fake_gpu import FakeGpu  # noqa: E402

BATCH = 32
# The longest wait for another replica, and for the first exchange, on a busy machine.
PATIENCE_S = 120.0
# Seconds between the steps of a peer, and of a client beside a fake GPU, where nothing else limits the speed.
PEER_STEP_S = 0.01
WARM_UP_STEPS = 20


fake: Optional[FakeGpu] = None


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    model.to(device)
    if fake is not None:
        fake.adopt(p.detach() for p in model.parameters())
        fake.adopt(b for b in model.buffers() if b.is_floating_point())
    return model


def after_passes() -> None:
    """Later work comes after the run's passes, as it does on a GPU's stream."""
    if fake is not None:
        fake.synchronize()


def tell(path: Path, result: Dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(result))
    new.rename(path)


def wait_for(condition: Callable[[], bool], what: str, meanwhile: Callable[[], None]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE_S:g} s in vain: {what}")
        meanwhile()
        time.sleep(0.005)


def wait_for_others(run: gossamer.Run) -> None:

    def not_alone() -> bool:
        info = run.info()
        return info.ready and info.neighbours >= 1

    wait_for(not_alone, "another replica is in reach", lambda: run.step(0))


class Digits:
    """The network of sdk/examples/digits_torch.py."""

    def __init__(self, device: torch.device, seed: int, hidden: int = 0):
        arrays = [torch.from_numpy(array).to(device) for array in digits.load()]
        self.images, self.labels, self.test_images, self.test_labels = arrays
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            *([nn.Linear(32 * 4 * 4, hidden), nn.ReLU()] if hidden else []),
            nn.Linear(hidden or 32 * 4 * 4, 10),
        )
        self.model = on_device(model, device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def train(self) -> None:
        after_passes()
        batch = torch.randint(len(self.images), (BATCH,), device=self.images.device)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.images[batch]), self.labels[batch]).backward()
        self.optimizer.step()

    def accuracy(self) -> float:
        after_passes()
        self.model.eval()
        with torch.no_grad():
            right = self.model(self.test_images).argmax(dim=1) == self.test_labels
        return right.float().mean().item()


def fill_gpu() -> None:
    """Takes all memory that the GPU has left, not from PyTorch, which keeps what it needs for a step."""
    driver = ctypes.CDLL("libcuda.so.1")
    size = 1 << 30
    while size >= 1 << 16:
        if driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size)) != 0:
            size //= 2


def plainly(task: Digits, run: gossamer.Run, steps: int) -> None:
    for _ in range(steps):
        task.train()


def on_streams(task: Digits, run: gossamer.Run, steps: int) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(steps // 100):
        streams.reverse()
        streams[0].wait_stream(torch.cuda.current_stream())
        streams[0].wait_stream(streams[1])
        with torch.cuda.stream(streams[0]):
            plainly(task, run, 100)
    torch.cuda.current_stream().wait_stream(streams[0])


def by_graph(task: Digits, run: gossamer.Run, steps: int) -> None:
    """Attached without the optimizer: a captured step counts nothing."""
    batch = torch.zeros(BATCH, dtype=torch.int64, device=task.images.device)

    def step() -> None:
        task.optimizer.zero_grad()
        nn.functional.cross_entropy(task.model(task.images[batch]), task.labels[batch]).backward()
        task.optimizer.step()

    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            batch.random_(len(task.images))
            step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(steps):
        batch.random_(len(task.images))
        graph.replay()
        run.step(BATCH)


def compiled(task: Digits, run: gossamer.Run, steps: int) -> None:
    model = task.model
    task.model = torch.compile(model)
    plainly(task, run, steps)
    task.model = model


def take_room(task: Digits) -> None:
    """PyTorch takes now what it will need."""
    for _ in range(3):
        task.train()
    task.accuracy()
    task.model.train()
    torch.empty(256 << 20, dtype=torch.uint8, device=task.images.device)  # PyTorch keeps this memory in its cache
    torch.cuda.synchronize()


def without_room(task: Digits, run: gossamer.Run, steps: int) -> None:
    fill_gpu()
    plainly(task, run, steps)


WAYS: Dict[str, Callable[[Digits, gossamer.Run, int], None]] = {
    "plain": plainly,
    "streams": on_streams,
    "graph": by_graph,
    "compile": compiled,
    "full": without_room,
}


def train_digits(options: argparse.Namespace) -> None:
    # The way "full" needs a large model: the driver takes memory by 2 MiB, so small arrays find room on a full GPU,
    # too.
    task = Digits(options.device, options.seed, hidden=8192 if options.way == "full" else 0)
    optimizer = None if options.way == "graph" else task.optimizer
    if options.way == "full":
        take_room(task)
    run = gossamer.attach(task.model, optimizer, job=options.job, samples_per_step=BATCH)
    if not options.alone:
        wait_for_others(run)
    WAYS[options.way](task, run, options.steps)
    end = run.finish(timeout_s=0 if options.alone else PATIENCE_S)
    info = run.info()
    run.close()
    tell(
        options.result,
        {
            "accuracy": task.accuracy(),
            "test_images": len(task.test_labels),
            "agreed": end.agreed,
            "path": info.path,
            "exchanges": info.exchanges,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "gpus": torch.cuda.device_count(),
        },
    )


def hold_digits(options: argparse.Namespace) -> None:
    task = Digits(options.device, options.seed)
    run = gossamer.attach(task.model, task.optimizer, job=options.job, samples_per_step=BATCH)
    told = 0  # the last attachment in which it has exchanged
    exchanges, attachments = 0, 0
    while True:
        task.train()
        info = run.info()
        if info.attachments != attachments:
            attachments, exchanges = info.attachments, info.exchanges
        exchanges = min(exchanges, info.exchanges)  # another daemon counts from zero
        if info.attached and info.exchanges > exchanges and told != attachments:
            told = attachments
            tell(options.result, {"attachments": told, "path": info.path})
        if fake is not None:
            time.sleep(PEER_STEP_S)


class Large:
    """A multilayer perceptron with three hidden layers, on random numbers."""

    def __init__(self, device: torch.device, width: int, batch: int):
        torch.manual_seed(1)
        layers: List[nn.Module] = [nn.Linear(64, width), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.model = on_device(nn.Sequential(*layers, nn.Linear(width, 10)), device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.inputs = torch.randn(batch, 64, device=device)
        self.labels = torch.randint(10, (batch,), device=device)
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def train(self) -> None:
        after_passes()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()
        self.optimizer.step()


def hold_large(options: argparse.Namespace) -> None:
    run = gossamer.attach(Large(options.device, options.width, 1).model, job=options.job)
    while True:
        run.step(options.batch)
        time.sleep(PEER_STEP_S)


def mean_step_s(device: torch.device, steps: int, step: Callable[[], None]) -> float:
    """The mean over this many steps. A GPU is waited for at both ends, and not in between."""

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    finish()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    finish()
    return (time.perf_counter() - begin) / steps


def measure_step_time(options: argparse.Namespace) -> None:
    task = Large(options.device, options.width, options.batch)
    run = gossamer.attach(task.model, job=options.job)
    wait_for_others(run)

    def step_with() -> None:
        task.train()
        run.step(options.batch)

    kinds = {"with": step_with, "without": task.train}
    mean_step_s(options.device, WARM_UP_STEPS, task.train)
    steps = math.ceil(options.window_s / mean_step_s(options.device, WARM_UP_STEPS, task.train))
    mean_step_s(options.device, steps, step_with)  # this also warms up
    before = run.info()
    times: Dict[str, List[float]] = {kind: [] for kind in kinds}
    for pair in range(options.pairs):
        # The kinds alternate, and so does the one that comes first, so that a drift over time is in both.
        for kind in sorted(kinds, reverse=pair % 2 == 1):
            times[kind].append(mean_step_s(options.device, steps, kinds[kind]))
    after = run.info()
    run.close()
    tell(
        options.result,
        {
            **times,
            "parameters": task.parameters,
            "steps": steps,
            "path": after.path,
            "publications": after.publications - before.publications,
            "exchanges": after.exchanges - before.exchanges,
            "period_us": after.period_us,
        },
    )


def meet_other_rank(options: argparse.Namespace) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{options.meeting}", rank=options.seed - 1, world_size=2
    )


def part_from_other_rank() -> None:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def measure_averages(options: argparse.Namespace) -> None:
    meet_other_rank(options)
    task = Large(options.device, options.width, options.batch)
    model, other_optimizer = task.model, torch.optim.SGD(task.model.parameters(), lr=1e-3, momentum=0.9)
    settings = {"method": "average", "average_members": 2}
    run = gossamer.attach(model, task.optimizer, job=options.job, samples_per_step=options.batch, settings=settings)
    wait_for(lambda: run.info().ready and run.info().neighbours >= 1, "another replica", lambda: None)
    parallel = nn.parallel.DistributedDataParallel(model)

    def with_ddp() -> None:
        other_optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(task.inputs), task.labels).backward()
        other_optimizer.step()

    def without() -> None:
        other_optimizer.zero_grad()
        nn.functional.cross_entropy(model(task.inputs), task.labels).backward()

    kinds = {"averages": task.train, "gloo": with_ddp, "without": without}
    times: Dict[str, List[float]] = {kind: [] for kind in kinds}
    for kind in kinds:
        mean_step_s(options.device, 5, kinds[kind])
    for _ in range(options.pairs):
        for kind, step in kinds.items():
            torch.distributed.barrier()
            times[kind].append(mean_step_s(options.device, 10, step))
    run.close()
    tell(options.result, {**times, "parameters": task.parameters})
    part_from_other_rank()


def measure_rates(options: argparse.Namespace) -> None:
    """Bytes of the model that are averaged in a second. It drifts away from the other rank's with each step."""
    meet_other_rank(options)
    model = Large(options.device, options.width, 1).model
    parameters = [p.detach() for p in model.parameters()]
    flat = torch.cat([p.reshape(-1) for p in parameters])
    drift = [torch.randn_like(p) * (options.seed - 1.5) * 1e-4 for p in parameters]

    def by_gossip(codec: str) -> float:
        run = gossamer.attach(model, job=f"{options.job}-{codec}", settings={"codec": codec})
        wait_for(lambda: run.info().ready and run.info().neighbours >= 1, "another replica", lambda: None)
        torch.distributed.barrier()

        def exchanges_within(seconds: float) -> float:
            before, begin = run.info().exchanges, time.perf_counter()
            while time.perf_counter() < begin + seconds:
                torch._foreach_add_(parameters, drift)
                run.step(1)
                time.sleep(PEER_STEP_S / 20)
            return (run.info().exchanges - before) / (time.perf_counter() - begin)

        exchanges_within(options.window_s)
        info = run.info()
        fragments = math.ceil(len(flat) / info.fragment_elements)
        rate = exchanges_within(options.window_s) * len(flat) / fragments * flat.element_size()
        torch.distributed.barrier()
        run.close()
        return rate

    def by_sums() -> float:
        def average() -> None:
            torch.distributed.all_reduce(flat)
            flat.mul_(0.5)

        average()
        return len(flat) * flat.element_size() / mean_step_s(options.device, 10, average)

    rates: Dict[str, List[float]] = {"gloo": [], "q8": [], "q4": [], "f32": []}
    for _ in range(options.pairs):
        rates["gloo"].append(by_sums())
        for codec in ("q8", "q4", "f32"):
            rates[codec].append(by_gossip(codec))
    tell(options.result, {**rates, "parameters": len(flat)})
    part_from_other_rank()


def device_named(name: str) -> torch.device:
    device = torch.device(name)
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = {"digits": train_digits, "hold": hold_digits, "peer": hold_large, "step-time": measure_step_time}
    work.update(averages=measure_averages, rates=measure_rates)
    parser.add_argument("work", choices=work)
    parser.add_argument("--job", required=True)
    parser.add_argument("--device", type=device_named, default=torch.device("cpu"))
    parser.add_argument("--result", type=Path, default=Path(os.devnull), help="{rank} is GOSSAMER_LOCAL_RANK")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--way", choices=WAYS, default="plain")
    parser.add_argument("--alone", action="store_true", help="do not wait for another replica")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--window-s", type=float, default=2.0)
    parser.add_argument("--meeting", help="of the ranks, which are the seeds")
    parser.add_argument("--play", help="the fake plug-in for the client library")
    options = parser.parse_args()
    options.result = Path(str(options.result).format(rank=os.environ.get("GOSSAMER_LOCAL_RANK", "0")))
    with contextlib.ExitStack() as stack:
        if options.play:
            global fake
            fake = FakeGpu(options.play)
            os.environ["GOSSAMER_CLIENT_CUDA_PLUGIN"] = options.play
            stack.enter_context(fake.as_pytorch_has_it())
        work[options.work](options)


if __name__ == "__main__":
    main()
