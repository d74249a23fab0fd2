"""Writing `.keras`: config.json, metadata.json and a weights file whose paths follow Keras's naming rules."""

from __future__ import annotations

import json
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import h5py

from lstm_swap.architecture import Array, entry_name
from lstm_swap.formats import h5
from lstm_swap.formats.catalogue import variables
from lstm_swap.formats.hdf5_write import Materialize
from lstm_swap.formats.keras_zip import CONFIG, METADATA, WEIGHTS, weight_paths
from lstm_swap.formats.model_file import WRITTEN_VERSION, ModelFile


def write(model: ModelFile, out: Path, materialize: Materialize, dialect: str) -> None:
    """Write `model` as a `.keras` zip to `out` (a new path); see `hdf5_write.write` for the arguments."""
    assert model.entry is not None
    metadata = {
        "keras_version": model.keras_version
        if dialect == model.dialect and model.keras_version
        else WRITTEN_VERSION[dialect],
        "date_saved": time.strftime("%Y-%m-%d@%H:%M:%S"),
    }
    with tempfile.TemporaryDirectory(prefix=".lstm-swap-", dir=out.parent) as folder:
        weights = Path(folder) / WEIGHTS
        with h5.writing(weights, "w") as file:
            _write_weights(file, model, materialize, dialect)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(METADATA, json.dumps(metadata))
            archive.writestr(CONFIG, json.dumps(model.entry))
            archive.write(weights, WEIGHTS)
            for extra in model.extras:
                archive.writestr(extra.name, extra.read())


def _write_weights(file: h5py.File, model: ModelFile, materialize: Materialize, dialect: str) -> None:
    from_zip = model.container in ("keras", "weights.h5")
    file.require_group("vars")  # tf.keras reads the model's own, which are none
    for node, path in weight_paths(model.root):
        if not node.arrays:
            continue  # Keras takes a missing group for an empty one, and there may be a hundred thousand
        known = variables(node, dialect)
        arrays: list[Array | tuple[Any, str]] = list(materialize(node)) if node.edits else list(node.arrays)
        group = file.require_group(f"{path}/vars" if path else "vars")
        group.attrs["name"] = _attribute(entry_name(node.entry))
        for i, array in enumerate(arrays):
            if known is not None and len(known.names) == len(arrays):
                folder, number = known.place(i)
                private = "_" if known.places and dialect == "keras2" else ""  # tf.keras: _query_dense, ...
                place = f"{private}{folder}/vars/{number}"
            elif isinstance(array, Array) and from_zip:
                place = array.name
            else:
                place = f"vars/{i}"
            name = f"{path}/{place}".replace("//", "/").strip("/")
            if isinstance(array, Array):
                h5.write(file, name, array.read(), array.dtype)
            else:
                h5.write(file, name, array[0], array[1])
    if from_zip and model.store is not None:
        _copy_rest(file, model)
    for i, array in enumerate(model.optimizer):
        h5.write(file, f"optimizer/vars/{i}", array.read(), array.dtype)


def _attribute(name: str) -> Any:
    """Keras notes the layer's name beside its variables; a name too long for an attribute is cut."""
    return name if len(name) < 10_000 else name[:10_000]


def _copy_rest(file: h5py.File, model: ModelFile) -> None:
    """What stands beside the layers (metrics, losses, the model's own variables) is copied as it is."""
    for key in model.store:
        clean = key.replace("\\", "/")
        top = clean.split("/")[0]
        if top in ("layers", "_layer_checkpoint_dependencies", "optimizer") or clean in file:
            continue
        if model.dialect == "keras3":
            model.store.copy(model.store[key], file, clean)
