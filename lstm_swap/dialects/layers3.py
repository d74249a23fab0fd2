"""One built-in layer of Keras 2, written as Keras 3 reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects import objects
from lstm_swap.dialects.catalog import ALIASES, KERAS3_KEYS, ONLY_KERAS2
from lstm_swap.dialects.context import Context, unsupported

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
    "autocast": "it is on by default",
    "experimental_run_tf_function": "it chose how the same function was run",
    "ragged": "no ragged tensors are expected",
    "query_shape": "the layer is built from its inputs",
    "key_shape": "the layer is built from its inputs",
    "value_shape": "the layer is built from its inputs",
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

#: What Keras 2 takes where a recurrent layer's config is silent. Written out, since these moved between versions.
_RECURRENT_DEFAULTS: dict[str, Any] = {
    "activation": "tanh",
    "use_bias": True,
    "dropout": 0.0,
    "recurrent_dropout": 0.0,
}
_SEQUENCE_DEFAULTS: dict[str, Any] = {
    "return_sequences": False,
    "return_state": False,
    "go_backwards": False,
    "stateful": False,
    "unroll": False,
    "zero_output_for_mask": False,
}
_GATED = {"LSTM", "GRU", "LSTMCell", "GRUCell", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"}
_CELLS = _GATED | {"SimpleRNN", "SimpleRNNCell"}
_WEIGHTED = {"Embedding", "Dense", "EinsumDense", "BatchNormalization", "PReLU"} | _CELLS


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
    rule = _RULES.get(name)
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


# ---------------------------------------------------------------------- rules for single classes
def _recurrent(node: Node, config: dict[str, Any], context: Context) -> None:
    name = node.class_name
    _time_major(node, config, context)
    for key, value in _RECURRENT_DEFAULTS.items():
        if config.get(key) is None:
            config[key] = value
    if not name.endswith("Cell"):
        _sequence_defaults(config)
    if name in _GATED and config.get("recurrent_activation") is None:
        gate = config["recurrent_activation"] = _default_gate(node, context)
        message = f"no recurrent_activation is stated; {gate} was assumed, the default of the version that wrote it"
        context.add(node, "recurrent_activation", None, gate, "report", message)
    if name.startswith(("LSTM", "ConvLSTM")):
        config.setdefault("unit_forget_bias", True)
    if name.startswith("GRU"):
        _reset_after(node, config, context)


def _sequence_defaults(config: dict[str, Any]) -> None:
    for key, value in _SEQUENCE_DEFAULTS.items():
        if config.get(key) is None:
            config[key] = value


def _rnn(node: Node, config: dict[str, Any], context: Context) -> None:
    _time_major(node, config, context)
    _sequence_defaults(config)
    if config.pop("num_constants", None):
        raise unsupported(node, "constants", True, "RNN of Keras 3 takes no constants.")


def _stacked(node: Node, config: dict[str, Any], context: Context) -> None:
    numbers = context.numbers
    always = not context.tf_keras and numbers is not None and numbers < (2, 2, 3)
    if config.pop("reverse_state_order", always):
        context.reversed_states.add(id(node.entry))


def _cudnn(node: Node, config: dict[str, Any], context: Context) -> None:
    # The swap to the standard form states the activations; a cuDNN layer has no keys for them.
    _time_major(node, config, context)
    _sequence_defaults(config)


def _time_major(node: Node, config: dict[str, Any], context: Context) -> None:
    if "time_major" not in config:
        return
    if config.pop("time_major"):
        raise unsupported(
            node,
            "time_major",
            True,
            "Keras 3 has no such setting. Build the layer with time_major=False and swap the first two axes of its "
            "input and output.",
        )
    message = f"Keras 3 refuses the setting time_major of {node.class_name}; False is what it does anyway"
    context.add(node, "time_major", False, None, "opens", message)


def _default_gate(node: Node, context: Context) -> str:
    """The gate activation where the config is silent.

    Keras 1.0 to 2.2 and ConvLSTM of every Keras 2: hard_sigmoid; Keras 2.3 and tf.keras 2: sigmoid.
    """
    if node.class_name.startswith("ConvLSTM"):
        return "hard_sigmoid"
    numbers = context.numbers
    new = context.tf_keras or numbers is None or numbers >= (2, 3)
    return "sigmoid" if new else "hard_sigmoid"


def _reset_after(node: Node, config: dict[str, Any], context: Context) -> None:
    """State `reset_after`: Keras 3 takes True where the config is silent, which Keras before 2.1.3 had not."""
    if config.get("reset_after") is not None:
        return
    bias = node.arrays[2].shape if len(node.arrays) == 3 else None
    config["reset_after"] = bias is not None and len(bias) == 2
    if bias is not None:
        why = f"its bias has the shape {bias}"
    else:
        why = "Keras versions that do not write the setting had no other GRU"
    effect = "numbers" if bias is None else "opens"
    message = f"the setting reset_after is missing; {config['reset_after']}, since {why}. Keras 3 would take True"
    if config["reset_after"]:
        effect = "style"
    context.add(node, "reset_after", None, config["reset_after"], effect, message)


def _bidirectional(node: Node, config: dict[str, Any], context: Context) -> None:
    """Write the backward half out where Keras 3 would derive another one.

    Keras 3 sets `go_backwards=True` on its copy; Keras 2 turns the forward half's value round.
    """
    forward, backward = node.child("forward"), node.child("backward")
    if forward is None or backward is None:
        return
    if backward.implicit and forward.config.get("go_backwards"):
        backward.implicit = False
        config["backward_layer"] = backward.entry
        message = (
            "the forward half runs backwards, so the other half is written out: Keras 3 would run it backwards too"
        )
        context.add(node, "backward_layer", None, "written out", "opens", message)
    if config.get("backward_layer") is None:
        config.pop("backward_layer", None)
    config.setdefault("merge_mode", "concat")


def _axis(node: Node, config: dict[str, Any], context: Context) -> None:
    axis = config.get("axis")
    if isinstance(axis, list):
        if len(axis) != 1:
            raise unsupported(node, "axis", axis, "BatchNormalization of Keras 3 takes a single axis.")
        # The HDF5 loader of Keras 3 does this itself (`model_from_config` in legacy/saving/saving_utils.py).
        config["axis"] = axis[0]
        context.add(node, "axis", axis, axis[0], "style", "Keras 3 takes a number")


def _leaky_relu(node: Node, config: dict[str, Any], context: Context) -> None:
    if "alpha" in config:
        config["negative_slope"] = config.pop("alpha")


def _thresholded_relu(node: Node, config: dict[str, Any], context: Context) -> None:
    """x where x > theta, else 0: `ReLU(threshold=theta)` of Keras 3, whose slope below it is 0."""
    theta = config.pop("theta", 1.0)
    config.update(threshold=theta, negative_slope=0.0, max_value=None)
    node.entry["class_name"] = "ReLU"
    context.add(node, "class_name", "ThresholdedReLU", "ReLU", "opens", f"ReLU(threshold={theta}) computes the same")


def _depthwise(node: Node, config: dict[str, Any], context: Context) -> None:
    """Drop what the parent class of Keras 2 writes and never uses: depthwise layers go channel by channel."""
    for key in ("groups", "kernel_initializer", "kernel_regularizer", "kernel_constraint", "filters"):
        if key == "filters" and node.class_name.startswith("Separable"):
            continue
        if key in config:
            context.add(node, key, config.pop(key), None, "opens", f"Keras 3 refuses {key}, which was never used")
    multiplier = config.get("depth_multiplier")
    config["depth_multiplier"] = 1 if multiplier is None else multiplier


def _transposed(node: Node, config: dict[str, Any], context: Context) -> None:
    groups = config.get("groups", 1)
    if groups not in (None, 1):
        raise unsupported(node, "groups", groups, f"{node.class_name} of Keras 3 has no groups.")
    if config.pop("groups", None) is not None:
        context.add(node, "groups", 1, None, "opens", f"{node.class_name} of Keras 3 has no setting groups")


def _attention(node: Node, config: dict[str, Any], context: Context) -> None:
    # `causal` was a setting until tf.keras 2.9; it is an argument of the call now, and keras2.py puts it there.
    if config.pop("causal", False):
        context.causal.add(id(node.entry))
        context.add(node, "causal", True, None, "opens", "Keras 3 takes use_causal_mask in the call instead")
    dropout = config.get("dropout")
    config["dropout"] = 0.0 if dropout is None else dropout


def _spatial_dropout(node: Node, config: dict[str, Any], context: Context) -> None:
    for key in ("noise_shape", "trainable"):  # the shape follows from the class; there is nothing to train
        config.pop(key, None)


def _category_encoding(node: Node, config: dict[str, Any], context: Context) -> None:
    _rename(node, config, context, {"max_tokens": "num_tokens"})
    if config.get("output_mode") == "binary":
        config["output_mode"] = "multi_hot"


def _text_vectorization(node: Node, config: dict[str, Any], context: Context) -> None:
    _rename(node, config, context, {"num_oov_tokens": "num_oov_indices", "max_values": "max_tokens"})
    old = config.get("output_mode")
    new = {"binary": "multi_hot", "tf-idf": "tf_idf"}.get(str(old))
    if new:
        config["output_mode"] = new
        context.add(node, "output_mode", old, new, "opens", f"the mode {old} is called {new} in Keras 3")


def _discretization(node: Node, config: dict[str, Any], context: Context) -> None:
    _rename(node, config, context, {"bins": "bin_boundaries"})


def _rename(node: Node, config: dict[str, Any], context: Context, names: dict[str, str]) -> None:
    for old, new in names.items():
        if old in config:
            value = config.pop(old)
            config.setdefault(new, value)
            context.add(node, old, old, new, "opens", f"the setting {old} is called {new} in Keras 3")


def _input_layer(node: Node, config: dict[str, Any], context: Context) -> None:
    shape = config.pop("batch_input_shape", None)
    shape = config.pop("input_shape", None) if shape is None else shape
    if shape is not None:
        config.setdefault("batch_shape", shape)
    if not config.get("ragged"):
        config.pop("ragged", None)
    if not config.get("optional"):
        config.pop("optional", None)
    config["sparse"] = bool(config.get("sparse", False))


_RULES: dict[str, Callable[[Node, dict[str, Any], Context], None]] = {
    "InputLayer": _input_layer,
    **dict.fromkeys(_CELLS, _recurrent),
    "RNN": _rnn,
    "StackedRNNCells": _stacked,
    "CuDNNLSTM": _cudnn,
    "CuDNNGRU": _cudnn,
    "Bidirectional": _bidirectional,
    "BatchNormalization": _axis,
    "LeakyReLU": _leaky_relu,
    "ThresholdedReLU": _thresholded_relu,
    **dict.fromkeys(("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"), _depthwise),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _transposed),
    "Attention": _attention,
    "AdditiveAttention": _attention,
    **dict.fromkeys(("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"), _spatial_dropout),
    "CategoryEncoding": _category_encoding,
    "TextVectorization": _text_vectorization,
    "StringLookup": _text_vectorization,
    "IntegerLookup": _text_vectorization,
    "Discretization": _discretization,
}
