"""Careful access to HDF5: every name, link, shape and storage of a foreign file is checked before it is used."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lstm_swap.architecture import Array
from lstm_swap.errors import UnreadableModelError, VerificationError
from lstm_swap.formats import direct
from lstm_swap.formats.direct import words

#: HDF5 keeps an attribute in the object header up to this size; longer lists are cut in pieces
#: (keras/src/legacy/saving/legacy_h5_format.py, HDF5_OBJECT_HEADER_LIMIT).
ATTRIBUTE_LIMIT = 64512

#: An array may be this many times larger than the bytes stored for it (compression), above a floor in bytes.
MAX_EXPANSION, EXPANSION_FLOOR = 1000, 1 << 26

#: How much of an array is read back at a time.
SLAB_BYTES = 1 << 22


def open_file(path: Path) -> h5py.File:
    """Open for reading.

    Raises:
        UnreadableModelError: no permission, not HDF5, or damaged.
    """
    if not os.access(path, os.R_OK):
        raise UnreadableModelError(f"{path}: permission denied, the file cannot be read")
    try:
        return h5py.File(path, "r")
    except OSError as problem:
        text = str(problem)
        if "truncated" in text:
            raise UnreadableModelError(
                f"{path}: the HDF5 file is truncated (an interrupted copy or download?); fetch it again"
            ) from None
        raise UnreadableModelError(f"{path}: damaged HDF5 file, it cannot be read ({text})") from None


class _Unfailing(io.FileIO):
    """A file for HDF5 to write to that keeps the first error (disk full, file too large) instead of raising it.

    The HDF5 library cannot bear an error while it flushes: it brings the process down when the file is closed. So it
    is told that all went well, and `writing` raises the error once the file is closed.
    """

    problem: OSError | None = None

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view) and self.problem is None:
                done += super().write(view[done:]) or 0
        except OSError as problem:
            self.problem = problem
        return len(view)

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and (n := super().readinto(view[done:])):
            done += n
        view[done:] = bytes(len(view) - done)  # what could not be written
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size)
        except OSError as problem:
            self.problem = self.problem or problem
            return size or 0


@contextmanager
def writing(path: Path, mode: str) -> Iterator[h5py.File]:
    """Open for writing; `mode` is "w" (new) or "r+" (edit).

    Raises:
        OSError: at the end, if anything could not be written.
    """
    with _Unfailing(path, mode if mode == "r+" else "w+") as raw:
        try:
            with h5py.File(raw, mode) as file:
                yield file
        finally:
            if raw.problem is not None:
                raise raw.problem


def strings(group: Any, name: str) -> list[str]:
    """A list attribute; lists over 64 KB lie in numbered pieces name0, name1, ..."""
    if name in group.attrs:
        return _texts(group.attrs[name])
    values: list[str] = []
    piece = 0
    while f"{name}{piece}" in group.attrs:
        values += _texts(group.attrs[f"{name}{piece}"])
        piece += 1
    return values


def _texts(value: Any) -> list[str]:
    return [] if isinstance(value, h5py.Empty) else [text(v) for v in np.ravel(value)]


def has_strings(group: Any, name: str) -> bool:
    return name in group.attrs or f"{name}0" in group.attrs


def set_strings(group: Any, name: str, values: list[str]) -> None:
    """Write a list attribute as Keras does, in pieces where it is long."""
    for key in [k for k in group.attrs if k == name or (k.startswith(name) and k[len(name) :].isdigit())]:
        del group.attrs[key]
    data = np.asarray([v.encode("utf-8") for v in values]) if values else np.asarray([], dtype="S1")
    pieces = 1
    parts = [data]
    while any(part.nbytes > ATTRIBUTE_LIMIT for part in parts):
        pieces += 1
        parts = np.array_split(data, pieces)
        if pieces > len(values):
            raise UnreadableModelError(f"a name of {data.itemsize} bytes is too long for HDF5; write .keras instead")
    if len(parts) == 1:
        group.attrs[name] = data
    else:
        for i, part in enumerate(parts):
            group.attrs[f"{name}{i}"] = part


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def get_group(parent: Any, name: str, where: str) -> Any:
    """The group `name` below `parent`, links followed only inside the file."""
    found = _get(parent, name, where)
    if not isinstance(found, h5py.Group):
        raise UnreadableModelError(f"{where}: {name!r} is not a group")
    return found


def _get(parent: Any, name: str, where: str) -> Any:
    """Follow `name` part by part, so that no part can lead out of the file."""
    try:
        current = parent
        for part in [p for p in name.split("/") if p]:
            link = current.get(part, getlink=True) if isinstance(current, h5py.Group) else None
            if link is None:
                raise KeyError(part)
            if isinstance(link, h5py.ExternalLink):
                raise UnreadableModelError(f"{where}: {name!r} is a link to a file outside ({link.filename!r})")
            current = current[part]
        return current
    except (KeyError, OSError, RuntimeError):
        raise UnreadableModelError(f"{where}: {name!r} is missing (not found, or a dangling link)") from None


def get_array(parent: Any, name: str, where: str) -> Array:
    """The dataset `name` below `parent`, unread.

    Raises:
        UnreadableModelError: missing, not an array of numbers, stored outside the file, or far larger than its bytes.
    """
    found = _get(parent, name, where)
    if not isinstance(found, h5py.Dataset):
        raise UnreadableModelError(f"{where}: {name!r} is not an array")
    return dataset_array(found, name, where)


def dataset_array(found: Any, name: str, where: str) -> Array:
    """`get_array` for a dataset that is already at hand."""
    if found.external or found.is_virtual:
        raise UnreadableModelError(f"{where}: the array {name!r} keeps its data outside of the file (external storage)")
    if found.shape is None:
        raise UnreadableModelError(f"{where}: the array {name!r} has no shape")
    size = int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize
    stored = found.id.get_storage_size()
    if size > EXPANSION_FLOOR and size > MAX_EXPANSION * max(stored, 1):
        raise UnreadableModelError(
            f"{where}: the array {name!r} claims {size:,} bytes of shape {found.shape} but only {stored:,} are stored"
        )
    kind = str(found.dtype)
    if kind == "|V2":  # Keras stores bfloat16 as opaque words of two bytes (ml_dtypes through h5py)
        return Array(name, found.shape, "bfloat16", lambda: from_bfloat16(found[()]), found.name)
    if found.dtype.kind not in "fiub":
        raise UnreadableModelError(f"{where}: the array {name!r} holds {found.dtype}, not numbers")

    def read() -> np.ndarray[Any, Any]:
        try:
            values = direct.read(found)
            return np.asarray(found[()]) if values is None else values
        except OSError as problem:
            raise UnreadableModelError(f"{where}: the array {name!r} cannot be read ({problem})") from None

    return Array(name, found.shape, kind, read, found.name)


def from_bfloat16(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """bfloat16 is the upper half of a float32."""
    bits = words.view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32)


def to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The nearest bfloat16, ties to even, as 16-bit words."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """`values` in the file's dtype (bfloat16: the float32 that equal it)."""
    if dtype == "bfloat16":
        return from_bfloat16(to_bfloat16(values))
    return np.asarray(values).astype(dtype, copy=False)


def write(group: Any, name: str, values: np.ndarray[Any, Any], dtype: str, target: direct.Target | None = None) -> None:
    """Put an array at group/name, into the dataset that is there if its shape and dtype fit, and read it back.

    target: the file again, for large arrays that can be written without the library.

    Raises:
        VerificationError: the file holds other bytes than were written.
    """
    old = group.get(name)
    if dtype == "bfloat16":
        stored = to_bfloat16(values).view("V2")
    else:
        stored = np.ascontiguousarray(values, dtype=dtype).reshape(np.shape(values))
    if isinstance(old, h5py.Dataset) and old.shape == stored.shape and old.dtype == stored.dtype:
        dataset = old
        if target is not None and target.write(dataset, stored):
            return
        if stored.ndim:
            dataset.write_direct(stored)
        else:
            dataset[()] = stored
    else:
        if old is not None:
            del group[name]
        dataset = group.create_dataset(name, data=stored)
        if dtype == "bfloat16":
            dataset.attrs["dtype"] = "bfloat16"
    _check_written(dataset, stored)


def _check_written(dataset: Any, stored: np.ndarray[Any, Any]) -> None:
    """Is the dataset bit for bit what was to be written? Read in slabs, so that no second copy is in memory."""
    if stored.size == 0:
        return
    if stored.ndim == 0:
        same = dataset[()].tobytes() == stored.tobytes()
    else:
        rows = min(len(stored), max(1, SLAB_BYTES // stored[:1].nbytes))
        buffer = np.empty((rows, *stored.shape[1:]), stored.dtype)
        same = True
        for i in range(0, len(stored), rows):
            part = stored[i : i + rows]
            slab = buffer[: len(part)]
            dataset.read_direct(slab, np.s_[i : i + rows])
            same = same and np.array_equal(words(slab), words(part))
    if not same:
        raise VerificationError(f"{dataset.name} reads back other numbers than were written")
