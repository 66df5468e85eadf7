"""What programs do with PyTorch on a GPU: each of USES is one of them, trained on two nodes by end_to_end.py, which starts
this with a use's name. It says what it found as JSON in --result: `wrong` is empty if it went as it has to.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

import torch
from torch import nn

from worker import BATCH, PATIENCE_S, Digits, tell, wait_for_others

import digits
import gossamer.torch as gossamer

STEPS = 1000
LEAST_ACCURACY = 0.93
# Runs of programs that do not close them.
kept: List[gossamer.TorchRun] = []


class Orders(NamedTuple):
    job: str
    seed: int
    device: torch.device
    folder: Path


def attached(task: Digits, orders: Orders, optimizer: bool = True, **more: Any) -> gossamer.TorchRun:
    run = gossamer.attach(
        task.model, task.optimizer if optimizer else None, job=orders.job, samples_per_step=BATCH, **more
    )
    wait_for_others(run)
    return run


def ended(task: Digits, run: gossamer.TorchRun) -> Dict[str, Any]:
    """Finishes the run."""
    end = run.finish(timeout_s=PATIENCE_S)
    info = run.info()
    run.close()
    accuracy = task.accuracy()
    wrong = []
    if accuracy < LEAST_ACCURACY:
        unsound = [name for name, tensor in task.model.state_dict().items() if not bool(torch.isfinite(tensor).all())]
        wrong.append(f"accuracy, not finite: {unsound}")
    if not end.agreed and info.method == "gossip":
        wrong.append(f"not agreed: {end}")
    if info.path != "device":
        wrong.append(f"path {info.path}: {info.message}")
    return {"found": f"{accuracy:.4f}", "wrong": "; ".join(wrong)}


def trained(orders: Orders, step: Callable[[Digits], None], task: Digits, **more: Any) -> Dict[str, Any]:
    run = attached(task, orders, **more)
    for _ in range(STEPS):
        step(task)
    return ended(task, run)


def loss_of(task: Digits) -> torch.Tensor:
    batch = torch.randint(len(task.images), (BATCH,), device=task.images.device)
    return nn.functional.cross_entropy(task.model(task.images[batch]), task.labels[batch])


def autocast_bfloat16(orders: Orders) -> Dict[str, Any]:
    def step(task: Digits) -> None:
        task.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(task)
        loss.backward()
        task.optimizer.step()

    return trained(orders, step, Digits(orders.device, orders.seed))


def gradient_scaler(orders: Orders) -> Dict[str, Any]:
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)  # its first steps are skipped

    def step(task: Digits) -> None:
        task.optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(task)
        scaler.scale(loss).backward()
        scaler.unscale_(task.optimizer)
        nn.utils.clip_grad_norm_(task.model.parameters(), 5.0)
        scaler.step(task.optimizer)
        scaler.update()

    return trained(orders, step, Digits(orders.device, orders.seed))


def fused_adamw(orders: Orders) -> Dict[str, Any]:
    task = Digits(orders.device, orders.seed)
    task.optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3, fused=True)
    return trained(orders, Digits.train, task)


def bfloat16_model(orders: Orders) -> Dict[str, Any]:
    task = Digits(orders.device, orders.seed)
    task.model.to(torch.bfloat16)
    task.images, task.test_images = task.images.bfloat16(), task.test_images.bfloat16()
    task.optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
    return trained(orders, Digits.train, task)


def channels_last(orders: Orders) -> Dict[str, Any]:
    """Refused by name; its inputs are no matter."""
    task = Digits(orders.device, orders.seed)
    task.model.to(memory_format=torch.channels_last)
    try:
        attached(task, orders)
        return {"found": "attached", "wrong": "a tensor that is not row-major was taken"}
    except gossamer.GossamerError as error:
        if "contiguous" not in str(error):
            raise
    task.model.to(memory_format=torch.contiguous_format)
    return trained(orders, Digits.train, task)


def flat_parameters(orders: Orders) -> Dict[str, Any]:
    """All parameters in one array, none of them at an address of 16 bytes."""
    task = Digits(orders.device, orders.seed)
    parameters = list(task.model.parameters())
    flat = torch.empty(1 + sum(p.numel() for p in parameters) + len(parameters), device=orders.device)
    first = 1
    for parameter in parameters:
        view = flat[first : first + parameter.numel()].view_as(parameter)
        view.copy_(parameter.detach())
        parameter.data = view
        first += parameter.numel() + (parameter.numel() % 2 == 0)
    return trained(orders, Digits.train, task)


def compiled_with_graphs(orders: Orders) -> Dict[str, Any]:
    task = Digits(orders.device, orders.seed)
    run = attached(task, orders)
    model = task.model
    task.model = torch.compile(model, mode="reduce-overhead")
    for _ in range(STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        task.train()
    task.model = model
    return ended(task, run)


def compiled_optimizer(orders: Orders) -> Dict[str, Any]:
    task = Digits(orders.device, orders.seed)
    run = attached(task, orders)
    step = torch.compile(task.optimizer.step)
    for _ in range(STEPS):
        task.optimizer.zero_grad()
        loss_of(task).backward()
        step()
    counted = run.info().clock
    result = ended(task, run)
    if counted < BATCH * STEPS:
        result["wrong"] += f"; counted {counted} samples of {BATCH * STEPS}"
    return result


def again_and_again(orders: Orders) -> Dict[str, Any]:
    task = Digits(orders.device, orders.seed)
    used: List[int] = []
    for number in range(10):  # only the first waits for the other, which may end early
        run = attached(task, orders) if number == 0 else gossamer.attach(task.model, task.optimizer, job=orders.job)
        for _ in range(STEPS // 10):
            task.train()
        if number < 9:
            run.close()
            free, total = torch.cuda.mem_get_info(orders.device)
            used.append(total - free)
    result = ended(task, run)
    # Other programs use the GPU meanwhile, so the number is shown and not checked.
    result["found"] += f", {(used[-1] - used[0]) / (1 << 20):+.0f} MiB on the GPU"
    return result


def two_threads(orders: Orders) -> Dict[str, Any]:
    """Two jobs, each in a thread and on a stream of its own."""
    results: List[Dict[str, Any]] = []

    def train(number: int) -> None:
        own = orders._replace(job=f"{orders.job}-{number}", seed=10 * orders.seed + number)
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(trained(own, Digits.train, Digits(own.device, own.seed)))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) < 2:
        return {"found": "", "wrong": "a thread has failed"}
    found = ", ".join(one["found"] for one in results)
    return {"found": found, "wrong": "; ".join(filter(None, (one["wrong"] for one in results)))}


def loader_processes(orders: Orders) -> Dict[str, Any]:
    """A DataLoader forks while the run is attached."""
    task = Digits(orders.device, orders.seed)
    run = attached(task, orders)
    images, labels = (torch.from_numpy(array) for array in digits.load()[:2])
    data = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=2, pin_memory=True, drop_last=True)
    for _ in range(16):
        for some_images, some_labels in loader:
            task.optimizer.zero_grad()
            some_images, some_labels = (t.to(orders.device, non_blocking=True) for t in (some_images, some_labels))
            nn.functional.cross_entropy(task.model(some_images), some_labels).backward()
            task.optimizer.step()
    return ended(task, run)


def without_waiting(orders: Orders) -> Dict[str, Any]:
    """PyTorch raises at each call that waits for the GPU."""
    task = Digits(orders.device, orders.seed)
    run = attached(task, orders)
    for _ in range(20):
        task.train()
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(STEPS):
        task.train()
    torch.cuda.set_sync_debug_mode("default")
    return ended(task, run)


def data_parallel(orders: Orders) -> Dict[str, Any]:
    """DistributedDataParallel with NCCL, in a group of one."""
    store = f"file://{orders.folder}/ddp-{orders.job}-{orders.seed}"
    torch.distributed.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    task = Digits(orders.device, orders.seed)
    task.model = nn.parallel.DistributedDataParallel(task.model, device_ids=[orders.device.index])
    task.optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
    result = trained(orders, Digits.train, task)
    torch.distributed.destroy_process_group()
    return result


def sharded(orders: Orders) -> Dict[str, Any]:
    """FSDP2 in a group of one."""
    from torch.distributed.fsdp import fully_shard

    store = f"file://{orders.folder}/fsdp-{orders.job}-{orders.seed}"
    torch.distributed.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    task = Digits(orders.device, orders.seed)
    fully_shard(task.model)
    task.optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
    result = trained(orders, Digits.train, task)
    torch.distributed.destroy_process_group()
    return result


def checkpoints(orders: Orders) -> Dict[str, Any]:
    """Its state is saved and loaded again and again."""
    task = Digits(orders.device, orders.seed)
    run = attached(task, orders)
    path = orders.folder / f"{orders.job}-{orders.seed}.pt"
    for number in range(STEPS):
        task.train()
        if number % 100 == 50:
            torch.save({"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}, path)
        if number % 100 == 55:
            state = torch.load(path, map_location=orders.device)
            task.model.load_state_dict(state["model"])
            task.optimizer.load_state_dict(state["optimizer"])
    return ended(task, run)


def moved_away(orders: Orders) -> Dict[str, Any]:
    """Noticed when the model is about to be read."""
    task = Digits(orders.device, orders.seed)
    run = attached(task, orders)
    task.train()
    task.model.cpu()
    end = time.monotonic() + 10.0
    try:
        while time.monotonic() < end:
            run.step(BATCH)
            time.sleep(0.001)
        return {"found": "steps were made", "wrong": "a model that went away was not noticed"}
    except gossamer.GossamerError as error:
        wrong = "" if "attach again" in str(error) else str(error)
        with contextlib.suppress(gossamer.GossamerError):
            run.close()
        return {"found": "refused", "wrong": wrong}


def failing_program(orders: Orders) -> Dict[str, Any]:
    """Ends by an exception, and does not hang. What it finds is told before."""
    task = Digits(orders.device, orders.seed)
    kept.append(attached(task, orders))
    for _ in range(100):
        task.train()
    return {"found": "ended by an exception", "wrong": "", "then": "raise"}


def by_method(settings: Dict[str, Any], same: bool) -> Callable[[Orders], Dict[str, Any]]:
    def use(orders: Orders) -> Dict[str, Any]:
        task = Digits(orders.device, orders.seed)
        run = gossamer.attach(
            task.model, task.optimizer, job=orders.job, samples_per_step=BATCH,
            settings={"average_members": 2, **settings} if same else settings,
        )  # fmt: skip
        wait_for_others(run)
        steps = STEPS // 10 * 8
        for _ in range(steps):
            task.train()
        values = b"".join(p.detach().cpu().numpy().tobytes() for p in task.model.parameters())
        result = ended(task, run)
        if same:
            result["same"] = hashlib.sha256(values).hexdigest()
        return result

    return use


def by_trainer(orders: Orders, callback: Any, train: Callable[[Digits, Any], None]) -> Dict[str, Any]:
    """A trainer's callback opens the run, and closes it without finishing."""
    infos: List[gossamer.RunInfo] = []

    class Ours(callback):  # type: ignore[misc]
        def _open_run(self, *arguments: Any, **more: Any) -> None:
            super()._open_run(*arguments, **more)
            wait_for_others(self.run)

        def _close_run(self) -> None:
            if self.run is not None and not self.run.closed:
                infos.append(self.run.info())
            super()._close_run()

    task = Digits(orders.device, orders.seed)
    train(task, Ours(job=orders.job, samples_per_step=BATCH))
    task.model.to(orders.device)
    accuracy, info = task.accuracy(), infos[0]
    wrong = [] if accuracy >= LEAST_ACCURACY else ["accuracy"]
    if info.path != "device" or info.exchanges == 0 or info.clock < BATCH * STEPS:
        wrong.append(f"path {info.path} {info.message}, {info.exchanges} exchanges, {info.clock} samples")
    return {"found": f"{accuracy:.4f}", "wrong": "; ".join(wrong)}


def by_lightning(orders: Orders) -> Dict[str, Any]:
    if importlib.util.find_spec("lightning") is None:
        return {"found": "there is no Lightning here", "wrong": ""}
    import lightning.pytorch
    from gossamer.lightning import GossamerCallback

    class Module(lightning.pytorch.LightningModule):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def train(task: Digits, ours: Any) -> None:
        data = torch.utils.data.TensorDataset(task.images.cpu(), task.labels.cpu())
        lightning.pytorch.Trainer(
            max_steps=STEPS, accelerator="gpu", devices=[orders.device.index], precision="bf16-mixed", logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[ours],
        ).fit(Module(task.model), torch.utils.data.DataLoader(data, BATCH, shuffle=True, drop_last=True))  # fmt: skip

    return by_trainer(orders, GossamerCallback, train)


def by_transformers(orders: Orders) -> Dict[str, Any]:
    if importlib.util.find_spec("transformers") is None:
        return {"found": "there are no Transformers here", "wrong": ""}
    import transformers
    from gossamer.transformers import GossamerCallback

    class Classifier(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, image: torch.Tensor, labels: torch.Tensor) -> Dict[str, torch.Tensor]:
            output = self.model(image)
            return {"loss": nn.functional.cross_entropy(output, labels), "logits": output}

    def train(task: Digits, ours: Any) -> None:
        rows = [{"image": i, "labels": label} for i, label in zip(task.images.cpu(), task.labels.cpu())]
        arguments = transformers.TrainingArguments(
            str(orders.folder / f"{orders.job}-{orders.seed}"), max_steps=STEPS, per_device_train_batch_size=BATCH,
            learning_rate=2e-3, bf16=True, report_to=[], disable_tqdm=True, save_strategy="no", seed=orders.seed,
        )  # fmt: skip
        transformers.Trainer(Classifier(task.model), arguments, train_dataset=rows, callbacks=[ours]).train()

    return by_trainer(orders, GossamerCallback, train)


def partitioned(orders: Orders) -> Dict[str, Any]:
    """Cut by the time of its layers: the two that take most are in different stages."""
    model = nn.Sequential(
        nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 16384), nn.Linear(16384, 1024),
        nn.Linear(1024, 1024), nn.Linear(1024, 1024),
    ).to(orders.device)  # fmt: skip
    sample = torch.randn(4096, 1024, device=orders.device)
    cut = gossamer.partition(model, sample, stages=3)
    costs = ", ".join(f"{1e3 * cost:.2f} ms" for cost in cut.costs)
    wrong = f"cut as {cut.stages}" if any({"2", "3"} <= set(stage) for stage in cut.stages) else ""
    used = torch.cuda.memory_allocated(orders.device) >> 20
    return {"found": costs, "wrong": wrong or ("" if used < 1024 else f"{used} MiB are still held")}


def jax_model(orders: Orders) -> Dict[str, Any]:
    if importlib.util.find_spec("jax") is None:
        return {"found": "there is no JAX here", "wrong": ""}
    import subprocess

    import jax

    script = Path(digits.__file__).with_name("digits_jax.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    accuracy = float(done.stdout.split()[-1]) if done.returncode == 0 else 0.0
    wrong = "" if accuracy >= LEAST_ACCURACY else done.stderr[-500:] or "accuracy"
    return {"found": f"{jax.devices()[0]}: {accuracy:.4f}", "wrong": wrong}


class Use(NamedTuple):
    does: Callable[[Orders], Dict[str, Any]]
    environment: Dict[str, str] = {}
    on_first: int = 1  # how many processes run on the first node


def plain(orders: Orders) -> Dict[str, Any]:
    return trained(orders, Digits.train, Digits(orders.device, orders.seed))


USES: Dict[str, Use] = {
    "autocast-bfloat16": Use(autocast_bfloat16),
    "gradient-scaler": Use(gradient_scaler),
    "fused-adamw": Use(fused_adamw),
    "bfloat16-model": Use(bfloat16_model),
    "channels-last": Use(channels_last),
    "flat-parameters": Use(flat_parameters),
    "expandable-segments": Use(plain, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "cuda-malloc-async": Use(plain, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "gpu-by-uuid": Use(plain, {"CUDA_VISIBLE_DEVICES": "UUID"}),
    "two-on-a-node": Use(plain, on_first=2),
    "compiled-with-graphs": Use(compiled_with_graphs),
    "compiled-optimizer": Use(compiled_optimizer),
    "again-and-again": Use(again_and_again),
    "two-threads": Use(two_threads),
    "loader-processes": Use(loader_processes),
    "without-waiting": Use(without_waiting),
    "data-parallel": Use(data_parallel),
    "sharded": Use(sharded),
    "checkpoints": Use(checkpoints),
    "moved-away": Use(moved_away),
    "failing-program": Use(failing_program),
    "exact-averages": Use(by_method({"method": "average"}, same=True)),
    "local-sgd": Use(by_method({"method": "average", "average_steps": 8}, same=True)),
    "server": Use(by_method({"method": "server"}, same=False)),
    "lightning": Use(by_lightning),
    "transformers": Use(by_transformers),
    "partition": Use(partitioned),
    "jax": Use(jax_model, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("use", choices=USES)
    parser.add_argument("--job", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device(options.device, 0)
    torch.cuda.set_device(device)
    result = USES[options.use].does(Orders(options.job, options.seed, device, options.result.parent))
    then = result.pop("then", "")
    tell(options.result, result)
    if then == "raise":
        raise RuntimeError("as programs do")


if __name__ == "__main__":
    main()
