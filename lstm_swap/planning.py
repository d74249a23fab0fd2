"""The plan: what happens to each recurrent layer, decided from the architecture before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.errors import UsageError
from lstm_swap.masks import masked_layers
from lstm_swap.rules import CLASSES, FORMS, SEVERAL_LAYERS, Reason, Settings, judge
from lstm_swap.settings import all_arrays, layer_kind, settings


@dataclass(eq=False)
class Decision:
    """What happens to one recurrent layer.

    action: "swap" (written in another form), "keep" (it is in that form already, or has no other), "refuse" (it
        cannot take the form; `reasons` says why, and it is written in the standard form).
    to_class: the class that it will have; rewrites: settings that change with the form (see `rules.Verdict`).
    max_error: the largest difference that the proof found, once there is one.
    """

    node: Node
    path: str
    settings: Settings
    parameters: int | None
    action: str
    to_class: str
    reasons: list[Reason] = field(default_factory=list)
    rewrites: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    max_error: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "class": self.settings.class_name,
            "kind": self.settings.kind,
            "units": self.settings.units,
            "parameters": self.parameters,
            "action": self.action,
            "to_class": self.to_class,
            "reasons": [r.as_dict() for r in self.reasons],
            "max_error": self.max_error,
        }


@dataclass(eq=False)
class Plan:
    """A decision for every recurrent layer, in the order of the architecture.

    warnings: for live models, faults of the running Keras that touch them.
    """

    to: str
    decisions: list[Decision]
    warnings: list[str] = field(default_factory=list)

    @property
    def refused(self) -> list[Decision]:
        return [d for d in self.decisions if d.action == "refuse"]

    @property
    def swapped(self) -> list[Decision]:
        return [d for d in self.decisions if d.action == "swap"]


def recurrent_layers(root: Node) -> Iterator[Node]:
    """Every recurrent layer of a tree; the cell inside an RNN(cell) is not one of its own."""
    for node in root.walk():
        if layer_kind(node) is not None:
            yield node


def make_plan(root: Node, to: str, *, inference: bool = False, version: str | None = None) -> Plan:
    """Decide about every recurrent layer of the tree.

    to: "standard", "fused" or "cudnn". version: the Keras version that wrote the architecture, for its defaults.

    Raises:
        UsageError: an unknown form.
    """
    if to not in FORMS:
        raise UsageError(f"unknown form {to!r}; the forms are {', '.join(FORMS)}")
    masked = masked_layers(root) if to == "cudnn" else set()
    plan = Plan(to, [])
    by_node: dict[int, Decision] = {}
    for node in recurrent_layers(root):
        decision = _decide(node, to, inference, version, id(node) in masked)
        by_node[id(node)] = decision
        plan.decisions.append(decision)
    for node in root.walk():
        if node.class_name == "Bidirectional":
            _pair(node, by_node)
    return plan


#: Classes of `lstm_swap.layers`: they load after `import lstm_swap.layers`.
FUSED_CLASSES = ("FusedLSTM", "FusedGRU")


def _decide(node: Node, to: str, inference: bool, version: str | None, masked: bool) -> Decision:
    found = settings(node, version=version, mask=masked)
    if node.config.get("use_cudnn") is False:  # live layers alone say so; Keras does not save it
        found = replace(found, use_cudnn=False)
    verdict = judge(found, to, inference=inference)
    arrays = all_arrays(node)
    parameters = sum(_size(a.shape) for a in arrays) if arrays else None
    decision = Decision(node, node.path, found, parameters, "keep", found.class_name)
    standard = CLASSES.get((found.kind, "standard"), found.class_name)
    if to == "standard":
        # RNN(cell) is a standard layer already; the GPU, fused and experimental classes are not.
        if found.class_name not in (standard, "RNN") and found.kind in ("lstm", "gru"):
            decision.action, decision.to_class = "swap", standard
        if holds_several(node):
            decision.action, decision.to_class, decision.reasons = "refuse", found.class_name, [SEVERAL_LAYERS]
    elif found.kind in ("lstm", "gru") or found.cell is not None:
        if verdict:
            if found.class_name != verdict.to_class:
                decision.action, decision.to_class = "swap", verdict.to_class
            decision.rewrites, decision.notes = dict(verdict.rewrites), list(verdict.notes)
        else:
            _refuse(decision, list(verdict.reasons))
    else:
        decision.reasons = list(verdict.reasons)
    return decision


def holds_several(node: Node) -> bool:
    """Is this a fused layer with `num_layers` or `bidirectional`, as `lstm_swap.optimize` makes them?"""
    config = node.config
    return node.class_name in FUSED_CLASSES and bool(config.get("bidirectional") or config.get("num_layers", 1) != 1)


def _refuse(decision: Decision, reasons: list[Reason]) -> None:
    found = decision.settings
    decision.action, decision.reasons = "refuse", reasons
    decision.to_class = (
        found.class_name if found.class_name == "RNN" else CLASSES.get((found.kind, "standard"), found.class_name)
    )
    decision.rewrites, decision.notes = {}, []


def _pair(wrapper: Node, by_node: dict[int, Decision]) -> None:
    """Both halves of a Bidirectional swap, or neither."""
    halves = [by_node[id(c)] for c in wrapper.children if id(c) in by_node]
    refused = [d for d in halves if d.action == "refuse"]
    if len(halves) == 2 and len(refused) == 1:
        other = next(d for d in halves if d is not refused[0])
        _refuse(
            other,
            [
                Reason(
                    "partner",
                    "layer",
                    refused[0].path,
                    f"the other half of its Bidirectional, {refused[0].path}, cannot be swapped",
                    "both halves swap or neither",
                )
            ],
        )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
