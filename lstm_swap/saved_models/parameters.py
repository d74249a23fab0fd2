"""Portable forms of the ops that convert cuDNN's parameter buffer, which TensorFlow 1 graphs run to load and save it.

CudnnRNNCanonicalToParams lays matrices and biases one behind the other, in the order in which it gets them: that is the
buffer's own order (see `portable`). CudnnRNNParamsToCanonical takes them apart again, CudnnRNNParamsSize counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lstm_swap.errors import UnsupportedLayerError
from lstm_swap.saved_models.node import GATES


def portable_parameter_op(node: Any, where: str) -> tuple[Callable[..., tuple[Any, ...]], list[str]]:
    """A function of the node's inputs that gives its outputs, and the outputs' names as FunctionDefs spell them.

    Args:
        node: the NodeDef of a CudnnRNNParamsSize, CudnnRNNCanonicalToParams(V2) or CudnnRNNParamsToCanonical(V2).
        where: file, function and node, for messages.

    Raises:
        UnsupportedLayerError: a projection, or an input mode that depends on sizes.
    """
    mode = _text(node, "rnn_mode", "lstm")
    directions = 2 if _text(node, "direction", "unidirectional") == "bidirectional" else 1
    if "num_proj" in node.attr and node.attr["num_proj"].i:
        raise UnsupportedLayerError(
            f"{where}: num_proj={node.attr['num_proj'].i}: projections have no portable form here"
        )
    if _text(node, "input_mode", "linear_input") != "linear_input" or mode not in GATES:
        raise UnsupportedLayerError(f"{where}: only linear_input is read here, in one of the modes {', '.join(GATES)}")
    gates = GATES[mode]
    if node.op == "CudnnRNNParamsSize":
        return _counts(node, gates, directions), ["params_size:0"]
    if node.op.startswith("CudnnRNNCanonicalToParams"):
        return _join, ["params:0"]
    weights, biases = (_count(node, name) for name in ("num_params_weights", "num_params_biases"))
    stacked = weights // (2 * gates)
    if not 1 <= weights == biases <= 1 << 16 or weights != stacked * 2 * gates or stacked % directions:
        raise UnsupportedLayerError(f"{where}: {weights} matrices and {biases} biases do not fit {mode} cells")
    names = [f"weights:{i}" for i in range(weights)] + [f"biases:{i}" for i in range(biases)]
    return _take_apart(gates, directions, stacked), names


def _text(node: Any, name: str, default: str) -> str:
    return str(node.attr[name].s.decode("utf-8", "replace")) if name in node.attr else default


def _count(node: Any, name: str) -> int:
    for key in (name, "num_params"):  # the first op had one number for both
        if key in node.attr:
            return int(node.attr[key].i)
    return 0


def _counts(node: Any, gates: int, directions: int) -> Callable[..., tuple[Any, ...]]:
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(node.attr["S"].type) if "S" in node.attr else tf.int32

    def count(layers: Any, units: Any, features: Any) -> tuple[Any, ...]:
        inputs = features + (layers - 1) * directions * units
        total = directions * gates * units * (inputs + layers * (units + 2))
        return (tf.reshape(tf.cast(total, dtype), (1,)),)

    return count


def _join(layers: Any, units: Any, features: Any, *arrays: Any) -> tuple[Any, ...]:
    import tensorflow as tf

    return (tf.concat([tf.reshape(array, (-1,)) for array in arrays], axis=0),)


def _take_apart(gates: int, directions: int, stacked: int) -> Callable[..., tuple[Any, ...]]:
    import tensorflow as tf

    def take_apart(layers: Any, units: Any, features: Any, params: Any) -> tuple[Any, ...]:
        shapes: list[tuple[Any, Any]] = []
        for index in range(stacked):
            width = features if index < directions else directions * units
            shapes += [(units, width)] * gates + [(units, units)] * gates
        sizes: Sequence[Any] = [height * width for height, width in shapes] + [units] * len(shapes)
        parts = tf.split(params, tf.stack(sizes), num=len(sizes))
        matrices = [tf.reshape(part, tf.stack(shape)) for part, shape in zip(parts, shapes, strict=False)]
        return (*matrices, *parts[len(shapes) :])

    return take_apart
