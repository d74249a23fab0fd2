"""ConvLSTM, and convolution over one, two or three axes of space, in float64, as Keras and TensorFlow define them.

The layer (`keras.layers.ConvLSTM2D`, after Shi et al. 2015 but without peepholes) is the LSTM of `cells` with
convolutions for the products. Strides, padding and dilation are those of the input's convolution; the state's one has
padding "same" and steps of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from lstm_swap.weights.activations import Floats, Function
from lstm_swap.weights.products import dot
from lstm_swap.weights.recurrence import Array, Cell, Recurrence, States, expect_shapes, functions, split_gates


def convolve(
    x: Floats,
    kernel: np.ndarray[Any, Any],
    strides: tuple[int, ...],
    padding: str,
    dilation: tuple[int, ...],
) -> Floats:
    """Correlate x (batch, ...space, in) with a kernel (...window, in, out), without turning the kernel round.

    Sizes as in `tf.nn.convolution`, k' = (k - 1) dilation + 1 being the reach of the window: "valid" gives
    floor((n - k') / stride) + 1 places, "same" gives ceil(n / stride), for which zeros are added, half of them (rounded
    down) before the first place and the rest behind the last.

    Returns:
        (batch, ...places, out) in float64.

    Raises:
        ValueError: another padding than "valid" or "same", or a window that does not fit into the input.
    """
    window = kernel.shape[:-2]
    places = []
    pads = [(0, 0)]
    for n, k, stride, rate in zip(x.shape[1:-1], window, strides, dilation, strict=True):
        reach = (k - 1) * rate + 1
        if padding.lower() == "same":
            count = -(-n // stride)
            missing = max((count - 1) * stride + reach - n, 0)
            pads.append((missing // 2, missing - missing // 2))
        elif padding.lower() == "valid":
            count = (n - reach) // stride + 1
            pads.append((0, 0))
        else:
            raise ValueError(f"padding {padding!r} is neither 'valid' nor 'same'")
        if count < 1:
            raise ValueError(f"a window that reaches over {reach} does not fit into {n}")
        places.append(count)
    padded = np.pad(x, [*pads, (0, 0)])
    result = np.zeros((len(x), *places, kernel.shape[-1]))
    for tap in itertools.product(*map(range, window)):
        where = [
            slice(t * rate, t * rate + (count - 1) * stride + 1, stride)
            for t, rate, count, stride in zip(tap, dilation, places, strides, strict=True)
        ]
        result += dot(padded[(slice(None), *where)], kernel[tap])
    return result


def conv_lstm(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    """ConvLSTM1D, 2D, 3D; kernels (...window, in, 4 filters). In Keras 1 an array a gate, i c f o, filters last."""
    u, rank = spec.units, spec.rank
    if x.ndim != rank + 3:
        raise ValueError(f"the input has shape {x.shape}, expected {rank + 3} axes for a ConvLSTM{rank}D")
    first = spec.data_format == "channels_first"
    if first:
        x = np.moveaxis(x, 2, -1)
    inputs = x.shape[-1]
    window = arrays[0].shape[:rank] if spec.kernel_size is None else _tuple(spec.kernel_size, rank)
    if spec.layout == "keras1":
        expect_shapes(arrays, [(*window, inputs, u), (*window, u, u), (u,)] * 4)
        kernels, recurrents, biases = ([arrays[3 * k + part] for k in (0, 2, 1, 3)] for part in range(3))
    else:
        expect_shapes(arrays, [(*window, inputs, 4 * u), (*window, u, 4 * u), (4 * u,)][: 2 + spec.use_bias])
        kernels, recurrents, biases = ([a] for a in [*arrays, np.zeros(4 * u)][:3])
    strides, dilation = _tuple(spec.strides, rank), _tuple(spec.dilation_rate, rank)
    bias = np.concatenate(biases).astype(np.float64)

    def project(frame: Floats) -> Floats:
        return np.concatenate([convolve(frame, k, strides, spec.padding, dilation) for k in kernels], axis=-1) + bias

    def recur(h: Floats) -> Floats:
        return np.concatenate([convolve(h, k, (1,) * rank, "same", (1,) * rank) for k in recurrents], axis=-1)

    s, a = (_in_format(f, first) for f in functions(spec))

    def step(t: int, states: States) -> States:
        h, c = (np.moveaxis(state, 1, -1) for state in states) if first else states
        i, f, g, o = split_gates(project(x[:, t]) + recur(h), 4)
        c = s(f) * c + s(i) * a(g)
        h = s(o) * a(c)
        return [np.moveaxis(h, -1, 1), np.moveaxis(c, -1, 1)] if first else [h, c]

    space = project(x[:1, 0]).shape[1:-1]
    return Cell(step, (len(x), u, *space) if first else (len(x), *space, u), 2)


def _in_format(function: Function, channels_first: bool) -> Function:
    """An activation may look along the last axis, which is not the channels' in channels_first."""
    if not channels_first:
        return function
    return lambda x: np.moveaxis(function(np.moveaxis(x, -1, 1)), 1, -1)


def _tuple(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    result = (value,) * rank if isinstance(value, int) else tuple(int(n) for n in value)
    if len(result) != rank:
        raise ValueError(f"{value!r} where {rank} sizes are expected")
    return result
