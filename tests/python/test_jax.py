"""gossamer.jax.attach() with a fake daemon. Skipped, and saying so, without JAX."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import unittest
import warnings
from unittest import mock

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as error:
    print(f"SKIPPED: JAX cannot be imported ({error}); tools/test --frameworks installs it", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

import gossamer.jax as gossamer
import skewed
from contract_daemon import JOINING, NOWHERE, RUNNING, STATE, ContractDaemon, eventually


def model():
    return {
        "dense": {"kernel": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "bias": jnp.zeros(2, jnp.bfloat16)},
        "steps": jnp.zeros((), jnp.int32),
    }


def alone(params, **options):
    return gossamer.attach(params, job="test", socket=NOWHERE, wait=False, **options)


class Training(unittest.TestCase):
    def test_a_correction_makes_new_arrays_of_what_it_changes(self):
        params = model()
        with ContractDaemon() as daemon, gossamer.attach(params, job="test", socket=daemon.path) as run:
            client = daemon.client()
            self.assertEqual(client.publication(8), [0, 0, 0, 1, 2, 3, 4, 5])
            trained = {**params, "steps": params["steps"] + 1}
            trained["dense"] = {**params["dense"], "kernel": params["dense"]["kernel"] + 1}
            client.make_due([0, 1, 10, 20, 30, 40, 50, 60])
            corrected = run.step(trained, samples=32)
            np.testing.assert_array_equal(corrected["dense"]["kernel"], [[11, 22, 33], [44, 55, 66]])
            np.testing.assert_array_equal(corrected["dense"]["bias"].astype(jnp.float32), [0, 1])
            self.assertIs(corrected["steps"], trained["steps"])
            self.assertEqual(client.publication(8), [0, 1, 11, 22, 33, 44, 55, 66])
            np.testing.assert_array_equal(trained["dense"]["kernel"], [[1, 2, 3], [4, 5, 6]])  # unchanged
            self.assertEqual(run.clock, 32)

    def test_several_corrections_before_anybody_asks_for_the_model(self):
        params = model()
        with ContractDaemon() as daemon, gossamer.attach(params, job="test", socket=daemon.path) as run:
            client = daemon.client()
            ends = threading.Thread(target=lambda: run.finish(timeout_s=60))
            ends.start()
            for correction in range(3):
                client.make_due([correction, 0, 10, 20, 30, 40, 50, 60])
                self.assertTrue(eventually(lambda: not client.is_due()))
            client.make_due(None)
            self.assertTrue(eventually(lambda: not client.is_due()))
            self.assertEqual(client.publication(8), [3, 0, 30, 61, 92, 123, 154, 185])
            client.close()
            ends.join()
            np.testing.assert_array_equal(run.params["dense"]["kernel"], [[30, 61, 92], [123, 154, 185]])

    def test_with_nothing_due_the_model_is_the_one_given(self):
        params = model()
        with ContractDaemon() as daemon, gossamer.attach(params, job="test", socket=daemon.path) as run:
            daemon.client()
            params = run.params
            self.assertIs(run.step(params), params)

    def test_a_step_that_is_traced_is_refused(self):
        params = model()
        with alone(params) as run:
            with self.assertRaisesRegex(gossamer.GossamerError, "inside a function that JAX traces: call it outside"):
                jax.jit(run.step)(params)
            self.assertEqual(run.info().steps, 0)

    def test_steps_without_training_are_told_once(self):
        params = model()
        with alone(params) as run, self.assertWarnsRegex(gossamer.GossamerWarning, "given the model of the step before"):
            for _ in range(60):
                run.step(params)
        with alone(params) as run, warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(200):
                run.step(params, 0)
                if step % 40 == 0:
                    params = {**params, "steps": params["steps"] + 1}
                run.step(params)

    def test_a_program_that_drops_what_step_returns_is_told(self):
        def warned(keeps, **options):
            with ContractDaemon() as daemon, gossamer.attach(
                {"w": jnp.zeros(64)}, job="test", socket=daemon.path, **options
            ) as run:
                client = daemon.client()
                params = run.params
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    for step in range(200):
                        params = {"w": params["w"] - 0.1 * (params["w"] - 1)}
                        if step % 10 == 0:  # other replicas pull towards 3
                            client.make_due((0.5 * (3 - np.asarray(params["w"]))).tolist())
                        returned = run.step(params)
                        params = returned if keeps else params
            return [str(one.message) for one in caught]

        for correct_drift in (False, True):
            self.assertEqual(warned(True, correct_drift=correct_drift), [])
            (message,) = warned(False, correct_drift=correct_drift)
            self.assertIn("has none of the corrections of the job 'test'", message)

    def test_a_publication_alone_changes_nothing(self):
        params = model()
        with ContractDaemon() as daemon, gossamer.attach(params, job="test", socket=daemon.path) as run:
            client = daemon.client()
            trained = jax.tree_util.tree_map(lambda x: x + 1, run.params)
            client.make_due(None)
            self.assertIs(run.step(trained), trained)
            self.assertEqual(client.publication(8), [1, 1, 1, 2, 3, 4, 5, 6])

    def test_a_joiner_takes_over_the_model(self):
        for asks in (True, False):
            with self.subTest(asks=asks), ContractDaemon(state=JOINING) as daemon:

                def pull():
                    client = daemon.client()
                    client.make_due([1, 2, 3, 4, 5, 6, 7, 8], replace=True)
                    eventually(lambda: not client.is_due())
                    client.set_u32(STATE, RUNNING)

                puller = threading.Thread(target=pull)
                puller.start()
                params = model()
                with gossamer.attach(params, job="test", socket=daemon.path) as run:
                    params = run.params if asks else run.step(params)
                    np.testing.assert_array_equal(params["dense"]["kernel"], [[3, 4, 5], [6, 7, 8]])
                    np.testing.assert_array_equal(params["dense"]["bias"].astype(jnp.float32), [1, 2])
                puller.join()

    def test_what_comes_at_the_end_is_in_params(self):
        with ContractDaemon() as daemon:
            run = gossamer.attach([jnp.zeros(2)], job="test", socket=daemon.path)
            daemon.client().make_due([1, 2])
            run.close()
            np.testing.assert_array_equal(run.params[0], [1, 2])

    def test_fragments_of_a_large_leaf(self):
        """Fragments of 256 elements each, of two leaves that begin anywhere."""
        params = [jnp.arange(300.0), jnp.arange(1000.0)]
        with ContractDaemon() as daemon, gossamer.attach(
            params, job="test", socket=daemon.path, fragment_elements=256
        ) as run:
            client = daemon.client()
            params = run.params
            client.make_due([1] * 256, fragment=1)
            params = run.step(params)
            expected = np.concatenate([np.arange(300.0), np.arange(1000.0)])
            expected[256:512] += 1
            np.testing.assert_array_equal(np.concatenate(params), expected)
            self.assertEqual(client.publication(256, fragment=1), list(expected[256:512]))


class DriftCorrection(unittest.TestCase):
    def test_nodes_that_see_different_data_come_to_the_optimum_of_all(self):
        @contextlib.contextmanager
        def node(inputs, outputs, options):
            params = {"w": jnp.zeros((skewed.INPUTS, 1)), "steps": jnp.zeros((), jnp.int32)}

            @jax.jit
            def trained(params):
                gradient = jax.grad(lambda w: ((inputs @ w - outputs) ** 2).mean())(params["w"])
                return {"w": params["w"] - skewed.RATE * gradient, "steps": params["steps"] + 1}

            def step():
                nonlocal params
                params = run.step(trained(params))

            with gossamer.attach(params, **options) as run:
                yield step

        skewed.check(self, node)

    def test_small_types_are_refused(self):
        with self.assertRaisesRegex(gossamer.GossamerError, "correct_drift adds too little .*bfloat16.*dense.bias"):
            alone(model(), correct_drift=True)

    def test_whoever_does_not_has_another_layout(self):
        layouts = set()
        for correct_drift in (False, True):
            with alone([jnp.zeros(3)], correct_drift=correct_drift) as run:
                layouts.add(run.info().layout_hash)
        self.assertEqual(len(layouts), 2)


class OnADevice(unittest.TestCase):
    """The processor counts as another device, whose computations are done when the test says so."""

    def setUp(self):
        self.done = False

        def to_host(value):
            self.assertTrue(self.done or not self.stepping, "waited for the device")
            return np.asarray(value)

        self.stepping = False
        self.enterContext(
            mock.patch.multiple(
                gossamer,
                _is_on_cpu=lambda value: False,
                _is_on_one_device=lambda value: True,
                _is_ready=lambda value: self.done,
                _to_host=to_host,
            )
        )

    def step(self, run, params, times=1):
        for _ in range(times):
            self.stepping = True
            params = run.step(params)
            self.stepping = False
        return params

    def test_a_step_does_not_wait_and_nothing_is_lost(self):
        with ContractDaemon() as daemon, gossamer.attach(model(), job="test", socket=daemon.path) as run:
            client = daemon.client()
            params = run.params
            # The correction is for the bias, 0 and 0, and the kernel, 0 to 5.
            client.make_due([1, 2, 10, 10, 10, 10, 10, 10])
            self.assertIs(self.step(run, params), params)
            for _ in range(3):  # training goes on; the fragment stays due
                params = jax.tree_util.tree_map(lambda x: x + 1, params)
                self.assertIs(self.step(run, params), params)
                self.assertTrue(client.is_due())
            self.done = True
            params = self.step(run, params, 2)
            self.assertFalse(client.is_due())
            # The publication has the first step's values and the correction; the model also has the three steps since.
            self.assertEqual(client.publication(8), [1, 2, 10, 11, 12, 13, 14, 15])
            np.testing.assert_array_equal(params["dense"]["kernel"], [[13, 14, 15], [16, 17, 18]])
            np.testing.assert_array_equal(params["dense"]["bias"].astype(jnp.float32), [4, 5])
            self.assertEqual(params["dense"]["bias"].dtype, jnp.bfloat16)
            self.assertEqual(int(params["steps"]), 3)
            client.make_due(None)
            params = self.step(run, params, 3)
            self.assertEqual(client.publication(8), [4, 5, 13, 14, 15, 16, 17, 18])

    def test_a_publication_without_a_correction_is_fresh_each_time(self):
        self.done = True
        with ContractDaemon() as daemon, gossamer.attach([jnp.zeros(2)], job="test", socket=daemon.path) as run:
            client = daemon.client()
            for round in range(1, 4):
                client.make_due(None)
                params = [jnp.full(2, float(round))]
                self.assertIs(self.step(run, params, 3), params)
                self.assertEqual(client.publication(2), [round, round])

    def test_values_to_take_over_are_not_waited_for(self):
        with ContractDaemon() as daemon, gossamer.attach([jnp.zeros(2)], job="test", socket=daemon.path) as run:
            client = daemon.client()
            client.make_due(None)
            params = self.step(run, [jnp.ones(2)])  # a snapshot is under way
            client.make_due([5, 6], replace=True)
            params = self.step(run, params)
            np.testing.assert_array_equal(params[0], [5, 6])
            self.assertEqual(client.publication(2), [5, 6])
            self.done = True
            client.make_due([1, 1])  # must not be published with the earlier snapshot
            params = self.step(run, params, 3)
            self.assertEqual(client.publication(2), [6, 7])
            np.testing.assert_array_equal(params[0], [6, 7])

    def test_closing_takes_the_values_of_the_last_step(self):
        with ContractDaemon() as daemon:
            run = gossamer.attach([jnp.zeros(2)], job="test", socket=daemon.path)
            client = daemon.client()
            client.make_due([1, 2])
            self.step(run, [jnp.ones(2)])
            self.step(run, [jnp.full(2, 3.0)])
            run.wait()
            self.assertEqual(client.publication(2), [4, 5])
            np.testing.assert_array_equal(run.params[0], [4, 5])
            client.make_due([10, 10])
            self.step(run, run.params)
            run.close()
            np.testing.assert_array_equal(run.params[0], [14, 15])

    def test_fragments_take_turns_within_the_bound(self):
        """Six fragments of 256 elements, of which at most one is on its way at a time. All of them come, again and
        again."""
        self.done = True
        params = [jnp.zeros(300), jnp.zeros((), jnp.int32), jnp.zeros(700), jnp.zeros(536)]
        with ContractDaemon() as daemon, gossamer.attach(
            params, job="test", socket=daemon.path, fragment_elements=256, step_budget_bytes=1024
        ) as run:
            client = daemon.client()
            params = run.params
            for round in range(1, 4):
                for fragment in range(6):
                    client.make_due([1] * 256, fragment=fragment)
                steps = 0
                while any(client.is_due(fragment) for fragment in range(6)):
                    params = self.step(run, params)
                    client.make_due(None, fragment=0)  # the first is due again at once, and must not starve the others
                    steps += 1
                    self.assertLess(steps, 50)
                    if not any(client.is_due(fragment) for fragment in range(1, 6)):
                        break
                flat = np.concatenate([params[0], params[2], params[3]])
                np.testing.assert_array_equal(flat[256:], round)
            self.assertEqual(client.publication(256, fragment=5), [3] * 256)

    def test_corrections_of_bfloat16_are_right_in_the_mean(self):
        self.done = True
        spacing = 2.0**-7
        with ContractDaemon() as daemon, gossamer.attach(
            [jnp.ones(20000, jnp.bfloat16)], job="test", socket=daemon.path, fragment_elements=1 << 15
        ) as run:
            client = daemon.client()
            params = run.params
            for _ in range(10):
                client.make_due([spacing / 100] * 20000)
                params = self.step(run, params, 3)
                self.assertFalse(client.is_due())
            mean = float(params[0].astype(jnp.float32).mean())
            self.assertAlmostEqual((mean - 1) / spacing, 0.1, delta=6 * 0.0021)  # for the tolerance see below

    def test_what_fails_inside_a_step_is_raised_and_the_fragment_stays_due(self):
        self.done = True
        with ContractDaemon() as daemon, gossamer.attach([jnp.zeros(2)], job="test", socket=daemon.path) as run:
            client = daemon.client()
            params = run.params
            deleted = [params[0] + 1]
            client.make_due([1, 2])
            deleted[0].delete()
            with self.assertRaisesRegex(RuntimeError, "deleted"):
                self.step(run, deleted)
            self.assertTrue(client.is_due())
            params = self.step(run, params, 3)
            np.testing.assert_array_equal(params[0], [1, 2])

    def test_an_infinite_snapshot_does_not_make_the_model_worse(self):
        with ContractDaemon() as daemon, gossamer.attach([jnp.zeros(2)], job="test", socket=daemon.path) as run:
            client = daemon.client()
            client.make_due([1, 1])
            self.step(run, [jnp.array([jnp.inf, 2.0])])
            self.done = True
            params = self.step(run, [jnp.array([0.0, 2.0])], 2)
            self.assertFalse(client.is_due())
            np.testing.assert_array_equal(params[0], [0, 3])


# The program of one of two processes that hold one model and train it on the data of both. Argument 1 is the number of
# the process. Process 0 gets a correction before it trains.
PROCESS = """
import sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
import gossamer.jax as gossamer
process, port, socket = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
mesh = jax.make_mesh((2,), ("data",))
everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
ones = lambda sharding, *shape: jax.make_array_from_callback(shape, sharding, lambda index: np.ones(shape, np.float32)[index])
update = jax.jit(lambda w, x: w + x.sum(axis=0), out_shardings=everywhere)
try:
    gossamer.attach({"w": ones(split, 4)}, job="shards", socket=socket)
except gossamer.GossamerError as error:
    assert "spread over several processes" in str(error), error
with gossamer.attach({"w": ones(everywhere, 3)}, job="test", socket=socket) as run:
    params = run.params
    while process == 0 and float(params["w"].addressable_data(0)[0]) == 1:
        params = run.step(params, samples=0)
    params = run.step({"w": update(params["w"], ones(split, 2, 3))}, samples=16)
    print(np.asarray(params["w"]).tolist(), params["w"].sharding == everywhere, flush=True)
"""


class SeveralProcesses(unittest.TestCase):
    def test_each_averages_its_replica_of_what_is_everywhere(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        with ContractDaemon() as daemon:
            environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", PROCESS, str(process), port, daemon.path], env=environment,
                    stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                for process in range(2)
            ]
            for process in processes:
                self.addCleanup(process.__exit__, None, None, None)
                self.addCleanup(process.kill)
            for client in (daemon.client(0), daemon.client(1)):  # the first of them may be either
                client.make_due([0.5, 0.0, 0.25])
            said = [process.communicate(timeout=100)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0])
        self.assertEqual([text.splitlines()[-1] for text in said], 2 * ["[3.5, 3.0, 3.25] True"])


class Rounding(unittest.TestCase):
    def test_corrections_of_bfloat16_are_right_in_the_mean(self):
        """Each correction is a hundredth of the distance between two neighbours, and would be lost by rounding to the
        nearest."""
        values = jnp.ones(20000, jnp.bfloat16)
        spacing = 2.0**-7
        with ContractDaemon() as daemon, gossamer.attach(
            [values], job="test", socket=daemon.path, fragment_elements=1 << 15
        ) as run:
            client = daemon.client()
            params = run.params
            for _ in range(10):
                client.make_due([spacing / 100] * values.size)
                params = run.step(params)
            mean = float(params[0].astype(jnp.float32).mean())
            # Standard deviation of the mean: sqrt(0.1 * 0.9 / 20000) * spacing = 0.0021 * spacing.
            self.assertAlmostEqual((mean - 1) / spacing, 0.1, delta=6 * 0.0021)


class Refusals(unittest.TestCase):
    def assert_refused(self, params, pattern, **options):
        with self.assertRaisesRegex(gossamer.GossamerError, pattern):
            alone(params, **options)

    def test_leaves(self):
        self.assert_refused({"w": np.zeros(2)}, "leaf 'w' is a ndarray, not a JAX array")
        self.assert_refused({"a": {"b": jnp.zeros(2, jnp.float16)}}, "leaf 'a.b' has the dtype float16")
        self.assert_refused({"w": jnp.zeros(2, jnp.int32)}, "has the dtype int32", roles={"w": "param"})
        self.assert_refused({"w": jnp.zeros(2)}, "leaves that do not exist: v", roles={"v": "local"})
        self.assert_refused({"a.b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}}, "same name")
        self.assert_refused({}, "nothing to train")

    def test_another_model_at_a_step(self):
        params = {"w": jnp.zeros(2)}
        with alone(params) as run:
            for other, pattern in (
                ({"v": jnp.zeros(2)}, "another structure"),
                ({"w": jnp.zeros(3)}, r"leaf 'w' is float32\[3\], but float32\[2\]"),
                ({"w": jnp.zeros(2, jnp.bfloat16)}, "is bfloat16"),
            ):
                with self.assertRaisesRegex(gossamer.GossamerError, pattern):
                    run.step(other)
            self.assertIs(run.step(params), params)

    def test_what_fails_inside_a_step_is_raised_and_the_fragment_stays_due(self):
        params = [jnp.zeros(2)]
        with ContractDaemon() as daemon, gossamer.attach(params, job="test", socket=daemon.path) as run:
            client = daemon.client()
            params = run.params
            deleted = [params[0] + 1]
            client.make_due([1, 2])
            deleted[0].delete()
            with self.assertRaisesRegex(RuntimeError, "deleted"):
                run.step(deleted)
            self.assertTrue(client.is_due())
            params = run.step(params)
            np.testing.assert_array_equal(params[0], [1, 2])


if __name__ == "__main__":
    unittest.main()
