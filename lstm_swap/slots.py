"""Optimizer state: slots that mirror weights are re-laid like them, or dropped with a word.

How it lies in a file: `optimizer_weights` of HDF5 and `optimizer/vars` of `.keras` are flat lists. Keras 1 and 2
write a counter, then one slot per trainable weight for each kind (all m, then all v:
tf_keras/src/optimizers/legacy); the optimizers of TensorFlow 2.11 on and Keras 3 write counters (iteration,
learning rate) and then for each weight its slots side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_swap.architecture import Array, Node
from lstm_swap.formats import ModelFile
from lstm_swap.formats.catalogue import variables
from lstm_swap.rewriting import slots_of


@dataclass(frozen=True)
class _Weight:
    node: Node
    index: int
    shape: tuple[int, ...]


def _trainable(root: Node, dialect: str) -> list[_Weight]:
    """The trainable weights of the model in order: what the optimizer has slots for."""
    found: list[_Weight] = []
    stack = [(root, True)]
    while stack:
        node, trains = stack.pop()
        trains = trains and bool(node.config.get("trainable", True))
        known = variables(node, dialect)
        count = len(known.trainable) if known and len(known.names) == len(node.arrays) else len(node.arrays)
        if trains:
            found += [_Weight(node, i, node.arrays[i].shape) for i in range(count)]
        stack.extend((child, trains) for child in reversed(node.children))
    return found


class Slots:
    """Which weight each optimizer array belongs to; taken before anything is rewritten."""

    def __init__(self, model: ModelFile) -> None:
        self.weights = _trainable(model.root, model.dialect)
        self.arrays = list(model.optimizer)
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
        blocks = self.weights * kinds
        pairs = [w for w in self.weights for _ in range(kinds)]
        for order in (pairs, blocks) if self._side_by_side() else (blocks, pairs):
            if all(_fits(a, w) for a, w in zip(slots, order, strict=True)):
                return head + list(order)
        return None

    def _side_by_side(self) -> bool:
        """Two counters in front (iteration and learning rate) mark the newer layout."""
        return len(self.arrays) > 1 and self.arrays[1].shape == ()

    def relaid(self, model: ModelFile, container: str, source: str, target: str) -> tuple[list[Array], list[str]]:
        """The optimizer arrays for the rewritten model, and what to say about it."""
        if source != target and not (source == "keras1" and target == "keras2"):
            return [], ["optimizer state dropped: another Keras orders it differently; training starts afresh"]
        if container != model.container and "keras" in (container, model.container):
            return [], ["optimizer state dropped: the other container orders it differently; training starts afresh"]
        if not any(node.edits for node in model.root.walk()):
            return self.arrays, []
        if self.rows is None:
            return [], ["optimizer state dropped: its arrays match no weights; training starts afresh"]
        return self._apply()

    def _apply(self) -> tuple[list[Array], list[str]]:
        assert self.rows is not None
        groups: dict[tuple[int, int], list[int]] = {}
        seen: dict[tuple[int, int], int] = {}
        for position, weight in enumerate(self.rows):
            if weight is not None and weight.node.edits:
                key = (id(weight.node), weight.index)
                kind = seen[key] = seen.get(key, -1) + 1
                groups.setdefault((id(weight.node), kind), []).append(position)
        result: dict[int, Array] = {}
        gone: set[int] = set()
        for positions in groups.values():
            weight = self.rows[positions[0]]
            assert weight is not None
            old = [self.arrays[p] for p in positions]
            if any(a.shape != w.shape for a, w in zip(old, self._weights_at(positions), strict=True)):
                continue  # placeholders of shape (1,), as Adam writes without amsgrad
            new = slots_of(weight.node, [a.read() for a in old])
            if new is None:
                return [], ["optimizer state dropped: it cannot be known for a rewritten layer; training starts afresh"]
            for position, array, value in zip(positions, old, new, strict=False):
                result[position] = _held(array, value)
            gone.update(positions[len(new) :])
            if len(new) > len(positions):
                return [], ["optimizer state dropped: a rewritten layer has more weights now; training starts afresh"]
        arrays = [result.get(p, a) for p, a in enumerate(self.arrays) if p not in gone]
        return arrays, []

    def _weights_at(self, positions: list[int]) -> list[_Weight]:
        assert self.rows is not None
        return [w for p in positions if (w := self.rows[p]) is not None]


def _fits(array: Array, weight: _Weight) -> bool:
    return array.shape in (weight.shape, (1,))


def _held(array: Array, value: np.ndarray[Any, Any]) -> Array:
    """An array in memory under the old name and dtype."""
    stored = np.asarray(value).astype("float32" if array.dtype == "bfloat16" else array.dtype)
    return Array(array.name, stored.shape, array.dtype, lambda: stored)
