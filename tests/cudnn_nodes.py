"""cuDNN nodes for tests: as TensorFlow ops, and as plain Keras layers with the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.gpu_shaped import Arrays, pack

BATCH, TIME, FEATURES, UNITS = 3, 5, 4, 3
LENGTHS = np.array([5, 2, 4], dtype=np.int32)


@dataclass
class Node:
    """A cuDNN node, and Keras layers with the same numbers."""

    op: str = "CudnnRNNV3"
    mode: str = "lstm"
    layers: int = 1
    directions: int = 1
    time_major: bool = False
    dtype: str = "float32"
    input_mode: str = "linear_input"
    is_training: bool = True

    @property
    def features(self) -> int:
        return UNITS if self.skips else FEATURES

    @property
    def skips(self) -> bool:
        return self.input_mode != "linear_input"

    def weights(self) -> list[list[np.ndarray[Any, Any]]]:
        """Keras's arrays of each layer and direction, float64."""
        rng = np.random.default_rng(11)
        gates = {"lstm": 4, "gru": 3}.get(self.mode, 1)
        found = []
        for layer in range(self.layers):
            width = self.features if layer == 0 else self.directions * UNITS
            for _ in range(self.directions):
                kernel = rng.uniform(-0.7, 0.7, (width, gates * UNITS))
                if layer == 0 and self.skips:  # every gate gets the input itself
                    kernel = np.tile(np.eye(UNITS), (1, gates))
                bias = rng.uniform(-0.7, 0.7, (2, gates * UNITS) if self.mode == "gru" else (gates * UNITS,))
                found.append([kernel, rng.uniform(-0.7, 0.7, (UNITS, gates * UNITS)), bias])
        return found

    def inputs(self) -> Arrays:
        rng = np.random.default_rng(12)
        x, state = (BATCH, TIME, self.features), (BATCH, self.layers * self.directions, UNITS)
        arrays = {"x": rng.uniform(-1, 1, x), "h": rng.uniform(-1, 1, state), "c": rng.uniform(-1, 1, state)}
        if self.time_major:
            arrays = {name: array.transpose(1, 0, 2) for name, array in arrays.items()}
        return {
            name: array.astype("float32" if self.dtype == "bfloat16" else self.dtype) for name, array in arrays.items()
        }

    def signature(self) -> Any:
        """A tf.function of x, h and c that runs the node."""
        params = tf.constant(pack(self.mode, self.weights(), self.skips), self.dtype)
        outer = "float32" if self.dtype == "bfloat16" else self.dtype
        batch_axis = 1 if self.time_major else 0
        shapes = {"x": [None, None, self.features], "h": [None, None, UNITS]}
        shapes["h"][1 - batch_axis] = self.layers * self.directions

        def run(x: Any, h: Any, c: Any) -> dict[str, Any]:
            given = {"input": x, "input_h": h, "input_c": c if self.mode == "lstm" else tf.zeros(())}
            given = {name: tf.cast(value, self.dtype) for name, value in given.items()}
            given |= {"params": params, "rnn_mode": self.mode, "input_mode": self.input_mode}
            given |= {"direction": ("unidirectional", "bidirectional")[self.directions - 1]}
            if self.op == "CudnnRNNV3":
                rows = tf.gather(tf.constant(LENGTHS), tf.range(tf.shape(x)[batch_axis]))
                steps = tf.shape(x)[1 - batch_axis]
                given |= {"sequence_lengths": tf.minimum(rows, steps), "time_major": self.time_major}
            result = getattr(tf.raw_ops, self.op)(**given, is_training=self.is_training)
            named = {"output": result.output, "output_h": result.output_h, "output_c": result.output_c}
            return {name: tf.cast(value, outer) for name, value in named.items()}

        specs = [tf.TensorSpec(shapes[name[:1] if name == "x" else "h"], outer, name=name) for name in ("x", "h", "c")]
        return tf.function(run, input_signature=specs, autograph=False)

    def expected(self) -> list[np.ndarray[Any, Any]]:
        """output, output_h and output_c of plain Keras layers in float64, each row alone and cut to its length."""
        inputs = {k: v.astype(np.float64) for k, v in self.inputs().items()}
        if self.time_major:
            inputs = {name: array.transpose(1, 0, 2) for name, array in inputs.items()}
        else:  # cuDNN reads the memory of (batch, stacked, units) as (stacked, batch, units)
            for name in "hc":
                batch, stacked, units = inputs[name].shape
                inputs[name] = inputs[name].reshape(stacked, batch, units).transpose(1, 0, 2)
        lengths = LENGTHS if self.op == "CudnnRNNV3" else np.full(BATCH, TIME)
        output = np.zeros((BATCH, TIME, self.directions * UNITS))
        h, c = np.zeros_like(inputs["h"]), np.zeros_like(inputs["c"])
        cells = [self.keras_layer(place % self.directions == 1) for place in range(self.layers * self.directions)]
        for row, length in enumerate(lengths):
            sequence = inputs["x"][row : row + 1, :length]
            for layer in range(self.layers):
                halves = []
                for direction in range(self.directions):
                    place = layer * self.directions + direction
                    first = [inputs[name][row : row + 1, place] for name in "hc"][: 2 if self.mode == "lstm" else 1]
                    cell = cells[place]
                    if not cell.built:
                        cell.build((1, None, sequence.shape[-1]))
                        cell.set_weights(self.weights()[place])
                    half, *last = cell(tf.constant(sequence), initial_state=[tf.constant(s) for s in first])
                    halves.append(half.numpy()[:, ::-1] if direction else half.numpy())
                    h[row, place], c[row, place] = last[0].numpy()[0], last[-1].numpy()[0]
                sequence = np.concatenate(halves, axis=-1)
            output[row, :length] = sequence
        results = [output, h, c]
        if self.time_major:
            results = [array.transpose(1, 0, 2) for array in results]
        else:
            results[1:] = [array.transpose(1, 0, 2).reshape(array.shape) for array in results[1:]]
        return results if self.mode == "lstm" else [*results[:2], np.zeros(())]

    def keras_layer(self, backward: bool) -> Any:
        options = {"return_sequences": True, "return_state": True, "go_backwards": backward, "dtype": "float64"}
        if self.mode == "lstm":
            return keras.layers.LSTM(UNITS, **options)
        if self.mode == "gru":
            return keras.layers.GRU(UNITS, **options)
        return keras.layers.SimpleRNN(UNITS, activation=self.mode.removeprefix("rnn_"), **options)


NODES = {
    "lstm": Node(),
    "lstm_2_layers_both_ways": Node(layers=2, directions=2),
    "lstm_time_major_float64": Node(time_major=True, dtype="float64", is_training=False),
    "lstm_bfloat16": Node(dtype="bfloat16"),
    "lstm_skip_input": Node(input_mode="skip_input"),
    "lstm_auto_select_2_layers": Node(input_mode="auto_select", layers=2),
    "gru_2_layers_both_ways_time_major": Node(mode="gru", layers=2, directions=2, time_major=True),
    "gru_float16": Node(mode="gru", dtype="float16"),
    "gru_skip_input": Node(mode="gru", input_mode="skip_input"),
    "tanh_3_layers": Node(mode="rnn_tanh", layers=3),
    "relu_both_ways": Node(mode="rnn_relu", directions=2, time_major=True),
    "v1_lstm_2_layers_both_ways": Node(op="CudnnRNN", layers=2, directions=2, time_major=True),
    "v2_gru": Node(op="CudnnRNNV2", mode="gru", time_major=True, is_training=False),
}


def cudnn_lstm(x: Any, params: Any) -> Any:
    """A batch-major LSTM over x (batch, TIME, UNITS): the sequence."""
    batch = tf.shape(x)[0]
    state = tf.zeros([batch, 1, UNITS])
    lengths = tf.fill([batch], TIME)
    return tf.raw_ops.CudnnRNNV3(
        input=x, input_h=state, input_c=state, params=params, sequence_lengths=lengths, time_major=False
    ).output
