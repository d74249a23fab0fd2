"""Activation functions by the names that Keras gives them, in float64 NumPy.

Source of the formulas: `keras.activations` and `keras.ops.nn` of Keras 3.15 (the same as those of Keras 2, with the one
exception of `hard_sigmoid`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Function = Callable[[Floats], Floats]
HardSigmoid = Literal["keras3", "keras2"]

# Constants of self-normalising networks, Klambauer et al. 2017, as in keras.ops.selu.
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946

_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Floats) -> Floats:
    return 0.5 + 0.5 * np.tanh(0.5 * x)  # 1 / (1 + exp(-x)) without overflow


def _softplus(x: Floats) -> Floats:
    return np.logaddexp(0.0, x)


def _elu(x: Floats) -> Floats:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


def _gelu(x: Floats) -> Floats:
    return 0.5 * x * (1.0 + np.asarray(_erf(x / math.sqrt(2.0)), dtype=np.float64))


def _log_softmax(x: Floats) -> Floats:
    shifted = x - x.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _hard_sigmoid_keras3(x: Floats) -> Floats:
    return np.clip(x / 6.0 + 0.5, 0.0, 1.0)


def _hard_sigmoid_keras2(x: Floats) -> Floats:
    return np.clip(0.2 * x + 0.5, 0.0, 1.0)


_FUNCTIONS: dict[str, Function] = {
    "celu": _elu,  # alpha is 1 by default, where the two are one
    "elu": _elu,
    "exponential": np.exp,
    "gelu": _gelu,
    "hard_shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0.0),
    "hard_silu": lambda x: x * _hard_sigmoid_keras3(x),
    "hard_swish": lambda x: x * _hard_sigmoid_keras3(x),
    "hard_tanh": lambda x: np.clip(x, -1.0, 1.0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.2 * x),
    "linear": lambda x: x,
    "log_sigmoid": lambda x: -_softplus(-x),
    "log_softmax": _log_softmax,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "selu": lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(np.minimum(x, 0.0))),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0.0),
    "softmax": lambda x: np.exp(_log_softmax(x)),
    "softplus": _softplus,
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "sparse_plus": lambda x: np.where(x >= 1.0, x, 0.25 * np.square(np.maximum(x + 1.0, 0.0))),
    "sparse_sigmoid": lambda x: np.clip(0.5 * (x + 1.0), 0.0, 1.0),
    "squareplus": lambda x: 0.5 * (x + np.sqrt(np.square(x) + 4.0)),
    "swish": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "tanh_shrink": lambda x: x - np.tanh(x),
}


KNOWN_ACTIVATIONS = frozenset({*_FUNCTIONS, "hard_sigmoid"})


def is_known_activation(name: str | None) -> bool:
    """Does `activation_function` compute this name as Keras does? (None is Keras's way to write "linear".)"""
    return name is None or name in KNOWN_ACTIVATIONS


def activation_function(name: str | None, hard_sigmoid: HardSigmoid = "keras3") -> Function:
    """The function of that name, float64 to float64 of the same shape; `softmax` runs over the last axis.

    `hard_sigmoid` picks the meaning of that name: "keras2" (Keras 1 and 2) is clip(0.2 x + 0.5, 0, 1), "keras3" is
    clip(x / 6 + 0.5, 0, 1).

    For a name that is not known (a custom function, which cannot be run from a file) the answer is a stand-in: a fixed
    smooth, elementwise function without symmetry, another one for each name. A rewrite that only permutes, transposes
    or sums biases is right for every elementwise activation if it is right for such a generic one; only what the layer
    itself outputs is then not known. `is_known_activation` tells the two cases apart.
    """
    if name is None:
        return _FUNCTIONS["linear"]
    if name == "hard_sigmoid":
        return _hard_sigmoid_keras2 if hard_sigmoid == "keras2" else _hard_sigmoid_keras3
    return _FUNCTIONS.get(name) or _stand_in(name)


def _stand_in(name: str) -> Function:
    fraction = zlib.crc32(name.encode()) / 2**32  # the same on every machine, unlike hash()
    slope, shift = 0.6 + 0.5 * fraction, 0.1 + 0.3 * fraction
    return lambda x: 0.8 * np.tanh(slope * x + shift) + 0.1 * x
