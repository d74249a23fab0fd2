"""Changes of a layer's arrays that go with a change of dialect.

Kernels hold the outputs (of a recurrent layer: the gates, side by side) on their last axis. Edits that compute return
float64, so that nothing is rounded before it is proved; those that move numbers keep the dtype. Scaling cannot carry
optimizer slots along: a momentum of an array that is multiplied by s is to be divided by s, a squared gradient by its
square, and which of them a slot is stands nowhere.
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
        return scale_gates(self.kind, arrays, self.factor, gates=self.gates, candidate=self.candidate)

    def slots(self, arrays: list[Array]) -> list[Array] | None:
        return None


class ScaleLinear:
    """The kernels and bias whose sum is the argument of a layer's `hard_sigmoid`.

    Args:
        factor: 1.2 from Keras 2 to 3, 1 / 1.2 on the way back.
        skip: leading arrays that stay (1 for a separable convolution: its second kernel carries the factor).
        transposed: the kernel holds the outputs on its last axis but one, as transposed convolutions do.
    """

    def __init__(self, factor: float, skip: int = 0, transposed: bool = False) -> None:
        self.factor, self.skip, self.transposed = factor, skip, transposed
        self.title = f"kernel and bias of hard_sigmoid times {factor:.4g}"

    def weights(self, arrays: list[Array]) -> list[Array]:
        return [a if i < self.skip else np.asarray(a, dtype=np.float64) * self.factor for i, a in enumerate(arrays)]

    def slots(self, arrays: list[Array]) -> list[Array] | None:
        return None

    def prove(self, before: list[Array], after: list[Array], rng: np.random.Generator) -> float:
        """Largest difference of the layer's output before and after, at random input, in float64.

        One output position of a convolution is the product of the inputs under the window with the flattened kernel.
        """
        kernel = before[self.skip].shape
        outputs = kernel[-2] if self.transposed else kernel[-1]
        x = rng.standard_normal((16, int(np.prod(kernel)) // outputs))
        old, new = ("keras2", "keras3") if self.factor > 1 else ("keras3", "keras2")
        difference = hard_sigmoid(self._argument(x, before), old) - hard_sigmoid(self._argument(x, after), new)
        return float(np.abs(difference).max(initial=0.0))

    def _argument(self, x: Array, arrays: list[Array]) -> Array:
        kernel = np.asarray(arrays[self.skip], dtype=np.float64)
        if self.transposed:
            kernel = np.swapaxes(kernel, -1, -2)
        y = x @ kernel.reshape(-1, kernel.shape[-1])
        for bias in arrays[self.skip + 1 :]:
            y = y + np.asarray(bias, dtype=np.float64).reshape(-1)[: y.shape[-1]]
        return np.asarray(y)


class MergeGates:
    """Keras 1's array a gate (12 of an LSTM or ConvLSTM2D, 9 of a GRU) to kernel, recurrent kernel and bias.

    channels_first: the convolution kernels are (filters, channels, rows, columns), and come out as
    (rows, columns, channels, filters).
    """

    title = "an array a gate -> three arrays"

    def __init__(self, kind: str, channels_first: bool = False) -> None:
        self.kind = kind
        self.channels_first = channels_first

    def weights(self, arrays: list[Array]) -> list[Array]:
        if self.channels_first:
            arrays = [a.transpose(2, 3, 1, 0) if a.ndim == 4 else a for a in arrays]
        return merge_keras1(self.kind, arrays)

    def slots(self, arrays: list[Array]) -> list[Array] | None:
        return self.weights(arrays)


class MoveKernel:
    """A convolution's kernel with its axes in another order, and turned round where Theano made it.

    Args:
        axes: where each axis of the result comes from, as `numpy.transpose` takes them.
        flip: axes of the result to turn round: `theano.tensor.nnet.conv2d` convolves, TensorFlow correlates.
        squeeze: an axis of length one of the result that goes (Keras 1 keeps a Conv1D as one row of a Conv2D).
        arrays: how many leading arrays are kernels (2 for ConvLSTM2D).
    """

    def __init__(
        self, axes: tuple[int, ...], flip: tuple[int, ...] = (), squeeze: int | None = None, arrays: int = 1
    ) -> None:
        self.axes, self.flip, self.squeeze, self.arrays = axes, flip, squeeze, arrays
        self.title = "kernel turned round" if flip else "kernel axes reordered"

    @property
    def changes(self) -> bool:
        return bool(self.flip) or self.squeeze is not None or self.axes != tuple(range(len(self.axes)))

    def _move(self, kernel: Array) -> Array:
        kernel = np.flip(kernel.transpose(self.axes), self.flip) if self.flip else kernel.transpose(self.axes)
        return kernel if self.squeeze is None else kernel.squeeze(self.squeeze)

    def weights(self, arrays: list[Array]) -> list[Array]:
        return [self._move(a) if i < self.arrays else a for i, a in enumerate(arrays)]

    def slots(self, arrays: list[Array]) -> list[Array] | None:
        return self.weights(arrays)

    def prove(self, before: list[Array], after: list[Array], rng: np.random.Generator) -> float:
        """Largest difference of the products of a random window with the kernel, old and new, in float64.

        The old one runs over the window backwards where the kernel is to be turned round: that is a convolution.
        """
        worst = 0.0
        for i in range(self.arrays):
            old, new = np.asarray(before[i], np.float64), np.asarray(after[i], np.float64)
            letters = "abcdefgh"[: old.ndim]
            source = "".join(letters[self.axes.index(axis)] for axis in range(old.ndim))
            window = rng.standard_normal([old.shape[axis] for axis in self.axes[:-1]])
            expected = np.einsum(f"{source},{letters[:-1]}->{letters[-1]}", old, np.flip(window, self.flip))
            got = window.reshape(-1) @ new.reshape(-1, new.shape[-1])
            worst = max(worst, float(np.abs(expected - got).max(initial=0.0)))
        return worst


class DeviationToVariance:
    """BatchNormalization's standard deviation s of Keras before 1.0.7 to a variance v.

    There y = (x - m) / (s + epsilon), here y = (x - m) / sqrt(v + epsilon): v = (s + epsilon)^2 - epsilon.
    """

    title = "standard deviation -> variance"

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def weights(self, arrays: list[Array]) -> list[Array]:
        deviation = np.asarray(arrays[3], dtype=np.float64)
        return [*arrays[:3], (deviation + self.epsilon) ** 2 - self.epsilon]

    def slots(self, arrays: list[Array]) -> list[Array] | None:
        return arrays

    def prove(self, before: list[Array], after: list[Array], rng: np.random.Generator) -> float:
        """Largest difference of the normalized output of random input, in float64, times max(1, its magnitude)."""
        gamma, beta, mean, deviation = (np.asarray(a, dtype=np.float64) for a in before)
        variance = np.asarray(after[3], dtype=np.float64)
        x = rng.standard_normal((16, mean.size))
        old = gamma * (x - mean) / (deviation + self.epsilon) + beta
        new = gamma * (x - mean) / np.sqrt(variance + self.epsilon) + beta
        return float(np.abs(old - new).max(initial=0.0) / max(1.0, np.abs(old).max(initial=0.0)))
