"""What a Keras has built in, and what a user must bring along to load a model."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import MODEL_CLASSES, Node
from lstm_swap.dialects import objects
from lstm_swap.dialects.catalog import ALIASES, KERAS3_KEYS, ONLY_KERAS1, ONLY_KERAS2, ONLY_KERAS3, TRANSLATED

_TF_LAYERS = frozenset({"TensorFlowOpLayer", "TFOpLambda", "SlicingOpLambda"})
#: keras.ops operations may stand in a Keras 3 graph as layers do.
_OPERATIONS = "keras.src.ops", "keras.ops"


def built_in(class_name: str, dialect: str) -> bool:
    """Is a layer or model class of this name part of Keras 1, 2 or 3?

    dialect: "keras1", "keras2" or "keras3"; CuDNNLSTM and CuDNNGRU count as built in until Keras 2.
    """
    if class_name in MODEL_CLASSES:
        return class_name != "Graph" or dialect == "keras1"
    known = ALIASES.get(class_name, class_name)
    if dialect == "keras3":
        legacy = class_name != known and not class_name.startswith(("Conv", "Separable", "Avg", "Max", "Global"))
        cudnn = known in ("CuDNNLSTM", "CuDNNGRU")
        return (known in KERAS3_KEYS and not legacy and not cudnn) or class_name in ONLY_KERAS3
    if dialect == "keras1" and class_name in ONLY_KERAS1:
        return True
    return known in KERAS3_KEYS or class_name in ONLY_KERAS2 or class_name in TRANSLATED


def is_own_class(entry: dict[str, Any]) -> bool:
    """Does an entry's `module` or `registered_name` say that its class is not Keras's?"""
    module, registered = entry.get("module"), entry.get("registered_name")
    if isinstance(module, str) and module.split(".")[0] not in ("keras", "tensorflow", "tf_keras", "builtins"):
        return True
    return (isinstance(registered, str) and ">" in registered) or ">" in str(entry.get("class_name"))


def unknown_classes(root: Node, dialect: str = "keras2") -> list[str]:
    """Class names of layers and models that are not built into Keras, each once, in file order; Lambda is none.

    dialect: the one that the tree is in; before a translation that of the file, after it the target.
    """
    found: dict[str, None] = {}
    for node in root.walk():
        name = node.class_name
        if node.implicit or not isinstance(node.entry.get("class_name"), str):
            continue
        if str(node.entry.get("module", "")).startswith(_OPERATIONS):
            continue
        if is_own_class(node.entry) or not built_in(name, dialect):
            found[name] = None
    return list(found)


def lambdas(root: Node) -> list[str]:
    """Paths of the Lambda layers, whose code is in the file: Keras 3 loads it with `safe_mode=False` alone."""
    return [node.path or node.name for node in root.walk() if node.class_name == "Lambda" and not node.implicit]


def custom_functions(root: Node) -> dict[str, list[str]]:
    """Activations, regularizers and constraints that are not part of Keras, each with the paths that use it."""
    found: dict[str, list[str]] = {}
    for node in root.walk():
        if node.implicit or is_own_class(node.entry):
            continue
        for key, value in node.config.items():
            name = _custom(key, value)
            if name is not None:
                found.setdefault(name, []).append(node.path or node.name)
    return found


def _custom(key: str, value: Any) -> str | None:
    if value is None:
        return None
    parts = objects.split(value)
    if parts is None:
        return None
    if key in ("activation", "recurrent_activation", "inner_activation"):
        name = objects.activation_name(value)
        return name if name is not None and name not in objects.ACTIVATIONS else None
    if key.endswith("_regularizer") and objects.regularizer(value) is value:
        return parts[0]
    if key.endswith("_constraint") and objects.constraint(value) is value:
        return parts[0]
    return None
