"""The hook for DistributedDataParallel runs between real daemons: buckets are averaged while the backward pass goes on, and
all processes get the same bits, whoever comes, leaves or dies."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
from typing import Any, Callable, Dict, List, Tuple

from support import BUILD, JOB, PATIENCE_S, SystemTest, gossamerctl, start_program, wait_until
from training_thread import TrainingThread

try:
    import torch
    import torch.distributed

    import gossamer.torch
    from gossamer import GossamerError, _shared, _torch_buckets
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed") from None

WIDTH = 24
LAYERS = 4

# A process of its own, with a process group of its own. Arguments: a seed, the group's file, and the last step and layer,
# or -1. In the backward pass of that step it kills itself at that layer.
PROGRAM = f"""
import os, signal, sys; sys.path.insert(0, {str(BUILD / "python")!r})
import torch, torch.distributed as distributed, gossamer.torch
from gossamer import _torch_buckets
_torch_buckets.LEAST_NUMBERS = int(os.environ.get("LEAST_NUMBERS", _torch_buckets.LEAST_NUMBERS))
seed, store, last_step, last_layer = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
distributed.init_process_group("gloo", init_method=f"file://{{store}}", rank=0, world_size=1)
distributed._DEFAULT_FIRST_BUCKET_BYTES = 1
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})])
run = gossamer.torch.attach(model, job={JOB!r}, settings={{"method": "average"}}, timeout_s=60)
ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-6)
ddp.register_comm_hook(run, gossamer.torch.average_hook)
torch.manual_seed(seed)
step = 0
for index, layer in enumerate(model):
    def reached(module, inputs, output, index=index):
        def at_backward(_):
            if (step, index) == (last_step, last_layer):
                os.kill(os.getpid(), signal.SIGKILL)
        output.register_hook(at_backward)
    layer.register_forward_hook(reached)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("begins", flush=True)
try:
    while True:
        optimizer.zero_grad()
        ddp(torch.randn(8, {WIDTH})).square().sum().backward()
        optimizer.step()
        step += 1
        print(step, flush=True)
        if step == last_step and last_layer < 0:
            break
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(3)
print([parameter.tolist() for parameter in model.parameters()])
"""


class Training(TrainingThread):
    """A process that trains, as a thread. The bits of the gradients after each backward pass are kept, by its number."""

    PATIENCE_S = 2 * PATIENCE_S

    def __init__(self, node: Any, seed: int, **options: Any):
        super().__init__()
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        with torch.no_grad():
            generator = torch.Generator().manual_seed(1)
            for parameter in self.model.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        self.run = gossamer.torch.attach(
            self.model, job=JOB, socket=str(node.client_socket), timeout_s=PATIENCE_S, settings={"method": "average"}
        )
        self.random = torch.Generator().manual_seed(seed)
        self.by_pass: Dict[int, int] = {}
        self.own: List[torch.Tensor] = []  # the last own gradients, before the mean
        self.steps = 0
        self.at_layer: Callable[[int], None] = lambda index: None
        for index, layer in enumerate(self.model):
            layer.register_forward_hook(lambda _, inputs, output, index=index: self._watch(output, index))
        self.wrap(**options)
        self.zero_grad: Callable[[], None] = lambda: self.model.zero_grad(set_to_none=True)

    def wrap(self, bucket_cap_mb: float = 1e-6, **options: Any) -> None:
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.model, bucket_cap_mb=bucket_cap_mb, **options)
        self.ddp.register_comm_hook(self.run, gossamer.torch.average_hook)

    def _watch(self, output: torch.Tensor, index: int) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: self.at_layer(index))

    def module(self) -> Any:
        (module,) = self.run._ddp._modules.values()
        return module

    def loss(self) -> torch.Tensor:
        return self.ddp(torch.randn(8, WIDTH, generator=self.random)).square().sum()

    def step(self) -> None:
        self.zero_grad()
        self.loss().backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        self.by_pass[self.module()._passes] = hash(b"".join(gradient.numpy().tobytes() for gradient in gradients))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.001 * parameter.grad
        self.steps += 1

    def leave(self) -> None:
        self.run._ddp.leave(self.run)

    def close(self) -> None:
        self.run.close()

    def state(self) -> bytes:
        return b"".join(parameter.detach().numpy().tobytes() for parameter in self.model.parameters())


class DdpHook(SystemTest):
    """Each layer's weights and biases are buckets of their own."""

    LEAST_NUMBERS = 1

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)

    def setUp(self) -> None:
        super().setUp()
        for holder, name, value in (
            (_torch_buckets, "LEAST_NUMBERS", self.LEAST_NUMBERS),
            (torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 1),
        ):
            self.enterContext(unittest.mock.patch.object(holder, name, value))

    def trainings(self, nodes: List[Any], members: int = 0, **options: Any) -> List[Training]:
        made = []
        for index, node in enumerate(nodes):
            made.append(Training(node, index, **options))
            self.addCleanup(made[-1].stop)
        self.set(nodes[0], f"average_members={members or len(nodes)}")
        for training in made:
            wait_until(lambda: training.run.info().average_members == (members or len(nodes)), PATIENCE_S, "it is told")
        return made

    def set(self, node: Any, *assignments: str) -> None:
        said = gossamerctl(BUILD, "--socket", str(node.control_socket), "job", "set", JOB, *assignments)
        self.assertEqual(said.returncode, 0, said.stderr)

    def start_other(self, node: Any, seed: int, last_step: int = -1, last_layer: int = -1) -> Any:
        return start_program(
            self,
            [sys.executable, "-c", PROGRAM, str(seed), str(self.folder / f"store{seed}"), str(last_step), str(last_layer)],
            env={
                **os.environ, "GOSSAMER_SOCKET": str(node.client_socket), "LEAST_NUMBERS": str(self.LEAST_NUMBERS),
            },
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def steps_of_all(self, trainings: List[Training], count: int) -> None:
        self.at_once([training.step for training in trainings], count)

    def at_once(self, calls: List[Callable[[], None]], count: int = 1) -> None:
        errors: List[BaseException] = []

        def run(call: Callable[[], None]) -> None:
            try:
                for _ in range(count):
                    call()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE_S)
            self.assertFalse(thread.is_alive(), "a backward pass does not end")
        if errors:
            raise errors[0]

    def assert_same(self, trainings: List[Training], common: int) -> None:
        """The gradients after each backward pass, of which so many at least are common."""
        first = trainings[0].by_pass
        for other in trainings[1:]:
            passes = sorted(first.keys() & other.by_pass.keys())
            self.assertGreaterEqual(len(passes), common)
            self.assertEqual([one for one in passes if first[one] != other.by_pass[one]], [])

    def test_gradients_are_the_means_of_all(self) -> None:
        trainings = self.trainings(self.start_nodes(3))
        for _ in range(6):
            own = []
            for training in trainings:
                random = training.random.get_state()
                loss = training.model(torch.randn(8, WIDTH, generator=training.random)).square().sum()
                own.append(torch.autograd.grad(loss, list(training.model.parameters())))
                training.random.set_state(random)
            wanted = [sum(parts) / len(parts) for parts in zip(*own)]
            self.steps_of_all(trainings, 1)
            for training in trainings:
                for parameter, mean in zip(training.model.parameters(), wanted):
                    torch.testing.assert_close(parameter.grad, mean)
        self.assert_same(trainings, 6)
        self.assertEqual(len({training.state() for training in trainings}), 1)

    def test_buckets_are_under_way_while_the_backward_pass_goes_on(self) -> None:
        first, second = trainings = self.trainings(self.start_nodes(2))
        self.steps_of_all(trainings, 4)
        begun: List[bytes] = []
        begun_at_last_layer: List[int] = []
        far = threading.Event()
        begin = first.run._begin_average

        def noted(pointer: Any, size: int, options: Any, *rest: Any) -> bool:
            begun.append(options.name)
            return begin(pointer, size, options, *rest)

        def reached(index: int) -> None:
            if index == 0:
                begun_at_last_layer.append(len(begun))
                far.set()

        # The second one begins its backward pass when the first has come to its last layer, so there is no mean before.
        first.run._begin_average = noted
        first.at_layer = reached
        second.at_layer = lambda index: self.assertTrue(far.wait(PATIENCE_S), "the first one waits for a mean")
        self.steps_of_all(trainings, 1)
        self.assertEqual(begun_at_last_layer, [LAYERS - 1])
        self.assertEqual(len(set(begun)), LAYERS)
        self.assert_same(trainings, 5)

    def test_a_process_dies_in_the_middle_of_a_backward_pass(self) -> None:
        nodes = self.start_nodes(3)
        trainings = self.trainings(nodes[:2], members=1)
        for training in trainings:
            training.start()
        for layer in reversed(range(LAYERS)):
            other = self.start_other(nodes[2], seed=7 + layer, last_step=6, last_layer=layer)
            self.assertEqual(other.wait(PATIENCE_S), -signal.SIGKILL)
            self.train_on(trainings)
            said = other.stdout.read().split()
            self.assertEqual(said[-1], "6", "it has died in the next backward pass")
        self.stop_all(trainings)
        self.assert_same(trainings, 100)

    def train_on(self, trainings: List[Training], steps: int = 20) -> None:
        """If the larger part of the last round is gone, the rest begins anew after 25 s."""
        before = [training.steps for training in trainings]
        wait_until(
            lambda: all(t.steps > b + steps for t, b in zip(trainings, before)), 2 * PATIENCE_S, "they train on"
        )

    def stop_all(self, trainings: List[Training]) -> None:
        for training in trainings:
            training._stop.set()
        for training in trainings:
            training.stop()

    def three_that_train(self) -> Tuple[List[Any], List[Training]]:
        """Their nodes, too. One may go on without the others."""
        nodes = self.start_nodes(3)
        trainings = self.trainings(nodes)
        self.steps_of_all(trainings, 4)
        self.set(nodes[0], "average_members=1")
        for training in trainings:
            training.start()
        self.train_on(trainings)
        return nodes, trainings

    def test_a_node_dies_in_the_middle_of_a_backward_pass(self) -> None:
        nodes, trainings = self.three_that_train()

        def die(index: int) -> None:
            if index == 1 and nodes[2].running():
                nodes[2].kill()

        trainings[2].at_layer = die
        self.train_on(trainings[:2])
        trainings[2]._stop.set()
        wait_until(lambda: trainings[2].error is not None, PATIENCE_S, "the third is told")
        self.assertEqual(getattr(trainings[2].error, "status", None), "GOSSAMER_NO_DAEMON")
        trainings[2].error = None
        self.stop_all(trainings[:2])
        self.assert_same(trainings[:2], 40)

    def test_newcomers(self) -> None:
        nodes = self.start_nodes(3)
        trainings = self.trainings(nodes[:2], members=1)
        for training in trainings:
            training.start()
        self.train_on(trainings)
        newcomer = Training(nodes[2], 3)
        self.addCleanup(newcomer.stop)
        trainings.append(newcomer)
        newcomer.start()
        self.train_on(trainings)
        self.stop_all([newcomer])
        self.train_on(trainings[:2])
        self.stop_all(trainings[:2])
        self.assertGreater(min(newcomer.by_pass), 20)
        self.assert_same(trainings, 20)
        self.assert_same(trainings[:2], 60)

    def fails(self, training: Training, status: str, text: str = "") -> None:
        """Its thread ends with this error. DistributedDataParallel goes on afterwards."""
        wait_until(lambda: training.error is not None, PATIENCE_S, "it fails")
        error, training.error = training.error, None
        self.assertIsInstance(error, GossamerError)
        self.assertEqual(error.status, status)
        self.assertIn(text, str(error))

    def test_a_process_that_was_left_out_is_told(self) -> None:
        nodes, trainings = self.three_that_train()
        assert nodes[2].program is not None
        nodes[2].program.signal(signal.SIGSTOP)
        self.train_on(trainings[:2])
        nodes[2].program.signal(signal.SIGCONT)
        self.fails(trainings[2], "GOSSAMER_UNSUPPORTED", "was left out")
        steps = trainings[2].steps
        trainings[2].by_pass.clear()
        trainings[2].resume()  # as a newcomer, when it has the others' model
        self.train_on(trainings)
        self.assertGreater(trainings[2].steps, steps + 20)
        self.stop_all(trainings)
        self.assert_same(trainings, 20)

    def test_the_daemon_is_gone(self) -> None:
        nodes = self.start_nodes(2)
        first, second = trainings = self.trainings(nodes)
        self.steps_of_all(trainings, 4)
        with unittest.mock.patch.object(_shared, "AVERAGE_DAEMON_TIMEOUT_S", 1.0):
            first.start()
            nodes[0].kill()
            self.fails(first, "GOSSAMER_NO_DAEMON")
        self.set(nodes[1], "average_members=1")
        second.start()
        self.train_on([second])
        nodes[0].start()
        first.resume()
        self.fails(first, "GOSSAMER_UNSUPPORTED", "was left out")
        self.train_on([second])
        first.resume()
        self.train_on(trainings)
        self.stop_all(trainings)

    def test_a_daemon_that_is_restarted(self) -> None:
        nodes = self.start_nodes(2)
        trainings = self.trainings(nodes)
        self.steps_of_all(trainings, 4)
        nodes[0].kill()
        nodes[0].start()
        self.steps_of_all(trainings, 4)
        self.assert_same(trainings, 8)

    def test_settings_that_change_while_a_backward_pass_waits(self) -> None:
        nodes = self.start_nodes(2)
        first, second = trainings = self.trainings(nodes)
        self.steps_of_all(trainings, 4)
        second.run._ddp.leave(second.run)
        first.start()
        time.sleep(1.5)
        self.assertEqual(first.steps, 4)
        self.set(nodes[1], "average_members=1")
        self.train_on([first])
        self.set(nodes[1], "average_members=2")
        wait_until(lambda: first.run.info().average_members == 2, PATIENCE_S, "it is told")
        time.sleep(0.5)
        self.set(nodes[1], "method=gossip")
        self.fails(first, "GOSSAMER_UNSUPPORTED", "the method gossip")

    def test_the_run_is_closed_while_a_backward_pass_waits(self) -> None:
        first, second = trainings = self.trainings(self.start_nodes(2))
        self.steps_of_all(trainings, 4)
        first.start()
        time.sleep(0.5)
        first.run.close()
        self.fails(first, "GOSSAMER_BAD_ARGUMENT", "closed")

    def test_ctrl_c_ends_a_backward_pass_that_waits(self) -> None:
        nodes = self.start_nodes(2)
        (training,) = self.trainings(nodes[:1])
        other = self.start_other(nodes[1], seed=5)
        self.assertEqual(other.stdout.readline(), "begins\n")
        training.start()
        while int(other.stdout.readline()) < 4:
            pass
        training._stop.set()
        training._thread.join()
        self.set(nodes[0], "average_members=2")
        wait_until(lambda: training.run.info().average_members == 2, PATIENCE_S, "it is told")
        time.sleep(1)
        other.send_signal(signal.SIGINT)
        self.assertEqual(other.wait(PATIENCE_S), 3)
        self.assertEqual(other.stdout.read().split()[-1], "interrupted")

    def test_other_ways_of_distributed_data_parallel(self) -> None:
        nodes = self.start_nodes(2)
        trainings = self.trainings(nodes)
        for options in (
            {"gradient_as_bucket_view": True},
            {"find_unused_parameters": True},
            {"static_graph": True},
            {"bucket_cap_mb": 25},
        ):
            for training in trainings:
                training.wrap(**options)
            self.steps_of_all(trainings, 4)

        def accumulate(training: Training) -> None:
            with training.ddp.no_sync():
                training.loss().backward()
            training.loss().backward()

        def different(training: Training) -> None:
            training.wrap(bucket_cap_mb=25 if training is trainings[0] else 1e-6)

        for training in trainings:
            training.zero_grad = lambda training=training: accumulate(training)
        self.steps_of_all(trainings, 4)
        for training in trainings:
            different(training)
        self.steps_of_all(trainings, 4)
        for training in trainings:
            training.wrap()
        self.set(nodes[0], "average_codec=q8")  # one may learn of it a step before the other
        self.steps_of_all(trainings, 8)
        for training in trainings:
            wait_until(lambda: training.run.info().average_codec == "q8", PATIENCE_S, "it is told")
        self.steps_of_all(trainings, 4)
        self.assert_same(trainings, 36)
        self.assertEqual(len({training.state() for training in trainings}), 1)


class DdpHookOfASmallModel(DdpHook):
    """The same with all gradients in one average."""

    LEAST_NUMBERS = 1 << 18

    test_buckets_are_under_way_while_the_backward_pass_goes_on = None  # type: ignore[assignment]


if __name__ == "__main__":
    unittest.main()
