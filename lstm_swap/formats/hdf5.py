"""HDF5 files of Keras 1, 2 and 3: whole models, and weights alone.

Layout (tf_keras/src/saving/legacy/hdf5_format.py): attributes `keras_version`, `backend`, `model_config`,
`training_config` at the root; a group `model_weights` (the root itself in weights-only files) whose attribute
`layer_names` lists one group per layer of the outermost model; each group's attribute `weight_names` lists its
arrays; `optimizer_weights` likewise. Keras 1 files have the same layout.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py

from lstm_swap.architecture import Array, Node, build_tree, entry_name
from lstm_swap.errors import UnreadableModelError
from lstm_swap.formats import h5
from lstm_swap.formats.catalogue import variables
from lstm_swap.formats.flat import distribute
from lstm_swap.formats.guess import guess_layers
from lstm_swap.formats.model_file import ModelFile

#: Longest architecture text that is parsed.
CONFIG_LIMIT = 512 << 20


def parse_architecture(text: str | bytes, where: str, what: str = "model_config") -> dict[str, Any]:
    """The architecture in a JSON text.

    Raises:
        UnreadableModelError: not JSON, or no architecture.
    """
    if len(text) > CONFIG_LIMIT:
        raise UnreadableModelError(f"{where}: {what} is absurdly large ({len(text):,} bytes)")
    try:
        entry = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except UnicodeDecodeError:
        raise UnreadableModelError(f"{where}: {what} is not UTF-8 text, so there is no architecture to read") from None
    except RecursionError:
        raise UnreadableModelError(f"{where}: {what} is JSON nested too deeply") from None
    except ValueError as problem:
        raise UnreadableModelError(f"{where}: {what} is not valid JSON ({problem})") from None
    return check_architecture(entry, where, what)


def check_architecture(entry: Any, where: str, what: str) -> dict[str, Any]:
    """The architecture object itself, after a look at its shape."""
    if isinstance(entry, dict) and isinstance(entry.get("model_config"), dict):
        entry = entry["model_config"]
    config = entry.get("config") if isinstance(entry, dict) else None
    layers = config.get("layers") if isinstance(config, dict) else config
    if not isinstance(entry, dict) or not isinstance(entry.get("class_name"), str) or config is None:
        raise UnreadableModelError(
            f"{where}: {what} holds {type(entry).__name__}, not the architecture of a model (class_name and config)"
        )
    if not isinstance(layers, list):
        raise UnreadableModelError(
            f"{where}: {what} describes {entry['class_name']!r}, which lists no layers: only Sequential and functional "
            "models state their architecture"
        )
    for layer in layers:
        if not isinstance(layer, dict) or "class_name" not in layer:
            raise UnreadableModelError(f"{where}: {what} lists a layer that is no object with a class_name")
        if not isinstance(layer.get("config"), dict | list):
            raise UnreadableModelError(f"{where}: {what}: layer {entry_name(layer)!r} has no config")
    return entry


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
        try:
            model.training_config = json.loads(h5.text(training))
        except ValueError:
            model.warnings.append("training_config is not JSON and was left as it is")
    if isinstance(file.get("optimizer_weights"), h5py.Group):
        group = file["optimizer_weights"]
        names = h5.strings(group, "weight_names")
        model.optimizer = [h5.get_array(group, name, f"{where}: optimizer_weights") for name in names]
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
    layers = list(root.children)
    if any(layer.name not in known and needs_arrays(layer, dialect) for layer in layers):
        _attach_in_order(layers, names, weights, where, dialect)
        return
    for layer in layers:
        if layer.name in known:
            distribute(layer, layer_arrays(weights, layer.name, where), dialect)


def needs_arrays(layer: Node, dialect: str) -> bool:
    """Does anything inside this layer own arrays for certain?"""
    return any(bool(v.names) for v in (variables(n, dialect) for n in layer.walk()) if v)


def _attach_in_order(layers: list[Node], names: list[str], weights: Any, where: str, dialect: str) -> None:
    filled = [(name, arrays) for name in names if (arrays := layer_arrays(weights, name, where))]
    waiting = [layer for layer in layers if needs_arrays(layer, dialect)]
    if len(filled) != len(waiting):
        missing = [layer.name for layer in waiting if layer.name not in {n for n, _ in filled}]
        raise UnreadableModelError(
            f"{where}: layer {missing[0] if missing else waiting[-1].name!r} has no arrays: the architecture has "
            f"{len(waiting)} layers with weights, the file {len(filled)}"
        )
    for layer, (_, arrays) in zip(waiting, filled, strict=True):
        distribute(layer, arrays, dialect)
