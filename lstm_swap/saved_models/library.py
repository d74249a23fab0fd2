"""Adding traced functions to the library of a graph that another program wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}


@dataclass(frozen=True)
class Added:
    """A function in the library: its name, whether its call must be stateful, and the dtypes of its outputs."""

    name: str
    stateful: bool
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Traced:
    """A traced function: FunctionDefs by name, the name of the outermost, whether its call must be stateful, dtypes."""

    functions: dict[str, Any]
    root: str
    stateful: bool
    outputs: tuple[int, ...]


def trace(function: Callable[..., Any], specs: Sequence[Any]) -> Traced:
    """Trace `function` for inputs like `specs` (tf.TensorSpec). No op runs."""
    import tensorflow as tf

    concrete = tf.function(function, input_signature=list(specs), autograph=False).get_concrete_function()
    graph = tf.Graph()
    with graph.as_default():
        concrete(*(tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs))
    traced = graph.as_graph_def(add_shapes=True)  # as SavedModels have them: loaders read the inputs' shapes
    (call,) = (node for node in traced.node if node.op in _CALLS)
    functions = {definition.signature.name: definition for definition in traced.library.function}
    types = tuple(call.attr["Tout"].list.type)
    return Traced(functions, call.attr["f"].func.name, call.op == "StatefulPartitionedCall", types)


class Library:
    """The function library of one meta graph, open for additions."""

    def __init__(self, meta_graph: Any) -> None:
        self._graph = meta_graph.graph_def
        self._names = {function.signature.name for function in self._graph.library.function}
        self._ops = {op.name for op in meta_graph.meta_info_def.stripped_op_list.op}
        self._op_list = meta_graph.meta_info_def.stripped_op_list

    def add(self, title: str, traced: Traced) -> Added:
        """Add a traced function with all that it calls, under new names.

        One for each node, though they may be equal: tf2onnx takes the body of a loop apart and fails where two loops
        share one.

        title: the start of the names; a number follows where it is taken.
        """
        name = self._free(title)
        names = {traced.root: name}
        for old in _in_order(traced.root, traced.functions):
            names.setdefault(old, self._free(f"{name}_part_{len(names)}"))
        for old, new in names.items():
            definition = self._graph.library.function.add()
            definition.CopyFrom(traced.functions[old])
            definition.signature.name = new
            _number_arguments(definition)
            for node in definition.node_def:
                _rename(node, names)
                self._trim(node)
        return Added(name, traced.stateful, traced.outputs)

    def _free(self, title: str) -> str:
        name, number = title, 1
        while name in self._names:
            number += 1
            name = f"{title}_{number}"
        self._names.add(name)
        return name

    def _trim(self, node: Any) -> None:
        """Leave out attributes at their defaults, which older programs than this one may not know, and list the op."""
        from tensorflow.python.framework import op_def_registry

        op = op_def_registry.get(node.op)
        if op is None:
            return
        for attribute in op.attr:
            name = attribute.name
            if attribute.HasField("default_value") and name in node.attr and node.attr[name] == attribute.default_value:
                del node.attr[name]
        self._list_op(node.op)

    def call(self, node: Any, added: Added, inputs: Sequence[int]) -> None:
        """Turn `node` in place into a call of `added`; name and inputs stay. inputs: dtypes of the inputs."""
        shapes = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else []
        kept = list(shapes) if len(shapes) == len(added.outputs) else []
        node.attr.clear()
        node.op = "StatefulPartitionedCall" if added.stateful else "PartitionedCall"
        node.device = ""  # it may have been pinned to a GPU
        node.attr["f"].func.name = added.name
        node.attr["Tin"].list.type.extend(inputs)
        node.attr["Tout"].list.type.extend(added.outputs)
        if kept:
            node.attr["_output_shapes"].list.shape.extend(kept)
        self._list_op(node.op)

    def _list_op(self, name: str) -> None:
        from tensorflow.python.framework import op_def_registry

        if self._ops and name not in self._ops:  # an empty list was never filled
            self._ops.add(name)
            self._op_list.op.add().CopyFrom(op_def_registry.get(name))
            self._op_list.op.sort(key=lambda listed: listed.name)


def _number_arguments(definition: Any) -> None:
    """Name the arguments of a FunctionDef by number: TensorFlow counts its traces in some of their names."""
    names = {argument.name: f"argument_{number}" for number, argument in enumerate(definition.signature.input_arg)}

    def renamed(tensor: str) -> str:
        name, colon, rest = tensor.partition(":")
        return f"^{names[name[1:]]}" if name[:1] == "^" and name[1:] in names else names.get(name, name) + colon + rest

    for argument in definition.signature.input_arg:
        argument.name = names[argument.name]
    for node in definition.node_def:
        for position, tensor in enumerate(node.input):
            node.input[position] = renamed(tensor)
    for key, tensor in list(definition.ret.items()):
        definition.ret[key] = renamed(tensor)


def _in_order(root: str, functions: dict[str, Any]) -> list[str]:
    """The functions that `root` calls, in the order of their first mention: the same names each time."""
    found: list[str] = []
    waiting = [root]
    while waiting:
        for node in functions[waiting.pop(0)].node_def:
            for name in _mentioned(node):
                if name in functions and name not in found and name != root:
                    found.append(name)
                    waiting.append(name)
    return found


def _mentioned(node: Any) -> list[str]:
    names = [node.op]
    for key in sorted(node.attr):
        value = node.attr[key]
        kind = value.WhichOneof("value")
        if kind == "func":
            names.append(value.func.name)
        elif kind == "list":
            names += [function.name for function in value.list.func]
    return names


def _rename(node: Any, names: dict[str, str]) -> None:
    node.op = names.get(node.op, node.op)
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            value.func.name = names.get(value.func.name, value.func.name)
        elif kind == "list":
            for function in value.list.func:
                function.name = names.get(function.name, function.name)


def rename_outputs(function: Any, node: str, outputs: Sequence[str]) -> None:
    """After `node` of a FunctionDef became a call: `node:output_h:0` is now `node:output:1`.

    outputs: the former outputs in order, as `name:index`.
    """
    new = {f"{node}:{former}": f"{node}:output:{index}" for index, former in enumerate(outputs)}
    for reader in function.node_def:
        for position, tensor in enumerate(reader.input):
            if tensor in new:
                reader.input[position] = new[tensor]
    for key, tensor in list(function.ret.items()):
        if tensor in new:
            function.ret[key] = new[tensor]
