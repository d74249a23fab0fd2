"""Containers: how a model lies in a file. `open_model` and `save_model` choose by content and by suffix."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import h5py

from lstm_swap.errors import UnreadableModelError, UsageError
from lstm_swap.formats import foreign, hdf5, hdf5_write, keras_write, keras_zip, weights_h5
from lstm_swap.formats.checking import untrusted
from lstm_swap.formats.hdf5_write import Materialize
from lstm_swap.formats.model_file import ModelFile

__all__ = ["ModelFile", "container_for", "open_model", "save_model"]

#: Which container a suffix asks for.
SUFFIXES = {".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5", ".he5": "hdf5", ".keras": "keras"}


def open_model(path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> ModelFile:
    """Open any container that is read here, by its content and not by its name.

    weights: the file that holds the arrays of an architecture in JSON or YAML (or that replace those of a model).

    Raises:
        UnreadableModelError: missing, no permission, damaged, or not a model: the message says what was found.
    """
    with untrusted(str(path)):
        model = _open(Path(path))
        return model if weights is None else _with_weights(model, Path(weights))


def _open(path: Path) -> ModelFile:
    found = None if _is_ours(path) else foreign.recognise(path)
    if found:
        raise UnreadableModelError(found)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UnreadableModelError(f"{path}: no such file") from None
    except OSError as problem:
        raise UnreadableModelError(f"{path}: {problem.strerror or problem}") from None
    if stat.S_ISDIR(mode):
        return _open_folder(path)
    if not stat.S_ISREG(mode):
        raise UnreadableModelError(f"{path}: not a regular file, so not a model")
    if not os.access(path, os.R_OK):
        raise UnreadableModelError(f"{path}: permission denied, the file cannot be read")
    if path.stat().st_size == 0:
        raise UnreadableModelError(f"{path}: the file is empty")
    with open(path, "rb") as f:
        head = f.read(4096)
    if head.startswith(b"\x89HDF\r\n\x1a\n") or h5py.is_hdf5(path):
        return weights_h5.read(path) if weights_h5.is_weights_h5(path) else hdf5.read(path)
    if head.startswith(b"PK") or zipfile.is_zipfile(path):
        return keras_zip.read(path)
    from lstm_swap.formats import text  # YAML is slow to import, and rarely wanted

    if text.looks_like_text(head):
        return text.read(path)
    raise UnreadableModelError(
        f"{path}: not a model file: neither HDF5 nor a .keras zip nor an architecture in JSON or YAML "
        f"(it begins with {head[:8]!r})"
    )


def _is_ours(path: Path) -> bool:
    """A `.keras` zip with a piece missing is still one, and is to be judged as such."""
    if path.is_file() and os.access(path, os.R_OK) and zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                names = set(archive.namelist())
        except (OSError, zipfile.BadZipFile, ValueError):
            return path.suffix == ".keras"
        return path.suffix == ".keras" or bool(names & {keras_zip.CONFIG, keras_zip.WEIGHTS})
    return False


def _open_folder(path: Path) -> ModelFile:
    if (path / keras_zip.CONFIG).is_file():
        return keras_zip.read(path)
    if (path / "saved_model.pb").is_file() or (path / "saved_model.pbtxt").is_file():
        raise UnreadableModelError(f"{path}: a SavedModel folder, which inspect and convert read, and nothing else")
    raise UnreadableModelError(f"{path}: a folder without saved_model.pb or config.json, so not a model")


def _with_weights(model: ModelFile, path: Path) -> ModelFile:
    """The architecture of one file with the arrays of another."""
    if model.entry is None:
        raise UsageError(f"{model.path}: --weights needs an architecture, and this file holds weights only")
    other = _open(path)
    try:
        if other.container in ("keras", "weights.h5"):
            keras_zip.attach(model.root, other.store, path.name, model.dialect)
        elif other.container in ("hdf5", "hdf5-weights"):
            file = other.store
            group = file.get("model_weights", file)
            version, backend = hdf5.versions(group, file)
            hdf5.attach(model.root, group, path.name, model.dialect)
            model.backend = backend or model.backend
            model.theano = hdf5.is_theano(model.root, backend, model.dialect)
            if model.keras_version is None:
                model.keras_version = version
        else:
            raise UnreadableModelError(f"{path}: no weights in it that an architecture could take")
    except BaseException:
        other.close()
        raise
    model.weights_path = path
    earlier = model.close

    def close() -> None:
        other.close()
        earlier()

    model.close = close
    return model


def container_for(model: ModelFile, out: Path) -> str:
    """Which container the suffix of `out` asks for: hdf5, keras, or saved_model where there is none.

    Raises:
        UsageError: a suffix that names no container, or one that cannot hold this model.
    """
    suffix = out.suffix.lower()
    if model.weights_only:
        if (suffix and suffix not in SUFFIXES) or suffix == ".keras":
            raise UsageError(f"{out}: weights without an architecture can only be written as .h5, not {suffix}")
        return model.container
    if out.name.endswith(".weights.h5"):
        raise UsageError(f"{out}: .weights.h5 is for weights alone; this is a whole model, write .h5 or .keras")
    if suffix not in SUFFIXES and suffix:
        raise UsageError(f"{out}: unknown suffix {suffix!r}; write .h5, .keras, or no suffix for a SavedModel folder")
    return SUFFIXES.get(suffix, "saved_model")


def save_model(model: ModelFile, out: Path, materialize: Materialize, dialect: str, container: str) -> None:
    """Write `model` to the new path `out`; nothing but `out` is touched."""
    if container == "keras":
        keras_write.write(model, out, materialize, dialect)
    elif container == "weights.h5":
        weights_h5.write(model, out, materialize)
    else:
        hdf5_write.write(model, out, materialize, dialect)
