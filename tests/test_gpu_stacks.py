"""On a GPU: stacks and both directions in one call of cuDNN, and every kernel, equal Keras's layers.

Run with `LSTM_SWAP_GPU=1 pytest -m gpu tests/test_gpu_stacks.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import lstm_swap
from lstm_swap.layers import choice
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
    covering,
    mask_of,
    outputs_and_gradients,
    randomize,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full_precision")]

GRID = covering(
    {
        "kind": ["lstm", "gru"],
        "kernel": choice.KERNELS["gpu"],
        "num_layers": [1, 2, 3],
        "bidirectional": [False, True],
        "mask": list(MASKS),
        "dtype": ["float32", "float64", "mixed_float16", "mixed_bfloat16"],
        "return_sequences": [False, True],
        "how": ["eager", "train", "infer"],
    },
    strength=2,
    allowed=lambda **_: True,
)

#: Outputs and gradients, times max(1, max|reference|), of up to three layers in 16 bits.
TOLERANCES = {"float32": (1e-6, 1e-5), "float64": (1e-10, 1e-10), "float16": (1e-2, 1e-2), "bfloat16": (5e-2, 5e-2)}


def keras_stack(kind: str, num_layers: int, bidirectional: bool, return_sequences: bool, dtype: str) -> Any:
    stack = []
    for number in range(num_layers):
        sequences = return_sequences or number < num_layers - 1
        layer = STANDARD[kind](UNITS, return_sequences=sequences, use_cudnn=False, dtype=dtype)
        if bidirectional:
            layer = keras.layers.Bidirectional(layer, dtype=dtype)
            for half in (layer.forward_layer, layer.backward_layer):  # made from a config, which does not hold it
                half.use_cudnn = False
        stack.append(layer)
    return stack


class Chain(keras.layers.Layer):
    """Layers one after the other, each with the mask."""

    def __init__(self, layers: list[Any], dtype: str) -> None:
        super().__init__(dtype=dtype)
        self.chain = layers
        self.supports_masking = True

    def call(self, x: Any, mask: Any = None, training: bool = False) -> Any:
        for layer in self.chain:
            x = layer(x, mask=mask, training=training)
        return x


@pytest.mark.parametrize("case", GRID, ids=case_id)
def test_every_kernel_equals_a_stack_of_keras_layers(case: dict[str, Any]) -> None:
    """Outputs and gradients, for every two settings."""
    kind, dtype, how = case["kind"], case["dtype"], case["how"]
    settings = [case[name] for name in ("num_layers", "bidirectional", "return_sequences")]
    wanted = Chain(keras_stack(kind, *settings, dtype), dtype)
    kernels = {"gpu_inference": case["kernel"], "gpu_training": case["kernel"]}
    fused = FUSED[kind](
        UNITS,
        num_layers=settings[0],
        bidirectional=settings[1],
        return_sequences=settings[2],
        kernels=kernels,
        dtype=dtype,
    )
    x = tf.constant(np.random.default_rng(0).normal(size=(ROWS, STEPS, FEATURES)), "float64")
    x = tf.cast(x, "float64" if dtype == "float64" else "float32")
    mask = mask_of(case["mask"])
    wanted(x, mask=mask)
    fused.build(x.shape)
    randomize(wanted, seed=1)
    fused.set_weights(all_fused_arrays(kind, wanted.get_weights()))
    forward, backward = TOLERANCES[fused.compute_dtype]
    outputs, inputs, weights = outputs_and_gradients(wanted, x, [], mask, how)
    got, got_inputs, got_weights = outputs_and_gradients(fused, x, [], mask, how)
    for actual, expected in zip(got, outputs, strict=True):
        close(actual, expected, forward)
    arrays = all_fused_arrays(kind, [np.asarray(tf.cast(array, tf.float64)) for array in weights])
    for actual, expected in zip([*got_inputs, *got_weights], [*inputs, *arrays], strict=True):
        close(actual, expected, backward)


def small_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((20, 16)),
            layers.Bidirectional(layers.LSTM(32, return_sequences=True)),
            layers.Bidirectional(layers.LSTM(32, return_sequences=True)),
            layers.GRU(24),
            layers.Dense(3),
        ]
    )


def test_optimize_makes_one_call_of_a_stack() -> None:
    """On a GPU `optimize` puts both Bidirectional layers into one CudnnRNNV3, and training goes on as before."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 20, 16)).astype("float32"), rng.normal(size=(64, 3)).astype("float32")
    model = small_model()
    model.compile("adam", "mse")
    model.fit(x, y, epochs=1, verbose=0)
    fused = lstm_swap.optimize(model)
    assert [type(layer).__name__ for layer in fused.layers] == ["FusedLSTM", "FusedGRU", "Dense"]
    fused.layers[0].kernels = {"gpu_training": "cudnn"}
    graph = tf.function(lambda x: fused.layers[0](x, training=True)).get_concrete_function(tf.constant(x)).graph
    assert [op.type for op in graph.get_operations()].count("CudnnRNNV3") == 1
    plain = lstm_swap.standardize(fused, use_cudnn=False)
    losses = [m.fit(x, y, epochs=3, shuffle=False, verbose=0).history["loss"] for m in (plain, fused)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_measured_kernels_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`optimize(model, sample=x)` measures kernels for both jobs; the model that it gives computes the same."""
    monkeypatch.setenv("LSTM_SWAP_CACHE", str(tmp_path / "kernels.json"))
    x = np.random.default_rng(0).normal(size=(8, 20, 16)).astype("float32")
    model = small_model()
    fused = lstm_swap.optimize(model, sample=x)
    close(fused(x), model(x), 1e-6)
    assert (tmp_path / "kernels.json").stat().st_size > 0
    for layer in fused.layers[:-1]:
        if type(layer).__name__.startswith("Fused"):
            assert set(layer.kernels) == {"gpu_inference", "gpu_training"}
