"""A multi-layer perceptron on handwritten digits in JAX with Flax and Optax. Start it on as many machines as there are, or
several times on each, as `gossamerctl run --clients 2` does; what Gossamer adds is marked. digits_flax.py [STEPS]
"""

import secrets
import sys

import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

import digits
import gossamer.jax as gossamer  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
images, labels, test_images, test_labels = digits.load()
seed = secrets.randbits(32)  # not the same everywhere, so that machines draw different batches
random = np.random.default_rng(seed)


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


@jax.jit
def update(state, x, y):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(state.apply_fn(params, x), y).mean()

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


network = Perceptron()
params = network.init(jax.random.key(seed), images[:1])
run = gossamer.attach(params, job="digits-flax")  # <- Gossamer
# run.params is the model of those that already train.
state = TrainState.create(apply_fn=network.apply, params=run.params, tx=optax.adam(1e-3))  # <- Gossamer

for step in range(steps):
    batch = random.integers(0, len(images), 32)
    state = update(state, images[batch], labels[batch])
    state = state.replace(params=run.step(state.params, samples=32))  # <- Gossamer

run.finish()  # <- Gossamer: all have the same model then
run.close()  # <- Gossamer
accuracy = (network.apply(run.params, test_images).argmax(axis=1) == test_labels).mean()
print(f"accuracy {accuracy:.4f}")
