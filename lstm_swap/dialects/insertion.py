"""Layers that a translation puts in front of others, into the list of a model and into its graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lstm_swap.architecture import Node, layer_entries
from lstm_swap.dialects.graph import Call, Graph, Ref, is_functional
from lstm_swap.dialects.names import unique_name


@dataclass
class _New:
    target: Node
    class_name: str
    suffix: str
    settings: dict[str, Any]


@dataclass
class Insertions:
    """New layers without arrays, each to stand before a layer of a model's list.

    modern: write the entries as Keras 3 does, with their module.
    """

    modern: bool
    wanted: dict[int, list[_New]] = field(default_factory=dict)

    def before(self, target: Node, class_name: str, suffix: str, settings: dict[str, Any]) -> None:
        """Have a layer `class_name` put in front of `target`, named after it; all calls go through it.

        target: an item of a model's list; settings: its config without the name.
        """
        self.wanted.setdefault(id(target.parent), []).append(_New(target, class_name, suffix, settings))

    def insert(self, model: Node, graph: Graph | None) -> None:
        """Put in what is wanted for `model`, and for its graph where it has one."""
        wanted = self.wanted.pop(id(model), [])
        if not wanted:
            return
        by_target = {id(new.target): new for new in wanted}
        taken = {child.name for child in model.children}
        children: list[Node] = []
        entries: dict[int, Node] = {}
        for child in model.children:
            new = by_target.get(id(child))
            if new is not None:
                name = unique_name(child.name + new.suffix, taken)
                taken.add(name)
                inserted = self._node(new, name, model)
                children.append(inserted)
                entries[id(child.entry)] = inserted
                if graph is not None:
                    wire_before(graph, child.name, inserted)
            children.append(child)
        model.children[:] = children
        layers = layer_entries(model.entry)
        layers[:] = [e for old in layers for e in ([entries[id(old)].entry, old] if id(old) in entries else [old])]

    def _node(self, new: _New, name: str, model: Node) -> Node:
        entry: dict[str, Any] = {"class_name": new.class_name, "config": {"name": name, **new.settings}}
        if self.modern:
            entry = {"module": "keras.layers", **entry, "registered_name": None}
        if is_functional(model.entry):
            entry["name"] = name
        return Node(entry, name, f"{model.path}/{name}" if model.path else name, "item", model)


def wire_before(graph: Graph, target: str, new: Node) -> None:
    """Send the first argument of every call of `target` through a call of the new layer."""
    calls = graph.calls[target]
    graph.entries[new.name] = new.entry
    graph.calls[new.name] = [Call([call.args[0]]) for call in calls]
    for number, call in enumerate(calls):
        call.args = [Ref(new.name, number), *call.args[1:]]
