"""docs/reference/shared-memory.md is enough to write a client. A client in plain Python that knows nothing else trains with a
client that uses the library, and outlives its daemon.
"""

import unittest

import numpy as np

from support import JOB, PATIENCE_S, SystemTest, wait_until
from minimal_client import BUFFER, F32, F64, I64, LOCAL, PARAM, RUNNING, MinimalClient, Refused, Tensor, layout_hash
import gossamer

FRAGMENT_ELEMENTS = 256


class FromTheDocument(SystemTest):
    def setUp(self) -> None:
        super().setUp()
        self.tensors = [
            Tensor("weights", F32, PARAM, (30, 20), [1.0] * 600),
            Tensor("counter", I64, LOCAL, (), []),
            Tensor("größe", F64, PARAM, (700,), [2.0] * 700),
            Tensor("mean", F32, BUFFER, (3,), [3.0] * 3),
        ]
        self.plain = MinimalClient(JOB, self.tensors, FRAGMENT_ELEMENTS)
        self.addCleanup(self.plain.close)

    def plain_values(self) -> np.ndarray:
        return np.concatenate([tensor.values for tensor in self.tensors])

    def test_hashes_of_the_document(self) -> None:
        self.assertEqual(layout_hash(256, []), 0xAA56CC231A259342)
        self.assertEqual(layout_hash(1048576, [Tensor("weights", F32, PARAM, (64, 32), [])]), 0xCCFE3E525E3B522C)

    def test_trains_with_a_client_of_the_library(self) -> None:
        nodes = self.start_nodes(2)
        self.plain.attach(str(nodes[0].client_socket))
        wait_until(lambda: self.plain.step() >= 0 and self.plain.state == RUNNING, PATIENCE_S, "the plain client runs")

        arrays = {
            "weights": np.zeros((30, 20), np.float32),
            "counter": np.zeros((), np.int64),
            "größe": np.zeros(700),
            "mean": np.zeros(3, np.float32),
        }
        run = gossamer.attach(
            arrays,
            job=JOB,
            roles={"counter": "local", "mean": "buffer"},
            socket=str(nodes[1].client_socket),
            fragment_elements=FRAGMENT_ELEMENTS,
            wait=False,
        )
        self.addCleanup(run.close)

        def library_values() -> np.ndarray:
            return np.concatenate([arrays[name].ravel() for name in ("weights", "größe", "mean")])

        def step() -> None:
            self.plain.step()
            run.step()

        def agree_at(expected: np.ndarray) -> bool:
            step()
            return all(np.allclose(values, expected, atol=1e-3) for values in (self.plain_values(), library_values()))

        # The library's client takes over the plain client's first model, and each then gets half of the other's
        # progress.
        model = self.plain_values()
        wait_until(lambda: agree_at(model), PATIENCE_S, "the model of the plain client is taken over")
        self.assertEqual(run.info().layout_hash, layout_hash(FRAGMENT_ELEMENTS, self.tensors))
        for tensor in self.tensors:
            tensor.values[:] = [value + 2 for value in tensor.values]
        wait_until(lambda: agree_at(model + 1), PATIENCE_S, "both have half of what the plain client learned")
        arrays["größe"] += 4
        model[600:1300] += 2
        wait_until(lambda: agree_at(model + 1), PATIENCE_S, "both have half of what the other learned")
        # The daemon counts its neighbours a few times a second.
        wait_until(lambda: self.plain.neighbours == 1, PATIENCE_S, "the neighbour is counted")
        self.assertGreater(self.plain.global_clock, 0)

        nodes[0].kill()
        nodes[0].start()
        self.plain.attach(str(nodes[0].client_socket))
        self.wait_for_links(nodes)
        wait_until(lambda: agree_at(model + 1), PATIENCE_S, "nothing was lost or applied twice with the daemon")
        arrays["weights"] += 2
        model[:600] += 1
        wait_until(lambda: agree_at(model + 1), PATIENCE_S, "and training goes on")

    def test_a_refusal_says_why(self) -> None:
        (node,) = self.start_nodes(1)
        self.plain.attach(str(node.client_socket))
        second = MinimalClient(JOB, self.tensors, 2 * FRAGMENT_ELEMENTS)
        self.addCleanup(second.close)
        with self.assertRaisesRegex(Refused, "^2: .*" + JOB):
            second.attach(str(node.client_socket))


if __name__ == "__main__":
    unittest.main()
