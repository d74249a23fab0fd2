"""TensorFlow functions in a graph of tf.keras (TFOpLambda, SlicingOpLambda), as operations of Keras 3.

tf.keras 2.4 and later wrap each TensorFlow function that is called on a Keras tensor in a layer, which keeps the
function's public name and, in the call, its arguments by name (tf_keras/src/layers/core/tf_op_layer.py). Keras 3
keeps `keras.ops` in a graph as `Operation`s: settings in the config, tensors and constants in the call. Only functions
that compute the same for every input are translated; the rest stays and needs TensorFlow code to load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects.context import Context
from lstm_swap.dialects.graph import Constant, Graph, Ref, refs
from lstm_swap.dialects.operations import ABSENT, Operation, replace

Arguments = dict[str, Any]
Rule = Callable[[Any, Arguments], Operation | None]

_BINARY = {
    "__operators__.add": "Add",
    "math.add": "Add",
    "add": "Add",
    "math.subtract": "Subtract",
    "subtract": "Subtract",
    "math.multiply": "Multiply",
    "multiply": "Multiply",
    "math.truediv": "TrueDivide",
    "truediv": "TrueDivide",
    "math.divide": "TrueDivide",
    "divide": "TrueDivide",
    "math.maximum": "Maximum",
    "maximum": "Maximum",
    "math.minimum": "Minimum",
    "minimum": "Minimum",
    "math.pow": "Power",
    "pow": "Power",
    "math.equal": "Equal",
    "math.not_equal": "NotEqual",
    "math.greater": "Greater",
    "math.greater_equal": "GreaterEqual",
    "math.less": "Less",
    "math.less_equal": "LessEqual",
    "math.logical_and": "LogicalAnd",
    "math.logical_or": "LogicalOr",
}
_UNARY = {
    "math.abs": ("numpy", "Absolute"),
    "abs": ("numpy", "Absolute"),
    "math.ceil": ("numpy", "Ceil"),
    "math.cos": ("numpy", "Cos"),
    "math.erf": ("math", "Erf"),
    "math.exp": ("numpy", "Exp"),
    "exp": ("numpy", "Exp"),
    "math.floor": ("numpy", "Floor"),
    "math.log": ("numpy", "Log"),
    "math.log1p": ("numpy", "Log1p"),
    "math.logical_not": ("numpy", "LogicalNot"),
    "math.negative": ("numpy", "Negative"),
    "negative": ("numpy", "Negative"),
    "math.reciprocal": ("numpy", "Reciprocal"),
    "math.round": ("numpy", "Round"),
    "math.rsqrt": ("math", "Rsqrt"),
    "math.sigmoid": ("nn", "Sigmoid"),
    "sigmoid": ("nn", "Sigmoid"),
    "nn.sigmoid": ("nn", "Sigmoid"),
    "math.sign": ("numpy", "Sign"),
    "math.sin": ("numpy", "Sin"),
    "math.softplus": ("nn", "Softplus"),
    "nn.softplus": ("nn", "Softplus"),
    "math.sqrt": ("numpy", "Sqrt"),
    "sqrt": ("numpy", "Sqrt"),
    "math.square": ("numpy", "Square"),
    "square": ("numpy", "Square"),
    "math.tanh": ("numpy", "Tanh"),
    "tanh": ("numpy", "Tanh"),
    "nn.tanh": ("numpy", "Tanh"),
    "nn.relu": ("nn", "Relu"),
    "nn.relu6": ("nn", "Relu6"),
    "nn.elu": ("nn", "Elu"),
    "nn.selu": ("nn", "Selu"),
    "nn.softsign": ("nn", "Softsign"),
    "nn.silu": ("nn", "Silu"),
    "nn.swish": ("nn", "Silu"),
    "zeros_like": ("numpy", "ZerosLike"),
    "ones_like": ("numpy", "OnesLike"),
}
_REDUCTIONS = {
    f"math.reduce_{name}": keras
    for name, keras in (
        ("mean", "Mean"),
        ("sum", "Sum"),
        ("max", "Max"),
        ("min", "Min"),
        ("prod", "Prod"),
        ("any", "Any"),
        ("all", "All"),
        ("std", "Std"),
        ("variance", "Var"),
    )
}


def _only(arguments: Arguments, *known: str, **neutral: Any) -> bool:
    """Are there no other arguments than the known ones, but for such as say nothing?"""
    return all(k in known or k == "name" or (k in neutral and v in (None, neutral[k])) for k, v in arguments.items())


def _is_static(value: Any) -> bool:
    return not any(refs([value])) and not isinstance(value, Constant)


def _binary(name: str) -> Rule:
    def rule(x: Any, more: Arguments) -> Operation | None:
        return Operation("numpy", name, [x, more["y"]]) if "y" in more and _only(more, "y") else None

    return rule


def _unary(module: str, name: str) -> Rule:
    def rule(x: Any, more: Arguments) -> Operation | None:
        return Operation(module, name, [x]) if _only(more) and isinstance(x, Ref) else None

    return rule


def _reduction(name: str) -> Rule:
    def rule(x: Any, more: Arguments) -> Operation | None:
        if not _only(more, "axis", "keepdims", "reduction_indices", "keep_dims"):
            return None
        axis = more.get("axis", more.get("reduction_indices"))
        config = {"axis": axis, "keepdims": bool(more.get("keepdims") or more.get("keep_dims"))}
        return Operation("numpy", name, [x], config) if _is_static(axis) else None

    return rule


def _matmul(x: Any, more: Arguments) -> Operation | None:
    flags = dict.fromkeys(("adjoint_a", "adjoint_b", "a_is_sparse", "b_is_sparse", "grad_a", "grad_b"), False)
    if "b" not in more or not _only(more, "b", "transpose_a", "transpose_b", output_type=None, **flags):
        return None
    turned = [i for i, key in enumerate(("transpose_a", "transpose_b")) if more.get(key)]
    return Operation("numpy", "Matmul", [x, more["b"]], transposed=turned)


def _l2_normalize(x: Any, more: Arguments) -> Operation | None:
    """x / sqrt(max(sum x^2, epsilon)) in TensorFlow, x * min(1 / sqrt(sum x^2), 1 / epsilon) in Keras 3."""
    axis, epsilon = more.get("axis", more.get("dim")), more.get("epsilon", 1e-12)
    if not isinstance(axis, int) or not isinstance(epsilon, float) or not _only(more, "axis", "dim", "epsilon"):
        return None
    return Operation("nn", "Normalize", [x], {"axis": axis, "order": 2, "epsilon": epsilon**0.5})


def _concat(x: Any, more: Arguments) -> Operation | None:
    if not isinstance(x, list) or not _only(more, "axis") or not isinstance(more.get("axis"), int):
        return None
    return Operation("numpy", "Concatenate", [x], {"axis": more["axis"]})


def _stack(x: Any, more: Arguments) -> Operation | None:
    if not isinstance(x, list) or not _only(more, "axis"):
        return None
    return Operation("numpy", "Stack", [x], {"axis": more.get("axis", 0)})


def _unstack(x: Any, more: Arguments) -> Operation | None:
    if not _only(more, "axis", "num"):
        return None
    return Operation("core", "Unstack", [x], {"num": more.get("num"), "axis": more.get("axis", 0)})


def _split(x: Any, more: Arguments) -> Operation | None:
    sizes = more.get("num_or_size_splits")
    if not _only(more, "num_or_size_splits", "axis", num=None) or not _is_static(sizes):
        return None
    if isinstance(sizes, list):
        if not all(isinstance(n, int) and n >= 0 for n in sizes):
            return None
        sizes = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return Operation("numpy", "Split", [x], {"indices_or_sections": sizes, "axis": more.get("axis", 0)})


def _reshape(x: Any, more: Arguments) -> Operation | None:
    shape = more.get("shape")
    if not _only(more, "shape") or not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
        return None
    return Operation("numpy", "Reshape", [x], {"newshape": shape})


def _with(module: str, name: str, setting: str, argument: str, needed: bool = True, **neutral: Any) -> Rule:
    """One setting that has another name: axis, perm, multiples."""

    def rule(x: Any, more: Arguments) -> Operation | None:
        value = more.get(argument)
        if not _only(more, argument, **neutral) or not _is_static(value) or (needed and value is None):
            return None
        return Operation(module, name, [x], {setting: value})

    return rule


def _cast(x: Any, more: Arguments) -> Operation | None:
    dtype = more.get("dtype")
    return Operation("core", "Cast", [x], {"dtype": dtype}) if isinstance(dtype, str) and _only(more, "dtype") else None


def _softmax(name: str) -> Rule:
    def rule(x: Any, more: Arguments) -> Operation | None:
        axis = more.get("axis")
        return Operation("nn", name, [x], {"axis": -1 if axis is None else axis}) if _only(more, "axis") else None

    return rule


def _leaky_relu(x: Any, more: Arguments) -> Operation | None:
    return (
        Operation("nn", "LeakyRelu", [x], {"negative_slope": more.get("alpha", 0.2)}) if _only(more, "alpha") else None
    )


def _gelu(x: Any, more: Arguments) -> Operation | None:
    approximate = bool(more.get("approximate", False))
    return Operation("nn", "Gelu", [x], {"approximate": approximate}) if _only(more, "approximate") else None


def _clip(x: Any, more: Arguments) -> Operation | None:
    low, high = more.get("clip_value_min"), more.get("clip_value_max")
    numbers = isinstance(low, (int, float)) and isinstance(high, (int, float))
    if not numbers or not _only(more, "clip_value_min", "clip_value_max"):
        return None
    return Operation("numpy", "Clip", [x], {"x_min": low, "x_max": high})


def _where(x: Any, more: Arguments) -> Operation | None:
    if "x" not in more or "y" not in more or not _only(more, "x", "y"):
        return None
    return Operation("numpy", "Where", [x, more["x"], more["y"]])


def _gather(x: Any, more: Arguments) -> Operation | None:
    indices, axis = more.get("indices"), more.get("axis")
    neutral = {"batch_dims": 0, "validate_indices": None}
    if indices is None or not isinstance(axis, int) or not _only(more, "indices", "axis", **neutral):
        return None
    return Operation("numpy", "Take", [x, indices], {"axis": axis})


def _one_hot(x: Any, more: Arguments) -> Operation | None:
    depth = more.get("depth")
    if not isinstance(depth, int) or not _only(more, "depth", axis=-1, on_value=1, off_value=0, dtype="float32"):
        return None
    return Operation("nn", "OneHot", [x], {"num_classes": depth, "axis": -1, "dtype": "float32"})


def _pad(x: Any, more: Arguments) -> Operation | None:
    pads = more.get("paddings")
    if not isinstance(pads, list) or not _is_static(pads):
        return None
    if not _only(more, "paddings", mode="CONSTANT", constant_values=0):
        return None
    return Operation("numpy", "Pad", [x], {"pad_width": pads, "mode": "constant"})


def _transpose(x: Any, more: Arguments) -> Operation | None:
    perm = more.get("perm")
    if not _only(more, "perm", conjugate=False) or not (perm is None or isinstance(perm, list)):
        return None
    return Operation("numpy", "Transpose", [x], {"axes": perm})


def _squeeze(x: Any, more: Arguments) -> Operation | None:
    axis = more.get("axis", more.get("squeeze_dims"))
    return Operation("numpy", "Squeeze", [x], {"axis": axis}) if _only(more, "axis", "squeeze_dims") else None


def _getitem(x: Any, more: Arguments) -> Operation | None:
    spec = more.get("slice_spec")
    if not _only(more, "slice_spec", var=None) or any(refs([spec])):
        return None
    parts = [_index(part) for part in (spec if isinstance(spec, list) else [spec])]
    return Operation("numpy", "GetItem", [x, parts if isinstance(spec, list) else parts[0]])


def _index(part: Any) -> Any:
    if isinstance(part, dict):
        if part.get("class_name") == "__ellipsis__":
            return {"class_name": "__ellipsis__", "config": {}}
        return {"class_name": "__slice__", "config": {k: part.get(k) for k in ("start", "stop", "step")}}
    return part


RULES: dict[str, Rule] = {
    **{name: _binary(keras) for name, keras in _BINARY.items()},
    **{name: _unary(*keras) for name, keras in _UNARY.items()},
    **{name: _reduction(keras) for name, keras in _REDUCTIONS.items()},
    "math.l2_normalize": _l2_normalize,
    "nn.l2_normalize": _l2_normalize,
    "linalg.l2_normalize": _l2_normalize,
    "linalg.matmul": _matmul,
    "matmul": _matmul,
    "concat": _concat,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "reshape": _reshape,
    "expand_dims": _with("numpy", "ExpandDims", "axis", "axis"),
    "squeeze": _squeeze,
    "compat.v1.squeeze": _squeeze,
    "transpose": _transpose,
    "compat.v1.transpose": _transpose,
    "tile": _with("numpy", "Tile", "repeats", "multiples"),
    "reverse": _with("numpy", "Flip", "axis", "axis"),
    "cast": _cast,
    "nn.softmax": _softmax("Softmax"),
    "nn.log_softmax": _softmax("LogSoftmax"),
    "nn.leaky_relu": _leaky_relu,
    "nn.gelu": _gelu,
    "clip_by_value": _clip,
    "where": _where,
    "compat.v1.gather": _gather,
    "gather": _gather,
    "one_hot": _one_hot,
    "pad": _pad,
    "compat.v1.pad": _pad,
    "math.argmax": _with("numpy", "Argmax", "axis", "axis", output_type="int64"),
    "math.argmin": _with("numpy", "Argmin", "axis", "axis", output_type="int64"),
    "__operators__.getitem": _getitem,
}


def translate_function(node: Node, graph: Graph, context: Context) -> None:
    """Make a TFOpLambda or SlicingOpLambda an operation of Keras 3 where there is an exact one, in place."""
    function = str(node.config.get("function"))
    rule = RULES.get(function)
    calls = graph.calls.get(node.name, [])
    operations: list[Operation] = []
    for call in calls:
        found = rule(call.args[0], call.kwargs) if rule is not None else None
        if found is None:
            context.add(node, "function", function, None, "opens", f"tf.{function}: {ABSENT}")
            return
        operations.append(found)
    replace(node, graph, operations, f"tf.{function}", context)
