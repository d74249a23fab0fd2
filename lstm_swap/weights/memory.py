"""Memory for large arrays that is used again instead of being given back to the system.

The system clears fresh memory page by page, which takes longer than to fill it. A file of many layers wants a few
large arrays of the same sizes again and again.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

#: Smaller arrays are NumPy's own affair.
_LARGE = 1 << 20

#: At most so many bytes wait to be used again.
_MOST = 1 << 26

_spare: dict[int, list[np.ndarray[Any, Any]]] = {}
_lock = threading.Lock()
_users = 0


@contextmanager
def kept() -> Iterator[None]:
    """While this lasts, in any thread, `empty` uses memory again; afterwards what waits is given back."""
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
        if not _users:
            _spare.clear()


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """`np.empty`, and where `kept` lasts, in memory whose last array is gone, with all views of it."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE or not _users:
        return np.empty(shape, dtype)
    try:
        block = _spare[size].pop()
    except (KeyError, IndexError):
        block = np.empty(size, np.uint8)
    # Every view of the array refers to `lent` in the end, and the block is free when that goes.
    lent = (ctypes.c_char * size).from_buffer(block)
    weakref.finalize(lent, _keep, block).atexit = False
    return np.frombuffer(lent, dtype).reshape(shape)


def _keep(block: np.ndarray[Any, Any]) -> None:
    # Without the lock: this may run wherever Python drops an object, in `kept` as well.
    if _users and sum(size * len(blocks) for size, blocks in list(_spare.items())) < _MOST:
        _spare.setdefault(block.size, []).append(block)
