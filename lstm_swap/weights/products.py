"""Matrix products in float64 with matrices that are too large to be copied to float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from lstm_swap.weights.activations import Floats

_BLOCK = 1 << 17  # numbers, 1 MiB of float64: fits the cache of one core, and is enough for BLAS to be quick


def dot(x: Floats, w: np.ndarray[Any, Any]) -> Floats:
    """x (..., k) times w (k, m) of any float dtype: (..., m) in float64."""
    flat = x.reshape(-1, x.shape[-1])
    result = np.zeros((len(flat), w.shape[1]))
    step = max(1, _BLOCK // max(1, w.shape[1]))
    for start in range(0, len(w), step):
        result += flat[:, start : start + step] @ w[start : start + step].astype(np.float64, copy=False)
    return result.reshape(*x.shape[:-1], w.shape[1])


def dot_rows(x: Floats, w: np.ndarray[Any, Any]) -> Floats:
    """x (..., k) times the transpose of w (m, k) of any float dtype: (..., m) in float64."""
    flat = x.reshape(-1, x.shape[-1])
    result = np.empty((len(flat), len(w)))
    step = max(1, _BLOCK // max(1, w.shape[1]))
    for start in range(0, len(w), step):
        result[:, start : start + step] = flat @ w[start : start + step].astype(np.float64, copy=False).T
    return result.reshape(*x.shape[:-1], len(w))
