"""`hard_sigmoid` kept as it was, with built-in layers alone.

It is clip(0.2 x + 0.5, 0, 1) in Keras 1 and 2 and clip(x / 6 + 0.5, 0, 1) in Keras 3, so its argument is to be
multiplied by 1.2 on the way to Keras 3. Where the argument is linear in the layer's own weights, those are
multiplied; elsewhere a `Rescaling` layer goes in front.

An LSTM or ConvLSTM whose `activation` is hard_sigmoid has no such form: that function also acts on the cell state,
h = o * activation(c), which no weight multiplies.
"""

from __future__ import annotations

from lstm_swap.architecture import Node
from lstm_swap.dialects import objects
from lstm_swap.dialects.array_edits import ScaleGates, ScaleLinear
from lstm_swap.dialects.context import Context, unsupported
from lstm_swap.dialects.insertion import Insertions

TO_KERAS3 = 1.2

_KINDS = {
    **dict.fromkeys(("LSTM", "LSTMCell"), "lstm"),
    **dict.fromkeys(("GRU", "GRUCell"), "gru"),
    **dict.fromkeys(("SimpleRNN", "SimpleRNNCell"), "simple_rnn"),
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), "conv_lstm"),
}
#: Layers that apply their activation to a sum that is linear in their weights: how many arrays stay as they are.
_LINEAR = {
    **dict.fromkeys(("Dense", "EinsumDense", "Conv1D", "Conv2D", "Conv3D"), 0),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose", "DepthwiseConv1D", "DepthwiseConv2D"), 0),
    **dict.fromkeys(("SeparableConv1D", "SeparableConv2D"), 1),
}


def scale_hard_sigmoid(node: Node, context: Context, insertions: Insertions, factor: float = TO_KERAS3) -> None:
    """Note what keeps the `hard_sigmoid`s of `node` (translated to Keras 3 already) exact: edits or a new layer.

    factor: 1.2 to Keras 3, 1 / 1.2 on the way back.

    Raises:
        UnsupportedLayerError: nothing does.
    """
    name, config = node.class_name, node.config
    activation = objects.activation_name(config.get("activation")) == "hard_sigmoid"
    gate = objects.activation_name(config.get("recurrent_activation")) == "hard_sigmoid"
    if not (activation or gate) or (node.entry.get("module") != "keras.layers" and not node.implicit):
        return
    kind = _KINDS.get(name)
    if kind is not None:
        if activation and kind in ("lstm", "conv_lstm"):
            raise unsupported(
                node,
                "activation",
                "hard_sigmoid",
                "hard_sigmoid has another slope in Keras 2 than in Keras 3, and where it acts on the cell state no "
                "weights can make that good. Give the layer a custom activation with the slope of the file.",
            )
        node.edits.append(ScaleGates(kind, factor, gates=gate, candidate=activation))
        fields = [f for f, used in (("recurrent_activation", gate), ("activation", activation)) if used]
        what = "its columns in kernel, recurrent kernel and bias were"
    elif name in _LINEAR:
        node.edits.append(ScaleLinear(factor, _LINEAR[name], transposed=name.endswith("Transpose")))
        fields, what = ["activation"], "its kernel and bias were"
    elif activation:
        target = _top(node)
        settings = {
            "trainable": True,
            "dtype": objects.dtype(target.config.get("dtype")) or context.default_dtype,
            "scale": factor,
            "offset": 0.0,
        }
        insertions.before(target, "Rescaling", "_scale", settings)
        fields, what = ["activation"], f"a Rescaling({factor:.4g}) was put in front, so its input is"
    else:
        return
    for field_ in fields:
        here, there = ("0.2 x", "x / 6") if factor > 1 else ("x / 6", "0.2 x")
        message = (
            f"hard_sigmoid is clip({here} + 0.5) in this file and clip({there} + 0.5) in Keras "
            f"{3 if factor > 1 else 2}: {what} multiplied by {factor:.4g}, which keeps the numbers"
        )
        context.add(node, field_, "hard_sigmoid", "hard_sigmoid", "numbers", message)


def _top(node: Node) -> Node:
    """The item of a model's list that applies `node` to each step or to the whole; scaling may stand before it."""
    top = node
    while top.role != "item":
        if top.parent is None or top.parent.class_name != "TimeDistributed":
            raise unsupported(
                node,
                "activation",
                "hard_sigmoid",
                "hard_sigmoid has another slope in Keras 2 than in Keras 3, and the input of a layer inside "
                f"{top.parent.class_name if top.parent else 'nothing'} cannot be multiplied.",
            )
        top = top.parent
    return top
