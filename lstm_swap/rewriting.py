"""Carry out a plan: give each swapped layer its new class, settings and array edits. Nothing is read or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_swap.architecture import Node
from lstm_swap.errors import UnsupportedLayerError
from lstm_swap.planning import Decision, Plan, holds_several
from lstm_swap.rules import FORM_OF_CLASS
from lstm_swap.settings import own_config
from lstm_swap.weights import layouts

Arrays = list[np.ndarray[Any, Any]]

#: Settings that every form and every dialect knows.
_COMMON = (
    "name",
    "trainable",
    "dtype",
    "batch_input_shape",
    "return_sequences",
    "return_state",
    "go_backwards",
    "stateful",
    "units",
    "kernel_initializer",
    "recurrent_initializer",
    "bias_initializer",
    "kernel_regularizer",
    "recurrent_regularizer",
    "bias_regularizer",
    "activity_regularizer",
    "kernel_constraint",
    "recurrent_constraint",
    "bias_constraint",
)
_DEFAULTS: dict[str, Any] = {
    "return_sequences": False,
    "return_state": False,
    "go_backwards": False,
    "stateful": False,
}


@dataclass(frozen=True)
class SwapLayout:
    """Edit: a layer's arrays from one layout to another (`weights.layouts.swap`)."""

    kind: str
    source: str
    target: str

    @property
    def title(self) -> str:
        return f"{self.source} -> {self.target} layout"

    def weights(self, arrays: Arrays) -> Arrays:
        return layouts.swap(self.kind, arrays, self.source, self.target)

    def slots(self, arrays: Arrays) -> Arrays | None:
        return layouts.swap_slots(self.kind, arrays, self.source, self.target)


def apply(plan: Plan, dialect: str) -> None:
    """Rewrite every layer that the plan swaps, and every refused one that is not standard yet.

    dialect: the dialect that the architecture is in now; the written settings are spelled for it.

    Raises:
        UnsupportedLayerError: a fused layer that holds several, which only a live model can be taken apart into.
    """
    for decision in plan.decisions:
        if decision.action != "keep" and holds_several(decision.node):
            raise UnsupportedLayerError(
                f"layer {decision.path!r}: {decision.settings.class_name} holds several layers or both directions in "
                "one; open the model in Keras, and save lstm_swap.standardize(model)"
            )
        if decision.action == "swap" or (
            decision.action == "refuse" and decision.to_class != decision.settings.class_name
        ):
            _rewrite(decision, dialect)


def _rewrite(decision: Decision, dialect: str) -> None:
    node, source = decision.node, decision.settings.form
    target = FORM_OF_CLASS[decision.to_class]
    config = own_config(node)
    cell = node.child("cell")
    if cell is not None:  # RNN(cell): the layer takes over what the cell was and owned
        node.arrays, node.edits = cell.arrays, [*cell.edits, *node.edits]
        node.children = [c for c in node.children if c is not cell]
    settings = written_config(config, decision, target, dialect)
    entry = node.entry
    entry["class_name"] = decision.to_class
    entry["config"] = settings
    for key in ("module", "registered_name", "build_config"):
        build = entry.pop(key, None)
        if key == "build_config" and build is not None and dialect == "keras3":
            entry[key] = build
    if dialect == "keras3":
        entry["module"] = "lstm_swap.layers" if target == "fused" else "keras.layers"
        entry["registered_name"] = f"lstm_swap>{decision.to_class}" if target == "fused" else None
    if source != target:
        node.edits.append(SwapLayout(decision.settings.kind, source, target))


def written_config(config: dict[str, Any], decision: Decision, form: str, dialect: str) -> dict[str, Any]:
    """The complete settings of the layer in its new form: nothing is left to a default that versions disagree on."""
    found = decision.settings
    config = {**_DEFAULTS, **config, **decision.rewrites}
    written = {key: config[key] for key in _COMMON if key in config}
    if found.kind == "lstm":
        written["unit_forget_bias"] = config.get("unit_forget_bias", True)
    if form == "cudnn":
        return written
    written["dropout"] = float(config.get("dropout") or 0.0)
    if dialect == "keras3":
        written["seed"] = config.get("seed")
        written["zero_output_for_mask"] = bool(config.get("zero_output_for_mask", False))
    if form == "fused":
        return written
    written.update(
        activation=found.activation,
        recurrent_activation=found.recurrent_activation,
        use_bias=found.use_bias,
        recurrent_dropout=float(config.get("recurrent_dropout") or 0.0),
        unroll=bool(config.get("unroll", False)),
    )
    if found.kind == "gru":
        written["reset_after"] = found.reset_after
    if dialect != "keras3":
        written["implementation"] = config.get("implementation", 2)
    return written


def slots_of(node: Node, arrays: Arrays) -> Arrays | None:
    """Optimizer slots of a layer after all of its edits; None where one of them cannot say."""
    result: Arrays | None = arrays
    for edit in node.edits:
        if result is None:
            return None
        result = edit.slots(result)
    return result
