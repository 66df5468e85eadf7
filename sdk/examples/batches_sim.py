"""What the setting weights=samples is worth, simulated: handwritten digits on eight nodes, six of which have batches of 2 and
two of 64. Needs NumPy and gossamer-sim; no daemon runs.
python3 batches_sim.py [--optimizer adam|sgd] [--rate 0.01] [--every 4] [--seeds 5] [--steps 400]
"""

import argparse

import numpy as np

import digits
import gossamer.sim

BATCHES = [2] * 6 + [64] * 2
STEP_MS = 50

parser = argparse.ArgumentParser(description="Nodes with batches of different size.")
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--every", type=int, default=4, help="steps between two exchanges")
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
images, labels, test_images, test_labels = digits.load()


class Replica:
    def __init__(self, node, seed):
        first = np.random.default_rng(seed)
        self.model = {
            "w1": first.normal(size=(64, 48)) * np.sqrt(2 / 64),
            "b1": np.zeros(48),
            "w2": first.normal(size=(48, 10)) * np.sqrt(1 / 48),
            "b2": np.zeros(10),
        }
        self.random = np.random.default_rng([seed, node])
        self.moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in self.model.items()}
        self.steps = 0


def outputs(model, inputs):
    hidden = np.maximum(inputs @ model["w1"] + model["b1"], 0)
    scores = hidden @ model["w2"] + model["b2"]
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, shares / shares.sum(axis=1, keepdims=True)


def train_step(replica, node):
    model = replica.model
    batch = replica.random.integers(0, len(images), BATCHES[node])
    inputs = images[batch].astype(np.float64)
    hidden, error = outputs(model, inputs)
    error[np.arange(len(batch)), labels[batch]] -= 1
    error /= len(batch)
    back = (error @ model["w2"].T) * (hidden > 0)
    gradients = {"w1": inputs.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
    replica.steps += 1
    for name, gradient in gradients.items():
        if options.optimizer == "sgd":
            model[name] -= options.rate * gradient
            continue
        mean, square = replica.moments[name]
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        length = np.sqrt(square / (1 - 0.999**replica.steps)) + 1e-8
        model[name] -= options.rate * mean / (1 - 0.9**replica.steps) / length
    return BATCHES[node]


def evaluate(replica):
    _, shares = outputs(replica.model, test_images)
    right = np.maximum(shares[np.arange(len(test_labels)), test_labels], 1e-12)
    return float(-np.log(right).mean()), float((shares.argmax(axis=1) == test_labels).mean())


def simulate(weights, seed):
    result = gossamer.sim.run(
        lambda node: Replica(node, seed),
        train_step,
        evaluate,
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
