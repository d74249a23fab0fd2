"""What the tests of the dialects share: files as an old Keras would have written them, and their comparison."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import lstm_swap
from lstm_swap.architecture import Array, Change, Node, build_tree
from lstm_swap.dialects import keras2

Json = dict[str, Any]


def quietly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The call without warnings: saving in old formats is what the libraries advise against."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


def randomised(model: Any, seed: int = 0) -> Any:
    """Weights that saturate nothing, and variances that are positive."""
    rng = np.random.default_rng(seed)
    values = []
    for variable in model.weights:
        value = rng.uniform(-0.7, 0.7, variable.shape)
        values.append(np.abs(value) + 0.5 if "variance" in variable.name else value)
    model.set_weights(values)
    return model


def save_h5(model: Any, path: Path, edit: Callable[[Json], Any] | None = None, version: str | None = None) -> Path:
    """Save a tf_keras model as HDF5, its architecture changed by `edit`, with another version's name on it."""
    quietly(model.save, str(path), save_format="h5", include_optimizer=False)
    with h5py.File(path, "r+") as file:
        if edit is not None:
            entry = json.loads(file.attrs["model_config"])
            entry = edit(entry) or entry
            file.attrs["model_config"] = json.dumps(entry)
        if version is not None:
            for group in (file, file["model_weights"]):
                group.attrs["keras_version"] = version
    return path


def converted(path: Path, suffix: str, **options: Any) -> tuple[Path, Any]:
    """`path` converted to the standard form, and the report."""
    out = path.with_name(f"{path.stem}.out{suffix}")
    report = lstm_swap.convert(path, out, to="standard", force=True, **options)
    return out, report


def assert_same(old: Any, new: Any, inputs: Sequence[np.ndarray[Any, Any]], atol: float = 1e-5) -> None:
    """Both models give the same outputs for the same inputs."""
    x = list(inputs) if len(inputs) > 1 else inputs[0]
    a, b = quietly(old, x, training=False), quietly(new, x, training=False)
    first, second = _flat(a), _flat(b)
    assert len(first) == len(second)
    for y, z in zip(first, second, strict=True):
        y, z = np.asarray(y), np.asarray(z)
        assert y.shape == z.shape
        np.testing.assert_allclose(z.astype(np.float64), y.astype(np.float64), atol=atol, rtol=1e-4)


def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, list | tuple) else [value]


def entries(entry: Json) -> dict[str, Json]:
    """Every layer entry of an architecture by its name, whatever it stands in."""
    return {node.name: node.entry for node in build_tree(entry).walk() if node.role != "model"}


def effects(changes: Sequence[Change], field: str) -> set[str]:
    """The effects of the changes of one setting."""
    return {change.effect for change in changes if change.field == field}


def sequential(*layers: Json, name: str = "sequential_1") -> Json:
    """A Sequential as Keras 2.2.3 and later write it."""
    return {"class_name": "Sequential", "config": {"name": name, "layers": list(layers)}}


def layer(class_name: str, name: str, **config: Any) -> Json:
    """A layer entry as Keras 1 and 2 write it."""
    return {"class_name": class_name, "config": {"name": name, "trainable": True, **config}}


def node_of(root: Node, name: str) -> Node:
    return next(node for node in root.walk() if node.name == name)


def write_keras1(
    path: Path, entry: Json, arrays: dict[str, list[Any]], *, version: str = "1.2.2", theano: bool = False
) -> Path:
    """An HDF5 file as Keras 1 wrote it: no backend, and array names that end in ":0" with TensorFlow alone."""
    end = "" if theano else ":0"
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = version.encode()
        file.attrs["model_config"] = json.dumps(entry).encode()
        weights = file.create_group("model_weights")
        weights.attrs["layer_names"] = np.array([name.encode() for name in arrays])
        for name, values in arrays.items():
            group = weights.create_group(name)
            names = [f"{name}_p{i}{end}" for i in range(len(values))]
            group.attrs["weight_names"] = np.array([n.encode() for n in names], dtype="S40")
            for n, value in zip(names, values, strict=True):
                group.create_dataset(n, data=np.asarray(value, dtype="float32"))
    return path


def keras1_sequential(*layers: Json) -> Json:
    """A Sequential of Keras 1: a bare list."""
    return {"class_name": "Sequential", "config": list(layers)}


def split_gates(arrays: Sequence[Any], order: str, written: str) -> list[Any]:
    """Kernel, recurrent kernel and bias with gates in `order`, as Keras 1 keeps them: an array a gate, as `written`."""
    blocks = [dict(zip(order, np.split(np.asarray(a), len(order), axis=-1), strict=True)) for a in arrays]
    return [block[gate] for gate in written for block in blocks]


def attach(node: Node, arrays: list[Any]) -> None:
    """Give a node arrays of these values."""
    node.arrays = [Array(f"p{i}", np.shape(a), "float32", lambda a=a: np.asarray(a)) for i, a in enumerate(arrays)]


def edited(node: Node, arrays: list[Any]) -> list[Any]:
    """The arrays after the edits of the node, each of which has to prove itself."""
    for edit in node.edits:
        old, arrays = arrays, edit.weights([np.asarray(a) for a in arrays])
        if hasattr(edit, "prove"):
            assert edit.prove(old, arrays, np.random.default_rng(0)) < 1e-12
    return arrays


def merge_entry(name: str = "merge_1", **config: Any) -> Json:
    """A Merge layer of Keras 1.2."""
    full = {
        "name": name, "mode": "sum", "mode_type": "raw", "concat_axis": -1, "dot_axes": -1, "output_shape": None,
        "output_shape_type": "raw",
        "output_mask": None, "output_mask_type": "raw", "arguments": {},
    }  # fmt: skip
    return {"class_name": "Merge", "config": {**full, **config}}


def translated(entry: Json, version: str | None = "2.2.4", **arrays: list[tuple[int, ...]]) -> tuple[Json, Any]:
    """The architecture in Keras 3's words, with arrays of these shapes on the layers of these names."""
    entry = copy.deepcopy(entry)
    root = build_tree(entry)
    for name, shapes in arrays.items():
        node_of(root, name).arrays = [
            Array(f"w{i}", s, "float32", lambda s=s: np.ones(s)) for i, s in enumerate(shapes)
        ]
    return entry, keras2.to_keras3(root, version=version)


def opens(keras: Any, entry: Json) -> Any:
    """The model that Keras 3 makes of an architecture."""
    return quietly(keras.saving.deserialize_keras_object, json.loads(json.dumps(entry)))
