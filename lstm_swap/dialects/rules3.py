"""What single layer classes of Keras 2 need, besides new spellings, to be read by Keras 3.

Each rule gets the layer's node, the config to be edited in place, and the context of the translation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects.context import Context, unsupported

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
CELLS = _GATED | {"SimpleRNN", "SimpleRNNCell"}


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
        # ... for entries without a module, that is.
        effect = "style" if node.entry.get("module") is None else "opens"
        context.add(node, "axis", axis, axis[0], effect, "Keras 3 takes a number, not a list of one")


def _leaky_relu(node: Node, config: dict[str, Any], context: Context) -> None:
    if "alpha" in config:
        config["negative_slope"] = config.pop("alpha")


def _thresholded_relu(node: Node, config: dict[str, Any], context: Context) -> None:
    """x where x > theta, else 0: `ReLU(threshold=theta)` of Keras 3, whose slope below it is 0."""
    theta = config.pop("theta", 1.0)
    config.update(threshold=theta, negative_slope=0.0, max_value=None)
    node.entry["class_name"] = "ReLU"
    context.add(node, "class_name", "ThresholdedReLU", "ReLU", "opens", f"ReLU(threshold={theta}) computes the same")


def _random_size(node: Node, config: dict[str, Any], context: Context) -> None:
    """RandomHeight and RandomWidth pass images on as they are at inference."""
    name = node.class_name
    node.entry["class_name"] = "Identity"
    for key in ("factor", "interpolation", "seed"):
        config.pop(key, None)
    message = f"Keras 3 has no {name}, which acts in training alone: an Identity stands in its place"
    context.add(node, "class_name", name, "Identity", "opens", message)


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
    if config.get("ragged") and context.recurrent:
        raise unsupported(
            node,
            "ragged",
            True,
            "recurrent layers of Keras 3 take no ragged tensors. Pad the sequences and put a Masking layer first.",
        )
    if not config.get("ragged"):
        config.pop("ragged", None)
    if not config.get("optional"):
        config.pop("optional", None)
    config["sparse"] = bool(config.get("sparse", False))


RULES: dict[str, Callable[[Node, dict[str, Any], Context], None]] = {
    "InputLayer": _input_layer,
    **dict.fromkeys(CELLS, _recurrent),
    "RNN": _rnn,
    "StackedRNNCells": _stacked,
    "CuDNNLSTM": _cudnn,
    "CuDNNGRU": _cudnn,
    "Bidirectional": _bidirectional,
    "BatchNormalization": _axis,
    "RandomHeight": _random_size,
    "RandomWidth": _random_size,
    "LeakyReLU": _leaky_relu,
    "ThresholdedReLU": _thresholded_relu,
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _transposed),
    "Attention": _attention,
    "AdditiveAttention": _attention,
    "CategoryEncoding": _category_encoding,
    "TextVectorization": _text_vectorization,
    "StringLookup": _text_vectorization,
    "IntegerLookup": _text_vectorization,
    "Discretization": _discretization,
}
