"""Files of Keras 1 that Theano computed: its convolution turns the kernel round, and pads in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap.architecture import build_tree
from lstm_swap.dialects import keras1
from lstm_swap.errors import UnsupportedLayerError
from tests.dialect_tools import (
    attach,
    converted,
    edited,
    effects,
    keras1_sequential,
    layer,
    node_of,
    quietly,
    write_keras1,
)
from tests.test_keras1 import CONV1, CONV2


def true_convolution(x: Any, kernel: Any) -> Any:
    """Convolution over steps as mathematics defines it: y[t] = sum over s, c of x[t + k - 1 - s, c] w[s, c]."""
    length = kernel.shape[0]
    steps = x.shape[1] - length + 1
    y = np.zeros((x.shape[0], steps, kernel.shape[2]))
    for t in range(steps):
        for s in range(length):
            y[:, t] += x[:, t + length - 1 - s] @ kernel[s]
    return y


def theano_same(x: Any, kernel: Any, stride: int) -> Any:
    """Theano's border_mode "half", cropped as Keras 1.2.2 crops it (`_postprocess_conv2d_output`)."""
    half = kernel.shape[0] // 2
    y = true_convolution(np.pad(x, ((0, 0), (half, half), (0, 0))), kernel)[:, ::stride]
    return y[:, : -(-x.shape[1] // stride)]


@pytest.mark.parametrize(
    ("length", "stride", "mode"), [(3, 1, "valid"), (3, 1, "same"), (2, 1, "same"), (3, 2, "same")]
)
def test_theano_convolves(length: int, stride: int, mode: str, load_keras: Any, tmp_path: Path) -> None:
    """Theano turns the kernel round, and pads an even kernel or a stride in its own way; both are kept."""
    rng = np.random.default_rng(3)
    x, kernel, bias = rng.normal(size=(2, 7, 4)), rng.normal(size=(length, 4, 3)), rng.normal(size=3)
    config = dict(CONV1, activation="linear", filter_length=length, subsample_length=stride, border_mode=mode)
    entry = keras1_sequential(layer("Convolution1D", "conv_1", batch_input_shape=[None, 7, 4], **config))
    path = write_keras1(tmp_path / "old.h5", entry, {"conv_1": [kernel[:, None], bias]}, theano=True)
    out, report = converted(path, ".h5")
    assert "numbers" in effects(report.changes, "kernel")
    wanted = true_convolution(x, kernel) if mode == "valid" else theano_same(x, kernel, stride)
    got = np.asarray(quietly(load_keras(out), x.astype("float32")))
    np.testing.assert_allclose(got, wanted + bias, atol=1e-5)


def test_theano_and_tensorflow_files_differ_by_their_names_alone(load_keras: Any, tmp_path: Path) -> None:
    """The same arrays under names that end in ":0" are TensorFlow's, whose kernels stay as they are."""
    rng = np.random.default_rng(3)
    kernel, bias = rng.normal(size=(3, 4, 3)), rng.normal(size=3)
    config = dict(CONV1, activation="linear", filter_length=3)
    entry = keras1_sequential(layer("Convolution1D", "conv_1", batch_input_shape=[None, 7, 4], **config))
    path = write_keras1(tmp_path / "old.h5", entry, {"conv_1": [kernel[:, None], bias]})
    model = load_keras(converted(path, ".h5")[0])
    np.testing.assert_array_equal(model.get_weights()[0], kernel.astype("float32"))


@pytest.mark.parametrize("class_name", ["Convolution2D", "ConvLSTM2D"])
def test_channels_first_kernels_move_their_axes(class_name: str) -> None:
    """Kernels of dim_ordering "th", (filters, channels, rows, columns), become (rows, columns, channels, filters)."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, 2, 3, 5))  # filters, channels, rows, columns
    config = dict(CONV2, dim_ordering="th", nb_row=3, nb_col=5)
    if class_name == "Convolution2D":
        arrays = [kernel, np.zeros(3)]
    else:
        config |= {"inner_init": "orthogonal", "forget_bias_init": "one", "inner_activation": "hard_sigmoid"}
        arrays = [kernel, rng.normal(size=(3, 3, 3, 5)), np.zeros(3)] * 4
    root = build_tree(keras1_sequential(layer(class_name, "conv_1", **config)))
    node = node_of(root, "conv_1")
    attach(node, arrays)
    keras1.to_keras2(root, theano=False)
    assert node.config["data_format"] == "channels_first"
    result = edited(node, arrays)[0]
    wanted = kernel.transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(result[..., :3], wanted)
    root = build_tree(keras1_sequential(layer(class_name, "conv_1", **config)))
    node = node_of(root, "conv_1")
    attach(node, arrays)
    keras1.to_keras2(root, theano=True)
    np.testing.assert_array_equal(edited(node, arrays)[0][..., :3], wanted[::-1, ::-1])


def test_padding_of_theano_pooling_is_refused() -> None:
    """Theano's pooling with border_mode "same" sees other windows; no layer of Keras 3 pools these."""
    config = {"pool_length": 2, "stride": 2, "border_mode": "same", "batch_input_shape": [None, 6, 2]}
    entry = keras1_sequential(layer("MaxPooling1D", "pool_1", **config))
    with pytest.raises(UnsupportedLayerError, match=r"pool_1.*padding"):
        keras1.to_keras2(build_tree(entry), theano=True)
    keras1.to_keras2(build_tree(keras1_sequential(layer("MaxPooling1D", "pool_1", **config))), theano=False)


def test_even_kernels_of_conv_lstm_under_theano_are_refused() -> None:
    """The recurrent convolution always pads, and Theano pads an even kernel in another way."""
    config = dict(CONV2, inner_init="orthogonal", forget_bias_init="one", inner_activation="hard_sigmoid")
    for size, refused in ((2, True), (3, False)):
        entry = keras1_sequential(layer("ConvLSTM2D", "conv_1", **dict(config, nb_row=size, border_mode="valid")))
        if refused:
            with pytest.raises(UnsupportedLayerError, match=r"conv_1.*kernel_size"):
                keras1.to_keras2(build_tree(entry), theano=True)
        else:
            keras1.to_keras2(build_tree(entry), theano=True)
