"""What Theano computes in another way than TensorFlow: the kernel of a convolution, and the padding "same"."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import Node
from lstm_swap.dialects.array_edits import MoveKernel
from lstm_swap.dialects.context import Context, unsupported
from lstm_swap.dialects.insertion import Insertions

#: Dimensions of space, and how many leading arrays are kernels.
_CONVOLUTIONS = {
    "Conv1D": (1, 1),
    "Conv2D": (2, 1),
    "Conv3D": (3, 1),
    "Conv2DTranspose": (2, 1),
    "Conv3DTranspose": (3, 1),
    "ConvLSTM2D": (2, 2),
}

_EVEN = "Theano, which wrote the file, pads an even kernel in another way than TensorFlow."


def flip_kernels(root: Node, context: Context) -> None:
    """Turn round the kernels of a Keras 2 file that was written with Theano (keras/engine/saving.py does so too)."""
    for node in root.walk():
        if node.class_name in _CONVOLUTIONS and node.arrays:
            space, kernels = _CONVOLUTIONS[node.class_name]
            axes = tuple(range(space + 2))
            node.edits.append(MoveKernel(axes, flip=tuple(range(space)), arrays=kernels))
            message = "its kernel was turned round: Theano, which wrote it, convolves where TensorFlow correlates"
            context.add(node, "kernel", None, None, "numbers", message)


def pad_as_theano(node: Node, context: Context, insertions: Insertions) -> None:
    """Keep Theano's padding "same" where TensorFlow's differs, with a ZeroPadding layer and padding "valid".

    With k the reach of the kernel, Theano puts k // 2 zeros before the data and keeps the first ceil(n / stride)
    outputs (keras/backend/theano_backend.py of Keras 1.2.2, `_postprocess_conv2d_output`). TensorFlow puts the smaller
    half of what is needed in front, which is the same for an odd k and stride 1 alone.

    node: a layer with the settings of Keras 2.
    """
    config, name = node.config, node.class_name
    if name == "ConvLSTM2D" and any(k % 2 == 0 for k in _list(config.get("kernel_size"), 2)):
        # its recurrent convolution pads with "same" whatever the setting says
        raise unsupported(node, "kernel_size", config.get("kernel_size"), _EVEN)
    if config.get("padding") != "same":
        return
    if "Pooling" in name:
        _check_pooling(node, config)
        return
    if name not in ("Conv1D", "Conv2D", "Conv3D"):
        if name in _CONVOLUTIONS and any(k % 2 == 0 for k in _list(config.get("kernel_size"), 2)):
            raise unsupported(node, "padding", "same", _EVEN)
        return
    space = int(name[4])
    sizes = _list(config.get("kernel_size"), space)
    rates, strides = _list(config.get("dilation_rate", 1), space), _list(config.get("strides", 1), space)
    reach = [(k - 1) * rate + 1 for k, rate in zip(sizes, rates, strict=True)]
    if all(k % 2 == 1 for k in reach) and all(s == 1 for s in strides):
        return
    if node.role != "item":
        raise unsupported(node, "padding", "same", "Theano pads it in another way, and no layer can stand before it.")
    pads = [[k // 2, k - 1 - k // 2] for k in reach]
    settings: dict[str, Any] = {"trainable": True, "padding": pads[0] if space == 1 else pads}
    if space > 1:
        settings["data_format"] = config.get("data_format", "channels_last")
    if "batch_input_shape" in config:
        settings["batch_input_shape"] = config.pop("batch_input_shape")
        if "dtype" in config:
            settings["dtype"] = config.pop("dtype")
    config["padding"] = "valid"
    insertions.before(node, f"ZeroPadding{space}D", "_padding", settings)
    message = f"Theano pads by {pads} for 'same', TensorFlow in another way: a ZeroPadding{space}D stands in front"
    context.add(node, "padding", "same", pads, "numbers", message)


def _check_pooling(node: Node, config: dict[str, Any]) -> None:
    """Theano's pooling starts p - 1 (an odd p above 2: p - 2) before the data; TensorFlow's seldom does."""
    space = int(node.class_name[-2])
    sizes = _list(config.get("pool_size"), space)
    strides = _list(config.get("strides") or sizes, space)
    for size, stride in zip(sizes, strides, strict=True):
        if not (size == 1 or (size == 3 and stride == 1)):
            raise unsupported(
                node, "padding", "same", "Theano, which wrote the file, pools other windows there than TensorFlow."
            )


def _list(value: Any, length: int) -> list[int]:
    return [int(value)] * length if isinstance(value, int) else [int(v) for v in value]
