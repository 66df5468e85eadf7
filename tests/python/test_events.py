"""The figures, events and progress of joining that a training script sees of a run, with a fake daemon."""

import dataclasses
import io
import threading
import time
import unittest
import unittest.mock

import numpy as np

import gossamer
from contract_daemon import (AGE_SAMPLES, BYTES_RECEIVED, BYTES_SENT, CONSENSUS, EXCHANGES, FRAGMENTS_PULLED, GLOBAL_CLOCK,
                             JOINING, NEIGHBOURS, NOWHERE, PERIOD_US, QUARANTINED, RUNNING, STATE, ContractDaemon,
                             eventually)
from gossamer import Event, EventKind, State
from gossamer._events import events_between
from gossamer._progress import Progress


def a_run(daemon, **options):
    return gossamer.attach([np.zeros(1000, np.float32)], job="test", socket=daemon.path, **options)


class Figures(unittest.TestCase):
    def test_stats_are_what_the_daemon_says(self):
        with ContractDaemon() as daemon, a_run(daemon) as run:
            client = daemon.client()
            client.set_u32(NEIGHBOURS, 3)
            for offset, value in ((EXCHANGES, 9), (BYTES_SENT, 1000), (BYTES_RECEIVED, 900), (AGE_SAMPLES, 64)):
                client.set_u64(offset, value)
            client.set_u64(GLOBAL_CLOCK, 500)
            client.set_u64(PERIOD_US, 50_000)
            client.set_f64(CONSENSUS, 0.01)
            for _ in range(3):
                run.step(samples=16)
            stats = run.stats
            self.assertEqual(
                dataclasses.replace(stats, step_share=0.0),
                gossamer.RunStats(State.RUNNING, 3, 48, 500, 64, 3, 9, 0, 0, 1000, 900, 0.01, 0.05, 0.0),
            )

    def test_the_share_of_time_is_that_of_serving(self):
        values = np.zeros(1 << 20, np.float32)
        with ContractDaemon() as daemon, gossamer.attach([values], job="test", socket=daemon.path) as run:
            client = daemon.client()
            self.assertEqual(run.stats.step_share, 0)
            begin = time.monotonic()
            while time.monotonic() < begin + 0.1:
                client.make_due(None)
                run.step(0)
            info, elapsed_s = run.info(), time.monotonic() - begin
            self.assertGreater(info.serving_ns, 0)
            self.assertAlmostEqual(run.stats.step_share * elapsed_s, info.serving_ns / 1e9, delta=0.2 * info.serving_ns / 1e9)


class Events(unittest.TestCase):
    def test_differences_between_two_looks(self):
        with gossamer.attach([np.zeros(3, np.float32)], job="test", socket=NOWHERE, wait=False) as run:
            alone = run.info()
        first = dataclasses.replace(alone, attached=True, attachments=1, state=State.JOINING, node_id="ab" * 16, message="")
        running = dataclasses.replace(first, state=State.RUNNING, neighbours=2)
        sick = dataclasses.replace(running, state=State.QUARANTINED)
        table = [
            (alone, alone, []),
            (alone, first, ["attached", "joining"]),
            (first, running, ["ready", "neighbours"]),
            (running, sick, ["quarantined"]),
            (sick, running, ["recovered"]),
            (sick, dataclasses.replace(running, neighbours=1), ["recovered", "neighbours"]),
            (running, dataclasses.replace(running, clock=5, exchanges=7), []),
            (running, dataclasses.replace(running, state=State.DRAINING), ["draining"]),
            (running, dataclasses.replace(running, attachments=2), ["detached", "attached"]),
            (running, alone, ["detached"]),
        ]
        for before, now, expected in table:
            events = list(events_between(before, now))
            self.assertEqual([event.kind.value for event in events], expected)
            self.assertTrue(all(event.info is now and event.text for event in events))

    def test_they_come_from_step_in_this_thread(self):
        seen = []

        def on_event(event: Event) -> None:
            seen.append((event.kind, threading.current_thread()))

        with ContractDaemon() as daemon, a_run(daemon, on_event=on_event) as run:
            client = daemon.client()
            self.assertEqual([kind for kind, _ in seen], [EventKind.ATTACHED, EventKind.READY])
            client.set_u32(STATE, QUARANTINED)
            self.assertTrue(eventually(lambda: run.step(0) or len(seen) == 3))
            client.set_u32(STATE, RUNNING)
            self.assertTrue(eventually(lambda: run.step(0) or len(seen) == 4))
            client.close()
            self.assertTrue(eventually(lambda: run.step(0) or len(seen) >= 5))
            kinds = [EventKind.QUARANTINED, EventKind.RECOVERED, EventKind.DETACHED]
            self.assertEqual([kind for kind, _ in seen][2:5], kinds)
            self.assertEqual({thread for _, thread in seen}, {threading.current_thread()})
            run.on_event = None
            count = len(seen)
            self.assertTrue(eventually(lambda: run.step(0) or run.info().attachments == 2))
            self.assertEqual(len(seen), count)

    def test_a_warning_is_an_event_and_what_the_callback_raises_comes_out(self):
        seen = []
        with self.assertWarns(gossamer.GossamerWarning):
            run = gossamer.attach(
                [np.zeros(3, np.float32)], job="test", socket=NOWHERE, timeout_s=0.01, on_event=seen.append
            )
        with run:
            self.assertEqual([event.kind for event in seen], [EventKind.WARNING])
            self.assertIn("training goes on alone", str(seen[0]))

        def fail(event):
            raise KeyError(event.kind)

        with ContractDaemon() as daemon, a_run(daemon) as run:
            run.on_event = fail
            daemon.client().set_u32(STATE, QUARANTINED)
            with self.assertRaises(KeyError):
                eventually(lambda: run.step(0))

    def test_every_so_often_and_at_the_end(self):
        count = []
        with ContractDaemon() as daemon, a_run(daemon) as run:
            run.every(0.01, lambda: count.append(run.clock))
            run.step(0)
            self.assertEqual(count, [])
            self.assertTrue(eventually(lambda: run.step(0) or len(count) == 2))
            before = len(count)
        self.assertEqual(len(count), before + 1)
        run.close()
        self.assertEqual(len(count), before + 1)

    def test_what_cannot_be_called_is_refused_when_it_is_given(self):
        with gossamer.attach([np.zeros(3, np.float32)], job="test", socket=NOWHERE, wait=False) as run:
            for interval_s, action, pattern in (
                (60, print(end=""), "the action must be something that can be called.*not None"),
                ("60", print, "interval_s must be a number of seconds from 0, not '60'"),
                (float("nan"), print, "interval_s must be .*, not nan"),
                (-1, print, "interval_s must be .*, not -1"),
            ):
                with self.assertRaisesRegex(gossamer.GossamerError, pattern):
                    run.every(interval_s, action)
            with self.assertRaisesRegex(gossamer.GossamerError, "on_event must be something that can be called"):
                run.on_event = 5

    def test_an_action_may_close_the_run(self):
        """From step(), and in its last call from close(). The others are still called once more."""
        with ContractDaemon() as daemon:
            array, calls = np.zeros(1000, np.float32), []

            def attach():
                run = gossamer.attach([array], job="test", socket=daemon.path, timeout_s=20)
                run.every(0.01, lambda: calls.append("before"))
                run.every(0.01, lambda: (calls.append("closes"), run.close(), calls.append(run.closed)))
                run.every(1000, lambda: calls.append("after"))
                return run

            run = attach()
            self.assertTrue(eventually(lambda: run.closed or run.step(0)))
            self.assertEqual(calls[-4:], ["closes", "before", "after", True])
            self.assertEqual((calls.count("closes"), calls.count("after")), (1, 1))
            self.assertTrue(eventually(daemon.client().is_gone))
            calls.clear()
            attach().close()  # the first attachment has left nothing behind
            self.assertEqual(calls, ["before", "closes", "after", True])
            self.assertTrue(eventually(daemon.client(1).is_gone))

    def test_an_action_that_closes_the_run_may_attach_again(self):
        with ContractDaemon() as daemon:
            array, runs = np.zeros(1000, np.float32), []

            def attach(job):
                runs.append(gossamer.attach([array], job=job, socket=daemon.path))

            attach("first")
            runs[0].every(0.01, lambda: (runs[0].close(), attach("second")))
            self.assertTrue(eventually(lambda: runs[0].closed or runs[0].step()))
            self.assertTrue(runs[1].ready)
            runs[1].close()

    def test_what_is_told_of_an_event_may_close_the_run(self):
        with ContractDaemon() as daemon, a_run(daemon) as run:
            seen = []
            run.on_event = lambda event: (seen.append(event.kind), run.close())
            daemon.client().set_u32(NEIGHBOURS, 3)
            daemon.client().set_u32(STATE, QUARANTINED)
            self.assertTrue(eventually(lambda: run.closed or run.step(0)))
            self.assertEqual(len(seen), 1)

    def test_a_run_closes_even_if_what_is_called_raises(self):
        def fail():
            raise OSError("no space left")

        run = gossamer.attach([np.zeros(3, np.float32)], job="test", socket=NOWHERE, wait=False)
        run.every(1000, fail)
        with self.assertRaisesRegex(OSError, "no space"):
            run.close()
        self.assertTrue(run.closed)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class JoiningProgress(unittest.TestCase):
    def at(self, fragments, **changes):
        with gossamer.attach(
            [np.zeros(1 << 14, np.float32)], job="test", socket=NOWHERE, wait=False, fragment_elements=256
        ) as run:
            # This looks like a model a thousand times larger.
            return dataclasses.replace(
                run.info(), elements=1 << 24, fragment_elements=1 << 18, fragments_pulled=fragments, neighbours=2, **changes
            )

    @unittest.mock.patch.dict("os.environ", COLUMNS="80")
    def test_a_line_on_a_terminal(self):
        terminal = Terminal()
        progress = Progress("digits", terminal)
        progress.show(self.at(0), 0.0)
        self.assertEqual(terminal.getvalue(), "")
        progress.show(self.at(16), 1.0)
        progress.show(self.at(20), 1.01)  # too soon for a new line
        progress.show(self.at(32), 2.0)
        lines = [line.rstrip() for line in terminal.getvalue().split("\r")[1:]]
        self.assertEqual(len(lines), 2)
        self.assertEqual(lines[0], "digits: joining  25 % |██████                  | 17 of 67 MB from 2 nodes")
        joined = "digits: joining  50 % |████████████            | 34 of 67 MB from 2 nodes, 17 MB/s, 2 s left"
        self.assertEqual(lines[1], joined[:79])
        progress.end(self.at(64, state=State.RUNNING, global_clock=1234), 4.0)
        self.assertTrue(terminal.getvalue().endswith("\n"))
        self.assertIn("\rdigits: joined at 1,234 samples: 67 MB in 3.0 s ", terminal.getvalue())

    def test_elsewhere_only_now_and_then(self):
        log = io.StringIO()
        progress = Progress("digits", log)
        for second in range(25):
            progress.show(self.at(1 + second), float(second))
        self.assertEqual(log.getvalue().count("\n"), 3)
        self.assertNotIn("\r", log.getvalue())

    def test_it_is_drawn_while_a_model_is_pulled(self):
        def pull():
            client = daemon.client()
            client.set_u32(FRAGMENTS_PULLED, 1)
            self.assertTrue(eventually(lambda: "26 %" in error.getvalue()))
            client.set_u32(FRAGMENTS_PULLED, 4)
            client.set_u32(STATE, RUNNING)

        error = Terminal()
        with ContractDaemon(state=JOINING) as daemon, unittest.mock.patch("sys.stderr", error):
            puller = threading.Thread(target=pull)
            puller.start()
            with a_run(daemon, fragment_elements=256, timeout_s=30):
                puller.join()
        self.assertIn("test: joined at", error.getvalue())

    def test_nothing_is_drawn_unasked(self):
        error = io.StringIO()
        with ContractDaemon() as daemon, unittest.mock.patch("sys.stderr", error), a_run(daemon):
            pass
        self.assertEqual(error.getvalue(), "")


if __name__ == "__main__":
    unittest.main()
