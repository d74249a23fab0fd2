"""Fused layers against Keras's own on a GPU: `python benchmarks/gpu_layers.py [--mode gru] [--budget 540]`.

One stack of LSTM (or GRU) layers plus Dense(1), float32. Inference is a call of a tf.function, training one step of
Adam in a tf.function. Columns:

    standard      keras.layers.LSTM(use_cudnn=False), without XLA
    xla           the same, all of it compiled by XLA
    keras         keras.layers.LSTM as it is: cuDNN. All speeds are relative to it, within a round
    fused         a FusedLSTM for each layer (and direction, in Bidirectional)
    stack         one FusedLSTM for the whole stack, its kernel chosen by the committed table
    stack:NAME    the same with this kernel
    torch         torch.nn.LSTM, if --torch runs a Python that has it

The last row has a mask (left-padded rows of random lengths), where Keras's cuDNN path raises; speeds are relative to
`standard` there. Times are with TensorFloat-32 as TensorFlow ships it (on, for torch too). In the same run, with it
off, all outputs must agree with `standard` within 1e-5, and all gradients within 1e-4 of the largest one.

Prints each row when it is measured and writes benchmarks/results/gpu_layers.json (gpu_layers_gru.json) after each, so
that what there is stays if the time runs out: --budget shares out the seconds among the rows by doing fewer rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import timing

from lstm_swap.layers import FusedGRU, FusedLSTM, choice, scan
from lstm_swap.weights import layouts

#: batch, time, features, units, layers, bidirectional; and whether there is a mask
SHAPES = [
    ((1, 50, 32, 64, 1, False), False),
    ((128, 40, 64, 128, 1, False), False),
    ((32, 100, 128, 512, 1, False), False),
    ((64, 200, 128, 256, 1, True), False),
    ((64, 200, 128, 256, 3, False), False),
    ((64, 100, 256, 512, 2, True), False),
    ((256, 100, 256, 1024, 2, False), False),
    ((1, 200, 128, 256, 2, True), False),
    ((64, 200, 128, 256, 1, False), True),
]
SMALL = [((2, 5, 3, 4, 1, False), False), ((2, 5, 3, 4, 2, True), False), ((3, 6, 3, 4, 1, False), True)]
JOBS = {"predict": "inference", "train": "training"}
DEVICE = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"
COLUMNS = ("standard", "xla", "keras", "fused", "stack", *(f"stack:{k}" for k in choice.KERNELS[DEVICE]), "torch")
Arrays = list[np.ndarray[Any, Any]]


class Case:
    """A shape with its data and weights, the same for all columns."""

    def __init__(self, mode: str, shape: tuple[int, ...], masked: bool) -> None:
        self.mode, self.shape, self.masked = mode, shape, masked
        batch, steps, features, units, self.layers, both = shape
        self.units, self.both, self.directions = units, bool(both), 1 + bool(both)
        rng = np.random.default_rng(0)

        def uniform(*size: int) -> Any:
            return rng.uniform(-1, 1, size).astype(np.float32) / np.sqrt(units)

        gates = layouts.GATES[mode]
        self.arrays: Arrays = []  # in the fused layout
        for i in range(self.layers * self.directions):
            width = features if i < self.directions else units * self.directions
            bias = uniform((4 if mode == "lstm" else 6) * units)
            self.arrays += [uniform(gates * units, width), uniform(gates * units, units), bias]
        self.dense: Arrays = [uniform(units * self.directions, 1), uniform(1)]
        self.x = rng.standard_normal((batch, steps, features)).astype(np.float32)
        self.y = rng.standard_normal((batch, 1)).astype(np.float32)
        self.mask = np.arange(steps) >= rng.integers(0, steps, (batch, 1))  # left-padded, at least one step

    def inputs(self) -> Any:
        return [tf.constant(self.x), tf.constant(self.mask)] if self.masked else tf.constant(self.x)

    def model(self, column: str) -> keras.Model:
        """The model of a column, with the case's weights."""
        x = y = keras.Input(self.x.shape[1:])
        mask = keras.Input(self.mask.shape[1:], dtype="bool") if self.masked else None
        for layer in self._recurrent(column):
            y = layer(y) if mask is None else layer(y, mask=mask)
        model = keras.Model(x if mask is None else [x, mask], keras.layers.Dense(1)(y))
        arrays = self.arrays
        if column in ("standard", "xla", "keras"):
            parts = [arrays[i : i + 3] for i in range(0, len(arrays), 3)]
            arrays = [a for part in parts for a in layouts.swap(self.mode, part, "fused", "standard")]
        model.set_weights(arrays + self.dense)
        return model

    def _recurrent(self, column: str) -> list[Any]:
        fused: Any = FusedLSTM if self.mode == "lstm" else FusedGRU
        plain = keras.layers.LSTM if self.mode == "lstm" else keras.layers.GRU
        if column.startswith("stack"):
            name = column.partition(":")[2]
            kernels = {f"{DEVICE}_{job}": name for job in choice.JOBS} if name else None
            return [fused(self.units, num_layers=self.layers, bidirectional=self.both, kernels=kernels)]
        found = []
        for i in range(self.layers):
            sequences = i < self.layers - 1
            if column == "fused":
                layer = fused(self.units, return_sequences=sequences)
            else:
                use_cudnn: Any = "auto" if column == "keras" else False
                layer = plain(self.units, return_sequences=sequences, use_cudnn=use_cudnn)
            if self.both:
                layer = keras.layers.Bidirectional(layer)
                if column != "fused":  # its config does not hold use_cudnn, so the halves are made without
                    layer.forward_layer.use_cudnn = layer.backward_layer.use_cudnn = use_cudnn
            found.append(layer)
        return found

    def columns(self, wanted: list[str]) -> list[str]:
        """Those that there are for this case."""
        left_out = {"keras", "torch"} if self.masked else set()
        if self.layers * self.directions == 1:
            left_out.add("stack:cudnn_layers")  # the same call as stack:cudnn
        if self.mode == "gru" or self.masked:
            left_out.add("stack:block")
        return [column for column in wanted if column not in left_out]


def functions(model: keras.Model, x: Any, y: Any, compiled: bool) -> dict[str, Callable[[], Any]]:
    """What is timed."""
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=compiled)  # type: ignore[untyped-decorator]
    def predict() -> Any:
        return model(x, training=False)

    @tf.function(jit_compile=compiled)  # type: ignore[untyped-decorator]
    def train() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return {"predict": predict, "train": train}


class Torch:
    """The process that has torch."""

    def __init__(self, command: str) -> None:
        worker = [*shlex.split(command), str(Path(__file__).with_name("torch_worker.py"))]
        self.process = subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.version = self._read()
        except EOFError:
            self.version = None

    def _read(self) -> Any:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise EOFError("the process with torch has ended")
        return json.loads(line)

    def ask(self, *request: Any) -> Any:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._read()

    def load(self, case: Case) -> Any:
        """Hand a case over; gives the output."""
        named: dict[str, Any] = {f"array{i}": array for i, array in enumerate(case.arrays)}
        named |= {"x": case.x, "y": case.y, "dense0": case.dense[0], "dense1": case.dense[1]}
        meta = json.dumps([case.mode, case.layers, case.both])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "case.npz")
            np.savez(path, meta=meta, **named)
            return np.asarray(self.ask("load", path), np.float32)

    def timer(self, job: str) -> timing.Timer:
        return lambda repeats: float(self.ask(job, repeats))


def check(case: Case, models: Mapping[str, keras.Model], torch: Torch | None) -> dict[str, float]:
    """The largest difference from `standard` of any output and of any gradient (by the largest one)."""
    x, y = case.inputs(), tf.constant(case.y)
    found: dict[str, tuple[Any, Arrays]] = {}
    tf.config.experimental.enable_tensor_float_32_execution(False)
    scan._function.cache_clear()
    for column, model in models.items():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = [g.numpy() for g in tape.gradient(loss, model.trainable_variables)]
        if column not in ("standard", "xla", "keras"):
            parts = [gradients[i : i + 3] for i in range(0, len(gradients) - 2, 3)]
            gradients = [
                a for part in parts for a in layouts.swap_slots(case.mode, part, "fused", "standard")
            ] + gradients[-2:]
        output = functions(model, x, y, True)["predict"]() if column == "xla" else model(x, training=False)
        found[column] = output.numpy(), gradients
    # What XLA has compiled would go on without TensorFloat-32.
    scan._function.cache_clear()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    wanted, wanted_gradients = found["standard"]
    if torch is not None:
        found["torch"] = torch.load(case), wanted_gradients
    largest = max(np.abs(g).max() for g in wanted_gradients)
    worst = {"outputs": 0.0, "gradients": 0.0}
    for column, (output, gradients) in found.items():
        np.testing.assert_allclose(output, wanted, rtol=0, atol=1e-5, err_msg=column)
        worst["outputs"] = max(worst["outputs"], float(np.abs(output - wanted).max()))
        for a, b in zip(gradients, wanted_gradients, strict=True):
            np.testing.assert_allclose(a / largest, b / largest, rtol=0, atol=1e-4, err_msg=column)
            worst["gradients"] = max(worst["gradients"], float(np.abs(a - b).max() / largest))
    return worst


def measure(case: Case, columns: list[str], torch: Torch | None, rounds: int, deadline: float) -> dict[str, Any]:
    base = "standard" if case.masked else "keras"
    row: dict[str, Any] = {"shape": [*case.shape], "masked": case.masked, "base": base}
    models = {column: case.model(column) for column in columns if column != "torch"}
    torch = torch if "torch" in columns else None
    row["largest_difference"] = check(case, models, torch)
    x, y = case.inputs(), tf.constant(case.y)
    made = {column: functions(model, x, y, column == "xla") for column, model in models.items()}
    timers = {
        job: {c: timing.timer(made[c][job], lambda result: result.numpy()) for c in models}
        | ({"torch": torch.timer(job)} if torch else {})
        for job in JOBS
    }
    for job in JOBS:
        for run in timers[job].values():
            run(2)  # traces and compiles
    now = time.monotonic()
    for job, until in zip(JOBS, (now + (deadline - now) / 2, deadline), strict=True):
        row[job] = timing.compare(timers[job], base, rounds=rounds, deadline=until)
    return row


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Geometric means over the shapes without a mask, of the columns that all of them have; and the least speed."""
    plain = [row for row in rows if not row["masked"]]
    found: dict[str, dict[str, float | None]] = {}
    for job in JOBS:
        names = [c for c in COLUMNS if plain and all(c in row[job]["speed"] for row in plain)]
        found[job] = {c: timing.geometric_mean(row[job]["speed"][c] for row in plain) for c in names}
        if "stack" in names:
            found[job]["stack, least"] = min(row[job]["speed"]["stack"] for row in plain)
    return found


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("lstm", "gru"), default="lstm")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all of it")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="which ones, with commas between")
    parser.add_argument("--rows", help="which rows, such as 1,2,9; all if left out")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the script on a CPU")
    parser.add_argument(
        "--torch",
        default="env -u PYTHONPATH -u LD_LIBRARY_PATH python3",
        help="a Python that has torch (env: those of TensorFlow's libraries would be in its way)",
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or timing.RESULTS / f"gpu_layers{'' if options.mode == 'lstm' else '_gru'}.json"
    columns = list(dict.fromkeys(["standard", "keras", *options.columns.split(",")]))
    if unknown := set(columns) - set(COLUMNS):
        parser.error(f"unknown columns {sorted(unknown)}; there are {', '.join(COLUMNS)}")
    shapes = SMALL if options.small else SHAPES
    if options.rows:
        shapes = [shapes[int(number) - 1] for number in options.rows.split(",")]

    tf.get_logger().setLevel("ERROR")  # that functions are traced anew is what they are made for
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:  # torch needs some of the memory
        tf.config.experimental.set_memory_growth(gpu, True)
    torch = Torch(options.torch) if "torch" in columns else None
    if torch is not None and torch.version is None:
        print(f"{options.torch}: no torch there, so its column is left out")
        torch = None
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    result: dict[str, Any] = {
        "machine": timing.machine(details.get("device_name")),
        "versions": timing.versions("tensorflow", "keras", "numpy", "lstm-swap")
        | ({"cudnn": tf.sysconfig.get_build_info()["cudnn_version"]} if gpus else {})
        | ({"torch": torch.version} if torch else {}),
        "device": DEVICE,
        "mode": options.mode,
        "rows": [],
    }
    print(timing.headline(result) + "\n")
    print(timing.table_head("batch, time, features, units, layers, both ways", "job", "ms, times as fast", "rounds"))
    for i, (shape, masked) in enumerate(shapes):
        now = time.monotonic()
        left = started + options.budget - now
        if result["rows"] and left < (now - started) / i / 2:
            print(f"out of time: {len(shapes) - i} rows left out")
            break
        case = Case(options.mode, shape, masked)
        row = measure(case, case.columns(columns), torch, options.rounds, now + left / (len(shapes) - i))
        result["rows"].append(row)
        for job in JOBS:
            cells = [f"{c} {ms:.2f} ({row[job]['speed'][c]:.2f}x)" for c, ms in row[job]["ms"].items()]
            title = ", ".join(map(str, shape)) + (", masked" if masked else "")
            print(timing.table_row(title, job, "; ".join(cells), row[job]["rounds"]), flush=True)
        result["geometric_mean"] = means(result["rows"])
        timing.write(out, result)
        del case
        keras.backend.clear_session()
    print(f"\ntimes as fast as keras, geometric means over the shapes: {json.dumps(result['geometric_mean'])}")
    print(f"{time.monotonic() - started:.0f} seconds")


if __name__ == "__main__":
    main()
