"""Keras 2 (Keras 2.0 to 2.3, tf.keras 1.x and 2.x) to Keras 3: the whole architecture, with its arrays' edits."""

from __future__ import annotations

from lstm_swap.architecture import Change, Node
from lstm_swap.dialects.catalog import ALIASES, KERAS3_KEYS, ONLY_KERAS2, TRANSLATED
from lstm_swap.dialects.context import Context, damage_named, default_dtype, unsupported
from lstm_swap.dialects.hard_sigmoid import scale_hard_sigmoid
from lstm_swap.dialects.insertion import Insertions
from lstm_swap.dialects.known import is_own_class
from lstm_swap.dialects.layers3 import translate_layer
from lstm_swap.dialects.mask_notes import makes_masks
from lstm_swap.dialects.models3 import translate_model
from lstm_swap.dialects.theano import flip_kernels


def to_keras3(root: Node, *, version: str | None, theano: bool = False) -> list[Change]:
    """Rewrite a Keras 2 architecture as one that Keras 3 opens, with the same numbers, in place.

    Layers of unknown classes and Lambdas stay as they are. Layers are inserted where Keras 3 wants an InputLayer, and
    a Rescaling where no weight can carry what `hard_sigmoid` lost; both without arrays.

    Args:
        root: the tree, with the arrays where there are any (shapes settle what the config leaves open).
        version: the Keras version of the file ("2.2.4-tf"), None where unknown.
        theano: a Keras 2 file that was written with Theano, so that its convolution kernels are to be turned round.
            What came from Keras 1 has them turned round already.

    Returns:
        What was done, for the report.

    Raises:
        UnsupportedLayerError: a built-in layer that Keras 3 cannot compute; the message names it and the setting.
        UnreadableModelError: the calls between layers refer to layers that are not there, or nest too deep.
    """
    context = Context(version=version, default_dtype=default_dtype(root), masks=makes_masks(root))
    with damage_named():
        nodes = list(root.walk())
        context.recurrent = any(node.kind is not None for node in nodes)
        if theano:
            flip_kernels(root, context)
        for node in nodes:
            _translate(node, context)
        insertions = Insertions(modern=True)
        for node in nodes:
            scale_hard_sigmoid(node, context, insertions)
        for node in reversed(nodes):  # innermost first: an outer model's input is that of its first layer
            if node.is_model:
                translate_model(node, context, "keras2", insertions)
    _report_shared(context)
    return context.changes


def _translate(node: Node, context: Context) -> None:
    if node.is_model:
        if node.class_name == "Graph":
            raise unsupported(node, "", None, "Keras 1 dropped this kind of model itself, and Keras 3 has none.")
        return
    name = ALIASES.get(node.class_name, node.class_name)
    if is_own_class(node.entry) or name in ("Lambda", "TensorFlowOpLayer", "TFOpLambda", "SlicingOpLambda"):
        return
    if node.implicit:
        # The forward half stands in the file and speaks for both.
        kept, context.changes = context.changes, []
        translate_layer(node, context)
        context.changes = kept
    elif name in KERAS3_KEYS or name in ONLY_KERAS2 or name in TRANSLATED:
        translate_layer(node, context)


def _report_shared(context: Context) -> None:
    for paths in context.shared.values():
        if len(paths) > 1:
            names = ", ".join(paths)
            message = f"{names} were one layer used in several models; each has its own copy of the weights now"
            context.changes.append(Change(paths[0], "shared_object_id", None, None, "report", message))
