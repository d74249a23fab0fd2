"""The computation of a cuDNN node, written with TensorFlow ops that run on any device.

Nothing is assumed about how the parameter buffer came about: it is taken apart in the graph. For each layer and
direction (layer 0 forward, layer 0 backward, layer 1 forward, ...) it holds the input matrices of all gates, (units,
inputs) each, then the state matrices, (units, units) each; after the matrices of all layers come the biases, for each
layer and direction first those of the input, then those of the state (NVIDIA, cuDNN API, cudnnGetRNNWeightParams and
cudnnRNNMode_t)::

    lstm   i f g o   c' = sigm(f) c + sigm(i) tanh(g)    h' = sigm(o) tanh(c'),  i = W_i x + bW_i + R_i h + bR_i, ...
    gru    r z n     r, z likewise    n = tanh(W_n x + bW_n + sigm(r) (R_n h + bR_n))   h' = (1 - sigm(z)) n + sigm(z) h
    rnn              h' = tanh or relu (W x + bW + R h + bR)

In a batch-major node the states have the shape (batch, layers x directions, units), but TensorFlow hands their memory
to cuDNN as it is, and cuDNN reads (layers x directions, batch, units) (tensorflow/core/kernels/cudnn_rnn_ops.cc
`DoForwardImpl`; seen on an H200). So they are reshaped, not transposed; with one layer and direction it is the same.

Steps past a row's length leave its states alone and give zeros; a backward direction starts at a row's last valid step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lstm_swap.saved_models.node import GATES, RnnNode


def run_portable(
    node: RnnNode, x: Any, input_h: Any, input_c: Any, params: Any, lengths: Any | None = None
) -> tuple[Any, ...]:
    """The outputs of `node` for its inputs, as symbolic or eager tensors.

    float16 and bfloat16 are computed in float32, as cuDNN does, and rounded at the end.

    Returns:
        output, output_h, output_c, reserve_space and, for V2 and V3, host_reserved. The last two are empty.
    """
    import tensorflow as tf

    dtype = x.dtype
    inner = tf.float32 if node.dtype in {"float16", "bfloat16"} else dtype
    x, input_h, params = (tf.cast(tensor, inner) for tensor in (x, input_h, params))
    states = [input_h] + ([tf.cast(input_c, inner)] if node.mode == "lstm" else [])
    stacked = node.layers * node.directions
    if not node.time_major:
        x, states = tf.transpose(x, (1, 0, 2)), [_as_cudnn_reads(state) for state in states]
    weights = _unpack(node, params, _size(states[0], 2), _size(x, 2))
    by_layer = list(zip(*(tf.unstack(state, num=stacked, axis=0) for state in states), strict=True))
    last: list[Sequence[Any]] = []
    for layer in range(node.layers):
        halves = []
        for direction in range(node.directions):
            index = layer * node.directions + direction
            backward = direction == 1
            inputs = _reverse(x, lengths) if backward else x
            sequence, final = _run_layer(node.mode, inputs, by_layer[index], weights[index], lengths)
            halves.append(_reverse(sequence, lengths) if backward else sequence)
            last.append(final)
        x = tf.concat(halves, axis=-1) if len(halves) > 1 else halves[0]
    states = [tf.stack(parts, axis=0) for parts in zip(*last, strict=True)]
    if not node.time_major:
        x, states = tf.transpose(x, (1, 0, 2)), [_as_cudnn_reads(state) for state in states]
    output_c = states[1] if node.mode == "lstm" else tf.zeros((), inner)
    results = [tf.cast(tensor, dtype) for tensor in (x, states[0], output_c)]
    results.append(tf.zeros((0,), dtype))
    if node.op != "CudnnRNN":
        results.append(tf.zeros((0,), tf.int8))
    return tuple(results)


def _as_cudnn_reads(state: Any) -> Any:
    """(a, b, units) as (b, a, units): the same memory under another shape, not a transpose."""
    import tensorflow as tf

    shape = tf.shape(state)
    result = tf.reshape(state, tf.stack([shape[1], shape[0], shape[2]]))
    result.set_shape((state.shape[1], state.shape[0], state.shape[2]))
    return result


def _unpack(node: RnnNode, params: Any, units: Any, features: Any) -> list[tuple[Any, Any, Any, Any]]:
    """Input matrix or None (skip_input), state matrix, input bias and state bias of each layer and direction.

    The matrices of all gates lie one below the other: (gates x units, inputs). TensorFlow's SplitV raises where the
    buffer has another length.
    """
    import tensorflow as tf

    rows = GATES[node.mode] * units
    matrices: list[tuple[Any, Any]] = []
    for layer in range(node.layers):
        width = features if layer == 0 else node.directions * units
        for _ in range(node.directions):
            if not (layer == 0 and node.skip_input):
                matrices.append((rows, width))
            matrices.append((rows, units))
    biases = [rows] * (2 * node.layers * node.directions)
    sizes = [height * width for height, width in matrices] + biases
    parts = tf.split(params, sizes if all(isinstance(size, int) for size in sizes) else tf.stack(sizes), num=len(sizes))
    shaped = [tf.reshape(part, shape) for part, shape in zip(parts, matrices, strict=False)]
    found: list[tuple[Any, Any, Any, Any]] = []
    position = 0
    for index in range(node.layers * node.directions):
        kernel = None
        if index >= node.directions or not node.skip_input:
            kernel = shaped[position]
            position += 1
        bias = len(matrices) + 2 * index
        found.append((kernel, shaped[position], parts[bias], parts[bias + 1]))
        position += 1
    return found


def _run_layer(
    mode: str, x: Any, states: Sequence[Any], weights: tuple[Any, Any, Any, Any], lengths: Any | None
) -> tuple[Any, list[Any]]:
    """One layer in one direction: x (time, batch, inputs), states (batch, units) each."""
    import tensorflow as tf

    kernel, recurrent, bias, recurrent_bias = weights
    time = _size(x, 0)
    projected = _project(x, kernel, GATES[mode]) + bias
    if mode != "gru":  # in a GRU the reset gate stands between the two biases of n
        projected += recurrent_bias
    transposed = tf.transpose(recurrent)
    # As a tf.TensorArray does it, but the list's shape is an op: so that TensorFlow Lite, which needs to know it, can
    # compute it once the batch is fixed.
    element_shape = tf.shape(states[0])
    outputs = tf.raw_ops.TensorListReserve(element_shape=element_shape, num_elements=time, element_dtype=x.dtype)

    def step(t: Any, outputs: Any, *old: Any) -> tuple[Any, ...]:
        new = _cell(mode, tf.gather(projected, t), old, transposed, recurrent_bias)
        output = new[0]
        if lengths is not None:
            valid = tf.expand_dims(t < lengths, 1)
            output = tf.where(valid, output, tf.zeros_like(output))
            new = [tf.where(valid, after, before) for after, before in zip(new, old, strict=True)]
        for after, before in zip(new, old, strict=True):
            after.set_shape(before.shape)
        return t + 1, tf.raw_ops.TensorListSetItem(input_handle=outputs, index=t, item=output), *new

    _, outputs, *last = tf.while_loop(
        lambda t, *_: t < time, step, (tf.constant(0), outputs, *states), maximum_iterations=time
    )
    sequence = tf.raw_ops.TensorListStack(
        input_handle=outputs,
        element_shape=element_shape,
        element_dtype=x.dtype,
        num_elements=time if isinstance(time, int) else -1,
    )
    sequence.set_shape([x.shape[0] if x.shape.rank else None, *states[0].shape])
    return sequence, last


def _project(x: Any, kernel: Any | None, gates: int) -> Any:
    """W x of every step and gate at once: (time, batch, gates x units). Without a matrix every gate gets x itself."""
    import tensorflow as tf

    if kernel is None:
        return tf.concat([x] * gates, axis=-1)
    flat = tf.matmul(tf.reshape(x, (-1, _size(x, 2))), kernel, transpose_b=True)
    return tf.reshape(flat, (_size(x, 0), _size(x, 1), _size(kernel, 0)))


def _cell(mode: str, projected: Any, states: Sequence[Any], recurrent: Any, recurrent_bias: Any) -> list[Any]:
    import tensorflow as tf

    h = states[0]
    from_state = tf.matmul(h, recurrent)
    if mode == "lstm":
        i, f, g, o = tf.split(projected + from_state, 4, axis=-1)
        c = tf.sigmoid(f) * states[1] + tf.sigmoid(i) * tf.tanh(g)
        return [tf.sigmoid(o) * tf.tanh(c), c]
    if mode == "gru":
        x_r, x_z, x_n = tf.split(projected, 3, axis=-1)
        h_r, h_z, h_n = tf.split(from_state + recurrent_bias, 3, axis=-1)
        z = tf.sigmoid(x_z + h_z)
        n = tf.tanh(x_n + tf.sigmoid(x_r + h_r) * h_n)
        return [(1 - z) * n + z * h]
    return [(tf.tanh if mode == "rnn_tanh" else tf.nn.relu)(projected + from_state)]


def _reverse(x: Any, lengths: Any | None) -> Any:
    """Turn time round, within each row's length where there are lengths. Twice is nothing."""
    import tensorflow as tf

    if lengths is None:
        return tf.reverse(x, axis=[0])
    return tf.reverse_sequence(x, lengths, seq_axis=0, batch_axis=1)


def _size(tensor: Any, axis: int) -> Any:
    """A dimension, as an int where the graph knows it."""
    import tensorflow as tf

    known = tensor.shape[axis] if tensor.shape.rank is not None else None
    return tf.shape(tensor)[axis] if known is None else int(known)
