"""HDF5 details: what is kept byte for byte, long attributes, orders of flat lists, names, containers by content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import lstm_swap
from lstm_swap.formats import h5
from tests.conftest import assert_close, outputs, randomise

X = np.random.default_rng(2).standard_normal((2, 5, 3)).astype("float32")


def _gpu_file(tfk: Any, save_tfk: Any, tmp_path: Path, *stack: Any) -> tuple[Any, Path]:
    model = randomise(tfk.Sequential([tfk.Input((5, 3)), *stack]))
    path = tmp_path / "gpu.h5"
    lstm_swap.convert(save_tfk(model, "plain.h5"), path, to="cudnn", dialect="keras2", strict=True)
    return model, path


def test_foreign_content_survives(tfk: Any, save_tfk: Any, tmp_path: Path) -> None:
    """Attributes and datasets that are not Keras's stay, and so does the input, byte for byte."""
    _, path = _gpu_file(tfk, save_tfk, tmp_path, tfk.layers.LSTM(4, name="a"))
    with h5py.File(path, "r+") as f:
        f.attrs["my_notes"] = "trained on a Tuesday"
        f.create_dataset("extra/table", data=np.arange(6).reshape(2, 3))
        f["model_weights/a"].attrs["mine"] = 7
    before = path.read_bytes()
    lstm_swap.convert(path, tmp_path / "out.h5", to="standard")
    assert path.read_bytes() == before
    with h5py.File(tmp_path / "out.h5") as f:
        assert f.attrs["my_notes"] == "trained on a Tuesday"
        np.testing.assert_array_equal(f["extra/table"][()], [[0, 1, 2], [3, 4, 5]])
        assert f["model_weights/a"].attrs["mine"] == 7


def test_names_over_64_kilobytes(tmp_path: Path) -> None:
    """Lists that HDF5 cannot hold in one attribute are read and written in numbered pieces."""
    names = [f"layer_{'x' * 300}_{i}" for i in range(400)]
    with h5py.File(tmp_path / "f.h5", "w") as f:
        h5.set_strings(f, "layer_names", names)
        assert "layer_names" not in f.attrs
        assert "layer_names1" in f.attrs
        assert h5.strings(f, "layer_names") == names
        h5.set_strings(f, "layer_names", names[:3])
        assert h5.strings(f, "layer_names") == names[:3]
        assert "layer_names0" not in f.attrs


def test_list_config_of_early_keras_2(tfk: Any, save_tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Until Keras 2.2 a Sequential's config was the list of its layers."""
    model, path = _gpu_file(tfk, save_tfk, tmp_path, tfk.layers.LSTM(4), tfk.layers.Dense(2))
    with h5py.File(path, "r+") as f:
        entry = json.loads(f.attrs["model_config"])
        layers = [layer for layer in entry["config"]["layers"] if layer["class_name"] != "InputLayer"]
        layers[0]["config"]["batch_input_shape"] = [None, 5, 3]
        f.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": layers})
        f.attrs["keras_version"] = "2.0.8"
    for out in ("out.h5", "out.keras"):
        lstm_swap.convert(path, tmp_path / out, to="standard")
        assert_close(outputs(load_keras(tmp_path / out), X), outputs(model, X))


def test_backward_half_first(tfk: Any, save_tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Some versions list the backward half of a Bidirectional first; the names say so, and the output is in order."""
    model, path = _gpu_file(tfk, save_tfk, tmp_path, tfk.layers.Bidirectional(tfk.layers.LSTM(4, name="a"), name="b"))
    with h5py.File(path, "r+") as f:
        group = f["model_weights/b"]
        names = h5.strings(group, "weight_names")
        assert "forward" in names[0]
        assert "backward" in names[3]
        h5.set_strings(group, "weight_names", names[3:] + names[:3])
    for out in ("out.h5", "out.keras"):
        lstm_swap.convert(path, tmp_path / out, to="standard")
        assert_close(outputs(load_keras(tmp_path / out), X), outputs(model, X))


@pytest.mark.parametrize("name", ["model.keras", "model.model", "model", "weights.bin"])
def test_content_decides_not_the_name(tfk: Any, save_tfk: Any, load_keras: Any, tmp_path: Path, name: str) -> None:
    """An HDF5 file is read as one whatever it is called, and the default output says what it is."""
    model, path = _gpu_file(tfk, save_tfk, tmp_path, tfk.layers.GRU(4))
    odd = tmp_path / name
    path.rename(odd)
    report = lstm_swap.convert(odd, to="standard")
    assert report.container == "hdf5"
    assert report.output is not None
    assert report.output.endswith(".standard.h5") or report.output.endswith(".bin.standard.h5")
    assert_close(outputs(load_keras(Path(report.output)), X), outputs(model, X))


def test_slash_in_a_layer_name(tfk: Any, save_tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Legal in Keras 2, illegal in Keras 3: renamed, and reported."""
    model, path = _gpu_file(tfk, save_tfk, tmp_path, tfk.layers.LSTM(4, name="block/lstm"), tfk.layers.Dense(2))
    for out in ("out.h5", "out.keras"):
        report = lstm_swap.convert(path, tmp_path / out, to="standard")
        assert any("block/lstm" in c.path and c.field == "name" for c in report.changes)
        assert_close(outputs(load_keras(tmp_path / out), X), outputs(model, X))


def test_weights_only_and_back(tfk: Any, save_tfk: Any, tmp_path: Path) -> None:
    """A weights file has no settings; the bias tells the layout, and the plain model takes the converted arrays."""
    stack = [tfk.layers.Bidirectional(tfk.layers.LSTM(4, return_sequences=True)), tfk.layers.GRU(3)]
    model, path = _gpu_file(tfk, save_tfk, tmp_path, *stack)
    weights = tmp_path / "gpu.weights.hdf5"
    with h5py.File(path) as f, h5py.File(weights, "w") as g:
        for key, value in f["model_weights"].attrs.items():
            g.attrs[key] = value
        for key in f["model_weights"]:
            f["model_weights"].copy(key, g)
    assert lstm_swap.inspect(weights).needs_gpu
    report = lstm_swap.convert(weights, tmp_path / "plain_weights.h5", to="standard")
    assert [d.action for d in report.layers] == ["swap", "swap", "swap"]
    wanted = outputs(model, X)
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    model.load_weights(str(tmp_path / "plain_weights.h5"))
    assert_close(outputs(model, X), wanted, 0)


def test_architecture_and_weights(tfk: Any, save_tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """JSON or YAML with --weights is a whole model; layers of another session are matched in order."""
    model, _ = _gpu_file(tfk, save_tfk, tmp_path, tfk.layers.LSTM(4), tfk.layers.Dense(2))
    (tmp_path / "m.json").write_text(model.to_json())
    (tmp_path / "quoted.json").write_text(json.dumps(model.to_json()))
    import yaml

    (tmp_path / "m.yaml").write_text(yaml.safe_dump(json.loads(model.to_json())))
    again = tfk.Sequential([tfk.Input((5, 3)), tfk.layers.LSTM(4), tfk.layers.Dense(2)])
    again.set_weights(model.get_weights())
    assert again.layers[0].name != model.layers[0].name
    again.save_weights(str(tmp_path / "w.h5"))
    for name in ("m.json", "m.yaml", "quoted.json"):
        out = tmp_path / f"{name}.out.keras"
        lstm_swap.convert(tmp_path / name, out, weights=tmp_path / "w.h5", to="standard")
        assert_close(outputs(load_keras(out), X), outputs(model, X))


def test_optimizer_slots_follow_their_weights(tfk: Any, save_tfk: Any, tmp_path: Path) -> None:
    """Adam's m and v of a permuted kernel are permuted like it; each half of a split bias takes the whole slot."""
    from lstm_swap.weights import layouts

    tfk.utils.set_random_seed(1)
    model = tfk.Sequential([tfk.Input((5, 3)), tfk.layers.LSTM(4, name="a"), tfk.layers.Dense(2, name="d")])
    model.compile(tfk.optimizers.legacy.Adam(0.01), "mse")
    model.fit(X, np.ones((2, 2)), epochs=2, verbose=0)
    plain = save_tfk(model)
    lstm_swap.convert(plain, tmp_path / "gpu.h5", to="cudnn", dialect="keras2")
    with h5py.File(plain) as a, h5py.File(tmp_path / "gpu.h5") as b:
        names = h5.strings(a["optimizer_weights"], "weight_names")
        assert h5.strings(b["optimizer_weights"], "weight_names") == names
        old, new = ([f["optimizer_weights"][n][()] for n in names] for f in (a, b))
    counter, m, v = old[0], old[1:6], old[6:11]
    wanted = [counter]
    for slots in (m, v):
        wanted += layouts.swap_slots("lstm", slots[:3], "standard", "cudnn") + slots[3:]
    for x, y in zip(new, wanted, strict=True):
        np.testing.assert_array_equal(x, y)
    lstm_swap.convert(tmp_path / "gpu.h5", tmp_path / "back.h5", to="standard", dialect="keras2")
    with h5py.File(tmp_path / "back.h5") as f:
        back = [f["optimizer_weights"][n][()] for n in names]
    for x, y in zip(back, old, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_lost_optimizer_is_said(tfk: Any, save_tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Keras 3 cannot train on from HDF5 with optimizer state: it goes, with a line, and the file still compiles."""
    model = tfk.Sequential([tfk.Input((5, 3)), tfk.layers.LSTM(4), tfk.layers.Dense(2)])
    model.compile(tfk.optimizers.legacy.Adam(0.01, decay=0.1), "mse", metrics=["mae"])
    model.fit(X, np.ones((2, 2)), verbose=0)
    report = lstm_swap.convert(save_tfk(model), tmp_path / "out.h5", to="standard")
    assert any("optimizer state dropped" in w and ".keras" in w for w in report.warnings)
    import keras

    loaded = keras.saving.load_model(str(tmp_path / "out.h5"))
    loaded.fit(X, np.ones((2, 2)), verbose=0)
    assert float(loaded.optimizer.learning_rate) == pytest.approx(0.01 / 1.1, rel=1e-5)
