"""Writing HDF5: a copy of the input, in which only what changed is touched; or a new file from a tree."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lstm_swap.architecture import Array, Node, entry_name
from lstm_swap.formats import direct, h5
from lstm_swap.formats.catalogue import variables
from lstm_swap.formats.flat import file_order
from lstm_swap.formats.model_file import WRITTEN_VERSION, ModelFile
from lstm_swap.formats.order import layer_order

Values = list[tuple[np.ndarray[Any, Any], str]]  # arrays as they are to be stored, each with its dtype
Materialize = Callable[[Node], Values]


def write(model: ModelFile, out: Path, materialize: Materialize, dialect: str) -> None:
    """Write `model` as HDF5 to `out` (a new path).

    materialize: called once for each layer with edits; returns its final arrays, proved.
    dialect: the dialect that the architecture is in now; it decides the order of flat lists.
    """
    from_hdf5 = model.container in ("hdf5", "hdf5-weights") and model.store is not None
    if from_hdf5:
        copy_file(model.path, out)
    with h5.writing(out, "r+" if from_hdf5 else "w") as file, direct.target(out) as target:
        whole = model.entry is not None
        weights = _weights_group(file, model, whole)
        if whole:
            _write_attributes(file, model, dialect)
        elif dialect != model.dialect:
            weights.attrs["keras_version"] = WRITTEN_VERSION[dialect].encode()
            weights.attrs["backend"] = b"tensorflow"
        _write_layers(weights, model, materialize, dialect, target)
        if whole:
            _write_optimizer(file, model)


def copy_file(source: Path, target: Path) -> None:
    """Copy contents only: a read-only input must not make a read-only copy that cannot be edited."""
    with open(source, "rb") as src, open(target, "wb") as dst:
        remaining = os.fstat(src.fileno()).st_size
        with contextlib.suppress(OSError, AttributeError):  # room for all of it at once: less to do for each page
            os.posix_fallocate(dst.fileno(), 0, remaining)
        try:
            while remaining > 0:  # the kernel copies; on some file systems without reading at all
                done = os.copy_file_range(src.fileno(), dst.fileno(), min(remaining, 1 << 30))
                if done == 0:
                    break
                remaining -= done
        except (OSError, AttributeError):
            src.seek(0)
            dst.seek(0)
            dst.truncate()
            shutil.copyfileobj(src, dst, 1 << 22)


def _weights_group(file: h5py.File, model: ModelFile, whole: bool) -> Any:
    if model.container == "hdf5" or whole:
        return file.require_group("model_weights")
    return file["model_weights"] if "layer_names" not in file.attrs and "model_weights" in file else file


def _write_attributes(file: h5py.File, model: ModelFile, dialect: str) -> None:
    for key in ("model_config", "training_config"):
        if key in file.attrs:
            old = h5.text(file.attrs[key])
        else:
            old = None
        value = model.entry if key == "model_config" else model.training_config
        if value is None:
            if key in file.attrs:
                del file.attrs[key]
            continue
        text = json.dumps(value)
        if old is None or _parsed(old) != value:
            file.attrs[key] = text.encode("utf-8")  # bytes: stored with variable length, so without a limit of 64 KB
    weights = file["model_weights"]
    changed = dialect != model.dialect or model.theano or "keras_version" not in file.attrs
    if changed or model.container != "hdf5":
        for group in (file, weights):
            group.attrs["keras_version"] = WRITTEN_VERSION[dialect].encode()
            group.attrs["backend"] = b"tensorflow"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # a byte-order mark, which Keras does not read either
        return None


def _write_layers(
    weights: Any, model: ModelFile, materialize: Materialize, dialect: str, target: direct.Target
) -> None:
    layers = list(layer_order(model.root)) if model.entry is not None else list(model.root.children)
    before = h5.strings(weights, "layer_names")
    names: list[str] = []
    # First all that is written anew, while every old array is still in its place.
    plans: list[tuple[str, list[str]]] = []
    for layer in layers:
        group_name = entry_name(layer.entry) if model.entry is not None else layer.name
        names.append(group_name)
        stored = _write_layer(weights, layer, group_name, materialize, dialect, model, target)
        plans.append((group_name, stored))
    listed = set(before)
    for group_name, stored in plans:
        if not stored and group_name not in listed and group_name:
            with contextlib.suppress(ValueError):  # quick for a hundred thousand layers without weights
                weights.create_group(group_name).attrs["weight_names"] = np.asarray([], dtype="S1")
                continue
        group = weights.require_group(group_name)
        if h5.strings(group, "weight_names") != stored or not h5.has_strings(group, "weight_names"):
            _drop_unlisted(group, h5.strings(group, "weight_names"), stored)
            h5.set_strings(group, "weight_names", stored)
    kept = set(names)
    for old in before:
        if old not in kept and old in weights and old != "top_level_model_weights":
            del weights[old]
    if before != names:
        h5.set_strings(weights, "layer_names", names)


def _drop_unlisted(group: Any, before: list[str], after: list[str]) -> None:
    keep = set(after)
    for name in before:
        if name not in keep and name in group:
            del group[name]
            parent = name.rpartition("/")[0]
            while parent and parent in group and isinstance(group[parent], h5py.Group) and not len(group[parent]):
                del group[parent]
                parent = parent.rpartition("/")[0]


def _write_layer(
    weights: Any,
    layer: Node,
    group_name: str,
    materialize: Materialize,
    dialect: str,
    model: ModelFile,
    target: direct.Target,
) -> list[str]:
    """Store the arrays of one top-level layer; returns their names in the order to be listed."""
    base = f"{weights.name.rstrip('/')}/{group_name}/"
    own_names: dict[int, list[str]] = {}
    taken: set[str] = set()
    for node in layer.walk():
        for array in node.arrays:
            if array.source.startswith(base):
                taken.add(array.source.removeprefix(base))
    used: set[str] = set()
    for node in layer.walk():
        if node.edits:
            values = materialize(node)
            stored = _names_for(node, group_name, base, len(values), taken, used, dialect)
            group = weights.require_group(group_name)
            for name, (value, dtype) in zip(stored, values, strict=True):
                _clear(group, name)
                h5.write(group, name, value, dtype, target)
        else:
            stored = _names_for(node, group_name, base, len(node.arrays), taken, used, dialect)
            for name, array in zip(stored, node.arrays, strict=True):
                elsewhere = model.weights_path is not None  # the names there may be the same as here
                if elsewhere or array.source != base + name:
                    _copy(weights.require_group(group_name), name, array, None if elsewhere else weights.file)
        own_names[id(node)] = stored
        used.update(stored)

    def split(node: Node) -> tuple[int, int]:
        known = variables(node, dialect)
        count = len(own_names[id(node)])
        if known is None or len(known.names) != count:
            return count, 0
        return len(known.trainable), len(known.fixed)

    ordered = [own_names[id(node)][i] for node, i in file_order(layer, dialect, split)]
    if dialect == model.dialect and any(variables(node, dialect) is None for node in layer.walk()):
        listed = h5.strings(weights[group_name], "weight_names") if group_name in weights else []
        if sorted(listed) == sorted(ordered):
            return listed  # a layer of the user's own: only the file knows where its arrays stand
    return ordered


def _copy(group: Any, name: str, array: Array, file: h5py.File | None) -> None:
    """Put an array that lies elsewhere (another group, another container) at `name`, bytes unchanged."""
    _clear(group, name)
    if file is not None and array.source in file and isinstance(file[array.source], h5py.Dataset):
        parent, _, last = name.rpartition("/")
        file.copy(file[array.source], group.require_group(parent) if parent else group, last)
    else:
        h5.write(group, name, array.read(), array.dtype)


def _clear(group: Any, name: str) -> None:
    """Make room: an array of Keras 1 may stand where a folder of the new name is wanted."""
    parts = name.split("/")
    for i in range(1, len(parts)):
        if isinstance(group.get("/".join(parts[:i])), h5py.Dataset):
            del group["/".join(parts[:i])]
    if isinstance(group.get(name), h5py.Group):
        del group[name]


def _names_for(
    node: Node, group_name: str, base: str, count: int, taken: set[str], used: set[str], dialect: str
) -> list[str]:
    """Names for a layer's arrays: those that they have, if they are of this group; else as Keras would call them."""
    names = [a.source.removeprefix(base) for a in node.arrays if a.source.startswith(base)]
    if len(names) == count and len(node.arrays) == count:
        return names
    known = variables(node, dialect)
    parts = known.names if known is not None and len(known.names) == count else [f"array_{i}" for i in range(count)]
    steps = node.path.split("/") if node.path else []
    where = "/".join([group_name, *steps[1:]]) if steps else group_name
    stored: list[str] = []
    for part in parts:
        name, copy = f"{where}/{part}:0", 1
        while name in used or name in stored or (name in taken and name not in names):
            copy += 1
            name = f"{where}/{part}_{copy}:0"
        stored.append(name)
    return stored


def _write_optimizer(file: h5py.File, model: ModelFile) -> None:
    """Optimizer arrays as `model.optimizer` says now; where it is empty, the group goes."""
    group = file.get("optimizer_weights")
    if not model.optimizer:
        if group is not None:
            del file["optimizer_weights"]
        return
    same = isinstance(group, h5py.Group) and all(a.source.startswith("/optimizer_weights/") for a in model.optimizer)
    if same and [a.name for a in model.optimizer] == h5.strings(group, "weight_names"):
        return
    values = [(a.name, a.read(), a.dtype) for a in model.optimizer]
    if group is not None:
        del file["optimizer_weights"]
    group = file.create_group("optimizer_weights")
    for name, value, dtype in values:
        h5.write(group, name, value, dtype)
    h5.set_strings(group, "weight_names", [name for name, _, _ in values])
