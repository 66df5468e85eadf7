"""A perceptron with one hidden layer on the digits, in NumPy, and the optimisers that the simulated examples train it with:
plain SGD and Adam (Kingma & Ba 2015, algorithm 1)."""

import numpy as np

import digits
from gossamer._drift import DriftCorrection

images, labels, test_images, test_labels = digits.load()
HIDDEN = 48


class Replica:
    """One node's model, an optimizer's state, and its own random numbers. With `roots`, the roots of Adam's second moments
    are part of the model, as the option share_second_moments of gossamer.torch.attach() has it. With `drift`, steps leave out
    what exchanges lead back, as correct_drift has it."""

    def __init__(self, node, seed, optimizer, rate, roots=False, drift=False):
        first = np.random.default_rng(seed)
        self.weights = {
            "w1": first.normal(size=(64, HIDDEN)) * np.sqrt(2 / 64),
            "b1": np.zeros(HIDDEN),
            "w2": first.normal(size=(HIDDEN, 10)) * np.sqrt(1 / HIDDEN),
            "b2": np.zeros(10),
        }
        self.model = dict(self.weights)
        self.roots = {name: np.zeros_like(w) for name, w in self.weights.items()} if roots else {}
        self.model.update({f"{name}.root": root for name, root in self.roots.items()})
        self.moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in self.weights.items()}
        self.random = np.random.default_rng([seed, node])
        self.optimizer, self.rate, self.steps = optimizer, rate, 0
        self.drift = Drift(self.weights) if drift else None

    def train(self, batch):
        """One step on the images with these indices. Returns their number."""
        if self.drift:
            self.drift.before_step()
        inputs = images[batch].astype(np.float64)
        hidden, error = outputs(self.weights, inputs)
        error[np.arange(len(batch)), labels[batch]] -= 1
        error /= len(batch)
        back = (error @ self.weights["w2"].T) * (hidden > 0)
        gradients = {"w1": inputs.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
        self.steps += 1
        for name, gradient in gradients.items():
            if self.optimizer == "sgd":
                self.weights[name] -= self.rate * gradient
            else:
                self.step_of_adam(name, gradient)
        if self.drift:
            self.drift.after_step()
        return len(batch)

    def step_of_adam(self, name, gradient):
        mean, square = self.moments[name]
        bias = 1 - 0.999**self.steps
        if name in self.roots and self.steps > 1:
            # Exchanges have changed the root. The mean of two roots is at least half of either.
            before = 1 - 0.999 ** (self.steps - 1)
            least = np.sqrt(square / before) / 2
            square[:] = np.maximum(self.roots[name], least) ** 2 * before
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        length = np.sqrt(square / bias)
        if name in self.roots:
            self.roots[name][:] = length
        self.weights[name] -= self.rate * mean / (1 - 0.9**self.steps) / (length + 1e-8)


class Drift(DriftCorrection):
    """As attach() corrects it, where corrections come between two steps, and models are exchanged in float32."""

    def __init__(self, weights):
        self.weights = list(weights.values())
        super().__init__(self.weights, np)

    def after_step(self):
        self.step(self.weights)
        self.hold(self.in_float32())

    def before_step(self):
        now = self.in_float32()
        if any((then != one).any() for then, one in zip(self._before, now)):
            self.take(now)

    def in_float32(self):
        return [w.astype(np.float32) for w in self.weights]


def outputs(model, inputs):
    hidden = np.maximum(inputs @ model["w1"] + model["b1"], 0)
    scores = hidden @ model["w2"] + model["b2"]
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, shares / shares.sum(axis=1, keepdims=True)


def evaluate(replica):
    """Loss and accuracy on the images that are held out."""
    _, shares = outputs(replica.model, test_images)
    right = np.maximum(shares[np.arange(len(test_labels)), test_labels], 1e-12)
    return float(-np.log(right).mean()), float((shares.argmax(axis=1) == test_labels).mean())
