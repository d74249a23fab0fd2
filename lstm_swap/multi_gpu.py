"""Models saved through `keras.utils.multi_gpu_model`: the wanted model is the one inside.

The wrapper (keras/utils/multi_gpu_utils.py of Keras 2) cuts each input into slices with Lambda layers, calls the
inner model once per slice, and concatenates each of its outputs. It computes what the inner model computes.
"""

from __future__ import annotations

from lstm_swap.architecture import Change, Node, call_inputs, entry_name
from lstm_swap.formats import ModelFile


def unwrap(model: ModelFile) -> list[Change]:
    """Put the inner model in the wrapper's place; no change where `model` is no such wrapper."""
    if model.entry is None:
        return []
    inner = _inner_model(model.root)
    if inner is None:
        return []
    outer = model.root
    for key in ("inbound_nodes", "name"):
        inner.entry.pop(key, None)
    inner.config.setdefault("name", inner.name)
    model.entry = inner.entry
    model.root = inner
    inner.parent, inner.role = None, "model"
    prefix = f"{inner.path}/"
    for node in inner.walk():
        node.path = node.path.removeprefix(prefix) if node is not inner else ""
    message = f"multi_gpu_model wrapper {outer.name!r} removed: the model inside, {inner.name!r}, computes the same"
    return [Change(inner.name, "class_name", outer.name, inner.name, "report", message)]


def _inner_model(root: Node) -> Node | None:
    """The model that a multi_gpu_model wrapper calls once per GPU; None for any other model."""
    if not root.config.get("output_layers"):
        return None
    models = [c for c in root.children if c.is_model]
    if len(models) != 1 or len(models[0].entry.get("inbound_nodes") or []) < 2:
        return None
    inner = models[0]
    by_name = {_called(c): c for c in root.children}
    for child in root.children:
        sources = {str(r[0]) for call in child.entry.get("inbound_nodes") or [] for r in call_inputs(call)}
        classes = {by_name[s].class_name for s in sources if s in by_name}
        if child.class_name == "InputLayer":
            continue
        if child is inner:
            fits = classes == {"Lambda"}
        elif child.class_name == "Lambda":
            fits = classes == {"InputLayer"}
        else:  # the merge: Concatenate, or in older versions the Merge of one output's slices
            fits = child.class_name in ("Concatenate", "Merge") and sources == {_called(inner)}
        if not fits:
            return None
    return inner


def _called(node: Node) -> str:
    return str(node.entry.get("name") or entry_name(node.entry))
