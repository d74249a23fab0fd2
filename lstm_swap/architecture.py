"""The tree of layers in an architecture, each with its arrays.

A Keras architecture is nested JSON; its arrays lie elsewhere in the file, in one flat list or under paths of
their own. A `Node` joins the two: it refers to the layer's JSON entry (which is edited in place) and to the
arrays that the layer itself owns. Containers fill the arrays in, dialects and swaps append `Edit`s to them,
and nothing is read before it is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

#: Classes of Keras 1, 2 and 3 whose config is a list of layers.
MODEL_CLASSES = frozenset({"Sequential", "Model", "Functional", "Graph"})

#: Recurrent layer classes, by kind. What a class can do is for the rules to say.
RECURRENT_KINDS = {
    "LSTM": "lstm",
    "GRU": "gru",
    "CuDNNLSTM": "lstm",
    "CuDNNGRU": "gru",
    "FusedLSTM": "lstm",
    "FusedGRU": "gru",
    "UnifiedLSTM": "lstm",
    "UnifiedGRU": "gru",
    "SimpleRNN": "simple_rnn",
    "ConvLSTM1D": "conv_lstm",
    "ConvLSTM2D": "conv_lstm",
    "ConvLSTM3D": "conv_lstm",
    "RNN": "other",
}


class Array:
    """One stored array that has not been read yet."""

    __slots__ = ("_read", "dtype", "name", "shape", "source")

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        read: Callable[[], np.ndarray[Any, Any]],
        source: str = "",
    ) -> None:
        self.name = name  # as the file calls it
        self.shape = tuple(int(n) for n in shape)
        self.dtype = dtype  # "float32", "bfloat16", ...
        self._read = read
        self.source = source  # where it lies in its container, for messages and for editing in place

    def read(self) -> np.ndarray[Any, Any]:
        return self._read()

    def __repr__(self) -> str:
        return f"Array({self.name!r}, {self.shape}, {self.dtype})"


class Edit(Protocol):
    """A change of the arrays of one layer. `title` says in words what it does, for the report.

    An edit of a layer that is not recurrent may also have `prove(before, after, rng) -> float`: the largest
    difference of the layer's output at random input, by a reference of its own.
    """

    @property
    def title(self) -> str: ...

    def weights(self, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The layer's arrays after the change, from those before. Shapes and count may change."""

    def slots(self, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]] | None:
        """The same for optimizer slots that mirror the arrays; None where that cannot be known."""


@dataclass
class Change:
    """One thing that a dialect translation did, and what would have happened without it.

    effect: "opens" (the other Keras would not open the file), "numbers" (it would compute something else),
    "report" (harmless, but worth a line), "style" (spelling only; not shown).
    """

    path: str
    field: str
    old: Any
    new: Any
    effect: str
    message: str


@dataclass(eq=False)
class Node:
    """A layer, wrapper, cell or model in an architecture.

    Attributes:
        entry: the JSON object {"class_name": ..., "config": ...}, shared with the architecture and edited in place.
        name: the layer's name; path: the names from the outermost layer in, joined by "/" (the model itself: "").
        role: "model" (the root), "item" (in a model's or StackedRNNCells' list), "layer" (in a wrapper),
            "forward", "backward" (halves of a Bidirectional), "cell" (of an RNN).
        implicit: a backward half that the file does not write down; its entry is a copy of the forward one.
        arrays: the variables that this layer itself owns, in the order of the Keras version of the file:
            trainable ones, then the rest. Not those of `children`.
        edits: what is to be done to the arrays, in order.
    """

    entry: dict[str, Any]
    name: str
    path: str
    role: str
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    implicit: bool = False
    arrays: list[Array] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)

    @property
    def class_name(self) -> str:
        """The class without its package: "lstm_swap>FusedLSTM" is FusedLSTM."""
        return str(self.entry.get("class_name", "")).split(">")[-1]

    @property
    def config(self) -> dict[str, Any]:
        """The layer's own settings ({} where the file has none)."""
        config = self.entry.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def is_model(self) -> bool:
        return is_model_entry(self.entry)

    @property
    def kind(self) -> str | None:
        """lstm, gru, simple_rnn, conv_lstm, other; None for what is not recurrent."""
        return RECURRENT_KINDS.get(self.class_name)

    def walk(self) -> Iterator[Node]:
        """This node and everything inside it, outermost first, in file order."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def child(self, role: str) -> Node | None:
        return next((c for c in self.children if c.role == role), None)


def is_model_entry(entry: dict[str, Any]) -> bool:
    """Is this entry a model, that is, a list of layers?"""
    config = entry.get("config")
    if isinstance(config, list):
        return str(entry.get("class_name")) in MODEL_CLASSES
    # Keras 1's Merge layer also holds "layers": whole models, one a branch.
    return isinstance(config, dict) and isinstance(config.get("layers"), list) and entry.get("class_name") != "Merge"


def layer_entries(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The list of layer entries of a model entry (the live list, not a copy)."""
    config = entry["config"]
    layers: list[dict[str, Any]] = config if isinstance(config, list) else config["layers"]
    return layers


def entry_name(entry: dict[str, Any]) -> str:
    """The name of a layer, which old files keep beside the config and newer ones inside it."""
    config = entry.get("config")
    name = config.get("name") if isinstance(config, dict) else None
    return str(name or entry.get("name") or entry.get("class_name") or "?")


def _looks_like_layer(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("class_name"), str) and "config" in value


def _prefixed(prefix: str, name: str) -> str:
    return name if name.startswith(prefix) else prefix + name


def build_tree(entry: dict[str, Any]) -> Node:
    """The tree of an architecture (`entry`: the model's JSON object). The JSON is referred to, not copied."""
    root = Node(entry, entry_name(entry), "", "model")
    stack = [root]
    while stack:  # no recursion: a file may nest deeper than Python's stack
        node = stack.pop()
        node.children = list(_children(node))
        stack.extend(node.children)
    return root


def _children(node: Node) -> Iterator[Node]:
    def make(entry: dict[str, Any], role: str, name: str | None = None, implicit: bool = False) -> Node:
        name = name or entry_name(entry)
        path = f"{node.path}/{name}" if node.path else name
        return Node(entry, name, path, role, node, implicit=implicit)

    if node.is_model:
        for entry in layer_entries(node.entry):
            if _looks_like_layer(entry):
                yield make(entry, "item")
        return
    config = node.config
    if node.class_name == "Bidirectional" and _looks_like_layer(config.get("layer")):
        forward = config["layer"]
        yield make(forward, "forward", _prefixed("forward_", entry_name(forward)))
        backward = config.get("backward_layer")
        if isinstance(backward, dict) and _looks_like_layer(backward):
            yield make(backward, "backward", _prefixed("backward_", entry_name(backward)))
        else:
            copied = implied_backward(forward)
            yield make(copied, "backward", _backward_name(entry_name(forward)), implicit=True)
        return
    for key, role in (("layer", "layer"), ("cell", "cell")):
        if _looks_like_layer(config.get(key)):
            yield make(config[key], role)
    for key in ("cells", "layers"):
        if isinstance(config.get(key), list):
            for entry in config[key]:
                if _looks_like_layer(entry):
                    yield make(entry, "item")


def _backward_name(forward_name: str) -> str:
    return "backward_" + forward_name.removeprefix("forward_")


def implied_backward(forward: dict[str, Any]) -> dict[str, Any]:
    """The backward half that Keras derives from the forward one: the same layer, time the other way."""
    entry = copy.deepcopy(forward)
    config = entry["config"]
    if isinstance(config, dict):
        config["go_backwards"] = not config.get("go_backwards", False)
        if "name" in config:
            config["name"] = _backward_name(str(config["name"]))
    return entry


def references(value: Any) -> Iterator[list[Any]]:
    """Every reference ["layer", call, output, ...] to a layer's output in a nested structure, in order."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list | tuple):
            if len(item) >= 3 and isinstance(item[0], str) and isinstance(item[1], int):
                yield list(item)
            else:
                stack.extend(reversed(item))
        elif isinstance(item, dict):
            stack.extend(reversed(list(item.values())))


def call_inputs(call: Any) -> Iterator[list[Any]]:
    """The references that one call of a layer takes, in either spelling of `inbound_nodes`."""
    if isinstance(call, dict):  # Keras 3: {"args": [...], "kwargs": {...}} with __keras_tensor__ objects
        stack: list[Any] = [call]
        while stack:
            item = stack.pop()
            if isinstance(item, dict):
                if item.get("class_name") == "__keras_tensor__":
                    yield list(item["config"]["keras_history"])
                else:
                    stack.extend(reversed(list(item.values())))
            elif isinstance(item, list | tuple):
                stack.extend(reversed(item))
        return
    for reference in references(call):
        yield reference
        if len(reference) > 3 and isinstance(reference[3], dict):
            yield from references(reference[3])
