"""On a GPU: optimised models run cuDNN, standardised ones do not, and both compute and train the same.

Run with `LSTM_SWAP_GPU=1 pytest -m gpu tests/test_gpu_live.py`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import lstm_swap
from lstm_swap.live_tree import walk
from tests.conftest import randomise
from tests.live_tools import FEATURES, STEPS, assert_close, assert_same_arrays, classes, layers, sequences, weights

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full_precision")]

LSTM, GRU, Bidirectional, Dense = layers.LSTM, layers.GRU, layers.Bidirectional, layers.Dense
ROWS = 32


def model(**settings: Any) -> Any:
    """A graph with every place in which a recurrent layer can hang; Keras's standard loop, not cuDNN."""
    x = keras.Input((STEPS, FEATURES))
    h = Bidirectional(LSTM(8, return_sequences=True, **settings))(layers.Masking()(x))
    inner = keras.Sequential([keras.Input((None, 16)), GRU(8, return_sequences=True, **settings)])
    h = inner(layers.Dense(16)(h))
    made = randomise(keras.Model(x, Dense(1)(LSTM(6, **settings)(h))))
    made.compile(keras.optimizers.Adam(0.01), "mse")
    return made


def padded() -> np.ndarray:
    """Sequences with zeros on the left, on the right, inside, and everywhere in a row."""
    x = sequences(ROWS)
    x[0, :3], x[1, 3:], x[2, 2:4], x[3] = 0, 0, 0, 0
    return x


Y = np.tanh(sequences(ROWS).sum(axis=(1, 2)))[:, None]


def cudnn_ops(candidate: Any, training: bool) -> int:
    """How many calls of cuDNN stand in the traced model, in the functions that it calls too."""
    function = tf.function(lambda x: candidate(x, training=training), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec((None, STEPS, FEATURES))).graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return sum(node.op == "CudnnRNNV3" for node in nodes)


@pytest.mark.filterwarnings("ignore:Layer .* does not support masking")
def test_cudnn_is_traced_where_it_should_be() -> None:
    """auto means fused here. CudnnRNNV3 stands in the traced graphs of the optimised model, once a layer while
    training, and in none of the model with use_cudnn=False."""
    fused = lstm_swap.optimize(model(), strict=True, merge=False)
    for layer in walk(fused):
        if type(layer).__name__.startswith("Fused"):
            layer.kernels = {"gpu_inference": "cudnn", "gpu_training": "cudnn"}  # for small shapes XLA would be taken
    assert [name for name in classes(fused) if name.startswith("Fused")] == classes(fused)
    assert cudnn_ops(fused, training=True) == 4
    assert cudnn_ops(fused, training=False) >= 4
    plain = lstm_swap.standardize(fused, use_cudnn=False)
    assert cudnn_ops(plain, training=True) == cudnn_ops(plain, training=False) == 0


@pytest.mark.filterwarnings("ignore:Layer .* does not support masking")
def test_trains_and_predicts_as_the_standard_loop() -> None:
    """Trained a while with the standard loop, then optimised: the same losses on cuDNN, with any mask; and back."""
    x = padded()
    fit = {"batch_size": 8, "epochs": 3, "verbose": 0, "shuffle": False}
    original = lstm_swap.standardize(model(), use_cudnn=False)
    original.fit(x, Y, **fit)
    free = lstm_swap.standardize(original)  # use_cudnn=False would mean no
    fused = lstm_swap.optimize(free, "fused", strict=True)
    back = lstm_swap.standardize(fused, use_cudnn=False)
    assert_same_arrays(weights(back), weights(original))
    assert_close(fused.predict(x, verbose=0), original.predict(x, verbose=0), 1e-5)
    wanted = original.fit(x, Y, **fit).history["loss"]
    np.testing.assert_allclose(fused.fit(x, Y, **fit).history["loss"], wanted, rtol=1e-5)
    np.testing.assert_allclose(back.fit(x, Y, **fit).history["loss"], wanted, rtol=1e-5)
    np.testing.assert_allclose(fused.evaluate(x, Y, verbose=0), original.evaluate(x, Y, verbose=0), rtol=1e-4)


def test_xla_is_chosen_for_what_it_compiles() -> None:
    """jit_compile="auto" leaves a fused model uncompiled without a warning, and compiles the plain one again."""
    x = keras.Input((STEPS, FEATURES))
    original = keras.Model(x, LSTM(4, use_cudnn=False)(x))
    original.compile("sgd", "mse")
    assert original.jit_compile
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        free = lstm_swap.standardize(original)
        fused = lstm_swap.optimize(free, "fused", strict=True)
        plain = lstm_swap.standardize(fused, use_cudnn=False)
    assert not fused.jit_compile
    assert plain.jit_compile


def test_a_strategy_on_the_gpu() -> None:
    """Inside MirroredStrategy the optimised model trains on cuDNN as it does without a strategy."""

    def build() -> Any:
        x = keras.Input((STEPS, FEATURES))
        made = randomise(keras.Model(x, Dense(1)(GRU(4)(Bidirectional(LSTM(4, return_sequences=True))(x)))))
        made.compile(keras.optimizers.Adam(0.01), "mse")
        return lstm_swap.optimize(made, "fused", strict=True)

    alone = build()
    strategy = tf.distribute.MirroredStrategy(["GPU:0"])
    with strategy.scope():
        mirrored = build()
    assert mirrored.distribute_strategy is strategy
    assert cudnn_ops(alone, training=True) == 3
    x = sequences(ROWS)
    losses = [m.fit(x, Y, epochs=3, verbose=0, shuffle=False).history["loss"] for m in (alone, mirrored)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    """A model in mixed precision is optimised and trains on: finite losses near those of the standard loop."""
    made = keras.DTypePolicy(policy)
    x = keras.Input((STEPS, FEATURES))
    original = keras.Model(x, Dense(1, dtype="float32")(LSTM(16, dtype=made)(x)))
    original.dtype_policy = made
    randomise(original)
    original.compile(keras.optimizers.Adam(0.01), "mse")
    fused = lstm_swap.optimize(original, "fused", strict=True)
    # Keras's own cuDNN path gives NaN when it trains in bfloat16: the gradient of the op is wrong there.
    plain = lstm_swap.standardize(original, use_cudnn=False)
    losses = [m.fit(sequences(ROWS), Y, epochs=5, verbose=0, shuffle=False).history["loss"] for m in (plain, fused)]
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(losses[1], losses[0], rtol=5e-2)


def test_through_a_file(tmp_path: Path) -> None:
    """A saved model opens fused by itself where a GPU is there, with the same numbers."""
    x = keras.Input((STEPS, FEATURES))
    original = randomise(keras.Model(x, GRU(4, use_cudnn=False)(LSTM(4, return_sequences=True, use_cudnn=False)(x))))
    original.save(tmp_path / "model.keras")
    opened = lstm_swap.load_model(tmp_path / "model.keras")
    assert classes(opened) == ["FusedLSTM", "FusedGRU"]
    assert_close(opened.predict(sequences(ROWS), verbose=0), original.predict(sequences(ROWS), verbose=0), 1e-5)
