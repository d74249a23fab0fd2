"""The layers of a Keras model in a SavedModel: its architecture and each layer's variables.

Keras 2 describes its layers (see `metadata`), and the object graph links each layer to its variables: a model's layers
are its children `layer-0`, `layer-1`, ..., the halves of a Bidirectional are `forward_layer` and `backward_layer`, an
RNN's cell is `cell`, and each layer keeps its variables, in Keras's order, under `variables`
(tf_keras/src/saving/legacy/saved_model/layer_serialization.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lstm_swap.architecture import Array, Node, build_tree
from lstm_swap.errors import UnreadableModelError, UnsupportedLayerError
from lstm_swap.saved_models.checkpoint import Checkpoint
from lstm_swap.saved_models.metadata import Metadata, read_metadata
from lstm_swap.saved_models.reading import read_graph

_LAYER = re.compile(r"layer-(\d+)$")
#: Objects that may hold layers and variables, and children that hold other things.
_HOLDERS = ("_tf_keras", "trackable_list_wrapper", "trackable_dict_wrapper")
_NO_LAYERS = {"optimizer", "keras_api", "signatures"}


@dataclass
class KerasModel:
    """The Keras model in a SavedModel.

    Attributes:
        entry: {"class_name", "config"} of the root model.
        training_config: as `model.compile` left it, or None.
        arrays: for each layer that owns variables, by the path of its node in `architecture.build_tree(entry)`: the
            variables in the order of `layer.weights`, read on demand. Those of layers inside it are not among them.
    """

    entry: dict[str, Any]
    keras_version: str | None
    training_config: dict[str, Any] | None
    arrays: dict[str, list[Array]]


def keras_architecture(path: str | Path) -> KerasModel | None:
    """The Keras model in the SavedModel folder `path`; None where it states none (Keras 3's export, subclassed models).

    Raises:
        UnreadableModelError: damaged; a variable is not in the checkpoint.
        UnsupportedLayerError: variables that belong to no layer of the architecture, so that they would be lost.
        MissingDependencyError: TensorFlow is not installed.
    """
    folder = Path(path)
    graph = read_graph(folder)
    metadata = read_metadata(folder, graph)
    if metadata is None or metadata.architecture is None:
        return None
    objects = _Objects(folder, graph.meta_graphs[0].object_graph_def, metadata)
    arrays: dict[str, list[Array]] = {}
    claimed: set[int] = set()
    stack: list[tuple[Node, int]] = [(build_tree(metadata.architecture), 0)]
    while stack:
        node, number = stack.pop()
        inner = objects.pair(node, number)
        stack.extend(reversed(inner))
        theirs = {variable for _, child in inner for variable in objects.variables(child)}
        own = (
            [variable for variable in objects.variables(number) if variable not in theirs] if not node.is_model else []
        )
        claimed.update(own)
        if own:
            arrays[node.path] = [objects.array(variable) for variable in own]
    lost = [variable for variable in objects.variables(0) if variable not in claimed]
    if lost:
        names = ", ".join(objects.name(variable) for variable in lost[:5])
        raise UnsupportedLayerError(
            f"{folder}: {len(lost)} variables belong to no layer that the architecture lists ({names}): a custom layer "
            "or model; load it with the code that made it and save it as .keras or .h5"
        )
    return KerasModel(metadata.architecture, metadata.keras_version, metadata.training_config, arrays)


class _Objects:
    """The object graph of a SavedModel, as Keras uses it."""

    def __init__(self, folder: Path, graph: Any, metadata: Metadata) -> None:
        self._folder = folder
        self._nodes = graph.nodes
        self._metadata = metadata
        self._checkpoint = Checkpoint(folder)
        self._keys = self._checkpoint.keys_of(graph)
        self._known: dict[int, list[int]] = {}

    def child(self, number: int, name: str) -> int | None:
        for child in self._nodes[number].children:
            if child.local_name == name and 0 <= child.node_id < len(self._nodes):
                return int(child.node_id)
        return None

    def name(self, number: int) -> str:
        """The name of a variable or a layer."""
        node = self._nodes[number]
        if node.WhichOneof("kind") == "variable":
            return str(node.variable.name)
        described = self._metadata.objects.get(number, {})
        config = described.get("config")
        return str(described.get("name") or (config.get("name") if isinstance(config, dict) else "") or "")

    def pair(self, node: Node, number: int) -> list[tuple[Node, int]]:
        """The node's children with their objects; those without an object have no variables."""
        by_name: dict[str, int] = {}
        if node.is_model:
            for child in self._nodes[number].children:
                if _LAYER.match(child.local_name) and 0 <= child.node_id < len(self._nodes):
                    by_name[self.name(child.node_id)] = int(child.node_id)
        pairs = []
        for index, inner in enumerate(node.children):
            if node.is_model:
                found = by_name.get(inner.name)
            elif inner.role == "item":  # of StackedRNNCells
                cells = self.child(number, "cells")
                found = None if cells is None else self.child(cells, str(index))
            else:
                found = self.child(
                    number, {"forward": "forward_layer", "backward": "backward_layer"}.get(inner.role, inner.role)
                )
            if found is not None:
                pairs.append((inner, found))
        return pairs

    def variables(self, number: int) -> list[int]:
        """The object's variables in Keras's order, those of inner layers included."""
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = self._listed(number) or self._collected(number)
        return found

    def _listed(self, number: int) -> list[int]:
        """The list that Keras keeps beside the functions of a layer."""
        holder = self.child(number, "variables")
        if holder is None or not all(child.local_name.isdecimal() for child in self._nodes[holder].children):
            return []
        members = sorted(self._nodes[holder].children, key=lambda child: int(child.local_name))
        numbers = [int(child.node_id) for child in members if 0 <= child.node_id < len(self._nodes)]
        return [n for n in dict.fromkeys(numbers) if self._nodes[n].WhichOneof("kind") == "variable"]

    def _collected(self, number: int) -> list[int]:
        """Without that list, as after `model.save(save_traces=False)`: attributes in the order of their making, inner
        layers in their places, and then, as in `layer.weights`, the trainable ones first.
        """
        found: list[int] = []
        seen: set[int] = set()
        stack = [number]
        while stack:
            current = stack.pop()
            if current in seen or not 0 <= current < len(self._nodes):
                continue
            seen.add(current)
            node = self._nodes[current]
            kind = node.WhichOneof("kind")
            if kind == "variable":
                found.append(current)
            elif kind == "user_object" and node.user_object.identifier.startswith(_HOLDERS):
                stack.extend(child.node_id for child in reversed(node.children) if child.local_name not in _NO_LAYERS)
        return sorted(found, key=lambda n: not self._nodes[n].variable.trainable)

    def array(self, number: int) -> Array:
        key = self._keys.get(number)
        if key is None:
            raise UnreadableModelError(f"{self._folder}: the variable {self.name(number)!r} is not in the checkpoint")
        return self._checkpoint.array(key, self.name(number))


def recover_arrays(path: str | Path) -> dict[str, list[Array]]:
    """The stored arrays by layer, where only the graph is there: by the names that the program gave its variables.

    Returns:
        For each prefix (`sequential/lstm/lstm_cell`) its arrays (`.../kernel`, `.../recurrent_kernel`, `.../bias`), in
        the order of the object graph.

    Raises:
        UnreadableModelError: damaged, or without variables.
        MissingDependencyError: TensorFlow is not installed.
    """
    folder = Path(path)
    graph = read_graph(folder)
    checkpoint = Checkpoint(folder)
    layers: dict[str, list[Array]] = {}
    for variable in checkpoint.variables(graph.meta_graphs[0].object_graph_def):
        prefix = variable.name.rpartition("/")[0]
        layers.setdefault(prefix, []).append(checkpoint.array(variable.key, variable.name))
    return layers
