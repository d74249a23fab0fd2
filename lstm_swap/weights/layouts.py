"""How each form stores the weights of a recurrent layer, and how to get from one layout to another.

With u units and n gates (4 in an LSTM, 3 in a GRU), g being one gate:

========  ==================  ==================================  ========================  ===============
layout    gates               kernel                              recurrent kernel          bias
========  ==================  ==================================  ========================  ===============
standard  LSTM i f c o        (in, n u)                           (u, n u)                  (4 u,)
..        GRU z r h           (in, n u)                           (u, n u)                  (2, 3 u)
cudnn     LSTM i f c o        per gate K_g.T.reshape(K_g.shape)   per gate R_g.T            (8 u,)
..        GRU z r h           per gate K_g.T.reshape(K_g.shape)   per gate R_g.T            (6 u,)
fused     LSTM i f c o        rows: (n u, in)                     rows: (n u, u)            (4 u,)
..        GRU r z h           rows: (n u, in)                     rows: (n u, u)            (6 u,)
keras1    LSTM i c f o        W_g (in, u)                         U_g (u, u)                b_g (u,)
..        GRU z r h           W_g (in, u)                         U_g (u, u)                b_g (u,)
========  ==================  ==================================  ========================  ===============

Where a bias has two halves, the first one belongs to the kernel and the second one to the recurrent kernel. In an LSTM
only their sum matters. In a GRU with `reset_after=True`, the only GRU that these forms share, the reset gate multiplies
the second half of the candidate's bias, so the two stay apart. A standard GRU with `reset_after=False` has a bias of
shape (3 u,).

Sources: `CuDNNLSTM.build`, `CuDNNGRU.build` and `_convert_rnn_weights` of tf_keras (saving/legacy/hdf5_format.py),
whose results `swap` equals exactly; `canonical_to_params` there for the order in which cuDNN wants the gates.

What is only moved keeps its dtype and every bit. Where numbers are added or multiplied the result is float64, for the
caller to round once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lstm_swap.weights import memory

#: Rows and columns of a tile in `_copy`: 256 x 128 float32 numbers are 128 KiB, which a core's second cache holds.
_ROWS, _COLUMNS = 256, 128

#: Rows of a tile in memory are this many numbers longer than its contents. Lines a power of two apart, which the
#: matrices of layers with 2**n units have, would compete for the same few places in the cache.
_PADDING = 16

Array = np.ndarray[Any, Any]

GATES = {"lstm": 4, "gru": 3}
LAYOUTS = ("standard", "cudnn", "fused")


def swap(kind: str, arrays: Sequence[Array], source: str, target: str) -> list[Array]:
    """The same layer's arrays in another layout.

    Args:
        kind: "lstm" or "gru" (`reset_after=True`).
        arrays: kernel, recurrent kernel and bias in the layout `source`. A standard layer without bias has two; it
            gets a bias of zeros in the kernel's dtype where the target cannot be without one.
        source, target: "standard", "cudnn" or "fused".

    Returns:
        kernel, recurrent kernel and bias in the layout `target`. Kernels keep their dtype, and so does the bias, save
        that of an LSTM to or from "cudnn", which is float64: b = b_input + b_recurrent one way, and both halves b / 2
        the other way, which is how Keras 2 splits it (any split computes the same). With source equal to target the
        arrays are given back as they are.

    Raises:
        ValueError: an unknown kind or layout, or arrays whose number or shapes do not fit.
    """
    return _swap(kind, arrays, source, target, slots=False)


def swap_slots(kind: str, arrays: Sequence[Array], source: str, target: str) -> list[Array]:
    """Optimizer slots that mirror a layer's arrays (momentum, Adam's m and v), moved like the arrays themselves.

    The two halves of a cuDNN LSTM bias receive the same gradient as their sum would, hence have the same slots: each
    half gets the whole slot of a summed bias, and a summed bias takes the slot of one half. Nothing is added or
    scaled, so every dtype is kept. Arguments and errors as for `swap`.
    """
    return _swap(kind, arrays, source, target, slots=True)


def _swap(kind: str, arrays: Sequence[Array], source: str, target: str, *, slots: bool) -> list[Array]:
    if kind not in GATES:
        raise ValueError(f"no layouts are known for the kind {kind!r}, only for {', '.join(GATES)}")
    for layout in (source, target):
        if layout not in LAYOUTS:
            raise ValueError(f"unknown layout {layout!r}, expected one of {', '.join(LAYOUTS)}")
    arrays = [np.asarray(a) for a in arrays]
    units = _units(kind, arrays, source)
    message = check_shapes(kind, source, units, arrays, source != "standard" or len(arrays) > 2, True)
    if message:
        raise ValueError(f"not the arrays of a {source} {kind} with {units} units: {message}")
    if source == target:
        return arrays
    gates = GATES[kind]
    kernels = [_from_standard(_to_standard(a, source, gates), target, gates) for a in arrays[:2]]
    if len(arrays) == 2:
        shape = _bias_shape(kind, target, units, reset_after=True)
        return [*kernels, np.zeros(shape, arrays[0].dtype)]
    return [*kernels, _swap_bias(kind, arrays[2], source, target, slots)]


def _units(kind: str, arrays: Sequence[Any], layout: str) -> int:
    if len(arrays) < 2 or len(arrays[1].shape) != 2:
        raise ValueError(f"expected a kernel, a recurrent kernel and a bias, found {len(arrays)} arrays")
    return int(arrays[1].shape[1 if layout == "fused" else 0])


def _to_standard(kernel: Array, source: str, gates: int) -> Array:
    if source == "cudnn":
        # Read row by row, a block holds the (units, in) matrix that cuDNN multiplies with.
        return _by_block(kernel, gates, lambda block: block.reshape(block.shape[::-1]).T)
    return _turned(kernel, gates, 0) if source == "fused" else kernel


def _from_standard(kernel: Array, target: str, gates: int) -> Array:
    if target == "cudnn":
        return _by_block(kernel, gates, lambda block: block.T.reshape(block.shape))
    return _turned(kernel, gates, 1) if target == "fused" else kernel


def _turned(kernel: Array, gates: int, axis: int) -> Array:
    """Gates side by side along `axis` become transposed gates, in the other software's order, along the other axis."""
    result = memory.empty(kernel.shape[::-1], kernel.dtype)
    blocks = _cudnn_order(np.split(kernel, gates, axis=axis))
    for block, out in zip(blocks, np.split(result, gates, axis=1 - axis), strict=True):
        _copy(block.T, out)
    return result


def _by_block(kernel: Array, gates: int, change: Callable[[Array], Array]) -> Array:
    result = memory.empty(kernel.shape, kernel.dtype)
    for block, out in zip(np.split(kernel, gates, axis=1), np.split(result, gates, axis=1), strict=True):
        _copy(change(block), out)
    return result


def _copy(source: Array, target: Array) -> None:
    """target[...] = source for a transposed source: by tiles, each copied as it lies in memory and then turned."""
    tile = np.empty((_COLUMNS, _ROWS + _PADDING), source.dtype)
    for i in range(0, source.shape[0], _ROWS):
        for j in range(0, source.shape[1], _COLUMNS):
            part = source[i : i + _ROWS, j : j + _COLUMNS]
            turned = tile[: part.shape[1], : part.shape[0]].T
            turned[...] = part
            target[i : i + _ROWS, j : j + _COLUMNS] = turned


def _cudnn_order(blocks: list[Array]) -> list[Array]:
    """Keras's order of gates to cuDNN's, or back: a GRU's first two change places, an LSTM's order is the same."""
    return [blocks[1], blocks[0], blocks[2]] if len(blocks) == 3 else blocks


def _swap_bias(kind: str, bias: Array, source: str, target: str, slots: bool) -> Array:
    if kind == "lstm":
        if source == "cudnn":
            first, second = np.split(bias, 2)
            return first.copy() if slots else first.astype(np.float64) + second.astype(np.float64)
        if target == "cudnn":
            return np.tile(bias if slots else 0.5 * bias.astype(np.float64), 2)
        return bias.copy()
    halves = bias.reshape(2, -1)
    if (source == "fused") != (target == "fused"):
        halves = np.concatenate(_cudnn_order(np.split(halves, 3, axis=1)), axis=1)
    return halves.copy() if target == "standard" else halves.flatten()


# -- Keras 1 ---------------------------------------------------------------------------------------------------------

# Where each gate of the standard order stands in Keras 1's.
_KERAS1_ORDER = {"lstm": (0, 2, 1, 3), "conv_lstm": (0, 2, 1, 3), "gru": (0, 1, 2)}
_KERAS1_GATES = {"lstm": "icfo", "conv_lstm": "icfo", "gru": "zrh"}


def merge_keras1(kind: str, arrays: Sequence[Array]) -> list[Array]:
    """Keras 1's array a gate to the standard three: kernel, recurrent kernel, bias.

    Args:
        kind: "lstm" or "conv_lstm": 12 arrays, W U b of the gates i, c, f, o. "gru": 9 arrays, W U b of z, r, h.
            Convolution kernels have their filters last (Keras 1's dim_ordering "tf"). A Keras 1 SimpleRNN has the
            standard arrays already.

    Returns:
        The blocks joined along the last axis, in the order i f c o or z r h; a GRU's bias is (3 units,), for
        Keras 1 knows `reset_after=False` only.

    Raises:
        ValueError: an unknown kind, or another number of arrays.
    """
    order = _keras1_order(kind)
    if len(arrays) != 3 * len(order):
        raise ValueError(f"a Keras 1 {kind} has {3 * len(order)} arrays, found {len(arrays)}")
    return [np.concatenate([np.asarray(arrays[3 * g + part]) for g in order], axis=-1) for part in range(3)]


def split_keras1(kind: str, arrays: Sequence[Array]) -> list[Array]:
    """The inverse of `merge_keras1`: kernel, recurrent kernel and bias to an array a gate.

    Raises:
        ValueError: an unknown kind, another number of arrays than three, or a last axis that the gates do not divide.
    """
    order = _keras1_order(kind)
    if len(arrays) != 3:
        raise ValueError(f"expected a kernel, a recurrent kernel and a bias, found {len(arrays)} arrays")
    if kind == "gru" and np.asarray(arrays[2]).ndim != 1:
        raise ValueError("Keras 1 has no GRU with reset_after=True")
    parts = [np.split(np.asarray(a), len(order), axis=-1) for a in arrays]
    # The order is its own inverse: it exchanges two gates at most.
    return [part[g].copy() for g in order for part in parts]


def _keras1_order(kind: str) -> tuple[int, ...]:
    if kind not in _KERAS1_ORDER:
        raise ValueError(f"Keras 1 keeps no array a gate for the kind {kind!r}")
    return _KERAS1_ORDER[kind]


# -- Scaling ---------------------------------------------------------------------------------------------------------


def scale_gates(
    kind: str, arrays: Sequence[Array], factor: float, *, gates: bool = True, candidate: bool = False
) -> list[Array]:
    """Multiply what goes into some activations of a layer in the standard layout by `factor`.

    The argument of each gate's activation is linear in that gate's columns of kernel, recurrent kernel and bias, so
    f(factor * x) is f with those columns multiplied: Keras 2's hard_sigmoid(x) is Keras 3's hard_sigmoid(1.2 x).

    Args:
        kind: "lstm", "gru", "conv_lstm" (kernels with their filters last), or a layer without gates: "simple_rnn",
            "dense", "conv".
        arrays: kernel, recurrent kernel (recurrent kinds only) and, unless the layer has none, bias.
        gates: scale the gates i, f, o or z, r. Nothing where there are none.
        candidate: scale the candidate c or h; in a layer without gates, everything. An LSTM uses the candidate's
            activation a second time, on the cell state, which no weights can scale: the result is not that of
            f(factor * x) there.

    Returns:
        All arrays in float64, of the same shapes.

    Raises:
        ValueError: an unknown kind, or another number of arrays.
    """
    recurrent = 1 if kind in ("dense", "conv") else 2
    if len(arrays) not in (recurrent, recurrent + 1):
        raise ValueError(
            f"a layer of kind {kind!r} has {recurrent} kernels and at most one bias, found {len(arrays)} arrays"
        )
    if kind in ("lstm", "conv_lstm"):
        chosen = [gates, gates, candidate, gates]
    elif kind == "gru":
        chosen = [gates, gates, candidate]
    elif kind in ("simple_rnn", "dense", "conv"):
        chosen = [candidate]
    else:
        raise ValueError(f"unknown kind {kind!r}")
    results = []
    for array in arrays:
        result = np.array(array, dtype=np.float64)
        for block, scaled in zip(np.split(result, len(chosen), axis=-1), chosen, strict=True):
            if scaled:
                block *= factor
        results.append(result)
    return results


# -- Shapes ----------------------------------------------------------------------------------------------------------


def bias_layout(arrays: Sequence[Any]) -> tuple[str, str] | None:
    """Kind and layout of an LSTM or GRU as far as shapes alone tell, for files without architecture.

    Args:
        arrays: kernel, recurrent kernel, bias: anything with a `shape`.

    Returns:
        ("lstm" | "gru", "standard" | "cudnn" | "fused" | "reset_after_false"), the last being the standard layout of a
        GRU with `reset_after=False`; None where the shapes contradict each other or belong to neither, and for a layer
        without bias unless it can only be a standard LSTM.
    """
    if not 2 <= len(arrays) <= 3 or len(arrays[1].shape) != 2:
        return None
    for kind, gates in GATES.items():
        rows, columns = arrays[1].shape
        for layout in LAYOUTS if columns == gates * rows else ("fused",):
            units = columns if layout == "fused" else rows
            if len(arrays) == 2 and (kind, layout) != ("lstm", "standard"):
                continue  # a GRU without bias does not tell where its reset gate acts
            if units and check_shapes(kind, layout, units, arrays, len(arrays) > 2, True) is None:
                return kind, layout
            if (
                kind == "gru"
                and layout == "standard"
                and check_shapes(kind, layout, units, arrays, True, False) is None
            ):
                return kind, "reset_after_false"
    return None


def check_shapes(
    kind: str, layout: str, units: int, arrays: Sequence[Any], use_bias: bool, reset_after: bool
) -> str | None:
    """Why these arrays (anything with a `shape`) are not those of such a layer, or None if they fit.

    Args:
        kind: "lstm", "gru", "simple_rnn" or "conv_lstm" (`units` is its number of filters).
        layout: "standard", "cudnn", "fused" or "keras1".
        reset_after: matters for a GRU in the standard layout only.

    Returns:
        A sentence on the first array that does not fit, such as "bias has shape (32,), expected (64,)".
    """
    expected = _expected_shapes(kind, layout, units, arrays, use_bias, reset_after)
    if len(arrays) != len(expected):
        names = [name for name, _ in expected]
        listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        return f"{len(arrays)} array{'' if len(arrays) == 1 else 's'} found, expected {len(names)} ({listed})"
    for array, (name, shape) in zip(arrays, expected, strict=True):
        found = tuple(array.shape)
        if len(found) != len(shape) or any(n not in (None, m) for n, m in zip(shape, found, strict=True)):
            wanted = ", ".join("any" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "")
            return f"{name} has shape {found}, expected ({wanted})"
    return None


def _expected_shapes(
    kind: str, layout: str, units: int, arrays: Sequence[Any], use_bias: bool, reset_after: bool
) -> list[tuple[str, tuple[int | None, ...]]]:
    """Names and shapes, None standing for a size that the layer itself does not fix."""
    gates = {"lstm": 4, "gru": 3, "conv_lstm": 4, "simple_rnn": 1}.get(kind)
    if gates is None:
        raise ValueError(f"unknown kind {kind!r}")
    if layout in ("cudnn", "fused") and kind not in GATES:
        raise ValueError(f"a {kind} has no layout {layout!r}")
    inputs = None
    space: tuple[int | None, ...] = ()
    if kind == "conv_lstm":  # the window is the layer's own choice; kernel and recurrent kernel share it
        space = (tuple(arrays[0].shape)[:-2] if arrays else ()) or (None,)
    if layout == "keras1" and kind != "simple_rnn":
        per_gate = [("W", (*space, inputs, units)), ("U", (*space, units, units)), ("b", (units,))]
        return [(f"{part}_{gate}", shape) for gate in _KERAS1_GATES[kind] for part, shape in per_gate]
    columns = gates * units
    shapes: list[tuple[str, tuple[int | None, ...]]]
    if layout == "fused":
        shapes = [("kernel", (columns, inputs)), ("recurrent_kernel", (columns, units))]
    elif layout in ("standard", "cudnn", "keras1"):
        shapes = [("kernel", (*space, inputs, columns)), ("recurrent_kernel", (*space, units, columns))]
    else:
        raise ValueError(f"unknown layout {layout!r}")
    if use_bias:
        shapes.append(("bias", _bias_shape(kind, layout, units, reset_after)))
    return shapes


def _bias_shape(kind: str, layout: str, units: int, reset_after: bool) -> tuple[int, ...]:
    if kind == "gru":
        if layout == "standard":
            return (2, 3 * units) if reset_after else (3 * units,)
        return (6 * units,)
    if kind == "simple_rnn":
        return (units,)
    return (8 * units,) if layout == "cudnn" else (4 * units,)
