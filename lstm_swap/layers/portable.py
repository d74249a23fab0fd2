"""The recurrence as a loop of TensorFlow ops: runs on any device, under XLA, and has gradients of every order.

Arrays are in the fused layout: kernel (g u, n), recurrent_kernel (g u, u), bias, with g gates a unit. B is the batch,
T the time steps, n the features, u the units. The formulas are those of `keras.layers.LSTM` and of
`keras.layers.GRU(reset_after=True)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Product = Callable[[Any], Any]
Step = Callable[[Any, Sequence[Any]], list[Any]]

SMALL_BATCH = 8


def run(
    mode: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    mask: Any | None,
    return_sequences: bool,
    is_training: bool,
) -> list[Any]:
    """Run a layer over time.

    Args:
        mode: "lstm" or "gru".
        x: (B, T, n). Every floating dtype.
        states: [h, c] or [h], each (B, u).
        weights: kernel, recurrent_kernel, bias.
        mask: (B, T) bool; where False the states stay as they are. None: every step counts.
        return_sequences: also give h after each step.
        is_training: a gradient will be taken. The numbers are the same.

    Returns:
        [h after each step (B, T, u)] if return_sequences, then the last states, each (B, u).
    """
    kernel, recurrent_kernel, bias = weights
    if is_training:  # the gradient then needs no transposed matrix in its loop (measured: a quarter less time)
        recurrent: Product = functools.partial(tf.matmul, b=recurrent_kernel, transpose_b=True)
    else:
        recurrent = functools.partial(tf.matmul, b=tf.transpose(recurrent_kernel))
    input_bias, step = PARTS[mode](recurrent, bias)
    steps = tf.transpose(x, (1, 0, 2))
    by_step = not is_training and not small_batch(x)
    if not by_step:
        steps = project(steps, kernel, input_bias)
    turned = tf.transpose(kernel) if by_step else None
    time_steps = x.shape[1] if x.shape[1] is not None else tf.shape(x)[1]
    inputs = tf.TensorArray(x.dtype, size=time_steps).unstack(steps)
    valid = None
    if mask is not None:
        valid = tf.TensorArray(tf.bool, size=time_steps).unstack(tf.transpose(mask)[:, :, tf.newaxis])
    # XLA cannot differentiate a loop that carries an array of no elements, so only what is asked for is carried.
    collected = []
    if return_sequences:
        collected = [tf.TensorArray(x.dtype, size=time_steps, element_shape=states[0].shape)]

    def body(time: Any, collected: Any, old: Any) -> tuple[Any, ...]:
        now = inputs.read(time)
        if by_step:
            now = tf.nn.bias_add(tf.matmul(now, turned), input_bias)
        new = step(now, old)
        if valid is not None:
            keep = valid.read(time)
            new = [tf.where(keep, after, before) for after, before in zip(new, old, strict=True)]
        for after, before in zip(new, old, strict=True):
            after.set_shape(before.shape)
        return time + 1, [array.write(time, new[0]) for array in collected], new

    _, collected, last = tf.while_loop(
        lambda time, *_: time < time_steps,
        body,
        (tf.constant(0), collected, list(states)),
        maximum_iterations=time_steps,  # XLA must know how much the gradient will have to remember
        parallel_iterations=32,
    )
    return [*(tf.transpose(array.stack(), (1, 0, 2)) for array in collected), *last]


def project(x: Any, kernel: Any, bias: Any) -> Any:
    """The input's share of all gates for all steps as one matrix product: (T, B, n) to (T, B, g u)."""
    shape = tf.shape(x)
    flat = tf.matmul(tf.reshape(x, (-1, kernel.shape[1])), kernel, transpose_b=True)
    return tf.reshape(tf.nn.bias_add(flat, bias), (shape[0], shape[1], kernel.shape[0]))


def small_batch(x: Any) -> bool:
    """Is it known to be small? Then one product for all steps is faster than one a step (measured on a CPU)."""
    return x.shape[0] is not None and x.shape[0] <= SMALL_BATCH


def _lstm(recurrent: Product, bias: Any) -> tuple[Any, Step]:
    def step(projected: Any, states: Sequence[Any]) -> list[Any]:
        h, c = states
        i, f, g, o = tf.split(projected + recurrent(h), 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return [tf.sigmoid(o) * tf.tanh(c), c]

    return bias, step


def _gru(recurrent: Product, bias: Any) -> tuple[Any, Step]:
    input_bias, recurrent_bias = tf.split(bias, 2)

    def step(projected: Any, states: Sequence[Any]) -> list[Any]:
        (h,) = states
        input_r, input_z, input_h = tf.split(projected, 3, axis=1)
        recurrent_r, recurrent_z, recurrent_h = tf.split(tf.nn.bias_add(recurrent(h), recurrent_bias), 3, axis=1)
        z = tf.sigmoid(input_z + recurrent_z)
        candidate = tf.tanh(input_h + tf.sigmoid(input_r + recurrent_r) * recurrent_h)
        return [z * h + (1 - z) * candidate]

    return input_bias, step


PARTS: dict[str, Callable[..., tuple[Any, Step]]] = {"lstm": _lstm, "gru": _gru}
