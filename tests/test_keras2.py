"""Files of Keras 2 (2.0 to 2.3) and tf.keras (1.13 to 2.15), saved by tf_keras and respelled as those wrote them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lstm_swap
from lstm_swap.architecture import build_tree
from tests.dialect_tools import (
    Json,
    assert_same,
    converted,
    effects,
    quietly,
    randomised,
    save_h5,
)

HS = {"recurrent_activation": "hard_sigmoid"}
FLAT, IMAGE, VOLUME = (6, 4), (8, 8, 3), (5, 5, 5, 2)

#: name -> (shape, the layers)
LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Any, Any], list[Any]]]] = {
    "Dense": (FLAT, lambda L, K: [L.Dense(3, activation="hard_sigmoid")]),
    "EinsumDense": (
        FLAT,
        lambda L, K: [L.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d", activation="hard_sigmoid")],
    ),
    "Activation": (FLAT, lambda L, K: [L.Activation("hard_sigmoid")]),
    "TimeDistributed Activation": (FLAT, lambda L, K: [L.TimeDistributed(L.Activation("hard_sigmoid"))]),
    "TimeDistributed Dense": (FLAT, lambda L, K: [L.TimeDistributed(L.Dense(3, activation="hard_sigmoid"))]),
    "TimeDistributed Sequential": (
        FLAT,
        lambda L, K: [L.TimeDistributed(K.Sequential([L.InputLayer((4,)), L.Dense(3), L.BatchNormalization()]))],
    ),
    "Masking": (FLAT, lambda L, K: [L.Masking(0.2), L.LSTM(3)]),
    "Permute Reshape": (FLAT, lambda L, K: [L.Permute((2, 1)), L.Reshape((2, 12))]),
    "Flatten RepeatVector": (FLAT, lambda L, K: [L.Flatten(), L.RepeatVector(3)]),
    "Conv1D": (FLAT, lambda L, K: [L.Conv1D(3, 3, activation="hard_sigmoid", padding="same", strides=2)]),
    "Conv1D causal": (FLAT, lambda L, K: [L.Conv1D(3, 2, padding="causal", dilation_rate=2)]),
    "SeparableConv1D": (FLAT, lambda L, K: [L.SeparableConv1D(3, 3, activation="hard_sigmoid")]),
    "Conv1DTranspose": (FLAT, lambda L, K: [L.Conv1DTranspose(3, 3, activation="hard_sigmoid", strides=2)]),
    "DepthwiseConv1D": (FLAT, lambda L, K: [L.DepthwiseConv1D(2, depth_multiplier=2, activation="hard_sigmoid")]),
    "Conv2D": (IMAGE, lambda L, K: [L.Conv2D(6, 3, groups=3, activation="hard_sigmoid")]),
    "SeparableConv2D": (IMAGE, lambda L, K: [L.SeparableConv2D(3, 3, activation="hard_sigmoid")]),
    "Conv2DTranspose": (IMAGE, lambda L, K: [L.Conv2DTranspose(4, 3, activation="hard_sigmoid", strides=2)]),
    "DepthwiseConv2D": (IMAGE, lambda L, K: [L.DepthwiseConv2D(3, depth_multiplier=2, activation="hard_sigmoid")]),
    "Conv3D": (VOLUME, lambda L, K: [L.Conv3D(3, 2, activation="hard_sigmoid")]),
    "Conv3DTranspose": (VOLUME, lambda L, K: [L.Conv3DTranspose(3, 2, activation="hard_sigmoid")]),
    "LSTM": (FLAT, lambda L, K: [L.LSTM(3, return_sequences=True, **HS)]),
    "LSTM without bias": (FLAT, lambda L, K: [L.LSTM(3, use_bias=False, **HS)]),
    "LSTM backwards unrolled": (FLAT, lambda L, K: [L.LSTM(3, go_backwards=True, unroll=True, **HS)]),
    "GRU": (FLAT, lambda L, K: [L.GRU(3, return_sequences=True, **HS)]),
    "GRU before": (FLAT, lambda L, K: [L.GRU(3, reset_after=False, activation="hard_sigmoid", **HS)]),
    "GRU after": (FLAT, lambda L, K: [L.GRU(3, reset_after=True, activation="hard_sigmoid", **HS)]),
    "SimpleRNN": (FLAT, lambda L, K: [L.SimpleRNN(3, activation="hard_sigmoid", return_sequences=True)]),
    "RNN": (FLAT, lambda L, K: [L.RNN(L.LSTMCell(3, **HS))]),
    "RNN of stacked cells": (
        FLAT,
        lambda L, K: [L.RNN([L.LSTMCell(3, **HS), L.GRUCell(2, **HS), L.SimpleRNNCell(2, activation="hard_sigmoid")])],
    ),
    "Bidirectional": (FLAT, lambda L, K: [L.Bidirectional(L.GRU(3, return_sequences=True, **HS), merge_mode="sum")]),
    "Bidirectional backwards": (FLAT, lambda L, K: [L.Bidirectional(L.LSTM(3, go_backwards=True))]),
    "ConvLSTM1D": ((4, 5, 2), lambda L, K: [L.ConvLSTM1D(2, 3)]),
    "ConvLSTM2D": ((4, 5, 5, 2), lambda L, K: [L.ConvLSTM2D(2, 3, return_sequences=True, padding="same")]),
    "ConvLSTM3D": ((2, 3, 3, 3, 2), lambda L, K: [L.ConvLSTM3D(2, 2)]),
    "BatchNormalization": (FLAT, lambda L, K: [L.BatchNormalization(axis=1)]),
    "LayerNormalization": (FLAT, lambda L, K: [L.LayerNormalization(axis=[2])]),
    "GroupNormalization": (FLAT, lambda L, K: [L.GroupNormalization(2), L.UnitNormalization()]),
    "LeakyReLU": (FLAT, lambda L, K: [L.LeakyReLU(0.2)]),
    "LeakyReLU as an activation": (FLAT, lambda L, K: [L.Dense(3, activation=L.LeakyReLU(0.1))]),
    "PReLU": (FLAT, lambda L, K: [L.PReLU(shared_axes=[1])]),
    "ELU": (FLAT, lambda L, K: [L.ELU(0.7)]),
    "ThresholdedReLU": (FLAT, lambda L, K: [L.ThresholdedReLU(0.3)]),
    "ReLU": (FLAT, lambda L, K: [L.ReLU(max_value=0.5, negative_slope=0.1, threshold=0.1)]),
    "Softmax": (FLAT, lambda L, K: [L.Softmax(axis=1)]),
    "activations": (
        FLAT,
        lambda L, K: [
            L.Dense(4, activation=name)
            for name in "elu exponential gelu mish relu selu sigmoid softplus softsign swish tanh softmax".split()
        ],
    ),
    "pooling": (IMAGE, lambda L, K: [L.MaxPooling2D(2, padding="same"), L.AveragePooling2D(2), L.GlobalMaxPooling2D()]),
    "pooling1d": (FLAT, lambda L, K: [L.MaxPooling1D(2), L.AveragePooling1D(2), L.GlobalAveragePooling1D()]),
    "pooling3d": (VOLUME, lambda L, K: [L.MaxPooling3D(2), L.GlobalAveragePooling3D(keepdims=True)]),
    "padding": (FLAT, lambda L, K: [L.ZeroPadding1D((1, 2)), L.Cropping1D((0, 1)), L.UpSampling1D(2)]),
    "padding2d": (
        IMAGE,
        lambda L, K: [
            L.ZeroPadding2D(((1, 0), (0, 2))), L.Cropping2D(1), L.UpSampling2D(2, interpolation="bilinear"),
        ],
    ),
    "padding3d": (VOLUME, lambda L, K: [L.ZeroPadding3D(1), L.Cropping3D(1), L.UpSampling3D(2)]),
    "regularization": (
        FLAT,
        lambda L, K: [
            L.Dropout(0.1), L.SpatialDropout1D(0.2), L.GaussianNoise(0.1), L.GaussianDropout(0.2), L.AlphaDropout(0.1),
            L.ActivityRegularization(0.1),
        ],
    ),
    "preprocessing": (
        IMAGE,
        lambda L, K: [
            L.Rescaling(2.0, 1.0), L.Resizing(6, 6), L.CenterCrop(5, 5), L.RandomFlip(), L.RandomRotation(0.1),
            L.RandomZoom(0.1), L.RandomTranslation(0.1, 0.1), L.RandomContrast(0.1), L.RandomBrightness(0.1),
        ],
    ),
    "regularizers and constraints": (
        FLAT,
        lambda L, K: [
            L.Dense(
                3, kernel_regularizer="l2", bias_regularizer=K.regularizers.L1L2(0.1, 0.2), activity_regularizer="l1",
                kernel_constraint="max_norm", bias_constraint=K.constraints.NonNeg(),
                kernel_initializer=K.initializers.VarianceScaling(2.0, "fan_in", "normal"),
            )
        ],
    ),
    "initializers": (
        FLAT,
        lambda L, K: [
            L.Dense(4, kernel_initializer=name)
            for name in "he_normal lecun_uniform glorot_normal orthogonal random_normal truncated_normal ones".split()
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".h5", ".keras"])
@pytest.mark.parametrize("case", LAYERS)
def test_built_in_layers_give_the_same_numbers(
    case: str, suffix: str, tfk: Any, load_keras: Any, tmp_path: Path
) -> None:
    """Each built-in layer of Keras 2, with hard_sigmoid wherever it has an activation, is the same in Keras 3."""
    shape, build = LAYERS[case]
    layers = build(tfk.layers, tfk)
    model = randomised(tfk.Sequential([tfk.layers.InputLayer(input_shape=shape), *layers]))
    out, _ = converted(save_h5(model, tmp_path / "old.h5"), suffix)
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype("float32")
    if case == "Masking":
        x[:, -2:] = 0.2
    assert_same(model, load_keras(out), [x])


# ---------------------------------------------------------------------- graphs
def seq2seq(K: Any) -> Any:
    """Initial states among the inputs, as every Keras 2 lists them."""
    L = K.layers
    a, b = K.Input((5, 3)), K.Input((4, 2))
    _, h, c = L.LSTM(4, return_state=True, **HS)(a)
    y = L.LSTM(4, return_sequences=True, **HS)(b, initial_state=[h, c])
    y = L.GRU(4, return_sequences=True)(y, initial_state=h)
    return K.Model([a, b], L.Dense(2, activation="hard_sigmoid")(y))


def bidirectional_states(K: Any) -> Any:
    """Four states handed from one Bidirectional to another."""
    L = K.layers
    a, b = K.Input((5, 3)), K.Input((4, 2))
    states = L.Bidirectional(L.LSTM(4, return_state=True))(a)[1:]
    return K.Model([a, b], L.Bidirectional(L.LSTM(4, return_sequences=True))(b, initial_state=states))


def stacked_states(K: Any) -> Any:
    """States of stacked cells, nested as the cells are."""
    L = K.layers
    x = K.Input((5, 3))
    outputs = L.RNN([L.LSTMCell(3), L.GRUCell(2)], return_state=True, return_sequences=True)(x)
    y = L.RNN([L.LSTMCell(3), L.GRUCell(2)])(outputs[0], initial_state=outputs[1:])
    return K.Model(x, [y, *outputs])


def image_states(K: Any) -> Any:
    """Initial states of a ConvLSTM2D."""
    L = K.layers
    x = K.Input((4, 5, 5, 2))
    y, h, c = L.ConvLSTM2D(2, 3, padding="same", return_state=True)(x)
    return K.Model(x, [y, L.ConvLSTM2D(2, 3, padding="same")(x, initial_state=[h, c])])


def shared_layers(K: Any) -> Any:
    """Layers called several times, an Activation that needs a Rescaling among them."""
    L = K.layers
    a, b = K.Input((5, 3)), K.Input((5, 3))
    lstm, dense, act = L.LSTM(4, **HS), L.Dense(2, activation="hard_sigmoid"), L.Activation("hard_sigmoid")
    return K.Model([a, b], [act(dense(lstm(a))), act(dense(lstm(b))), L.Add()([lstm(a), lstm(b)])])


def models_as_layers(K: Any) -> Any:
    """Nested models with several outputs and several calls; a Sequential with and one without an input."""
    L = K.layers
    x = K.Input((5, 3))
    y = L.LSTM(4, return_sequences=True, **HS)(x)
    inner = K.Model(x, [y, L.Activation("hard_sigmoid")(y)], name="inner")
    a, b = K.Input((5, 3)), K.Input((5, 3))
    (p, q), (r, s) = inner(a), inner(b)
    bare = K.Sequential([L.Dense(3, activation="hard_sigmoid"), L.Activation("hard_sigmoid")], name="bare")
    fed = K.Sequential([K.Input((5, 3)), L.Dense(3)], name="fed")
    return K.Model([a, b], [L.Concatenate()([p, q, r, s]), bare(p), fed(bare(q)), bare(r), fed(b)])


def models_in_models(K: Any) -> Any:
    """Five levels, and a nested model as the output."""
    L = K.layers
    model = K.Sequential([K.Input((5, 3)), L.LSTM(3, return_sequences=True)])
    for level in range(4):
        x = K.Input((5, 3))
        model = K.Model(x, L.Activation("hard_sigmoid")(model(x)), name=f"level_{level}")
    return model


def model_in_a_wrapper(K: Any) -> Any:
    """A functional model applied to each step."""
    L = K.layers
    x = K.Input((4, 2))
    inner = K.Model(x, L.GRU(3)(x))
    a = K.Input((3, 4, 2))
    return K.Model(a, L.LSTM(2)(L.TimeDistributed(inner)(a)))


def several_inputs(K: Any) -> Any:
    """A nested model with two inputs, and one whose inputs have names."""
    L = K.layers
    x, y = K.Input((3,), name="x"), K.Input((3,), name="y")
    listed = K.Model([x, y], L.Multiply()([x, L.Dense(3)(y)]))
    named = K.Model({"x": x, "y": y}, L.Subtract()([x, L.Dense(3)(y)]))
    a, b = K.Input((3,), name="a"), K.Input((3,), name="b")
    return K.Model([a, b], named({"x": listed([a, b]), "y": listed([b, a])}))


def merging(K: Any) -> Any:
    """All merging layers."""
    L = K.layers
    a, b = K.Input((5, 3)), K.Input((5, 3))
    kinds = [L.Add, L.Multiply, L.Average, L.Maximum, L.Minimum, L.Subtract]
    return K.Model(
        [a, b],
        [*[kind()([a, b]) for kind in kinds], L.Concatenate(axis=1)([a, b]), L.Dot(2)([a, b]),
         L.Dot((1, 1), normalize=True)([a, b])],
    )  # fmt: skip


def attention(K: Any) -> Any:
    """Attention layers; MultiHeadAttention gets its value and key by name."""
    L = K.layers
    a, b = K.Input((5, 6)), K.Input((5, 6))
    return K.Model(
        [a, b],
        [L.Attention(use_scale=True)([a, b]), L.AdditiveAttention()([a, b]), L.MultiHeadAttention(2, 3)(a, b),
         L.Attention()([a, b], use_causal_mask=True), L.MultiHeadAttention(2, 3, use_bias=False)(a, b, key=a)],
    )  # fmt: skip


def mask_by_name(K: Any) -> Any:
    """A mask that is a tensor of the graph."""
    x, mask = K.Input((5, 3)), K.Input((5,), dtype="bool")
    return K.Model([x, mask], K.layers.LSTM(3)(x, mask=mask))


def slashes(K: Any) -> Any:
    """Names with a slash, one of which is taken without it."""
    L = K.layers
    x = K.Input((3,), name="in/put")
    return K.Model(x, L.Dense(2, name="a/b")(L.Dense(2, name="a_b")(x)), name="mod/el")


GRAPHS = [
    seq2seq, bidirectional_states, stacked_states, image_states, shared_layers, models_as_layers, models_in_models,
    model_in_a_wrapper, several_inputs, merging, attention, mask_by_name, slashes,
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".h5", ".keras"])
@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
def test_graphs_give_the_same_numbers(
    build: Callable[[Any], Any], suffix: str, tfk: Any, load_keras: Any, tmp_path: Path
) -> None:
    """The calls between layers mean the same in Keras 3, whatever arguments and models they go through."""
    model = randomised(build(tfk))
    out, _ = converted(save_h5(model, tmp_path / "old.h5"), suffix)
    assert_same(model, load_keras(out), random_inputs(model))


def random_inputs(model: Any) -> list[Any]:
    """An array for each input of a tf_keras model."""
    rng = np.random.default_rng(2)
    x = []
    for tensor in model.inputs:
        shape = [3 if n is None else n for n in tensor.shape]
        x.append(rng.random(shape) < 0.7 if tensor.dtype.name == "bool" else rng.normal(size=shape).astype("float32"))
    return x


@pytest.mark.parametrize(("dtype", "atol"), [("float16", 2e-2), ("float64", 1e-12), ("mixed_float16", 2e-2)])
def test_dtypes_stay(dtype: str, atol: float, tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Layers of other dtypes keep them, a mixed policy (an object in these files) included."""
    L = tfk.layers
    policy = tfk.mixed_precision.Policy(dtype)
    start = L.InputLayer(input_shape=(5, 3), dtype="float32" if dtype.startswith("mixed") else dtype)
    model = randomised(tfk.Sequential([start, L.LSTM(3, dtype=policy, **HS), L.Dense(2, dtype=policy)]))
    new = load_keras(converted(save_h5(model, tmp_path / "old.h5"), ".keras")[0])
    assert [one.dtype_policy.name for one in new.layers] == [dtype, dtype]
    assert [w.dtype for w in new.weights] == [w.dtype.name for w in model.weights]
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(dtype.replace("mixed_float16", "float32"))
    assert_same(model, new, [x], atol)


@pytest.mark.parametrize("case", [*LAYERS, *[build.__name__ for build in GRAPHS]])
def test_the_report_foretells_what_keras3_does(
    case: str, tfk: Any, keras: Any, load_keras: Any, tmp_path: Path
) -> None:
    """`inspect` says of the untouched file whether Keras 3 opens it, and if so whether it computes the same."""
    if case in LAYERS:
        shape, build = LAYERS[case]
        model = tfk.Sequential([tfk.layers.InputLayer(input_shape=shape), *build(tfk.layers, tfk)])
    else:
        model = next(build for build in GRAPHS if build.__name__ == case)(tfk)
    path = save_h5(randomised(model), tmp_path / "old.h5")
    report = lstm_swap.inspect(path, to="standard")
    x = random_inputs(model)
    try:
        new = quietly(load_keras, path)
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):
        assert report.opens_today is False
        return
    assert report.opens_today is True
    if report.same_numbers:
        assert_same(model, new, x)
    else:
        with pytest.raises(AssertionError):
            assert_same(model, new, x)


# ---------------------------------------------------------------------- as older versions wrote it
def as_keras_2_1(entry: Json) -> Json:
    """Keras 2.0 to 2.2.2: a bare list, VarianceScaling for Glorot, no dtype but the first layer's, no input layer."""
    layers = entry["config"]["layers"]
    box = layers.pop(0)
    for one in layers:
        for node in build_tree({"class_name": "Sequential", "config": [one]}).walk():
            config = node.config
            for key in ("dtype", "time_major", "reset_after", "groups"):
                config.pop(key, None)
            for key, value in list(config.items()):
                if isinstance(value, dict) and value.get("class_name") == "GlorotUniform":
                    scaling = {"scale": 1.0, "mode": "fan_avg", "distribution": "uniform", "seed": None}
                    config[key] = {"class_name": "VarianceScaling", "config": scaling}
                elif isinstance(value, dict) and key.endswith("initializer"):
                    config[key] = {"class_name": value["class_name"], "config": value["config"]}
    layers[0]["config"].update(batch_input_shape=box["config"]["batch_input_shape"], dtype="float32")
    return {"class_name": "Sequential", "config": layers}


def as_tf_1_14(entry: Json) -> Json:
    """tf.keras 1.14: a dtype in every initializer, `batch_input_shape` in the first layer, lists as axes."""
    layers = entry["config"]["layers"]
    box = layers.pop(0)
    for node in build_tree(entry).walk():
        for key, value in node.config.items():
            if key.endswith("initializer"):
                value = {"class_name": value["class_name"], "config": {**value["config"], "dtype": "float32"}}
                node.config[key] = value
    layers[0]["config"]["batch_input_shape"] = box["config"]["batch_input_shape"]
    return entry


@pytest.mark.parametrize(("respell", "version"), [(as_keras_2_1, "2.1.2"), (as_tf_1_14, "2.2.4-tf")])
def test_older_spellings(
    respell: Callable[[Json], Json], version: str, tfk: Any, load_keras: Any, tmp_path: Path
) -> None:
    """The same model as Keras 2.1 and tf.keras 1.14 wrote it opens, with an input layer, and computes the same."""
    L = tfk.layers
    model = randomised(
        tfk.Sequential(
            [L.InputLayer(input_shape=(6, 4)), L.Bidirectional(L.LSTM(3, return_sequences=True, **HS)),
             L.GRU(3, return_sequences=True, reset_after=False, **HS), L.TimeDistributed(L.Dense(2)),
             L.BatchNormalization(), L.Flatten(), L.Dense(2, activation="hard_sigmoid")]
        )
    )  # fmt: skip
    out, report = converted(save_h5(model, tmp_path / "old.h5", respell, version), ".keras")
    assert report.keras_version == version
    assert "opens" in effects(report.changes, "batch_input_shape")
    x = np.random.default_rng(1).normal(size=(3, 6, 4)).astype("float32")
    assert_same(model, load_keras(out), [x])
