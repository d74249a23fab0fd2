"""The calls between the layers of a functional model, in one form for all dialects.

Keras 1 and 2 write a call as a list of ``[layer, node, tensor]`` or ``[layer, node, tensor, kwargs]``; a nested
model's calls are counted from 1 there, since the model's own graph is its call 0 (`get_config` in
keras/engine/topology.py of Keras 1 and 2, tf_keras/src/engine/functional.py). Keras 3 writes ``{"args", "kwargs"}``
with ``__keras_tensor__`` objects, reads the lists too, counts calls from 0, and counts those of a nested Functional
model from 1 in `input_layers` and `output_layers` alone (keras/src/models/functional.py, `functional_from_config`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lstm_swap.architecture import Node, is_model_entry, layer_entries
from lstm_swap.errors import UnreadableModelError

#: tf_keras/src/engine/node.py: stands for a layer name where a number or array was passed instead of a tensor.
CONSTANT = "_CONSTANT_VALUE"


@dataclass(frozen=True, slots=True)
class Ref:
    """Output number `tensor` of call number `call` (from 0) of the layer `layer`."""

    layer: str
    call: int = 0
    tensor: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """A number or nested list that was passed as the first argument, where a tensor may stand."""

    value: Any


@dataclass
class Call:
    """One call of a layer: `args` and `kwargs` are nested lists and dicts of `Ref`s and plain values."""

    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)


class Graph:
    """The calls of one functional model.

    Attributes:
        model: the model's node.
        entries: the layers' entries by name; calls: the calls of each by name, in order (an InputLayer has none).
        inputs, outputs: nested lists and dicts of `Ref`s.
        shapes: what the file says of a tensor, shape and dtype (Keras 3 alone does).
    """

    def __init__(self, model: Node, dialect: str) -> None:
        self.model = model
        self.entries: dict[str, dict[str, Any]] = {
            layer_name(entry): entry for entry in layer_entries(model.entry) if isinstance(entry, dict)
        }
        self.shapes: dict[Ref, tuple[list[int | None], str]] = {}
        self._base = self._bases_of_lists() if dialect != "keras3" else {}
        #: Nested models whose calls the file counts from 1.
        self.counted_from_one = list(self._base)
        self.calls: dict[str, list[Call]] = {
            name: [self._read_call(node) for node in _nodes(entry)] for name, entry in self.entries.items()
        }
        if dialect == "keras3":
            self._base = {name: 1 for name, entry in self.entries.items() if is_functional(entry)}
        self.inputs = self._read(model.config.get("input_layers"))
        self.outputs = self._read(model.config.get("output_layers"))

    # ------------------------------------------------------------------ reading
    def _bases_of_lists(self) -> dict[str, int]:
        """The number of each layer's first call in the lists of Keras 1 and 2.

        It is 1 for a nested model, except for some that were made without an input; the references tell.
        """
        lowest: dict[str, int] = {}
        highest: dict[str, int] = {}
        places = [self.model.config.get("input_layers"), self.model.config.get("output_layers")]
        places += [entry.get("inbound_nodes") for entry in self.entries.values()]
        for name, index in _references(places, self.entries):
            lowest[name] = min(lowest.get(name, index), index)
            highest[name] = max(highest.get(name, index), index)
        bases = {}
        for name, index in highest.items():
            calls = len(_nodes(self.entries[name]))
            if calls and lowest[name] > 0 and (index >= calls or is_model_entry(self.entries[name])):
                bases[name] = 1
        return bases

    def _ref(self, data: list[Any]) -> Ref:
        name = str(data[0])
        if name not in self.entries:
            raise UnreadableModelError(f"The model {self.model.name!r} refers to a layer {name!r} that is not in it.")
        return Ref(name, max(int(data[1]) - self._base.get(name, 0), 0), int(data[2]))

    def _read_call(self, node: Any) -> Call:
        if isinstance(node, dict) and "args" in node and "kwargs" in node:
            args, kwargs = self._read_objects(node["args"]), self._read_objects(node["kwargs"])
            return Call(args if isinstance(args, list) else [args], kwargs if isinstance(kwargs, dict) else {})
        kwargs = {}

        def first(value: Any) -> Any:
            if _is_tensor(value) and (value[0] in self.entries or value[0] == CONSTANT or len(value) == 4):
                if len(value) == 4 and isinstance(value[3], dict):
                    kwargs.update(value[3])
                return Constant(value[2]) if value[0] == CONSTANT else self._ref(value)
            if isinstance(value, list):
                return [first(v) for v in value]
            return {k: first(v) for k, v in value.items()} if isinstance(value, dict) else value

        argument = first(node)
        if isinstance(argument, list) and len(argument) == 1:
            argument = argument[0]
        return Call([argument], {k: self._read(v) for k, v in kwargs.items()})

    def _read(self, value: Any) -> Any:
        """A nested structure of the lists: tensors are ``[layer, node, tensor]``."""
        if _is_tensor(value) and len(value) == 3 and value[0] in self.entries:
            return self._ref(value)
        if isinstance(value, (list, tuple)):
            return [self._read(v) for v in value]
        return {k: self._read(v) for k, v in value.items()} if isinstance(value, dict) else value

    def _read_objects(self, value: Any) -> Any:
        """A nested structure of Keras 3: tensors are ``__keras_tensor__`` objects."""
        if isinstance(value, dict):
            config = value.get("config")
            if value.get("class_name") == "__keras_tensor__" and isinstance(config, dict):
                ref = self._ref(config["keras_history"])
                if isinstance(config.get("shape"), list):
                    self.shapes[ref] = (config["shape"], str(config.get("dtype", "float32")))
                return ref
            return {k: self._read_objects(v) for k, v in value.items()}
        return [self._read_objects(v) for v in value] if isinstance(value, list) else value

    # ------------------------------------------------------------------ editing
    def replace(self, change: Callable[[Ref], Ref]) -> None:
        """Put `change(ref)` in the place of every reference."""
        for calls in self.calls.values():
            for call in calls:
                call.args = map_refs(call.args, change)
                call.kwargs = map_refs(call.kwargs, change)
        self.inputs = map_refs(self.inputs, change)
        self.outputs = map_refs(self.outputs, change)
        self.shapes = {change(ref): known for ref, known in self.shapes.items()}

    def rename(self, names: dict[str, str]) -> None:
        """Follow layers to their new names."""
        if not names:
            return
        self.entries = {names.get(name, name): entry for name, entry in self.entries.items()}
        self.calls = {names.get(name, name): calls for name, calls in self.calls.items()}
        self.replace(lambda ref: Ref(names.get(ref.layer, ref.layer), ref.call, ref.tensor))

    # ------------------------------------------------------------------ writing
    def write(self, dialect: str) -> None:
        """Write the calls into the entries, as `dialect` ("keras2" or "keras3") reads them."""
        for name, entry in self.entries.items():
            write = self._keras3_call if dialect == "keras3" else self._keras2_call
            entry["inbound_nodes"] = [write(call) for call in self.calls.get(name, [])]
        config = self.model.config
        for key, ends in (("input_layers", self.inputs), ("output_layers", self.outputs)):
            if ends is not None:
                config[key] = map_refs(ends, lambda ref: self._end(ref, dialect))

    def _end(self, ref: Ref, dialect: str) -> list[Any]:
        return [ref.layer, ref.call + self._first(ref.layer, dialect, ends=True), ref.tensor]

    def _first(self, name: str, dialect: str, ends: bool = False) -> int:
        entry = self.entries[name]
        if dialect == "keras3":
            return 1 if ends and is_functional(entry) else 0
        return 1 if is_functional(entry) or _starts_with_input(entry) else 0

    def _keras3_call(self, call: Call) -> Any:
        """Keras 3 reads the lists too; they need no shapes, but hold tensors in the first argument alone."""
        known = all(ref in self.shapes for ref in refs([call.args, call.kwargs]))
        argument = call.args[0] if len(call.args) == 1 else None
        flat = argument if isinstance(argument, list) else [argument]
        simple = bool(flat) and all(isinstance(v, Ref) for v in flat) and not any(refs(call.kwargs))
        if simple and not known:
            return [[ref.layer, ref.call, ref.tensor, dict(call.kwargs)] for ref in flat if isinstance(ref, Ref)]
        return {
            "args": map_refs(_plain(call.args), self._tensor_object),
            "kwargs": map_refs(_plain(call.kwargs), self._tensor_object),
        }

    def _tensor_object(self, ref: Ref) -> dict[str, Any]:
        # Keras 3 asks for a shape here and never looks at it: what it uses is the layer's own output.
        shape, dtype = self.shapes.get(ref, ([None], "float32"))
        config = {"shape": shape, "dtype": dtype, "keras_history": [ref.layer, ref.call, ref.tensor]}
        return {"class_name": "__keras_tensor__", "config": config}

    def _keras2_call(self, call: Call) -> Any:
        def tensor(ref: Ref) -> list[Any]:
            return [ref.layer, ref.call + self._first(ref.layer, "keras2"), ref.tensor]

        kwargs = map_refs(call.kwargs, tensor)

        def first(value: Any) -> Any:
            if isinstance(value, Ref):
                return [*tensor(value), kwargs]
            if isinstance(value, Constant):
                return [CONSTANT, -1, value.value, kwargs]
            if isinstance(value, list):
                return [first(v) for v in value]
            return {k: first(v) for k, v in value.items()} if isinstance(value, dict) else value

        written = first(call.args[0])
        return [written] if isinstance(call.args[0], (Ref, Constant)) else written


def is_functional(entry: dict[str, Any]) -> bool:
    """Is this entry a model with a graph (not a Sequential)?"""
    config = entry.get("config")
    return is_model_entry(entry) and isinstance(config, dict) and "input_layers" in config


def layer_name(entry: dict[str, Any]) -> str:
    """The name by which the calls of a functional model refer to a layer."""
    config = entry.get("config")
    return str(entry.get("name") or (config.get("name") if isinstance(config, dict) else None) or "?")


def map_refs(value: Any, change: Callable[[Ref], Any]) -> Any:
    """A nested structure with `change` applied to every `Ref`."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, list):
        return [map_refs(v, change) for v in value]
    return {k: map_refs(v, change) for k, v in value.items()} if isinstance(value, dict) else value


def refs(value: Any) -> Iterator[Ref]:
    """Every `Ref` of a nested structure, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from refs(part)


def _plain(value: Any) -> Any:
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _nodes(entry: dict[str, Any]) -> list[Any]:
    nodes = entry.get("inbound_nodes")
    return nodes if isinstance(nodes, list) else []


def _starts_with_input(entry: dict[str, Any]) -> bool:
    layers = layer_entries(entry) if is_model_entry(entry) else []
    return bool(layers) and isinstance(layers[0], dict) and layers[0].get("class_name") == "InputLayer"


def _is_tensor(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and isinstance(value[1], int)
    )


def _references(value: Any, names: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """(layer, node) of every tensor in the lists, at any depth."""
    stack = [value]
    while stack:
        value = stack.pop()
        if _is_tensor(value) and value[0] in names:
            yield value[0], value[1]
            stack.extend(value[3:])
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
        elif isinstance(value, dict) and value.get("class_name") != "__keras_tensor__":
            stack.extend(value.values())
