"""Is this JSON the architecture of a model? Looked at once, when a file is opened, so that the rest may rely on it.

Foreign files hold anything: what is checked here is what every later step takes for granted, that is, that layers
are objects with a class and settings, that names are texts and differ within a graph, that wrappers wrap something,
and that the calls of a graph refer to its layers and do not run in a circle. Settings are for `settings.check`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lstm_swap.architecture import Node, call_inputs, entry_name, is_model_entry, layer_entries, references
from lstm_swap.errors import LstmSwapError, UnreadableModelError
from lstm_swap.formats.order import call_graph, has_cycle

#: Longest architecture text that is parsed.
CONFIG_LIMIT = 512 << 20

#: Keras has no Bidirectional of Bidirectionals, and each one doubles what is inside it.
BIDIRECTIONAL_LIMIT = 4

_WRAPPED = {"Bidirectional": "layer", "TimeDistributed": "layer", "RNN": "cell"}


@contextmanager
def untrusted(where: str) -> Iterator[None]:
    """A block that works on the content of a foreign file: what it trips over is the file's fault, in one line.

    Raises:
        UnreadableModelError: in the place of the errors that data of an unexpected kind cause.
    """
    try:
        yield
    except LstmSwapError:
        raise
    except RecursionError as problem:
        raise UnreadableModelError(f"{where}: the model is nested too deeply to be read") from problem
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as problem:
        raise UnreadableModelError(
            f"{where}: the architecture holds something that no Keras writes ({type(problem).__name__}: {problem})"
        ) from problem


def parse_architecture(text: Any, where: str, what: str = "model_config") -> dict[str, Any]:
    """The architecture in a JSON text, `str` or UTF-8 `bytes`.

    Raises:
        UnreadableModelError: not a text, not JSON, or no architecture.
    """
    if not isinstance(text, str | bytes):
        raise UnreadableModelError(f"{where}: {what} is not a text ({type(text).__name__})")
    if len(text) > CONFIG_LIMIT:
        raise UnreadableModelError(f"{where}: {what} is absurdly large ({len(text):,} bytes)")
    try:
        entry = json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff"))
    except UnicodeDecodeError:
        raise UnreadableModelError(f"{where}: {what} is not UTF-8 text, so there is no architecture to read") from None
    except RecursionError:
        raise UnreadableModelError(f"{where}: {what} is JSON nested too deeply") from None
    except ValueError as problem:
        raise UnreadableModelError(f"{where}: {what} is not valid JSON ({problem})") from None
    return check_architecture(entry, where, what)


def check_architecture(entry: Any, where: str, what: str) -> dict[str, Any]:
    """The architecture object itself, after a look at its shape.

    Raises:
        UnreadableModelError: no architecture, or one that cannot be followed; the message names the layer.
    """
    if isinstance(entry, dict) and isinstance(entry.get("model_config"), dict):
        entry = entry["model_config"]
    config = entry.get("config") if isinstance(entry, dict) else None
    layers = config.get("layers") if isinstance(config, dict) else config
    if not isinstance(entry, dict) or not isinstance(entry.get("class_name"), str) or config is None:
        raise UnreadableModelError(
            f"{where}: {what} holds {type(entry).__name__}, not the architecture of a model (class_name and config)"
        )
    if not isinstance(layers, list):
        raise UnreadableModelError(
            f"{where}: {what} describes {entry['class_name']!r}, which lists no layers: only Sequential and functional "
            "models state their architecture"
        )
    with untrusted(where):
        _check_tree(entry, where, what)
    return entry


def _check_tree(root: dict[str, Any], where: str, what: str) -> None:
    stack: list[tuple[dict[str, Any], int]] = [(root, 0)]
    while stack:
        entry, doubled = stack.pop()
        if is_model_entry(entry):
            inner = _checked_layers(entry, where, what)
        else:
            inner = list(_inner_layers(entry, where, what))
            doubled += str(entry["class_name"]).split(">")[-1] == "Bidirectional"
            if doubled > BIDIRECTIONAL_LIMIT:
                raise UnreadableModelError(
                    f"{where}: {what}: layer {entry_name(entry)!r} is a Bidirectional inside of {doubled - 1} others"
                )
        stack.extend((e, doubled) for e in inner)


def _checked_layers(model: dict[str, Any], where: str, what: str) -> list[dict[str, Any]]:
    layers = layer_entries(model)
    names: set[str] = set()
    graph = isinstance(model["config"], dict) and "output_layers" in model["config"]
    for layer in layers:
        if not isinstance(layer, dict) or not isinstance(layer.get("class_name"), str):
            raise UnreadableModelError(f"{where}: {what} lists a layer that is no object with a class_name")
        if not isinstance(layer.get("config"), dict | list):
            raise UnreadableModelError(f"{where}: {what}: layer {entry_name(layer)!r} has no config")
        name = _checked_name(layer, where, what)
        if graph and name in names:
            raise UnreadableModelError(f"{where}: {what}: two layers of one model are called {name!r}")
        names.add(name)
    if graph:
        _check_graph(model, names, where, what)
    return layers


def _checked_name(layer: dict[str, Any], where: str, what: str) -> str:
    config = layer["config"]
    for name in (layer.get("name"), config.get("name") if isinstance(config, dict) else None):
        if name is not None and (not isinstance(name, str) or "\0" in name):
            raise UnreadableModelError(f"{where}: {what}: a layer ({layer['class_name']}) has the name {name!r}")
    return str(layer.get("name") or entry_name(layer))


def _inner_layers(layer: dict[str, Any], where: str, what: str) -> Iterator[dict[str, Any]]:
    """The layers that a wrapper, an RNN or StackedRNNCells holds."""
    config = layer["config"]
    if not isinstance(config, dict):
        return
    wrapped = _WRAPPED.get(layer["class_name"].split(">")[-1])
    for key in dict.fromkeys(k for k in (wrapped, "layer", "backward_layer", "cell", "cells", "layers") if k):
        value = config.get(key)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict) and isinstance(inner.get("class_name"), str) and "config" in inner:
                if not isinstance(inner["config"], dict | list):
                    raise UnreadableModelError(f"{where}: {what}: layer {entry_name(inner)!r} has no config")
                _checked_name(inner, where, what)
                yield inner
            elif key == wrapped:
                raise UnreadableModelError(
                    f"{where}: {what}: layer {entry_name(layer)!r} ({layer['class_name']}) has no layer in {key!r}"
                )


def _check_graph(model: dict[str, Any], names: set[str], where: str, what: str) -> None:
    """Do the calls of a functional model refer to its layers, and does data flow one way?"""

    def check(reference: list[Any], place: str) -> None:
        known = isinstance(reference[0], str) and reference[0] in names
        numbers = reference[1:3]
        if known and (len(numbers) < 2 or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in numbers)):
            raise UnreadableModelError(f"{where}: {what}: {place} refers to {str(reference[:3])[:80]}")
        if not known and (len(reference) == 3 or isinstance(reference[3], dict)) and reference[1] != -1:
            raise UnreadableModelError(
                f"{where}: {what}: {place} refers to {reference[0]!r}, which is not in the model"
            )

    for layer in layer_entries(model):
        nodes = layer.get("inbound_nodes")
        if nodes is not None and not isinstance(nodes, list):
            raise UnreadableModelError(f"{where}: {what}: layer {entry_name(layer)!r} has no list in inbound_nodes")
        for node in nodes or []:
            for reference in call_inputs(node):
                if isinstance(node, dict) or len(reference) == 4:
                    check(reference, f"layer {entry_name(layer)!r}")
    for key in ("input_layers", "output_layers"):
        for reference in references(model["config"].get(key) or []):
            check(reference, key)
    node = Node(model, entry_name(model), "", "model")
    node.children = [Node(e, entry_name(e), entry_name(e), "item", node) for e in layer_entries(model)]
    circle = has_cycle(call_graph(node)[0])
    if circle is not None:
        raise UnreadableModelError(
            f"{where}: {what}: layer {circle!r} takes its own output: the graph runs in a circle"
        )
