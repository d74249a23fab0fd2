"""Calls between layers that Keras 3 writes in another way: initial states, masks and arguments that moved."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects.context import Context, unsupported
from lstm_swap.dialects.graph import Call, Constant, Graph, Ref

#: How many states one layer or cell carries.
_STATES = {
    **dict.fromkeys(("LSTM", "CuDNNLSTM", "LSTMCell", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), 2),
    **dict.fromkeys(("GRU", "CuDNNGRU", "GRUCell", "SimpleRNN", "SimpleRNNCell"), 1),
}
_RECURRENT = {"RNN", "Bidirectional", *(name for name in _STATES if not name.endswith("Cell"))}


def translate_calls(model: Node, graph: Graph, context: Context) -> None:
    """Bring the calls of a functional model, whose layers are translated already, into Keras 3's form, in place."""
    for child in model.children:
        calls = graph.calls.get(child.name, [])
        _check_state_order(child, calls, context)
        if child.class_name in _RECURRENT:
            for call in calls:
                _initial_state(child, call, graph, context)
        for call in calls:
            for key in ("constants", "initial_state", "mask"):
                if key in call.kwargs and call.kwargs[key] is None:
                    del call.kwargs[key]  # tf.keras 2.0 writes these out
            if call.kwargs.get("training") is True:
                message = (
                    "training=True is part of the graph and stays there. Keras 3 lets predict() and "
                    "model(x, training=False) overrule it: call model(x) to have dropout on at inference"
                )
                context.add(child, "training", True, True, "report", message)
            if id(child.entry) in context.causal:
                call.kwargs["use_causal_mask"] = True


def _check_state_order(node: Node, calls: list[Call], context: Context) -> None:
    """Keras before 2.2.3 listed the states of stacked cells from the last cell to the first, Keras 3 cannot."""
    cell = node.child("cell")
    if cell is None or cell.class_name != "StackedRNNCells" or id(cell.entry) not in context.reversed_states:
        return
    given = any(isinstance(call.args[0], list) or "initial_state" in call.kwargs for call in calls if call.args)
    if node.config.get("return_state") or given:
        raise unsupported(
            cell,
            "reverse_state_order",
            True,
            "Keras 3 lists the states of stacked cells in the order of the cells alone.",
        )


def _initial_state(node: Node, call: Call, graph: Graph, context: Context) -> None:
    """Old Keras lists initial states (and constants) behind the sequence; Keras 3 passes them as `initial_state`."""
    if call.kwargs.get("constants") is not None:
        raise unsupported(node, "constants", "...", "recurrent layers of Keras 3 take no constants.")
    inputs = call.args[0] if call.args else None
    if not isinstance(inputs, list):
        return
    sequence, states = inputs[0], _flat(inputs[1:])
    count = _state_count(node)
    if count is not None and len(states) > count:
        raise unsupported(
            node, "constants", len(states) - count, "recurrent layers of Keras 3 take no constants beside the states."
        )
    call.args = [sequence]
    units = _units(node)
    for ref in states:
        if isinstance(ref, Ref):
            graph.shapes.setdefault(ref, ([None, units] if units else [None], context.default_dtype))
    call.kwargs["initial_state"] = _nested(node, [s.value if isinstance(s, Constant) else s for s in states])
    message = "the initial states stand among the inputs; Keras 3 takes them as the argument initial_state"
    context.add(node, "initial_state", "inputs", "initial_state", "opens", message)


def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, list) else [value]


def _nested(node: Node, states: list[Any]) -> list[Any]:
    """States as the cell of an RNN wants them: StackedRNNCells takes a list for each cell that has several."""
    cell = node.child("cell")
    if cell is None or cell.class_name != "StackedRNNCells":
        return states
    grouped: list[Any] = []
    left = list(states)
    for inner in cell.children:
        count = _STATES.get(inner.class_name, 1)
        part, left = left[:count], left[count:]
        grouped += [part] if count > 1 else part
    return grouped + left


def _state_count(node: Node) -> int | None:
    """How many states the layer carries; None where its cell is not known."""
    if node.class_name == "Bidirectional":
        halves = [_state_count(child) for child in node.children if child.role in ("forward", "backward")]
        return sum(h for h in halves if h is not None) if halves and None not in halves else None
    cell = node.child("cell")
    if cell is not None:
        if cell.class_name == "StackedRNNCells":
            counts = [_STATES.get(c.class_name) for c in cell.children]
            return None if None in counts else sum(c for c in counts if c is not None)
        return _STATES.get(cell.class_name)
    return _STATES.get(node.class_name)


def _units(node: Node) -> int | None:
    inner = node.child("forward") or node.child("cell") or node
    units = inner.config.get("units")
    return units if isinstance(units, int) else None
