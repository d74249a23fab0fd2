"""Where masks act in another way in Keras 3, and nothing can be done about it: lines for the report.

- Merging layers: Keras 2 keeps a step that no input masks, and takes an input without a mask as all unmasked
  (`_Merge.compute_mask`). Keras 3 keeps a step that any input keeps, and drops the mask where an input has none
  (keras/src/layers/merging/base_merge.py).
- Bidirectional with `return_sequences`: Keras itself, until 2.3.1, repeats the last output at masked steps. tf.keras 2
  and Keras 3 give zeros there (`force_zero_output_for_mask`).
"""

from __future__ import annotations

from lstm_swap.architecture import Node
from lstm_swap.dialects.context import Context
from lstm_swap.dialects.graph import Graph, Ref, refs

_MERGES = frozenset("Add Average Concatenate Maximum Minimum Multiply Subtract".split())
#: Layers that end a mask: they support none, or their output has no steps any more.
_ENDS = frozenset(
    (
        "Flatten Reshape RepeatVector Permute Dot Lambda Conv1D Conv2D Conv3D SeparableConv1D MaxPooling1D "
        "AveragePooling1D GlobalAveragePooling1D GlobalMaxPooling1D UpSampling1D ZeroPadding1D Cropping1D"
    ).split()
)
Mask = frozenset[str]  # the layers whose masks went into it
NONE: Mask = frozenset()


def makes_masks(root: Node) -> bool:
    """Does any layer make a mask?"""
    return any(_makes_mask(node) for node in root.walk())


def _makes_mask(node: Node) -> bool:
    return node.class_name == "Masking" or (node.class_name == "Embedding" and bool(node.config.get("mask_zero")))


def note_masks(model: Node, graph: Graph | None, context: Context) -> None:
    """Add a line for each layer of `model` that a mask reaches and that treats it in another way in Keras 3."""
    if graph is None:
        mask = NONE
        for child in model.children:
            mask = _after(child, [mask], context)
        return
    nodes = {child.name: child for child in model.children}
    masks: dict[Ref, Mask] = {}
    for name, call in _in_order(graph):
        node = nodes.get(name)
        if node is None:
            continue
        used = graph.calls[name][call].args if graph.calls[name] else []
        inputs = [masks.get(ref, NONE) for ref in refs(used)]
        masks[Ref(name, call)] = _after(node, inputs or [NONE], context)


def _in_order(graph: Graph) -> list[tuple[str, int]]:
    """Every call after the calls whose outputs it takes."""
    waiting: dict[tuple[str, int], int] = {}
    takers: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for name, calls in graph.calls.items():
        for number, call in enumerate(calls):
            sources = {(ref.layer, ref.call) for ref in refs([call.args, call.kwargs])}
            waiting[(name, number)] = len(sources)
            for source in sources:
                takers.setdefault(source, []).append((name, number))
        if not calls:
            waiting[(name, 0)] = 0
    ready = [key for key, count in waiting.items() if count == 0]
    order = []
    while ready:
        key = ready.pop()
        order.append(key)
        for taker in takers.get(key, []):
            waiting[taker] -= 1
            if waiting[taker] == 0:
                ready.append(taker)
    return order


def _after(node: Node, inputs: list[Mask], context: Context) -> Mask:
    """The mask of the layer's output; notes what changes."""
    name = node.class_name
    if _makes_mask(node):
        return frozenset([node.path])
    joined = frozenset().union(*inputs)
    if name in _MERGES and len(set(inputs)) > 1:
        message = (
            "masks meet here: Keras 2 keeps the steps that no input masks, Keras 3 those that any input keeps (and no "
            "mask at all where an input has none), so later layers may see other steps"
        )
        context.add(node, "mask", None, None, "report", message)
    if name == "Bidirectional" and joined and not context.tf_keras:
        forward = node.child("forward")
        if forward is not None and forward.config.get("return_sequences"):
            message = "at masked steps this version repeats the last output, Keras 3 gives zeros"
            context.add(node, "mask", None, None, "report", message)
    if name in _ENDS:
        return NONE
    recurrent = node.child("forward") or node
    if recurrent.kind is not None and not recurrent.config.get("return_sequences"):
        return NONE
    return joined
