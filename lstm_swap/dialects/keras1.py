"""Keras 1 to Keras 2: the whole architecture, with its arrays' edits."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import Change, Node
from lstm_swap.dialects.catalog import ALIASES, KERAS3_KEYS, ONLY_KERAS1, ONLY_KERAS2, TRANSLATED
from lstm_swap.dialects.context import Context, damage_named, default_dtype, unsupported
from lstm_swap.dialects.graph import Graph, is_functional
from lstm_swap.dialects.insertion import Insertions
from lstm_swap.dialects.keras1_layers import translate_layer1
from lstm_swap.dialects.keras1_merge import Unfolding, leads_to_merge, translate_merge
from lstm_swap.dialects.theano import pad_as_theano

_KNOWN = KERAS3_KEYS.keys() | ONLY_KERAS2 | ONLY_KERAS1 | TRANSLATED | ALIASES.keys()


def to_keras2(root: Node, *, theano: bool, version: str | None = None) -> list[Change]:
    """Rewrite a Keras 1 architecture as Keras 2 would have written it, with the same numbers, in place.

    Layers of unknown classes and Lambdas stay as they are.

    Args:
        root: the tree, with the arrays where there are any.
        theano: the arrays were written with Theano, whose convolution turns the kernel round.
        version: the Keras version of the file ("1.0.6"), None where unknown.

    Returns:
        What was done, for the report.

    Raises:
        UnsupportedLayerError: a layer or setting that no later Keras computes; the message names it.
        UnreadableModelError: the architecture is not what Keras 1 writes.
    """
    context = Context(version=version, default_dtype=default_dtype(root))
    with damage_named():
        for node in list(root.walk()):
            if node.class_name == "Graph":
                raise unsupported(node, "", None, "Keras dropped this kind of model in version 1.0 itself.")
            if node.class_name == "Sequential" and leads_to_merge(node):
                Unfolding(node, context).run()
        insertions = Insertions(modern=False)
        nodes = list(root.walk())
        for node in nodes:
            _translate(node, context, theano, insertions)
        for node in nodes:
            if id(node) in insertions.wanted:
                graph = Graph(node, "keras1") if is_functional(node.entry) else None
                insertions.insert(node, graph)
                if graph is not None:
                    graph.write("keras2")
    return context.changes


def _translate(node: Node, context: Context, theano: bool, insertions: Insertions) -> None:
    name = node.class_name
    if node.is_model or name not in _KNOWN or name == "Lambda":
        return
    if name == "Merge":
        translate_merge(node, context, insertions)
        return
    kept = context.changes
    if node.implicit:
        context.changes = []  # the forward half stands in the file and speaks for both
    if name == "TimeDistributedDense":
        _time_distributed_dense(node, context)
        node = node.children[0]
    translate_layer1(node, context, theano)
    if theano:
        pad_as_theano(node, context, insertions)
    context.changes = kept


def _time_distributed_dense(node: Node, context: Context) -> None:
    """TimeDistributedDense as TimeDistributed(Dense), which takes the arrays over."""
    config = node.config
    outer: dict[str, Any] = {"name": config.get("name", node.name), "trainable": config.get("trainable", True)}
    for key in ("batch_input_shape", "input_dtype"):
        if key in config:
            outer[key] = config.pop(key)
    length, features = config.pop("input_length", None), config.get("input_dim")
    if "batch_input_shape" not in outer and features:
        outer["batch_input_shape"] = [None, length, features]
    inner_name = f"{outer['name']}_dense"
    inner = {"class_name": "Dense", "config": {**config, "name": inner_name}}
    outer["layer"] = inner
    if "input_dtype" in outer:
        outer["dtype"] = outer.pop("input_dtype")
    node.entry["class_name"] = "TimeDistributed"
    node.entry["config"] = outer
    child = Node(inner, inner_name, f"{node.path}/{inner_name}", "layer", node)
    child.arrays, child.edits = node.arrays, node.edits
    node.arrays, node.edits = [], []
    node.children = [child]
    message = "TimeDistributedDense is TimeDistributed(Dense) since Keras 2"
    context.add(node, "class_name", "TimeDistributedDense", "TimeDistributed", "opens", message)
