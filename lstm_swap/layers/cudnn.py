"""The recurrence as one call of cuDNN, through TensorFlow's op CudnnRNNV3 (the only one that works with cuDNN 9).

cuDNN takes all weights as one buffer: the input matrices of all gates, the recurrent matrices of all gates, the input
biases, the recurrent biases; matrices by rows, gates i f c o for LSTM and r z h for GRU (cudnnGetRNNWeightParams:
linLayerID 0 to 3 and 4 to 7, 0 to 2 and 3 to 5). The fused layout is that order, so the buffer is one concat.
cuDNN's formulas, b_W the input bias and b_R the recurrent one (NVIDIA cuDNN API reference, cudnnRNNMode_t):

    LSTM  i, f, o = sigmoid(W x + R h + b_W + b_R)    c' = tanh(W x + R h + b_W + b_R)
          c = f * c + i * c'                           h = o * tanh(c)
    GRU   r, z = sigmoid(W x + R h + b_W + b_R)       h' = tanh(W x + b_W + r * (R h + b_R))
          h = (1 - z) * h' + z * h

A mask reaches cuDNN as sequence lengths, which is all it knows: the valid steps of each row are moved to the left,
run, and put back where they were. So every mask is right padding to cuDNN, also a row without any valid step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def buffer(mode: str, weights: Sequence[Any]) -> Any:
    """cuDNN's weight buffer, a vector, from kernel (g u, n), recurrent_kernel (g u, u) and bias ((4u,) or (6u,))."""
    kernel, recurrent_kernel, bias = weights
    parts = [tf.reshape(kernel, (-1,)), tf.reshape(recurrent_kernel, (-1,)), bias]
    if mode == "lstm":  # the second set of biases; only the sum counts, and two that learn would learn twice as fast
        parts.append(tf.zeros_like(bias))
    return tf.concat(parts, 0)


def run(
    mode: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    mask: Any | None,
    return_sequences: bool,
    is_training: bool,
) -> list[Any]:
    """Run a layer over time on the GPU; arguments and result as in `portable.run`.

    `is_training` makes cuDNN keep what the gradient needs. Without it there is no gradient.
    """
    if mask is None:
        lengths = tf.fill(tf.shape(x)[:1], tf.shape(x)[1])
        outputs, *last = _call(mode, x, states, weights, lengths, is_training)
        return [outputs, *last] if return_sequences else last

    valid = tf.cast(mask, tf.int32)
    seen = tf.cumsum(valid, axis=1)  # (B, T): valid steps so far
    # Steps that do not count must not reach the gradient of x, whatever cuDNN leaves there.
    x = tf.where(mask[:, :, tf.newaxis], x, tf.zeros_like(x))
    order = tf.argsort(1 - valid, axis=1, stable=True)
    outputs, *last = _call(
        mode,
        tf.gather(x, order, axis=1, batch_dims=1),
        states,
        weights,
        tf.maximum(seen[:, -1], 1),
        is_training,
    )
    any_valid = seen[:, -1:] > 0
    last = [tf.where(any_valid, after, before) for after, before in zip(last, states, strict=True)]
    if not return_sequences:
        return last
    # The step that was the k-th valid one, and those after it that do not count, show output k.
    outputs = tf.gather(outputs, tf.maximum(seen - 1, 0), axis=1, batch_dims=1)
    return [outputs, *last]


def _call(
    mode: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    lengths: Any,
    is_training: bool,
) -> list[Any]:
    """CudnnRNNV3 itself, batch-major, one layer, one direction: outputs (B, T, u) and the last states (B, u)."""
    if is_training and x.dtype == tf.bfloat16:
        # The op's gradient in bfloat16 is wrong (NaN, or numbers of any size; H200, cuDNN 9.19, TensorFlow 2.21), so
        # what will be differentiated runs in float32.
        as_float32 = [tf.cast(tensor, tf.float32) for tensor in (x, *states, *weights)]
        wide = (as_float32[0], as_float32[1 : 1 + len(states)], as_float32[1 + len(states) :])
        return [tf.cast(result, tf.bfloat16) for result in _call(mode, *wide, lengths, is_training)]
    outputs, h, c, _, _ = tf.raw_ops.CudnnRNNV3(
        input=x,
        input_h=states[0][:, tf.newaxis, :],
        input_c=states[1][:, tf.newaxis, :] if mode == "lstm" else tf.zeros((), x.dtype),
        params=buffer(mode, weights),
        sequence_lengths=lengths,
        rnn_mode=mode,
        is_training=is_training,
        time_major=False,
    )
    outputs.set_shape((*x.shape[:2], states[0].shape[1]))
    last = [tf.squeeze(state, 1) for state in ([h, c] if mode == "lstm" else [h])]
    for state in last:
        state.set_shape(states[0].shape)
    return [outputs, *last]
