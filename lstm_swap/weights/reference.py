"""What a recurrent layer computes, in float64.

The judge of every swap. `cells` and `convolution` hold the equations, written from the definitions; nothing here or
there shares code with `layouts`. Arrays may be of any float dtype; products cast about 1 MB of a kernel to float64 at a
time, never a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lstm_swap.weights import cells
from lstm_swap.weights.activations import Floats, activation_function, is_known_activation
from lstm_swap.weights.convolution import conv_lstm
from lstm_swap.weights.recurrence import Array, Cell, Recurrence, States

__all__ = ["Recurrence", "activation_function", "forward", "is_known_activation"]


def forward(
    spec: Recurrence,
    arrays: Sequence[Array],
    x: Array,
    *,
    mask: Array | None = None,
    initial_state: Sequence[Array] | None = None,
    go_backwards: bool = False,
    return_sequences: bool = False,
    zero_output_for_mask: bool = False,
) -> tuple[Floats, States]:
    """Output and last states of a layer, as Keras's TensorFlow backend defines them (`keras.backend.rnn`).

    Args:
        arrays: the layer's arrays in the layout of `spec`, of any float dtype.
        x: (batch, time, in), for a conv_lstm (batch, time, ...space and channels).
        mask: (batch, time), or (batch, time, 1); False skips the step: states stay, and the output repeats the previous
            one, zeros where there is none (also where an initial state is given), or is zero with
            `zero_output_for_mask`.
        initial_state: h, for an LSTM h and c; zeros by default.
        go_backwards: last step first. The sequence of outputs stays in the order of computation, as in Keras.
        return_sequences: all outputs, (batch, time, units), instead of the last one, (batch, units).

    Returns:
        The output and the list of states ([h], for an LSTM [h, c]), all float64. Overflow gives inf or NaN silently.

    Raises:
        ValueError: arrays, input, states or mask of the wrong number or shape, no time step, an unknown kind or layout.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim < 3 or x.shape[1] == 0 or (x.ndim > 3 and spec.kind != "conv_lstm"):
        raise ValueError(f"the input has shape {x.shape}, expected (batch, time, in) with one time step or more")
    batch, steps = x.shape[:2]
    kept = None if mask is None else np.asarray(mask, dtype=bool)
    if kept is not None:
        if kept.shape not in ((batch, steps), (batch, steps, 1)):
            raise ValueError(f"the mask has shape {kept.shape}, expected {(batch, steps)}")
        kept = kept.reshape(batch, steps)
    if go_backwards:
        x = x[:, ::-1]
        kept = None if kept is None else kept[:, ::-1]
    with np.errstate(over="ignore", invalid="ignore"):
        cell = _cell(spec, [np.asarray(a) for a in arrays], x)
        states = _initial_states(cell, initial_state)
        output = np.zeros(cell.state_shape)
        outputs = []
        for t in range(steps):
            new = cell.step(t, states)
            if kept is None:
                output, states = new[0], new
            else:
                keep = kept[:, t].reshape(batch, *[1] * (len(cell.state_shape) - 1))
                output = np.where(keep, new[0], 0.0 if zero_output_for_mask else output)
                states = [np.where(keep, after, before) for after, before in zip(new, states, strict=True)]
            if return_sequences:
                outputs.append(output)
    return (np.stack(outputs, axis=1) if return_sequences else output), states


def _initial_states(cell: Cell, given: Sequence[Array] | None) -> States:
    if given is None:
        return [np.zeros(cell.state_shape) for _ in range(cell.states)]
    states = [np.asarray(s, dtype=np.float64) for s in given]
    if [s.shape for s in states] != [cell.state_shape] * cell.states:
        found = ", ".join(str(s.shape) for s in states)
        raise ValueError(f"initial states of shape {found}, expected {cell.states} of {cell.state_shape}")
    return states


def _cell(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    layout = "standard" if spec.kind == "simple_rnn" and spec.layout == "keras1" else spec.layout
    build = _DEFINITIONS.get((spec.kind, layout))
    if build is None:
        raise ValueError(f"no definition for a {spec.kind} in the layout {spec.layout!r}")
    return build(spec, arrays, x)


_DEFINITIONS: dict[tuple[str, str], Callable[[Recurrence, list[Array], Floats], Cell]] = {
    ("lstm", "standard"): cells.lstm_standard,
    ("lstm", "cudnn"): cells.lstm_cudnn,
    ("lstm", "fused"): cells.lstm_fused,
    ("lstm", "keras1"): cells.lstm_keras1,
    ("gru", "standard"): cells.gru_standard,
    ("gru", "cudnn"): cells.gru_cudnn,
    ("gru", "fused"): cells.gru_fused,
    ("gru", "keras1"): cells.gru_keras1,
    ("simple_rnn", "standard"): cells.simple_rnn,
    ("conv_lstm", "standard"): conv_lstm,
    ("conv_lstm", "keras1"): conv_lstm,
}
