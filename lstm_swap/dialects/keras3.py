"""Keras 3 back to Keras 2: for the layers that both know, so that the result opens in tf.keras 2.15 and tf_keras."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import Change, Node
from lstm_swap.dialects.calls2 import translate_calls2
from lstm_swap.dialects.catalog import ALIASES
from lstm_swap.dialects.context import Context, damage_named, default_dtype
from lstm_swap.dialects.graph import Graph, Ref, is_functional
from lstm_swap.dialects.hard_sigmoid import TO_KERAS3, scale_hard_sigmoid
from lstm_swap.dialects.insertion import Insertions
from lstm_swap.dialects.known import built_in, is_own_class
from lstm_swap.dialects.layers2 import is_known3, translate_layer2
from lstm_swap.dialects.modern import modernize

__all__ = ["add_modules", "modernize", "to_keras2"]


def to_keras2(root: Node, *, modules: bool = False) -> list[Change]:
    """Rewrite a Keras 3 architecture as one that Keras 2 opens, with the same numbers, in place.

    Layers of unknown classes and Lambdas stay as they are; a Lambda of Keras 3 is not readable by Keras 2.

    Args:
        modules: write the module of each class, as tf.keras 2.13 to 2.15 needs it in a `.keras` zip. HDF5 files of
            Keras 2 have none.

    Raises:
        UnsupportedLayerError: a layer or setting that Keras 2 has not; the message names it.
        UnreadableModelError: the calls between layers refer to layers that are not there, or nest too deep.
    """
    context = Context(version="3", default_dtype=default_dtype(root))
    insertions = Insertions(modern=False)
    with damage_named():
        modernize(root)  # tells layers from operations of the same name
        nodes = list(root.walk())
        for node in nodes:
            if not node.is_model and not is_own_class(node.entry):
                scale_hard_sigmoid(node, context, insertions, 1 / TO_KERAS3)
        graphs = {id(node): Graph(node, "keras3") for node in nodes if is_functional(node.entry)}
        for node in nodes:
            name = ALIASES.get(node.class_name, node.class_name)
            if node.is_model or is_own_class(node.entry):
                continue
            if name != "Lambda" and (is_known3(name) or str(node.entry.get("module")).startswith("keras.src.ops")):
                kept = context.changes
                if node.implicit:
                    context.changes = []
                translate_layer2(node, context)
                context.changes = kept
        for node in reversed(nodes):
            if node.is_model:
                _model(node, graphs.get(id(node)), insertions)
    if modules:
        add_modules(root)
    return context.changes


def add_modules(root: Node) -> None:
    """Mark every built-in class of a Keras 2 architecture with its module, as the `.keras` zips of tf.keras 2.15 do."""
    for node in root.walk():
        entry = node.entry
        if node.implicit or is_own_class(entry) or not built_in(node.class_name, "keras2"):
            continue
        if not node.is_model:
            entry["module"] = "keras.layers"
        elif is_functional(entry):
            entry["module"] = "keras.src.engine.functional"
        else:
            entry["module"] = "keras"
        entry["registered_name"] = None


def _model(node: Node, graph: Graph | None, insertions: Insertions) -> None:
    entry, config = node.entry, node.config
    own = is_own_class(entry)
    if not own:
        for key in ("module", "registered_name"):
            entry.pop(key, None)
    for key in ("build_config", "shared_object_id"):
        entry.pop(key, None)
    insertions.insert(node, graph)
    if graph is None:
        for key in [k for k in config if k not in ("name", "layers", "build_input_shape")]:
            if not own:
                del config[key]
        if node.children and node.children[0].class_name == "InputLayer":
            config.pop("build_input_shape", None)
        return
    if not own:
        entry["class_name"] = "Functional"
        config.pop("dtype", None)
    translate_calls2(node, graph)
    graph.inputs, graph.outputs = _listed(graph.inputs), _listed(graph.outputs)
    graph.write("keras2")
    if not config.get("trainable", True):
        return
    config.pop("trainable", None)


def _listed(ends: Any) -> Any:
    """A single tensor as a list of one: all that Keras before 2.2 reads."""
    return [ends] if isinstance(ends, Ref) else ends
