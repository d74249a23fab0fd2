"""HDF5 and `.keras` of Keras 3, each way: the same layers, the same numbers, compiled loading included."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import lstm_swap
import lstm_swap.layers
from lstm_swap.errors import UnsupportedLayerError
from tests.conftest import assert_close, outputs, randomise

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 5, 8)).astype("float32")
Made = tuple[Any, list[np.ndarray]]


def _stack(k: Any, *layers: Any, shape: tuple[int, ...] = (5, 8), dtype: str = "float32") -> Any:
    return k.Sequential([k.Input(shape, dtype=dtype), *layers])


def _attention(k: Any) -> Made:
    i = k.Input((5, 8))
    heads = k.layers.MultiHeadAttention(2, 3, value_dim=5)(i, i)
    plain = k.layers.MultiHeadAttention(2, 3, use_bias=False, trainable=False)(i, i)
    scored = k.layers.Attention(use_scale=True, score_mode="concat")([i, i])
    added = k.layers.AdditiveAttention()([i, i])
    return k.Model(i, k.layers.LSTM(4)(k.layers.Concatenate()([heads, plain, scored, added]))), [X]


def _normalized(k: Any) -> Made:
    layer = k.layers.Normalization()
    layer.adapt(X * 3 + 1)
    inner = _stack(k, layer, k.layers.LSTM(8, return_sequences=True))
    i = k.Input((5, 8))
    return k.Model(i, k.layers.GRU(3)(inner(i))), [X]


def _names_against_order(k: Any) -> Made:
    """Layers of one class, made, named and used in three different orders."""
    i, j = k.Input((5, 8)), k.Input((5, 8))
    first, second, third = (k.layers.LSTM(4, return_sequences=True, name=n) for n in ("zz", "aa", "mm"))
    d1, d2 = k.layers.Dense(4, name="q"), k.layers.Dense(4, name="p")
    a = first(d2(second(j)))
    c = third(d1(i))
    return k.Model([i, j], [k.layers.Add()([a, c]), c]), [X, X[::-1].copy()]


def _nested(k: Any) -> Made:
    """Functional models in a Sequential and beside it, whose own layers are not in the order of their names."""

    def inner(name: str) -> Any:
        i = k.Input((5, 8))
        left, right, last = (k.layers.LSTM(8, return_sequences=True, name=f"{name}_{n}") for n in "cab")
        return k.Model(i, last(k.layers.Add()([right(i), left(right(i))])), name=name)

    i = k.Input((5, 8))
    front = k.Sequential([k.Input((5, 8)), k.layers.GRU(8, return_sequences=True), inner("one")], name="front")
    return k.Model(i, [k.layers.Dense(2)(inner("two")(front(i))), k.layers.Dense(3)(i)]), [X]


def _shared(k: Any) -> Made:
    i, j = k.Input((5, 8)), k.Input((5, 8))
    layer = k.layers.LSTM(4, return_state=True)
    a, h, c = layer(i)
    b = layer(j, initial_state=[h, c])[0]
    return k.Model([i, j], k.layers.Concatenate()([a, b])), [X, X[::-1].copy()]


def _operations(k: Any) -> Made:
    i = k.Input((5, 8))
    h = k.layers.LSTM(4, return_sequences=True)(i)
    return k.Model(i, k.layers.GRU(2)(k.ops.concatenate([h, h * 2.0 + k.ops.relu(h)], -1))), [X]


def _frozen(k: Any) -> Made:
    inner = _stack(k, k.layers.BatchNormalization(trainable=False), k.layers.GRU(3), shape=(5, 4))
    outer = [k.layers.LSTM(4, trainable=False, return_sequences=True), k.layers.BatchNormalization(), inner]
    return _stack(k, *outer), [X]


MODELS: dict[str, Callable[[Any], Made]] = {
    "attention": _attention,
    "normalization": _normalized,
    "names against order": _names_against_order,
    "nested": _nested,
    "shared": _shared,
    "operations": _operations,
    "frozen": _frozen,
    "seeds": lambda k: (
        _stack(
            k,
            k.layers.Dropout(0.3),
            k.layers.LSTM(4, dropout=0.2, recurrent_dropout=0.1, return_sequences=True),
            k.layers.GaussianNoise(0.1),
            k.layers.GRU(4, dropout=0.1),
        ),
        [X],
    ),
    "convolutions": lambda k: (
        _stack(
            k,
            k.layers.Conv1D(4, 2),
            k.layers.SeparableConv1D(4, 2),
            k.layers.DepthwiseConv1D(2),
            k.layers.Conv1DTranspose(5, 2),
            k.layers.PReLU(),
            k.layers.EinsumDense("abc,cd->abd", output_shape=(None, 4), bias_axes="d"),
            k.layers.LSTM(3),
        ),
        [X],
    ),
    "normalizers": lambda k: (
        _stack(
            k,
            k.layers.BatchNormalization(),
            k.layers.LSTM(4, return_sequences=True),
            k.layers.LayerNormalization(),
            k.layers.GroupNormalization(2),
            k.layers.RMSNormalization(),
            k.layers.BatchNormalization(scale=False),
        ),
        [X],
    ),
    "bidirectional": lambda k: (
        _stack(
            k,
            k.layers.Bidirectional(k.layers.LSTM(4, return_sequences=True), merge_mode="ave"),
            k.layers.Bidirectional(
                k.layers.GRU(4, return_sequences=True),
                backward_layer=k.layers.GRU(4, go_backwards=True, return_sequences=True, activation="relu"),
            ),
            k.layers.Bidirectional(k.layers.RNN(k.layers.LSTMCell(3))),
        ),
        [X],
    ),
    "time distributed": lambda k: (
        _stack(
            k,
            k.layers.TimeDistributed(k.layers.Bidirectional(k.layers.LSTM(4, return_sequences=True))),
            k.layers.TimeDistributed(_stack(k, k.layers.GRU(4), k.layers.Dense(3))),
            k.layers.GRU(3),
            shape=(2, 5, 8),
        ),
        [RNG.standard_normal((2, 2, 5, 8)).astype("float32")],
    ),
    "cells": lambda k: (
        _stack(k, k.layers.RNN([k.layers.LSTMCell(4), k.layers.GRUCell(3), k.layers.LSTMCell(5)])),
        [X],
    ),
    "convolutional": lambda k: (
        _stack(k, k.layers.ConvLSTM1D(3, 2, return_sequences=True), k.layers.ConvLSTM1D(2, 2), shape=(4, 6, 2)),
        [RNG.standard_normal((2, 4, 6, 2)).astype("float32")],
    ),
    "words": lambda k: (
        _stack(
            k,
            k.layers.Embedding(9, 4, mask_zero=True),
            k.layers.Bidirectional(k.layers.LSTM(3, return_sequences=True)),
            k.layers.GRU(3),
            shape=(5,),
            dtype="int32",
        ),
        [RNG.integers(0, 9, (3, 5))],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_both_ways(keras: Any, tmp_path: Path, name: str) -> None:
    """.h5 to .keras and to .h5, .keras to .h5 and to .keras: the same outputs, loaded with and without compiling."""
    keras.utils.set_random_seed(1)
    model, x = MODELS[name](keras)
    if name != "normalization":  # whose statistics are not free
        randomise(model)
    wanted = outputs(model, *x)
    for source in ("m.keras", "m.h5"):
        model.save(str(tmp_path / source))
        for target in ("out.keras", "out.h5"):
            report = lstm_swap.convert(tmp_path / source, tmp_path / target, to="standard", force=True)
            assert not [w for w in report.warnings if "guessed" in w]
            loaded = keras.saving.load_model(str(tmp_path / target), compile=target == "out.keras", safe_mode=True)
            assert_close(outputs(loaded, *x), wanted)


@pytest.mark.parametrize("name", ["nested", "time distributed", "shared"])
def test_fused_across_containers(keras: Any, tmp_path: Path, name: str) -> None:
    """A swap and a change of the container at once; the class numbers of `.keras` follow the new classes."""
    model, x = MODELS[name](keras)
    wanted = outputs(randomise(model), *x)
    for source, target in (("m.keras", "out.h5"), ("m.h5", "out.keras")):
        model.save(str(tmp_path / source))
        lstm_swap.convert(tmp_path / source, tmp_path / target, to="fused", strict=True)
        assert_close(outputs(keras.saving.load_model(str(tmp_path / target)), *x), wanted)


def _vocabulary(k: Any) -> Made:
    text = k.layers.TextVectorization(max_tokens=50, output_sequence_length=5)
    text.adapt(["a b c d", "e f g h a"])
    look = k.layers.StringLookup()
    look.adapt(["x", "y"])
    i, j = k.Input((1,), dtype="string"), k.Input((5,), dtype="string")
    h = k.layers.LSTM(4)(k.layers.Embedding(50, 6)(text(i)))
    g = k.layers.GRU(3)(k.layers.Embedding(50, 6)(look(j)))
    return k.Model([i, j], [h, g]), []


def test_vocabularies_travel_or_the_tool_says_no(keras: Any, tmp_path: Path) -> None:
    """What text layers learned lies in assets: `.keras` keeps it; HDF5 cannot, and that is an error, not a loss."""
    import tensorflow as tf

    model, _ = _vocabulary(keras)
    x = [tf.constant([["a b"], ["c zz e"]]), tf.constant([list("xyqxy"), list("yyxxz")])]
    model.save(str(tmp_path / "m.keras"))
    lstm_swap.convert(tmp_path / "m.keras", tmp_path / "out.keras", to="fused")
    assert_close(outputs(keras.saving.load_model(str(tmp_path / "out.keras")), *x), outputs(model, *x))
    with pytest.raises(UnsupportedLayerError, match="vocabulary"):
        lstm_swap.convert(tmp_path / "m.keras", tmp_path / "out.h5", to="standard")
    assert not (tmp_path / "out.h5").exists()


def test_a_wrapper_of_unknown_class_keeps_its_own_arrays(keras: Any, tmp_path: Path) -> None:
    """A wrapper of the user's own may have weights beside those of the layer that it wraps."""
    layers = keras.layers
    model = randomise(_stack(keras, layers.SpectralNormalization(layers.Dense(4)), layers.LSTM(3)))
    for name in ("m.h5", "m.keras"):
        model.save(str(tmp_path / name))
        out = tmp_path / f"out-{name}"
        lstm_swap.convert(tmp_path / name, out, to="fused")
        assert_close(outputs(keras.saving.load_model(str(out)), X), outputs(model, X))


def test_multi_gpu_model(tfk: Any, save_tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """The wrapper of multi_gpu_model goes, and the inner model stands alone in both containers."""
    layers = tfk.layers
    inner = randomise(tfk.Sequential([tfk.Input((5, 8)), layers.LSTM(4, name="l"), layers.Dense(2)], name="inner"))
    i = tfk.Input((5, 8), name="i")
    halves = [layers.Lambda(lambda t: t, name=f"slice_{n}")(i) for n in range(2)]
    outer = tfk.Model(i, layers.Concatenate(axis=0, name="dense")([inner(h) for h in halves]))
    path = save_tfk(outer)
    for target in ("out.h5", "out.keras"):
        report = lstm_swap.convert(path, tmp_path / target, to="standard")
        assert any("multi_gpu" in c.message for c in report.changes)
        loaded = load_keras(tmp_path / target)
        assert_close(outputs(loaded, X), outputs(inner, X))
        assert [layer.name for layer in loaded.layers] == ["l", inner.layers[1].name]


def test_keras_2_zip_is_marked_for_keras_2(tfk: Any, keras: Any, save_tfk: Any, tmp_path: Path) -> None:
    """`--dialect keras2` as `.keras`: tf_keras finds every class by its module, from either Keras."""
    old = randomise(tfk.Sequential([tfk.Input((5, 8)), tfk.layers.LSTM(4), tfk.layers.Dense(2)]))
    new = randomise(_stack(keras, keras.layers.LSTM(4), keras.layers.Dense(2)))
    new.save(str(tmp_path / "new.keras"))
    for source, model in ((save_tfk(old), old), (tmp_path / "new.keras", new)):
        out = tmp_path / f"out-{source.stem}.keras"
        lstm_swap.convert(source, out, to="standard", dialect="keras2")
        assert_close(outputs(tfk.models.load_model(str(out), compile=False), X), outputs(model, X))


def test_files_beside_the_model_stay(keras: Any, tmp_path: Path) -> None:
    """Members of a `.keras` zip that are not Keras's own survive; HDF5 has no place for them, which is said."""
    _stack(keras, keras.layers.LSTM(4)).save(str(tmp_path / "m.keras"))
    with zipfile.ZipFile(tmp_path / "m.keras", "a") as z:
        z.writestr("notes.txt", "trained on a Tuesday")
    lstm_swap.convert(tmp_path / "m.keras", tmp_path / "out.keras", to="standard")
    with zipfile.ZipFile(tmp_path / "out.keras") as z:
        assert z.read("notes.txt") == b"trained on a Tuesday"
    report = lstm_swap.convert(tmp_path / "m.keras", tmp_path / "out.h5", to="standard")
    assert any("notes.txt" in w for w in report.warnings)


def test_hdf5_of_keras_3_gets_its_modules(keras: Any, tmp_path: Path) -> None:
    """HDF5 of Keras 3 names the classes of models alone; a `.keras` file without their module does not load."""
    model, _ = _nested(keras)
    model.save(str(tmp_path / "m.h5"))
    with h5py.File(tmp_path / "m.h5") as f:
        assert "module" not in json.loads(f.attrs["model_config"])
    lstm_swap.convert(tmp_path / "m.h5", tmp_path / "out.keras", to="standard")
    with zipfile.ZipFile(tmp_path / "out.keras") as z:
        assert json.loads(z.read("config.json"))["module"] == "keras.src.models.functional"
