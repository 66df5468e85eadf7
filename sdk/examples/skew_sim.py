"""What sharing Adam's second moments and correcting the drift are worth where each node sees other labels, simulated:
handwritten digits sorted by label, on eight nodes. Needs NumPy and gossamer-sim; no daemon runs.
python3 skew_sim.py [--optimizer adam] [--rate 0.01] [--every 4] [--seeds 5] [--steps 1500] [--mixed]
"""

import argparse

import numpy as np

import gossamer.sim
import perceptron

NODES, BATCH, STEP_MS = 8, 16, 50

parser = argparse.ArgumentParser(description="Nodes that see different labels.")
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--every", type=int, default=4, help="steps between two exchanges")
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--mixed", action="store_true", help="every node sees all labels")
options = parser.parse_args()


def simulate(seed, settings, roots=False, drift=False, nodes=NODES):
    order = np.random.default_rng(seed).permutation(len(perceptron.images))
    if not options.mixed:
        order = np.argsort(perceptron.labels, kind="stable")
    shards = np.array_split(order, nodes)

    def train_step(replica, node):
        # The rate falls to nothing, as it does in most trainings.
        replica.rate = options.rate * 0.5 * (1 + np.cos(np.pi * min(1, replica.steps / options.steps)))
        return replica.train(replica.random.choice(shards[node], BATCH * NODES // nodes))

    result = gossamer.sim.run(
        lambda node: perceptron.Replica(node, seed, options.optimizer, options.rate, roots, drift),
        train_step,
        perceptron.evaluate,
        nodes=nodes,
        seconds=options.steps * STEP_MS / 1000,
        step_ms=STEP_MS,
        settings=settings,
        seed=seed,
        evaluations=2,
    )
    return result.records[-1]["loss"], result.records[-1]["accuracy"]


each_step = {"method": "average", "average_steps": 1}
rows = {"exact mean, each step": (each_step,), "exact mean, each step, moments shared": (each_step, True)}
for name, settings in {
    "gossip": {"period_ms": STEP_MS * options.every},
    "exact mean": {"method": "average", "average_steps": options.every},
}.items():
    rows[name] = (settings,)
    rows[f"{name}, drift corrected"] = (settings, False, True)
    rows[f"{name}, moments shared"] = (settings, True)
    rows[f"{name}, both"] = (settings, True, True)
rows["nobody exchanges"] = ({"method": "alone"},)
# What exact averages of gradients give: one node, with the data and the batches of all.
rows["synchronous"] = ({"method": "alone"}, False, False, 1)
if options.optimizer == "sgd":  # it has no second moments
    rows = {name: arguments for name, arguments in rows.items() if not any(arguments[1:2])}
print(f"{'':38} loss               accuracy")
for name, arguments in rows.items():
    runs = np.array([simulate(seed, *arguments) for seed in range(1, options.seeds + 1)])
    (loss, accuracy), spread = runs.mean(axis=0), runs.std(axis=0)
    print(f"{name:38} {loss:.4f} ± {spread[0]:.4f}    {accuracy:.4f} ± {spread[1]:.4f}", flush=True)
