"""A newcomer takes over the model of the job, whole and exact, whatever happens to the nodes that it pulls from."""

import os
import signal
import threading
import unittest

import numpy as np

from support import JOB, PATIENCE_S, Client, SystemTest, gossamer, wait_until

FRAGMENT_ELEMENTS = 1 << 16
FRAGMENTS = 64  # 16 MiB


class Joining(SystemTest):
    def big_model(self) -> np.ndarray:
        return np.random.default_rng(3).standard_normal(FRAGMENTS * FRAGMENT_ELEMENTS - 100).astype(np.float32)

    def test_pulls_the_model_and_the_clock(self) -> None:
        nodes = self.start_nodes(3)
        model = self.big_model()
        donors = [self.attach(nodes[0], model, fragment_elements=FRAGMENT_ELEMENTS)]
        donors.append(self.attach(nodes[1], np.zeros_like(model), fragment_elements=FRAGMENT_ELEMENTS))
        for _ in range(20):
            donors[0].step(samples=100)
        events = []
        joiner = self.attach(
            nodes[2], np.zeros_like(model), fragment_elements=FRAGMENT_ELEMENTS, on_event=lambda event: events.append(event.kind)
        )
        np.testing.assert_array_equal(joiner.array, model)
        kinds = [kind for kind in events if kind is not gossamer.EventKind.NEIGHBOURS]
        self.assertEqual((kinds[0], kinds[-1]), (gossamer.EventKind.ATTACHED, gossamer.EventKind.READY))
        self.step_until(lambda: joiner.run.global_clock >= 2000, "the job's clock is known", [*donors, joiner])
        self.step_until(lambda: joiner.run.stats.exchanges > 0, "the newcomer exchanges", [*donors, joiner])
        stats = joiner.run.stats
        self.assertEqual(stats.neighbours, 2)
        self.assertGreater(stats.bytes_sent + stats.bytes_received, 0)
        job = joiner.job()
        self.assertGreaterEqual(job["pulled_bytes"], model.nbytes)
        self.assertLessEqual(job["pulled_bytes"], 1.2 * model.nbytes)
        self.assertGreater(job["join_s"], 0)

    def test_donor_dies(self) -> None:
        """Kill -9 of one donor in the middle of the pull: the rest comes from the other. At this rate the pull takes more
        than a second, so that its middle is seen on a busy machine, too."""
        nodes = self.start_nodes(3, {"gossip": {"max_mbit_s": 50.0}})
        model = self.big_model()
        donors = [self.attach(nodes[0], model, fragment_elements=FRAGMENT_ELEMENTS)]
        donors.append(self.attach(nodes[1], np.zeros_like(model), fragment_elements=FRAGMENT_ELEMENTS))
        joiner = self.attach(nodes[2], np.zeros_like(model), fragment_elements=FRAGMENT_ELEMENTS, wait=False)
        self.wait_for_the_middle_of_the_pull(joiner)
        nodes[0].kill()
        self.assertTrue(joiner.run.wait(PATIENCE_S))
        np.testing.assert_array_equal(joiner.array, model)
        for node in nodes[1:]:
            node.options["gossip"]["max_mbit_s"] = 0.0
            node.reload()
        self.assert_still_exchanges([donors[1], joiner])

    def wait_for_the_middle_of_the_pull(self, joiner: Client) -> None:
        def some_but_not_all() -> bool:
            joiner.step()
            pulled = joiner.run.info().fragments_pulled
            self.assertFalse(joiner.run.ready, "it was too quick for this test")
            return 0 < pulled < FRAGMENTS

        wait_until(some_but_not_all, PATIENCE_S, "the pull is under way")

    def test_the_link_to_the_only_donor_is_lost_for_a_while(self) -> None:
        """The newcomer's daemon stands still until it counts as dead. It goes on pulling, and does not begin with what it
        has."""
        nodes = self.start_nodes(2, {"gossip": {"max_mbit_s": 50.0}})
        model = self.big_model()
        self.attach(nodes[0], model, fragment_elements=FRAGMENT_ELEMENTS)
        joiner = self.attach(nodes[1], np.zeros_like(model), fragment_elements=FRAGMENT_ELEMENTS, wait=False)
        self.wait_for_the_middle_of_the_pull(joiner)
        os.kill(nodes[1].program.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: nodes[0].status()["neighbours"] == 0, PATIENCE_S, "its link is given up")
        finally:
            os.kill(nodes[1].program.pid, signal.SIGCONT)
        self.assertTrue(joiner.run.wait(PATIENCE_S))
        np.testing.assert_array_equal(joiner.array, model)

    def test_founders_agree_on_one_model(self) -> None:
        """All begin at the same time, each with a model of its own."""
        nodes = self.start_nodes(4)
        models = [np.full(1000, number, np.float32) for number in range(len(nodes))]
        runs = [
            gossamer.attach({"w": model}, job=JOB, socket=str(node.client_socket), wait=False)
            for node, model in zip(nodes, models)
        ]
        waiting = [threading.Thread(target=run.wait, args=(PATIENCE_S,)) for run in runs]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        self.assertTrue(all(run.ready for run in runs))
        for model in models[1:]:
            np.testing.assert_array_equal(model, models[0])
        for run in runs:
            run.close()

    def test_lone_trainer_hands_over_what_it_has_become(self) -> None:
        """While a node has no neighbours nobody needs its training; a newcomer does."""
        nodes = self.start_nodes(2)
        alone = self.attach(nodes[0], np.zeros(1000))
        for _ in range(100):
            alone.array += 1
            alone.step()
        joiner = self.attach(nodes[1], np.full(1000, -7.0), wait=False)
        self.step_until(lambda: joiner.run.ready, "the newcomer has its model")
        np.testing.assert_array_equal(joiner.array, 100)
        np.testing.assert_array_equal(alone.array, 100)


if __name__ == "__main__":
    unittest.main()
