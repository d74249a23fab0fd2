"""`.weights.h5`: weights alone as Keras 3 (and tf.keras 2.13 to 2.15) writes them.

The same paths as inside a `.keras` zip (`layers/lstm/cell/vars/0`), without an architecture. Recurrent layers
are recognised by the shapes of three arrays that lie together.
"""

from __future__ import annotations

from pathlib import Path

from lstm_swap.architecture import Array, Node
from lstm_swap.formats import direct, h5
from lstm_swap.formats.guess import guess_at
from lstm_swap.formats.hdf5_write import Materialize, copy_file
from lstm_swap.formats.keras_zip import Paths
from lstm_swap.formats.model_file import ModelFile


def is_weights_h5(path: Path) -> bool:
    """Is this HDF5 file of that layout? (It has paths ending in vars/0 and no layer_names.)"""
    with h5.open_file(path) as file:
        if "model_config" in file.attrs or h5.has_strings(file, "layer_names") or "model_weights" in file:
            return False
        keys = [key.replace("\\", "/") for key in file]
        return any(key == "vars" or key.split("/")[0] in ("layers", "_layer_checkpoint_dependencies") for key in keys)


def read(path: Path) -> ModelFile:
    """Open such a file; the layers that can be recognised become the children of the root."""
    file = h5.open_file(path)
    try:
        paths = Paths(file, path.name)
        root = Node({"class_name": "", "config": {}}, "", "", "model")
        folders: dict[str, list[Array]] = {}
        for full in paths.below(""):
            folder = full.rpartition("/vars/")[0] if "/vars/" in full else ""
            folders.setdefault(folder, []).append(paths.array(full, full))
        for folder, arrays in folders.items():
            if folder.split("/")[0] in ("optimizer", "metrics", ""):
                continue
            name = folder.removesuffix("/cell")
            node = Node({"class_name": "", "config": {"name": name}}, name, name, "item", root)
            node.arrays = arrays
            guess_at(node)
            root.children.append(node)
    except BaseException:
        file.close()
        raise
    return ModelFile(path, "weights.h5", None, root, None, None, "keras3", store=file, close=file.close)


def write(model: ModelFile, out: Path, materialize: Materialize) -> None:
    """A copy in which the arrays of the edited layers are replaced."""
    copy_file(model.path, out)
    with h5.writing(out, "r+") as file, direct.target(out) as target:
        for node in model.root.walk():
            if not node.edits:
                continue
            for array, (value, dtype) in zip(node.arrays, materialize(node), strict=True):
                h5.write(file, array.source, value, dtype, target)
