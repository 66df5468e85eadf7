"""Trains inside a Spark barrier stage: every task attaches to the daemon of its machine, trains on its own partition, and
ends with the model of all.

    spark-submit --conf spark.executorEnv.GOSSAMER_SOCKET=/run/gossamer/client.sock spark_barrier.py ROWS TASKS

A barrier stage starts its tasks together or not at all; after that none waits for another, and Gossamer does not mind if
one is started again. To take over: train() with your own model in it. The executors need NumPy and Gossamer's Python
package, and a gossamerd beside them (their user in its group).
"""

import sys
import time
from typing import Iterable, Iterator, List, Tuple

import numpy as np
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

Row = Tuple[List[float], float]
EPOCHS, BATCH, LEARNING_RATE = 20, 32, 0.05
STEP_S = 0.003  # stands for the time of a larger model
TRUE_WEIGHTS = [1.0, -2.0, 0.5, 3.0]


def train(rows: Iterable[Row]) -> Iterator[Tuple[int, List[float], bool]]:
    """One task: linear regression on its partition, by gradient descent. Yields its number, its final model, and
    whether it is the one to save it."""
    import gossamer  # imported on the executor

    context = BarrierTaskContext.get()
    data = list(rows)
    inputs = np.array([row[0] for row in data], np.float32)
    wanted = np.array([row[1] for row in data], np.float32)
    weights = np.zeros(inputs.shape[1], np.float32)
    # Attempts of one stage share a job. Another stage or application has another job.
    job = f"spark-{context.stageId()}-{context.getLocalProperty('gossamer.run') or 'run'}"
    run = gossamer.attach({"weights": weights}, job=job)
    context.barrier()  # nobody finishes before the last task has come
    random = np.random.default_rng(context.partitionId())
    for _ in range(EPOCHS * max(1, len(data) // BATCH)):
        batch = random.integers(0, len(data), BATCH)
        error = inputs[batch] @ weights - wanted[batch]
        weights -= LEARNING_RATE / BATCH * (inputs[batch].T @ error)  # in place
        run.step(samples=BATCH)
        time.sleep(STEP_S)
    end = run.finish(timeout_s=60)
    run.close()
    yield context.partitionId(), weights.tolist(), end.saver


def rows(count: int) -> List[Row]:
    """Examples: each partition sees mostly one input, so that no task alone learns all of it."""
    random = np.random.default_rng(7)
    inputs = random.standard_normal((count, len(TRUE_WEIGHTS))) * 0.1
    inputs[np.arange(count), np.arange(count) * len(TRUE_WEIGHTS) // count] += random.standard_normal(count) * 2
    return [(row.tolist(), float(row @ TRUE_WEIGHTS)) for row in inputs]


def main() -> None:
    count, tasks = int(sys.argv[1]), int(sys.argv[2])
    spark = SparkSession.builder.appName("gossamer").getOrCreate()
    context = spark.sparkContext
    context.setLocalProperty("gossamer.run", context.applicationId)
    models = context.parallelize(rows(count), tasks).barrier().mapPartitions(train).collect()
    for task, weights, saver in models:
        print(f"task {task}: {' '.join(f'{weight:.3f}' for weight in weights)}{' saves' if saver else ''}")
    spark.stop()


if __name__ == "__main__":
    main()
