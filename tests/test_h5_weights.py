"""A whole HDF5 model that takes its arrays from another file (`weights=`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import lstm_swap

LAYERS = [
    {"class_name": "CuDNNLSTM", "config": {"name": "gpu", "units": 3, "batch_input_shape": [None, None, 4]}},
    {"class_name": "Dense", "config": {"name": "out", "units": 2, "activation": "linear", "use_bias": True}},
]
SHAPES = {
    "gpu": {"kernel": (4, 12), "recurrent_kernel": (3, 12), "bias": (24,)},
    "out": {"kernel": (3, 2), "bias": (2,)},
}


def _model(path: Path, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """A Keras 2.2.4 model with random numbers, by name."""
    rng = np.random.default_rng(seed)
    arrays = {}
    with h5py.File(path, "w") as f:
        weights = f.create_group("model_weights")
        for layer, shapes in SHAPES.items():
            group = weights.create_group(layer)
            group.attrs["weight_names"] = [f"{layer}/{part}:0".encode() for part in shapes]
            for part, shape in shapes.items():
                arrays[f"{layer}/{part}"] = rng.standard_normal(shape).astype("float32")
                group[f"{layer}/{part}:0"] = arrays[f"{layer}/{part}"]
        weights.attrs["layer_names"] = [layer.encode() for layer in SHAPES]
        f.attrs["keras_version"], f.attrs["backend"] = b"2.2.4", b"tensorflow"
        f.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": {"layers": LAYERS}}).encode()
    return arrays


@pytest.mark.parametrize("to", ["standard", "cudnn"])
def test_every_layer_takes_the_other_files_arrays(to: str, tmp_path: Path) -> None:
    """Also those that are not rewritten, though both files call them the same and one is a copy of the first."""
    mine = _model(tmp_path / "a.h5", 1)
    theirs = _model(tmp_path / "b.h5", 2)
    lstm_swap.convert(tmp_path / "a.h5", tmp_path / "o.h5", to=to, dialect="keras2", weights=tmp_path / "b.h5")
    with h5py.File(tmp_path / "o.h5") as f:
        for part in ("kernel", "bias"):
            found = f[f"model_weights/out/out/{part}:0"][()]
            np.testing.assert_array_equal(found, theirs[f"out/{part}"])
            assert not np.array_equal(found, mine[f"out/{part}"])
        recurrent = np.hstack([b.T for b in np.split(theirs["gpu/recurrent_kernel"], 4, axis=1)])
        expected = recurrent if to == "standard" else theirs["gpu/recurrent_kernel"]
        np.testing.assert_array_equal(f["model_weights/gpu/gpu/recurrent_kernel:0"][()], expected)
