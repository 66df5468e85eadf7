"""Checkpoints: written while training goes on, whole or not at all, and readable by programs that read safetensors."""

import base64
import json
import os
import resource
import stat
import subprocess
import unittest
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

from support import BUILD, JOB, PATIENCE_S, Client, Node, SystemTest, gossamer, python_with, wait_until

FRAGMENT_ELEMENTS = 1 << 14
FRAGMENTS = 16


def read(path: Path) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """The tensors and the metadata of a safetensors file, by the description of the format."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    tensors, data = {}, content[8 + length :]
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], {"F32": np.float32}[entry["dtype"]]).reshape(entry["shape"])
    assert sum(tensor.nbytes for tensor in tensors.values()) == len(data)
    return tensors, metadata


def write(path: Path, tensors: Dict[str, np.ndarray]) -> None:
    """As another program writes them: without metadata."""
    entries, data = {}, b""
    for name, values in tensors.items():
        part = values.astype(np.float32).tobytes()
        entries[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def files(node: Node, pattern: str = "*.safetensors") -> List[Path]:
    return sorted((node.folder / "state" / "checkpoints" / JOB).glob(pattern))


class CheckpointTest(SystemTest):
    def model(self) -> np.ndarray:
        return np.random.default_rng(5).standard_normal(FRAGMENTS * FRAGMENT_ELEMENTS - 100).astype(np.float32)

    def attach_big(self, node: Node, values: np.ndarray, **options: Any) -> Client:
        return self.attach(node, values, fragment_elements=FRAGMENT_ELEMENTS, **options)

    def begin(self, node: Node, *arguments: str) -> subprocess.Popen:
        """Starts a gossamerctl that waits for the next actions of this test."""
        tool = subprocess.Popen(
            [str(BUILD / "bin" / "gossamerctl"), "--socket", str(node.control_socket), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(tool.stdout.close)
        self.addCleanup(tool.stderr.close)
        self.addCleanup(tool.wait)
        self.addCleanup(tool.kill)
        return tool

    def tell(self, node: Node, *arguments: str, status: int = 0) -> str:
        """The output of gossamerctl, while the clients go on stepping."""
        tool = self.begin(node, *arguments)
        self.step_until(lambda: tool.poll() is not None, f"gossamerctl {' '.join(arguments)} has ended")
        said = tool.stdout.read() + tool.stderr.read()
        self.assertEqual(tool.returncode, status, said)
        return said

    def checkpoint(self, node: Node) -> Path:
        return Path(self.tell(node, "checkpoint", JOB).strip())


class Writing(CheckpointTest):
    def test_holds_what_was_trained_with_clock_and_cursor(self) -> None:
        """For a node that trains alone, whose client has served no fragment for a long time."""
        [node] = self.start_nodes(1)
        client = self.attach_big(node, self.model())
        for number in range(50):
            client.array += 1
            client.run.cursor = f"step {number}".encode()
            client.step(samples=10)
        path = self.checkpoint(node)
        self.assertEqual(path, files(node)[0])
        tensors, metadata = read(path)
        np.testing.assert_array_equal(tensors["w"], client.array)
        self.assertEqual(list(tensors), ["w"])
        self.assertEqual(metadata["gossamer.job"], JOB)
        self.assertGreaterEqual(int(metadata["gossamer.clock"]), 500)
        self.assertGreaterEqual(int(metadata["gossamer.oldest_clock"]), 500)
        self.assertEqual(metadata["gossamer.node"], node.status()["node"])
        self.assertEqual(metadata["gossamer.layout"], client.job()["layout"])
        self.assertEqual(base64.b64decode(metadata["gossamer.cursor"]), b"step 49")
        job = client.job()
        self.assertEqual(job["checkpoints_written"], 1)
        self.assertEqual(job["checkpoint_clock"], int(metadata["gossamer.clock"]))

    def test_shapes_and_names_and_what_stays_at_the_node(self) -> None:
        [node] = self.start_nodes(1)
        tensors = {
            "layer.0/ä": np.arange(6, dtype=np.float32).reshape(2, 3),
            "scalar": np.array(7, np.float32),
            "double": np.array([1.5, 2.5], np.float64),
            "count": np.array([3], np.int64),
        }
        run = gossamer.attach(tensors, job=JOB, socket=str(node.client_socket), roles={"count": "local"})
        self.addCleanup(run.close)
        tool = self.begin(node, "checkpoint", JOB)
        wait_until(lambda: run.step(samples=1) or tool.poll() is not None, PATIENCE_S, "it is written")
        written, _ = read(files(node)[0])
        self.assertEqual(sorted(written), ["double", "layer.0/ä", "scalar"])
        for name, values in written.items():
            np.testing.assert_array_equal(values, tensors[name])
            self.assertEqual(values.shape, tensors[name].shape)

    def test_periodic_ones_are_kept_as_many_as_configured(self) -> None:
        [node] = self.start_nodes(1, {"checkpoints": {"period_s": 1, "keep": 2}})
        client = self.attach(node, np.zeros(1000))
        folder = node.folder / "state" / "checkpoints" / JOB
        self.step_until(lambda: len(files(node)) == 1, "the first is written")
        first = files(node)[0]
        others = [folder / "00000000000000000001-99999999.safetensors", folder / "notes"]
        for other in others:
            other.write_text("not ours")

        def written() -> int:
            client.array += 1
            return client.job()["checkpoints_written"]

        self.step_until(lambda: written() >= 4, "four are written")
        self.assertFalse(first.exists())
        own = [path for path in files(node) if path not in others]
        self.assertEqual(len(own), 2)
        self.assertTrue(all(other.exists() for other in others))
        self.assertEqual([path for path in folder.iterdir() if path.name.startswith(".")], [])

    def test_two_clients_of_a_node_are_one_model(self) -> None:
        [node] = self.start_nodes(1)
        first = self.attach(node, np.zeros(1000))
        second = self.attach(node, np.ones(1000), wait=False)
        self.step_until(lambda: second.run.ready, "the second has the model")
        for client in self.clients:
            client.array += 2
        self.step_until(lambda: abs(float(first.array[0]) - 2) < 1e-6, "both hold their mean")
        self.publish(first)
        self.publish(second)
        tensors, _ = read(self.checkpoint(node))
        np.testing.assert_allclose(tensors["w"], 2, atol=1e-6)

    def test_pytorch_takes_it_over(self) -> None:
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed (Debian: python3-torch)")
        import gossamer.torch

        def network() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 4))

        [node] = self.start_nodes(1)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = gossamer.torch.attach(model, optimizer, job=JOB, socket=str(node.client_socket), samples_per_step=8)
        self.addCleanup(run.close)

        def train() -> None:
            optimizer.zero_grad()
            model(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()

        for _ in range(20):
            train()
        optimizer.param_groups[0]["lr"] = 0  # from here on only the statistics change
        tool = self.begin(node, "checkpoint", JOB)
        wait_until(lambda: train() or tool.poll() is not None, PATIENCE_S, "it is written")
        tensors, _ = read(files(node)[0])
        self.assertEqual(set(tensors), set(model.state_dict()) - {"1.num_batches_tracked"})
        other = network()
        left = other.load_state_dict({name: torch.tensor(values) for name, values in tensors.items()}, strict=False)
        self.assertEqual(left.unexpected_keys, [])
        for name, parameter in model.named_parameters():
            self.assertTrue(torch.equal(dict(other.named_parameters())[name], parameter), name)
        self.assertTrue(float(other[1].running_var.sub(1).abs().max()) > 0, "the statistics have come along")

    def test_the_library_of_the_format_reads_it(self) -> None:
        """Reads it in a process of its own, whose NumPy and PyTorch may differ from this one's."""
        python = python_with("safetensors", "torch")
        [node] = self.start_nodes(1)
        client = self.attach_big(node, self.model())
        path = self.checkpoint(node)
        program = (
            "import array, importlib, sys\n"
            "from safetensors import safe_open\n"
            "path, framework = sys.argv[1:]\n"
            "values = importlib.import_module(f'safetensors.{framework}').load_file(path)['w']\n"
            "with safe_open(path, framework=framework) as file:\n"
            "    print(file.metadata()['gossamer.job'], values.dtype, tuple(values.shape), file=sys.stderr)\n"
            "sys.stdout.buffer.write(array.array('f', values.tolist()).tobytes())\n"
        )
        for framework, dtype in (("numpy", "float32"), ("torch", "torch.float32")):
            with self.subTest(framework=framework):
                ran = subprocess.run(
                    [python, "-c", program, str(path), framework],
                    capture_output=True,
                    timeout=4 * PATIENCE_S,  # on a busy machine PyTorch takes long to begin
                )
                said = ran.stderr.decode()
                self.assertEqual(ran.returncode, 0, said)
                self.assertEqual(ran.stdout, client.array.tobytes())
                self.assertIn(f"{JOB} {dtype} ({client.array.size},)", said)


class Failing(CheckpointTest):
    def test_killed_while_it_writes_leaves_no_half_file(self) -> None:
        [node] = self.start_nodes(1)
        client = self.attach_big(node, self.model())
        client.array += 1
        for _ in range(10):
            client.step()
        # The client is asked for its model and does not step, so the file is there but not complete.
        self.begin(node, "checkpoint", JOB)
        wait_until(lambda: files(node, ".*.partial"), PATIENCE_S, "it is being written")
        node.kill()
        self.assertEqual(files(node), [])
        node.start()
        self.step_until(lambda: node.job(JOB) is not None and client.run.ready, "the client is back")
        tensors, _ = read(self.checkpoint(node))
        np.testing.assert_array_equal(tensors["w"], client.array)
        self.assertEqual(files(node, ".*.partial"), [])

    def test_a_full_disk_costs_checkpoints_and_nothing_else(self) -> None:
        nodes = self.start_nodes(2, {"checkpoints": {"keep": 1}})
        model = self.model()
        clients = [self.attach_big(node, model.copy(), wait=False) for node in nodes]
        self.step_until(lambda: all(client.run.ready for client in clients), "both run")
        good = self.checkpoint(nodes[0])
        before = good.read_bytes()
        pid = nodes[0].program.pid
        limit = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (model.nbytes // 2, limit[1]))
        said = self.tell(nodes[0], "checkpoint", JOB, status=3)
        self.assertIn("File too large", said)
        self.assertIn("training goes on", nodes[0].log.read_text())
        self.assertEqual(good.read_bytes(), before)
        self.assertEqual(files(nodes[0], ".*.partial"), [])
        self.assertIn("File too large", clients[0].job()["note"])
        self.assert_still_exchanges(clients)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
        self.step_until(lambda: True, "training goes on")
        later = self.checkpoint(nodes[0])
        self.assertEqual(files(nodes[0]), [later])
        self.assertEqual(clients[0].job()["note"], "")

    def test_a_folder_that_is_none_is_told_of(self) -> None:
        [node] = self.start_nodes(1)
        self.attach(node, np.zeros(1000))
        (node.folder / "state" / "checkpoints").write_text("a file where the folder should be")
        said = self.tell(node, "checkpoint", JOB, status=3)
        self.assertIn("Not a directory", said)
        (node.folder / "state" / "checkpoints").unlink()
        self.checkpoint(node)

    def test_says_which_job_there_is_not(self) -> None:
        [node] = self.start_nodes(1)
        self.assertIn('"nobody"', self.tell(node, "checkpoint", "nobody", status=3))

    def test_a_client_that_goes_ends_it(self) -> None:
        """A client that says goodbye hands over the fragments that were due by then, and no later ones."""
        [node] = self.start_nodes(1)
        client = self.attach_big(node, self.model())
        client.array += 1
        for _ in range(10):
            client.step()
        tool = self.begin(node, "checkpoint", JOB)
        wait_until(lambda: files(node, ".*.partial"), PATIENCE_S, "it is being written")
        client.run.close()
        self.clients.remove(client)
        tool.wait(PATIENCE_S)
        self.assertEqual(tool.returncode, 3)
        wait_until(lambda: not files(node, ".*.partial"), PATIENCE_S, "nothing is left")
        self.assertEqual(files(node), [])

    def test_not_finite_models_are_not_written(self) -> None:
        [node] = self.start_nodes(1)
        client = self.attach(node, np.zeros(1000))
        # A checkpoint holds the model of the moment when it began, or of a later one. The attached values are too old
        # for it after this step.
        client.array[3] = np.nan
        client.step()
        self.assertIn("NaN", self.tell(node, "checkpoint", JOB, status=3))
        client.array[3] = 0
        client.step()
        self.checkpoint(node)


LATEST = {"checkpoints": {"restore": "latest"}}


class Restoring(CheckpointTest):
    def trained(self, node: Node, values: np.ndarray, samples: int) -> Path:
        """The checkpoint of a job that has reached these values and has ended."""
        client = self.attach_big(node, values)
        client.run.cursor = f"after {samples}".encode()
        client.step(samples=samples)
        path = self.checkpoint(node)
        self.end(client)
        return path

    def end(self, client: Client) -> None:
        client.run.close()
        self.clients.remove(client)
        wait_until(lambda: client.node.job(JOB) is None, PATIENCE_S, "the job is gone")

    def ready(self, *clients: Client) -> None:
        self.step_until_ready(list(clients))

    def step_until_ready(self, clients: List[Client]) -> None:
        def all_ready() -> bool:
            for client in clients:
                client.run.step(samples=0)
            return all(client.run.ready for client in clients)

        wait_until(all_ready, PATIENCE_S, "the model is there")

    def again(self, node: Node, values: np.ndarray, **options: Any) -> Client:
        client = self.attach_big(node, values, wait=False, **options)
        self.ready(client)
        return client

    def damage(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[-10] ^= 1
        path.write_bytes(content)

    def test_a_cluster_that_was_ended_goes_on_where_the_furthest_was(self) -> None:
        # The furthest node has the larger id, because of two nodes that are equally far the one with the smaller id
        # begins.
        nodes = sorted(self.start_nodes(2, LATEST), key=lambda node: str(node.status()["node"]))
        model = self.model()
        self.trained(nodes[0], model + 5, 1000)
        wait_until(lambda: nodes[1].job(JOB) is None, PATIENCE_S, "the other runs nothing")
        self.trained(nodes[1], model + 7, 2000)
        for node in nodes:
            node.kill()
        for node in nodes:
            node.start()
        self.wait_for_links(nodes)
        # The furthest comes first: a client that comes a moment before it would begin with its own model.
        clients = [self.attach_big(node, np.zeros_like(model), wait=False) for node in reversed(nodes)]
        self.ready(*clients)
        for client in clients:
            np.testing.assert_array_equal(client.array, model + 7)
            self.assertEqual(client.run.cursor, b"after 2000")
            self.assertGreaterEqual(client.run.clock, 2000)
        clients[0].step(samples=10)
        self.step_until(lambda: clients[0].job()["clock"] >= 2010, "the clock goes on", [clients[0]])
        self.assertLess(clients[0].job()["clock"], 2010 + 2000)
        self.assert_still_exchanges(clients)

    def test_settings_come_back_where_the_program_gives_no_others(self) -> None:
        [node] = self.start_nodes(1, LATEST)
        client = self.attach_big(node, self.model(), settings={"codec": "q8", "range": 5})
        self.tell(node, "job", "set", JOB, "period_ms=7", "codec=q4")
        _, metadata = read(self.checkpoint(node))
        self.assertEqual(metadata["gossamer.settings"], "codec=q4 period_ms=7 range=5")
        self.end(client)
        again = self.again(node, self.model(), settings={"codec": "f32"})
        self.assertEqual(again.job()["settings"]["values"], {"codec": "f32", "period_ms": "7", "range": "5"})

    def test_settings_that_this_version_does_not_know_keep_it_out_and_lose_nothing(self) -> None:
        [node] = self.start_nodes(1, LATEST)
        client = self.attach_big(node, self.model(), settings={"codec": "q4", "range": 5})
        path = self.checkpoint(node)
        self.end(client)
        path.write_bytes(path.read_bytes().replace(b"codec=q4", b"codec=q9"))
        again = self.again(node, self.model(), settings={"range": 6, "clip": 2})
        self.assertEqual(again.job()["settings"]["values"], {"codec": "q9", "range": "6", "clip": "2"})
        self.assertIn("q9", again.job()["note"])
        self.tell(node, "job", "set", JOB, "codec=")
        self.assertEqual(again.job()["note"], "")
        self.end(again)
        path.write_bytes(path.read_bytes().replace(b"codec=q9", b"a=1 a=22"))
        again = self.again(node, self.model(), settings={"clip": 3})
        self.assertEqual(again.job()["settings"]["values"]["clip"], "3")

    def test_a_damaged_one_is_passed_over_for_the_one_before(self) -> None:
        [node] = self.start_nodes(1, LATEST)
        model = self.model()
        older = self.trained(node, model, 1000)
        client = self.again(node, np.zeros_like(model))
        np.testing.assert_array_equal(client.array, model)
        client.array += 1
        client.step(samples=500)
        newer = self.checkpoint(node)
        self.end(client)
        self.damage(newer)
        client = self.again(node, np.zeros_like(model))
        np.testing.assert_array_equal(client.array, model)
        self.assertIn("is damaged", node.log.read_text())
        self.end(client)
        self.damage(older)
        client = self.again(node, np.ones_like(model))
        np.testing.assert_array_equal(client.array, 1)
        self.assertIn("begins with this client's model", node.log.read_text())

    def test_what_does_not_fit_is_told_of_and_left(self) -> None:
        [node] = self.start_nodes(1, LATEST)
        path = self.trained(node, self.model(), 1000)
        client = self.attach(node, np.full(500, 3), wait=False)
        self.ready(client)
        np.testing.assert_array_equal(client.array, 3)
        self.assertIn("another layout", node.log.read_text())
        self.end(client)
        path.write_bytes(b"garbage that is no checkpoint at all")
        client = self.again(node, self.model() + 1)
        np.testing.assert_array_equal(client.array, self.model() + 1)
        self.assertIn("no safetensors file", node.log.read_text())

    def test_any_number_of_files_that_do_not_fit_is_passed_over(self) -> None:
        [node] = self.start_nodes(1, LATEST)
        model = self.model()
        path = self.trained(node, model, 1000)
        for number in range(2000, 2020):
            (path.parent / f"{number:020}-{path.name[21:]}").write_bytes(b"no checkpoint at all")
        client = self.again(node, np.zeros_like(model))
        np.testing.assert_array_equal(client.array, model)
        log = node.log.read_text()
        self.assertEqual(log.count("will not begin with this checkpoint"), 4)
        self.assertIn("nor with 16 other files", log)

    def test_a_program_that_has_come_further_keeps_its_own(self) -> None:
        [node] = self.start_nodes(1, LATEST)
        model = self.model()
        self.trained(node, model, 1000)
        client = self.again(node, model + 9, initial_clock=5000)
        np.testing.assert_array_equal(client.array, model + 9)

    def test_own_checkpoints_are_left_unless_configured(self) -> None:
        [node] = self.start_nodes(1)
        model = self.model()
        self.trained(node, model, 1000)
        client = self.again(node, model + 9)
        np.testing.assert_array_equal(client.array, model + 9)

    def test_an_imported_one_is_taken_over_once(self) -> None:
        nodes = self.start_nodes(2)
        model = self.model()
        path = self.trained(nodes[0], model, 1000)
        client = self.again(nodes[1], np.zeros_like(model))
        self.assertIn("not overwritten", self.tell(nodes[1], "import", str(path), "--job", JOB, status=3))
        self.end(client)
        self.tell(nodes[1], "import", str(path), "--job", JOB)
        client = self.again(nodes[1], np.zeros_like(model))
        np.testing.assert_array_equal(client.array, model)
        self.assertEqual(client.run.cursor, b"after 1000")
        joiner = self.again(nodes[0], np.zeros_like(model))
        np.testing.assert_array_equal(joiner.array, client.array)
        self.end(joiner)
        self.end(client)
        wait_until(lambda: files(nodes[1], "*-import.safetensors"), PATIENCE_S, "it is marked as taken")
        self.assertEqual(files(nodes[1], "import.safetensors"), [])
        client = self.again(nodes[1], model + 2)
        np.testing.assert_array_equal(client.array, model + 2)

    def test_no_job_begins_with_nan(self) -> None:
        [node] = self.start_nodes(1)
        for bad in (np.nan, np.inf):
            weights = np.zeros(1_500_000, np.float32)  # larger than one read
            weights[-1] = bad
            tensors = {"a": (0, 4_000_000), "w": (4_000_000, weights.nbytes)}
            entries = {
                name: {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}
                for name, (begin, end) in tensors.items()
            }
            header = json.dumps(entries).encode()
            file = self.folder / "bad.safetensors"
            file.write_bytes(len(header).to_bytes(8, "little") + header + weights.tobytes())
            said = self.tell(node, "import", str(file), "--job", JOB, status=3)
            self.assertIn("tensor w holds NaN or infinity", said)
            self.assertEqual(files(node, "*import*"), [])

    def test_an_import_waits_while_others_run_the_job(self) -> None:
        nodes = self.start_nodes(2)
        model = self.model()
        path = self.trained(nodes[0], model, 1000)
        running = self.again(nodes[1], model + 4)
        self.tell(nodes[0], "import", str(path), "--job", JOB)
        joiner = self.attach_big(nodes[0], np.zeros_like(model), wait=False)
        self.ready(running, joiner)
        np.testing.assert_array_equal(joiner.array, model + 4)
        self.assertIn("was not taken over", nodes[0].log.read_text())
        self.assertEqual(len(files(nodes[0], "import.safetensors")), 1)

    def test_weights_of_another_program(self) -> None:
        """The tensors are in any order, among others; the operator gives the clock."""
        [node] = self.start_nodes(1)
        weights = np.arange(1000, dtype=np.float32)
        entries = {
            "w": {"dtype": "F32", "shape": [1000], "data_offsets": [16, 4016]},
            "count": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
        }
        header = json.dumps(entries).encode()
        file = self.folder / "foreign.safetensors"
        file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16) + weights.tobytes())
        said = self.tell(node, "import", str(file), "--job", JOB, "--clock", "123")
        self.assertIn("Left out 1 tensors", said)
        for clock in ("-1", str(2**53 + 1), str(2**64 - 1)):
            said = self.tell(node, "import", str(file), "--job", JOB, f"--clock={clock}", status=3)
            self.assertIn("no model has seen more than 9007199254740992 samples", said)
        client = self.attach(node, np.zeros(1000), wait=False)
        self.ready(client)
        np.testing.assert_array_equal(client.array, weights)
        self.assertGreaterEqual(client.job()["clock"], 123)
        self.assertGreaterEqual(client.run.clock, 123)

    def test_an_import_that_cannot_begin_the_job_is_told_to_the_program(self) -> None:
        [node] = self.start_nodes(1)
        file = self.folder / "other.safetensors"
        weights = np.arange(1000, dtype=np.float32)
        for tensors, reason in (
            ({"renamed": weights}, "has no tensor w;"),
            ({"w": weights.reshape(20, 50)}, "tensor w is 20 x 50, in the model it is 1000;"),
        ):
            write(file, tensors)
            self.tell(node, "import", str(file), "--job", JOB)
            client = self.attach(node, np.full(1000, 3), wait=False)
            self.ready(client)
            self.step_until(lambda: client.run.info().message != "", "the program is told")
            told = client.run.info().message
            self.assertIn(f"the job has not begun with the imported model: {reason}", told)
            self.assertTrue(told.endswith("import a file that fits"), told)
            self.assertEqual(client.job()["note"], told)
            np.testing.assert_array_equal(client.array, 3)
            self.end(client)
            files(node, "import.safetensors")[0].unlink()
        write(file, {"w": weights})
        self.tell(node, "import", str(file), "--job", JOB)
        client = self.attach(node, np.zeros(1000), wait=False)
        self.ready(client)
        np.testing.assert_array_equal(client.array, weights)
        self.assertEqual(client.job()["note"], "")

    def test_weights_of_another_program_begin_a_job_that_shares_second_moments(self) -> None:
        """The file has no moments: they begin with zeros, and the optimizer keeps what it learns in its first step."""
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed (Debian: python3-torch)")
        import gossamer.torch

        [node] = self.start_nodes(1)
        model = torch.nn.Linear(20, 4)
        weights = {name: np.full(tuple(values.shape), 0.5) for name, values in model.state_dict().items()}
        file = self.folder / "weights.safetensors"
        write(file, weights)
        self.tell(node, "import", str(file), "--job", JOB, "--clock", "1000")
        optimizer = torch.optim.Adam(model.parameters(), lr=0)
        run = gossamer.torch.attach(
            model, optimizer, job=JOB, socket=str(node.client_socket), samples_per_step=8, share_second_moments=True
        )
        self.addCleanup(run.close)
        self.assertEqual({float(values) for one in model.parameters() for values in one.flatten()}, {0.5})
        self.assertIn("begin with zeros", node.log.read_text())

        def train() -> None:
            optimizer.zero_grad()
            model(torch.ones(8, 20)).square().mean().backward()
            optimizer.step()

        train()
        state = optimizer.state[model.bias]
        torch.testing.assert_close(state["exp_avg_sq"], model.bias.grad.square() * 1e-3)
        tool = self.begin(node, "checkpoint", JOB)
        wait_until(lambda: train() or tool.poll() is not None, PATIENCE_S, "it is written")
        tensors, metadata = read(files(node, "*[0-9a-f].safetensors")[-1])
        self.assertEqual(set(tensors), {*weights, *(name + ".root_second_moment" for name in weights)})
        self.assertGreater(int(metadata["gossamer.clock"]), 1000)


class Exporting(CheckpointTest):
    def test_one_and_the_mean_of_several(self) -> None:
        nodes = self.start_nodes(1)
        model = self.model()
        client = self.attach_big(nodes[0], model.copy())
        exported = []
        for number in range(3):
            client.array[:] = model + number * number
            client.step(samples=100)
            exported.append(str(self.folder / f"{number}.safetensors"))
            self.tell(nodes[0], "export", JOB, exported[-1])
            np.testing.assert_array_equal(read(Path(exported[-1]))[0]["w"], client.array)
        nodes[0].stop()
        output = self.folder / "mean.safetensors"
        self.tell(nodes[0], "export", "--mean", *exported, "--output", str(output))
        tensors, metadata = read(output)
        np.testing.assert_allclose(tensors["w"], model + np.float32(5 / 3), rtol=1e-6, atol=1e-6)
        self.assertEqual(metadata["gossamer.replicas"], "3")
        self.assertEqual(metadata["gossamer.clock"], read(Path(exported[-1]))[1]["gossamer.clock"])

    def test_what_is_no_file_is_not_replaced_by_one(self) -> None:
        [node] = self.start_nodes(1)
        self.attach_big(node, self.model()).step(samples=100)
        for made, there in ((os.mkfifo, stat.S_ISFIFO), (os.mkdir, stat.S_ISDIR)):
            path = self.folder / made.__name__
            made(path)
            self.assertIn("is no ordinary file", self.tell(node, "export", JOB, str(path), status=3))
            self.assertTrue(there(path.lstat().st_mode))
        target, link = self.folder / "target", self.folder / "link"
        link.symlink_to(target)
        self.tell(node, "export", JOB, str(link))
        self.assertTrue(link.is_symlink())
        self.assertIn("w", read(target)[0])

    def test_files_that_have_no_mean(self) -> None:
        [node] = self.start_nodes(1)
        self.attach(node, np.zeros(1000))
        good = self.checkpoint(node)
        output = self.folder / "mean.safetensors"

        def refused(other: Path) -> str:
            return self.tell(node, "export", "--mean", str(good), str(other), "--output", str(output), status=3)

        other = self.folder / "other"
        other.write_bytes(b"nothing of the kind, but long enough")
        self.assertIn("no safetensors file", refused(other))
        header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        other.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        self.assertIn("same tensors", refused(other))
        self.assertIn("No such file", refused(self.folder / "none"))
        damaged = self.folder / "damaged"
        damaged.write_bytes(good.read_bytes()[:-1] + b"\x01")
        self.assertIn("is damaged", refused(damaged))
        self.assertFalse(output.exists())
        self.assertIn("--mean", self.tell(node, "export", status=2))
        self.assertIn("job's name", self.tell(node, "import", str(good), "--job", "../x", status=2))


if __name__ == "__main__":
    unittest.main()
