"""On a GPU: cuDNN's numbers are the standard layer's, cuDNN is what runs, and exports run without a GPU.

Run with `LSTM_SWAP_GPU=1 pytest -m gpu tests/test_gpu_layers.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lstm_swap.layers import FusedGRU, FusedLSTM, kernels
from tests.fused_grid import (
    FEATURES,
    FUSED,
    MASKS,
    ROWS,
    STANDARD,
    STEPS,
    UNITS,
    all_fused_arrays,
    case_id,
    close,
    compare,
    covering,
    give_weights,
    make_twins,
    mask_of,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full_precision")]

layers = keras.layers


def sequences(dtype: str = "float32", rows: int = ROWS) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).normal(size=(rows, STEPS, FEATURES)), dtype)


def _allowed(**case: Any) -> bool:
    if case["wrapper"] == "time_distributed":
        return case["state"] == "zeros" and case["mask"] == "none"
    return True


GRID = covering(
    {
        "kind": ["lstm", "gru"],
        "go_backwards": [False, True],
        "mask": list(MASKS),
        "state": ["zeros", "initial_state", "stateful", "return_state"],
        "dtype": ["float32", "float64", "mixed_float16", "mixed_bfloat16"],
        "wrapper": ["plain", "bidirectional concat", "time_distributed"],
        "return_sequences": [False, True],
        "zero_output_for_mask": [False, True],
        "how": ["eager", "train", "infer"],
    },
    strength=3,
    allowed=_allowed,
)


@pytest.mark.parametrize("case", GRID, ids=case_id)
def test_equals_the_standard_layer(case: dict[str, Any]) -> None:
    """Outputs, states and gradients equal the standard layer's with use_cudnn=False, for every three settings."""
    kind, wrapper, state, dtype = case["kind"], case["wrapper"], case["state"], case["dtype"]
    arguments = {name: case[name] for name in ("go_backwards", "return_sequences", "zero_output_for_mask")}
    if wrapper.startswith("bidirectional"):
        del arguments["go_backwards"]
    standard, fused = make_twins(
        kind, wrapper, dtype=dtype, stateful=state == "stateful", return_state=state == "return_state", **arguments
    )
    x = sequences("float64" if dtype == "float64" else "float32")
    if wrapper == "time_distributed":
        x = tf.stack([x, x[::-1] * 0.5], axis=1)
    give_weights(kind, standard, fused, tuple(x.shape))
    halves = 1 + wrapper.startswith("bidirectional")
    count = halves * (2 if kind == "lstm" else 1) if state == "initial_state" else 0
    rng = np.random.default_rng(7)
    states = [tf.constant(rng.normal(0, 0.5, (ROWS, UNITS)), x.dtype) for _ in range(count)]
    for _ in range(2 if state == "stateful" else 1):
        compare(kind, standard, fused, x, states, mask_of(case["mask"]), case["how"])


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("mask", MASKS)
def test_large_layer(kind: str, mask: str) -> None:
    """At a size that cuDNN cuts into blocks, and over many steps, the numbers still agree."""
    rows, steps, features, units = 32, 60, 64, 128
    rng = np.random.default_rng(1)
    standard = STANDARD[kind](units, return_sequences=True, return_state=True, use_cudnn=False)
    fused = FUSED[kind](units, return_sequences=True, return_state=True)
    for layer in (standard, fused):
        layer.build((rows, steps, features))
    standard.set_weights([rng.normal(0, 0.08, array.shape) for array in standard.get_weights()])
    fused.set_weights(all_fused_arrays(kind, standard.get_weights()))
    pattern = mask_of(mask)
    full = None if pattern is None else np.resize(np.repeat(pattern, steps // STEPS, axis=1), (rows, steps))
    compare(kind, standard, fused, tf.constant(rng.normal(size=(rows, steps, features)), "float32"), [], full, "train")


def test_traced_training_calls_cudnn_and_the_standard_layer_does_not() -> None:
    """CudnnRNNV3 stands in the traced training step of the fused model, is told to train, and nowhere else."""

    def traced(layer: Any) -> list[Any]:
        graph = tf.function(lambda x: layer(x, training=True), autograph=False).get_concrete_function(sequences()).graph
        return [operation for operation in graph.get_operations() if operation.type == "CudnnRNNV3"]

    for kind in FUSED:
        standard, fused = make_twins(kind, "plain")
        fused.kernels = {"gpu_training": "cudnn"}  # for so small a shape XLA would be taken
        assert traced(standard) == []
        (operation,) = traced(fused)
        assert operation.get_attr("is_training") is True


def test_inference_runs_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction on the GPU runs cuDNN's branch: with that branch spoiled, the outputs are spoiled too."""
    inner = kernels.cudnn.run

    def shifted(*arguments: Any) -> list[Any]:
        return [result + 1000.0 for result in inner(*arguments)]

    layer = FusedLSTM(UNITS, kernels={"gpu_inference": "cudnn"})
    wanted = layer(sequences())
    monkeypatch.setattr(kernels.cudnn, "run", shifted)
    function = tf.function(lambda x: layer(x, training=False), autograph=False)
    close(function(sequences()) - 1000.0, wanted, 1e-3)
    with tf.device("/CPU:0"):
        on_cpu = tf.function(lambda x: layer(x, training=False), autograph=False)
        close(on_cpu(sequences()), wanted, 1e-6)


@pytest.mark.parametrize("mask", ["left", "empty row", "holes"])
def test_predict_takes_any_mask(mask: str) -> None:
    """Left padding, holes and empty rows predict, evaluate and train without an error, and with the right numbers."""
    x = np.asarray(sequences()) * mask_of(mask)[:, :, None]

    def build(make: Any) -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((None, FEATURES)),
                layers.Masking(),
                layers.Bidirectional(make(UNITS, return_sequences=True)),
                make(UNITS),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    standard = build(lambda *a, **k: STANDARD["lstm"](*a, use_cudnn=False, **k))
    fused = build(FusedLSTM)
    fused.set_weights(all_fused_arrays("lstm", standard.get_weights()))
    y = np.ones((ROWS, UNITS), "float32")
    losses = [model.fit(x, y, epochs=3, verbose=0, shuffle=False).history["loss"] for model in (standard, fused)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    close(fused.predict(x, verbose=0), standard.predict(x, verbose=0), 1e-5)
    np.testing.assert_allclose(fused.evaluate(x, y, verbose=0), standard.evaluate(x, y, verbose=0), rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains(policy: str) -> None:
    """A model in mixed precision trains on cuDNN: finite losses that fall."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, STEPS, FEATURES)).astype("float32")
    y = x.mean(axis=(1, 2))[:, None]
    model = keras.Sequential(
        [
            keras.Input((STEPS, FEATURES)),
            layers.Bidirectional(FusedLSTM(16, return_sequences=True, dtype=policy, dropout=0.1), dtype=policy),
            FusedGRU(16, dtype=policy),
            layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
    model.compile(optimizer, "mse")
    assert not model.jit_compile  # cuDNN's op has no XLA kernel, and jit_compile="auto" knows
    losses = model.fit(x, y, epochs=10, verbose=0).history["loss"]
    assert np.all(np.isfinite(losses))
    assert losses[-1] < 0.7 * losses[0]


RUN_EXPORT = """
import sys, json
import numpy as np, tensorflow as tf
folder = sys.argv[1]
loaded = tf.saved_model.load(folder + "/saved")
x = tf.Variable(np.load(folder + "/x.npy"))
with tf.GradientTape() as tape:
    y = loaded.serve(x)
    loss = tf.reduce_sum(y ** 2)
np.savez(folder + "/result.npz", y=y, gradient=tape.gradient(loss, x))
print(json.dumps([device.name for device in tf.config.list_physical_devices("GPU")]))
"""


@pytest.mark.parametrize("visible", ["", None])
@pytest.mark.parametrize("exported_on", ["GPU", "CPU"])
def test_export_runs_on_either_machine(visible: str | None, exported_on: str, tmp_path: Path) -> None:
    """Exported beside a GPU or on a CPU, a model runs and has a gradient in a process with and without a GPU."""
    x = keras.Input((STEPS, FEATURES))
    h = layers.Bidirectional(FusedLSTM(UNITS, return_sequences=True))(layers.Masking()(x))
    model = keras.Model(x, FusedGRU(UNITS)(h))
    values = np.asarray(sequences()) * mask_of("empty row")[:, :, None]
    np.save(tmp_path / "x.npy", values)
    if exported_on == "GPU":
        model.export(tmp_path / "saved", verbose=False)
    else:
        model.save(tmp_path / "model.keras")
        code = "import sys, keras, lstm_swap.layers; keras.saving.load_model(sys.argv[1]).export(sys.argv[2])"
        _run(code, "", str(tmp_path / "model.keras"), str(tmp_path / "saved"))
    listed = json.loads(_run(RUN_EXPORT, visible, str(tmp_path)).splitlines()[-1])
    assert bool(listed) is (visible is None)
    variable = tf.Variable(values)
    with tf.GradientTape() as tape:
        wanted = model(variable)
        loss = tf.reduce_sum(wanted**2)
    with np.load(tmp_path / "result.npz") as result:
        close(result["y"], wanted, 1e-5)
        close(result["gradient"], tape.gradient(loss, variable), 1e-4)


def _run(code: str, visible: str | None, *arguments: str) -> str:
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "NVIDIA_TF32_OVERRIDE": "0"}
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_frozen_at_inference_inside_a_training_step() -> None:
    """A layer that is called with training=False in a model that trains: its gradient comes, the process lives."""
    x = keras.Input((STEPS, FEATURES))

    def build(make: Any) -> keras.Model:
        model = keras.Model(x, make(UNITS)(layers.Dense(FEATURES)(x), training=False))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    standard = build(lambda *a: STANDARD["lstm"](*a, use_cudnn=False))
    fused = build(FusedLSTM)
    arrays = standard.get_weights()
    fused.set_weights([*arrays[:2], *all_fused_arrays("lstm", arrays[2:])])
    y = np.ones((ROWS, UNITS), "float32")
    losses = [m.fit(np.asarray(sequences()), y, epochs=3, verbose=0).history["loss"] for m in (standard, fused)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
