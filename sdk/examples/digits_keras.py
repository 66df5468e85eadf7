"""A multi-layer perceptron on handwritten digits with Keras 3, on the backend that KERAS_BACKEND names; what Gossamer adds
is marked. digits_keras.py [STEPS]
"""

import sys

import keras
import numpy as np

import digits
from gossamer.keras import GossamerCallback  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
images, labels, test_images, test_labels = digits.load()
chosen = np.random.default_rng().integers(0, len(images), 32 * steps)  # not seeded alike

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    images[chosen],
    labels[chosen],
    batch_size=32,
    verbose=0,
    callbacks=[GossamerCallback(job="digits-keras", samples_per_step=32)],  # <- Gossamer
)
print(f"accuracy {model.evaluate(test_images, test_labels, verbose=0)[1]:.4f}")
