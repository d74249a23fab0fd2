"""Faults of Keras 3 versions that touch recurrent layers, as a table.

Found by reading the sources of the versions named (`keras/src/layers/rnn`, `keras/src/backend/*/rnn.py`), and measured
where that is said. All of them are on the path that Keras takes by itself to cuDNN: they touch layers that stay Keras's
own, on a machine with a GPU, and neither the fused layers nor layers with `use_cudnn=False`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.planning import Decision
from lstm_swap.rules import judge
from lstm_swap.settings import version_tuple

Version = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A recurrent layer as a fault sees it: its settings and what is around it."""

    decision: Decision
    version: Version
    masked: bool = False

    @property
    def config(self) -> dict[str, Any]:
        return self.decision.node.config

    @property
    def bidirectional(self) -> Node | None:
        parent = self.decision.node.parent
        return parent if parent is not None and parent.class_name == "Bidirectional" else None


@dataclass(frozen=True)
class Fault:
    """What is wrong in which versions.

    Attributes:
        code: a short name.
        backend: Keras's backend.
        first, fixed: the first version that has the fault, and the first that has not; None: not known to be fixed.
        touches: does it touch this layer?
        message: what happens.
        source: where it can be looked up.
        remedy: what helps, beside fused layers.
    """

    code: str
    backend: str
    first: Version
    fixed: Version | None
    touches: Callable[[Place], bool]
    message: str
    source: str
    remedy: str = "use_cudnn=False"

    def is_in(self, version: Version, backend: str) -> bool:
        return backend == self.backend and version >= self.first and (self.fixed is None or version < self.fixed)


def _dropout(place: Place) -> bool:
    return place.decision.settings.dropout > 0


def _returns_state(place: Place) -> bool:
    return place.decision.settings.kind == "gru" and bool(place.config.get("return_state"))


def _flipped(place: Place) -> bool:
    """The LSTM of the JAX backend, backwards with all outputs. From 3.15 a Bidirectional has a call of its own for both
    halves, unless they drop inputs or are stateful."""
    if place.decision.settings.kind != "lstm" or place.masked:
        return False
    if not (place.config.get("go_backwards") and place.config.get("return_sequences")):
        return False
    both_at_once = place.version >= (3, 15) and not _dropout(place) and not place.config.get("stateful")
    return place.bidirectional is None or not both_at_once


def _says_no(place: Place) -> bool:
    return place.bidirectional is not None and place.decision.settings.use_cudnn is not False


def _masked(place: Place) -> bool:
    return place.masked


FAULTS: tuple[Fault, ...] = (
    Fault(
        "dropout at inference",
        "tensorflow",
        (3, 4),
        (3, 9),
        _dropout,
        "drops inputs at inference too, so that predictions are random",
        "keras pull request 20983",
    ),
    Fault(
        "state of a GRU",
        "tensorflow",
        (3, 0),
        (3, 11, 3),
        _returns_state,
        "gives its state in pieces, one a row, with return_state=True",
        "keras issue 20173",
    ),
    Fault(
        "use_cudnn in Bidirectional",
        "tensorflow",
        (3, 0),
        (3, 12),
        _says_no,
        "has forgotten use_cudnn inside Bidirectional: if you gave False, it runs on cuDNN all the same",
        "keras issue 21533",
        "use_cudnn=False set on forward_layer and backward_layer",
    ),
    Fault(
        "any padding but on the right",
        "tensorflow",
        (3, 0),
        None,
        _masked,
        "stops predict with an error if a mask reaches it that leaves out a step before the last valid one, or a row",
        "keras/src/backend/tensorflow/rnn.py, _assert_valid_mask; measured with 3.15.1 on an H200",
    ),
    Fault(
        "time turned round",
        "jax",
        (3, 14),
        None,
        _flipped,
        "returns its outputs in the wrong order of time (go_backwards with return_sequences)",
        "keras/src/backend/jax/rnn.py, lstm; measured with 3.15.1 on an H200",
    ),
)


def runs_on_cudnn(decision: Decision) -> bool:
    """Does Keras, where it finds a GPU, run this layer on cuDNN by itself, as the plan leaves it?"""
    found = decision.settings
    stays = decision.to_class in ("LSTM", "GRU") and found.kind in ("lstm", "gru")
    allowed = not found.unroll and not found.recurrent_dropout and bool(judge(found, "fused"))
    return stays and allowed


def faults(
    decisions: Iterable[Decision], version: str, backend: str, *, masked: frozenset[int] = frozenset()
) -> Iterator[str]:
    """A sentence for each fault of this Keras that touches a layer of the plan on a machine with a GPU.

    Args:
        decisions: of the plan.
        version: Keras's.
        backend: "tensorflow", "jax" or "torch".
        masked: ids of the nodes that a mask may reach.
    """
    numbers = version_tuple(version)
    there = [fault for fault in FAULTS if fault.is_in(numbers, backend)]
    for decision in decisions if there else ():
        if not runs_on_cudnn(decision):
            continue
        place = Place(decision, numbers, id(decision.node) in masked)
        for fault in there:
            if fault.touches(place):
                yield (
                    f"{decision.path}: on a GPU this {decision.to_class} of Keras {version} ({backend}) "
                    f"{fault.message} ({fault.source}); what helps: a fused layer, or {fault.remedy}"
                )
