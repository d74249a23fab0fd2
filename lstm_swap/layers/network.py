"""What a fused layer computes, and the kernels that run one layer and one direction, put together to all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

#: One layer, one direction: (mode, x, states, weights, mask, return_sequences, is_training) -> results; see
#: `portable.run`.
Single = Callable[..., list[Any]]

#: Arrays of one layer and direction: kernel, recurrent_kernel, bias.
ARRAYS = 3


@dataclass(frozen=True)
class Network:
    """A stack of equal recurrent layers.

    States and weights of all layers and directions come in one list, layer by layer, forward before backward: the
    order in which a stack of `keras.layers.Bidirectional` holds its weights.

    Attributes:
        mode: "lstm" or "gru".
        return_sequences: the output of every step, not of the last one.
        num_layers: each of the others reads the output of the one before.
        bidirectional: each layer also runs from the last step to the first; the next one reads both outputs side by
            side.
    """

    mode: str
    return_sequences: bool
    num_layers: int = 1
    bidirectional: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def state_count(self) -> int:
        """States of one layer and direction: h and c, or h."""
        return 2 if self.mode == "lstm" else 1

    @property
    def parts(self) -> int:
        """Layers times directions."""
        return self.num_layers * self.directions

    def split(self, tensors: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
        """x, states and weights from one list."""
        cut = 1 + self.parts * self.state_count
        return tensors[0], list(tensors[1:cut]), list(tensors[cut : cut + self.parts * ARRAYS])

    def outputs(self, results: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results of a kernel as the outputs of the last layer, one a direction, and the last states of all."""
        if self.return_sequences:
            return list(results[: self.directions]), list(results[self.directions :])
        last_layer = results[(self.num_layers - 1) * self.directions * self.state_count :]
        return list(last_layer[:: self.state_count]), list(results)


def layer_by_layer(
    single: Single, network: Network, mask: Any | None, tensors: Sequence[Any], is_training: bool
) -> list[Any]:
    """Run a network with a kernel for one layer and one direction.

    Args:
        tensors: x (B, T, n), all states (B, u), all weights.
        mask: (B, T) bool, or None.

    Returns:
        [the last layer's outputs (B, T, u), one a direction, in the order of x] if return_sequences, then all states.
    """
    x, states, weights = network.split(tensors)
    outputs: list[Any] = []
    last: list[Any] = []
    for layer in range(network.num_layers):
        sequences = network.return_sequences or layer < network.num_layers - 1
        outputs = []
        for direction in range(network.directions):
            part = layer * network.directions + direction
            backward = direction == 1
            results = single(
                network.mode,
                tf.reverse(x, (1,)) if backward else x,
                states[part * network.state_count : (part + 1) * network.state_count],
                weights[part * ARRAYS : (part + 1) * ARRAYS],
                tf.reverse(mask, (1,)) if backward and mask is not None else mask,
                sequences,
                is_training,
            )
            if sequences:
                outputs.append(tf.reverse(results[0], (1,)) if backward else results[0])
            last += results[-network.state_count :]
        if sequences:
            x = tf.concat(outputs, 2) if network.bidirectional else outputs[0]
    return [*outputs, *last]


def in_parts(
    single: Single, parts: int, network: Network, mask: Any | None, tensors: Sequence[Any], is_training: bool
) -> list[Any]:
    """`layer_by_layer` for equal shares of the batch, which TensorFlow runs side by side."""
    if parts == 1:
        return layer_by_layer(single, network, mask, tensors, is_training)
    x, states, weights = network.split(tensors)
    batch_size = x.shape[0] if x.shape[0] is not None else tf.shape(x)[0]
    bounds = [batch_size * i // parts for i in range(parts + 1)]

    def share(array: Any, i: int) -> Any:
        return array[bounds[i] : bounds[i + 1]]

    results = [
        layer_by_layer(
            single,
            network,
            None if mask is None else share(mask, i),
            [share(x, i), *(share(state, i) for state in states), *weights],
            is_training,
        )
        for i in range(parts)
    ]
    joined = [tf.concat(pieces, 0) for pieces in zip(*results, strict=True)]
    for array, state in zip(joined[-len(states) :], states, strict=True):
        array.set_shape(state.shape)
    return joined
