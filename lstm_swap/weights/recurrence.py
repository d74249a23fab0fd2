"""What has to be known about a recurrent layer to compute it, and what its definitions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lstm_swap.weights.activations import Floats, Function, HardSigmoid, activation_function

Array = np.ndarray[Any, Any]
States = list[Floats]


@dataclass(frozen=True)
class Recurrence:
    """What has to be known about a recurrent layer, besides its arrays, to compute it.

    Attributes:
        kind: "lstm", "gru", "simple_rnn" or "conv_lstm".
        layout: "standard", "cudnn", "fused" or "keras1" (an array a gate; SimpleRNN's arrays are the standard ones).
        units: of a conv_lstm, its number of filters.
        activation, recurrent_activation: Keras's names, None meaning linear. "cudnn" and "fused" compute tanh and
            sigmoid by definition, whatever is said here. For unknown names see `activation_function`.
        use_bias, reset_after: as in Keras. "cudnn" and "fused" always have a bias, "keras1" has a bias and never
            `reset_after`.
        hard_sigmoid: what that name means, "keras3" or "keras2" (Keras 1 also).
        kernel_size, strides, padding, data_format, dilation_rate, rank: of a conv_lstm. One int stands for `rank`
            equal ones; no kernel_size means that of the kernel.
    """

    kind: Literal["lstm", "gru", "simple_rnn", "conv_lstm"]
    layout: Literal["standard", "cudnn", "fused", "keras1"]
    units: int
    activation: str | None = "tanh"
    recurrent_activation: str | None = "sigmoid"
    use_bias: bool = True
    reset_after: bool = True
    hard_sigmoid: HardSigmoid = "keras3"
    kernel_size: int | tuple[int, ...] | None = None
    strides: int | tuple[int, ...] = 1
    padding: str = "valid"
    data_format: str = "channels_last"
    dilation_rate: int | tuple[int, ...] = 1
    rank: int = 2


@dataclass
class Cell:
    """A layer ready to run on one input: `step` takes the number of the time step and the states before it."""

    step: Callable[[int, States], States]
    state_shape: tuple[int, ...]
    states: int


def expect_shapes(arrays: list[Array], shapes: Sequence[tuple[int, ...]]) -> None:
    """NumPy would broadcast some wrong shapes silently."""
    if [a.shape for a in arrays] != list(shapes):
        raise ValueError(f"arrays of shapes {[a.shape for a in arrays]}, expected {list(shapes)}")


def functions(spec: Recurrence) -> tuple[Function, Function]:
    """The recurrent activation and the activation."""
    return (
        activation_function(spec.recurrent_activation, spec.hard_sigmoid),
        activation_function(spec.activation, spec.hard_sigmoid),
    )


def split_gates(x: Floats, parts: int) -> list[Floats]:
    return np.split(x, parts, axis=-1)
