"""The description that Keras 2 leaves in a SavedModel: configuration and variables of each layer.

Since TensorFlow 2.5 it is the file `keras_metadata.pb` (tf_keras/protobuf/saved_metadata.proto): for each object its
number in the object graph, its path, and JSON. Before that the JSON stood in the object graph itself
(SavedUserObject.metadata). Keras 3's `export` leaves none.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lstm_swap.errors import UnreadableModelError
from lstm_swap.saved_models.reading import fields, varint

#: Longest description that is read; those of real models have some kilobytes a layer.
SIZE_LIMIT = 256 << 20

#: Classes that Keras's JSON encoder (tf_keras/src/saving/legacy/saved_model/json_utils.py) wraps plain lists in.
_LISTS = {"__tuple__", "TensorShape"}


@dataclass
class Metadata:
    """Attributes:
    objects: JSON of each Keras object, by its number in the object graph of saved_model.pb.
    architecture: {"class_name", "config"} of the root model, None for a subclassed one.
    training_config: as `model.compile` left it, or None.
    """

    objects: dict[int, dict[str, Any]]
    architecture: dict[str, Any] | None
    keras_version: str | None
    training_config: dict[str, Any] | None


def read_metadata(folder: Path, graph: Any) -> Metadata | None:
    """Keras's description of the model in `folder`, None where it left none.

    graph: the SavedModel message.

    Raises:
        UnreadableModelError: the description is damaged.
    """
    file = folder / "keras_metadata.pb"
    texts = _from_file(file) if file.exists() else _from_objects(graph)
    objects = {}
    for number, text in texts.items():
        parsed = _parse(text, file if file.exists() else folder / "saved_model.pb", number)
        if isinstance(parsed, dict):
            objects[number] = parsed
    root = objects.get(0)
    if not objects:
        return None
    if root is None:
        return Metadata(objects, None, None, None)
    version = root.get("keras_version")
    training = root.get("training_config")
    return Metadata(
        objects,
        _architecture(root),
        version if isinstance(version, str) else None,
        training if isinstance(training, dict) else None,
    )


def _from_file(file: Path) -> dict[int, str]:
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > SIZE_LIMIT:
            raise UnreadableModelError(f"{file}: not a regular file of a sensible size ({status.st_size:,} bytes)")
        data = file.read_bytes()
    except OSError as problem:
        raise UnreadableModelError(f"{file}: {problem.strerror or problem}") from None
    texts = {}
    for number, wire, payload in fields(data):
        if number != 1 or wire != 2:
            continue
        node, text = 0, ""
        for inner, inner_wire, value in fields(payload):
            if inner == 2 and inner_wire == 0:
                node = varint(value)
            elif inner == 5 and inner_wire == 2:
                text = value.decode("utf-8", "replace")
        if text:
            texts[node] = text
    if not texts:
        raise UnreadableModelError(f"{file}: damaged or empty, it describes no layer")
    return texts


def _from_objects(graph: Any) -> dict[int, str]:
    nodes = graph.meta_graphs[0].object_graph_def.nodes
    return {
        number: node.user_object.metadata
        for number, node in enumerate(nodes)
        if node.WhichOneof("kind") == "user_object"
        and node.user_object.metadata
        and node.user_object.identifier.startswith("_tf_keras")
    }


def _parse(text: str, where: Path, number: int) -> Any:
    try:
        return plain(json.loads(text))
    except RecursionError:
        raise UnreadableModelError(f"{where}: the description of object {number} is nested too deeply") from None
    except ValueError as problem:
        raise UnreadableModelError(f"{where}: the description of object {number} is not JSON ({problem})") from None


def plain(value: Any) -> Any:
    """JSON of Keras's encoder with its tuples and shapes turned into lists."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        if value.get("class_name") in _LISTS and isinstance(value.get("items"), list):
            return [plain(item) for item in value["items"]]
        return {key: plain(item) for key, item in value.items()}
    return value


def _architecture(root: dict[str, Any]) -> dict[str, Any] | None:
    """The architecture in the root's description: `model_config`, or the class and config themselves."""
    for entry in (root.get("model_config"), root):
        if not isinstance(entry, dict):
            continue
        config = entry.get("config")
        layers = config.get("layers") if isinstance(config, dict) else config
        if isinstance(entry.get("class_name"), str) and isinstance(layers, list):
            return {"class_name": entry["class_name"], "config": config}
    return None
