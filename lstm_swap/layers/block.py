"""The LSTM as one CPU op of TensorFlow, BlockLSTMV2: forward only, small batches, no compilation.

The op takes the gates in columns, i f c' o, and the input matrix above the recurrent one (the older BlockLSTM:
i c' f o; tensorflow/core/kernels/rnn/lstm_ops.h, GateLayout). The gradient that TensorFlow registers for it calls that
of the older op, whose gates lie in another order, so none is taken through it (`kernels` runs the layer again).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

DTYPES = ("float32", "float16")


def run(
    mode: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    mask: Any | None,
    return_sequences: bool,
    is_training: bool,
) -> list[Any]:
    """Arguments and results of `portable.run`; LSTM without a mask, not for training."""
    assert mode == "lstm" and mask is None and not is_training
    kernel, recurrent_kernel, bias = weights
    h, c = states
    peepholes = tf.zeros((recurrent_kernel.shape[1],), x.dtype)
    _, cells, _, _, _, _, outputs = tf.raw_ops.BlockLSTMV2(
        seq_len_max=tf.shape(x, out_type=tf.int64)[1],
        x=tf.transpose(x, (1, 0, 2)),
        cs_prev=c,
        h_prev=h,
        w=tf.transpose(tf.concat([kernel, recurrent_kernel], 1)),
        wci=peepholes,
        wcf=peepholes,
        wco=peepholes,
        b=bias,
        cell_clip=0.0,
        use_peephole=False,
    )
    last = [outputs[-1], cells[-1]]
    return [tf.transpose(outputs, (1, 0, 2)), *last] if return_sequences else last
