"""One layer of Keras 1, written as Keras 2 reads it.

Facts: keras/layers of Keras 1.0.1 to 1.2.2, keras/legacy/interfaces.py of Keras 2 (the names that moved) and
`preprocess_weights_for_loading` of keras/engine/saving.py of Keras 2.2.4 (the arrays that moved).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects import objects
from lstm_swap.dialects.array_edits import DeviationToVariance, MergeGates, MoveKernel
from lstm_swap.dialects.context import Context, unsupported

#: Settings that were renamed, for every layer that has them.
_NAMES = {
    "W_regularizer": "kernel_regularizer",
    "U_regularizer": "recurrent_regularizer",
    "b_regularizer": "bias_regularizer",
    "W_constraint": "kernel_constraint",
    "b_constraint": "bias_constraint",
    "border_mode": "padding",
    "subsample": "strides",
    "subsample_length": "strides",
    "filter_length": "kernel_size",
    "bias": "use_bias",
    "inner_activation": "recurrent_activation",
    "dropout_W": "dropout",
    "dropout_U": "recurrent_dropout",
    "pool_length": "pool_size",
    "stride": "strides",
    "atrous_rate": "dilation_rate",
    "dim_ordering": "data_format",
}
_CLASSES = {
    "AtrousConvolution1D": "Conv1D",
    "AtrousConvolution2D": "Conv2D",
    "AtrousConv1D": "Conv1D",
    "AtrousConv2D": "Conv2D",
    "Convolution1D": "Conv1D",
    "Convolution2D": "Conv2D",
    "Convolution3D": "Conv3D",
    "Deconvolution2D": "Conv2DTranspose",
    "SeparableConvolution2D": "SeparableConv2D",
}
#: Settings without a counterpart: what they chose has no bearing on the numbers.
_DROPPED = ("consume_less", "input_dim", "input_length")
_DATA_FORMATS = {"tf": "channels_last", "th": "channels_first"}
_REFUSED = frozenset("Highway MaxoutDense ParametricSoftplus SReLU CosineConvolution2D CosineConv2D GraphMerge".split())


def translate_layer1(node: Node, context: Context, theano: bool) -> None:
    """Rewrite the entry of `node`, a built-in layer of Keras 1, for Keras 2, in place, with its arrays' edits.

    theano: the arrays were written with Theano, whose convolution turns the kernel round.

    Raises:
        UnsupportedLayerError: a layer or setting that later versions cannot compute.
    """
    old_class = node.class_name
    if old_class in _REFUSED:
        raise unsupported(node, "", None, "Keras dropped it after version 1, and no other built-in layer computes it.")
    name = _CLASSES.get(old_class, old_class)
    if name != old_class:
        node.entry["class_name"] = name
        context.add(node, "class_name", old_class, name, "opens", f"{old_class} is called {name} since Keras 2")
    config = node.config
    node.entry["config"] = config
    known = set(config)
    rule = _RULES.get(name)
    if rule is not None:
        rule(node, config, context)
    _rename(node, config, name)
    for key in _DROPPED:
        if name != "Embedding":
            config.pop(key, None)
    if "input_dtype" in config:
        config["dtype"] = config.pop("input_dtype") or "float32"
    for key in config:
        if key.endswith(("_initializer", "_regularizer", "_constraint")):
            config[key] = _object(node, key, config[key], context)
    if known - set(config) or set(config) - known:
        context.add(node, "config", "Keras 1", "Keras 2", "opens", "its settings have other names since Keras 2")
    arrays = _ARRAYS.get(name)
    if arrays is not None and node.arrays:
        arrays(node, node.config, context, theano)


def _rename(node: Node, config: dict[str, Any], name: str) -> None:
    for old, new in _NAMES.items():
        if old in config:
            value = config.pop(old)
            if old == "dim_ordering":
                value = _DATA_FORMATS.get(str(value))
                if value is None:
                    continue
            config.setdefault(new, value)
    if "init" in config:
        target = {"Embedding": "embeddings_initializer", "PReLU": "alpha_initializer"}.get(name, "kernel_initializer")
        config.setdefault(target, config.pop("init"))


def _object(node: Node, key: str, value: Any, context: Context) -> Any:
    """An initializer, regularizer or constraint; one that is not built in as a class with settings, for the user."""
    new, unknown = objects.for_keras2(value, key)
    if unknown is not None:
        message = f"the initializer {unknown} is not part of Keras; another stands for it, since the weights are here"
        context.add(node, key, value, new["class_name"], "opens", message)
    if not isinstance(new, dict) or "class_name" in new or "name" not in new:
        return new
    if new["name"] == "EigenvalueRegularizer":
        message = "EigenvalueRegularizer, which acts in training alone, is left out: no Keras since has it"
        context.add(node, key, value, None, "report", message)
        return None
    return {"class_name": new["name"], "config": {k: v for k, v in new.items() if k != "name"}}


def _sizes(config: dict[str, Any], new: str, *old: str) -> None:
    """Several numbers become one list: nb_row and nb_col are kernel_size."""
    if all(key in config for key in old):
        config[new] = [config.pop(key) for key in old]


def _dense(node: Node, config: dict[str, Any], context: Context) -> None:
    if "output_dim" in config:
        config["units"] = config.pop("output_dim")


def _recurrent(node: Node, config: dict[str, Any], context: Context) -> None:
    _dense(node, config, context)
    if "inner_init" in config:
        config["recurrent_initializer"] = config.pop("inner_init")
    forget = config.pop("forget_bias_init", None)
    if node.class_name in ("LSTM", "ConvLSTM2D"):
        config["unit_forget_bias"] = forget in (None, "one", "ones")
    config["use_bias"] = True
    config.setdefault("return_state", False)
    if node.class_name == "GRU":
        config["reset_after"] = False  # Keras 1 has no other GRU
    if node.class_name != "SimpleRNN":
        config.setdefault("inner_activation", "hard_sigmoid")


def _conv_lstm(node: Node, config: dict[str, Any], context: Context) -> None:
    _convolution(node, config, context)
    _recurrent(node, config, context)
    config.setdefault("subsample", [1, 1])  # Keras 1 does not write it, and so always reads 1
    config.setdefault("padding", config.pop("border_mode", "valid"))


def _convolution(node: Node, config: dict[str, Any], context: Context) -> None:
    if "nb_filter" in config:
        config["filters"] = config.pop("nb_filter")
    _sizes(config, "kernel_size", "nb_row", "nb_col")
    _sizes(config, "kernel_size", "kernel_dim1", "kernel_dim2", "kernel_dim3")
    if config.get("border_mode") == "full":
        raise unsupported(node, "border_mode", "full", "Keras has no such padding since version 2.")
    if node.class_name in ("Conv2D", "Conv3D", "Conv2DTranspose", "SeparableConv2D") and "dim_ordering" not in config:
        config["dim_ordering"] = "th"  # the only one, before Keras 1.0 wrote it


def _deconvolution(node: Node, config: dict[str, Any], context: Context) -> None:
    _convolution(node, config, context)
    shape = config.pop("output_shape", None)
    if shape is not None:
        message = f"output_shape={shape} is left out: Keras 2 computes it from strides and padding"
        context.add(node, "output_shape", shape, None, "report", message)


def _separable(node: Node, config: dict[str, Any], context: Context) -> None:
    _convolution(node, config, context)
    init = config.pop("init", None)
    if init is not None:
        config["depthwise_initializer"] = config["pointwise_initializer"] = init


def _embedding(node: Node, config: dict[str, Any], context: Context) -> None:
    for old, new in (("W_regularizer", "embeddings_regularizer"), ("W_constraint", "embeddings_constraint")):
        if old in config:
            config[new] = config.pop(old)
    dropout = config.pop("dropout", 0.0)
    if dropout:
        message = (
            f"the dropout of {dropout} of whole words, which acts in training alone, is left out: no Keras since has it"
        )
        context.add(node, "dropout", dropout, None, "report", message)


def _dropout(node: Node, config: dict[str, Any], context: Context) -> None:
    if "p" in config:
        config["rate"] = config.pop("p")


def _gaussian_noise(node: Node, config: dict[str, Any], context: Context) -> None:
    if "sigma" in config:
        config["stddev"] = config.pop("sigma")


def _up_sampling1d(node: Node, config: dict[str, Any], context: Context) -> None:
    if "length" in config:
        config["size"] = config.pop("length")


def _zero_padding(node: Node, config: dict[str, Any], context: Context) -> None:
    """Named or flat paddings as pairs: {"top_pad": 1, ...}, or (top, bottom, left, right)."""
    padding = config.get("padding")
    if isinstance(padding, dict):
        if node.class_name == "ZeroPadding1D":
            config["padding"] = [padding.get("left_pad", 0), padding.get("right_pad", 0)]
        else:
            rows = [padding.get("top_pad", 0), padding.get("bottom_pad", 0)]
            config["padding"] = [rows, [padding.get("left_pad", 0), padding.get("right_pad", 0)]]
    elif isinstance(padding, list) and len(padding) == 4:
        config["padding"] = [padding[:2], padding[2:]]


def _batch_normalization(node: Node, config: dict[str, Any], context: Context) -> None:
    """Mode 0 is what Keras has since; its `running_std` was a standard deviation until Keras 1.0.6."""
    mode = config.pop("mode", 0)
    if mode != 0:
        kind = "over the features of each sample" if mode == 1 else "by the statistics of each batch"
        raise unsupported(node, "mode", mode, f"it normalizes {kind}, which no BatchNormalization since Keras 2 does.")
    config.setdefault("center", True)
    config.setdefault("scale", True)


def _parametric(node: Node, config: dict[str, Any], context: Context) -> None:
    config.setdefault("shared_axes", None)


_RULES: dict[str, Callable[[Node, dict[str, Any], Context], None]] = {
    "Dense": _dense,
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _recurrent),
    "ConvLSTM2D": _conv_lstm,
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "LocallyConnected1D", "LocallyConnected2D"), _convolution),
    "Conv2DTranspose": _deconvolution,
    "SeparableConv2D": _separable,
    "Embedding": _embedding,
    **dict.fromkeys(
        ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianDropout"), _dropout
    ),
    "GaussianNoise": _gaussian_noise,
    "UpSampling1D": _up_sampling1d,
    **dict.fromkeys(("ZeroPadding1D", "ZeroPadding2D"), _zero_padding),
    "BatchNormalization": _batch_normalization,
    "PReLU": _parametric,
}


# ---------------------------------------------------------------------- arrays
def _conv_arrays(node: Node, config: dict[str, Any], context: Context, theano: bool) -> None:
    """Kernels to (window..., channels, filters), turned round where Theano made them."""
    kernel = node.arrays[0].shape
    name = node.class_name
    axes: tuple[int, ...] | None = None
    if name == "Conv1D":
        size = config.get("kernel_size")
        # (length, 1, channels, filters); until Keras 1.0 (filters, channels, length, 1)
        legacy = len(kernel) == 4 and (kernel[:2] != (size, 1) or kernel[3] != config.get("filters"))
        axes = (2, 3, 1, 0) if legacy else (0, 1, 2, 3)
        move = MoveKernel(axes, flip=(0,) if theano else (), squeeze=1)
    else:
        window = len(kernel) - 2
        first = config.get("data_format") == "channels_first"
        if name == "Conv2DTranspose":
            axes = (2, 3, 0, 1) if first else (0, 1, 3, 2)
        elif first:
            axes = (*range(2, window + 2), 1, 0)
        else:
            axes = tuple(range(window + 2))
        move = MoveKernel(axes, flip=tuple(range(window)) if theano else ())
    if move.changes:
        node.edits.append(move)
        if theano:
            message = "its kernel was turned round: Theano, which wrote it, convolves where TensorFlow correlates"
            context.add(node, "kernel", None, None, "numbers", message)


def _gate_arrays(node: Node, config: dict[str, Any], context: Context, theano: bool) -> None:
    kind = {"LSTM": "lstm", "GRU": "gru", "ConvLSTM2D": "conv_lstm"}[node.class_name]
    gates = 9 if kind == "gru" else 12
    if len(node.arrays) == gates:
        node.edits.append(MergeGates(kind, node.class_name == "ConvLSTM2D" and _channels_first(config)))
        message = f"its {gates} arrays, one a gate, were joined into three"
        context.add(node, "arrays", gates, 3, "opens", message)
    if kind == "conv_lstm" and theano:
        node.edits.append(MoveKernel((0, 1, 2, 3), flip=(0, 1), arrays=2))
        message = "its kernels were turned round: Theano, which wrote them, convolves where TensorFlow correlates"
        context.add(node, "kernel", None, None, "numbers", message)


def _channels_first(config: dict[str, Any]) -> bool:
    return config.get("data_format") == "channels_first"


def _variance(node: Node, config: dict[str, Any], context: Context, theano: bool) -> None:
    numbers = context.numbers
    if numbers is None or len(node.arrays) != 4:
        return
    if numbers < (1, 0, 6) or (numbers < (1, 0, 7) and theano):
        node.edits.append(DeviationToVariance(float(config.get("epsilon", 1e-6))))
        message = "its running_std is a standard deviation; Keras keeps the variance since 1.0.7, so it was squared"
        context.add(node, "moving_variance", None, None, "numbers", message)


_ARRAYS: dict[str, Callable[[Node, dict[str, Any], Context, bool], None]] = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose"), _conv_arrays),
    **dict.fromkeys(("LSTM", "GRU", "ConvLSTM2D"), _gate_arrays),
    "BatchNormalization": _variance,
}
