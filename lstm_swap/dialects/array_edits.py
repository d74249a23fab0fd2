"""Changes of a layer's arrays that go with a change of dialect.

Kernels hold the outputs (of a recurrent layer: the gates, side by side) on their last axis. Every edit keeps the
dtype of its input. None of them can carry optimizer slots along: a momentum of an array that is multiplied by s is to
be divided by s, a squared gradient by its square, and which of them a slot is stands nowhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lstm_swap.weights.layouts import merge_keras1, scale_gates

Array = np.ndarray[Any, Any]

#: hard_sigmoid is clip(slope * x + 0.5, 0, 1). Keras 1 and 2: `K.hard_sigmoid`; Keras 3: keras/src/backend/*/nn.py.
SLOPES = {"keras1": 0.2, "keras2": 0.2, "keras3": 1.0 / 6.0}


def hard_sigmoid(x: Array, dialect: str) -> Array:
    return np.clip(SLOPES[dialect] * x + 0.5, 0.0, 1.0)


class ScaleGates:
    """The gates' columns of a recurrent layer, so that `hard_sigmoid` of another slope gives the same values.

    A gate is hard_sigmoid(x W + h U + b): with W, U and b times 1.2 the slope 1/6 acts as 0.2 did.

    Args:
        kind: lstm, gru, conv_lstm, simple_rnn; arrays in the standard layout.
        factor: 1.2 from Keras 2 to 3, 1 / 1.2 on the way back.
        gates: scale i f o, or z r; candidate: scale the candidate h of a GRU, all of a SimpleRNN.
    """

    def __init__(self, kind: str, factor: float, *, gates: bool, candidate: bool) -> None:
        self.kind, self.factor, self.gates, self.candidate = kind, factor, gates, candidate
        self.title = f"columns of hard_sigmoid times {factor:.4g}"

    def weights(self, arrays: list[Array]) -> list[Array]:
        scaled = scale_gates(self.kind, arrays, self.factor, gates=self.gates, candidate=self.candidate)
        return [new.astype(old.dtype) for new, old in zip(scaled, arrays, strict=True)]

    def slots(self, arrays: list[Array]) -> list[Array] | None:
        return None


class ScaleLinear:
    """The kernels and bias whose sum is the argument of a layer's `hard_sigmoid`.

    Args:
        factor: 1.2 from Keras 2 to 3, 1 / 1.2 on the way back.
        skip: leading arrays that stay (1 for a separable convolution: its second kernel carries the factor).
    """

    def __init__(self, factor: float, skip: int = 0) -> None:
        self.factor, self.skip = factor, skip
        self.title = f"kernel and bias of hard_sigmoid times {factor:.4g}"

    def weights(self, arrays: list[Array]) -> list[Array]:
        return [a if i < self.skip else (a * np.float64(self.factor)).astype(a.dtype) for i, a in enumerate(arrays)]

    def slots(self, arrays: list[Array]) -> list[Array] | None:
        return None

    def prove(self, before: list[Array], after: list[Array], rng: np.random.Generator) -> float:
        """Largest difference of the layer's output before and after, at random input, in float64.

        One output position of a convolution is the product of the inputs under the window with the flattened kernel.
        """
        x = rng.standard_normal((16, int(np.prod(before[self.skip].shape[:-1]))))
        old, new = ("keras2", "keras3") if self.factor > 1 else ("keras3", "keras2")
        difference = hard_sigmoid(self._argument(x, before), old) - hard_sigmoid(self._argument(x, after), new)
        return float(np.abs(difference).max(initial=0.0))

    def _argument(self, x: Array, arrays: list[Array]) -> Array:
        kernel = np.asarray(arrays[self.skip], dtype=np.float64)
        y = x @ kernel.reshape(-1, kernel.shape[-1])
        for bias in arrays[self.skip + 1 :]:
            y = y + np.asarray(bias, dtype=np.float64).reshape(-1)[: y.shape[-1]]
        return np.asarray(y)


class MergeGates:
    """Keras 1's array a gate (12 of an LSTM or ConvLSTM2D, 9 of a GRU) to kernel, recurrent kernel and bias."""

    title = "an array a gate -> three arrays"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def weights(self, arrays: list[Array]) -> list[Array]:
        return merge_keras1(self.kind, arrays)

    def slots(self, arrays: list[Array]) -> list[Array] | None:
        return merge_keras1(self.kind, arrays)
