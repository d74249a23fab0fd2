"""Training as people do it: `python benchmarks/gpu_fit.py [--rounds 5] [--budget 540]`.

One epoch of `fit`, then `evaluate`, then `predict` of LSTM(256), LSTM(256), Dense(1) on 60 batches of 128 rows, 100
steps of 64 features, float32, Adam. Columns:

    standard    keras.layers.LSTM(use_cudnn=False), jit_compile=False
    xla         the same, jit_compile=True
    keras       keras.layers.LSTM as it is (cuDNN), jit_compile="auto"
    fused       lstm_swap.optimize of that model

All start from the same weights. First, with TensorFloat-32 off, each is trained for a few batches, and its losses and
outputs must be those of `standard`; then, as TensorFlow ships it, each runs an epoch that is not timed, and rounds of
one epoch each. Seconds are medians; ratios are taken within a round. Writes benchmarks/results/gpu_fit.json.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import timing

import lstm_swap
from lstm_swap.layers import scan

COLUMNS = ("standard", "xla", "keras", "fused")
JOBS = ("fit", "evaluate", "predict")
#: batches, batch, time, features, units
SIZES = (60, 128, 100, 64, 256)
SMALL = (5, 4, 6, 3, 8)
CHECKED_BATCHES = 4


def make_model(column: str, sizes: tuple[int, ...], weights: list[Any] | None) -> keras.Model:
    _, _, steps, features, units = sizes
    use_cudnn: Any = "auto" if column in ("keras", "fused") else False
    layers = [keras.layers.LSTM(units, return_sequences=sequences, use_cudnn=use_cudnn) for sequences in (True, False)]
    model = keras.Sequential([keras.Input((steps, features)), *layers, keras.layers.Dense(1)])
    if weights is not None:
        model.set_weights(weights)
    jit = {"standard": False, "xla": True}.get(column, "auto")
    model.compile("adam", "mse", jit_compile=jit)
    return lstm_swap.optimize(model, to="fused") if column == "fused" else model


class Run:
    """A compiled model and the data; each job's Timer runs it over all of the data."""

    def __init__(self, model: keras.Model, x: Any, y: Any, batch: int) -> None:
        self.model, self.x, self.y = model, x, y
        self.options = {"batch_size": batch, "verbose": 0}
        self.losses: list[float] = []

    def fit(self) -> None:
        history = self.model.fit(self.x, self.y, shuffle=False, **self.options)
        self.losses.append(float(history.history["loss"][0]))

    def evaluate(self) -> float:
        return float(self.model.evaluate(self.x, self.y, **self.options))

    def predict(self) -> Any:
        return self.model.predict(self.x, **self.options)

    def timer(self, job: str) -> timing.Timer:
        return timing.timer(getattr(self, job))


def check(sizes: tuple[int, ...], weights: list[Any], x: Any, y: Any) -> dict[str, float]:
    """Train each for a few batches; the largest relative differences from standard of losses and of outputs."""
    rows = CHECKED_BATCHES * sizes[1]
    found = {}
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for column in COLUMNS:
        run = Run(make_model(column, sizes, weights), x[:rows], y[:rows], sizes[1])
        run.fit()
        found[column] = run.losses[0], run.evaluate(), run.predict()
    # What XLA has compiled would go on without TensorFloat-32.
    scan._function.cache_clear()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    loss, after, outputs = found["standard"]
    scale = np.abs(outputs).max()
    worst = {"loss": 0.0, "outputs": 0.0}
    for column, result in found.items():
        np.testing.assert_allclose(result[:2], (loss, after), rtol=1e-4, err_msg=column)
        np.testing.assert_allclose(result[2] / scale, outputs / scale, rtol=0, atol=1e-3, err_msg=column)
        worst["loss"] = max(worst["loss"], abs(result[0] / loss - 1), abs(result[1] / after - 1))
        worst["outputs"] = max(worst["outputs"], float(np.abs(result[2] - outputs).max() / scale))
    return worst


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all of it")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script on a CPU")
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "gpu_fit.json")
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    sizes = SMALL if options.small else SIZES
    batches, batch, steps, features, _ = sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batches * batch, steps, features)).astype(np.float32)
    y = np.tanh(x[:, -5:].sum((1, 2)))[:, np.newaxis]
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    result: dict[str, Any] = {
        "machine": timing.machine(details.get("device_name")),
        "versions": timing.versions("tensorflow", "keras", "numpy", "lstm-swap"),
        "sizes": dict(zip(("batches", "batch", "time", "features", "units"), sizes, strict=True)),
    }
    print(timing.headline(result), flush=True)
    keras.utils.set_random_seed(0)
    weights = make_model("standard", sizes, None).get_weights()
    result["largest_difference"] = check(sizes, weights, x, y)
    print(f"largest relative differences from standard: {result['largest_difference']}\n", flush=True)

    runs = {column: Run(make_model(column, sizes, weights), x, y, batch) for column in COLUMNS}
    for run in runs.values():  # traces, compiles
        run.fit()
        run.evaluate()
        run.predict()
    result["loss_of_the_first_epoch"] = {column: run.losses[0] for column, run in runs.items()}
    print(timing.table_head("job", *(f"{c} s" for c in COLUMNS), *(f"{c} / fused" for c in COLUMNS[:-1]), "rounds"))
    now = time.monotonic()
    left = started + options.budget - now
    for job, until in zip(JOBS, (now + left * 0.5, now + left * 0.75, now + left), strict=True):
        times = timing.compare(
            {column: run.timer(job) for column, run in runs.items()}, "fused", rounds=options.rounds, deadline=until
        )
        seconds = {column: round(ms / 1000, 4) for column, ms in times["ms"].items()}
        # `speed` is fused's time by the column's; what is asked for is how many times as fast fused is.
        ratios = {column: round(1 / times["speed"][column], 2) for column in COLUMNS[:-1]}
        result[job] = {"seconds": seconds, "times_fused": ratios, "rounds": times["rounds"]}
        timing.write(options.out, result)
        print(timing.table_row(job, *seconds.values(), *ratios.values(), times["rounds"]), flush=True)
    print(f"\nlosses of the first epoch, with TensorFloat-32: {result['loss_of_the_first_epoch']}")
    print(f"{time.monotonic() - started:.0f} seconds")


if __name__ == "__main__":
    main()
