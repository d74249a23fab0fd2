"""Consecutive fused layers become one layer, and `standardize` gives every layer back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import lstm_swap
from lstm_swap.errors import UnsupportedLayerError
from lstm_swap.layers import FusedGRU, FusedLSTM
from tests.conftest import assert_close, outputs, randomise

layers = keras.layers


def classes(model: Any) -> list[str]:
    return [type(layer).__name__ for layer in model.layers]


def fused(model: Any, **options: Any) -> Any:
    return lstm_swap.optimize(model, "fused", merge=True, **options)


def words() -> keras.Model:
    """Two Bidirectional LSTM, then two GRU, behind a mask."""
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(9, 5, mask_zero=True),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True), name="both"),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode="sum"),
            layers.Dropout(0.1),
            layers.GRU(6, return_sequences=True, dropout=0.2, name="first"),
            layers.GRU(6, name="second"),
            layers.Dense(3),
        ]
    )


def some_words() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 9, (5, 7))


def test_a_stack_becomes_one_layer_and_comes_back() -> None:
    """Numbers, names, weights, the optimizer's state and the model's structure survive both ways, bit for bit."""
    model, x = randomise(words()), some_words()
    model.compile("adam", "mse")
    model.fit(x, np.ones((5, 3)), epochs=2, verbose=0)
    merged = fused(model)
    assert classes(merged) == ["Embedding", "FusedLSTM", "Dropout", "FusedGRU", "Dense"]
    assert [layer.name for layer in merged.layers][1:4:2] == ["both", "first"]
    assert_close(outputs(merged, x), outputs(model, x))
    back = lstm_swap.standardize(merged)
    assert classes(back) == classes(model)
    assert [layer.name for layer in back.layers] == [layer.name for layer in model.layers]
    assert back.layers[1].forward_layer.name == model.layers[1].forward_layer.name
    for old, new in ((model.weights, back.weights), (model.optimizer.variables, back.optimizer.variables)):
        assert len(old) == len(new)
        for a, b in zip(old, new, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_training_goes_on_as_before() -> None:
    """Fit the merged model and the plain one: the same losses, step for step."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 6, 3)).astype("float32"), rng.normal(size=(12, 2)).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((6, 3)),
            layers.LSTM(4, return_sequences=True, kernel_regularizer="l2"),
            layers.LSTM(4, kernel_regularizer="l2"),
            layers.Dense(2),
        ]
    )
    model.compile("adam", "mse")
    model.fit(x, y, epochs=1, verbose=0)
    merged = fused(model)
    assert classes(merged) == ["FusedLSTM", "Dense"]
    losses = [m.fit(x, y, epochs=4, shuffle=False, verbose=0).history["loss"] for m in (model, merged)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def chain(first: Any, second: Any) -> keras.Model:
    x = keras.Input((6, 3))
    return keras.Model(x, second(first(x)))


def lstm(**options: Any) -> Any:
    return layers.LSTM(4, **{"return_sequences": True, **options})


REFUSED = {
    "other units": lambda: chain(lstm(), layers.LSTM(5)),
    "other class": lambda: chain(lstm(), layers.GRU(4)),
    "dropout between": lambda: chain(lstm(), lstm(dropout=0.2)),
    "other regularizer": lambda: chain(lstm(), lstm(kernel_regularizer="l2")),
    "frozen": lambda: chain(lstm(), lstm(trainable=False)),
    "backwards": lambda: chain(lstm(), lstm(go_backwards=True)),
    "a penalty on what is between": lambda: chain(lstm(activity_regularizer="l2"), lstm()),
    "not side by side": lambda: chain(layers.Bidirectional(lstm(), merge_mode="sum"), layers.Bidirectional(lstm())),
}


@pytest.mark.parametrize("why", REFUSED)
def test_layers_that_do_not_run_alike_stay_apart(why: str) -> None:
    """A stack of one width, one set of settings and nothing between is one call; anything else is not."""
    model = randomise(REFUSED[why]())
    merged = fused(model)
    assert len(merged.layers) == len(model.layers)
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    assert_close(outputs(merged, x), outputs(model, x))


def test_an_output_that_others_read_is_kept() -> None:
    """A sequence with a second reader, a state that is handed on, and a model's own output stay visible."""
    x = keras.Input((6, 3))
    first, second, third = lstm(name="a"), lstm(name="b"), lstm(name="c", return_state=True)
    a = first(x)
    b = second(a)
    c, h, _ = third(b)
    model = randomise(keras.Model(x, [a, layers.Add()([b, c]), h]))
    merged = fused(model)
    assert classes(merged).count("FusedLSTM") == 3
    data = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    assert_close(outputs(merged, data), outputs(model, data))


def test_a_shared_layer_is_not_put_into_a_stack() -> None:
    """A layer that is called twice keeps its one set of weights."""
    x = keras.Input((6, 3))
    shared = lstm()
    model = randomise(keras.Model(x, layers.Add()([shared(x), shared(layers.Dense(3)(x))])))
    merged = fused(model)
    data = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    assert_close(outputs(merged, data), outputs(model, data))
    assert len(merged.weights) == len(model.weights)


def test_nested_models_and_states() -> None:
    """A stack inside an inner model is found; one that starts from a given state stays apart from the next."""
    inner = keras.Sequential([keras.Input((6, 3)), lstm(), lstm()], name="inner")
    x, h, c = keras.Input((6, 3)), keras.Input((4,)), keras.Input((4,))
    y = lstm()(inner(x))
    model = randomise(keras.Model([x, h, c], layers.LSTM(4)(y, initial_state=[h, c])))
    merged = fused(model)
    assert classes(merged.get_layer("inner")) == ["FusedLSTM"]
    assert classes(merged).count("FusedLSTM") == 2
    rng = np.random.default_rng(0)
    data = [rng.normal(size=s).astype("float32") for s in ((2, 6, 3), (2, 4), (2, 4))]
    assert_close(outputs(merged, *data), outputs(model, *data))


def test_a_merged_model_is_saved_and_opened(tmp_path: Path) -> None:
    """What `parts` says survives a file; converting such a file says what to do instead, and writes nothing."""
    model, x = randomise(words()), some_words()
    path = tmp_path / "merged.keras"
    fused(model).save(path)
    loaded = keras.saving.load_model(path)
    assert_close(outputs(loaded, x), outputs(model, x))
    assert [layer.name for layer in lstm_swap.standardize(loaded).layers] == [layer.name for layer in model.layers]
    with pytest.raises(UnsupportedLayerError, match=r"both.*save lstm_swap\.standardize\(model\)"):
        lstm_swap.convert(path, tmp_path / "plain.keras", to="standard")
    assert not (tmp_path / "plain.keras").exists()
    (reason,) = lstm_swap.inspect(path, to="standard").layers[0].reasons
    assert reason.code == "class"


@pytest.mark.parametrize("cls", [FusedLSTM, FusedGRU])
def test_a_stack_of_the_users_own_is_taken_apart(cls: Any) -> None:
    """`standardize` splits a layer that was made with num_layers; one that hands on all states cannot be split."""
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    model = randomise(keras.Sequential([keras.Input((6, 3)), cls(4, num_layers=2, bidirectional=True, name="deep")]))
    plain = lstm_swap.standardize(model)
    assert [layer.name for layer in plain.layers] == ["deep_l0", "deep_l1"]
    assert classes(plain) == ["Bidirectional", "Bidirectional"]
    assert_close(outputs(plain, x), outputs(model, x))
    stateful = keras.Sequential([keras.Input((6, 3)), cls(4, num_layers=2, return_state=True)])
    with pytest.raises(UnsupportedLayerError, match="hands on the states"):
        lstm_swap.standardize(stateful)
