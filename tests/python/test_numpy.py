"""gossamer.attach() with NumPy arrays and a fake daemon."""

import contextlib
import copy
import gc
import math
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings
import weakref

import numpy as np

import gossamer
import skewed
from contract_daemon import (BAD_LAYOUT, CLOCK_BASE, GLOBAL_CLOCK, JOB_BUSY, JOINING, NOT_PERMITTED, NOWHERE, RUNNING, STATE, ContractDaemon,
                             eventually)
from gossamer import _drift, _library


def alone(arrays, **options):
    """A run without a daemon."""
    return gossamer.attach(arrays, job="test", socket=NOWHERE, wait=False, **options)


class Training(unittest.TestCase):
    def test_corrections_are_added_in_place_and_published(self):
        model = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([0.5, -0.5])}
        with ContractDaemon() as daemon, gossamer.attach(model, job="test", socket=daemon.path) as run:
            self.assertTrue(run.ready)
            client = daemon.client()
            self.assertEqual(client.publication(8), [0, 1, 2, 3, 4, 5, 0.5, -0.5])
            client.make_due([10, 20, 30, 40, 50, 60, 1, 2])
            run.step(samples=32)
            np.testing.assert_array_equal(model["w"], [[10, 21, 32], [43, 54, 65]])
            np.testing.assert_array_equal(model["b"], [1.5, 1.5])
            self.assertEqual(client.publication(8), [10, 21, 32, 43, 54, 65, 1.5, 1.5])
            self.assertEqual(run.clock, 32)
            client.set_u64(GLOBAL_CLOCK, 1000)
            self.assertEqual(run.global_clock, 1000)
            info = run.info()
            self.assertEqual((info.steps, info.publications, info.attached, info.message), (1, 1, True, ""))
            self.assertEqual(info.node_id, "ab" * 16)

    def test_an_array_that_takes_the_place_of_another_is_followed(self):
        for model, key in (({"w": np.zeros(3, np.float32)}, "w"), ([np.zeros(3, np.float32)], 0)):
            with ContractDaemon() as daemon, gossamer.attach(model, job="test", socket=daemon.path) as run:
                client = daemon.client()
                attached = model[key]
                model[key] = model[key] + np.float32(1)
                client.make_due([10, 20, 30])
                run.step()
                np.testing.assert_array_equal(model[key], [11, 21, 31])
                self.assertEqual(client.publication(3), [11, 21, 31])
                np.testing.assert_array_equal(attached, [0, 0, 0])

    def test_an_array_that_cannot_be_followed_is_told(self):
        for array in (np.zeros(4, np.float32), np.zeros(3), np.float32(1)):
            model = {"w": np.zeros(3, np.float32)}
            with alone(model) as run:
                model["w"] = array
                with self.assertRaisesRegex(gossamer.GossamerError, "array 'w'") as caught:
                    run.step()
                if isinstance(array, np.ndarray):
                    self.assertIn("close the run (run.close()), then attach again", str(caught.exception))
        model = {"w": np.zeros(3, np.float32)}
        with alone(model) as run:
            del model["w"]
            with self.assertRaisesRegex(gossamer.GossamerError, "'w' has been taken out of the model"):
                run.step()

    def test_an_array_that_is_new_in_the_model_is_told_once(self):
        for model, new in (({"w": np.ones(3, np.float32)}, "bias"), ([np.ones(3, np.float32)], "1")):
            with alone(model) as run:
                run.step()
                if isinstance(model, dict):
                    model[new] = np.zeros(2, np.float32)
                else:
                    model.append(np.zeros(2, np.float32))
                with self.assertWarnsRegex(gossamer.GossamerWarning, f"array '{new}' has been put into the model"):
                    run.step()
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    run.step()

    def test_steps_that_change_nothing_are_told_once(self):
        w, frozen = np.zeros(1000, np.float32), np.zeros(3, np.float32)
        with alone([w, frozen]) as run:
            with self.assertWarnsRegex(gossamer.GossamerWarning, "changed nothing in the model.*in place"):
                for _ in range(60):
                    run.step()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for _ in range(200):
                    run.step()

    def test_steps_that_change_nothing_any_more_are_told_once(self):
        w = np.zeros(1000, np.float32)
        with alone({"w": w}) as run:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for _ in range(300):
                    w += 1
                    run.step()
            a = w + 1  # a new array, which the run does not know
            with self.assertWarnsRegex(gossamer.GossamerWarning, "50 steps have changed nothing in the model"):
                for _ in range(150):
                    a += 1
                    run.step()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for _ in range(300):
                    run.step()
        w = np.zeros(1000, np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with alone({"w": w}) as run:  # only one row changes, as with gradients of a few rows
                for step in range(2000):
                    w[0] += step % 7 == 0
                    run.step()
                for step in range(11):  # nothing changes, as with a learning rate of 0 at the end
                    run.step()

    def told_that_corrections_do_not_last(self, overwrites, steps):
        """How often a program is told. `steps`: the correction of each, or None, and what the program adds."""
        w = np.zeros(300, np.float32)
        own = w.copy()
        with ContractDaemon() as daemon, gossamer.attach({"w": w}, job="test", socket=daemon.path) as run:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                for correction, update in steps:
                    if correction is not None:
                        daemon.client().make_due(correction.tolist())
                    own += update
                    w += update
                    if overwrites:
                        w[:] = own
                    run.step()
        return sum("does not last" in str(one.message) for one in told)

    def test_a_program_that_overwrites_corrections_is_told(self):
        random = np.random.default_rng(1)

        def trained(overwrites: bool, size: float) -> int:
            steps = (
                (0.1 * random.standard_normal(300), size * random.standard_normal(300).astype(np.float32))
                for _ in range(400)
            )
            return self.told_that_corrections_do_not_last(overwrites, steps)

        for size in (0.001, 0.1, 0.3):  # size of the updates; corrections have 0.1
            self.assertEqual(trained(True, size), 1)
            self.assertEqual(trained(False, size), 0)

    def test_corrections_that_a_steady_drift_makes_up_for_are_not_taken_for_overwritten(self):
        """As on a node that trains faster than the others, in the same direction."""
        random = np.random.default_rng(1)
        for overwrites in (True, False):
            corrections = (
                -0.4 + 0.02 * random.standard_normal(300) if step % 4 == 0 else None for step in range(800)
            )
            told = self.told_that_corrections_do_not_last(overwrites, ((one, np.float32(0.1)) for one in corrections))
            self.assertEqual(told, overwrites)

    def test_corrections_after_each_step_of_momentum_are_not_taken_for_overwritten(self):
        """Two replicas whose steps go on in their own direction for a while are brought to their mean after each."""
        random = np.random.default_rng(1)

        def steps():
            models, momenta = np.zeros((2, 300), np.float32), np.zeros((2, 300), np.float32)
            for _ in range(800):
                correction = models.mean(axis=0) - models[0]
                momenta += 0.1 * (random.standard_normal((2, 300)) - momenta)
                models[:] = models.mean(axis=0) + momenta
                yield correction, momenta[0]

        self.assertEqual(self.told_that_corrections_do_not_last(False, steps()), 0)

    def test_where_only_buffers_are_averaged_nothing_is_said_of_training(self):
        w = np.zeros(300, np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with alone({"w": w}, roles={"w": "buffer"}) as run:
                for _ in range(60):
                    w += 1
                    run.step()

    def test_a_short_training_that_changes_nothing_is_told_at_its_end(self):
        for steps, told in ((20, True), (5, False)):
            model = {"w": np.zeros(3, np.float32)}
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                with alone(model) as run:
                    w = model["w"].copy()
                    for _ in range(steps):
                        w -= 1
                        run.step()
                run.close()
            self.assertEqual([one.filename for one in warned], [__file__] * told)
        with alone(model) as run, warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(20):
                run.step()
            model["w"] -= 1
            run.close()

    def test_corrections_are_no_training_and_training_may_begin_late(self):
        w = np.zeros(3, np.float32)
        with ContractDaemon() as daemon, gossamer.attach([w], job="test", socket=daemon.path) as run:
            client = daemon.client()
            with self.assertWarnsRegex(gossamer.GossamerWarning, "changed nothing"):
                for step in range(60):
                    client.make_due([step + 1.0] * 3)
                    run.step()
        with alone([w]) as run, warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(200):
                w += step // 40  # w stays 0 at first, as with a learning rate of 0
                run.step()

    def test_a_joiner_takes_over_the_model(self):
        w = np.zeros(5, np.float32)
        with ContractDaemon(state=JOINING) as daemon:

            def pull():
                client = daemon.client()
                client.make_due([1, 2, 3, 4, 5], replace=True)
                eventually(lambda: not client.is_due())
                client.set_u32(STATE, RUNNING)

            puller = threading.Thread(target=pull)
            puller.start()
            with gossamer.attach([w], job="test", socket=daemon.path) as run:
                self.assertTrue(run.ready)
                np.testing.assert_array_equal(w, [1, 2, 3, 4, 5])
            puller.join()

    def test_the_clock_has_what_a_model_that_was_taken_over_had_seen(self):
        with ContractDaemon() as daemon, gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path) as run:
            daemon.client().set_u64(CLOCK_BASE, 85_184)
            run.step(3200)
            self.assertEqual((run.clock, run.global_clock, run.stats.clock), (88_384, 88_384, 88_384))
            self.assertEqual(run.info().trained, 3200)

    def failure_of_attach(self, **options):
        """As a notebook keeps it: with the frames, and so with everything that is in them."""
        try:
            gossamer.attach([self.weights], **options)
        except BaseException as error:
            return error
        raise AssertionError("it should have failed")

    def test_an_attach_that_is_interrupted_leaves_no_run_behind(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        self.weights = np.zeros(3, np.float32)
        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with ContractDaemon(state=JOINING) as daemon:
            for socket in (daemon.path, NOWHERE):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                kept = self.failure_of_attach(job="resent", socket=socket)
                self.assertIsInstance(kept, KeyboardInterrupt)
                gossamer.attach([self.weights], job="resnet", socket=NOWHERE, wait=False).close()
            self.assertTrue(eventually(daemon.client().is_gone))

    def test_nor_does_one_in_which_a_callback_or_a_warning_raises(self):
        def fail(event):
            raise KeyError(event.kind)

        self.weights = np.zeros(3, np.float32)
        kept = self.failure_of_attach(job="resent", socket=NOWHERE, timeout_s=0.01, on_event=fail)
        self.assertIsInstance(kept, KeyError)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kept = self.failure_of_attach(job="again", socket=NOWHERE, timeout_s=0.01)
            self.assertIsInstance(kept, gossamer.GossamerWarning)
        gossamer.attach([self.weights], job="resnet", socket=NOWHERE, wait=False).close()

    def test_joining_that_takes_too_long_warns_and_goes_on(self):
        with ContractDaemon(state=JOINING) as daemon, self.assertWarnsRegex(gossamer.GossamerWarning, "agreed"):
            with gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path, timeout_s=0.05) as run:
                self.assertFalse(run.ready)
                self.assertEqual(run.info().state, gossamer.State.JOINING)
                run.step()

    def test_no_daemon_warns_and_training_goes_on(self):
        with self.assertWarnsRegex(gossamer.GossamerWarning, "alone.*nonexistent"):
            run = gossamer.attach([np.zeros(3, np.float32)], job="test", socket=NOWHERE, timeout_s=0.05)
        run.step(7)
        self.assertEqual(run.clock, 7)
        self.assertEqual(run.info().state, gossamer.State.DETACHED)
        run.close()

    def test_a_refused_model_warns_in_the_daemons_words(self):
        with ContractDaemon((BAD_LAYOUT, "tensor 'w' differs")) as daemon:
            with self.assertWarnsRegex(gossamer.GossamerWarning, "tensor 'w' differs"):
                gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path).close()

    def test_a_run_that_is_refused_neither_saves_nor_averages(self):
        with ContractDaemon(*[(NOT_PERMITTED, "you may not train it")] * 1000) as daemon:
            with self.assertWarnsRegex(gossamer.GossamerWarning, "you may not train it"):
                run = gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path, timeout_s=60)
            with run, self.assertWarnsRegex(gossamer.GossamerWarning, "not the one to save.*you may not train it"):
                end = run.finish(timeout_s=60)
                with self.assertRaisesRegex(gossamer.GossamerError, "this process has no part in the job.*you may not"):
                    run.average(1.0)
        self.assertFalse(end.agreed or end.saver)

    def test_settings_that_are_refused_are_an_error(self):
        reason = 'the settings given to the job: codec: "q5" is not known; it must be "f32", "q8", "q4" or "auto"'
        arguments = {"job": "test", "settings": {"codec": "q5"}}
        self.weights = np.zeros(3, np.float32)
        with ContractDaemon((BAD_LAYOUT, reason)) as daemon:
            kept = self.failure_of_attach(socket=daemon.path, **arguments)
            self.assertIsInstance(kept, gossamer.GossamerError)
            self.assertEqual(kept.status, "GOSSAMER_REJECTED")
            self.assertIn('codec: "q5" is not known; it must be "f32"', str(kept))
        with ContractDaemon(*[(BAD_LAYOUT, reason)] * 1000) as daemon:
            run = gossamer.attach([self.weights], socket=daemon.path, wait=False, **arguments)
            with self.assertRaisesRegex(gossamer.GossamerError, '"q5" is not known'):
                run.wait()
            run.close()

    def test_a_daemon_that_refuses_the_run_later_is_told_once(self):
        weights = np.zeros(3, np.float32)
        with ContractDaemon(*[(BAD_LAYOUT, "tensor 'w' differs")] * 1000) as daemon:
            with gossamer.attach([weights], job="test", socket=daemon.path, wait=False) as run:
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    self.assertTrue(eventually(lambda: run.step(0) or warned))
                    seen = time.monotonic()
                    self.assertTrue(eventually(lambda: run.step(0) or time.monotonic() > seen + 1))
        self.assertEqual(len(warned), 1)
        self.assertRegex(str(warned[0].message), "training goes on alone.*tensor 'w' differs")

    def test_a_daemon_that_goes_away_or_never_comes_is_told_once(self):
        with ContractDaemon() as daemon:
            weights = np.zeros(3, np.float32)
            left = gossamer.attach([weights], job="test", socket=daemon.path)
            self.assertTrue(left.ready)
        for run in (left, alone([np.zeros(3, np.float32)])):
            with unittest.mock.patch("gossamer._run.ALONE_S", 0.3), warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self.assertTrue(eventually(lambda: run.step(0) or warned))
                seen = time.monotonic()
                self.assertTrue(eventually(lambda: run.step(0) or time.monotonic() > seen + 1))
            self.assertEqual(len(warned), 1)
            self.assertRegex(str(warned[0].message), "training goes on alone for now: no gossamerd answers")
            run.close()

    def test_a_busy_job_is_waited_for(self):
        with ContractDaemon((JOB_BUSY, "wait")) as daemon, warnings.catch_warnings():
            warnings.simplefilter("error")
            with gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path) as run:
                self.assertTrue(run.ready)

    def test_an_impossible_word_warns(self):
        with ContractDaemon() as daemon, gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path) as run:
            client = daemon.client()
            client.make_due([1, 1, 1])
            client.set_u64(client._word_offset(0), 2**64 - 1)
            with self.assertWarnsRegex(gossamer.GossamerWarning, "impossible word"):
                run.step()

    def test_a_folder_that_is_missing_is_told_at_once_and_the_daemon_waited_for(self):
        with tempfile.TemporaryDirectory(prefix="gossamer-test-") as folder, ContractDaemon() as daemon:
            path = f"{folder}/later/client.sock"
            told = []

            def come(event):
                if event.kind is gossamer.EventKind.WARNING:
                    told.append(event.text)
                    os.symlink(os.path.dirname(daemon.path), f"{folder}/later")

            with self.assertWarnsRegex(gossamer.GossamerWarning, f"{folder}/later, which does not exist: waiting 5 s"):
                with gossamer.attach([np.zeros(3, np.float32)], job="test", socket=path, on_event=come) as run:
                    self.assertTrue(run.ready)
            self.assertEqual(len(told), 1)

    def test_the_socket_of_another_program_is_told_at_once(self):
        with tempfile.TemporaryDirectory(prefix="gossamer-test-") as folder, socket.socket(socket.AF_UNIX) as other:
            other.bind(f"{folder}/control.sock")
            other.listen()
            with self.assertRaisesRegex(gossamer.GossamerError, "control.sock is the socket of another program.*client.sock"):
                gossamer.attach([np.zeros(3, np.float32)], job="test", socket=f"{folder}/control.sock")

    def test_the_environment_names_the_socket(self):
        with ContractDaemon() as daemon:
            os.environ["GOSSAMER_SOCKET"] = daemon.path
            try:
                with gossamer.attach([np.zeros(3, np.float32)], job="test") as run:
                    self.assertTrue(run.ready)
                os.environ["GOSSAMER_SOCKET"] = "/tmp/" + "x" * 110
                with self.assertRaisesRegex(gossamer.GossamerError, "115 bytes"):
                    gossamer.attach([np.zeros(3, np.float32)], job="test")
            finally:
                del os.environ["GOSSAMER_SOCKET"]


class DriftCorrection(unittest.TestCase):
    """Steps leave out what corrections lead back again and again."""

    def added(self, correction=1.0, **changed):
        """What the next step adds, after a correction in a step during which the run was as `changed` says."""
        weights = [np.zeros(1, np.float32)]
        drift = _drift.DriftCorrection(weights, np)
        info = _library.Info(state=gossamer.State.RUNNING.value, fragments=1, attachments=1)
        for name, value in changed.items():
            setattr(info, name, value)
        drift.follow(info)
        drift.step(weights)
        drift.hold(weights)
        weights[0] += correction
        info = _library.Info(state=gossamer.State.RUNNING.value, fragments=1, attachments=1, corrections=1)
        drift.take(weights, drift.corrections_since(info))
        weights[0][:] = 0
        drift.step(weights)
        return float(weights[0][0])

    def test_only_what_exchanges_with_equals_correct_counts(self):
        self.assertAlmostEqual(self.added(), 0.2 / 1.98)
        for changed in (
            {"state": gossamer.State.JOINING.value},
            {"attachments": 0},
            {"method": 1, "average_steps": 1},
            {"method": 2},
            {"outer_momentum": 0.7},
        ):
            with self.subTest(**changed):
                self.assertEqual(self.added(**changed), 0.0)

    def test_a_run_that_takes_part_no_more_forgets(self):
        weights = [np.zeros(1, np.float32)]
        drift = _drift.DriftCorrection(weights, np)
        running = _library.Info(state=gossamer.State.RUNNING.value)
        drift.follow(running)
        drift.step(weights)
        drift.hold(weights)
        weights[0] += 1
        drift.take(weights)
        drift.follow(_library.Info(state=gossamer.State.DETACHED.value))
        drift.follow(running)
        self.assertFalse(drift.step(weights))
        drift.hold(weights)
        weights[0] += 1
        drift.take(weights)
        self.assertTrue(drift.step(weights))
        self.assertAlmostEqual(float(weights[0][0]), 2 + 0.2 / 1.98, places=5)

    def test_exact_means_of_models_count(self):
        weights = [np.zeros(1, np.float32)]
        drift = _drift.DriftCorrection(weights, np)
        info = _library.Info(state=gossamer.State.RUNNING.value, fragments=1, method=1, average_steps=8)
        for _ in range(8):
            drift.follow(info)
            drift.step(weights)
            drift.hold(weights)
        self.assertEqual(float(weights[0][0]), 0.0)
        weights[0] += 1
        drift.take(weights)
        drift.step(weights)
        self.assertAlmostEqual(float(weights[0][0]), 1 + 0.2 / (8 * 0.98 + 1), places=6)

    def test_what_is_not_finite_is_not_kept(self):
        for correction in (math.nan, math.inf):
            self.assertEqual(self.added(correction), 0.0)

    def test_nodes_that_see_different_data_come_to_the_optimum_of_all(self):
        @contextlib.contextmanager
        def node(inputs, outputs, options):
            model = {"w": np.zeros((skewed.INPUTS, 1), np.float32)}

            def step():
                gradient = inputs.T @ (inputs @ model["w"] - outputs) * 2 / len(inputs)
                model["w"] = model["w"] - skewed.RATE * gradient  # an array that is made anew is followed
                run.step()

            with gossamer.attach(model, **options) as run:
                yield step

        skewed.check(self, node)

    def test_integers_and_buffers_are_left_alone(self):
        model = {"w": np.zeros(2, np.float32), "mean": np.zeros(2, np.float32), "steps": np.zeros(1, np.int64)}
        roles = {"mean": "buffer", "steps": "local"}
        with ContractDaemon() as daemon, gossamer.attach(
            model, job="test", socket=daemon.path, roles=roles, correct_drift=True
        ) as run:
            daemon.client().make_due([1.0] * 4)
            run.step()
            run.step()
        np.testing.assert_allclose(model["w"], 1 + 0.2 / 1.98, rtol=1e-6)
        np.testing.assert_array_equal(model["mean"], 1)
        np.testing.assert_array_equal(model["steps"], 0)

    def test_a_part_of_a_model_is_refused(self):
        with self.assertRaisesRegex(gossamer.GossamerError, "correct_drift is for a model that one process holds"):
            alone([np.zeros(2, np.float32)], part=(0, 2), replica="r", correct_drift=True)


class Arrays(unittest.TestCase):
    def check_refused(self, pattern, array, role="param"):
        with self.assertRaisesRegex(gossamer.GossamerError, pattern) as caught:
            alone({"good": np.zeros(2, np.float32), "layer.bad": array}, roles={"layer.bad": role})
        self.assertIn("'layer.bad'", str(caught.exception))
        return caught.exception

    def test_dtypes_that_cannot_be_averaged(self):
        error = self.check_refused("int64.*local", np.zeros(3, np.int64))
        self.assertEqual(error.status, "GOSSAMER_UNSUPPORTED")
        self.check_refused("bool.*local", np.zeros(3, bool))
        self.check_refused("float16.*float32", np.zeros(3, np.float16))
        self.check_refused("c16", np.zeros(3, np.complex128))
        self.check_refused("O", np.array([object()]))

    def test_memory_that_cannot_be_used_in_place(self):
        self.check_refused("contiguous", np.zeros((4, 4), np.float32)[:, ::2])
        self.check_refused("contiguous", np.asfortranarray(np.zeros((4, 4), np.float32)))
        self.check_refused("byte order", np.zeros(3, ">f4"))
        read_only = np.zeros(3, np.float32)
        read_only.flags.writeable = False
        self.check_refused("read-only", read_only)
        self.check_refused("list", [1.0, 2.0])
        whole = np.zeros(10, np.float32)
        with self.assertRaisesRegex(gossamer.GossamerError, "'a' and tensor 'b' share memory"):
            alone({"a": whole[:6], "b": whole[5:]})

    def test_what_is_no_array_says_what_to_do(self):
        self.check_refused("is a float32, which cannot be changed in place", np.float32(1))
        with self.assertRaisesRegex(TypeError, r"the rest by name: attach\(arrays, job=...\)"):
            gossamer.attach([np.zeros(3, np.float32)], "test", job="test")

        class Module:
            def named_modules(self):
                return []

        with self.assertRaisesRegex(gossamer.GossamerError, "import gossamer.torch"):
            alone(Module())
        with self.assertRaisesRegex(gossamer.GossamerError, "import gossamer.torch"):
            gossamer.attach(Module(), "optimizer", job="test")
        for module, remedy in (("jaxlib._jax", "jax.attach"), ("torch", "torch.attach"), ("keras.src", "keras")):
            self.check_refused(f"not a NumPy array: use gossamer.{remedy}", type("Array", (), {"__module__": module})())
            with self.assertRaisesRegex(gossamer.GossamerError, f"use gossamer.{remedy}"):
                alone(type("Model", (), {"__module__": module})())

    def test_roles(self):
        counter = np.arange(3)
        with alone({"w": np.zeros(4, np.float32), "counter": counter}, roles={"counter": "local"}) as run:
            self.assertEqual(run.info().elements, 4)
        self.check_refused("unknown role", np.zeros(3, np.float32), role="weights")
        with self.assertRaisesRegex(gossamer.GossamerError, "do not exist: c"):
            alone({"w": np.zeros(4, np.float32)}, roles={"c": "local"})

    def test_empty_and_scalar_arrays(self):
        with alone({"none": np.zeros((0, 7), np.float32), "one": np.array(3.0)}) as run:
            self.assertEqual(run.info().elements, 1)
        with self.assertRaisesRegex(gossamer.GossamerError, "no tensors|nothing to train"):
            alone({})

    def test_options_reach_the_library(self):
        w = np.zeros(1000, np.float32)
        with alone([w], fragment_elements=256, initial_clock=50) as run:
            info = run.info()
            self.assertEqual((info.fragments, info.fragment_elements, info.clock), (4, 256, 50))
        with self.assertRaisesRegex(gossamer.GossamerError, "power of two"):
            alone([w], fragment_elements=1000)
        with self.assertRaisesRegex(gossamer.GossamerError, "job"):
            gossamer.attach([w], job="a job", socket=NOWHERE)

    def test_the_same_model_has_the_same_layout(self):
        def layout(**arrays):
            with alone(arrays) as run:
                return run.info().layout_hash

        self.assertEqual(layout(w=np.zeros(5)), layout(w=np.ones(5)))
        self.assertNotEqual(layout(w=np.zeros(5)), layout(w=np.zeros(6)))
        self.assertNotEqual(layout(w=np.zeros(5)), layout(v=np.zeros(5)))


class Arguments(unittest.TestCase):
    def test_errors_name_the_argument_and_the_reason(self):
        w = np.zeros(4, np.float32)
        table = [
            ([w], {"job": None}, "job must be a string, not None"),
            ([w], {"job": "a\0b"}, "job must be a string"),
            ([w], {"job": "a job"}, "job needs a name of 1 to 63 letters"),
            ([w], {"socket": 5}, "socket must be a path, not 5"),
            ([w], {"socket": "/tmp/" + "é" * 60}, "path of the socket has 125 bytes, and may have 107: use a shorter one"),
            ([w], {"socket": os.path.dirname(__file__)}, "is a folder, and not gossamerd's socket.*client.sock"),
            ([w], {"socket": __file__.encode()}, "is a file, and not gossamerd's socket"),
            ([w], {"on_event": 3}, "on_event must be something that can be called.*not 3"),
            ([w], {"fragment_elements": -256}, "fragment_elements must be from 0 to 4294967295, not -256"),
            ([w], {"fragment_elements": 300}, "fragment_elements is 300; it must be a power of two"),
            ([w], {"settings": "codec=q4"}, "settings must be a mapping of names to values, not 'codec=q4'"),
            ([w], {"settings": {"codec": None}}, "setting codec must be a string or a number, not None"),
            ([w], {"settings": {"codec": "q4 clip=1"}}, "must be plain text without white space"),
            ([w], {"settings": {"a b": 1}}, "must be plain text without white space"),
            ([w], {"settings": {"codec": ""}}, "must be plain text without white space"),
            ([w], {"settings": {"codec": "q4\0"}}, "must be plain text without white space"),
            ([w], {"settings": {"codec": "\ud800"}}, "must be plain text without white space"),
            ([w], {"settings": {"clip": True}}, "setting clip must be a string or a number, not True"),
            ([w], {"settings": {"a": "1" * 4000}}, "the settings take more than 3072 bytes"),
            ([w], {"step_budget_bytes": 1e6}, "step_budget_bytes must be a whole number, not 1000000.0"),
            ([w], {"initial_clock": -1}, "initial_clock must be from 0 to .*, not -1"),
            ([w], {"initial_clock": 2**62}, f"initial_clock must be from 0 to {2**53}, not {2**62}"),
            ([w], {"memory": ["lean"]}, "memory must be one of auto, resident, lean"),
            ([w], {"roles": ["w"]}, "roles must be a mapping of names to roles, not \\['w'\\]"),
            *(([w], {"wait": True, "timeout_s": s}, "timeout_s is .*, not from 0 to") for s in ("5", -5, float("nan"))),
            (5, {}, "arrays or a mapping of names to them, not 5"),
            ("model", {}, "arrays or a mapping of names to them, not 'model'"),
            ({"layer": {"w": w}}, {}, "array 'layer' is a dict: give its arrays names of their own, such as 'layer.w'"),
            ({"layers": [w]}, {}, "array 'layers' is a list, not a NumPy array: if it has arrays in it, give them names"),
            ({1: w}, {}, "name of a tensor must be a string, not 1"),
            ({"a\0b": w}, {}, "name of a tensor must be a string"),
            ({"": w}, {}, "tensor number 0 needs a name"),
            ({"w": None}, {}, "array 'w' is a NoneType, not a NumPy array"),
            ({"w": w}, {"roles": {1: "local"}}, "arrays that do not exist: 1"),
            ({"w": np.frombuffer(bytearray(17), np.float32, 4, 1)}, {}, "'w' is not aligned"),
        ]
        for arrays, options, pattern in table:
            arguments = {"job": "test", "socket": NOWHERE, "wait": False, **options}
            with self.subTest(pattern=pattern), self.assertRaisesRegex(gossamer.GossamerError, pattern):
                gossamer.attach(arrays, **arguments)

    def test_wrong_keywords_raise_what_python_raises(self):
        for options, pattern in (({"job": "test", "codecs": 1}, "unexpected keyword argument 'codecs'"), ({}, "'job'")):
            with self.subTest(pattern=pattern), self.assertRaisesRegex(TypeError, pattern):
                gossamer.attach([np.zeros(4, np.float32)], **options)

    def test_samples(self):
        with alone(np.zeros(4, np.float32)) as run:  # a single array is a model, too
            for bad, pattern in (
                *((beyond, "from 0 to") for beyond in (-1, 2**63, 2**64 + 7, 5 - 2**64)),
                (2.5, "whole number, not 2.5"),
                (np.zeros((100, 100)), "whole number, not array.{,40}$"),
                ("4", "whole number"),
                (None, "whole"),
            ):
                with self.subTest(samples=bad), self.assertRaisesRegex(gossamer.GossamerError, pattern):
                    run.step(bad)
            for good in (0, 3, np.int64(4), True):
                run.step(good)
            self.assertEqual((run.clock, run.info().steps), (8, 4))

    def test_a_model_larger_than_memory_is_refused_before_anything_is_taken(self):
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            total_bytes = 1024 * int(meminfo.readline().split()[1])
        size = total_bytes // 2 // 4096 * 4096
        no_reserve = 0x4000
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
        with self.assertRaisesRegex(gossamer.GossamerError, r"takes \d+ MiB of shared memory.* \d+ MiB .* available") as caught:
            alone([np.frombuffer(memory, np.float32)], memory="resident")
        self.assertEqual(caught.exception.status, "GOSSAMER_NO_MEMORY")
        self.assertEqual(alone([np.frombuffer(memory, np.float32)]).info().window_bytes, 8 * 12 << 20)
        with self.assertRaisesRegex(gossamer.GossamerError, "auto, resident, lean, not 'small'"):
            alone([np.zeros(3, np.float32)], memory="small")


class Lifetime(unittest.TestCase):
    def test_a_closed_run_says_so_and_closes_twice(self):
        run = alone([np.zeros(3, np.float32)])
        run.close()
        run.close()
        self.assertTrue(run.closed)
        for call in (run.step, run.info, run.wait):
            with self.assertRaisesRegex(gossamer.GossamerError, "closed"):
                call()

    def test_another_thread_may_close(self):
        def steps(run):
            while True:
                run.step()

        calls = {
            "step": steps,
            "finish": lambda run: run.finish(timeout_s=None),
            "average": lambda run: run.average(1.0, at_least=2),
            "wait": lambda run: run.wait(timeout_s=None),
        }
        for name, call in calls.items():
            with self.subTest(name), ContractDaemon(state=JOINING if name == "wait" else RUNNING) as daemon:
                run = gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path, wait=False)
                daemon.client()
                closer = threading.Timer(0.3, run.close)
                closer.start()
                with self.assertRaisesRegex(gossamer.GossamerError, "closed"):
                    call(run)
                closer.join()

    def test_closing_does_not_hide_what_the_program_raises(self):
        model = {"w": np.zeros(3, np.float32)}
        with self.assertWarnsRegex(gossamer.GossamerWarning, "closing.*'test'.*no space"):
            with self.assertRaisesRegex(KeyError, "mine"):
                with alone(model) as run:
                    run.every(60, lambda: open("/nonexistent/no space"))
                    raise KeyError("mine")
        self.assertTrue(run.closed)
        with self.assertRaises(OSError):
            with alone(model) as run:
                run.every(60, lambda: open("/nonexistent/no space"))

    def test_a_run_that_is_dropped_detaches(self):
        with ContractDaemon() as daemon:
            run = gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path)
            connection = daemon.client().connection
            del run
            gc.collect()
            self.assertEqual(connection.recv(1), b"")

    def test_attaching_again_to_the_same_job_closes_the_former_run(self):
        weights = np.zeros(3, np.float32)
        with ContractDaemon() as daemon:
            former = gossamer.attach({"w": weights}, job="test", socket=daemon.path)
            for attached in (1, 2):
                connection = daemon.client(attached - 1).connection
                with self.assertWarnsRegex(gossamer.GossamerWarning, "before: that run was closed"):
                    run = gossamer.attach({"w": weights}, job="test", socket=daemon.path)
                self.assertEqual(connection.recv(1), b"")
                self.assertTrue(former.closed)
                daemon.client(attached).make_due([1.0] * 3)
                run.step()
                run.step()
                self.assertEqual(weights.tolist(), [attached] * 3)
                former = run
            former.close()

    def test_attaching_again_to_another_job_is_refused_until_the_former_run_is_let_go(self):
        weights = np.zeros(3, np.float32)
        run = alone([weights])
        with self.assertRaisesRegex(gossamer.GossamerError, r"attached to the job 'test' already.*close that run first") as caught:
            gossamer.attach([weights], job="other", socket=NOWHERE, wait=False)
        self.assertEqual(caught.exception.status, "GOSSAMER_BAD_ARGUMENT")
        # This array is a part of the attached model.
        with self.assertRaisesRegex(gossamer.GossamerError, "Close that run first"):
            gossamer.attach([weights[1:]], job="other", socket=NOWHERE, wait=False)
        run.step()
        run.itself = run  # a reference cycle
        del run, caught
        gossamer.attach([weights], job="other", socket=NOWHERE, wait=False).close()

    def test_another_model_under_the_same_name_is_refused_until_the_former_run_is_let_go(self):
        generator, discriminator = {"g": np.zeros(3, np.float32)}, {"d": np.zeros(3, np.float32)}
        with ContractDaemon() as daemon:
            run = gossamer.attach(generator, job="gan", socket=daemon.path)
            for path, options in ((daemon.path, {}), (daemon.path.encode(), {"wait": False})):
                with self.assertRaisesRegex(gossamer.GossamerError, "another model.*'gan'.*a name of its own.*run.close"):
                    gossamer.attach(discriminator, job="gan", socket=path, **options)
            # Another name, a second replica, and another daemon's job are fine.
            gossamer.attach(discriminator, job="gan-d", socket=daemon.path).close()
            gossamer.attach({"g": np.zeros(3)}, job="gan", socket=daemon.path).close()
            with ContractDaemon() as other:
                gossamer.attach(discriminator, job="gan", socket=other.path).close()
            run.itself = run  # a reference cycle
            del run
            gossamer.attach(discriminator, job="gan", socket=daemon.path).close()

    def test_a_run_that_only_the_traceback_of_a_cell_holds_is_let_go_when_the_cell_runs_again(self):
        def cell(size, fails=False):
            """As a notebook runs it: the latest error is kept in place of the one before."""
            try:
                run = gossamer.attach({"w": np.zeros(size, np.float32)}, job="cell", socket=NOWHERE, wait=False)
                if fails:
                    raise ValueError
                run.close()
            except Exception as error:
                sys.last_traceback = error.__traceback__
                return str(error)
            return "done"

        self.addCleanup(vars(sys).pop, "last_traceback", None)
        cell(3, fails=True)
        self.assertRegex(cell(4), r"another model.*run.close.*\(sys.last_traceback\).*attach once more")
        self.assertEqual(cell(4), "done")

    @unittest.skipIf("tsan" in os.environ.get("LD_PRELOAD", ""), "the thread sanitizer ends children with threads")
    def test_a_child_attaches_its_copy_of_what_its_parent_has_attached(self):
        weights = np.zeros(3, np.float32)
        run = alone([weights])
        child = os.fork()
        if child == 0:
            try:
                gossamer.attach([weights], job="other", socket=NOWHERE, wait=False).close()
            except gossamer.GossamerError:
                os._exit(1)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        run.close()

    def test_a_run_can_be_neither_copied_nor_sent_to_another_process(self):
        with ContractDaemon() as daemon, gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path) as run:
            for carry in (pickle.dumps, copy.copy, copy.deepcopy, lambda run: copy.deepcopy({"run": run})):
                with self.assertRaisesRegex(TypeError, "belongs to the process that attached it.*attach.. there"):
                    carry(run)
            gc.collect()
            self.assertFalse(run.closed)
            self.assertTrue(run.ready)
            self.assertEqual(copy.deepcopy(run.info()), pickle.loads(pickle.dumps(run.info())))

    def test_a_run_with_events_goes_when_it_is_dropped(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        run = alone([np.zeros(3, np.float32)], on_event=lambda event: None)
        dropped = weakref.ref(run)
        del run
        self.assertIsNone(dropped())

    def test_arrays_live_as_long_as_the_run(self):
        with ContractDaemon() as daemon, gossamer.attach(
            [np.zeros(100_000, np.float32)], job="test", socket=daemon.path
        ) as run:
            gc.collect()
            daemon.client().make_due([1.0] * 100_000)
            run.step()
            self.assertEqual(daemon.client().publication(3), [1, 1, 1])

    def test_a_forked_child_cannot_use_the_run(self):
        run = alone([np.zeros(3, np.float32)])
        child = os.fork()
        if child == 0:
            try:
                run.step()
            except gossamer.GossamerError as error:
                os._exit(42 if error.status == "GOSSAMER_FORKED" else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 42)
        run.step()
        run.close()

    def test_a_missing_library_is_explained(self):
        environment = dict(os.environ, GOSSAMER_LIBRARY="/nonexistent/libgossamer.so.1")
        code = "import gossamer; gossamer.version()"
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("GOSSAMER_LIBRARY", result.stderr)

    def test_importing_needs_neither_numpy_nor_torch(self):
        code = "import sys, gossamer; gossamer.version(); sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)


class InParts(unittest.TestCase):
    """A model that several processes hold."""

    def test_wrong_parts_and_slices_are_refused(self):
        half = {"w": np.zeros((2, 3), np.float32)}
        in_whole = {"w": ((4, 3), (0, 0))}
        for options, why in (
            ({"part": (0, 2)}, "part and replica go together"),
            ({"replica": "r"}, "part and replica go together"),
            ({"part": 1, "replica": "r"}, "index of this process and the number of parts"),
            ({"part": (2, 2), "replica": "r"}, "below the number of parts"),
            ({"part": (0, 2), "replica": "a b"}, "needs a name in `replica`"),
            ({"part": (0, 65), "replica": "r"}, "at most 64"),
            ({"slices": in_whole}, "nobody holds the rest"),
            ({"slices": {"v": ((4, 3), (0, 0))}}, "do not exist: v"),
            ({"slices": {"w": (4, 3)}}, "must be .shape of the whole, offset in it."),
            ({"slices": {"w": ((4, 3), (0,))}}, "of different dimensions"),
            ({"slices": {"w": ((4,), (0,))}}, "has 2 dimensions, and its whole 1"),
            ({"part": (0, 2), "replica": "r", "slices": {"w": ((4, 3), (3, 0))}}, "beyond the tensor in dimension 0"),
            ({"part": (0, 2), "replica": "r", "slices": in_whole, "memory": "lean"}, "not lean"),
        ):
            with self.assertRaisesRegex(gossamer.GossamerError, why, msg=str(options)):
                gossamer.attach(half, job="test", socket=NOWHERE, wait=False, **options)

    def test_one_part_is_a_whole(self):
        whole = {"w": np.zeros((2, 3), np.float32)}
        with gossamer.attach(whole, job="test", socket=NOWHERE, wait=False, part=(0, 1), replica="r") as run:
            self.assertEqual((run.info().parts, run.info().part), (1, 0))


if __name__ == "__main__":
    unittest.main()
