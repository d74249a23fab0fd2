"""The variables of a SavedModel: a TensorFlow checkpoint under `variables/variables`.

TensorFlow 2 stores them under paths of the object graph (`layer-1/cell/kernel/.ATTRIBUTES/VARIABLE_VALUE`), TensorFlow
1 under their names.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lstm_swap.architecture import Array
from lstm_swap.errors import UnreadableModelError
from lstm_swap.saved_models.reading import tensorflow

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclass(frozen=True)
class Variable:
    """A stored variable: `key` in the checkpoint, `name` as the program called it (the key where that is unknown)."""

    key: str
    name: str
    shape: tuple[int, ...]
    dtype: str


class Checkpoint:
    """The checkpoint of a SavedModel folder; arrays are read on demand.

    Raises:
        UnreadableModelError: no checkpoint, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        tf = tensorflow("reading the variables of a SavedModel")
        self.folder = folder / "variables"
        prefix = self.folder / "variables"
        # For a short file the reader raises IndexError, for others RuntimeError.
        self._errors: tuple[type[Exception], ...] = (
            tf.errors.OpError,
            ValueError,
            RuntimeError,
            TypeError,
            LookupError,
            OSError,
        )
        if not Path(f"{prefix}.index").is_file():
            raise UnreadableModelError(f"{prefix}.index: no such file, so the model has no variables that can be read")
        try:
            self._reader = tf.train.load_checkpoint(str(prefix))
            shapes: dict[str, list[int]] = self._reader.get_variable_to_shape_map()
            dtypes: dict[str, Any] = self._reader.get_variable_to_dtype_map()
            self._graph = self._reader.get_tensor(_OBJECT_GRAPH) if _OBJECT_GRAPH in shapes else None
        except self._errors as problem:
            raise UnreadableModelError(f"{prefix}.index: damaged checkpoint ({_line(problem)})") from None
        self.shapes = {key: tuple(int(n) for n in shape) for key, shape in shapes.items() if key != _OBJECT_GRAPH}
        self.dtypes = {key: str(dtypes[key].name) for key in self.shapes}
        self._stored = sum(file.stat().st_size for file in self.folder.glob("variables.data-*") if file.is_file())

    def array(self, key: str, name: str) -> Array:
        """The variable stored under `key`, to be read later."""
        return Array(name, self.shapes[key], self.dtypes[key], lambda: self._read(key), source=key)

    def _read(self, key: str) -> np.ndarray[Any, Any]:
        # An index may claim any shape; TensorFlow would ask for that much memory before it looks at the data.
        if math.prod(self.shapes[key]) > self._stored:
            raise UnreadableModelError(
                f"{self.folder}: {key} claims the shape {self.shapes[key]}, more than the {self._stored:,} bytes stored"
            )
        try:
            return np.asarray(self._reader.get_tensor(key))
        except self._errors as problem:
            raise UnreadableModelError(f"{self.folder}: {key} cannot be read ({_line(problem)})") from None

    def keys_by_node(self) -> dict[int, str]:
        """Checkpoint keys by the number of the variable's node in the checkpoint's own object graph."""
        return {
            index: attribute.checkpoint_key
            for index, node in enumerate(self.object_graph().nodes)
            for attribute in node.attributes
            if attribute.name == "VARIABLE_VALUE" and attribute.checkpoint_key in self.shapes
        }

    def object_graph(self) -> Any:
        """The TrackableObjectGraph that is stored beside the variables (empty in TensorFlow 1)."""
        from google.protobuf import message
        from tensorflow.core.protobuf import trackable_object_graph_pb2

        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        if self._graph is not None:
            try:
                graph.ParseFromString(self._graph)
            except (message.DecodeError, TypeError) as problem:
                raise UnreadableModelError(f"{self.folder}: damaged object graph ({problem})") from None
        return graph

    def keys_of(self, saved: Any) -> dict[int, str]:
        """Checkpoint keys by the number of the variable's node in `saved`, the object graph of saved_model.pb.

        Both graphs describe the same objects: they are walked side by side, along the same names of children.
        """
        stored = self.object_graph()
        by_node = self.keys_by_node()
        keys: dict[int, str] = {}
        seen = {0}
        waiting = deque([(0, 0)])
        while waiting:
            ours, theirs = waiting.popleft()
            if ours >= len(saved.nodes) or theirs >= len(stored.nodes):
                continue
            if theirs in by_node:
                keys[ours] = by_node[theirs]
            names = {child.local_name: child.node_id for child in stored.nodes[theirs].children}
            for child in saved.nodes[ours].children:
                if child.local_name in names and child.node_id not in seen:
                    seen.add(child.node_id)
                    waiting.append((child.node_id, names[child.local_name]))
        return keys

    def variables(self, saved: Any) -> list[Variable]:
        """Every stored variable once, in the order of the object graph, then those that it does not know.

        Keras 3's export stores each variable twice, as `variables/N` and `_all_variables/N`: the second is left out.
        """
        named: dict[str, str] = {}
        for index, key in sorted(self.keys_of(saved).items()):
            if saved.nodes[index].WhichOneof("kind") == "variable":
                named.setdefault(key, saved.nodes[index].variable.name)
        for key in sorted(self.shapes):
            named.setdefault(key, "")
        found: list[Variable] = []
        seen: set[tuple[str, tuple[int, ...]]] = set()
        for key, name in named.items():
            variable = Variable(key, name or key.removesuffix(_VALUE), self.shapes[key], self.dtypes[key])
            if key.startswith("_all_variables/") and (variable.name, variable.shape) in seen:
                continue
            seen.add((variable.name, variable.shape))
            found.append(variable)
        return found


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:200]
