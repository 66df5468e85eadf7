"""gossamer.keras.GossamerCallback with a fake daemon. Skipped, and saying so, without Keras and one of its backends."""

import contextlib
import os
import sys
import threading
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for module in ("sklearn", "matplotlib"):  # Keras looks for these; the system's are made for another NumPy
    sys.modules.setdefault(module, None)
for backend in [os.environ["KERAS_BACKEND"]] if "KERAS_BACKEND" in os.environ else ["jax", "tensorflow", "torch"]:
    try:
        __import__(backend)
        os.environ["KERAS_BACKEND"] = backend
        import keras
    except Exception as error:  # a backend that is too old may raise anything
        reason = f"{backend}: {error}"
    else:
        break
else:
    print(f"SKIPPED: Keras cannot be imported ({reason}); tools/test --frameworks installs JAX and Keras", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

import numpy as np

import gossamer.keras as gossamer
import skewed
from contract_daemon import JOINING, NOWHERE, RUNNING, STATE, ContractDaemon, eventually

ELEMENTS = 3 * 4 + 4 + 4 * 4 + 4 * 2 + 2


def a_model(rate=0.0):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def fit(model, callbacks, batches=4):
    x = np.random.default_rng(1).random((8 * batches, 3), np.float32)
    model.fit(x, np.ones((8 * batches, 2)), batch_size=8, verbose=0, shuffle=False, callbacks=callbacks)


class AtBatch(keras.callbacks.Callback):
    """Acts before Gossamer's callback does."""

    def __init__(self, actions):
        super().__init__()
        self.actions = actions

    def on_train_batch_begin(self, batch, logs=None):
        if batch in self.actions:
            self.actions[batch]()


class Training(unittest.TestCase):
    def test_corrections_reach_the_model_that_trains(self):
        model = a_model()
        names = [v.name for v in model.weights if str(v.dtype).startswith("float")]
        self.assertEqual(names[:4], ["kernel", "bias", "gamma", "beta"])
        before = [np.array(w) for w in model.get_weights()]
        with ContractDaemon() as daemon:
            ours = gossamer.GossamerCallback(job="test", samples_per_step=8, socket=daemon.path)
            seen = {}

            def later():
                seen["kernel"] = np.array(keras.ops.convert_to_numpy(at.model.weights[0].value))
                seen["published"] = daemon.client().publication(ELEMENTS)
                daemon.client().make_due([0.25] * ELEMENTS)

            at = AtBatch({1: lambda: daemon.client().make_due([0.5] * ELEMENTS), 3: later})
            fit(model, [at, ours])
            self.assertTrue(ours.run.closed)
            np.testing.assert_allclose(seen["kernel"], before[0] + 0.5, rtol=1e-6)
            np.testing.assert_allclose(seen["published"][:12], seen["kernel"].ravel())
            np.testing.assert_allclose(model.get_weights()[0], before[0] + 0.75, rtol=1e-6)
            moving_mean = next(v for v in model.weights if v.name == "moving_mean")
            self.assertTrue(np.all(np.array(keras.ops.convert_to_numpy(moving_mean.value)) > 0.3))  # a buffer

    def test_what_is_trained_is_published_and_counted(self):
        model = a_model(rate=0.1)
        clocks = []
        with ContractDaemon() as daemon:
            ours = gossamer.GossamerCallback(job="test", samples_per_step=8, socket=daemon.path)
            at = AtBatch({3: lambda: (clocks.append(ours.run.clock), daemon.client().make_due(None))})
            initial = model.get_weights()[0]
            fit(model, [at, ours])
            self.assertEqual(clocks, [24])
            published = daemon.client().publication(12)
            np.testing.assert_allclose(published, model.get_weights()[0].ravel())
            self.assertFalse(np.allclose(published, initial.ravel()))

    def test_a_joiner_takes_over_the_model(self):
        def pull():
            client = daemon.client()
            client.make_due(list(range(256)), fragment=0, replace=True)
            eventually(lambda: not client.is_due())
            client.set_u32(STATE, RUNNING)

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20)])  # it has more than one fragment
        model.compile(keras.optimizers.SGD(0.0), "mse")
        kept = model.get_weights()[0].ravel()[256:]
        with ContractDaemon(state=JOINING) as daemon:
            puller = threading.Thread(target=pull)
            puller.start()
            ours = gossamer.GossamerCallback(job="test", socket=daemon.path, fragment_elements=256)
            model.fit(np.ones((8, 30)), np.ones((8, 20)), batch_size=8, verbose=0, callbacks=[ours])
            puller.join()
        np.testing.assert_array_equal(model.get_weights()[0].ravel()[:256], np.arange(256))
        np.testing.assert_array_equal(model.get_weights()[0].ravel()[256:], kept)

    def test_variables_in_bfloat16_are_averaged(self):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="bfloat16")])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        before = np.array(keras.ops.convert_to_numpy(model.weights[0].value)).astype(np.float32)
        with ContractDaemon() as daemon:
            at = AtBatch({1: lambda: daemon.client().make_due([0.5] * 8)})
            fit(model, [at, gossamer.GossamerCallback(job="test", socket=daemon.path)])
            now = np.array(keras.ops.convert_to_numpy(model.weights[0].value)).astype(np.float32)
            np.testing.assert_allclose(now, before + 0.5, atol=2.0**-7)
            self.assertEqual(daemon.client().publication(6), now.ravel().tolist())

    @unittest.skipIf(keras.backend.backend() == "torch", "Keras has no steps_per_execution with PyTorch")
    def test_batches_of_one_execution_count_each(self):
        model = a_model()
        model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=2)
        clocks = []
        ours = gossamer.GossamerCallback(job="test", samples_per_step=8, socket=NOWHERE, wait=False)
        for _ in range(2):  # the second fit continues the clock of the first
            fit(model, [keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: clocks.append(ours.run.clock)), ours])
        self.assertEqual(clocks, [32, 64])


class DriftCorrection(unittest.TestCase):
    def test_nodes_that_see_different_data_come_to_the_optimum_of_all(self):
        @contextlib.contextmanager
        def node(inputs, outputs, options):
            dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            model = keras.Sequential([keras.Input((skewed.INPUTS,)), dense])
            model.compile(keras.optimizers.SGD(skewed.RATE), "mse")
            ours = gossamer.GossamerCallback(samples_per_step=len(inputs), **options)
            ours.set_model(model)
            ours.on_train_begin()

            def step():
                model.train_on_batch(inputs, outputs)
                ours.on_epoch_begin(0)
                ours.on_train_batch_end(0)

            yield step
            ours.on_train_end()

        skewed.check(self, node)

    def test_in_fit(self):
        model = a_model()
        before = np.array(model.get_weights()[0])
        with ContractDaemon() as daemon:
            ours = gossamer.GossamerCallback(job="test", socket=daemon.path, correct_drift=True)
            due = AtBatch({1: lambda: daemon.client().make_due([0.25] * ELEMENTS)})
            fit(model, [due, ours], batches=3)
        # One correction in two steps, of which 0.98 count, and then one more.
        np.testing.assert_allclose(model.get_weights()[0], before + 0.25 * (1 + 0.2 / 2.96), rtol=1e-5)


class Refusals(unittest.TestCase):
    def assert_refused(self, model, pattern, **options):
        with self.assertRaisesRegex(gossamer.GossamerError, pattern):
            fit(model, [gossamer.GossamerCallback(job="test", socket=NOWHERE, wait=False, **options)])

    def test_variables_are_named(self):
        half = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="float16")])
        half.compile(keras.optimizers.SGD(0.0), "mse")
        self.assert_refused(half, r"variable '0.kernel' \(.*dense.*/kernel\) has the dtype float16.*mixed_float16")
        self.assert_refused(a_model(), "variables that do not exist: kernel", roles={"kernel": "local"})
        self.assert_refused(a_model(), "samples_per_step must be a whole number from 1", samples_per_step=0)

    def test_replicas_have_the_same_layout_whatever_else_was_made(self):
        hashes = []
        for _ in range(2):
            model = a_model()
            ours = gossamer.GossamerCallback(job="test", socket=NOWHERE, wait=False)
            at = AtBatch({0: lambda: hashes.append(ours.run.info().layout_hash)})
            fit(model, [at, ours])
            keras.layers.Dense(3)
        self.assertEqual(hashes[0], hashes[1])


if __name__ == "__main__":
    unittest.main()
