"""What a translation carries along: the file's version, what it found, and the list of changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lstm_swap.architecture import Change, Node
from lstm_swap.errors import LstmSwapError, UnreadableModelError, UnsupportedLayerError


def version_numbers(version: str | None) -> tuple[int, ...] | None:
    """The numbers of a version, (2, 2, 4) of "2.2.4-tf"; None where there is none."""
    numbers = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(int(n) for n in numbers.group().split(".")) if numbers else None


def wrote_tf_keras(version: str | None) -> bool:
    """Is this a version of tf.keras? Those before 2.4 say "-tf"; Keras itself ended with 2.3.1."""
    numbers = version_numbers(version)
    return bool(version and "-tf" in version) or bool(numbers and numbers >= (2, 4))


@dataclass
class Context:
    """State of one translation.

    Attributes:
        version: the Keras version of the file, None where unknown.
        default_dtype: the dtype of layers that state none.
        changes: what was done.
        input_shapes: by id of a layer's entry, the batch shape and dtype that an old layer stated for its input.
        shared: the layers that carried each shared_object_id.
        causal: ids of the entries of attention layers that had the setting `causal`.
        masks: some layer makes a mask; recurrent: some layer is recurrent.
        reversed_states: ids of the entries of StackedRNNCells that list their states backwards.
    """

    version: str | None = None
    default_dtype: str = "float32"
    changes: list[Change] = field(default_factory=list)
    input_shapes: dict[int, tuple[list[int | None], str | None]] = field(default_factory=dict)
    shared: dict[Any, list[str]] = field(default_factory=dict)
    causal: set[int] = field(default_factory=set)
    masks: bool = False
    recurrent: bool = False
    reversed_states: set[int] = field(default_factory=set)

    @property
    def numbers(self) -> tuple[int, ...] | None:
        return version_numbers(self.version)

    @property
    def tf_keras(self) -> bool:
        return wrote_tf_keras(self.version)

    def add(self, node: Node, field_: str, old: Any, new: Any, effect: str, message: str) -> None:
        """Note a change of `node`; the message is completed with the layer's name."""
        if effect == "style":
            return  # spelling alone; nobody asks, and a file may hold 100,000 layers
        self.changes.append(Change(node.path or node.name, field_, old, new, effect, message))


def unsupported(node: Node, field_: str, value: Any, why: str) -> UnsupportedLayerError:
    """The error for a layer that has no form in the other dialect."""
    what = f" has {field_}={_short(value)}" if field_ else ""
    return UnsupportedLayerError(f"The layer {node.path or node.name!r} ({node.class_name}){what}: {why}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@contextmanager
def damage_named() -> Iterator[None]:
    """What an architecture that no Keras wrote leads to, as an error that says so.

    The translations take for granted what every Keras writes (that a list is a list); a damaged or made-up file need
    not keep to that.
    """
    try:
        yield
    except RecursionError:
        raise UnreadableModelError("The architecture nests deeper than can be read.") from None
    except LstmSwapError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        what = f"{type(problem).__name__}: {problem}"
        raise UnreadableModelError(f"The architecture is not one that Keras writes: {what}") from problem


def default_dtype(root: Node) -> str:
    """The dtype of the first floating array of the model, else float32 (Keras's floatx when nothing else is set)."""
    for node in root.walk():
        for array in node.arrays:
            if array.dtype in ("float16", "float32", "float64", "bfloat16"):
                return array.dtype
    return "float32"
