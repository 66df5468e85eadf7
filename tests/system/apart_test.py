"""A program is told what is wrong with its training, above all what keeps it apart from nodes that could take part, and
no longer when nothing is."""

import os
import signal
import unittest
import warnings

import numpy as np

from support import PATIENCE_S, Client, SystemTest, finish_all, gossamer, wait_until


class Apart(SystemTest):
    def wait_for_message(self, client: Client, *parts: str) -> None:
        """Steps until the run's message has these parts; without any, until it is empty."""

        def said() -> bool:
            client.step()
            message = client.run.info().message
            return all(part in message for part in parts) if parts else message == ""

        wait_until(said, PATIENCE_S, f"the program is told {parts}")

    def test_of_another_layout(self) -> None:
        first, second = self.start_nodes(2)
        ours = self.attach(first, np.zeros(1000))
        self.step_until(ours.run.info().ready.__bool__, "it runs")
        theirs = self.attach(second, np.zeros(1001))
        for client, other in ((ours, theirs), (theirs, ours)):
            self.wait_for_message(client, "another layout", other.called)
        theirs.run.close()
        self.clients.remove(theirs)
        self.wait_for_message(ours)
        self.attach(second, np.zeros(1000))
        self.assert_still_exchanges(self.clients)
        self.assertEqual([client.run.info().message for client in self.clients], ["", ""])

    def test_of_a_name_that_is_mistyped(self) -> None:
        first, second = self.start_nodes(2)
        right = self.attach(first, np.zeros(1000), job="resnet50")
        wrong = self.attach(second, np.zeros(1000), job="resnet5O")
        other = self.attach(second, np.zeros(1000), job="llama")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            right.step()
            other.step()
            self.wait_for_message(wrong, "others run resnet50", "mistyped")

            def warned() -> bool:
                wrong.step()
                return any("job 'resnet5O': no other node in reach runs" in str(one.message) for one in caught)

            wait_until(warned, PATIENCE_S, "the program is warned")
        self.assertEqual(other.run.info().message, "")

    def test_of_others_that_hold_nan(self) -> None:
        first, second, third = self.start_nodes(3)
        spoiled = [self.attach(node, np.full(1000, np.nan), wait=False) for node in (first, second)]
        self.step_until(lambda: all(one.run.info().state.name == "QUARANTINED" for one in spoiled), "they run")
        joiner = self.attach(third, np.zeros(1000), wait=False)
        self.wait_for_message(joiner, "every other node in reach that runs the job holds NaN")
        spoiled[0].array[:] = 0
        self.step_until(lambda: joiner.run.info().message == "", "one of them is sound")

    def test_of_a_daemon_that_stands_still(self) -> None:
        first, second = self.start_nodes(2)
        client = self.attach(first, np.zeros(1000))
        self.attach(second, np.zeros(1000))
        self.step_until(lambda: client.run.info().neighbours == 1, "it runs")
        assert first.program is not None
        first.program.signal(signal.SIGSTOP)
        try:
            self.wait_for_message(client, "gossamerd has not looked at this run for ten seconds")
        finally:
            first.program.signal(signal.SIGCONT)
        self.wait_for_message(client)

    def test_of_a_program_that_holds_the_end_up(self) -> None:
        first, second = self.start_nodes(2)
        ends, idles = (self.attach(node, np.zeros(1000)) for node in (first, second))
        self.step_until(lambda: ends.run.info().neighbours == 1, "both run")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = ends.run.finish(timeout_s=22)
        self.assertFalse(found.agreed)
        told = [str(one.message) for one in caught]
        waits = f"the end of the run waits for the program of {idles.called}, which neither finishes"
        self.assertEqual(["the end of the run waits" in text for text in told], [True, True], told)
        self.assertIn(waits, told[0])
        self.assertIn("has not ended within 22 s, so this model is this process's own", told[1])
        note = idles.job()["note"]
        self.assertRegex(note, "its programs have not trained for [0-9]+ s")
        idles.step(100)
        self.assertTrue(all(end.agreed for end in finish_all([ends, idles])))
        wait_until(lambda: ends.job()["note"] == idles.job()["note"] == "", PATIENCE_S, "nothing is wrong any more")

    def test_of_a_program_of_the_same_node_that_holds_the_end_up(self) -> None:
        (node,) = self.start_nodes(1)
        ends, idles = self.attach(node, np.zeros(1000)), self.attach(node, np.zeros(1000))
        self.step_until(lambda: all(one.run.info().ready for one in (ends, idles)), "both run")
        waits = f"the end of the run waits for another run of process {os.getpid()} of this node, which neither finishes"
        with self.assertWarnsRegex(gossamer.GossamerWarning, waits):
            found = ends.run.finish(timeout_s=20)
        self.assertEqual((found.agreed, found.clock), (False, ends.run.global_clock))
        self.assertTrue(all(end.agreed for end in finish_all([ends, idles])))

    def test_of_one_program_of_a_node_that_stands_still(self) -> None:
        (node,) = self.start_nodes(1)
        trains, stands = self.attach(node, np.zeros(1000)), self.attach(node, np.zeros(1000))
        self.step_until(lambda: all(one.run.info().ready for one in (trains, stands)), "both run")
        says = f"process {os.getpid()} has not trained for"
        self.step_until(lambda: says in trains.job()["note"], "it is told of", [trains])
        stands.step(1)
        self.step_until(lambda: says not in trains.job()["note"], "it trains again", [trains, stands])

    def test_of_a_model_that_grows_without_bound(self) -> None:
        clients = [self.attach(node, np.ones(1000)) for node in self.start_nodes(3)]
        self.step_until(lambda: all(one.run.info().neighbours == 2 for one in clients), "all run")

        def told() -> bool:
            clients[1].array *= 1.05  # grows as with too large a learning rate
            for client in clients:
                client.step()
            messages = [one.run.info().message for one in clients]
            return all(text.startswith("the model grows without") and text.endswith("smaller learning rate") for text in messages)

        wait_until(told, PATIENCE_S, "all programs are told")
        self.assertTrue(all(np.isfinite(one.array).all() for one in clients))
        self.assertIn("grows without bound", clients[0].job()["note"])

    def test_of_a_checkpoint_that_joining_has_replaced(self) -> None:
        first, second = self.start_nodes(2)
        begins = self.attach(first, np.zeros(1000))
        self.step_until(lambda: begins.run.info().ready, "it runs")
        begins.step(9600)
        wait_until(lambda: begins.job()["clock"] >= 9600, PATIENCE_S, "its daemon knows")
        resumes = self.attach(second, np.ones(1000), initial_clock=25600)
        self.wait_for_message(resumes, "the job's model, which has seen 9", "had seen 25600")
        same = self.attach(second, np.ones(1000), job="other", initial_clock=25600)
        self.step_until(lambda: same.run.info().ready, "it begins")
        joins = self.attach(first, np.ones(1000), job="other", initial_clock=25600)
        self.step_until(lambda: joins.run.info().ready, "it joins")
        self.assertEqual(joins.run.info().message, "")

    def test_of_clocks_that_differ_at_the_end(self) -> None:
        """Where one is far more than twice as fast as all others, and so is not believed."""
        clients = [self.attach(node, np.zeros(1000)) for node in self.start_nodes(3)]
        self.step_until(lambda: all(one.run.info().neighbours == 2 for one in clients), "all run")
        for client, samples in zip(clients, (50_000, 1000, 1000)):
            client.step(samples)
        wait_until(lambda: clients[0].job()["clock"] >= 50_000, PATIENCE_S, "the daemon knows")
        self.assertFalse(clients[1].run.finish(0.1).agreed)
        self.assertEqual(clients[1].job()["note"], "", "it is not over yet")
        finish_all(clients)
        told = f"the clocks at its end differ: {clients[0].called} has seen"
        wait_until(lambda: told in clients[1].job()["note"], PATIENCE_S, "it stands where people look")
        messages = [client.run.info().message for client in clients]
        self.assertRegex(messages[0], "this node had counted 5[0-9]{4} samples when no other had more than 1[0-9]{3},")
        self.assertEqual(messages[1:], ["", ""])


if __name__ == "__main__":
    unittest.main()
