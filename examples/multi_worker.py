"""Train a model with fused layers on several machines: tf.distribute.MultiWorkerMirroredStrategy.

    python examples/multi_worker.py             two workers on this machine, and one process alone for comparison

On real machines give each its own TF_CONFIG (the addresses of all workers and the number of this one) and start
`python examples/multi_worker.py --worker` on every one; nothing else differs. With GPUs each worker runs cuDNN.

The loop is written out, since `fit` of Keras 3.15.1 stops with an error under this strategy. Needs Keras and
TensorFlow: pip install '.[tensorflow]'.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

WORKERS, STEPS, ROWS = 2, 10, 32
SECONDS = 180  # no worker runs longer


def train() -> list[float]:
    """Train on the cluster that TF_CONFIG names, or alone; the loss of each step."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    alone = "TF_CONFIG" not in os.environ
    strategy = tf.distribute.get_strategy() if alone else tf.distribute.MultiWorkerMirroredStrategy()

    import keras
    import numpy as np

    import lstm_swap

    keras.utils.set_random_seed(0)
    with strategy.scope():
        standard = keras.Sequential([keras.Input((10, 4)), keras.layers.LSTM(16), keras.layers.Dense(1)])
        model = lstm_swap.optimize(standard, "fused", strict=True)
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / ROWS  # this replica's share of the mean
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS * STEPS, 10, 4)).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, x.mean(axis=(1, 2))[:, None])).batch(ROWS)
    return [float(step(*batch)) for batch in strategy.experimental_distribute_dataset(batches)]


def start(index: int | None, addresses: list[str]) -> subprocess.Popen[str]:
    """A worker of the cluster, or (index None) a process alone."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}  # two workers would fight for one GPU
    if index is not None:
        task = {"type": "worker", "index": index}
        environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    command = [sys.executable, __file__, "--worker"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("localhost", 0))
    addresses = [f"localhost:{item.getsockname()[1]}" for item in sockets]
    for item in sockets:
        item.close()
    return addresses


def main() -> None:
    addresses = free_addresses(WORKERS)
    processes = [*(start(index, addresses) for index in range(WORKERS)), start(None, [])]
    losses = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=SECONDS)
            if process.returncode != 0:
                raise SystemExit(f"a worker failed:\n{errors[-2000:]}")
            losses.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
    for name, values in zip([*(f"worker {i}" for i in range(WORKERS)), "alone"], losses, strict=True):
        print(f"{name:>9}: loss {values[0]:.6f} ... {values[-1]:.6f}")
    worst = max(abs(a - b) for values in losses[:-1] for a, b in zip(values, losses[-1], strict=True))
    print(f"largest difference from the process alone, over {STEPS} steps: {worst:.1e}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        print(json.dumps(train()))
    else:
        main()
