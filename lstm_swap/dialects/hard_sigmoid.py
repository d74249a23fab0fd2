"""`hard_sigmoid` kept as it was, with built-in layers alone.

It is clip(0.2 x + 0.5, 0, 1) in Keras 1 and 2 and clip(x / 6 + 0.5, 0, 1) in Keras 3, so its argument is to be
multiplied by 1.2 on the way to Keras 3. Where the argument is linear in the layer's own weights, those are
multiplied; elsewhere a `Rescaling` layer goes in front.

An LSTM or ConvLSTM whose `activation` is hard_sigmoid has no such form: that function also acts on the cell state,
h = o * activation(c), which no weight multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lstm_swap.architecture import Node, layer_entries
from lstm_swap.dialects import objects
from lstm_swap.dialects.array_edits import ScaleGates, ScaleLinear
from lstm_swap.dialects.context import Context, unsupported
from lstm_swap.dialects.graph import Call, Graph, Ref
from lstm_swap.dialects.names import unique_name

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


@dataclass
class ScalingLayers:
    """The Rescaling layers to be put in front of layers, by id of the model that holds them."""

    factor: float = TO_KERAS3
    before: dict[int, list[Node]] = field(default_factory=dict)

    def insert(self, model: Node, graph: Graph | None, context: Context) -> None:
        """Put them into `model`, and into its graph where it has one."""
        targets = {id(node): node for node in self.before.get(id(model), [])}
        if not targets:
            return
        taken = {child.name for child in model.children}
        children: list[Node] = []
        for child in model.children:
            if id(child) in targets:
                new = self._layer(child, model, unique_name(f"{child.name}_scale", taken), context)
                taken.add(new.name)
                children.append(new)
                if graph is not None:
                    _wire(graph, child.name, new)
            children.append(child)
        inserted = [child.entry for child in children]
        model.children[:] = children
        others = [e for e in layer_entries(model.entry) if id(e) not in {id(c) for c in inserted}]
        layer_entries(model.entry)[:] = inserted + others

    def _layer(self, target: Node, model: Node, name: str, context: Context) -> Node:
        config: dict[str, Any] = {
            "name": name,
            "trainable": True,
            "dtype": target.config.get("dtype") or context.default_dtype,
            "scale": self.factor,
            "offset": 0.0,
        }
        entry = {"module": "keras.layers", "class_name": "Rescaling", "config": config, "registered_name": None}
        if "name" in target.entry:
            entry["name"] = name
        return Node(entry, name, f"{model.path}/{name}" if model.path else name, "item", model)


def _wire(graph: Graph, target: str, new: Node) -> None:
    """Send the input of every call of `target` through a call of the new layer."""
    calls = graph.calls[target]
    graph.entries[new.name] = new.entry
    graph.calls[new.name] = [Call([call.args[0]]) for call in calls]
    for number, call in enumerate(calls):
        call.args = [Ref(new.name, number), *call.args[1:]]


def scale_hard_sigmoid(node: Node, context: Context, scaling: ScalingLayers) -> None:
    """Note what keeps the `hard_sigmoid`s of `node` (translated to Keras 3 already) exact: edits or a new layer.

    Raises:
        UnsupportedLayerError: nothing does.
    """
    name, config = node.class_name, node.config
    activation = objects.activation_name(config.get("activation")) == "hard_sigmoid"
    gate = objects.activation_name(config.get("recurrent_activation")) == "hard_sigmoid"
    if not (activation or gate) or node.entry.get("module") != "keras.layers":
        return
    factor = scaling.factor
    kind = _KINDS.get(name)
    if kind is not None:
        if activation and kind in ("lstm", "conv_lstm"):
            raise unsupported(
                node,
                "activation",
                "hard_sigmoid",
                "hard_sigmoid has another slope in Keras 3, and the one that acts on the cell state cannot be made good "
                "by any weights. Give the layer a custom activation with the old slope.",
            )
        node.edits.append(ScaleGates(kind, factor, gates=gate, candidate=activation))
        fields = [f for f, used in (("recurrent_activation", gate), ("activation", activation)) if used]
        what = "its columns in kernel, recurrent kernel and bias were"
    elif name in _LINEAR:
        node.edits.append(ScaleLinear(factor, _LINEAR[name]))
        fields, what = ["activation"], "its kernel and bias were"
    elif activation:
        target = _top(node)
        scaling.before.setdefault(id(target.parent), []).append(target)
        fields, what = ["activation"], f"a Rescaling({factor:.4g}) was put in front, so its input is"
    else:
        return
    for field_ in fields:
        message = (
            f"hard_sigmoid is clip(0.2 x + 0.5) in this file and clip(x / 6 + 0.5) in Keras 3: {what} multiplied by "
            f"{factor:.4g}, which keeps the numbers"
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
                "hard_sigmoid has another slope in Keras 3, and the input of a layer inside "
                f"{top.parent.class_name if top.parent else 'nothing'} cannot be multiplied.",
            )
        top = top.parent
    return top


