"""Operations of Keras 3 (`keras.ops` in a graph) in the place of layers that wrap TensorFlow functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lstm_swap.architecture import Node, layer_entries
from lstm_swap.dialects.context import Context
from lstm_swap.dialects.graph import Call, Graph, Ref
from lstm_swap.dialects.names import unique_name

ABSENT = "no operation of Keras 3 was found to compute it; it needs TensorFlow code to load"


@dataclass
class Operation:
    """An operation of Keras 3: its module below keras.src.ops, class, settings, and the arguments of one call.

    transposed: arguments whose last two axes are to be exchanged first.
    """

    module: str
    class_name: str
    args: list[Any]
    config: dict[str, Any] = field(default_factory=dict)
    transposed: list[int] = field(default_factory=list)


def replace(node: Node, graph: Graph, operations: list[Operation], what: str, context: Context) -> None:
    """Write one operation for all calls of `node`; where their settings differ the layer stays as it is."""
    first = operations[0] if operations else None
    if first is None or any((o.config, o.transposed) != (first.config, first.transposed) for o in operations):
        context.add(node, "class_name", node.class_name, None, "opens", f"{what}: {ABSENT}")
        return
    old = node.class_name
    entry = node.entry
    entry["module"] = f"keras.src.ops.{first.module}"
    entry["class_name"] = first.class_name
    entry["config"] = {"name": node.name, **first.config}
    entry["registered_name"] = None
    entry.pop("build_config", None)
    for position in first.transposed:
        name = _transposition(node, graph, [operation.args[position] for operation in operations], context)
        for number, operation in enumerate(operations):
            operation.args[position] = Ref(name, number)
    graph.calls[node.name] = [Call(operation.args) for operation in operations]
    message = f"{what} is the operation {first.class_name} in Keras 3"
    context.add(node, "class_name", old, first.class_name, "opens", message)


def _transposition(node: Node, graph: Graph, inputs: list[Any], context: Context) -> str:
    """A new operation in front of `node` that exchanges the last two axes; returns its name."""
    model = graph.model
    name = unique_name(f"{node.name}_transpose", graph.entries)
    entry = {
        "module": "keras.src.ops.numpy",
        "class_name": "Swapaxes",
        "config": {"name": name, "axis1": -2, "axis2": -1},
        "registered_name": None,
        "name": name,
    }
    graph.entries[name] = entry
    graph.calls[name] = [Call([value]) for value in inputs]
    layer_entries(model.entry).append(entry)
    model.children.append(Node(entry, name, f"{model.path}/{name}" if model.path else name, "item", model))
    return name
