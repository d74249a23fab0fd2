"""The order in which Keras lists the layers of a functional model.

Both weight formats of Keras 3 go by that order and not by names: HDF5 counts the layers, `.keras` numbers those
of one class. It is not the order of the file: keras/src/ops/function.py `map_graph` sorts layers by depth (the
number of layers between them and the outputs), and within one depth by a depth-first walk from the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lstm_swap.architecture import Node, call_inputs, entry_name, references

Key = tuple[str, int]  # a layer's name and the number of the call


def layer_order(model: Node) -> list[Node]:
    """`model.children` as `model.layers` of the loaded model would list them."""
    config = model.config
    if model.class_name == "Sequential" or "output_layers" not in config:
        return list(model.children)
    fixed, outputs = call_graph(model)
    depth, index = _map_graph(fixed, outputs)
    for t in references(config.get("input_layers", [])):
        if str(t[0]) not in depth:  # an input that nothing uses
            depth[str(t[0])], index[str(t[0])] = 0, -1
    by_name = {str(c.entry.get("name") or entry_name(c.entry)): c for c in model.children}
    reached = [n for n in by_name if n in depth]
    ordered = sorted(reached, key=lambda n: (-depth[n], index[n]))
    left = [c for n, c in by_name.items() if n not in depth]
    return [by_name[n] for n in ordered] + left


def call_graph(model: Node) -> tuple[dict[Key, list[Key]], list[Key]]:
    """What each call of a layer takes, and the outputs: keys (layer name, number of the call)."""
    config = model.config
    calls: dict[Key, list[Key]] = {}
    offset: dict[str, int] = {}
    for child in model.children:
        entry = child.entry
        name = str(entry.get("name") or entry_name(entry))
        nodes = entry.get("inbound_nodes") or []
        # A model's own graph is its call 0 in files of Keras 2, and numbering starts at 1 there.
        offset[name] = 0
        if not nodes:
            calls[(name, 0)] = []
        for i, node in enumerate(nodes):
            calls[(name, i)] = [(str(t[0]), t[1]) for t in call_inputs(node)]
    for name, lowest in _lowest_index(calls, config).items():
        offset[name] = lowest
    fixed = {key: [_known(k, calls, offset) for k in inputs] for key, inputs in calls.items()}
    outputs = [_known((str(t[0]), t[1]), calls, offset) for t in references(config["output_layers"])]
    return fixed, outputs


def has_cycle(calls: dict[Key, list[Key]]) -> str | None:
    """The name of a layer whose call needs its own result; None for a graph that can be computed."""
    done: set[Key] = set()
    for start in calls:
        stack, entered = [(start, iter(calls[start]))], {start}
        while start not in done:
            key, inputs = stack[-1]
            following = next((k for k in inputs if k in calls and k not in done), None)
            if following is None:
                done.add(key)
                entered.discard(key)
                stack.pop()
            elif following in entered:
                return following[0]
            else:
                entered.add(following)
                stack.append((following, iter(calls[following])))
    return None


def _lowest_index(calls: dict[Key, list[Key]], config: dict[str, Any]) -> dict[str, int]:
    """The smallest call number by which each layer is referred to, where that call does not exist as such."""
    used: dict[str, set[int]] = {}
    refs = [key for inputs in calls.values() for key in inputs]
    refs += [(str(t[0]), t[1]) for t in references(config["output_layers"])]
    for name, i in refs:
        used.setdefault(name, set()).add(i)
    return {n: min(s) for n, s in used.items() if any((n, i) not in calls for i in s)}


def _known(key: Key, calls: dict[Key, list[Key]], offset: dict[str, int]) -> Key:
    name, i = key
    shifted = (name, i - offset.get(name, 0))
    return shifted if shifted in calls else key


def _map_graph(calls: dict[Key, list[Key]], outputs: list[Key]) -> tuple[dict[str, int], dict[str, int]]:
    """Depth and traversal index of each layer that the outputs reach."""
    finished: dict[Key, None] = {}
    index: dict[str, int] = {}
    entered: set[Key] = set()
    stack: list[tuple[Key | None, Iterator[Key]]] = [(None, iter(outputs))]
    while stack:
        key, inputs = stack[-1]
        following = next(inputs, None)
        if following is None:
            stack.pop()
            if key is not None:
                finished[key] = None
        elif following not in entered and following in calls:
            entered.add(following)
            index.setdefault(following[0], len(index))
            stack.append((following, iter(calls[following])))
    node_depth: dict[Key, int] = {}
    layer_depth: dict[str, int] = {}
    for key in reversed(finished):
        depth = max(node_depth.get(key, 0), layer_depth.get(key[0], 0))
        layer_depth[key[0]] = node_depth[key] = depth
        for source in calls[key]:
            if source in finished:
                node_depth[source] = max(depth + 1, node_depth.get(source, 0))
    return layer_depth, index
