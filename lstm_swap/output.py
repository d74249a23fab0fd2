"""Where the output goes, and how it gets there: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from lstm_swap.errors import LstmSwapError, UnreadableModelError, UsageError
from lstm_swap.formats import ModelFile

_SUFFIX = {"hdf5": ".h5", "hdf5-weights": ".h5", "keras": ".keras", "weights.h5": ".weights.h5", "architecture": ".h5"}


def default_output(model: ModelFile, form: str) -> Path:
    """NAME.FORM.SUFFIX beside the input: model.h5 -> model.standard.h5, m.weights.h5 -> m.standard.weights.h5."""
    return default_name(model.path, model.container, form)


def default_name(path: Path, container: str, form: str) -> Path:
    """`default_output` for a path and a container."""
    if container == "saved_model":
        return path.with_name(f"{path.name}.{form}")
    name = path.name
    wanted = _SUFFIX[container]
    if container == "architecture":
        return path.with_name(f"{path.stem}.{form}.h5")
    weights = (".weights.h5", ".weights.hdf5") if container in ("hdf5-weights", "weights.h5") else ()
    for suffix in (*weights, ".h5", ".hdf5", ".hdf", ".he5", ".keras"):
        if name.lower().endswith(suffix) and (suffix == ".keras") == (wanted == ".keras"):
            return path.with_name(f"{name[: -len(suffix)]}.{form}{name[-len(suffix) :]}")
    for suffix in (".keras", ".model"):  # an HDF5 file under another name
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return path.with_name(f"{name}.{form}{wanted}")


def write_safely(source: Path | Sequence[Path], target: Path, force: bool, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary sibling of `target`, flush it to disk, and rename it into place.

    source: the input, or each of the inputs; none of them is ever the output.

    Raises:
        UsageError: the output exists (without `force`), is an input, or is a folder that is no SavedModel.
        UnreadableModelError: it cannot be written (no folder, no permission, disk full).
    """
    check_target(source, target, force)
    temporary = target.with_name(f".{target.name[:60]}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            write(temporary)
            sync(temporary)
            if target.is_dir() and not target.is_symlink():
                if not temporary.is_dir():
                    raise UsageError(f"{target}: is a folder, and a file was to be written; choose another name")
                shutil.rmtree(target)
            os.replace(temporary, target)
        except LstmSwapError:
            raise
        except OSError as problem:
            raise UnreadableModelError(f"{target}: cannot be written ({problem.strerror or problem})") from None
        _sync_folder(target.parent)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                temporary.unlink()


def check_target(source: Path | Sequence[Path], target: Path, force: bool) -> None:
    """May the output be written there?"""
    if target.exists() or target.is_symlink():
        if any(_same(one, target) for one in ([source] if isinstance(source, Path) else source)):
            raise UsageError(f"{target}: the output is the input, which is never changed; choose another name")
        if target.is_dir() and not any((target / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
            raise UsageError(f"{target}: is a folder, and no SavedModel, so it is not overwritten; choose another name")
        if not force:
            raise UsageError(f"{target}: exists already; --force overwrites it")
    if not target.parent.is_dir():
        raise UnreadableModelError(f"{target}: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise UnreadableModelError(f"{target}: permission denied, the folder cannot be written to")


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return a.absolute() == b.absolute()


def sync(path: Path) -> None:
    """Flush a file, or every file of a folder, to disk."""
    for item in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if item.is_file():
            with open(item, "rb") as f:
                os.fsync(f.fileno())


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
