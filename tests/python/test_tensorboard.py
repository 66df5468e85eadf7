"""gossamer.tensorboard.log() with a real writer, whose file is read back. Skipped, and saying so, without one."""

import glob
import struct
import sys
import tempfile
import unittest

writers = {}
try:
    import tensorboardX
    from tensorboardX.proto import event_pb2

    writers["tensorboardX"] = tensorboardX.SummaryWriter
except ImportError as error:
    print(f"SKIPPED: no writer can be imported ({error}); tools/test --frameworks installs tensorboardX", file=sys.stderr)
    sys.exit(77)  # CTest: skipped
try:
    from torch.utils.tensorboard import SummaryWriter

    writers["torch"] = SummaryWriter
except ImportError:
    pass  # needs tensorboard itself

import numpy as np

import gossamer
import gossamer.tensorboard
from contract_daemon import BYTES_SENT, CONSENSUS, ContractDaemon, eventually


def scalars(folder):
    """tag -> [(step, value)], of the only file in the folder: records of length, its CRC, event, its CRC."""
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


class Log(unittest.TestCase):
    def test_figures_are_in_the_file(self):
        for name, make_writer in writers.items():
            with self.subTest(writer=name), tempfile.TemporaryDirectory() as folder, ContractDaemon() as daemon:
                writer = make_writer(folder)
                with gossamer.attach([np.zeros(3, np.float32)], job="test", socket=daemon.path) as run:
                    client = daemon.client()
                    client.set_u64(BYTES_SENT, 4096)
                    client.set_f64(CONSENSUS, 0.25)
                    gossamer.tensorboard.log(run, writer, every_s=0.01)
                    steps, times = [], []
                    run.every(0.01, lambda: times.append(len(steps)))
                    self.assertTrue(eventually(lambda: run.step(8) or steps.append(1) or len(times) == 2))
                writer.close()
                read = scalars(folder)
                self.assertEqual(read["gossamer/clock_samples"][-1], (len(steps), 8 * len(steps)))
                self.assertEqual(read["gossamer/bytes_sent"][-1][1], 4096)
                self.assertEqual(read["gossamer/consensus"][-1][1], 0.25)
                self.assertLessEqual(2, len(read["gossamer/neighbours"]))
                self.assertLess(len(read["gossamer/neighbours"]), len(steps))


if __name__ == "__main__":
    unittest.main()
