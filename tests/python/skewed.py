"""Two nodes that see different data, and what correct_drift is worth to them: a linear model with one output, which each
trains on its own part, with a fake daemon that averages the two now and then.

Each node's steps lead to its own optimum, with its own speed in each direction. So what the exchanges hold them at is not
the optimum of all data, unless the drift is corrected.
"""

import contextlib
import warnings

import numpy as np

from contract_daemon import ContractDaemon
from gossamer import GossamerWarning

INPUTS, EXAMPLES, RATE = 16, 64, 0.05
STEPS, PERIOD = 320, 8  # a correction every PERIOD steps


def data():
    """Inputs and wanted outputs of each node."""
    random = np.random.default_rng(1)
    for directions in (random.uniform(0.3, 1.5, INPUTS), random.uniform(0.3, 1.5, INPUTS)):
        inputs = random.normal(size=(EXAMPLES, INPUTS)) * directions
        yield inputs.astype(np.float32), (inputs @ random.normal(size=(INPUTS, 1))).astype(np.float32)


def distance(node, **options):
    """From the mean of the two models to the optimum of all data. `node(inputs, outputs, options)` is a context manager that
    attaches a model of INPUTS zeros, and gives a function: one step of gradient descent at RATE on the mean of the squared
    errors of all the examples, and one of the run."""
    parts = list(data())
    with contextlib.ExitStack() as open_:
        daemons = [open_.enter_context(ContractDaemon()) for _ in parts]
        steps = [
            # Each has a job of its own, because a callback closes what a former training of the job has left open.
            open_.enter_context(node(*part, {"job": f"node-{index}", "socket": daemon.path, **options}))
            for index, (part, daemon) in enumerate(zip(parts, daemons))
        ]
        corrections = [None, None]
        for index in range(1, STEPS + 1):
            if index % PERIOD < 2:  # the models are published in one step, and corrected in the next
                for daemon, correction in zip(daemons, corrections):
                    daemon.client().make_due(correction)
            for step in steps:
                step()
            if index % PERIOD == 0:
                models = np.array([daemon.client().publication(INPUTS) for daemon in daemons])
                corrections = (models.mean(axis=0) - models).tolist()
            else:
                corrections = [None, None]
    best = np.linalg.lstsq(*(np.concatenate(arrays) for arrays in zip(*parts)), rcond=None)[0][:, 0]
    return float(np.linalg.norm(models.mean(axis=0) - best))


def check(test, node):
    """That the correction brings the nodes to the optimum, which they do not reach without, and that nobody is warned."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", GossamerWarning)
        without = distance(node)
        test.assertGreater(without, 0.5)
        test.assertLess(distance(node, correct_drift=True), without / 10)
