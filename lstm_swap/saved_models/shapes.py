"""The shapes that TensorFlow infers for the inputs of nodes deep in a graph. No op runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lstm_swap.errors import UnreadableModelError
from lstm_swap.saved_models.calls import MAIN, CallGraph, producer
from lstm_swap.saved_models.node import Shape

#: A constant of more bytes than a protocol buffer can hold is written as one number and a shape; no model needs that.
CONSTANT_LIMIT = 1 << 31


#: More outputs of one node than any op of TensorFlow is used with.
OUTPUT_LIMIT = 1 << 16


def check_sizes(calls: CallGraph, path: Path) -> None:
    """Refuse what TensorFlow would take absurd memory or time to import, or abort at: constants of absurd shapes or of
    another type than their node's, and nodes with millions of outputs.

    Raises:
        UnreadableModelError: naming the node.
    """
    counts: dict[str, list[str]] = {}
    for function in (MAIN, *calls.functions):
        for node in calls.nodes(function):
            for value in node.attr.values():
                kind = value.WhichOneof("value")
                for tensor in [value.tensor] if kind == "tensor" else value.list.tensor if kind == "list" else []:
                    sizes = [dim.size for dim in tensor.tensor_shape.dim]
                    if math.prod(sizes) * 8 > CONSTANT_LIMIT or any(size < 0 for size in sizes):
                        raise UnreadableModelError(f"{path}: node {node.name!r} holds a constant of the shape {sizes}")
                    if node.op == "Const" and "dtype" in node.attr and node.attr["dtype"].type != tensor.dtype:
                        raise UnreadableModelError(f"{path}: node {node.name!r} holds a constant of another type")
            if node.op not in counts:
                counts[node.op] = _output_counts(node.op)
            for name in counts[node.op]:
                if name in node.attr and node.attr[name].i > OUTPUT_LIMIT:
                    raise UnreadableModelError(f"{path}: node {node.name!r} with {name}={node.attr[name].i:,}")


def _output_counts(op: str) -> list[str]:
    """The attributes that say how many outputs a node of this op has."""
    from tensorflow.python.framework import op_def_registry

    known = op_def_registry.get(op)
    return [] if known is None else [out.number_attr for out in known.output_arg if out.number_attr]


class Shapes:
    """Shape inference in one meta graph, as it is when it is first asked."""

    def __init__(self, calls: CallGraph, path: Path) -> None:
        self._calls = calls
        self._path = path
        self._outer: Any = None

    def of_inputs(self, function: str, nodes: Sequence[str]) -> dict[str, list[Shape]]:
        """The shapes of the inputs of `nodes`, all in one function (or the main graph).

        Raises:
            UnreadableModelError: TensorFlow cannot import the part of the graph that leads to them.
        """
        import tensorflow as tf

        try:
            graph = self._import_main(nodes) if function == MAIN else self._import_function(function, nodes)
            return {
                name: [
                    None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
                    for tensor in graph.get_operation_by_name(name).inputs
                ]
                for name in nodes
            }
        except (
            tf.errors.OpError,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            RuntimeError,
            AttributeError,
            MemoryError,
        ) as problem:
            place = f"function {function!r}" if function else "the main graph"
            reason = " ".join(str(problem).split())[:300]
            raise UnreadableModelError(f"{self._path}: TensorFlow cannot import {place}: {reason}") from None

    def _import_main(self, targets: Sequence[str]) -> Any:
        import tensorflow as tf

        wanted = self._calls.main_ancestors(targets)
        source = self._calls.meta_graph.graph_def
        part = tf.compat.v1.GraphDef(versions=source.versions, library=source.library)
        part.node.extend(node for node in source.node if node.name in wanted)
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(part, name="")
        return graph

    def _import_function(self, function: str, targets: Sequence[str]) -> Any:
        import tensorflow as tf
        from tensorflow.python.framework import function_def_to_graph

        if self._outer is None:
            source = self._calls.meta_graph.graph_def
            self._outer = tf.Graph()
            with self._outer.as_default():
                tf.import_graph_def(tf.compat.v1.GraphDef(versions=source.versions, library=source.library), name="")
        with self._outer.as_default():
            return function_def_to_graph.function_def_to_graph(_ancestors(self._calls.functions[function], targets))


def _ancestors(function: Any, targets: Sequence[str]) -> Any:
    """A copy of a FunctionDef with the nodes that lead to `targets` alone, and no outputs."""
    nodes = {node.name: node for node in function.node_def}
    wanted: set[str] = set()
    waiting = deque(targets)
    while waiting:
        name = waiting.popleft()
        if name in wanted or name not in nodes:
            continue
        wanted.add(name)
        waiting.extend(producer(tensor) for tensor in nodes[name].input)
    part = type(function)()
    part.CopyFrom(function)
    del part.node_def[:], part.signature.output_arg[:], part.signature.control_output[:]
    part.ret.clear()
    part.control_ret.clear()
    part.node_def.extend(node for node in function.node_def if node.name in wanted)
    return part
