"""What the setting weights=samples is worth, simulated: handwritten digits on eight nodes, six of which have batches of 2 and
two of 64. Needs NumPy and gossamer-sim; no daemon runs.
python3 batches_sim.py [--optimizer adam|sgd] [--rate 0.01] [--every 4] [--seeds 5] [--steps 400]
"""

import argparse

import numpy as np

import gossamer.sim
import perceptron

BATCHES = [2] * 6 + [64] * 2
STEP_MS = 50

parser = argparse.ArgumentParser(description="Nodes with batches of different size.")
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--every", type=int, default=4, help="steps between two exchanges")
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()


def train_step(replica, node):
    return replica.train(replica.random.integers(0, len(perceptron.images), BATCHES[node]))


def simulate(weights, seed):
    result = gossamer.sim.run(
        lambda node: perceptron.Replica(node, seed, options.optimizer, options.rate),
        train_step,
        perceptron.evaluate,
        nodes=len(BATCHES),
        seconds=options.steps * STEP_MS / 1000,
        step_ms=STEP_MS,
        settings={"weights": weights, "period_ms": STEP_MS * options.every},
        seed=seed,
        evaluations=8,
    )
    return [(record["loss"], record["accuracy"]) for record in result.records]


print("weights   loss halfway      loss at the end   accuracy")
for weights in ("equal", "samples"):
    runs = np.array([simulate(weights, seed) for seed in range(1, options.seeds + 1)])
    losses, half = runs[:, :, 0], runs.shape[1] // 2
    columns = [f"{losses[:, at].mean():.4f} ± {losses[:, at].std():.4f}" for at in (half, -1)]
    print(f"{weights:9} {columns[0]:17} {columns[1]:17} {runs[:, -1, 1].mean():.4f}")
