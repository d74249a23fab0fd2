"""Calls between layers as Keras 2 writes them: one first argument, everything else by name."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects.context import unsupported
from lstm_swap.dialects.graph import Call, Graph, Ref

_RECURRENT = frozenset(
    "LSTM GRU SimpleRNN RNN ConvLSTM1D ConvLSTM2D ConvLSTM3D Bidirectional CuDNNLSTM CuDNNGRU".split()
)
#: Names of the positional arguments behind the first one (`call` in keras/src/layers).
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_RECURRENT, ("initial_state", "mask", "training")),
    "MultiHeadAttention": ("value", "key", "query_mask", "value_mask", "key_mask", "attention_mask"),
    "Attention": ("mask", "training", "return_attention_scores", "use_causal_mask"),
    "AdditiveAttention": ("mask", "training", "return_attention_scores", "use_causal_mask"),
    "BatchNormalization": ("training", "mask"),
    "TimeDistributed": ("training", "mask"),
}


def translate_calls2(model: Node, graph: Graph) -> None:
    """Bring the calls of a functional model of Keras 3 into Keras 2's form, in place.

    Raises:
        UnsupportedLayerError: a call that has no such form.
    """
    for child in model.children:
        names = _ARGUMENTS.get(child.class_name, ("training", "mask"))
        for call in graph.calls.get(child.name, []):
            _by_name(child, call, names)
            if child.class_name in _RECURRENT:
                _states_as_inputs(call)


def _by_name(node: Node, call: Call, names: tuple[str, ...]) -> None:
    if not call.args:
        first = next(iter(call.kwargs), None)
        if first is None or not isinstance(call.kwargs[first], (Ref, list)):
            raise unsupported(node, "call", sorted(call.kwargs), "it is called without a first argument.")
        call.args = [call.kwargs.pop(first)]
    extra = call.args[1:]
    if len(extra) > len(names):
        raise unsupported(node, "call", len(call.args), "it is called with more arguments than are known by name.")
    call.args = call.args[:1]
    for name, value in zip(names, extra, strict=False):
        if value is not None:
            call.kwargs[name] = value
    for name in [k for k, v in call.kwargs.items() if v is None]:
        del call.kwargs[name]


def _states_as_inputs(call: Call) -> None:
    """Initial states stand behind the sequence (`RNN.__call__` in keras/layers/recurrent.py)."""
    states = call.kwargs.get("initial_state")
    if states is None:
        return
    flat = _flat(states)
    if all(isinstance(state, Ref) for state in flat):
        del call.kwargs["initial_state"]
        call.args = [[call.args[0], *flat]]


def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in _flat(part)] if isinstance(value, list) else [value]
