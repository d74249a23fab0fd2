"""Large arrays, read and written straight where they lie in an HDF5 file instead of through its library.

The library holds the interpreter's lock while it works, so nothing else would run meanwhile. A contiguous dataset is
its numbers, one after the other, at one place in the file (HDF5 File Format Specification, IV.A.2.i "Data Layout
Message", and `H5Dget_offset`): where the file's type is the array's, the bytes of one are those of the other.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lstm_swap.errors import VerificationError
from lstm_swap.weights import memory

#: Smaller arrays go through the library, which may hold some of their bytes in a buffer of its own (64 KiB).
LARGE = 1 << 20

#: How much is written and read back at a time: what the cache of a core holds.
_PIECE = 1 << 18

#: Linux: begin to write these pages to disk, and do not wait (SYNC_FILE_RANGE_WRITE of sync_file_range(2)).
_BEGIN = 2


def place(dataset: Any, dtype: np.dtype[Any]) -> int | None:
    """The offset in its file of a large dataset whose bytes are those of an array of `dtype`; None for any other."""
    size = dataset.size * dtype.itemsize
    if not hasattr(os, "preadv") or size < LARGE:
        return None
    made = dataset.id.get_create_plist()
    if made.get_layout() != h5py.h5d.CONTIGUOUS or made.get_external_count():
        return None
    if not dataset.id.get_type().equal(h5py.h5t.py_create(dtype)):
        return None
    offset: int | None = dataset.id.get_offset()
    if offset is None or offset + size > dataset.file.id.get_filesize():
        return None  # no space yet, or a damaged file
    return offset


def read(dataset: Any) -> np.ndarray[Any, Any] | None:
    """All of a dataset in a file that is open for reading; None where only the library can read it.

    Raises:
        OSError: the file ends within the array, and the like.
    """
    file = dataset.file
    offset = place(dataset, dataset.dtype) if file.driver == "sec2" and file.mode == "r" else None
    if offset is None:
        return None
    values = memory.empty(dataset.shape, dataset.dtype)
    _read(file.id.get_vfd_handle(), offset, words(values))
    return values


@contextmanager
def target(path: Path) -> Iterator[Target]:
    """`path` opened a second time."""
    with open(path, "r+b") as file:
        yield Target(file.fileno())


class Target:
    """A file that HDF5 has open for editing, with a handle of its own to write to."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def write(self, dataset: Any, values: np.ndarray[Any, Any]) -> bool:
        """Put a contiguous array into a dataset of its shape, and read it back; False: the library must write it.

        Raises:
            OSError: disk full and the like.
            VerificationError: the file holds other bytes than were written.
        """
        offset = place(dataset, values.dtype)
        if offset is None:
            return False
        numbers = words(values)
        buffer = np.empty(_PIECE // numbers.itemsize, numbers.dtype)
        for start in range(0, len(numbers), len(buffer)):
            piece = numbers[start : start + len(buffer)]
            found = buffer[: len(piece)]
            where = offset + start * numbers.itemsize
            _write(self.handle, where, piece)
            _read(self.handle, where, found)
            if not np.array_equal(found, piece):
                raise VerificationError(f"{dataset.name} reads back other numbers than were written")
        _begin_flush(self.handle, offset, numbers.nbytes)
        return True


def _write(handle: int, offset: int, numbers: np.ndarray[Any, Any]) -> None:
    data = numbers.data.cast("B")
    done = 0
    while done < len(data):
        done += os.pwrite(handle, data[done:], offset + done)


def _read(handle: int, offset: int, numbers: np.ndarray[Any, Any]) -> None:
    data = numbers.data.cast("B")
    done = 0
    while done < len(data):
        count = os.preadv(handle, [data[done:]], offset + done)
        if not count:
            raise OSError("the file ends within the array")
        done += count


def words(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of a contiguous array, in as large words as divide it: quick to compare, and NaN equals itself."""
    flat = values.reshape(-1)
    return flat.view(np.uint64 if flat.nbytes % 8 == 0 else np.uint8)


def _begin_flush(handle: int, offset: int, size: int) -> None:
    """Let the disk work already, where the system can be told so: little is left then for fsync to wait for."""
    flush = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if flush is not None:
        flush(handle, ctypes.c_int64(offset), ctypes.c_int64(size), _BEGIN)
