"""A multi-layer perceptron on handwritten digits in JAX. Start it on as many machines as there are; what Gossamer adds
is marked. digits_jax.py [STEPS]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import digits
import gossamer.jax as gossamer  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
images, labels, test_images, test_labels = digits.load()
random = np.random.default_rng()  # not seeded alike, so that machines draw different batches


def layer(inputs, outputs):
    spread = np.sqrt(2 / inputs)
    return {"kernel": jnp.array(random.normal(0, spread, (inputs, outputs)), jnp.float32), "bias": jnp.zeros(outputs)}


def logits(params, x):
    hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


def loss(params, x, y):
    return -jax.nn.log_softmax(logits(params, x))[jnp.arange(len(y)), y].mean()


@jax.jit
def update(params, x, y):
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x, y))


params = {"hidden": layer(64, 64), "out": layer(64, 10)}
run = gossamer.attach(params, job="digits-jax")  # <- Gossamer
params = run.params  # <- Gossamer: the model of those that already train

for step in range(steps):
    batch = random.integers(0, len(images), 32)
    params = update(params, images[batch], labels[batch])
    params = run.step(params, samples=32)  # <- Gossamer

run.close()  # <- Gossamer
accuracy = (logits(run.params, test_images).argmax(axis=1) == test_labels).mean()
print(f"accuracy {accuracy:.4f}")
