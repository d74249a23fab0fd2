"""Matrix products in float64 with matrices that are too large to be copied to float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lstm_swap.weights.activations import Floats

_BLOCK = 1 << 17  # numbers, 1 MiB of float64: fits the cache of one core, and is enough for BLAS to be quick


def dot(x: Floats, w: np.ndarray[Any, Any]) -> Floats:
    """x (..., k) times w (k, m) of any float dtype: (..., m) in float64."""
    flat = x.reshape(-1, x.shape[-1])
    result = np.zeros((len(flat), w.shape[1]))
    for start, block in _blocks(w):
        result += flat[:, start : start + len(block)] @ block
    return result.reshape(*x.shape[:-1], w.shape[1])


def dot_rows(x: Floats, w: np.ndarray[Any, Any]) -> Floats:
    """x (..., k) times the transpose of w (m, k) of any float dtype: (..., m) in float64."""
    flat = x.reshape(-1, x.shape[-1])
    result = np.empty((len(flat), len(w)))
    for start, block in _blocks(w):
        result[:, start : start + len(block)] = (block @ flat.T).T
    return result.reshape(*x.shape[:-1], len(w))


def _blocks(w: np.ndarray[Any, Any]) -> Iterator[tuple[int, Floats]]:
    """Consecutive rows of w in float64, in one buffer that is used again: valid until the next block."""
    step = max(1, _BLOCK // max(1, w.shape[1]))
    buffer = np.empty((min(step, len(w)), w.shape[1]))
    for start in range(0, len(w), step):
        rows = w[start : start + step]
        block = buffer[: len(rows)]
        np.copyto(block, rows)
        yield start, block
