"""Fused layers in files: what lies where, that it comes back, and what is said when it cannot."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from lstm_swap.errors import MissingDependencyError
from lstm_swap.layers import FusedGRU, FusedLSTM
from lstm_swap.layers._backend import check_keras, require_tensorflow_backend
from tests.fused_grid import FEATURES, FUSED, STANDARD, STEPS, UNITS, close, randomize

layers = keras.layers

# Keras copies TensorFlow's variables into NumPy arrays in a way that NumPy 2 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.fixture
def model() -> keras.Model:
    """Plain, wrapped, nested and shared fused layers with random weights."""
    inner_input = keras.Input((STEPS, FEATURES))
    inner = keras.Model(inner_input, FusedGRU(3, name="deep", return_sequences=True)(inner_input), name="inner")
    x = keras.Input((STEPS, FEATURES))
    shared = FusedLSTM(UNITS, name="shared", dropout=0.2, seed=3)
    halves = layers.Bidirectional(FusedGRU(UNITS, name="half", return_sequences=True), name="both")(x)
    each = layers.TimeDistributed(FusedLSTM(2, name="each"), name="per_step")(layers.Reshape((STEPS, UNITS, 2))(halves))
    joined = layers.Concatenate()([shared(x), shared(inner(x)), layers.Flatten()(each)])
    model = keras.Model(x, layers.Dense(2)(joined))
    randomize(model, seed=5)
    return model


def inputs() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, STEPS, FEATURES)).astype("float32")


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
def test_comes_back_from_a_file(model: keras.Model, suffix: str, tmp_path: Path) -> None:
    """Saved and opened again, a model has the same arrays and the same outputs."""
    path = tmp_path / f"model{suffix}"
    if suffix == ".weights.h5":
        model.save_weights(path)
        again = keras.models.clone_model(model)
        randomize(again, seed=6)
        again.load_weights(path)
    else:
        model.save(path)
        again = keras.saving.load_model(path, compile=False)
    for actual, expected in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    close(again(inputs()), model(inputs()), 1e-6)
    assert type(again.get_layer("shared")) is FusedLSTM
    assert again.get_layer("shared").get_config() == model.get_layer("shared").get_config()
    assert type(again.get_layer("both").backward_layer) is FusedGRU


def test_places_in_a_keras_file(model: keras.Model, tmp_path: Path) -> None:
    """In `.keras` a layer's arrays are vars/0 to 2, kernel, recurrent_kernel, bias, and nothing else is stored."""
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = json.loads(archive.read("config.json"))
        weights = h5py.File(io.BytesIO(archive.read("model.weights.h5")))
    stored: dict[str, tuple[int, ...]] = {}
    weights.visititems(lambda name, item: stored.update({name: item.shape}) if hasattr(item, "shape") else None)
    gates = {"lstm": 4, "gru": 3}

    def expected(path: str, kind: str, features: int, units: int) -> dict[str, tuple[int, ...]]:
        rows = gates[kind] * units
        bias = rows if kind == "lstm" else 2 * rows
        return {f"{path}/vars/0": (rows, features), f"{path}/vars/1": (rows, units), f"{path}/vars/2": (bias,)}

    wanted = {
        **expected("layers/fused_lstm", "lstm", FEATURES, UNITS),
        **expected("layers/bidirectional/forward_layer", "gru", FEATURES, UNITS),
        **expected("layers/bidirectional/backward_layer", "gru", FEATURES, UNITS),
        **expected("layers/time_distributed/layer", "lstm", 2, 2),
        **expected("layers/functional/layers/fused_gru", "gru", FEATURES, 3),
    }
    assert {name: shape for name, shape in stored.items() if "dense" not in name} == wanted
    entry = next(item for item in config["config"]["layers"] if item["name"] == "shared")
    names = {name: entry[name] for name in ("module", "class_name", "registered_name")}
    assert names == {
        "module": "lstm_swap.layers",
        "class_name": "FusedLSTM",
        "registered_name": "lstm_swap>FusedLSTM",
    }


def test_order_in_an_hdf5_file(tmp_path: Path) -> None:
    """In `.h5` a layer's arrays stand in the same order, and the class is named with its package."""
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), FusedGRU(UNITS, name="one")])
    model.save(tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5") as file:
        names = [name.split("/")[-1] for name in file["model_weights/one"].attrs["weight_names"]]
        config = json.loads(file.attrs["model_config"])
    assert names == ["kernel", "recurrent_kernel", "bias"]
    assert config["config"]["layers"][1]["class_name"] == "lstm_swap>FusedGRU"


def test_unknown_without_the_import(tmp_path: Path) -> None:
    """Where lstm_swap.layers was not imported, Keras says that it does not know the class, and names it."""
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), FusedGRU(UNITS)])
    model.save(tmp_path / "model.keras")
    registry = keras.saving.get_custom_objects()
    known = registry.pop("lstm_swap>FusedGRU")
    try:
        with pytest.raises(TypeError, match="FusedGRU"):
            keras.saving.load_model(tmp_path / "model.keras")
    finally:
        registry["lstm_swap>FusedGRU"] = known


@pytest.mark.parametrize("kind", FUSED)
def test_config_of_the_standard_layer_fits(kind: str) -> None:
    """A fused layer can be made from the standard layer's config, and keeps each setting."""
    arguments = {
        "kernel_initializer": "he_normal",
        "recurrent_regularizer": keras.regularizers.L2(0.1),
        "bias_constraint": "non_neg",
        "activity_regularizer": "l1",
        "dropout": 0.25,
        "seed": 9,
        "return_sequences": True,
        "return_state": True,
        "go_backwards": True,
        "stateful": True,
        "zero_output_for_mask": True,
        "trainable": False,
        "dtype": "mixed_bfloat16",
        "name": "kept",
    }
    standard = STANDARD[kind](UNITS, **arguments).get_config()
    config = FUSED[kind].from_config(standard).get_config()
    assert config == standard
    assert FUSED[kind].from_config(config).get_config() == config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("activation", "relu"),
        ("activation", None),
        ("recurrent_activation", "hard_sigmoid"),
        ("use_bias", False),
        ("recurrent_dropout", 0.1),
        ("unroll", True),
        ("reset_after", False),
    ],
)
def test_refuses_what_cudnn_cannot_do(name: str, value: Any) -> None:
    """An argument that cuDNN cannot honour is an error that names it, its value, and the way out."""
    with pytest.raises(ValueError, match=rf"FusedGRU: {name}={value!r} .*keras.layers.GRU"):
        FusedGRU(UNITS, **{name: value})


def test_takes_what_cudnn_does_under_its_other_names() -> None:
    """tanh and sigmoid may be given as functions of Keras or TensorFlow."""
    for tanh, sigmoid in ((keras.ops.tanh, keras.activations.sigmoid), (tf.tanh, tf.sigmoid)):
        layer = FusedLSTM(UNITS, activation=tanh, recurrent_activation=sigmoid, use_bias=True, unroll=False)
        assert layer.get_config()["activation"] == "tanh"


def test_other_mistakes() -> None:
    """Wrong units, unknown feature size, a wrong number of states, an unknown argument."""
    for units in (0, -1, 2.5, None):
        with pytest.raises(ValueError, match="units must be a positive integer"):
            FusedLSTM(units)
    with pytest.raises(ValueError, match="last dimension"):
        FusedLSTM(UNITS).build((None, STEPS, None))
    with pytest.raises(ValueError, match="must have 2 tensors, got 1"):
        FusedLSTM(UNITS)(inputs(), initial_state=tf.zeros((3, UNITS)))
    with pytest.raises((TypeError, ValueError), match="time_major"):
        FusedLSTM(UNITS, time_major=True)


def test_export_runs_and_has_a_gradient(model: keras.Model, tmp_path: Path) -> None:
    """An exported SavedModel gives the model's outputs, for other batch sizes too, and their gradients."""
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")  # must outlive its functions
    served = loaded.serve
    for x in (inputs(), np.concatenate([inputs()] * 2)):
        close(served(x), model(x), 1e-6)

    def gradient(function: Any) -> Any:
        x = tf.Variable(inputs())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(x) ** 2)
        return tape.gradient(loss, x)

    close(gradient(served), gradient(model), 1e-5)


def test_export_of_a_stateful_layer_keeps_its_states(tmp_path: Path) -> None:
    """An exported stateful model goes on from call to call."""
    model = keras.Sequential([keras.Input(batch_shape=(3, STEPS, FEATURES)), FusedLSTM(UNITS, stateful=True)])
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")  # must outlive its functions
    served = loaded.serve
    for _ in range(2):
        close(served(inputs()), model(inputs()), 1e-6)


def test_other_backends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another backend, Keras 2, and no Keras at all each have an error that says what to do."""

    def fake(version: str, backend: str) -> Any:
        return SimpleNamespace(__version__=version, backend=SimpleNamespace(backend=lambda: backend))

    with pytest.raises(RuntimeError, match=r"uses 'jax'.*KERAS_BACKEND=tensorflow"):
        check_keras(fake("3.15.1", "jax"))
    with pytest.raises(MissingDependencyError, match=r"this is Keras 2\.15\.0: pip install"):
        check_keras(fake("2.15.0", "tensorflow"))
    check_keras(fake("3.12.0", "tensorflow"))
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        require_tensorflow_backend()
