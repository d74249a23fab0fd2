"""Stacks of standard layers, the oracle for fused layers with `num_layers` and `bidirectional`.

Each layer is a `keras.layers.LSTM` or `GRU` with `use_cudnn=False`, in a `keras.layers.Bidirectional` where it runs
both ways; here they are only called one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.fused_grid import FEATURES, FUSED, ROWS, STANDARD, STEPS, UNITS, all_fused_arrays, flat, randomize


class Stack:
    """Standard layers one after the other, with the arguments and results of one fused layer."""

    def __init__(
        self,
        kind: str,
        num_layers: int = 1,
        bidirectional: bool = False,
        merge_mode: str | None = "concat",
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        zero_output_for_mask: bool = False,
        **arguments: Any,
    ) -> None:
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.directions = 2 if bidirectional else 1
        self.states_of_one = (2 if kind == "lstm" else 1) * self.directions
        self.layers = []
        for index in range(num_layers):
            last = index == num_layers - 1
            layer = STANDARD[kind](
                UNITS,
                use_cudnn=False,
                return_sequences=return_sequences or not last,
                return_state=return_state,
                go_backwards=go_backwards and index == 0,
                zero_output_for_mask=zero_output_for_mask,
                **arguments,
            )
            if bidirectional:
                mode = merge_mode if last else "concat"
                layer = keras.layers.Bidirectional(layer, merge_mode=mode, dtype=arguments.get("dtype"))
            self.layers.append(layer)

    def build(self, shape: Sequence[int | None]) -> None:
        for layer in self.layers:
            layer.build(shape)
            shape = (*shape[:2], UNITS * self.directions)

    def __call__(self, x: Any, initial_state: Any = None, mask: Any = None, training: bool = False) -> Any:
        states: list[Any] = []
        output: list[Any] = [x]
        kept = self.states_of_one if self.return_state else 0
        for index, layer in enumerate(self.layers):
            arguments = {}
            if initial_state is not None:
                own = list(initial_state[index * self.states_of_one : (index + 1) * self.states_of_one])
                arguments["initial_state"] = own
            if index == 1 and self.go_backwards and mask is not None:
                mask = mask[:, ::-1]  # Keras leaves it as it was, to the next layer's confusion
            results = flat(layer(output[0], mask=mask, training=training, **arguments))
            output = results[: len(results) - kept]
            states += results[len(output) :]
        results = [*output, *states]
        return results if len(results) > 1 else results[0]

    @property
    def compute_dtype(self) -> str:
        return str(self.layers[0].compute_dtype)

    @property
    def trainable_variables(self) -> list[Any]:
        return [variable for layer in self.layers for variable in layer.trainable_variables]

    def get_weights(self) -> list[np.ndarray]:
        return [array for layer in self.layers for array in layer.get_weights()]


class Inferring:
    """A layer with training=False whatever it is told, for gradients of eager inference."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.compute_dtype = layer.compute_dtype
        self.trainable_variables = layer.trainable_variables

    def __call__(self, *args: Any, training: bool, **kwargs: Any) -> Any:
        return self.layer(*args, training=False, **kwargs)


def stack_twins(
    kind: str, *, kernels: dict[str, str] | None = None, rows: int = ROWS, features: int = FEATURES, **arguments: Any
) -> tuple[Stack, Any]:
    """A stack of standard layers and one fused layer, built, with the same random weights."""
    standard = Stack(kind, **arguments)
    fused = FUSED[kind](UNITS, kernels=kernels, **arguments)
    share_weights(kind, standard, fused, (rows, STEPS, features))
    return standard, fused


def share_weights(kind: str, standard: Any, fused: Any, shape: Sequence[int | None]) -> None:
    """Build both and give both the same random weights."""
    standard.build(shape)
    fused.build(shape)
    for seed, layer in enumerate(standard.layers):
        randomize(layer, seed)
    fused.set_weights(all_fused_arrays(kind, standard.get_weights()))


def sequences(dtype: str = "float32", rows: int = ROWS, steps: int = STEPS, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=(rows, steps, FEATURES)), dtype)


def states_for(layer: Any, dtype: str = "float32", rows: int = ROWS) -> list[tf.Tensor]:
    """A random state of each kind that the fused layer has."""
    rng = np.random.default_rng(7)
    return [tf.constant(rng.normal(0, 0.5, (rows, UNITS)), dtype) for _ in layer.state_size]
