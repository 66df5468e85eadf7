"""gossamerctl keep and the method server: nodes that hold a model without training it, and own its parts."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import unittest
from typing import Callable, List

import numpy as np

from support import BUILD, JOB, PATIENCE_S, Client, Node, SystemTest, gossamer, start_program, wait_until

FRAGMENT_ELEMENTS = 256
ELEMENTS = 10 * FRAGMENT_ELEMENTS - 7
SERVER = {"method": "server"}


class Keep(SystemTest):
    def keep(self, node: Node, *options: str, wait: bool = True) -> subprocess.Popen:
        keeper = start_program(
            self,
            [str(BUILD / "bin" / "gossamerctl"), "--socket", str(node.control_socket), "keep", JOB, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if wait:
            self.step_until(lambda: self.is_kept(node), f"{node.name} keeps the job")
        return keeper

    def is_kept(self, node: Node) -> bool:
        job = node.job(JOB)
        return job is not None and job["state"] == "running" and all(one["keeps"] for one in job["processes"])

    def trainers(self, nodes: List[Node], **options: object) -> List[Client]:
        return [self.attach(node, np.zeros(ELEMENTS), fragment_elements=FRAGMENT_ELEMENTS, **options) for node in nodes]

    def exchanges_with(self, node: Node, other: Node) -> int:
        partners = {partner["node"]: partner for partner in node.job(JOB)["partners"]}
        return partners[other.status()["node"]]["exchanges"]

    def train(self, workers: List[Client], by: List[float]) -> None:
        """Each worker trains by so much at once. They come to hold one model, moved by about the mean of that: how far
        exactly depends on who came first."""
        begun = np.mean(workers[0].array)
        for worker, change in zip(workers, by):
            worker.array += change

        def is_settled() -> bool:
            moved = np.mean(workers[0].array) - begun
            return self.are_alike(workers) and np.abs(moved - np.mean(by)) <= 0.25 * np.abs(by).max() + 1e-3

        self.step_until(is_settled, f"all have moved by {np.mean(by)}")

    def are_alike(self, workers: List[Client]) -> bool:
        return all(np.abs(worker.array - workers[0].array).max() < 1e-3 for worker in workers)

    def finish(self, clients: List[Client]) -> None:
        results = {}

        def finish_one(client: Client) -> None:
            results[client] = client.run.finish(timeout_s=PATIENCE_S)

        threads = [threading.Thread(target=finish_one, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(all(result.agreed and result.members == 2 for result in results.values()), results)
        self.assertEqual(sum(result.saver for result in results.values()), 1)

    def test_a_server_that_was_away_takes_the_others_model_over(self) -> None:
        """Killed, stopped or drained for a while, it must not draw the others back."""
        nodes = self.start_nodes(3)
        workers = self.trainers(nodes[:2], settings=SERVER)
        self.keep(nodes[2])
        self.train(workers, [2.0, 2.0])

        def away(go: Callable[[], None], come: Callable[[], None]) -> None:
            go()
            until = time.monotonic() + 3
            wait_until(lambda: not self.is_server(nodes[0]), PATIENCE_S, "the server is seen to be away")
            begun = np.mean(workers[0].array)
            for client in workers:
                client.array += 10
            self.step_until(lambda: time.monotonic() > until, "a while", workers)
            come()
            self.step_until(lambda: self.is_server(nodes[0]), "it is back", workers)
            self.step_until(lambda: self.are_alike(workers), "they hold one model", workers)
            self.assertGreater(np.mean(workers[0].array) - begun, 9)

        away(nodes[2].kill, nodes[2].start)
        away(lambda: nodes[2].program.signal(signal.SIGSTOP), lambda: nodes[2].program.signal(signal.SIGCONT))

    def is_server(self, node: Node) -> bool:
        partners = node.job(JOB)["partners"]
        return any(partner["keeps"] and partner["linked"] and partner["state"] == "running" for partner in partners)

    def test_newcomers_get_the_model_when_all_that_trained_it_have_gone(self) -> None:
        """Also a model of many tensors, some of them not averaged, and some kept in other types."""
        nodes = self.start_nodes(2)
        tensors = {f"layer-{number}.weight": np.full((3, 5), number, np.float32) for number in range(150)}
        tensors["wide"] = np.full(700, -2.5, np.float64)
        run = gossamer.attach(tensors, job=JOB, socket=str(nodes[0].client_socket))
        self.addCleanup(run.close)
        keeper = self.keep(nodes[1], wait=False)

        def kept() -> bool:
            run.step()
            return self.is_kept(nodes[1])

        wait_until(kept, PATIENCE_S, "the job is kept")
        run.close()
        wait_until(lambda: nodes[0].job(JOB) is None, PATIENCE_S, "the trainer's node has let the job go")
        again = {name: np.zeros_like(values) for name, values in tensors.items()}
        joiner = gossamer.attach(again, job=JOB, socket=str(nodes[0].client_socket))
        self.addCleanup(joiner.close)
        self.assertTrue(joiner.ready)
        for name, values in tensors.items():
            np.testing.assert_array_equal(again[name], values)
        self.assertIn("kept, 2950 numbers", self.end(keeper))

    def end(self, keeper: subprocess.Popen) -> str:
        """Its words on the way."""
        keeper.send_signal(signal.SIGTERM)
        out, words = keeper.communicate(timeout=PATIENCE_S)
        self.assertEqual(keeper.returncode, 0, words)
        self.assertIn("is no longer kept here", out)
        return words

    def test_workers_exchange_with_the_servers_only(self) -> None:
        nodes = self.start_nodes(4)
        workers = self.trainers(nodes[:2], settings=SERVER)
        keepers = [self.keep(node) for node in nodes[2:]]
        before = self.exchanges_with(nodes[0], nodes[1])
        self.train(workers, [4.0, -8.0])
        for worker in nodes[:2]:
            for keeper in nodes[2:]:
                self.assertGreater(self.exchanges_with(worker, keeper), 0)
        self.assertEqual(self.exchanges_with(nodes[0], nodes[1]), before)
        # One keeper goes, with what it had got. The other keeper now owns all fragments.
        self.end(keepers[0])
        self.train(workers, [3.0, 0.0])
        # The daemon of the other keeper is killed, and the keeper goes on with the next daemon.
        nodes[3].kill()
        nodes[3].start()
        self.train(workers, [0.0, 6.0])

    def test_with_few_bits_the_servers_hold_what_all_have_learned_to_the_end(self) -> None:
        nodes = self.start_nodes(4)
        workers = self.trainers(nodes[:2], settings={**SERVER, "codec": "q4"})
        for node in nodes[2:]:
            self.keep(node)
        pattern = 1 + np.random.default_rng(7).random(ELEMENTS, dtype=np.float32)
        steps, progress = 600, [0.001, 0.003]
        for step in range(steps):
            for worker, each in zip(workers, progress):
                worker.array += each * pattern
                worker.run.step(1)
            time.sleep(0.004)
            # On a busy machine few pushes would carry all progress, and the last of them would count for more.
            if step % 20 == 0:
                told = [worker.job()["exchanges"] for worker in workers]
                self.step_until(lambda: self.have_exchanged(workers, told, 40), "all have pushed", workers)
        self.finish(workers)
        learned = workers[0].array / (pattern * steps * np.mean(progress))
        np.testing.assert_allclose(learned.mean(), 1, atol=0.03)
        np.testing.assert_allclose(learned, 1, atol=0.1)

    def have_exchanged(self, workers: List[Client], since: List[int], more: int) -> bool:
        return all(worker.job()["exchanges"] >= begun + more for worker, begun in zip(workers, since))

    def test_trainers_of_a_job_that_nobody_keeps_own_it(self) -> None:
        nodes = self.start_nodes(3)
        workers = self.trainers(nodes, settings=SERVER)
        workers[0].array += 9
        self.converge(workers, np.full(ELEMENTS, 9.0))

    def test_a_keeper_beside_a_trainer_takes_nothing_from_it(self) -> None:
        nodes = self.start_nodes(2)
        alone = self.trainers(nodes[:1])[0]
        self.keep(nodes[0], wait=False)
        self.step_until(lambda: alone.job()["clients"] == 2, "both are attached")
        self.step_until(lambda: not any(one["state"] == "joining" for one in alone.job()["processes"]), "both run")
        self.assertEqual(alone.run.info().clients, 1, "who keeps the job gets no share of the data")
        other = self.attach(nodes[1], np.full(ELEMENTS, -7.0), fragment_elements=FRAGMENT_ELEMENTS, wait=False)
        self.step_until(lambda: other.run.ready, "the newcomer has the model")
        for _ in range(50):
            alone.array += 1
            alone.step()
        self.converge([alone, other], np.full(ELEMENTS, 50.0))
        self.finish([alone, other])
        self.assertLessEqual(other.run.info().global_clock, max(alone.run.clock, other.run.clock))

    def test_whoever_finishes_late_hears_that_a_trainer_beside_a_keeper_has_finished(self) -> None:
        nodes = self.start_nodes(2)
        [early] = self.trainers(nodes[:1])
        self.keep(nodes[0], wait=False)
        self.step_until(lambda: early.job()["clients"] == 2, "both are attached")
        late = self.attach(nodes[1], np.zeros(ELEMENTS), fragment_elements=FRAGMENT_ELEMENTS)
        nodes[1].program.signal(signal.SIGSTOP)
        results = [early.run.finish(timeout_s=PATIENCE_S)]
        nodes[1].program.signal(signal.SIGCONT)
        results.append(late.run.finish(timeout_s=PATIENCE_S))
        self.assertTrue(all(result.agreed for result in results), results)

    def check_that_it_follows(self, trainers: List[Client], trained_at: List[Node], keeper: Node, late: Node) -> None:
        """Also after they were alike, when it has nothing to give to those that train."""
        self.keep(keeper)

        def exchanges() -> int:
            return min(self.exchanges_with(node, keeper) for node in trained_at)

        begun = exchanges()
        self.step_until(lambda: exchanges() > begun + 50, "they are alike")
        for trainer in trainers:
            trainer.array += 5
            trainer.step()
        begun = exchanges()
        self.step_until(lambda: exchanges() > begun + 500, "the keeper has asked again")
        for trainer in trainers:
            np.testing.assert_array_equal(trainer.array, np.full(ELEMENTS, 5), "a keeper gives nothing")
        for node in trained_at:
            node.kill()
        newcomer = self.attach(late, np.full(ELEMENTS, -7.0), fragment_elements=FRAGMENT_ELEMENTS, wait=False)
        self.step_until(lambda: newcomer.run.ready, "the newcomer has the model", [newcomer])
        self.assertLess(np.abs(newcomer.array - 5).max(), 0.1)

    def test_a_keeper_follows_one_that_trains_alone(self) -> None:
        nodes = self.start_nodes(3)
        self.check_that_it_follows(self.trainers(nodes[:1]), nodes[:1], nodes[1], nodes[2])

    def test_a_keeper_follows_those_that_average_exactly(self) -> None:
        """Also two processes of one node, with a keeper beside them: no keeper brings them anything, not even what
        rounding takes away."""
        nodes = self.start_nodes(4)
        settings = {"method": "average", "period_ms": 100}
        trainers = self.trainers([nodes[0], nodes[0], nodes[1]], settings=settings)
        beside = self.keep(nodes[0], wait=False)
        self.step_until(lambda: nodes[0].job(JOB)["clients"] == 3, "the keeper beside them has come")
        taken = [trainer.run.info().corrections for trainer in trainers]  # of the model that was there before
        self.check_that_it_follows(trainers, nodes[:2], nodes[2], nodes[3])
        self.assertEqual([trainer.run.info().corrections for trainer in trainers], taken)
        self.assertIsNone(beside.poll())

    def test_those_that_only_a_keeper_joins_finish(self) -> None:
        nodes = self.start_nodes(3)
        trainers = self.trainers(nodes[:2], settings=SERVER)
        self.keep(nodes[2])
        self.train(trainers, [2.0, 0.0])
        trained = trainers[0].array.copy()
        self.finish(trainers)
        self.assertLess(np.abs(trainers[0].array - trained).max(), 0.01)
        for client in trainers:
            client.step()  # trains again
        self.assert_still_exchanges(trainers)

    def test_nothing_to_keep(self) -> None:
        nodes = self.start_nodes(2)
        nobody = self.keep(nodes[0], "--wait", "0.3", wait=False)
        _, words = nobody.communicate(timeout=PATIENCE_S)
        self.assertEqual(nobody.returncode, 3)
        self.assertIn(f"no node in reach runs job {JOB}", words)
        # Two models under one name are told apart, and the message names both.
        for node, size in zip(nodes, (300, 400)):
            self.attach(node, np.zeros(size))
        third = self.cluster.start("node-3")
        self.wait_for_links([*nodes, third])
        confused = self.keep(third, "--wait", "5", wait=False)
        _, words = confused.communicate(timeout=PATIENCE_S)
        self.assertEqual(confused.returncode, 3)
        self.assertIn("with different models", words)

    def test_it_ends_as_asked(self) -> None:
        nodes = self.start_nodes(1)
        waiting = self.keep(nodes[0], wait=False)
        trainer = self.trainers(nodes)[0]
        self.step_until(lambda: trainer.job()["clients"] == 2, "the keeper has come")
        waiting.send_signal(signal.SIGINT)
        self.assertEqual(waiting.wait(PATIENCE_S), 0)
        as_json = self.keep(nodes[0], "--json", wait=False)
        self.step_until(lambda: trainer.job()["clients"] == 2, "the next keeper has come")
        as_json.send_signal(signal.SIGTERM)
        out, _ = as_json.communicate(timeout=PATIENCE_S)
        self.assertEqual(json.loads(out)["job"], JOB)


if __name__ == "__main__":
    unittest.main()
