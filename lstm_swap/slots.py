"""Optimizer state: slots that mirror weights are re-laid or re-ordered like them, or dropped with a word.

How it lies in a file: `optimizer_weights` of HDF5 and `optimizer/vars` of `.keras` are flat lists of the optimizer's
variables, in one of three orders:

* Keras 1 and 2 (tf_keras/src/optimizers/legacy): a counter (not in every RMSprop of Keras itself), then a block for
  each kind of slot, with one array per trainable weight: all m, then all v.
* tf.keras 2.11 on: the counter, then Adam's m and v of one weight side by side, its v-hat in a block behind them;
  other optimizers in blocks.
* Keras 3 (keras/src/optimizers): the same with the learning rate behind the counter, unless that follows a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_swap.architecture import Array, Node
from lstm_swap.formats import ModelFile
from lstm_swap.formats.catalogue import variables
from lstm_swap.formats.order import layer_order
from lstm_swap.rewriting import slots_of

_AFRESH = "training starts afresh"

#: Of these optimizers every Keras keeps the same state, if in another order.
_TRANSLATED = frozenset({"Adam", "AdamW", "SGD", "RMSprop", "Adagrad"})


@dataclass(frozen=True)
class _Weight:
    node: Node
    index: int
    shape: tuple[int, ...]

    @property
    def owner(self) -> Node:
        """The layer that owns the weight now: what an RNN's cell had may have become the layer's own."""
        above = self.node.parent
        gone = self.node.role == "cell" and above is not None and self.node not in above.children
        return above if gone and above is not None else self.node


def _layers(root: Node, loaded: bool) -> Iterator[Node]:
    """The layers that train, outermost first.

    loaded: models list their layers as Keras 3 does once it has loaded the file, not as the file does.
    """
    stack = [(root, True)]
    while stack:
        node, trains = stack.pop()
        trains = trains and bool(node.config.get("trainable", True))
        if trains:
            yield node
        children = layer_order(node) if loaded and node.is_model else node.children
        stack.extend((child, trains) for child in reversed(children))


def _trainable(root: Node, dialect: str) -> list[_Weight]:
    """The trainable weights of the model in order: what the optimizer has slots for."""
    found: list[_Weight] = []
    for node in _layers(root, loaded=False):
        known = variables(node, dialect)
        count = len(known.trainable) if known and len(known.names) == len(node.arrays) else len(node.arrays)
        found += [_Weight(node, i, node.arrays[i].shape) for i in range(count)]
    return found


class Slots:
    """Which weight each optimizer array belongs to; taken before anything is rewritten."""

    def __init__(self, model: ModelFile) -> None:
        self.weights = _trainable(model.root, model.dialect)
        self.arrays = list(model.optimizer)
        self.optimizer, self.settings = _optimizer(model)
        self.kinds: list[list[int]] = []  # for each kind of slot the positions of its arrays, by weight
        self.rows = self._match()  # one per optimizer array: the weight it mirrors, or None for a counter

    def _match(self) -> list[_Weight | None] | None:
        count = 0
        while count < len(self.arrays) and self.arrays[count].shape == ():
            count += 1
        slots, n = self.arrays[count:], len(self.weights)
        head: list[_Weight | None] = [None] * count
        if not slots:
            return head
        if not n or len(slots) % n:
            return None
        kinds = len(slots) // n
        blocks = [list(range(k * n, (k + 1) * n)) for k in range(kinds)]
        pairs = [list(range(k, 2 * n, 2)) for k in (0, 1)] + blocks[2:] if kinds > 1 else blocks
        for order in (pairs, blocks) if self._side_by_side() else (blocks, pairs):
            rows: list[_Weight | None] = [None] * len(slots)
            for positions in order:
                for weight, position in zip(self.weights, positions, strict=True):
                    rows[position] = weight
            if all(w is not None and _fits(a, w) for a, w in zip(slots, rows, strict=True)):
                self.kinds = [[count + p for p in positions] for positions in order]
                return head + rows
        return None

    def _side_by_side(self) -> bool:
        """Are m and v of one weight neighbours? So in tf.keras 2.11 and later, whose settings have no `decay`."""
        if self.optimizer not in ("Adam", "AdamW", "Nadam", "Adamax"):
            return False
        return "decay" not in self.settings and "lr" not in self.settings

    def relaid(self, model: ModelFile, container: str, source: str, target: str) -> tuple[list[Array], list[str]]:
        """The optimizer arrays for the rewritten model, and what to say about it."""
        if container == "keras" and not (model.entry or {}).get("compile_config"):
            return [], [f"optimizer state dropped: its settings were not kept; {_AFRESH}"]
        if container != "keras" and target == "keras3":
            # keras/src/legacy/saving/legacy_h5_format.py builds the optimizer for no variables; training fails then.
            return [], [
                "optimizer state dropped: from an HDF5 file that has one Keras 3 cannot train further; write .keras "
                "to keep it"
            ]
        if container != "keras" and model.training_config is None:
            return [], [f"optimizer state dropped: its settings were not kept; {_AFRESH}"]
        crossed = source != target and not (source == "keras1" and target == "keras2")
        if not crossed and not any(node.edits for node in model.root.walk()):
            return _named(self.arrays, container, model), []
        if self.rows is None:
            return [], [f"optimizer state dropped: its arrays match no weights; {_AFRESH}"]
        if not crossed:
            arrays, notes = self._apply()
            return _named(arrays, container, model), notes
        if target != "keras3" or self.optimizer not in _TRANSLATED:
            return [], [f"optimizer state dropped: the other Keras keeps another one for {self.optimizer}; {_AFRESH}"]
        return self._modern(model, container)

    def _apply(self) -> tuple[list[Array], list[str]]:
        """The arrays in the order that they have, those of rewritten layers re-laid."""
        assert self.rows is not None
        result: dict[int, Array] = {}
        gone: set[int] = set()
        for positions in self._by_layer():
            owner = self._at(positions[0]).owner
            old = [self.arrays[p] for p in positions]
            if not owner.edits or any(a.shape != self._at(p).shape for a, p in zip(old, positions, strict=True)):
                continue  # placeholders of shape (1,), as Adam writes without amsgrad
            new = slots_of(owner, [a.read() for a in old])
            if new is None:
                return [], [f"optimizer state dropped: it cannot be known for a rewritten layer; {_AFRESH}"]
            if len(new) > len(positions):
                return [], [f"optimizer state dropped: a rewritten layer has more weights now; {_AFRESH}"]
            for position, array, value in zip(positions, old, new, strict=False):
                result[position] = _held(array.name, array.dtype, value)
            gone.update(positions[len(new) :])
        return [result.get(p, a) for p, a in enumerate(self.arrays) if p not in gone], []

    def _by_layer(self) -> Iterator[list[int]]:
        """The positions of one kind of slot of one layer, in the order of its weights."""
        for kind in self.kinds:
            groups: dict[int, list[int]] = {}
            for position in kind:
                groups.setdefault(id(self._at(position).owner), []).append(position)
            yield from groups.values()

    def _at(self, position: int) -> _Weight:
        assert self.rows is not None
        weight = self.rows[position]
        assert weight is not None
        return weight

    def _modern(self, model: ModelFile, container: str) -> tuple[list[Array], list[str]]:
        """The state of a Keras 2 optimizer as Keras 3 orders it: counter, learning rate, slots in its layer order."""
        optimizer, settings = _optimizer(model)
        wanted = _kinds(optimizer, settings)
        # Adam of Keras 2.1 to 2.3 has placeholders of shape (1,) where it keeps no v-hat.
        kinds = [k for k in self.kinds if all(self.arrays[p].shape == self._at(p).shape for p in k)]
        if len(kinds) != wanted:
            return [], [f"optimizer state dropped: {len(kinds)} kinds of slots found for {optimizer}; {_AFRESH}"]
        columns: list[list[Array]] = []
        for kind in kinds:
            by_layer: dict[int, list[Array]] = {}
            for position in kind:
                by_layer.setdefault(id(self._at(position).owner), []).append(self.arrays[position])
            column: list[Array] = []
            for layer in _layers(model.root, loaded=True):
                old = by_layer.pop(id(layer), [])
                if old and layer.edits:
                    new = slots_of(layer, [a.read() for a in old])
                    if new is None:
                        return [], [f"optimizer state dropped: it cannot be known for a rewritten layer; {_AFRESH}"]
                    old = [_held("", old[0].dtype, value) for value in new]
                column += old
            if by_layer:
                return [], [f"optimizer state dropped: its arrays match no weights; {_AFRESH}"]
            columns.append(column)
        first = self.arrays[0] if self.arrays and self.arrays[0].shape == () else None
        steps = np.asarray(0 if first is None else first.read(), np.int32)
        head = [_held("", str(steps.dtype), steps)]
        rate = settings.get("learning_rate")
        if isinstance(rate, int | float):
            head.append(_held("", "float32", np.float32(rate)))
        if optimizer in ("Adam", "AdamW"):
            slots = [a for pair in zip(columns[0], columns[1], strict=True) for a in pair]
            slots += [a for column in columns[2:] for a in column]
        else:
            slots = [a for column in columns for a in column]
        return _named(head + slots, container, model, rename=True), []


def _optimizer(model: ModelFile) -> tuple[str, dict[str, Any]]:
    """Class and settings of the optimizer, from where the container keeps them; ("", {}) where it does not say."""
    config = model.training_config or (model.entry or {}).get("compile_config") or {}
    entry = config.get("optimizer_config", config.get("optimizer"))
    if not isinstance(entry, dict) or not isinstance(entry.get("config"), dict):
        return "", {}
    name = str(entry.get("class_name", "")).split(">")[-1]
    return {"sgd": "SGD", "rmsprop": "RMSprop"}.get(name.lower(), name[:1].upper() + name[1:]), entry["config"]


def _kinds(optimizer: str, settings: dict[str, Any]) -> int:
    """How many kinds of slots Keras 3 keeps for this optimizer."""
    if optimizer in ("Adam", "AdamW"):
        return 3 if settings.get("amsgrad") else 2
    if optimizer == "SGD":
        return 1 if settings.get("momentum") else 0
    if optimizer == "RMSprop":
        return 1 + bool(settings.get("momentum")) + bool(settings.get("centered"))
    return 1


def _fits(array: Array, weight: _Weight) -> bool:
    return array.shape in (weight.shape, (1,))


def _held(name: str, dtype: str, value: np.ndarray[Any, Any] | np.float32) -> Array:
    """An array in memory."""
    stored = np.asarray(value).astype("float32" if dtype == "bfloat16" else dtype)
    return Array(name, stored.shape, dtype, lambda: stored)


def _named(arrays: list[Array], container: str, model: ModelFile, rename: bool = False) -> list[Array]:
    """The arrays under names that an HDF5 file can hold side by side; those of one container keep theirs."""
    if container == model.container and not rename:
        return arrays
    return [Array(f"variable_{i}", a.shape, a.dtype, a.read, "") for i, a in enumerate(arrays)]
