"""Fused layers against Keras's own on a GPU: `python benchmarks/gpu_layers.py [--rounds 20] [--small]`.

One stack of LSTM layers plus Dense(1), float32, for the shapes of the table. Columns: `standard`
(keras.layers.LSTM(use_cudnn=False), no XLA), `keras` (keras.layers.LSTM, cuDNN), `fused` (lstm_swap.layers.FusedLSTM);
milliseconds are medians of interleaved rounds, ratios are medians of the rounds' ratios to `fused`. Inference is a
call of a tf.function, training one step of Adam. That all compute the same is asserted in the same run (TensorFloat-32
off for that, as TensorFlow ships it for the times). Writes benchmarks/results/gpu_layers.json and prints Markdown.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from lstm_swap.layers import FusedLSTM
from lstm_swap.weights import layouts

RESULTS = Path(__file__).parent / "results"

#: batch, time, features, units, layers, bidirectional
SHAPES = [
    (1, 50, 32, 64, 1, False),
    (128, 40, 64, 128, 1, False),
    (32, 100, 128, 512, 1, False),
    (64, 200, 128, 256, 1, True),
    (64, 200, 128, 256, 3, False),
    (64, 100, 256, 512, 2, True),
    (256, 100, 256, 1024, 2, False),
    (1, 200, 128, 256, 2, True),
]
SMALL = [(2, 5, 3, 4, 1, False), (2, 5, 3, 4, 2, True)]
COLUMNS = ("standard", "keras", "fused")


def make_model(column: str, shape: tuple[int, ...]) -> keras.Model:
    _, steps, features, units, layers, both = shape
    x = y = keras.Input((steps, features))
    for i in range(layers):
        sequences = i < layers - 1
        if column == "fused":
            layer: Any = FusedLSTM(units, return_sequences=sequences)
        else:
            cudnn = False if column == "standard" else "auto"
            layer = keras.layers.LSTM(units, return_sequences=sequences, use_cudnn=cudnn)
        if both:
            layer = keras.layers.Bidirectional(layer)
            if column == "standard":
                for half in (layer.forward_layer, layer.backward_layer):
                    half.use_cudnn = False
        y = layer(y)
    return keras.Model(x, keras.layers.Dense(1)(y))


def give_weights(source: keras.Model, target: keras.Model) -> None:
    """The weights of a plain model to a fused one."""
    values = source.get_weights()
    moved = []
    for i in range(0, len(values) - 2, 3):
        moved += layouts.swap("lstm", values[i : i + 3], "standard", "fused")
    target.set_weights(moved + values[-2:])


def step_functions(model: keras.Model, x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def predict() -> Any:
        return model(x, training=False)

    @tf.function
    def train() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return {"predict": predict, "train": train}


def milliseconds(function: Callable[[], Any], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        result = function()
    result.numpy()  # waits for the device
    return (time.perf_counter() - start) * 1000 / repeat


def measure(shape: tuple[int, ...], rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = tf.constant(rng.standard_normal(shape[:3]), tf.float32)
    y = tf.constant(rng.standard_normal((shape[0], 1)), tf.float32)
    models = {column: make_model(column, shape) for column in COLUMNS}
    models["keras"].set_weights(models["standard"].get_weights())
    give_weights(models["standard"], models["fused"])
    tf.config.experimental.enable_tensor_float_32_execution(False)
    wanted = models["standard"](x, training=False).numpy()
    for column in ("keras", "fused"):
        np.testing.assert_allclose(models[column](x, training=False).numpy(), wanted, rtol=0, atol=1e-5)
    tf.config.experimental.enable_tensor_float_32_execution(True)
    row: dict[str, Any] = {"shape": list(shape)}
    functions = {column: step_functions(model, x, y) for column, model in models.items()}
    for job in ("predict", "train"):
        for column in COLUMNS:
            milliseconds(functions[column][job], 2)  # traces and warms up
        times: dict[str, list[float]] = {column: [] for column in COLUMNS}
        for _ in range(rounds):
            for column in COLUMNS:
                times[column].append(milliseconds(functions[column][job], 3 if column == "standard" else 10))
        row[job] = {
            "ms": {c: round(statistics.median(t), 3) for c, t in times.items()},
            "ratio_to_fused": {
                c: round(statistics.median(a / b for a, b in zip(times[c], times["fused"])), 2)
                for c in ("standard", "keras")
            },
        }
    return row


def mean(rows: list[dict[str, Any]], job: str, column: str) -> float:
    return round(statistics.geometric_mean(r[job]["ratio_to_fused"][column] for r in rows), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the script on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_layers.json")
    options = parser.parse_args()
    gpus = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name") if gpus else platform.processor()
    rows = [measure(shape, options.rounds) for shape in (SMALL if options.small else SHAPES)]
    result = {
        "machine": f"{name}, {platform.machine()}, {os.cpu_count()} cores",
        "versions": {p: importlib.metadata.version(p) for p in ("tensorflow", "keras", "numpy")}
        | {"python": platform.python_version(), "cudnn": tf.sysconfig.get_build_info().get("cudnn_version", "-")},
        "rows": rows,
        "geometric_mean": {j: {c: mean(rows, j, c) for c in ("standard", "keras")} for j in ("predict", "train")},
    }
    options.out.parent.mkdir(exist_ok=True, parents=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['machine']}; {', '.join(f'{k} {v}' for k, v in result['versions'].items())}\n")
    print(
        "| batch, time, features, units, layers, both ways | job | standard ms | keras ms | fused ms | keras / fused |"
    )
    print("|---|---|---|---|---|---|")
    for row in rows:
        for job in ("predict", "train"):
            ms = row[job]["ms"]
            ratio = row[job]["ratio_to_fused"]["keras"]
            shape = ", ".join(str(s) for s in row["shape"])
            print(f"| {shape} | {job} | {ms['standard']} | {ms['keras']} | {ms['fused']} | {ratio} |")
    print(f"\ngeometric means over the shapes, times fused: {json.dumps(result['geometric_mean'])}")


if __name__ == "__main__":
    main()
