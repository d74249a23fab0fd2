"""The recurrence as a loop over time whose gradient is written by hand; XLA may compile both.

TensorFlow's own gradient of a loop multiplies matrices at every step for every weight. Here the loop that runs back in
time computes only the gradients of the gates; those of the weights and of the input are one matrix product each, over
all steps at once. With g gates a unit: kernel K (g u, n), recurrent_kernel R (g u, u), p = K x + b (all steps, one
product), and for a step with d_h, d_c the gradients that reach its states:

    LSTM  a = [i f c' o]: sigmoid or tanh of p + R h_prev
          d_c += d_h * o * (1 - tanh(c)^2)
          d_z = [d_c * c' * i(1-i), d_c * c_prev * f(1-f), d_c * i * (1-c'^2), d_h * tanh(c) * o(1-o)]
          d_h_prev = R^T d_z            d_c_prev = d_c * f
    GRU   a = [r z h'], q = R_h h_prev + b_R,h
          d_n = d_h * (1-z) * (1-h'^2)
          d_z = [d_n * q * r(1-r), d_h * (h_prev - h') * z(1-z), d_n]      towards the input
          d_s = the same, its last block times r                          towards the recurrent product
          d_h_prev = d_h * z + R^T d_s

    d_x = K^T d_z    d_K = sum d_z x^T    d_R = sum d_s h_prev^T    d_b = sum d_z (and sum d_s)

(derived from the formulas in `cudnn`; for LSTM d_s is d_z.) A step that a mask leaves out hands d_h and d_c on as they
are. sigmoid(x) is computed as tanh(x / 2) / 2 + 1 / 2, so that all gates of a step are one call of tanh.

Arrays and arguments are those of `portable`. Inside, time comes first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lstm_swap.layers import portable

#: Steps an iteration on a GPU.
STEPS_ON_GPU = 8


def run(
    mode: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    mask: Any | None,
    return_sequences: bool,
    is_training: bool,
    *,
    compiled: bool,
    for_cpu: bool,
) -> list[Any]:
    """Arguments and results of `portable.run`.

    compiled: forward and backward are functions that XLA compiles, anew for every shape that it meets.
    for_cpu: multiply by transposed copies of the matrices where the batch is not small, and compute all gates of an
        LSTM in one tanh. Else, for a GPU, take several steps an iteration, which XLA then starts together.
    """
    forward = _function(_forward, mode, mask is not None, return_sequences, is_training, compiled, for_cpu)
    extra = [] if mask is None else [mask]
    tensors = [x, *states, *weights]
    if not is_training:
        results, _ = forward(*extra, *tensors, *(_transposed(mode, x, weights) if for_cpu else ()))
        return list(results)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(*tensors: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        # A tape must not look into the forward function: it would ask for the insides of a compiled loop.
        still = [tf.stop_gradient(tensor) for tensor in tensors]
        results, kept = forward(*extra, *still, *(_transposed(mode, still[0], still[-3:]) if for_cpu else ()))
        # Nor from behind: what a function keeps for its gradient becomes results of it, which higher orders go through.
        kept = [tf.stop_gradient(array) for array in kept]

        def gradient(*upstream: Any) -> list[Any]:
            return _backward_once(mode, mask, return_sequences, compiled, for_cpu, tensors, kept, upstream)

        return list(results), gradient

    results = differentiable(*tensors)
    return list(results)


def _transposed(mode: str, x: Any, weights: Sequence[Any]) -> list[Any]:
    """The matrices that the loop multiplies by, transposed, made outside of XLA, whose transpose on a CPU is slow.

    Nothing for a small batch: it is spared the copies (measured: a quarter of the time at batch 1). At batch 32, to go
    without costs a fifth. A GRU then also takes its input step by step (1.4 instead of 0.9 times Keras at batch 32); an
    LSTM does not gain by it.
    """
    if portable.small_batch(x):
        return []
    return [tf.transpose(matrix) for matrix in (weights[1::-1] if mode == "gru" else weights[1:2])]


def _backward_once(
    mode: str,
    mask: Any | None,
    return_sequences: bool,
    compiled: bool,
    for_cpu: bool,
    tensors: Sequence[Any],
    kept: Sequence[Any],
    upstream: Sequence[Any],
) -> list[Any]:
    """The gradient by hand; a gradient of it is taken of the portable loop's gradient, which is the same function."""
    backward = _function(_backward, mode, mask is not None, return_sequences, True, compiled, for_cpu)
    # Of the graph that the gradient is taken in, so that the graph of its gradient finds them there.
    local = [tf.identity(tensor) for tensor in (*tensors, *upstream)]
    mask = None if mask is None else tf.identity(mask)
    extra = [] if mask is None else [mask]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def differentiable(*both: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        still = [tf.stop_gradient(tensor) for tensor in both]
        gradients = backward(*extra, *still, *(tf.stop_gradient(tensor) for tensor in kept))
        gradients = _kernel_gradients(still[0], still[len(tensors) - 3], gradients)

        def second(*upstream: Any) -> list[Any]:
            with tf.GradientTape() as outer:
                outer.watch(both)
                with tf.GradientTape() as inner:
                    inner.watch(both[: len(tensors)])
                    arrays = both[1 : len(tensors)]
                    results = portable.run(mode, both[0], arrays[:-3], arrays[-3:], mask, return_sequences, True)
                first = inner.gradient(
                    results, list(both[: len(tensors)]), list(both[len(tensors) :]), tf.UnconnectedGradients.ZERO
                )
            gradients: list[Any] = outer.gradient(first, list(both), list(upstream), tf.UnconnectedGradients.ZERO)
            return gradients

        return list(gradients), second

    return list(differentiable(*local))


@functools.cache
def _function(
    body: Callable[..., Any],
    mode: str,
    masked: bool,
    return_sequences: bool,
    is_training: bool,
    compiled: bool,
    for_cpu: bool,
) -> Callable[..., Any]:
    """`body` for these settings, as one function that XLA compiles or as it is."""

    def call(*tensors: Any) -> Any:
        mask, rest = (tensors[0], tensors[1:]) if masked else (None, tensors)
        return body(mode, mask, rest, return_sequences, is_training, for_cpu)

    if not compiled:
        return call
    return tf.function(call, jit_compile=True, autograph=False)  # type: ignore[no-any-return]


# Forward


def _forward(
    mode: str, mask: Any | None, tensors: Sequence[Any], return_sequences: bool, is_training: bool, for_cpu: bool
) -> tuple[list[Any], list[Any]]:
    """The results of `run`; and what the gradient needs: h and the gates of all steps, and c or q."""
    count = _STATES[mode]
    x, states, (kernel, recurrent_kernel, bias) = tensors[0], tensors[1 : 1 + count], tensors[1 + count : 4 + count]
    turned = tensors[4 + count :]

    def recurrent(h: Any) -> Any:
        return tf.matmul(h, turned[0]) if turned else tf.matmul(h, recurrent_kernel, transpose_b=True)

    units = kernel.shape[0] // 4 if mode == "lstm" else kernel.shape[0] // 3
    step = _STEPS[mode](recurrent, bias, units, for_cpu)
    input_bias = bias if mode == "lstm" else bias[: kernel.shape[0]]
    by_step = len(turned) == 2
    sequence = tf.transpose(x, (1, 0, 2))
    if not by_step:
        sequence = portable.project(sequence, kernel, input_bias)
    time_steps = _length(sequence)
    inputs = tf.TensorArray(x.dtype, size=time_steps).unstack(sequence)
    valid = _steps(mask, time_steps)
    widths = ([states[0].shape[1]] if return_sequences or is_training else []) + (
        [kernel.shape[0], states[0].shape[1]] if is_training else []
    )
    arrays = [tf.TensorArray(x.dtype, size=time_steps, element_shape=(states[0].shape[0], width)) for width in widths]

    def body(time: Any, arrays: list[Any], old: list[Any]) -> tuple[Any, Any]:
        now = inputs.read(time)
        if by_step:
            now = tf.nn.bias_add(tf.matmul(now, turned[1]), input_bias)
        new, gates, more = step(now, old)
        if valid is not None:
            keep = valid.read(time)
            new = [tf.where(keep, after, before) for after, before in zip(new, old, strict=True)]
            if mode == "lstm":
                more = new[1]
        for after, before in zip(new, old, strict=True):
            after.set_shape(before.shape)
        written = [array.write(time, value) for array, value in zip(arrays, (new[0], gates, more))]
        return written, new

    arrays, last = _loop(time_steps, for_cpu, body, arrays, list(states))
    kept = [array.stack() for array in arrays]
    results = [tf.transpose(kept[0], (1, 0, 2))] if return_sequences else []
    return [*results, *last], kept if is_training else []


def _lstm_step(recurrent: Callable[[Any], Any], _bias: Any, units: int, for_cpu: bool) -> Callable[..., Any]:
    halves = np.repeat((0.5, 0.5, 1.0, 0.5), units)

    def step(projected: Any, states: Sequence[Any]) -> tuple[list[Any], Any, Any]:
        h, c = states
        sums = projected + recurrent(h)
        if for_cpu:
            scale = tf.constant(halves, h.dtype)
            gates = tf.tanh(sums * scale) * scale + (1 - scale)
        else:
            parts = zip((tf.sigmoid, tf.sigmoid, tf.tanh, tf.sigmoid), tf.split(sums, 4, axis=1), strict=True)
            gates = tf.concat([function(part) for function, part in parts], 1)
        i, f, candidate, o = tf.split(gates, 4, axis=1)
        c = f * c + i * candidate
        return [o * tf.tanh(c), c], gates, c

    return step


def _gru_step(recurrent: Callable[[Any], Any], bias: Any, units: int, _for_cpu: bool) -> Callable[..., Any]:
    recurrent_bias = bias[3 * units :]

    def step(projected: Any, states: Sequence[Any]) -> tuple[list[Any], Any, Any]:
        (h,) = states
        product = recurrent(h) + recurrent_bias
        r, z = tf.split(tf.tanh((projected[:, : 2 * units] + product[:, : 2 * units]) * 0.5) * 0.5 + 0.5, 2, axis=1)
        q = product[:, 2 * units :]
        candidate = tf.tanh(projected[:, 2 * units :] + r * q)
        return [candidate + z * (h - candidate)], tf.concat([r, z, candidate], 1), q

    return step


# Backward


def _backward(
    mode: str, mask: Any | None, tensors: Sequence[Any], return_sequences: bool, _is_training: bool, for_cpu: bool
) -> list[Any]:
    """Gradients of x, states and bias; and, time first, those of the gates towards each kernel, and h_prev."""
    count = _STATES[mode]
    x, states, weights = tensors[0], tensors[1 : 1 + count], tensors[1 + count : 4 + count]
    upstream = tensors[4 + count : 4 + 2 * count + return_sequences]
    h, gates, more = tensors[-3:]
    kernel, recurrent_kernel, _ = weights
    time_steps = _length(gates)
    h_before = tf.concat([states[0][tf.newaxis], h[:-1]], 0)
    factors, step = _BACK[mode](h_before, states, gates, more, recurrent_kernel)
    reads = [tf.TensorArray(x.dtype, size=time_steps).unstack(factor) for factor in factors]
    outside = None
    if return_sequences:
        outside = tf.TensorArray(x.dtype, size=time_steps).unstack(tf.transpose(upstream[0], (1, 0, 2)))
    valid = _steps(mask, time_steps)
    element_shape = (states[0].shape[0], kernel.shape[0])

    def body(done: Any, array: Any, old: list[Any]) -> tuple[Any, Any]:
        time = time_steps - 1 - done
        if outside is not None:
            old = [old[0] + outside.read(time), *old[1:]]
        d_gates, new = step([read.read(time) for read in reads], old)
        if valid is not None:
            keep = valid.read(time)
            d_gates = tf.where(keep, d_gates, tf.zeros_like(d_gates))
            new = [tf.where(keep, after, before) for after, before in zip(new, old, strict=True)]
        for after, state in zip(new, states, strict=True):
            after.set_shape(state.shape)
        return array.write(time, d_gates), new

    array = tf.TensorArray(x.dtype, size=time_steps, element_shape=element_shape)
    array, d_states = _loop(time_steps, for_cpu, body, array, list(upstream[return_sequences:]))
    d_input = array.stack()
    d_recurrent = d_input
    if mode == "gru":
        r = gates[:, :, : kernel.shape[0] // 3]
        d_recurrent = tf.concat([d_input[:, :, : 2 * r.shape[2]], d_input[:, :, 2 * r.shape[2] :] * r], 2)
    shape = tf.shape(x)
    flat = tf.reshape(d_input, (-1, kernel.shape[0]))
    d_x = tf.reshape(tf.matmul(flat, kernel), (shape[1], shape[0], kernel.shape[1]))
    d_bias = tf.reduce_sum(d_input, (0, 1))
    if mode == "gru":
        d_bias = tf.concat([d_bias, tf.reduce_sum(d_recurrent, (0, 1))], 0)
    return [tf.transpose(d_x, (1, 0, 2)), *d_states, d_bias, d_input, d_recurrent, h_before]


def _kernel_gradients(x: Any, kernel: Any, gradients: Sequence[Any]) -> list[Any]:
    """The result of `_backward`, with the gradients of the two kernels in their places.

    Not left to XLA, whose product with a transposed left factor takes twice as long as TensorFlow's on a CPU.
    """
    *others, d_bias, d_input, d_recurrent, h_before = gradients
    rows, features = kernel.shape
    pairs = ((d_input, tf.transpose(x, (1, 0, 2)), features), (d_recurrent, h_before, others[1].shape[1]))
    kernels = [
        tf.matmul(tf.reshape(d_gates, (-1, rows)), tf.reshape(factor, (-1, width)), transpose_a=True)
        for d_gates, factor, width in pairs
    ]
    return [*others, *kernels, d_bias]


def _lstm_back(
    _h_before: Any, states: Sequence[Any], gates: Any, c: Any, recurrent_kernel: Any
) -> tuple[list[Any], Callable[..., Any]]:
    c_before = tf.concat([states[1][tf.newaxis], c[:-1]], 0)
    i, f, candidate, o = tf.split(gates, 4, axis=2)
    tanh_c = tf.tanh(c)
    slopes = tf.concat(
        [
            candidate * i * (1 - i),
            c_before * f * (1 - f),
            i * (1 - candidate * candidate),
            tanh_c * o * (1 - o),
        ],
        2,
    )

    def step(factors: Sequence[Any], states: Sequence[Any]) -> tuple[Any, list[Any]]:
        slope, through_c, f = factors
        d_h, d_c = states
        d_c = d_c + d_h * through_c
        d_z = tf.concat([d_c, d_c, d_c, d_h], 1) * slope
        return d_z, [tf.matmul(d_z, recurrent_kernel), d_c * f]

    return [slopes, o * (1 - tanh_c * tanh_c), f], step


def _gru_back(
    h_before: Any, _states: Sequence[Any], gates: Any, q: Any, recurrent_kernel: Any
) -> tuple[list[Any], Callable[..., Any]]:
    r, z, candidate = tf.split(gates, 3, axis=2)
    factors = [
        (1 - z) * (1 - candidate * candidate),
        q * r * (1 - r),
        (h_before - candidate) * z * (1 - z),
        r,
        z,
    ]

    def step(factors: Sequence[Any], states: Sequence[Any]) -> tuple[Any, list[Any]]:
        to_candidate, to_reset, to_update, r, z = factors
        (d_h,) = states
        d_candidate = d_h * to_candidate
        d_reset, d_update = d_candidate * to_reset, d_h * to_update
        d_product = tf.concat([d_reset, d_update, d_candidate * r], 1)
        d_gates = tf.concat([d_reset, d_update, d_candidate], 1)
        return d_gates, [d_h * z + tf.matmul(d_product, recurrent_kernel)]

    return factors, step


# Both


def _loop(time_steps: Any, for_cpu: bool, body: Callable[..., tuple[Any, Any]], arrays: Any, states: Any) -> Any:
    """`body` for time 0 to time_steps - 1.

    There is no other condition than the time, so that XLA knows how many iterations there will be: without that, a GPU
    stops after each to ask.
    """
    several = STEPS_ON_GPU if not for_cpu and isinstance(time_steps, int) else 1
    left = time_steps % several if several > 1 else 0

    def iteration(time: Any, arrays: Any, states: Any) -> tuple[Any, ...]:
        for step in range(several):
            arrays, states = body(time + step, arrays, states)
        return time + several, arrays, states

    start = (tf.constant(0), arrays, states)
    end = time_steps - left
    _, arrays, states = tf.while_loop(lambda time, *_: time < end, iteration, start, parallel_iterations=32)
    for step in range(left):
        arrays, states = body(tf.constant(end + step), arrays, states)
    return arrays, states


def _length(time_major: Any) -> Any:
    """Its number of steps, as a number where it is known."""
    return time_major.shape[0] if time_major.shape[0] is not None else tf.shape(time_major)[0]


def _steps(mask: Any | None, time_steps: Any) -> Any | None:
    """The mask (B, T) as an array of steps (B, 1)."""
    if mask is None:
        return None
    return tf.TensorArray(tf.bool, size=time_steps).unstack(tf.transpose(mask)[:, :, tf.newaxis])


_STATES = {"lstm": 2, "gru": 1}
_STEPS: dict[str, Callable[..., Callable[..., Any]]] = {"lstm": _lstm_step, "gru": _gru_step}
_BACK: dict[str, Callable[..., tuple[list[Any], Callable[..., Any]]]] = {"lstm": _lstm_back, "gru": _gru_back}
