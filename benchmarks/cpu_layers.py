"""Kernels of the fused layers on a CPU: `python benchmarks/cpu_layers.py [--mode gru] [--grid]`.

One LSTM (or GRU) with return_sequences=True, float32, in a tf.function that is traced once and called as a concrete
function, so that TensorFlow's dispatch in Python is not measured. Inference is a call, training the gradients of a
weighted sum of the outputs for all weights. Columns, all with the same weights:

    keras                     keras.layers.LSTM; all speeds are relative to it, within a round
    fused                     FusedLSTM as it is: the committed table chooses the kernel
    loop, scan, xla, ...      FusedLSTM with that kernel (lstm_swap.layers.choice)
    onnxruntime, openvino     ONNX's op LSTM in these, where they and `onnx` are installed; inference only

In the same run all outputs must be Keras's within 1e-5 and all gradients within 1e-4 of the largest one. Prints
Markdown and writes benchmarks/results/cpu_layers.json (cpu_layers_gru.json). With --grid: more shapes, fewer rounds, no
other software, for the table that the choice is made from; writes cpu_grid.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import timing

from lstm_swap.layers import FusedGRU, FusedLSTM, choice
from lstm_swap.weights import layouts

#: batch, time, features, units
SHAPES = [(1, 50, 32, 64), (1, 200, 128, 256), (32, 100, 64, 128), (32, 100, 128, 512), (256, 50, 64, 128)]
SMALL = [(1, 5, 3, 4), (4, 6, 3, 8)]
GRID = [
    (batch, 20 if batch * units >= 32 * 512 else 50, 64, units)
    for batch, units in itertools.product((1, 8, 32, 128), (32, 128, 512))
]
OTHERS = ("onnxruntime", "openvino")
#: Up to so many times as many rounds are done to find some in which no other program was busy.
PATIENCE = 5
#: The gates of ONNX's operators by their places in the standard layout: LSTM i o f c of i f c o, GRU z r h.
ONNX_GATES = {"lstm": (0, 3, 1, 2), "gru": (0, 1, 2)}


def kernel_names(mode: str, job: str, batch: int) -> list[str]:
    """The kernels to time: no more shares than rows or cores, BlockLSTMV2 only for what it can do."""
    cores = len(os.sched_getaffinity(0))
    names = []
    for name in choice.KERNELS["cpu"]:
        shares = int(name[3:] or 1) if name.startswith("xla") else 1
        if shares > min(batch, max(cores, 2)) or (name == "block" and (mode, job) != ("lstm", "inference")):
            continue
        names.append(name)
    return names


def make_layer(column: str, mode: str, units: int) -> Any:
    """The layer of a column, without weights yet."""
    if column == "keras":
        plain = keras.layers.LSTM if mode == "lstm" else keras.layers.GRU
        return plain(units, return_sequences=True)
    kernels = None if column == "fused" else {f"cpu_{job}": column for job in choice.JOBS}
    return (FusedLSTM if mode == "lstm" else FusedGRU)(units, return_sequences=True, kernels=kernels)


def layer_functions(layer: Any, x: Any, factor: Any) -> dict[str, Callable[[], Any]]:
    """What is timed."""
    infer = tf.function(lambda x: layer(x, training=False))

    @tf.function  # type: ignore[untyped-decorator]
    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, training=True) * factor)
        return tape.gradient(loss, layer.trainable_variables)

    inferring, training = (function.get_concrete_function(x) for function in (infer, train))
    return {"inference": lambda: inferring(x), "training": lambda: training(x)}


def onnx_model(mode: str, arrays: list[Any], shape: tuple[int, ...]) -> bytes:
    """The same layer as an ONNX model, from arrays in the standard layout; batch first, as in Keras."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    batch, steps, features, units = shape
    gates = layouts.GATES[mode]

    def rows(array: Any) -> Any:
        """(in, gates * units) as ONNX wants it: (1, gates * units, in), in its order of gates."""
        blocks = np.split(array, gates, axis=-1)
        return np.concatenate([blocks[i] for i in ONNX_GATES[mode]], -1).T[np.newaxis]

    kernel, recurrent, bias = arrays
    halves = bias if mode == "gru" else np.stack([bias, np.zeros_like(bias)])
    stored = {"W": rows(kernel), "R": rows(recurrent), "B": np.concatenate([rows(half) for half in halves], 1)}
    stored["axis"] = np.array([1])
    options = {"linear_before_reset": 1} if mode == "gru" else {}
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(mode.upper(), ["steps", "W", "R", "B"], ["Y"], hidden_size=units, **options),
        helper.make_node("Squeeze", ["Y", "axis"], ["outputs"]),
        helper.make_node("Transpose", ["outputs"], ["y"], perm=[1, 0, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, steps, features))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, steps, units))],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def other_functions(model: bytes, x: Any, names: list[str]) -> dict[str, Callable[[], Any]]:
    """Inference of an ONNX model in other software, with all cores and in float32."""
    found: dict[str, Callable[[], Any]] = {}
    if "onnxruntime" in names:
        import onnxruntime

        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        found["onnxruntime"] = lambda: session.run(None, {"x": x})[0]
    if "openvino" in names:
        import openvino

        config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        core = openvino.Core()
        request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
        found["openvino"] = lambda: request.infer([x])[0]
    return found


def measure(mode: str, shape: tuple[int, ...], names: list[str], others: list[str], rounds: int) -> dict[str, Any]:
    """A row: names are columns beside keras and the kernels."""
    batch, steps, features, units = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, steps, features)).astype(np.float32)
    factor = tf.constant(rng.standard_normal((batch, steps, units)), tf.float32)
    shapes = [(features, units), (units, units)]
    gates = layouts.GATES[mode]
    arrays = [rng.uniform(-1, 1, (a, b * gates)).astype(np.float32) / np.float32(np.sqrt(units)) for a, b in shapes]
    arrays.append(rng.uniform(-1, 1, 4 * units if mode == "lstm" else (2, 3 * units)).astype(np.float32))
    row: dict[str, Any] = {"shape": list(shape), "largest_difference": {}}
    for job in choice.JOBS:
        calls = {}
        for column in ["keras", *names, *kernel_names(mode, job, batch)]:
            layer = make_layer(column, mode, units)
            layer.build(x.shape)
            layer.set_weights(arrays if column == "keras" else layouts.swap(mode, arrays, "standard", "fused"))
            calls[column] = layer_functions(layer, tf.constant(x), factor)[job]
        if others and job == "inference":
            calls |= other_functions(onnx_model(mode, arrays, shape), x, others)
        row["largest_difference"][job] = check(mode, job, calls)
        timers = {column: timing.timer(call) for column, call in calls.items()}
        row[job] = timing.compare(timers, "keras", rounds=rounds, patience=PATIENCE)
    return row


def check(mode: str, job: str, calls: dict[str, Callable[[], Any]]) -> float:
    """The largest difference from Keras, of outputs or of gradients by the largest one."""
    worst = 0.0
    wanted = [np.asarray(a) for a in (calls["keras"]() if job == "training" else [calls["keras"]()])]
    scale = max(np.abs(a).max() for a in wanted) if job == "training" else 1.0
    for column, call in calls.items():
        result = call()
        found = [np.asarray(a) for a in (result if job == "training" else [result])]
        if job == "training" and column != "keras":
            found = layouts.swap_slots(mode, found, "fused", "standard")
        for a, b in zip(found, wanted, strict=True):
            tolerance = 1e-4 if job == "training" else 1e-5
            np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tolerance, err_msg=column)
            worst = max(worst, float(np.abs(a - b).max() / scale))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("lstm", "gru"), default="lstm")
    parser.add_argument("--rounds", type=int, help="15, or 7 with --grid, if left out")
    parser.add_argument("--grid", action="store_true", help="more shapes, only Keras and the kernels")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to try the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    name = "cpu_grid" if options.grid else "cpu_layers"
    out = options.out or timing.RESULTS / f"{name}{'' if options.mode == 'lstm' else '_gru'}.json"
    rounds = options.rounds or (7 if options.grid else 15)
    shapes = SMALL if options.small else GRID if options.grid else SHAPES
    others = [] if options.grid else [name for name in OTHERS if importlib.util.find_spec(name)]
    if others and not importlib.util.find_spec("onnx"):
        others = []
    names = [] if options.grid else ["fused"]
    result: dict[str, Any] = {
        "machine": timing.machine(),
        "versions": timing.versions("tensorflow-cpu", "tensorflow", "keras", "numpy", "lstm-swap", "onnx", *OTHERS),
        "mode": options.mode,
        "rows": [],
    }
    print(timing.headline(result) + "\n")
    columns = list(dict.fromkeys(["keras", *names, *kernel_names(options.mode, "inference", 10**6), *others]))
    print(timing.table_head("batch, time, features, units", "job", "keras ms", *columns[1:]))
    for shape in shapes:
        row = measure(options.mode, shape, names, others, rounds)
        result["rows"].append(row)
        for job in choice.JOBS:
            speeds = [row[job]["speed"].get(column) for column in columns[1:]]
            print(timing.table_row(", ".join(map(str, shape)), job, row[job]["ms"]["keras"], *speeds), flush=True)
        timing.write(out, result)
        keras.backend.clear_session()
    print("\nThe numbers of the columns after `keras ms` are how many times as fast as keras.")


if __name__ == "__main__":
    main()
