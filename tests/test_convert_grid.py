"""A grid of Keras 2 models: the plain file, its CuDNN form and the way back compute the same.

The oracle is tf_keras: it runs the plain file, and it opens the CuDNN file with its own conversion of the arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import lstm_swap
from tests.conftest import assert_close, outputs, randomise

X = np.random.default_rng(1).standard_normal((3, 6, 5)).astype("float32")


def _lstm(layers: Any, units: int = 4, **kw: Any) -> Any:
    return layers.LSTM(units, **kw)


def _gru(layers: Any, units: int = 4, **kw: Any) -> Any:
    return layers.GRU(units, **kw)


def _sequential(tfk: Any, *stack: Any) -> Any:
    return tfk.Sequential([tfk.Input((6, 5)), *stack])


def _initial_state(tfk: Any, make: Callable[..., Any]) -> Any:
    layers = tfk.layers
    x = layers.Input((6, 5))
    first = make(layers, return_state=True, return_sequences=True)(x)
    second = make(layers, go_backwards=True)(first[0], initial_state=first[1:])
    return tfk.Model(x, [second, first[1]])


def _nested(tfk: Any, make: Callable[..., Any]) -> Any:
    layers = tfk.layers
    inner = tfk.Sequential([tfk.Input((6, 5)), make(layers, return_sequences=True), layers.BatchNormalization()])
    frozen = tfk.Sequential([tfk.Input((6, 4)), make(layers, 3, return_sequences=True), layers.Dense(4)])
    frozen.layers[0].trainable = False
    x = layers.Input((6, 5))
    y = frozen(inner(x))
    return tfk.Model(x, layers.GlobalAveragePooling1D()(y))


def _shared(tfk: Any, make: Callable[..., Any]) -> Any:
    layers = tfk.layers
    x = layers.Input((6, 5))
    layer = make(layers)
    return tfk.Model(x, layers.Add()([layer(x), layer(layers.Dropout(0.5)(x))]))


MODELS: dict[str, Callable[[Any, Callable[..., Any]], Any]] = {
    "plain": lambda tfk, make: _sequential(tfk, make(tfk.layers), tfk.layers.Dense(2)),
    "stack": lambda tfk, make: _sequential(tfk, make(tfk.layers, return_sequences=True), make(tfk.layers, 3)),
    "backwards": lambda tfk, make: _sequential(tfk, make(tfk.layers, go_backwards=True, return_sequences=True)),
    **{
        f"bidirectional-{mode}": lambda tfk, make, mode=mode: _sequential(
            tfk, tfk.layers.Bidirectional(make(tfk.layers, return_sequences=True), merge_mode=mode)
        )
        for mode in ("concat", "sum", "mul", "ave")
    },
    "bidirectional-two": lambda tfk, make: _sequential(
        tfk, tfk.layers.Bidirectional(make(tfk.layers), backward_layer=make(tfk.layers, go_backwards=True))
    ),
    "bidirectional-none": lambda tfk, make: tfk.Model(
        x := tfk.Input((6, 5)), tfk.layers.Bidirectional(make(tfk.layers), merge_mode=None)(x)
    ),
    "time-distributed": lambda tfk, make: tfk.Sequential(
        [tfk.Input((2, 6, 5)), tfk.layers.TimeDistributed(make(tfk.layers)), tfk.layers.Flatten()]
    ),
    "stateful": lambda tfk, make: tfk.Sequential(
        [make(tfk.layers, stateful=True, batch_input_shape=(3, 6, 5)), tfk.layers.Dense(2)]
    ),
    "states": _initial_state,
    "nested": _nested,
    "shared": _shared,
}
KINDS = {"lstm": _lstm, "gru": _gru}


def _input(name: str) -> np.ndarray:
    return np.stack([X, X[:, ::-1]], axis=1) if name == "time-distributed" else X


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(
    tfk: Any, save_tfk: Any, load_tfk: Any, load_keras: Any, tmp_path: Path, name: str, kind: str
) -> None:
    """Plain to CuDNN, as tf_keras reads it; and CuDNN to plain, as Keras 3 reads it, in both containers."""
    model = randomise(MODELS[name](tfk, KINDS[kind]))
    x = _input(name)
    wanted = outputs(model, x)
    if name == "stateful":
        model.reset_states()
    plain = save_tfk(model, "plain.h5")

    report = lstm_swap.convert(plain, tmp_path / "gpu.h5", to="cudnn", dialect="keras2", strict=True)
    assert {d.action for d in report.layers} == {"swap"}
    assert report.verified is True
    with h5py.File(tmp_path / "gpu.h5") as f:
        config = f.attrs["model_config"]
        assert ("CuDNNLSTM" if kind == "lstm" else "CuDNNGRU") in config
        assert '"LSTM"' not in config and '"GRU"' not in config
    assert_close(outputs(load_tfk(tmp_path / "gpu.h5"), x), wanted)
    assert lstm_swap.inspect(tmp_path / "gpu.h5").needs_gpu

    for out in ("back.h5", "back.keras"):
        report = lstm_swap.convert(tmp_path / "gpu.h5", tmp_path / out, to="standard")
        assert {d.action for d in report.layers} == {"swap"}
        assert_close(outputs(load_keras(tmp_path / out), x), wanted)
        assert not lstm_swap.inspect(tmp_path / out).needs_gpu


def test_gpu_arrays_equal_what_tf_keras_itself_makes(tfk: Any, save_tfk: Any, tmp_path: Path) -> None:
    """The arrays of the CuDNN file are bit for bit those of tf_keras's own conversion."""
    from tf_keras.src.saving.legacy import hdf5_format

    model = randomise(_sequential(tfk, tfk.layers.LSTM(4, return_sequences=True), tfk.layers.GRU(3)))
    lstm_swap.convert(save_tfk(model), tmp_path / "gpu.h5", to="cudnn", dialect="keras2")
    for layer, cls in zip(model.layers, ("CuDNNLSTM", "CuDNNGRU"), strict=True):
        target = type(cls, (), {"units": layer.units})()
        wanted = hdf5_format._convert_rnn_weights(target, layer.get_weights())
        with h5py.File(tmp_path / "gpu.h5") as f:
            group = f["model_weights"][layer.name]
            got = [group[n][()] for n in group.attrs["weight_names"]]
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtype_is_kept(tfk: Any, save_tfk: Any, load_keras: Any, tmp_path: Path, dtype: str) -> None:
    """Arrays stay in the file's dtype, and float64 keeps all of its digits."""
    stack = [
        tfk.layers.LSTM(4, return_sequences=True, dtype=dtype),
        tfk.layers.GRU(3, dtype=dtype),
        tfk.layers.Dense(2, dtype=dtype),
    ]
    model = randomise(tfk.Sequential([tfk.Input((6, 5), dtype=dtype), *stack]))
    wanted = outputs(model, X.astype(dtype))
    lstm_swap.convert(save_tfk(model), tmp_path / "gpu.h5", to="cudnn", dialect="keras2", strict=True)
    lstm_swap.convert(tmp_path / "gpu.h5", tmp_path / "back.h5", to="standard")
    with h5py.File(tmp_path / "gpu.h5") as f:
        found: set[str] = set()
        f["model_weights"].visititems(lambda _, o: found.add(str(o.dtype)) if isinstance(o, h5py.Dataset) else None)
    assert found == {dtype}
    assert_close(
        outputs(load_keras(tmp_path / "back.h5"), X.astype(dtype)), wanted, 1e-10 if dtype == "float64" else 1e-2
    )


def test_refused_layers_stay_byte_for_byte(tfk: Any, save_tfk: Any, tmp_path: Path) -> None:
    """What the plan does not name is not touched: settings and arrays of refused and other layers are as they were."""
    layers = tfk.layers
    model = randomise(
        _sequential(
            tfk,
            layers.LSTM(4, return_sequences=True, name="yes"),
            layers.LSTM(4, activation="relu", return_sequences=True, name="no"),
            layers.Dense(2, name="other"),
        )
    )
    plain = save_tfk(model)
    report = lstm_swap.convert(plain, tmp_path / "gpu.h5", to="cudnn", dialect="keras2")
    assert [(d.path, d.action) for d in report.layers] == [("yes", "swap"), ("no", "refuse")]
    with h5py.File(plain) as a, h5py.File(tmp_path / "gpu.h5") as b:
        before, after = (json.loads(f.attrs["model_config"])["config"]["layers"] for f in (a, b))
        assert [x["config"]["name"] for x in after] == [x["config"]["name"] for x in before]
        for x, y in zip(before, after, strict=True):
            if x["config"]["name"] != "yes":
                assert x == y
        for name in ("no", "other"):
            for key in a["model_weights"][name].attrs["weight_names"]:
                x, y = a["model_weights"][name][key], b["model_weights"][name][key]
                np.testing.assert_array_equal(x[()], y[()])
        assert dict(a.attrs)["keras_version"] == dict(b.attrs)["keras_version"]
