"""One built-in layer of Keras 2, written as Keras 3 reads it."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects import objects
from lstm_swap.dialects.catalog import ALIASES, KERAS3_KEYS, ONLY_KERAS2
from lstm_swap.dialects.context import Context, unsupported
from lstm_swap.dialects.rules3 import CELLS, RULES

#: Keys of old configs that have no meaning for the numbers of Keras 3.
_HARMLESS = {
    "implementation": "it chose how the same product was computed",
    "input_length": "Keras 3 reads the length from the input",
    "fused": "it chose how the same formula was computed",
    "virtual_batch_size": "it acts in training alone",
    "adjustment": "it acts in training alone",
    "robust_masking": "it chose how the same mask was added",
    "softmax_robust_masking": "it chose how the same mask was added",
    "force_generator": "it chose a random generator for training",
    "rng_type": "it chose a random generator for training",
    "input_dtype": "the input layer states it",
    "sparse": "the input layer states it",
    "dynamic": "Keras 3 needs no such hint",
    "noise_shape": "it follows from the class",
    "trainable": "there is nothing to train",
    "autocast": "it is on by default",
    "experimental_run_tf_function": "it chose how the same function was run",
    "ragged": "no ragged tensors are expected",
    "query_shape": "the layer is built from its inputs",
    "key_shape": "the layer is built from its inputs",
    "value_shape": "the layer is built from its inputs",
    # of depthwise layers
    **dict.fromkeys(
        ("groups", "kernel_initializer", "kernel_regularizer", "kernel_constraint", "filters"),
        "its parent class writes it, and it never used it",
    ),
    "has_vocabulary": "the vocabulary itself is stated",
    "vocabulary_size": "the vocabulary itself is stated",
}
#: Of these, the ones that Keras 3 takes without a word (`kwargs.pop` in its layers).
_SWALLOWED = {
    *((c, "implementation") for c in ("LSTM", "GRU", "LSTMCell", "GRUCell")),
    ("Embedding", "input_length"),
    ("LeakyReLU", "alpha"),
    *((c, k) for c in ("StringLookup", "IntegerLookup", "TextVectorization") for k in ("has_input_vocabulary",)),
    *((c, "vocabulary_size") for c in ("StringLookup", "IntegerLookup", "TextVectorization")),
}

_WEIGHTED = {"Embedding", "Dense", "EinsumDense", "BatchNormalization", "PReLU"} | CELLS


def translate_layer(node: Node, context: Context) -> None:
    """Rewrite the entry of `node`, a layer whose class is built into Keras 2, for Keras 3, in place.

    Raises:
        UnsupportedLayerError: Keras 3 has no such layer, or none with this setting.
    """
    entry = node.entry
    old_class = node.class_name
    if old_class in ONLY_KERAS2:
        raise unsupported(node, "", None, f"Keras 3 has no layer {old_class}, and no other built-in one computes it.")
    name = ALIASES.get(old_class, old_class)
    if name != old_class:
        context.add(node, "class_name", old_class, name, "opens", f"{old_class} is called {name} in Keras 3")
    config = {key: flatten_json(value) for key, value in node.config.items()}
    entry["class_name"] = name
    entry["config"] = config

    _take_input_shape(node, config, context)
    _dtype(node, config, context)
    rule = RULES.get(name)
    if rule is not None:
        rule(node, config, context)
    if old_class == "SyncBatchNormalization":
        config["synchronized"] = True
    _objects(node, config, context)
    _drop_unknown_keys(node, config, context)
    finish_entry(node, context)


def finish_entry(node: Node, context: Context) -> None:
    """Mark the entry as a built-in layer of Keras 3, without the records of another version's `build`."""
    entry = node.entry
    module = entry.get("module", "")
    if node.role != "item" and "module" not in entry and not node.implicit:
        message = f"inside a wrapper Keras 3 finds {entry['class_name']} by its module alone, which the file lacks"
        context.add(node, "module", None, "keras.layers", "opens", message)
    elif module and not str(module).startswith("keras.layers"):
        context.add(node, "module", module, "keras.layers", "opens", f"Keras 3 has no module {module}")
    shared = entry.pop("shared_object_id", None)
    if shared is not None and not node.implicit:
        context.shared.setdefault(shared, []).append(node.path or node.name)
    if entry.pop("build_config", None) is not None:
        context.add(node, "build_config", "...", None, "style", "the layer is built from its inputs")
    entry["module"] = "keras.layers"
    entry["registered_name"] = None


def flatten_json(value: Any) -> Any:
    """A setting without the marks that tf.keras puts on tuples, shapes and NumPy values in JSON.

    Formats: `_encode_tuple` and `get_json_type` in tf_keras/src/saving/legacy/saved_model/json_utils.py.
    """
    if isinstance(value, list):
        return [flatten_json(v) for v in value]
    if isinstance(value, dict):
        if value.get("class_name") in ("__tuple__", "TensorShape") and isinstance(value.get("items"), list):
            return [flatten_json(v) for v in value["items"]]
        if value.get("class_name") == "ListWrapper" and isinstance(value.get("config"), list):
            return flatten_json(value["config"])
        return objects.plain(value)
    return value


def _take_input_shape(node: Node, config: dict[str, Any], context: Context) -> None:
    """Keep the input shape that an old layer states for the InputLayer that Keras 3 wants instead."""
    if node.class_name == "InputLayer":
        return
    shape = config.pop("batch_input_shape", None)
    if shape is None and isinstance(config.get("input_shape"), list):
        shape = [None, *config["input_shape"]]
    config.pop("input_shape", None)
    if isinstance(shape, list):
        dtype = objects.dtype(config.get("dtype"))
        context.input_shapes[id(node.entry)] = (shape, dtype if isinstance(dtype, str) else None)


def _dtype(node: Node, config: dict[str, Any], context: Context) -> None:
    old = config.get("dtype")
    new = objects.dtype(old)
    if isinstance(old, dict) and old.get("class_name") != "DTypePolicy" and isinstance(new, str):
        context.add(node, "dtype", old, new, "opens", f"the dtype policy {old.get('class_name')} is unknown to Keras 3")
    if isinstance(new, str) and new.startswith(("int", "uint", "bool", "string")) and node.class_name in _WEIGHTED:
        # Keras 2.0 to 2.3 kept the dtype of the input here; the weights were floatx all the same.
        context.add(
            node, "dtype", new, context.default_dtype, "opens", "this was the dtype of the input, not the layer"
        )
        new = context.default_dtype
    config["dtype"] = new if new is not None else context.default_dtype


def _objects(node: Node, config: dict[str, Any], context: Context) -> None:
    for key, value in list(config.items()):
        if key.endswith("_initializer"):
            new, unknown = objects.initializer(value, key)
            if unknown is not None:
                message = (
                    f"the initializer {unknown} is not part of Keras; {new['class_name']} stands for it, which changes "
                    "nothing, since the weights are in the file"
                )
                context.add(node, key, value, new, "opens", message)
            elif not objects.initializer_opens(value):
                context.add(node, key, value, new, "opens", f"Keras 3 knows other settings of {new['class_name']}")
            config[key] = new
        elif key.endswith("_regularizer"):
            config[key] = objects.regularizer(value)
        elif key.endswith("_constraint"):
            config[key] = objects.constraint(value)
        elif key in ("activation", "recurrent_activation"):
            config[key] = _activation(node, value, context)


def _activation(node: Node, value: Any, context: Context) -> Any:
    new = objects.activation(value)
    if isinstance(new, dict) and isinstance(new.get("config"), dict):
        inner = Node(new, str(new["config"].get("name", new.get("class_name"))), node.path, "layer", node)
        if ALIASES.get(inner.class_name, inner.class_name) in KERAS3_KEYS:
            translate_layer(inner, context)  # a layer that was passed as an activation
    return new


def _drop_unknown_keys(node: Node, config: dict[str, Any], context: Context) -> None:
    allowed = KERAS3_KEYS[node.class_name]
    for key in [k for k in config if k not in allowed]:
        value = config.pop(key)
        opens = (node.class_name, key) in _SWALLOWED
        why = _HARMLESS.get(key)
        if why is None:
            message = f"{node.class_name} of Keras 3 has no setting {key}; it was left out"
            context.add(node, key, value, None, "opens", message)
        else:
            message = f"{node.class_name} of Keras 3 has no setting {key}: {why}"
            context.add(node, key, value, None, "style" if opens else "opens", message)
