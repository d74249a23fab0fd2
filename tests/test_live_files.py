"""load_model: any file as a live Keras 3 model in one call. The oracle is the Keras that wrote the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import lstm_swap
from tests.conftest import assert_close, outputs, randomise
from tests.live_tools import FEATURES, STEPS, chain, classes, layers, sequences


def old_model(tfk: Any) -> Any:
    stack = tfk.layers
    return randomise(
        tfk.Sequential(
            [
                stack.Input((STEPS, FEATURES)),
                stack.Bidirectional(stack.LSTM(4, return_sequences=True)),
                stack.GRU(3, name="recurrent"),
                stack.Dense(2),
            ]
        )
    )


@pytest.mark.parametrize("to", ["standard", "fused", "auto"])
def test_an_old_file(to: str, tfk: Any, save_tfk: Callable[..., Path]) -> None:
    """A file of tf_keras opens in either form with the old numbers."""
    old = old_model(tfk)
    model = lstm_swap.load_model(save_tfk(old), to)
    fused = to == "fused"
    assert [name.startswith("Fused") for name in classes(model)] == [fused] * 3
    assert_close(outputs(model, sequences()), outputs(old, sequences()))
    assert not model.compiled


def test_a_file_from_a_gpu(tfk: Any, save_tfk: Callable[..., Path], tmp_path: Path) -> None:
    """The legacy CuDNN classes, which no Keras 3 knows, open as plain and as fused layers."""
    old = old_model(tfk)
    path = tmp_path / "gpu.h5"
    lstm_swap.convert(save_tfk(old), path, to="cudnn", dialect="keras2")
    assert b"CuDNNGRU" in path.read_bytes()
    for to, name in (("standard", "GRU"), ("fused", "FusedGRU")):
        model = lstm_swap.load_model(str(path), to)
        assert type(model.get_layer("recurrent")).__name__ == name
        assert_close(outputs(model, sequences()), outputs(old, sequences()))


def test_a_saved_model_folder(tfk: Any, tmp_path: Path) -> None:
    """A SavedModel of Keras 2 opens as a live model."""
    old = old_model(tfk)
    old.save(str(tmp_path / "saved"), save_format="tf")
    model = lstm_swap.load_model(tmp_path / "saved", "fused")
    assert classes(model) == ["FusedLSTM", "FusedLSTM", "FusedGRU"]
    assert_close(outputs(model, sequences()), outputs(old, sequences()))


def test_a_keras_file_and_a_fused_one(tmp_path: Path) -> None:
    """`.keras` files of Keras 3, plain and fused, open in either form; a fused one needs no GPU."""
    model = randomise(chain(layers.LSTM(4, return_sequences=True), layers.GRU(3)))
    model.save(tmp_path / "plain.keras")
    lstm_swap.optimize(model, "fused").save(tmp_path / "fused.keras")
    for name in ("plain", "fused"):
        for to, wanted in (("standard", ["LSTM", "GRU"]), ("fused", ["FusedLSTM", "FusedGRU"])):
            again = lstm_swap.load_model(tmp_path / f"{name}.keras", to)
            assert classes(again) == wanted
            assert_close(outputs(again, sequences()), outputs(model, sequences()))


def test_compiled(tfk: Any, save_tfk: Callable[..., Path], tmp_path: Path) -> None:
    """compile=True brings the compile settings of an HDF5 file of Keras 2 and of a `.keras` file of Keras 3."""
    x, y = sequences(), np.ones((4, 2), "float32")
    old = old_model(tfk)
    old.compile(tfk.optimizers.legacy.SGD(0.25), "mse")
    model = lstm_swap.load_model(save_tfk(old), "fused", compile=True)
    assert float(model.optimizer.learning_rate) == 0.25
    losses = [m.fit(x, y, epochs=2, verbose=0, shuffle=False).history["loss"] for m in (old, model)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)

    new = randomise(chain(layers.LSTM(3), layers.Dense(2)))
    new.compile(keras.optimizers.Adam(0.125), "mae")
    new.fit(x, y, verbose=0)
    new.save(tmp_path / "new.keras")
    again = lstm_swap.load_model(tmp_path / "new.keras", "fused", compile=True)
    assert float(again.optimizer.learning_rate) == 0.125
    assert int(again.optimizer.iterations) == 1
    losses = [m.fit(x, y, epochs=2, verbose=0, shuffle=False).history["loss"] for m in (new, again)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_architecture_and_weights(tfk: Any, tmp_path: Path) -> None:
    """An architecture in JSON with its weights beside it."""
    old = old_model(tfk)
    (tmp_path / "model.json").write_text(old.to_json())
    old.save_weights(str(tmp_path / "w.h5"))
    model = lstm_swap.load_model(tmp_path / "model.json", "fused", weights=tmp_path / "w.h5")
    assert_close(outputs(model, sequences()), outputs(old, sequences()))
    with pytest.raises(lstm_swap.UsageError, match="weights"):
        lstm_swap.load_model(tmp_path / "model.json")


def test_inference_only(tmp_path: Path) -> None:
    """inference=True allows what only training would notice."""
    model = randomise(chain(layers.LSTM(4, recurrent_dropout=0.2, use_bias=False)))
    model.save(tmp_path / "model.keras")
    assert classes(lstm_swap.load_model(tmp_path / "model.keras", "fused")) == ["LSTM"]
    again = lstm_swap.load_model(tmp_path / "model.keras", "fused", inference=True)
    assert classes(again) == ["FusedLSTM"]
    assert_close(outputs(again, sequences()), outputs(model, sequences()))


class Twice(layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2


def test_custom_classes(tmp_path: Path) -> None:
    """A class of the user's is asked for by name, and taken from custom_objects."""
    model = randomise(chain(layers.LSTM(3), Twice()))
    model.save(tmp_path / "model.keras")
    with pytest.raises(lstm_swap.UnreadableModelError, match=r"cannot open it; pass .*Twice.* in custom_objects"):
        lstm_swap.load_model(tmp_path / "model.keras")
    again = lstm_swap.load_model(tmp_path / "model.keras", "fused", custom_objects={"Twice": Twice})
    assert_close(outputs(again, sequences()), outputs(model, sequences()))


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_lambdas_need_trust(tmp_path: Path) -> None:
    """Code in a file runs only with safe_mode=False, and the error says so."""
    model = chain(layers.LSTM(3), layers.Lambda(lambda x: x + 1, name="adding"))
    model.save(tmp_path / "model.keras")
    with pytest.raises(lstm_swap.UnreadableModelError, match=r"adding.*safe_mode=False"):
        lstm_swap.load_model(tmp_path / "model.keras")
    again = lstm_swap.load_model(tmp_path / "model.keras", "fused", safe_mode=False)
    assert_close(outputs(again, sequences()), outputs(model, sequences()))


def test_what_is_no_model(tmp_path: Path) -> None:
    """The errors of convert come through; nothing is left behind."""
    (tmp_path / "noise.h5").write_bytes(b"no model")
    with pytest.raises(lstm_swap.UnreadableModelError, match="not a model"):
        lstm_swap.load_model(tmp_path / "noise.h5")
    with pytest.raises(lstm_swap.UsageError, match="not part of Keras 3"):
        lstm_swap.load_model(tmp_path / "noise.h5", "cudnn")
    assert [path.name for path in tmp_path.iterdir()] == ["noise.h5"]
