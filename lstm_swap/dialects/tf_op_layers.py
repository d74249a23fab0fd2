"""TensorFlow graph operations in a model of tf.keras 1.13 to 2.3 (TensorFlowOpLayer), as operations of Keras 3.

Such a layer holds the operation's NodeDef as JSON and, by position, the inputs that are constants
(`TensorFlowOpLayer` in tf_keras/src/engine/base_layer.py).
"""

from __future__ import annotations

import json
from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects.context import Context
from lstm_swap.dialects.graph import Graph
from lstm_swap.dialects.operations import Operation, replace

_BINARY = {
    "Add": "Add",
    "AddV2": "Add",
    "Sub": "Subtract",
    "Mul": "Multiply",
    "RealDiv": "TrueDivide",
    "Maximum": "Maximum",
    "Minimum": "Minimum",
    "Pow": "Power",
    "Equal": "Equal",
    "NotEqual": "NotEqual",
    "Greater": "Greater",
    "GreaterEqual": "GreaterEqual",
    "Less": "Less",
    "LessEqual": "LessEqual",
}
_UNARY = {
    "Abs": ("numpy", "Absolute"),
    "Exp": ("numpy", "Exp"),
    "Floor": ("numpy", "Floor"),
    "Log": ("numpy", "Log"),
    "Neg": ("numpy", "Negative"),
    "Rsqrt": ("math", "Rsqrt"),
    "Sigmoid": ("nn", "Sigmoid"),
    "Softplus": ("nn", "Softplus"),
    "Sqrt": ("numpy", "Sqrt"),
    "Square": ("numpy", "Square"),
    "Tanh": ("numpy", "Tanh"),
    "Relu": ("nn", "Relu"),
    "Relu6": ("nn", "Relu6"),
    "Elu": ("nn", "Elu"),
    "Selu": ("nn", "Selu"),
}
_REDUCTIONS = {"Mean": "Mean", "Sum": "Sum", "Max": "Max", "Min": "Min", "Prod": "Prod", "Any": "Any", "All": "All"}
_TYPES = {
    "DT_HALF": "float16",
    "DT_BFLOAT16": "bfloat16",
    "DT_FLOAT": "float32",
    "DT_DOUBLE": "float64",
    "DT_INT32": "int32",
    "DT_INT64": "int64",
    "DT_BOOL": "bool",
}


def translate_op_layer(node: Node, graph: Graph, context: Context) -> None:
    """Make a TensorFlowOpLayer an operation of Keras 3 where there is an exact one, in place."""
    definition = _definition(node.config.get("node_def"))
    op = str(definition.get("op"))
    constants = node.config.get("constants") or {}
    operations = []
    for call in graph.calls.get(node.name, []):
        inputs = list(call.args[0]) if isinstance(call.args[0], list) else [call.args[0]]
        fixed: dict[int, Any] = {}
        for index in sorted(constants, key=int):
            value = constants[index]
            fixed[int(index)] = value.get("value") if isinstance(value, dict) else value
            inputs.insert(int(index), fixed[int(index)])
        found = _operation(op, inputs, fixed, definition.get("attr") or {})
        if found is None:
            message = f"the TensorFlow operation {op}: no operation of Keras 3 was found to compute it"
            context.add(node, "node_def", op, None, "opens", message)
            return
        operations.append(found)
    replace(node, graph, operations, f"the TensorFlow operation {op}", context)


def _definition(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:  # a serialized NodeDef in bytes
            return {}
    return value if isinstance(value, dict) else {}


def _operation(op: str, inputs: list[Any], fixed: dict[int, Any], attr: dict[str, Any]) -> Operation | None:
    """inputs: tensors and constants in order; fixed: the constants among them, by position; attr: of the NodeDef."""
    if op in _BINARY and len(inputs) == 2:
        return Operation("numpy", _BINARY[op], inputs)
    if op in _UNARY and len(inputs) == 1:
        return Operation(*_UNARY[op], inputs)
    if op in _REDUCTIONS and 1 in fixed:
        config = {"axis": fixed[1], "keepdims": _flag(attr, "keep_dims")}
        return Operation("numpy", _REDUCTIONS[op], inputs[:1], config)
    if op in ("MatMul", "BatchMatMul", "BatchMatMulV2") and len(inputs) == 2:
        turned = [
            i
            for i, keys in enumerate((("transpose_a", "adj_x"), ("transpose_b", "adj_y")))
            if any(_flag(attr, key) for key in keys)
        ]
        return Operation("numpy", "Matmul", inputs, transposed=turned)
    last = len(inputs) - 1
    if op == "ConcatV2" and isinstance(fixed.get(last), int):
        return Operation("numpy", "Concatenate", [inputs[:-1]], {"axis": fixed[last]})
    if op == "Pack":
        return Operation("numpy", "Stack", [inputs], {"axis": _integer(attr, "axis")})
    if op == "Squeeze":
        dims = [int(i) for i in (attr.get("squeeze_dims", {}).get("list", {}).get("i") or [])]
        return Operation("numpy", "Squeeze", inputs, {"axis": dims or None})
    if op == "Softmax":
        return Operation("nn", "Softmax", inputs, {"axis": -1})
    if op == "Cast" and attr.get("DstT", {}).get("type") in _TYPES:
        return Operation("core", "Cast", inputs, {"dtype": _TYPES[attr["DstT"]["type"]]})
    if op == "StridedSlice" and {1, 2, 3} <= fixed.keys():
        return _strided_slice(inputs[0], fixed, attr)
    settings = {
        "Reshape": ("Reshape", "newshape"),
        "ExpandDims": ("ExpandDims", "axis"),
        "Transpose": ("Transpose", "axes"),
        "Tile": ("Tile", "repeats"),
        "ReverseV2": ("Flip", "axis"),
    }
    if op in settings and 1 in fixed:
        name, key = settings[op]
        return Operation("numpy", name, inputs[:1], {key: fixed[1]})
    return None


def _strided_slice(x: Any, fixed: dict[int, Any], attr: dict[str, Any]) -> Operation:
    """x[begin:end:stride] with TensorFlow's bit masks (tensorflow/core/ops/array_ops.cc `StridedSlice`)."""
    masks = {key: _integer(attr, f"{key}_mask") for key in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    parts: list[Any] = []
    for i, (begin, end, stride) in enumerate(zip(fixed[1], fixed[2], fixed[3], strict=True)):
        if masks["ellipsis"] >> i & 1:
            parts.append({"class_name": "__ellipsis__", "config": {}})
        elif masks["new_axis"] >> i & 1:
            parts.append(None)
        elif masks["shrink_axis"] >> i & 1:
            parts.append(begin)
        else:
            start = None if masks["begin"] >> i & 1 else begin
            stop = None if masks["end"] >> i & 1 else end
            parts.append({"class_name": "__slice__", "config": {"start": start, "stop": stop, "step": stride}})
    return Operation("numpy", "GetItem", [x, parts])


def _flag(attr: dict[str, Any], key: str) -> bool:
    return bool(attr.get(key, {}).get("b", False))


def _integer(attr: dict[str, Any], key: str) -> int:
    return int(attr.get(key, {}).get("i", 0))  # 64-bit numbers are strings in JSON of protocol buffers
