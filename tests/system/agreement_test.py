"""Four daemons average the models of four trainers, with every codec: they agree, and nothing is added or lost."""

import unittest

import numpy as np

from support import SystemTest, total, train_at_random

ELEMENTS = 10_000
FRAGMENT_ELEMENTS = 4096  # two whole fragments, and one that ends within a block


class Agreement(SystemTest):
    def replicas_agree(self, codec: str) -> None:
        nodes = self.start_nodes(4, {"gossip": {"codec": codec}})
        random = np.random.default_rng(7)
        first = random.standard_normal(ELEMENTS)
        clients = [self.attach(nodes[0], first, fragment_elements=FRAGMENT_ELEMENTS)]
        for node in nodes[1:]:
            # The newcomer's model is replaced by the job's.
            clients.append(self.attach(node, np.zeros(ELEMENTS), fragment_elements=FRAGMENT_ELEMENTS))
            np.testing.assert_array_equal(clients[-1].array, clients[0].array)

        for client in clients:
            client.array += random.standard_normal(ELEMENTS).astype(np.float32)
        before = total(clients)
        self.converge(clients, before)
        np.testing.assert_allclose(clients[0].array, before / 4, rtol=0, atol=2e-4)

        jobs = [client.job() for client in clients]
        for job in jobs:
            self.assertEqual(job["unresolved"], 0)
            self.assertEqual(job["codec"], codec)
            self.assertEqual(job["fragments"], 3)
            self.assertGreater(job["exchanges"], 0)

    def test_f32(self) -> None:
        self.replicas_agree("f32")

    def test_q8(self) -> None:
        self.replicas_agree("q8")

    def test_q4(self) -> None:
        self.replicas_agree("q4")

    def test_sum_holds_while_training(self) -> None:
        """Each trainer makes known additions; the sum is the sum of these."""
        nodes = self.start_nodes(4)
        clients = [self.attach(node, np.zeros(ELEMENTS), fragment_elements=FRAGMENT_ELEMENTS) for node in nodes]
        added = train_at_random(clients, 300, np.random.default_rng(8))
        self.converge(clients, added)

    def test_codecs_differ_in_bytes(self) -> None:
        """Payload bytes of a message: for q8 a quarter of those for f32, for q4 an eighth, and a little for the
        blocks."""
        bytes_each = {codec: self.payload_bytes_each(codec) for codec in ("f32", "q8", "q4")}
        self.assertAlmostEqual(bytes_each["f32"] / bytes_each["q8"], 4, delta=0.3)
        self.assertAlmostEqual(bytes_each["f32"] / bytes_each["q4"], 8, delta=0.8)

    def payload_bytes_each(self, codec: str) -> float:
        """The bytes of a request or a reply between two replicas that exchange."""
        nodes = [self.cluster.start(f"{codec}-{index}", {"gossip": {"codec": codec}}) for index in range(2)]
        clients = [self.attach(node, np.zeros(65536)) for node in nodes]

        def messages_and_bytes() -> np.ndarray:
            """An exchange is a request and a reply. A request that is answered with "busy" was also sent."""
            jobs = [client.job() for client in clients]
            return np.sum([[job["exchanges"] + job["busy"], job["payload_bytes_sent"]] for job in jobs], axis=0)

        self.step_until(lambda: messages_and_bytes()[0] >= 50, "the first exchanges", clients)
        before = messages_and_bytes()
        self.step_until(lambda: messages_and_bytes()[0] >= before[0] + 500, "250 exchanges", clients)
        messages, payload_bytes = messages_and_bytes() - before
        for client in clients:
            client.run.close()
            self.clients.remove(client)
        for node in nodes:
            self.assertEqual(node.stop(), 0)
            self.cluster.nodes.remove(node)
        return payload_bytes / messages


if __name__ == "__main__":
    unittest.main()
