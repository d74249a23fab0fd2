"""One cuDNN recurrent node: its attributes and the shapes of its inputs.

The ops are defined in tensorflow/core/ops/cudnn_rnn_ops.cc; what they compute in kernels/cudnn_rnn_ops.cc:

| input | shape (time-major) |
|---|---|
| input | (time, batch, features) |
| input_h | (layers x directions, batch, units): layer 0 forward, layer 0 backward, layer 1 forward, ... |
| input_c | the same for an LSTM; anything for the others, which do not read it |
| params | one buffer, see `packed` |
| sequence_lengths | (batch,), CudnnRNNV3 only |

With `time_major=False` (CudnnRNNV3 only) batch comes first in all of them: (batch, time, features) and (batch, layers x
directions, units). Outputs: output (as input, with directions x units features), output_h, output_c (a scalar where
there is no c), reserve_space and, from V2 on, host_reserved: memory for the backward pass, meaningless in inference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lstm_swap.errors import UnreadableModelError, UnsupportedLayerError

#: Gates of each mode; each has a matrix for the input and one for the state, and a bias for both.
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

#: More numbers in one parameter buffer than any cuDNN network holds (2 GiB as float32): a damaged or hostile graph.
PARAMETER_LIMIT = 1 << 29

DTYPES = ("float16", "bfloat16", "float32", "float64")

Shape = tuple[int | None, ...] | None


@dataclass(frozen=True)
class RnnNode:
    """A CudnnRNN, CudnnRNNV2 or CudnnRNNV3 node, as far as its computation depends on it.

    Attributes:
        mode: lstm, gru, rnn_tanh, rnn_relu.
        skip_input: the first layer has no input matrices: its input, as wide as the units, is added to every gate.
        layers, directions: numbers; directions is 1 or 2.
        units, features: None where only the running graph knows.
        dtype: of all arrays, one of DTYPES.
        shapes: of the inputs in order, as far as they are known.
    """

    op: str
    mode: str
    skip_input: bool
    layers: int
    directions: int
    units: int | None
    features: int | None
    time_major: bool
    is_training: bool
    dtype: str
    shapes: tuple[Shape, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the op's outputs, in order."""
        names = ("output", "output_h", "output_c", "reserve_space", "host_reserved")
        return names[:4] if self.op == "CudnnRNN" else names


def describe(node: Any, shapes: list[Shape], where: str) -> RnnNode:
    """The RnnNode of a NodeDef.

    Args:
        node: the NodeDef.
        shapes: of its inputs, by TensorFlow's shape inference.
        where: file, function and node, for messages.

    Raises:
        UnsupportedLayerError: what it computes cannot be written portably, or the graph does not tell what that is.
        UnreadableModelError: attributes or shapes that no such op can have.
    """
    attributes = _attributes(node)
    mode, dtype = attributes["rnn_mode"], attributes["T"]
    if mode not in GATES or dtype not in DTYPES or attributes["direction"] not in {"unidirectional", "bidirectional"}:
        raise UnreadableModelError(f"{where}: rnn_mode={mode!r}, T={dtype!r}: no such {node.op}")
    if len(shapes) != (5 if node.op == "CudnnRNNV3" else 4):
        raise UnreadableModelError(f"{where}: {node.op} with {len(shapes)} inputs")
    if attributes["num_proj"]:
        raise UnsupportedLayerError(
            f"{where}: num_proj={attributes['num_proj']}: an LSTM with a projection of its output has no portable form "
            "here; rebuild it in Keras from the recovered arrays"
        )
    directions = 2 if attributes["direction"] == "bidirectional" else 1
    time_major = attributes["time_major"]
    sizes = _sizes(shapes, mode == "lstm", time_major, where)
    stacked, units, features = sizes["stacked"], sizes["units"], sizes["features"]
    if stacked is None:
        raise UnsupportedLayerError(
            f"{where}: the shape of input_h does not tell the number of layers; only a graph with a fixed one can be "
            "rewritten"
        )
    if stacked < 1 or stacked % directions or stacked > 2048:
        raise UnreadableModelError(f"{where}: input_h holds {stacked} states for {directions} direction(s)")
    described = RnnNode(
        op=node.op,
        mode=mode,
        skip_input=_skips_input(attributes["input_mode"], units, features, where),
        layers=stacked // directions,
        directions=directions,
        units=units,
        features=features,
        time_major=time_major,
        is_training=attributes["is_training"],
        dtype=dtype,
        shapes=_complete(sizes, shapes, mode == "lstm", time_major),
    )
    if attributes["dropout"] and attributes["is_training"] and described.layers > 1:
        raise UnsupportedLayerError(
            f"{where}: dropout={attributes['dropout']:g} between layers with is_training=True: the graph computes "
            "random numbers, so it is a training graph; export the model for inference"
        )
    _check_size(described, where)
    return described


def _attributes(node: Any) -> dict[str, Any]:
    """The node's attributes, with the op's defaults where the graph leaves them out."""
    from tensorflow import dtypes

    values: dict[str, Any] = {
        "rnn_mode": "lstm",
        "input_mode": "linear_input",
        "direction": "unidirectional",
        "dropout": 0.0,
        "num_proj": 0,
        "is_training": True,
        "time_major": True,
        "T": "",
    }
    for name in values:
        if name not in node.attr:
            continue
        value = node.attr[name]
        kind = value.WhichOneof("value")
        if kind == "s":
            values[name] = value.s.decode("utf-8", "replace")
        elif kind in {"f", "i", "b"}:
            values[name] = getattr(value, kind)
        elif kind == "type":
            try:
                values[name] = dtypes.as_dtype(value.type).name
            except (TypeError, KeyError, ValueError):
                values[name] = f"dtype {value.type}"
    if node.op != "CudnnRNNV3":  # V1 and V2 have neither attribute
        values["time_major"], values["num_proj"] = True, 0
    return values


#: What the dimensions of input, and of input_h and input_c, are called, time-major.
_INPUT, _STATE = ("time", "batch", "features"), ("stacked", "batch", "units")


def _axes(names: tuple[str, str, str], time_major: bool) -> tuple[str, str, str]:
    return names if time_major else (names[1], names[0], names[2])


def _sizes(shapes: list[Shape], has_c: bool, time_major: bool, where: str) -> dict[str, int | None]:
    """The sizes that the inputs share, from whichever tells: the input may know the batch where the states do not."""
    inputs = [("input", _INPUT, shapes[0]), ("input_h", _STATE, shapes[1])]
    if has_c:
        inputs.append(("input_c", _STATE, shapes[2]))
    found: dict[str, int | None] = dict.fromkeys((*_INPUT, *_STATE))
    for name, axes, shape in inputs:
        if shape is not None and len(shape) != 3:
            raise UnreadableModelError(f"{where}: {name} has {len(shape)} dimensions, not 3")
        for axis, size in zip(_axes((axes[0], axes[1], axes[2]), time_major), shape or (), strict=False):
            if size is not None and found[axis] not in (None, size):
                raise UnreadableModelError(f"{where}: the inputs disagree on {axis}: {found[axis]} and {size}")
            found[axis] = found[axis] if size is None else size
    return found


def _complete(sizes: dict[str, int | None], shapes: list[Shape], has_c: bool, time_major: bool) -> tuple[Shape, ...]:
    """The shapes of all inputs, with every size that is known."""
    x, h = (tuple(sizes[axis] for axis in _axes(names, time_major)) for names in (_INPUT, _STATE))
    return (x, h, h if has_c else shapes[2], shapes[3], *([(sizes["batch"],)] if len(shapes) > 4 else []))


def _skips_input(mode: str, units: int | None, features: int | None, where: str) -> bool:
    """auto_select means skip_input exactly where both widths are equal (kernels/cudnn_rnn_ops.cc, ToRNNInputMode)."""
    if mode == "linear_input":
        return False
    if mode not in {"skip_input", "auto_select"}:
        raise UnreadableModelError(f"{where}: input_mode={mode!r}")
    if units is None or features is None:
        raise UnsupportedLayerError(f"{where}: input_mode={mode!r}, but the graph does not tell units and input size")
    if mode == "skip_input" and units != features:
        raise UnreadableModelError(f"{where}: skip_input with {features} features for {units} units")
    return units == features


def parameter_count(node: RnnNode, units: int, features: int) -> int:
    """Numbers in the parameter buffer."""
    gates, directions = GATES[node.mode], node.directions
    first = 0 if node.skip_input else features
    inputs = first + (node.layers - 1) * directions * units
    return directions * gates * units * (inputs + node.layers * (units + 2))


def _check_size(node: RnnNode, where: str) -> None:
    """Refuse sizes that contradict each other or that no model has."""
    known = [size for shape in node.shapes if shape is not None for size in shape if size is not None]
    if any(size > PARAMETER_LIMIT for size in known):
        raise UnreadableModelError(f"{where}: an input of absurd size {max(known):,}")
    if node.units is None or node.features is None:
        return
    if min(node.units, node.features) < 1:
        raise UnreadableModelError(f"{where}: {node.units} units, {node.features} features")
    count = parameter_count(node, node.units, node.features)
    if count > PARAMETER_LIMIT:
        raise UnreadableModelError(f"{where}: {count:,} parameters, more than any cuDNN network holds")
    params = node.shapes[3]
    if params is not None and (len(params) != 1 or params[0] not in (None, count)):
        raise UnreadableModelError(f"{where}: params has the shape {params}, but the layers need ({count},)")
