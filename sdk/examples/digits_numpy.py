"""Softmax regression on handwritten digits in NumPy. Start it on as many machines as there are; what Gossamer adds is
marked. digits_numpy.py [STEPS]
"""

import sys
import time

import numpy as np

import digits
import gossamer  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
images, labels, test_images, test_labels = digits.load()
random = np.random.default_rng()  # not seeded alike, so that machines draw different batches
weights, bias = np.zeros((64, 10), np.float32), np.zeros(10, np.float32)

run = gossamer.attach({"weights": weights, "bias": bias}, job="digits-numpy")  # <- Gossamer

for step in range(steps):
    batch = random.integers(0, len(images), 32)
    x, y = images[batch], labels[batch]
    logits = x @ weights + bias
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    probabilities[np.arange(32), y] -= 1  # the gradient of the cross entropy
    weights -= 0.5 / 32 * x.T @ probabilities  # in place
    bias -= 0.5 / 32 * probabilities.sum(axis=0)
    run.step(samples=32)  # <- Gossamer
    time.sleep(0.002)  # a larger model would take about this long

run.close()  # <- Gossamer
accuracy = ((test_images @ weights + bias).argmax(axis=1) == test_labels).mean()
print(f"accuracy {accuracy:.4f}")
