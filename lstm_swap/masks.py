"""Where masks go: from Embedding(mask_zero=True) and Masking through the graph, wrappers and inner models.

Facts: a layer that does not support masking stops the mask (Keras 2 and 3 raise or warn there), a recurrent layer
passes it on with its sequence and drops it with its last output (keras/src/layers/rnn/rnn.py `compute_mask`), and
so do Lambda, Flatten and pooling. What is unknown is taken to pass it on: an error in that direction costs speed,
in the other one numbers.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from lstm_swap.architecture import Node, call_inputs, entry_name, references

#: Classes that end a mask.
_STOPS = frozenset(
    """Lambda Flatten Reshape Permute RepeatVector GlobalAveragePooling1D GlobalMaxPooling1D
    GlobalAveragePooling2D GlobalMaxPooling2D MaxPooling1D MaxPooling2D AveragePooling1D AveragePooling2D
    Conv1D Conv2D Conv3D SeparableConv1D SeparableConv2D DepthwiseConv1D DepthwiseConv2D LocallyConnected1D
    UpSampling1D UpSampling2D Cropping1D ZeroPadding1D CategoryEncoding""".split()
)

_Key = tuple[str, int, int]  # layer, call, output


def masked_layers(root: Node) -> set[int]:
    """ids of the nodes that a mask reaches, in this model and inside its layers."""
    found: set[int] = set()
    _model(root, [], found)
    return found


def _model(model: Node, inputs: list[bool], found: set[int]) -> bool:
    """Trace one model; `inputs` says which of its inputs carry a mask. Returns whether its output does."""
    if model.config.get("output_layers") is None:
        carried = any(inputs)
        for child in model.children:
            carried = _layer(child, carried, found)
        return carried
    return _graph(model, inputs, found)


def _layer(node: Node, masked: bool, found: set[int]) -> bool:
    """One call of a layer: note the mask, and say whether the result carries one."""
    name = node.class_name
    if masked:
        found.add(id(node))
    if node.is_model:
        return _model(node, [masked], found)
    if name == "Embedding":
        return bool(node.config.get("mask_zero", False))
    if name == "Masking":
        return True
    if name in ("TimeDistributed", "Bidirectional"):
        inner = [_layer(child, masked, found) for child in node.children]
        return masked if name == "TimeDistributed" else any(inner)
    if node.kind is not None:
        config = node.config
        return masked and bool(config.get("return_sequences", False))
    return masked and name not in _STOPS


def _graph(model: Node, inputs: list[bool], found: set[int]) -> bool:
    by_name = {str(c.entry.get("name") or entry_name(c.entry)): c for c in model.children}
    order = [str(ref[0]) for ref in references(model.config.get("input_layers", []))]
    given = dict(zip(order, inputs, strict=False))
    carried: dict[tuple[str, int], bool] = {}
    waiting: deque[tuple[str, int, Any]] = deque()
    for name, child in by_name.items():
        calls = child.entry.get("inbound_nodes") or []
        if not calls:
            carried[(name, 0)] = _layer(child, given.get(name, False), found) or given.get(name, False)
        waiting.extend((name, i, call) for i, call in enumerate(calls))
    stuck = 0
    while waiting and stuck <= len(waiting):
        name, i, call = waiting.popleft()
        sources = [(str(r[0]), int(r[1]), int(r[2])) for r in call_inputs(call) if r[0] in by_name]
        if any(not _have(carried, s[:2], by_name) for s in sources):
            waiting.append((name, i, call))
            stuck += 1
            continue
        stuck = 0
        if by_name[name].kind is not None or by_name[name].class_name == "Bidirectional":
            sources = sources[:1]  # what follows are initial states
        masked = any(_passes(by_name, carried, s) for s in sources) or _explicit_mask(call)
        carried[(name, i)] = _layer(by_name[name], masked, found) or carried.get((name, i), False)
    return any(_get(carried, (str(r[0]), int(r[1]))) for r in references(model.config["output_layers"]))


def _passes(by_name: dict[str, Node], carried: dict[tuple[str, int], bool], key: _Key) -> bool:
    """Does this output carry a mask? States of a recurrent layer (outputs after the first) never do."""
    source = by_name.get(key[0])
    if source is not None and key[2] > 0 and (source.kind is not None or source.class_name == "Bidirectional"):
        return False
    return _get(carried, key[:2])


def _have(carried: dict[tuple[str, int], bool], key: tuple[str, int], by_name: dict[str, Node]) -> bool:
    # Files of Keras 2 count the calls of an inner model from 1.
    return key in carried or (key[0], key[1] - 1) in carried or (by_name[key[0]].is_model and (key[0], 0) in carried)


def _get(carried: dict[tuple[str, int], bool], key: tuple[str, int]) -> bool:
    for i in (key[1], key[1] - 1, 0):
        if (key[0], i) in carried:
            return carried[(key[0], i)]
    return False


def _explicit_mask(call: Any) -> bool:
    """Is the layer called with mask=...?"""
    if isinstance(call, dict):
        return (call.get("kwargs") or {}).get("mask") is not None
    return isinstance(call, list) and any(
        isinstance(t, list) and len(t) > 3 and isinstance(t[3], dict) and t[3].get("mask") is not None for t in call
    )
