"""gossamer.tensorboard.log(), gossamer.wandb.log() and gossamer.mlflow.log(): with objects that record what they are given,
and with the real packages, whose files are read back. No network is needed. What is not installed is skipped, with a
message."""

import contextlib
import glob
import importlib.util
import json
import os
import struct
import sys
import tempfile
import types
import unittest
import warnings
from unittest import mock

# The loggers contact no server and wait for none.
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
os.environ.update(MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")

import numpy as np

import gossamer
import gossamer.mlflow
import gossamer.tensorboard
import gossamer.wandb
from contract_daemon import BYTES_SENT, CONSENSUS, ContractDaemon, eventually


def needs(module):
    """Marks a test of a real package."""
    missing = importlib.util.find_spec(module) is None
    return unittest.skipIf(missing, f"{module} is not installed; tools/test --frameworks installs it")


@contextlib.contextmanager
def attached():
    with ContractDaemon() as daemon, gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path) as run:
        client = daemon.client()
        client.set_u64(BYTES_SENT, 4096)
        client.set_f64(CONSENSUS, 0.25)
        yield run


class Written(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore", gossamer.GossamerWarning)  # these steps change nothing in the model

    def train(self, log):
        """Lets `log` write the figures of a run, twice while it trains and then when it is closed. Returns its clocks."""
        with attached() as run:
            log(run)
            clocks, looks = [], []
            run.every(0.01, lambda: looks.append(run.clock))
            run.log(loss=0.5)
            self.assertTrue(eventually(lambda: run.step(8) or clocks.append(run.clock) or len(looks) == 2))
            run.log(loss=0.25)
        return clocks

    def test_names_of_our_own_figures_are_not_taken(self):
        rows = []
        with attached() as run:
            gossamer._figures.write_every(run, 0.01, "", lambda figures, clock: rows.append(figures))
            run.log(consensus=7.0, loss=1.0, loss_mean=3.0)
            self.assertTrue(eventually(lambda: run.step(8) or len(rows) > 1))
        self.assertEqual({row["consensus"] for row in rows if "consensus" in row}, {0.25})
        last = rows[-1]
        self.assertEqual((last["logged_consensus"], last["loss"], last["logged_loss_mean"]), (7.0, 1.0, 3.0))

    def test_what_cannot_be_logged_is_named(self):
        with attached() as run:
            for values in ({"loss": "much"}, {"loss": None}, {"loss": 10**400}, {"a\0b": 1.0}, {"\udc80": 1.0}):
                with self.assertRaisesRegex(gossamer.GossamerError, "log\\(\\) was given"):
                    run.log(**values)
            self.assertEqual(run.logged, {})

    def check(self, clocks, read):
        """`read`: name -> [(clock, value)]."""
        self.assertEqual(read["gossamer/bytes_sent"][-1], (clocks[-1], 4096))
        self.assertEqual(read["gossamer/consensus"][-1], (clocks[-1], 0.25))
        self.assertEqual(read["gossamer/steps"][-1], (clocks[-1], len(clocks)))
        self.assertEqual(read["gossamer/loss"][0][1], 0.5)
        self.assertIn((clocks[-1], 0.25), read["gossamer/loss"])
        written = [clock for clock, _ in read["gossamer/neighbours"]]
        self.assertLessEqual(set(written), set(clocks))
        self.assertEqual(written, sorted(set(written)), "each clock once")
        self.assertLessEqual(2, len(written))
        self.assertLess(len(written), len(clocks))


class Recorded(Written):
    """Needs none of the packages."""

    def test_a_writer_that_fails_stops_no_training(self):
        writer = mock.Mock()
        writer.add_scalar.side_effect = OSError("disk full")
        with attached() as run:
            gossamer.tensorboard.log(run, writer, every_s=0)
            with self.assertWarnsRegex(gossamer.GossamerWarning, "written no more.*disk full"):
                run.step(1)
            run.step(1)
        self.assertEqual(writer.add_scalar.call_count, 1)
        with attached() as run, self.assertRaisesRegex(gossamer.GossamerError, "prefix must be a text"):
            gossamer.tensorboard.log(run, mock.Mock(), prefix=None)

    def test_names_that_a_writer_does_not_take_are_changed(self):
        wandb_run = mock.Mock()
        with attached() as run:
            gossamer.wandb.log(run, wandb_run, every_s=0, prefix="a*/")
            run.log(**{"acc*": 0.5})
            run.step(1)
        names = [call.args[0] for call in wandb_run.define_metric.call_args_list]
        self.assertIn("a_/acc_", names)
        self.assertFalse([name for name in names if "*" in name])
        for given, name in (("a//b", "a/_/b"), ("../x:y", "_/x_y"), ("/a b/.", "_/a b/_"), ("loss", "loss")):
            self.assertEqual(gossamer.mlflow._metric_name(given), name)

    def test_a_clock_is_written_once_and_again_what_was_logged_since(self):
        writer = mock.Mock()
        with attached() as run:
            gossamer.tensorboard.log(run, writer, every_s=0, prefix="")
            run.log(loss=0.5)
            run.step(8)
            written = [call.args for call in writer.add_scalar.call_args_list]
            self.assertIn(("clock_samples", 8, 8), written)
            self.assertIn(("loss", 0.5, 8), written)
            run.log(loss=0.25)
        self.assertEqual([call.args for call in writer.add_scalar.call_args_list[len(written) :]], [("loss", 0.25, 8)])

    def test_weights_and_biases_gets_rows_with_their_clock_and_no_step(self):
        for commit in (False, True):
            wandb_run = mock.Mock()
            clocks = self.train(lambda run: gossamer.wandb.log(run, wandb_run, every_s=0.01, commit=commit))
            read = {}
            for call in wandb_run.log.call_args_list:
                self.assertEqual(call.kwargs, {"commit": commit})
                for name, value in call.args[0].items():
                    read.setdefault(name, []).append((call.args[0]["gossamer/clock_samples"], value))
            self.check(clocks, read)
            defined = [call.args[0] for call in wandb_run.define_metric.call_args_list]
            self.assertEqual(sorted(defined), sorted(read.keys() - {"gossamer/clock_samples"}))

    def test_mlflow_is_waited_for_only_in_the_call(self):
        client = mock.Mock()
        entities = types.SimpleNamespace(Metric=lambda key, value, timestamp, step: (key, step, value))
        module = mock.Mock(MlflowClient=lambda: client, entities=entities)
        given = types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))
        with mock.patch.dict(sys.modules, mlflow=module):
            clocks = self.train(lambda run: gossamer.mlflow.log(run, given, every_s=0.01))
        read = {}
        for call in client.log_batch.call_args_list:
            self.assertEqual(call.args, ("7",))
            for name, clock, value in call.kwargs["metrics"]:
                read.setdefault(name, []).append((clock, value))
        self.check(clocks, read)
        waits = [call.kwargs["synchronous"] for call in client.log_batch.call_args_list]
        self.assertEqual(waits, [True] + [False] * (len(waits) - 1))

    def test_something_else_is_refused(self):
        module = mock.Mock(active_run=lambda: None)
        with attached() as run, mock.patch.dict(sys.modules, mlflow=module):
            for log, expected in (
                (lambda: gossamer.tensorboard.log(run, "runs/1"), "SummaryWriter .*, not 'runs/1'"),
                (lambda: gossamer.tensorboard.log(None, mock.Mock()), r"run must be what attach\(\) returned, not None"),
                (lambda: gossamer.wandb.log(run, None), r"wandb_run must be what wandb.init\(\) returned, not None"),
                (lambda: gossamer.mlflow.log(run), r"mlflow_run must be .*, given or active, not None"),
                (lambda: gossamer.mlflow.log(run, "7"), r"mlflow_run must be .*, not '7'"),
            ):
                with self.assertRaisesRegex(gossamer.GossamerError, expected):
                    log()


class TensorBoard(Written):
    def written_with(self, make_writer):
        with tempfile.TemporaryDirectory() as folder:
            writer = make_writer(folder)
            clocks = self.train(lambda run: gossamer.tensorboard.log(run, writer, every_s=0.01))
            writer.close()
            self.check(clocks, self.scalars(folder))

    def scalars(self, folder):
        """tag -> [(step, value)], of the only file in the folder: records of length, its CRC, event, its CRC."""
        from tensorboardX.proto import event_pb2

        (path,) = glob.glob(folder + "/*")
        with open(path, "rb") as file:
            data = file.read()
        result, at = {}, 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                number = value.simple_value or (value.tensor.float_val[0] if value.tensor.float_val else 0.0)
                result.setdefault(value.tag, []).append((event.step, number))
        return result

    @needs("tensorboardX")
    def test_figures_are_in_the_file(self):
        import tensorboardX

        self.written_with(tensorboardX.SummaryWriter)

    @needs("tensorboardX")
    @needs("tensorboard")
    def test_figures_are_in_the_file_of_pytorch(self):
        from torch.utils.tensorboard import SummaryWriter

        self.written_with(SummaryWriter)


@needs("wandb")
class WeightsAndBiases(Written):
    @classmethod
    def tearDownClass(cls):
        import wandb

        wandb.teardown()  # the process that writes the files

    @contextlib.contextmanager
    def started(self):
        import wandb

        with tempfile.TemporaryDirectory() as folder:
            settings = wandb.Settings(console="off", x_disable_meta=True, x_disable_stats=True)
            yield wandb.init(project="test", dir=folder, settings=settings), folder

    def records(self, folder):
        """A file of W&B has a header and then the form of LevelDB's logs: blocks of 32 KiB, where a record of the kinds 1
        (whole) or 2, 3 and 4 (its parts) does not cross a block's end."""
        from wandb.proto import wandb_internal_pb2

        (path,) = glob.glob(folder + "/wandb/offline-run-*/*.wandb")
        with open(path, "rb") as file:
            data = file.read()
        records, at, record = [], 7, b""
        while at + 7 < len(data):
            if 32768 - at % 32768 < 7:
                at += 32768 - at % 32768
                continue
            _, length, kind = struct.unpack_from("<IHB", data, at)
            record += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):
                records.append(wandb_internal_pb2.Record.FromString(record))
                record = b""
        return records

    def history(self, folder):
        """The rows, and by name what is drawn over what."""
        self.assertTrue(eventually(lambda: any(record.HasField("exit") for record in self.records(folder))))
        records = self.records(folder)
        rows = [
            {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for record in records
            if record.HasField("history")
        ]
        return rows, {record.metric.name: record.metric.step_metric for record in records if record.HasField("metric")}

    def figures(self, rows, axes):
        """name -> [(clock, value)]"""
        read = {}
        for row in rows:
            for name, value in row.items():
                if name in axes:
                    self.assertEqual(axes[name], "gossamer/clock_samples")
                    read.setdefault(name, []).append((row["gossamer/clock_samples"], value))
        return read

    def test_no_step_of_the_programs_own_is_lost(self):
        with self.started() as (wandb_run, folder):
            own = []

            def log(run):
                gossamer.wandb.log(run, wandb_run, every_s=0)
                run.every(0.005, lambda: own.append(run.clock) or wandb_run.log({"own": run.clock}, step=len(own)))

            clocks = self.train(log)
            wandb_run.finish()
            rows, axes = self.history(folder)
        self.assertEqual([(row["_step"], row["own"]) for row in rows if "own" in row], list(enumerate(own, 1)))
        self.check(clocks, self.figures(rows, axes))

    def test_a_program_that_logs_nothing_itself(self):
        with self.started() as (wandb_run, folder):
            clocks = self.train(lambda run: gossamer.wandb.log(run, wandb_run, every_s=0.01, commit=True))
            wandb_run.finish()
            self.check(clocks, self.figures(*self.history(folder)))


@needs("mlflow")
class Mlflow(Written):
    def setUp(self):
        super().setUp()
        import mlflow

        self.mlflow = mlflow
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        mlflow.set_tracking_uri(f"file://{folder.name}/runs")

    def history(self, run_id):
        """name -> [(step, value)]"""
        self.mlflow.flush_async_logging()
        client = self.mlflow.MlflowClient()
        names = client.get_run(run_id).data.metrics
        histories = {name: client.get_metric_history(run_id, name) for name in names}
        return {name: sorted((one.step, one.value) for one in history) for name, history in histories.items()}

    def test_figures_are_in_the_store(self):
        with self.mlflow.start_run() as mlflow_run:
            clocks = self.train(lambda run: gossamer.mlflow.log(run, every_s=0.01))
        self.check(clocks, self.history(mlflow_run.info.run_id))

    def test_a_name_that_mlflow_does_not_take(self):
        mlflow_run = self.mlflow.start_run()
        self.addCleanup(self.mlflow.end_run)
        with attached() as run:
            gossamer.mlflow.log(run, mlflow_run)
            gossamer.mlflow.log(run, mlflow_run, prefix="/odd/")
            run.log(**{"loss (train)": 0.5, "a//b": 1.5})
            run.step(8)
        read = self.history(mlflow_run.info.run_id)
        self.assertEqual(read["gossamer/loss _train_"], [(8, 0.5)])
        self.assertEqual(read["gossamer/a/_/b"], [(8, 1.5)])
        self.assertEqual(read["_/odd/a/_/b"], [(8, 1.5)])


if __name__ == "__main__":
    unittest.main()
