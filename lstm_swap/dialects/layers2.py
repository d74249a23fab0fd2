"""One built-in layer of Keras 3, written as Keras 2 (tf.keras 2.15, tf_keras) reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lstm_swap.architecture import Node, implied_backward
from lstm_swap.dialects import objects
from lstm_swap.dialects.catalog import KERAS3_KEYS, ONLY_KERAS3
from lstm_swap.dialects.context import Context, unsupported

#: Settings that Keras 2 lacks, by class ("*": any), with the value that says the same as nothing. Any other value
#: changes what is computed, and is refused.
_NEUTRAL: dict[str, dict[str, Any]] = {
    "*": {
        "autocast": True,
        "lora_rank": None,
        "lora_alpha": None,
        "quantization_config": None,
        "quantization_mode": None,
        "gptq_unpacked_column_size": None,
    },
    "InputLayer": {"optional": False, "ragged": False},
    "LayerNormalization": {"rms_scaling": False},
    "BatchNormalization": {"renorm": False, "renorm_clipping": None, "renorm_momentum": 0.99, "synchronized": False},
    "MultiHeadAttention": {"sliding_window": None, "flash_attention": None, "use_gate": False, "seed": None},
    "AdditiveAttention": {"score_mode": "concat"},
    "ZeroPadding1D": {"data_format": "channels_last"},
    "Resizing": {
        "pad_to_aspect_ratio": False,
        "fill_mode": "constant",
        "fill_value": 0.0,
        "antialias": False,
        "data_format": "channels_last",
    },
    "CenterCrop": {"data_format": "channels_last"},
    "StringLookup": {"oov_method": "floormod", "salt": None},
    "IntegerLookup": {"oov_method": "floormod", "salt": None},
}
#: Settings that act in training alone, or on inputs that this layer is not given in a model.
_DROPPED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "LSTMCell", "GRUCell", "SimpleRNNCell"), ("seed",)),
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "Attention", "AdditiveAttention"), ("seed",)),
    "MultiHeadAttention": ("flash_attention", "seed"),
    "BatchNormalization": ("renorm_clipping", "renorm_momentum", "synchronized"),
    **dict.fromkeys(
        (
            *("RandomBrightness", "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation"),
            *("RandomZoom", "Resizing", "CenterCrop"),
        ),
        ("bounding_box_format", "data_format"),
    ),
}
#: Activations of Keras 3 that Keras 2 has as well.
_ACTIVATIONS = frozenset(
    "elu exponential gelu hard_sigmoid linear mish relu selu sigmoid softmax softplus softsign swish tanh".split()
)


def translate_layer2(node: Node, context: Context) -> None:
    """Rewrite the entry of `node`, a built-in layer of Keras 3, for Keras 2, in place.

    Raises:
        UnsupportedLayerError: Keras 2 has no such layer, or none with this setting.
    """
    entry, name = node.entry, node.class_name
    if name in ONLY_KERAS3 or str(entry.get("module", "")).startswith(("keras.src.ops", "keras.ops")):
        raise unsupported(node, "", None, f"Keras 2 has no {name}.")
    config = dict(node.config)
    entry["config"] = config
    for key in ("module", "registered_name", "build_config", "shared_object_id"):
        entry.pop(key, None)
    if "dtype" in config:
        config["dtype"] = _dtype(node, config["dtype"])
    for key in _DROPPED.get(name, ()):
        config.pop(key, None)
    for key, neutral in {**_NEUTRAL["*"], **_NEUTRAL.get(name, {})}.items():
        if key in config:
            value = config.pop(key)
            if value != neutral:
                raise unsupported(node, key, value, f"{name} of Keras 2 has no such setting.")
    rule = _RULES.get(name)
    if rule is not None:
        rule(node, config, context)
    for key, value in list(config.items()):
        if key.endswith(("_initializer", "_regularizer", "_constraint")):
            config[key] = _object(node, key, value, context)
        elif key in ("activation", "recurrent_activation"):
            config[key] = _activation(node, key, value)


def _dtype(node: Node, value: Any) -> Any:
    plain = objects.dtype(value)
    if isinstance(plain, str) and not plain.startswith(("int8_", "int4_", "float8_", "gptq", "awq")):
        return plain
    if plain is None:
        return "float32"
    raise unsupported(node, "dtype", value, "Keras 2 knows no quantized layers.")


def _object(node: Node, key: str, value: Any, context: Context) -> Any:
    new, unknown = objects.for_keras2(value, key)
    if unknown is not None:
        message = f"the initializer {unknown} is not part of Keras 2; {new['class_name']} stands for it"
        context.add(node, key, value, new["class_name"], "report", message)
    return new


def _activation(node: Node, key: str, value: Any) -> Any:
    name = objects.activation(value)
    if not isinstance(name, str) or name not in objects.ACTIVATIONS:
        return value  # a custom function: the user brings it along
    name = {"silu": "swish"}.get(name, name)
    if name not in _ACTIVATIONS:
        raise unsupported(node, key, name, "Keras 2 has no such activation.")
    return name


def _input_layer(node: Node, config: dict[str, Any], context: Context) -> None:
    if "batch_shape" in config:
        config["batch_input_shape"] = config.pop("batch_shape")


def _recurrent(node: Node, config: dict[str, Any], context: Context) -> None:
    # A Bidirectional of tf.keras 2 sets it in its halves, as that of Keras 3 does.
    if not config.get("zero_output_for_mask") or node.role in ("forward", "backward"):
        config.pop("zero_output_for_mask", None)


def _leaky_relu(node: Node, config: dict[str, Any], context: Context) -> None:
    if "negative_slope" in config:
        config["alpha"] = config.pop("negative_slope")


def _multi_head(node: Node, config: dict[str, Any], context: Context) -> None:
    for key in ("query_shape", "key_shape", "value_shape"):
        config[key] = None  # `from_config` of Keras 2 asks for them; None: built from the inputs


def _bidirectional(node: Node, config: dict[str, Any], context: Context) -> None:
    """Leave the backward half out where Keras 2 derives the same: versions before 2.2 know no other."""
    forward, backward = node.child("forward"), node.child("backward")
    if forward is None or backward is None or backward.implicit:
        return
    implied = implied_backward(forward.entry)
    ignored = ("name", "seed")
    same = backward.class_name == forward.class_name and {
        k: v for k, v in implied["config"].items() if k not in ignored
    } == {k: v for k, v in backward.config.items() if k not in ignored}
    if same:
        config.pop("backward_layer", None)
        backward.entry = implied
        backward.implicit = True


_RULES: dict[str, Callable[[Node, dict[str, Any], Context], None]] = {
    "InputLayer": _input_layer,
    **dict.fromkeys(
        ("LSTM", "GRU", "SimpleRNN", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"),
        _recurrent,
    ),
    "LeakyReLU": _leaky_relu,
    "MultiHeadAttention": _multi_head,
    "Bidirectional": _bidirectional,
}


def is_known3(name: str) -> bool:
    """Is this a layer of Keras 3 that stays as it is when its class is not known here?"""
    return name in KERAS3_KEYS or name in ONLY_KERAS3
