"""Optimizer state: a converted file goes on training where the original would have gone on."""

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

RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((6, 5, 3)).astype("float32"), RNG.standard_normal((6, 2)).astype("float32")
STEPS = 3


def _model(keras: Any, *stack: Any) -> Any:
    keras.utils.set_random_seed(4)
    return keras.Sequential([keras.Input((5, 3)), *stack])


def _stack(layers: Any) -> list[Any]:
    """Layers with frozen and non-trainable weights between the trainable ones."""
    return [
        layers.LSTM(4, return_sequences=True, name="a"),
        layers.BatchNormalization(name="b"),
        layers.Dense(4, trainable=False, name="f"),
        layers.Bidirectional(layers.GRU(3), name="g"),
        layers.Dense(2, name="d"),
    ]


def _train(model: Any, steps: int = STEPS) -> list[float]:
    """One full-batch step at a time: the loss before each."""
    model.run_eagerly = True  # three steps are not worth a traced graph
    return [float(np.asarray(model.train_on_batch(X, Y)).reshape(-1)[0]) for _ in range(steps)]


OLD: dict[str, Callable[[Any], Any]] = {
    "adam": lambda o: o.legacy.Adam(0.01),
    "adam with amsgrad": lambda o: o.legacy.Adam(0.01, amsgrad=True),
    "adam with decay": lambda o: o.legacy.Adam(0.01, decay=0.05),
    "sgd": lambda o: o.legacy.SGD(0.01),
    "sgd with momentum": lambda o: o.legacy.SGD(0.01, momentum=0.9),
    "sgd of Nesterov": lambda o: o.legacy.SGD(0.01, momentum=0.9, nesterov=True),
    "rmsprop": lambda o: o.legacy.RMSprop(0.005),
    "rmsprop, centered, with momentum": lambda o: o.legacy.RMSprop(0.005, momentum=0.5, centered=True),
    "adagrad": lambda o: o.legacy.Adagrad(0.01),
    "adam of 2.11": lambda o: o.Adam(0.01),
    "adam of 2.11 with amsgrad": lambda o: o.Adam(0.01, amsgrad=True),
    "adam of 2.11 with a schedule": lambda o: o.Adam(o.schedules.ExponentialDecay(0.01, 2, 0.9)),
    "adamw of 2.11": lambda o: o.AdamW(0.01),
    "sgd of 2.11": lambda o: o.SGD(0.01, momentum=0.9),
    "rmsprop of 2.11": lambda o: o.RMSprop(0.005, momentum=0.5, centered=True),
}


FUSED = ("adam", "adam of 2.11 with amsgrad", "sgd with momentum")


@pytest.mark.parametrize(("name", "to"), [(n, "standard") for n in OLD] + [(n, "fused") for n in FUSED])
def test_training_goes_on_in_keras_3(tfk: Any, keras: Any, save_tfk: Any, tmp_path: Path, name: str, to: str) -> None:
    """The next losses in Keras 3 are those that tf_keras computes; without the state they are others."""
    import lstm_swap.layers

    model = _model(tfk, *_stack(tfk.layers))
    model.compile(OLD[name](tfk.optimizers), "mse")
    _train(model)
    path = save_tfk(model)
    report = lstm_swap.convert(path, tmp_path / "out.keras", to=to)
    assert not any("optimizer" in w for w in report.warnings)
    wanted = _train(model)
    loaded = keras.saving.load_model(str(tmp_path / "out.keras"))
    assert int(loaded.optimizer.iterations) == STEPS
    got = _train(loaded)
    # RMSprop and Adagrad of Keras 3 have epsilon under the root, those of Keras 2 beside it.
    np.testing.assert_allclose(got, wanted, rtol=1e-3 if name.startswith(("rmsprop", "adagrad")) else 2e-4)
    if name == "sgd":
        return  # it has no memory
    fresh = keras.saving.load_model(str(tmp_path / "out.keras"), compile=False)
    fresh.compile(type(loaded.optimizer).from_config(loaded.optimizer.get_config()), "mse")
    assert np.abs(np.subtract(_train(fresh), wanted)).max() > 10 * np.abs(np.subtract(got, wanted)).max() + 1e-5


@pytest.mark.parametrize("suffixes", [(".keras", ".keras"), (".h5", ".keras"), (".keras", ".h5"), (".h5", ".h5")])
@pytest.mark.parametrize("to", ["standard", "fused"])
def test_keras_3_keeps_its_own(keras: Any, tmp_path: Path, suffixes: tuple[str, str], to: str) -> None:
    """Between the containers of Keras 3 compile settings and state stay; a re-laid kernel takes its slots along."""
    import lstm_swap.layers

    model = _model(keras, *_stack(keras.layers))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError(), metrics=["mae"])
    _train(model)
    path, out = tmp_path / f"m{suffixes[0]}", tmp_path / f"out{suffixes[1]}"
    model.save(str(path))
    report = lstm_swap.convert(path, out, to=to)
    assert bool([w for w in report.warnings if "dropped" in w]) == (suffixes[1] == ".h5")
    wanted = _train(model)
    loaded = keras.saving.load_model(str(out))
    if out.suffix == ".keras":
        assert int(loaded.optimizer.iterations) == STEPS
        np.testing.assert_allclose(_train(loaded), wanted, rtol=1e-4)
    else:  # with optimizer_weights in an HDF5 file, even in its own, Keras 3 fails at the first step
        with h5py.File(out) as f:
            assert "optimizer_weights" not in f
        np.testing.assert_allclose(_train(loaded)[0], wanted[0], rtol=1e-4)


def test_a_weight_that_is_scaled_loses_its_slots(tfk: Any, keras: Any, save_tfk: Any, tmp_path: Path) -> None:
    """hard_sigmoid gates are scaled by 1.2 for Keras 3: their Adam state means nothing then, and goes with a line."""
    model = _model(tfk, tfk.layers.LSTM(4, recurrent_activation="hard_sigmoid"), tfk.layers.Dense(2))
    model.compile(tfk.optimizers.legacy.Adam(0.01), "mse")
    _train(model)
    for suffix in (".h5", ".keras"):
        report = lstm_swap.convert(save_tfk(model), tmp_path / f"out{suffix}", to="standard")
        assert any(w.startswith("optimizer state dropped") for w in report.warnings)
        loaded = keras.saving.load_model(str(tmp_path / f"out{suffix}"))
        assert loaded.compiled == (suffix == ".h5")
        if loaded.compiled:
            assert int(loaded.optimizer.iterations) == 0
            _train(loaded)


@pytest.mark.parametrize("make", [lambda o: o.legacy.Nadam(0.01), lambda o: o.legacy.Adamax(0.01), lambda o: o.Nadam()])
def test_an_optimizer_of_other_state_is_said(
    tfk: Any, keras: Any, save_tfk: Any, tmp_path: Path, make: Callable[[Any], Any]
) -> None:
    """Where the two Keras keep different things, the state goes with a line, and the file still compiles."""
    model = _model(tfk, *_stack(tfk.layers))
    model.compile(make(tfk.optimizers), "mse")
    _train(model)
    report = lstm_swap.convert(save_tfk(model), tmp_path / "out.keras", to="standard")
    assert any(w.startswith("optimizer state dropped") for w in report.warnings)
    assert not keras.saving.load_model(str(tmp_path / "out.keras")).compiled  # it would not load with half of it
    report = lstm_swap.convert(save_tfk(model), tmp_path / "out.h5", to="standard")
    assert any(w.startswith("optimizer state dropped") for w in report.warnings)
    _train(keras.saving.load_model(str(tmp_path / "out.h5")))


def test_slots_of_an_rnn_of_a_cell(keras: Any, tmp_path: Path) -> None:
    """RNN(LSTMCell) becomes a layer of its own: the cell's weights are the layer's then, and so are their slots."""
    import lstm_swap.layers

    layers = keras.layers
    model = _model(keras, layers.RNN(layers.LSTMCell(4)), layers.Dense(2))
    model.compile(keras.optimizers.Adam(0.01), "mean_squared_error")
    _train(model)
    model.save(str(tmp_path / "m.keras"))
    lstm_swap.convert(tmp_path / "m.keras", tmp_path / "out.keras", to="fused", strict=True)
    np.testing.assert_allclose(_train(keras.saving.load_model(str(tmp_path / "out.keras"))), _train(model), rtol=1e-4)


def test_layers_in_another_order(tfk: Any, keras: Any, save_tfk: Any, tmp_path: Path) -> None:
    """Keras 3 lists the layers of a graph in an order of its own; every slot still finds its weight."""
    layers = tfk.layers
    tfk.utils.set_random_seed(4)
    inputs = tfk.Input((5, 3))
    late, early = layers.LSTM(4, name="z"), layers.LSTM(4, name="a", return_sequences=True)
    joined = layers.Add()([layers.LSTM(4, name="m")(inputs), late(early(inputs)), layers.GRU(4, name="b")(inputs)])
    model = tfk.Model(inputs, layers.Dense(2)(joined))
    model.compile(tfk.optimizers.legacy.Adam(0.02), "mse")
    _train(model)
    path = save_tfk(model)
    with h5py.File(path, "r+") as f:  # the architecture lists its layers in any order that it likes
        entry = json.loads(f.attrs["model_config"])
        assert [e["class_name"] for e in entry["config"]["layers"]].count("LSTM") == 3
    lstm_swap.convert(path, tmp_path / "out.keras", to="standard")
    loaded = keras.saving.load_model(str(tmp_path / "out.keras"))
    np.testing.assert_allclose(_train(loaded), _train(model), rtol=2e-4)


def test_an_uncompiled_keras_file_gets_no_settings(keras: Any, tmp_path: Path) -> None:
    """compile_config is {} then; an HDF5 file with training settings but no optimizer would not load compiled."""
    model = _model(keras, *_stack(keras.layers))
    model.save(str(tmp_path / "m.keras"))
    with zipfile.ZipFile(tmp_path / "m.keras") as z:
        assert json.loads(z.read("config.json"))["compile_config"] == {}
    report = lstm_swap.convert(tmp_path / "m.keras", tmp_path / "out.h5", to="standard")
    assert not any("compile" in w for w in report.warnings)
    with h5py.File(tmp_path / "out.h5") as f:
        assert "training_config" not in f.attrs
