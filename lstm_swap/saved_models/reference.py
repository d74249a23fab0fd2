"""The outputs of a cuDNN node in float64 NumPy: the judge of `portable`.

The equations are those of `weights.reference`, one layer and direction at a time; only the way through the parameter
buffer is written here, from cuDNN's description of it and without any code of `portable`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lstm_swap.saved_models.node import GATES, RnnNode
from lstm_swap.weights.reference import Recurrence, forward

Floats = np.ndarray[Any, np.dtype[np.float64]]


class _Buffer:
    """Reads numbers off the parameter buffer, front to back."""

    def __init__(self, params: np.ndarray[Any, Any]) -> None:
        self._rest = np.asarray(params, dtype=np.float64).ravel()

    def take(self, *shape: int) -> Floats:
        count = int(np.prod(shape))
        if count > self._rest.size:
            raise ValueError("the parameter buffer is too short")
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken.reshape(shape)

    def finish(self) -> None:
        if self._rest.size:
            raise ValueError(f"the parameter buffer holds {self._rest.size} numbers too many")


def run_reference(
    node: RnnNode,
    x: np.ndarray[Any, Any],
    input_h: np.ndarray[Any, Any],
    input_c: np.ndarray[Any, Any] | None,
    params: np.ndarray[Any, Any],
    lengths: np.ndarray[Any, Any] | None = None,
) -> tuple[Floats, Floats, Floats | None]:
    """output, output_h and output_c (None without a c), shaped and ordered as the node's.

    Args:
        x, input_h, input_c, params, lengths: the node's inputs. lengths: (batch,); None where every step counts.

    Raises:
        ValueError: shapes that do not fit each other.
    """
    states = [np.asarray(input_h, np.float64)]
    if node.mode == "lstm":
        states.append(np.asarray(input_c, np.float64))
    x = np.asarray(x, np.float64)
    if node.time_major:
        x = x.transpose(1, 0, 2)
    else:
        # The memory of (batch, layers x directions, units) is read as (layers x directions, batch, units).
        states = [state.reshape(state.shape[1], state.shape[0], -1) for state in states]
    units = states[0].shape[2]
    batch, time = x.shape[:2]
    mask = np.arange(time)[None, :] < (np.full(batch, time) if lengths is None else np.asarray(lengths))[:, None]
    parts = _take_apart(node, params, units, x.shape[2])
    last: list[list[Floats]] = []
    for layer in range(node.layers):
        halves = []
        for direction in range(node.directions):
            index = layer * node.directions + direction
            spec, arrays = _arrays(node, units, x.shape[2], *parts[index])
            sequence, final = forward(
                spec,
                arrays,
                x,
                mask=mask,
                initial_state=[state[index] for state in states],
                go_backwards=direction == 1,
                return_sequences=True,
                zero_output_for_mask=True,
            )
            halves.append(sequence[:, ::-1] if direction == 1 else sequence)
            last.append(final)
        x = np.concatenate(halves, axis=-1)
    stacked = [np.stack(state) for state in zip(*last, strict=True)]
    if node.time_major:
        x = x.transpose(1, 0, 2)
    else:
        stacked = [state.reshape(state.shape[1], state.shape[0], -1) for state in stacked]
    return x, stacked[0], stacked[1] if node.mode == "lstm" else None


def _take_apart(
    node: RnnNode, params: np.ndarray[Any, Any], units: int, features: int
) -> list[tuple[list[Floats] | None, list[Floats], list[Floats], list[Floats]]]:
    """Input matrices by gate (None: skip_input), state matrices, input and state biases of each layer and direction."""
    gates = range(GATES[node.mode])
    places = [(layer, direction) for layer in range(node.layers) for direction in range(node.directions)]
    buffer = _Buffer(params)
    matrices: list[tuple[list[Floats] | None, list[Floats]]] = []
    for layer, _ in places:
        width = features if layer == 0 else node.directions * units
        skipped = layer == 0 and node.skip_input
        matrices.append(
            (
                None if skipped else [buffer.take(units, width) for _ in gates],
                [buffer.take(units, units) for _ in gates],
            )
        )
    biases = [([buffer.take(units) for _ in gates], [buffer.take(units) for _ in gates]) for _ in places]
    buffer.finish()
    return [(*pair, *bias) for pair, bias in zip(matrices, biases, strict=True)]


def _arrays(
    node: RnnNode,
    units: int,
    inputs: int,
    kernels: list[Floats] | None,
    recurrent: list[Floats],
    bias: list[Floats],
    recurrent_bias: list[Floats],
) -> tuple[Recurrence, list[np.ndarray[Any, Any]]]:
    """One layer and direction in a layout that `weights.reference` knows."""
    if kernels is None:
        kernels = [np.eye(units, inputs)] * len(recurrent)
    w, r, b, d = (np.concatenate(parts) for parts in (kernels, recurrent, bias, recurrent_bias))
    if node.mode == "lstm":
        return Recurrence("lstm", "fused", units), [w, r, b + d]
    if node.mode == "gru":
        return Recurrence("gru", "fused", units), [w, r, np.concatenate([b, d])]
    activation = "tanh" if node.mode == "rnn_tanh" else "relu"
    return Recurrence("simple_rnn", "standard", units, activation=activation), [w.T, r.T, b + d]
