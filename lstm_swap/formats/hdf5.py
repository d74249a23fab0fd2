"""HDF5 files of Keras 1, 2 and 3: whole models, and weights alone.

Layout (tf_keras/src/saving/legacy/hdf5_format.py): attributes `keras_version`, `backend`, `model_config`,
`training_config` at the root; a group `model_weights` (the root itself in weights-only files) whose attribute
`layer_names` lists one group per layer of the outermost model; each group's attribute `weight_names` lists its
arrays; `optimizer_weights` likewise. Keras 1 files have the same layout.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import h5py

from lstm_swap.architecture import Array, Node, build_tree
from lstm_swap.errors import UnreadableModelError
from lstm_swap.formats import h5
from lstm_swap.formats.catalogue import variables
from lstm_swap.formats.checking import parse_architecture
from lstm_swap.formats.flat import distribute
from lstm_swap.formats.guess import guess_layers
from lstm_swap.formats.model_file import ModelFile


def read(path: Path) -> ModelFile:
    """Open an HDF5 model or weights file; arrays are read later, on demand.

    Raises:
        UnreadableModelError: see `h5.open_file`, `parse_architecture`, `h5.get_array`.
    """
    file = h5.open_file(path)
    try:
        return _read(path, file)
    except BaseException:
        file.close()
        raise


def _read(path: Path, file: h5py.File) -> ModelFile:
    where = path.name
    if "model_config" in file.attrs:
        return _read_whole(path, file, where)
    weights = file
    if not h5.has_strings(file, "layer_names"):
        if isinstance(file.get("model_weights"), h5py.Group):
            weights = file["model_weights"]
        if not h5.has_strings(weights, "layer_names"):
            raise UnreadableModelError(
                f"{where}: an HDF5 file without a Keras architecture (model_config) and without Keras weights "
                "(layer_names); nothing to convert"
            )
    root = read_groups(weights, where)
    version, backend = versions(weights, file)
    model = ModelFile(path, "hdf5-weights", None, root, version, backend, _major(version, root), store=file)
    model.close = file.close
    model.theano = is_theano(root, backend, model.dialect)
    guess_layers(model)
    return model


def _read_whole(path: Path, file: h5py.File, where: str) -> ModelFile:
    entry = parse_architecture(file.attrs["model_config"], where)
    weights = h5.get_group(file, "model_weights", where)
    version, backend = versions(file, weights)
    root = build_tree(entry)
    from lstm_swap.dialects import detect

    dialect = detect(entry, version)
    attach(root, weights, where, dialect)
    training = file.attrs.get("training_config")
    model = ModelFile(path, "hdf5", entry, root, version, backend, dialect, store=file, close=file.close)
    if training is not None:
        with contextlib.suppress(ValueError, RecursionError):
            model.training_config = json.loads(h5.text(training))
        if not isinstance(model.training_config, dict):
            model.training_config = None
            model.warnings.append("training_config is no JSON object: the compile settings were dropped")
    if "optimizer_weights" in file:
        try:
            group = h5.get_group(file, "optimizer_weights", where)
            names = h5.strings(group, "weight_names")
            model.optimizer = [h5.get_array(group, name, "optimizer_weights") for name in names]
        except UnreadableModelError as problem:
            model.warnings.append(f"optimizer state dropped: {problem}")
    model.theano = is_theano(root, backend, dialect)
    return model


def versions(*groups: Any) -> tuple[str | None, str | None]:
    """keras_version and backend, from the first group that states them."""
    found: list[str | None] = []
    for key in ("keras_version", "backend"):
        values = [h5.text(g.attrs[key]) for g in groups if key in g.attrs]
        found.append(values[0] if values else None)
    return found[0], found[1]


def _major(version: str | None, root: Node) -> str:
    if version and version[0] in "123":
        return f"keras{version[0]}"
    names = [a.name for node in root.walk() for a in node.arrays]
    # Keras 1 wrote neither version nor backend into weights files; its arrays are called lstm_1_W_i, dense_1_W.
    return "keras1" if any(re.search(r"_(W|U|b)(_[a-z])?(:0)?$", n) for n in names) else "keras2"


def is_theano(root: Node, backend: str | None, dialect: str) -> bool:
    """Keras 1 does not name its backend; TensorFlow's array names end in ":0", Theano's do not."""
    if backend is not None:
        return backend == "theano"
    names = [a.name for node in root.walk() for a in node.arrays]
    return dialect == "keras1" and bool(names) and not any(name.endswith(":0") for name in names)


def layer_arrays(weights: Any, name: str, where: str) -> list[Array]:
    """The arrays of one group, in the order in which it lists them."""
    group = h5.get_group(weights, name, where)
    return [h5.get_array(group, n, f"{where}: layer {name!r}") for n in h5.strings(group, "weight_names")]


def read_groups(weights: Any, where: str) -> Node:
    """A tree without architecture: one child per group, which holds all arrays of its layer."""
    root = Node({"class_name": "", "config": {}}, "", "", "model")
    for name in h5.strings(weights, "layer_names"):
        child = Node({"class_name": "", "config": {"name": name}}, name, name, "item", root)
        child.arrays = layer_arrays(weights, name, where)
        root.children.append(child)
    return root


def attach(root: Node, weights: Any, where: str, dialect: str) -> None:
    """Give every layer of the tree its arrays.

    Layers are found by name. In weights that were saved from another instance of the model the names differ
    (lstm_3 for lstm_1); then they are matched in order, as Keras's own load_weights does.

    Raises:
        UnreadableModelError: a layer without its arrays.
    """
    names = h5.strings(weights, "layer_names")
    if not h5.has_strings(weights, "layer_names"):
        raise UnreadableModelError(f"{where}: the weights list no layers (layer_names is missing)")
    known = set(names)
    from lstm_swap.dialects.keras1_merge import flattened_layers

    # Keras 1 gives the layers of the branches of a leading Merge groups of their own.
    layers = flattened_layers(root) if dialect == "keras1" else list(root.children)
    if any(layer.name not in known and needs_arrays(layer, dialect) for layer in layers):
        _attach_in_order(layers, names, weights, where, dialect)
        return
    for layer in layers:
        if layer.name in known:
            distribute(layer, layer_arrays(weights, layer.name, where), dialect, where)
    for name in known - {layer.name for layer in layers}:
        if layer_arrays(weights, name, where):
            raise UnreadableModelError(f"{where}: the weights hold arrays of a layer {name!r} that is not in the model")


def needs_arrays(layer: Node, dialect: str) -> bool:
    """Does anything inside this layer own arrays for certain?"""
    return any(bool(v.names) for v in (variables(n, dialect) for n in layer.walk()) if v)


def _attach_in_order(layers: list[Node], names: list[str], weights: Any, where: str, dialect: str) -> None:
    filled = [(name, arrays) for name in names if (arrays := layer_arrays(weights, name, where))]
    waiting = [layer for layer in layers if needs_arrays(layer, dialect)]
    if len(filled) != len(waiting):
        there = {name for name, _ in filled}
        missing = [layer.name for layer in waiting if layer.name not in there]
        raise UnreadableModelError(
            f"{where}: layer {missing[0] if missing else waiting[-1].name!r} has no arrays: the architecture has "
            f"{len(waiting)} layers with weights, the file {len(filled)}"
        )
    for layer, (_, arrays) in zip(waiting, filled, strict=True):
        distribute(layer, arrays, dialect, where)
