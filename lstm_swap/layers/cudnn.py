"""The recurrence as one call of cuDNN, through TensorFlow's op CudnnRNNV3 (the only one that works with cuDNN 9).

cuDNN takes all weights as one buffer: the input matrices of all gates, the recurrent matrices of all gates, the input
biases, the recurrent biases; matrices by rows, gates i f c o for LSTM and r z h for GRU (cudnnGetRNNWeightParams:
linLayerID 0 to 3 and 4 to 7, 0 to 2 and 3 to 5). The fused layout is that order, so the buffer is one concat. A stack
of layers, and both directions, are one call too: the matrices of all layers and directions first, then all biases.
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

from lstm_swap.layers.network import ARRAYS, Network


def buffer(mode: str, weights: Sequence[Any]) -> Any:
    """cuDNN's weight buffer, a vector, from kernel (g u, n), recurrent_kernel (g u, u) and bias ((4u,) or (6u,)) of
    each layer and direction."""
    matrices, biases = [], []
    for kernel, recurrent_kernel, bias in zip(*(weights[i::ARRAYS] for i in range(ARRAYS)), strict=True):
        matrices += [tf.reshape(kernel, (-1,)), tf.reshape(recurrent_kernel, (-1,))]
        biases.append(bias)
        if mode == "lstm":  # the second set of biases; only the sum counts, and two that learn do so twice as fast
            biases.append(tf.zeros_like(bias))
    return tf.concat(matrices + biases, 0)


def run(network: Network, mask: Any | None, tensors: Sequence[Any], is_training: bool) -> list[Any]:
    """Run all layers and directions on the GPU in one call; arguments and result as in `network.layer_by_layer`.

    `is_training` makes cuDNN keep what the gradient needs. Without it there is no gradient.
    """
    x, states, weights = network.split(tensors)
    if mask is None:
        lengths = tf.fill(tf.shape(x)[:1], tf.shape(x)[1])
        outputs, *last = _call(network, x, states, weights, lengths, is_training)
        return [*outputs, *last] if network.return_sequences else last

    valid = tf.cast(mask, tf.int32)
    seen = tf.cumsum(valid, axis=1)  # (B, T): valid steps so far
    # Steps that do not count must not reach the gradient of x, whatever cuDNN leaves there.
    x = tf.where(mask[:, :, tf.newaxis], x, tf.zeros_like(x))
    order = tf.argsort(1 - valid, axis=1, stable=True)
    outputs, *last = _call(
        network,
        tf.gather(x, order, axis=1, batch_dims=1),
        states,
        weights,
        tf.maximum(seen[:, -1], 1),
        is_training,
    )
    any_valid = seen[:, -1:] > 0
    last = [tf.where(any_valid, after, before) for after, before in zip(last, states, strict=True)]
    if not network.return_sequences:
        return last
    # The step that was the k-th valid one, and those after it that do not count, show output k. Backward in time it is
    # those before it.
    places = [seen - 1, tf.minimum(seen - valid, seen[:, -1:] - 1)]
    expanded = [
        tf.gather(output, tf.maximum(place, 0), axis=1, batch_dims=1)
        for output, place in zip(outputs, places, strict=False)
    ]
    return [*expanded, *last]


def run_one(
    mode: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    mask: Any | None,
    return_sequences: bool,
    is_training: bool,
) -> list[Any]:
    """Run one layer in one direction; arguments and results as in `portable.run`."""
    return run(Network(mode, return_sequences), mask, [x, *states, *weights], is_training)


def _call(
    network: Network,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    lengths: Any,
    is_training: bool,
) -> list[Any]:
    """CudnnRNNV3 itself, batch-major: [outputs (B, T, u) of each direction], then all last states (B, u)."""
    if is_training and x.dtype == tf.bfloat16:
        # The op's gradient in bfloat16 is wrong (NaN, or numbers of any size; H200, cuDNN 9.19, TensorFlow 2.21), so
        # what will be differentiated runs in float32.
        x, *others = [tf.cast(tensor, tf.float32) for tensor in (x, *states, *weights)]
        outputs, *last = _call(network, x, others[: len(states)], others[len(states) :], lengths, is_training)
        return [[tf.cast(output, tf.bfloat16) for output in outputs], *(tf.cast(s, tf.bfloat16) for s in last)]
    h, c = states[:: network.state_count], states[1 :: network.state_count]
    outputs, h, c, _, _ = tf.raw_ops.CudnnRNNV3(
        input=x,
        input_h=_packed(h),
        input_c=_packed(c) if network.mode == "lstm" else tf.zeros((), x.dtype),
        params=buffer(network.mode, weights),
        sequence_lengths=lengths,
        rnn_mode=network.mode,
        direction="bidirectional" if network.bidirectional else "unidirectional",
        is_training=is_training,
        time_major=False,
    )
    units = states[0].shape[1]
    outputs.set_shape((*x.shape[:2], units * network.directions))
    kinds = [_unpacked(state, network.parts, units) for state in ([h, c] if network.mode == "lstm" else [h])]
    last = [state for part in zip(*kinds, strict=True) for state in part]
    for after, before in zip(last, states, strict=True):
        after.set_shape(before.shape)
    return [tf.split(outputs, 2, axis=2) if network.bidirectional else [outputs], *last]


def _packed(states: Sequence[Any]) -> Any:
    """States of all layers and directions as the op takes them.

    A batch-major call declares them (B, layers and directions, u), and reads the memory as (layers and directions, B,
    u) all the same (seen on an H200, TensorFlow 2.21).
    """
    if len(states) == 1:
        return states[0][:, tf.newaxis, :]
    together = tf.stack(states)
    return tf.reshape(together, (-1, len(states), states[0].shape[1]))


def _unpacked(packed: Any, parts: int, units: int) -> list[Any]:
    if parts == 1:
        return [tf.squeeze(packed, 1)]
    return tf.unstack(tf.reshape(packed, (parts, -1, units)))  # type: ignore[no-any-return]
