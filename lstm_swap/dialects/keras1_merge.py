"""Keras 1's Merge: a layer with a mode since then a class of its own, and at the head of a Sequential with branches."""

from __future__ import annotations

import json
from typing import Any

from lstm_swap.architecture import Node, entry_name, layer_entries
from lstm_swap.dialects.context import Context, unsupported
from lstm_swap.dialects.insertion import Insertions
from lstm_swap.dialects.names import set_name, unique_name

_MODES = {"sum": "Add", "mul": "Multiply", "ave": "Average", "max": "Maximum", "concat": "Concatenate", "dot": "Dot"}


def translate_merge(node: Node, context: Context, insertions: Insertions) -> None:
    """Give a Merge the class that its mode became in Keras 2, in place. Its branches, if any, stay among its children.

    A mode that is a function becomes a Lambda: the same code, which is never run here.
    """
    old = node.config
    name = str(old.get("name") or "merge")
    mode, kind = old.get("mode", "sum"), old.get("mode_type", "raw")
    config: dict[str, Any] = {"name": name, "trainable": True}
    if kind in ("lambda", "function"):
        new = "Lambda"
        config.update(
            function=mode,
            function_type=kind,
            output_shape=old.get("output_shape"),
            output_shape_type=old.get("output_shape_type", "raw"),
            arguments=old.get("arguments") or {},
        )
    elif mode == "cos":
        new = "Reshape"
        # l1 l2 / sqrt(l1 l1 * l2 l2), and an axis more: (batch, 1) becomes (batch, 1, 1)
        axes = _dot_axes(node, old)
        if any(axis not in (1, -1) for axis in axes):
            raise unsupported(node, "dot_axes", axes, "cos of more than vectors has no layer since Keras 2.")
        insertions.before(node, "Dot", "_dot", {"trainable": True, "axes": axes, "normalize": True})
        config["target_shape"] = [1, 1]
    elif mode in _MODES:
        new = _MODES[mode]
        if mode == "concat":
            config["axis"] = old.get("concat_axis", -1)
        if mode == "dot":
            config.update(axes=_dot_axes(node, old), normalize=False)
    else:
        raise unsupported(node, "mode", mode, "Keras 1 itself knows no such mode.")
    node.entry["class_name"] = new
    node.entry["config"] = config
    context.add(
        node,
        "class_name",
        "Merge",
        new,
        "opens",
        f"Merge with the mode {mode!r} is called {new} since Keras 2"
        if kind == "raw"
        else f"Merge with a function as its mode is a {new} since Keras 2",
    )


def _dot_axes(node: Node, config: dict[str, Any]) -> list[int]:
    axes = config.get("dot_axes", -1)
    if isinstance(axes, int):
        return [axes, axes]
    flat = [a[0] if isinstance(a, list) and len(a) == 1 else a for a in axes] if isinstance(axes, list) else []
    if len(flat) != 2 or not all(isinstance(a, int) for a in flat):
        raise unsupported(node, "dot_axes", axes, "Keras 2 takes one axis of each input.")
    return flat


def leads_to_merge(node: Node) -> bool:
    """Is the head of this Sequential a Merge with branches, maybe inside further Sequentials?"""
    while node.class_name == "Sequential" and node.children:
        node = node.children[0]
    return node.class_name == "Merge" and bool(node.children)


def flattened_layers(root: Node) -> list[Node]:
    """The layers that an HDF5 file of Keras 1 has groups for, in its order.

    A Sequential with branches at its head is saved layer by layer, with those of the branches first
    (`flattened_layers` in keras/models.py of Keras 1.2.2); any other model by its own list.
    """
    if root.class_name != "Sequential" or not root.children:
        return list(root.children)
    head = root.children[0]
    if head.class_name != "Merge" or not head.children:
        return list(root.children)
    layers: list[Node] = []
    seen: set[str] = set()
    for branch in head.children:
        key = json.dumps(branch.entry, sort_keys=True)
        if key not in seen:  # one branch may stand in several places, and is saved once
            seen.add(key)
            layers += flattened_layers(branch) if branch.is_model else [branch]
    return layers + root.children[1:]


class Unfolding:
    """A Sequential with branches at its head, rewritten as a functional model with all layers in one list.

    Keras 1 saves the arrays of such a model layer by layer as well (`flattened_layers` in keras/models.py).
    """

    def __init__(self, model: Node, context: Context) -> None:
        self.model = model
        self.context = context
        self.children: list[Node] = []
        self.inputs: list[str] = []
        self.taken: set[str] = set()
        self.branches: dict[str, str] = {}  # the JSON of a branch, and the layer that it ends with

    def run(self) -> None:
        """Rewrite `model` in place. Call it before the layers inside are translated."""
        name = str(self.model.config.get("name") or self.model.entry.get("name") or self.model.name).lower()
        last = self._chain(self.model)
        for child in self.children:
            child.parent, child.role = self.model, "item"
            set_name(child, child.name)
        self.model.children[:] = self.children
        self.model.entry["class_name"] = "Model"
        self.model.entry["config"] = {
            "name": name,
            "layers": [child.entry for child in self.children],
            "input_layers": [[name, 0, 0] for name in self.inputs],
            "output_layers": [[last, 0, 0]],
        }
        message = "a Sequential with a Merge at its head is a functional model since Keras 2"
        self.context.add(self.model, "class_name", "Sequential", "Model", "opens", message)

    def _chain(self, model: Node) -> str:
        """Add the layers of a Sequential, one after the other; returns the name of the last."""
        head, *rest = model.children
        last = self._head(head)
        for child in rest:
            last = self._add(child, [last])
        return last

    def _head(self, head: Node) -> str:
        if head.class_name == "Merge" and head.children:
            ends = [self._branch(branch) for branch in head.children]
            head.children = []
            head.config.pop("layers", None)
            return self._add(head, ends)
        if head.class_name == "Sequential" and head.children:
            return self._chain(head)
        if head.class_name == "InputLayer":
            name = self._add(head, [])
            self.inputs.append(name)
            return name
        return self._add(head, self._inputs_of(head))

    def _branch(self, branch: Node) -> str:
        key = json.dumps(branch.entry, sort_keys=True)
        if key not in self.branches:  # one object may stand in several places
            self.branches[key] = self._head(branch)
        return self.branches[key]

    def _inputs_of(self, head: Node) -> list[str]:
        """New input layers for a first layer, from the shape that it states, or for a functional model."""
        if head.is_model:
            found = [e for e in layer_entries(head.entry) if e.get("class_name") == "InputLayer"]
            shapes = [(e["config"].get("batch_input_shape"), e["config"].get("input_dtype")) for e in found]
        else:
            config = head.config
            inner = config.get("layer", {}).get("config", {}) if isinstance(config.get("layer"), dict) else {}
            shape = config.get("batch_input_shape") or inner.get("batch_input_shape")
            shapes = [(shape, config.get("input_dtype"))]
        names = []
        for shape, dtype in shapes:
            if not isinstance(shape, list):
                raise unsupported(head, "batch_input_shape", shape, "a branch of a Merge has to state its input shape.")
            config = {"batch_input_shape": shape, "input_dtype": dtype or "float32", "sparse": False}
            config["name"] = f"{head.name}_input"
            node = Node({"class_name": "InputLayer", "config": config}, config["name"], "", "item", self.model)
            names.append(self._add(node, []))
        self.inputs += names
        return names

    def _add(self, node: Node, sources: list[str]) -> str:
        name = unique_name(entry_name(node.entry), self.taken)
        self.taken.add(name)
        if isinstance(node.entry.get("config"), dict):
            node.entry["config"]["name"] = name
        node.entry["name"] = name
        node.entry["inbound_nodes"] = [[[source, 0, 0] for source in sources]] if sources else []
        # A model's own graph counts as its first call in these lists.
        node.name = name
        for source in node.entry["inbound_nodes"][:1]:
            for item in source:
                if self._is_model(item[0]):
                    item[1] = 1
        self.children.append(node)
        return name

    def _is_model(self, name: str) -> bool:
        return any(child.name == name and child.is_model for child in self.children)
