"""Files of Keras 2 (2.0 to 2.3) and tf.keras (1.13 to 2.15): what tf_keras saves, respelled as those versions wrote it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap.architecture import Array, build_tree
from lstm_swap.dialects import custom_functions, detect, keras2, lambdas, unknown_classes
from lstm_swap.errors import UnsupportedLayerError
from tests.dialect_tools import (
    Json,
    assert_same,
    converted,
    effects,
    entries,
    layer,
    node_of,
    quietly,
    randomised,
    save_h5,
    sequential,
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
            for name in "elu exponential gelu linear mish relu selu sigmoid softplus softsign swish tanh softmax".split()
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
    rng = np.random.default_rng(2)
    x = []
    for tensor in model.inputs:
        shape = [3 if n is None else n for n in tensor.shape]
        x.append(rng.random(shape) < 0.7 if tensor.dtype.name == "bool" else rng.normal(size=shape).astype("float32"))
    assert_same(model, load_keras(out), x)


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


def translated(entry: Json, version: str | None = "2.2.4", **arrays: list[tuple[int, ...]]) -> tuple[Json, Any]:
    """The architecture in Keras 3's words, with arrays of these shapes on the layers of these names."""
    entry = copy.deepcopy(entry)
    root = build_tree(entry)
    for name, shapes in arrays.items():
        node_of(root, name).arrays = [
            Array(f"w{i}", s, "float32", lambda s=s: np.ones(s)) for i, s in enumerate(shapes)
        ]
    return entry, keras2.to_keras3(root, version=version)


def opens(keras: Any, entry: Json) -> Any:
    return quietly(keras.saving.deserialize_keras_object, json.loads(json.dumps(entry)))


LSTM = {"units": 3, "activation": "tanh", "recurrent_activation": "sigmoid"}


@pytest.mark.parametrize(("old", "new"), [
    ("UnifiedLSTM", "LSTM"), ("UnifiedGRU", "GRU"), ("SyncBatchNormalization", "BatchNormalization"),
    ("BatchNormalizationV1", "BatchNormalization"), ("Convolution1D", "Conv1D"), ("MaxPool1D", "MaxPooling1D"),
])  # fmt: skip
def test_classes_that_were_renamed(old: str, new: str, keras: Any) -> None:
    """Names that only some versions used are those of Keras 3 afterwards."""
    config: Json = {"LSTM": LSTM, "GRU": LSTM, "Conv1D": {"filters": 2, "kernel_size": [2]}}.get(new, {})
    entry, changes = translated(sequential(layer(old, "x", batch_input_shape=[None, 5, 4], **config)))
    assert entries(entry)["x"]["class_name"] == new
    assert "opens" in effects(changes, "class_name")
    if old == "SyncBatchNormalization":
        assert entries(entry)["x"]["config"]["synchronized"] is True
    opens(keras, entry)


def test_time_major() -> None:
    """False goes, since Keras 3 refuses the word; True is refused, naming layer and setting."""
    one = layer("LSTM", "lstm_1", time_major=False, batch_input_shape=[None, 5, 4], **LSTM)
    entry, changes = translated(sequential(one))
    assert "time_major" not in entries(entry)["lstm_1"]["config"]
    assert effects(changes, "time_major") == {"opens"}
    with pytest.raises(UnsupportedLayerError, match=r"lstm_1.*time_major=True"):
        translated(sequential(layer("LSTM", "lstm_1", time_major=True, **LSTM)))


@pytest.mark.parametrize(("bias", "wanted"), [((9,), False), ((2, 9), True), (None, False)])
def test_reset_after_is_decided_and_said(bias: tuple[int, ...] | None, wanted: bool) -> None:
    """A GRU without the key is the kind that its bias shows; without a bias the older one, and the report says so."""
    one = layer("GRU", "gru_1", use_bias=bias is not None, batch_input_shape=[None, 5, 4], **LSTM)
    shapes = [(4, 9), (3, 9), *([bias] if bias else [])]
    entry, changes = translated(sequential(one), "2.1.2", gru_1=shapes)
    assert entries(entry)["gru_1"]["config"]["reset_after"] is wanted
    said = [c for c in changes if "reset_after" in c.message]
    assert bool(said) is not wanted
    if bias is None:
        assert said[0].effect == "numbers"


@pytest.mark.parametrize(("version", "gate"), [("2.1.6", "hard_sigmoid"), ("2.2.5", "hard_sigmoid"), ("2.3.1", "sigmoid"),
                                               ("2.2.4-tf", "sigmoid"), ("2.11.0", "sigmoid")])  # fmt: skip
def test_missing_gates_are_those_of_the_version(version: str, gate: str) -> None:
    """Where a layer states no recurrent_activation, the default of its version is written, and the report says so."""
    entry, changes = translated(sequential(layer("LSTM", "lstm_1", units=3, batch_input_shape=[None, 5, 4])), version)
    config = entries(entry)["lstm_1"]["config"]
    assert config["recurrent_activation"] == gate
    assert any(c.field == "recurrent_activation" and c.effect == "report" for c in changes)
    for key in ("activation", "use_bias", "unit_forget_bias", "return_sequences", "return_state", "go_backwards",
                "stateful", "unroll", "dropout", "recurrent_dropout", "zero_output_for_mask"):  # fmt: skip
        assert key in config


@pytest.mark.parametrize("class_name", ["LSTM", "ConvLSTM2D"])
def test_hard_sigmoid_on_the_cell_state_is_refused(class_name: str) -> None:
    """No weight can make good a changed function on the cell state: the error names layer and field."""
    config = {**LSTM, "activation": "hard_sigmoid"} if class_name == "LSTM" else {
        "filters": 2, "kernel_size": [3, 3], "activation": "hard_sigmoid"}  # fmt: skip
    with pytest.raises(UnsupportedLayerError, match=r"odd_1.*activation='hard_sigmoid'"):
        translated(sequential(layer(class_name, "odd_1", **config)))


def test_hard_sigmoid_in_a_strange_wrapper_is_refused() -> None:
    """Before a layer inside a custom wrapper no Rescaling can stand; a Dense there scales its own weights."""
    act = layer("Activation", "act", activation="hard_sigmoid")
    with pytest.raises(UnsupportedLayerError, match="act.*hard_sigmoid"):
        translated(sequential(layer("MyWrapper", "wrap", layer=act)))
    dense = layer("Dense", "dense", units=2, activation="hard_sigmoid")
    _, changes = translated(sequential(layer("MyWrapper", "wrap", layer=dense)))
    assert "numbers" in effects(changes, "activation")


def test_layers_that_keras3_dropped_are_refused_by_name() -> None:
    """LocallyConnected1D and the like have no form in Keras 3."""
    with pytest.raises(UnsupportedLayerError, match=r"lc_1.*LocallyConnected1D"):
        translated(sequential(layer("LocallyConnected1D", "lc_1", filters=2, kernel_size=[2])))


@pytest.mark.parametrize(("one", "word"), [
    (layer("BatchNormalization", "x", axis=[1, 2]), "axis"),
    (layer("Conv2DTranspose", "x", filters=2, kernel_size=[2, 2], groups=2), "groups"),
    (layer("RNN", "x", cell=layer("LSTMCell", "c", **LSTM), num_constants=1), "constants"),
])  # fmt: skip
def test_settings_without_a_form_are_refused(one: Json, word: str) -> None:
    """A setting that Keras 3 cannot express is an error that names it, never dropped."""
    with pytest.raises(UnsupportedLayerError, match=f"x.*{word}"):
        translated(sequential(one))


def test_old_spellings_of_settings(keras: Any) -> None:
    """Initializers, regularizers, constraints, policies, tuples and axes of all versions open in Keras 3."""
    odd = layer(
        "Dense", "dense_1", units=2, activation="softmax_v2", batch_input_shape={"class_name": "__tuple__", "items": [None, 3]},
        kernel_initializer={"class_name": "GlorotUniformV2", "config": {"seed": None, "dtype": "float32"}},
        bias_initializer="zero", kernel_regularizer={"class_name": "L1L2", "config": {
            "l1": {"type": "ndarray", "value": 0.0}, "l2": {"type": "ndarray", "value": 0.01}}},
        kernel_constraint="maxnorm", bias_constraint={"class_name": "nonneg", "config": {}},
        dtype={"class_name": "PolicyV1", "config": {"name": "float32", "loss_scale": None}},
    )  # fmt: skip
    norm = layer("BatchNormalization", "bn_1", axis=[1], fused=True, virtual_batch_size=None, dtype="infer")
    leaky = layer("LeakyReLU", "leaky_1", alpha={"type": "ndarray", "value": 0.3})
    entry, changes = translated(sequential(odd, norm, leaky))
    model = opens(keras, entry)
    assert model.layers[0].activation is keras.activations.softmax
    assert model.layers[0].kernel_regularizer.l2 == pytest.approx(0.01)
    assert model.layers[1].axis == 1
    assert model.layers[2].negative_slope == 0.3
    assert {"dtype", "fused"} <= {c.field for c in changes}


def test_unknown_initializers_are_replaced_and_reported(keras: Any) -> None:
    """The weights are in the file, so a neutral initializer stands in for a custom one."""
    one = layer("Dense", "dense_1", units=2, batch_input_shape=[None, 3],
                kernel_initializer={"class_name": "MyInit", "config": {"a": 1}}, bias_initializer="mine")  # fmt: skip
    entry, changes = translated(sequential(one))
    config = entries(entry)["dense_1"]["config"]
    assert config["kernel_initializer"]["class_name"] == "GlorotUniform"
    assert config["bias_initializer"]["class_name"] == "Zeros"
    assert sum("is not part of Keras" in c.message for c in changes) == 2
    opens(keras, entry)


def test_embedding_of_integers(keras: Any) -> None:
    """Keras 2.0 kept the dtype of the input, int32; the weights stay float32, and the input int32."""
    one = layer("Embedding", "e", input_dim=5, output_dim=2, input_length=4, dtype="int32", batch_input_shape=[None, 4])
    entry, _ = translated(sequential(one), "2.0.2")
    model = opens(keras, entry)
    assert model.layers[0].embeddings.dtype == "float32"
    assert model.input_dtype == "int32"


def test_input_shapes_that_nobody_states(keras: Any) -> None:
    """Without a stated shape the model's record of it serves, then the first layer's arrays."""
    built = sequential(layer("Dense", "d", units=2))
    built["config"]["build_input_shape"] = {"class_name": "TensorShape", "items": [None, 7]}
    entry, _ = translated(built, "2.4.0")
    assert opens(keras, entry).input_shape == (None, 7)
    entry, changes = translated(sequential(layer("LSTM", "l", **LSTM)), "2.4.0", l=[(4, 12), (3, 12), (12,)])
    assert opens(keras, entry).input_shape == (None, None, 4)
    assert any("as far as the arrays" in c.message for c in changes)


def test_first_layer_is_a_model(keras: Any) -> None:
    """A Sequential whose first layer is a model takes that model's input shape."""
    inner = sequential(layer("Dense", "d", units=2, batch_input_shape=[None, 7]), name="inner")
    entry, _ = translated(sequential(inner, layer("Dense", "e", units=1)))
    assert opens(keras, entry).input_shape == (None, 7)


def test_attention_that_was_causal(keras: Any) -> None:
    """`causal=True` of tf.keras before 2.10 is an argument of the call now."""
    box = {"class_name": "InputLayer", "name": "a", "inbound_nodes": [],
           "config": {"name": "a", "batch_input_shape": [None, 5, 3], "dtype": "float32"}}  # fmt: skip
    one = {**layer("Attention", "att", use_scale=False, causal=True, dropout=0.0), "name": "att",
           "inbound_nodes": [[["a", 0, 0, {}], ["a", 0, 0, {}]]]}  # fmt: skip
    entry, _ = translated({"class_name": "Model", "config": {
        "name": "m", "layers": [box, one], "input_layers": [["a", 0, 0]], "output_layers": [["att", 0, 0]]}})  # fmt: skip
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    got = np.asarray(quietly(opens(keras, entry), x))
    scores = np.where(np.tril(np.ones((5, 5))) > 0, x @ x.transpose(0, 2, 1), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(got, weights / weights.sum(-1, keepdims=True) @ x, atol=1e-5)


def test_dropout_at_inference_stays_in_the_graph(tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """training=True stays where the file has it; the report says how Keras 3 treats it."""
    x = tfk.Input((5, 3))
    model = randomised(tfk.Model(x, tfk.layers.LSTM(4, dropout=0.5)(x, training=True)))
    out, report = converted(save_h5(model, tmp_path / "old.h5"), ".keras")
    assert effects(report.changes, "training") == {"report"}
    new = load_keras(out)
    z = np.ones((2, 5, 3), "float32")
    assert not np.array_equal(np.asarray(new(z)), np.asarray(new(z)))


def test_masks_that_meet_are_reported() -> None:
    """Where inputs with and without a mask meet, and in a masked Bidirectional of old Keras, the report has a line."""

    def box(name: str) -> Json:
        return {"class_name": "InputLayer", "name": name, "inbound_nodes": [],
                "config": {"name": name, "batch_input_shape": [None, 5], "dtype": "float32"}}  # fmt: skip

    def embedding(name: str, source: str, mask: bool) -> Json:
        one = layer("Embedding", name, input_dim=5, output_dim=2, mask_zero=mask)
        return {**one, "name": name, "inbound_nodes": [[[source, 0, 0, {}]]]}

    both = {**layer("Bidirectional", "bi", layer=layer("LSTM", "l", **LSTM, return_sequences=True)), "name": "bi"}
    for masks, expected in (((True, True), 1), ((True, False), 1), ((False, False), 0)):
        add = {**layer("Add", "add"), "name": "add", "inbound_nodes": [[["e", 0, 0, {}], ["f", 0, 0, {}]]]}
        layers = [box("a"), box("b"), embedding("e", "a", masks[0]), embedding("f", "b", masks[1]), add,
                  {**copy.deepcopy(both), "inbound_nodes": [[["e", 0, 0, {}]]]}]  # fmt: skip
        model = {"class_name": "Model", "config": {
            "name": "m", "layers": layers, "input_layers": [["a", 0, 0], ["b", 0, 0]],
            "output_layers": [["add", 0, 0], ["bi", 0, 0]]}}  # fmt: skip
        _, changes = translated(model)
        assert len([c for c in changes if c.field == "mask" and c.path == "add"]) == expected
        assert len([c for c in changes if c.field == "mask" and c.path == "bi"]) == int(masks[0])
        _, changes = translated(model, "2.6.0")
        assert not [c for c in changes if c.field == "mask" and c.path == "bi"]


def test_custom_layers_and_lambdas_pass_through() -> None:
    """What is not Keras's stays as the file has it, to the letter, and is listed."""
    odd = {**layer("MyAttention", "att", time_major=True, kernel_initializer="zero", dtype="float32"),
           "module": "mine", "registered_name": "mine>MyAttention", "build_config": {"input_shape": [None, 3]}}  # fmt: skip
    code = layer("Lambda", "lam", function=["bytes", None, None], function_type="lambda", output_shape=[3])
    dense = layer(
        "Dense", "d", units=2, activation="my_activation", kernel_constraint={"class_name": "Mine", "config": {}}
    )
    model = sequential(layer("Dense", "c", units=3, batch_input_shape=[None, 3]), odd, code, dense)
    entry, _ = translated(model)
    assert entries(entry)["att"] == odd
    assert entries(entry)["lam"] == code
    root = build_tree(entry)
    assert unknown_classes(root, "keras3") == ["MyAttention"]
    assert lambdas(root) == ["lam"]
    assert custom_functions(root) == {"my_activation": ["d"], "Mine": ["d"]}


def test_shared_objects_are_reported() -> None:
    """A layer that several models shared has copies of its weights now, and the report says so."""
    dense = {**layer("Dense", "d", units=2, batch_input_shape=[None, 2]), "shared_object_id": 7}
    model = sequential(sequential(dense, name="a"), sequential(copy.deepcopy(dense), name="b"))
    _, changes = translated(model, "2.11.0")
    assert effects(changes, "shared_object_id") == {"report"}


def test_kernels_of_keras2_on_theano(tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """A Keras 2 file that names Theano as its backend has its convolution kernels turned round."""
    model = randomised(tfk.Sequential([tfk.layers.InputLayer(input_shape=(6, 2)), tfk.layers.Conv1D(3, 3)]))
    root = build_tree(json.loads(model.to_json()))
    node = next(n for n in root.walk() if n.class_name == "Conv1D")
    kernel, bias = model.get_weights()
    node.arrays = [
        Array("kernel", kernel.shape, "float32", lambda: kernel),
        Array("b", bias.shape, "float32", lambda: bias),
    ]
    changes = keras2.to_keras3(root, version="2.1.3", theano=True)
    assert effects(changes, "kernel") == {"numbers"}
    np.testing.assert_array_equal(node.edits[0].weights([kernel, bias])[0], kernel[::-1])


# ---------------------------------------------------------------------- TensorFlow functions
def functions(tf: Any, x: Any) -> dict[str, Any]:
    return {
        "add": x + 1.0, "subtract from": 1.0 - x, "multiply": x * x, "divide": x / 2.0, "power": x**2.0,
        "maximum": tf.maximum(x, 0.0), "concat": tf.concat([x, x], axis=1), "last": x[:, -1],
        "slice": x[:, 1:3, tf.newaxis], "ellipsis": x[..., 0], "reshape": tf.reshape(x, [-1, 15]),
        "expand and squeeze": tf.squeeze(tf.expand_dims(x, 1), 1), "cast": tf.cast(x, tf.float16),
        "relu": tf.nn.relu(x), "leaky relu": tf.nn.leaky_relu(x), "softmax": tf.nn.softmax(x), "gelu": tf.nn.gelu(x),
        "tanh": tf.tanh(x), "mean": tf.reduce_mean(x, axis=1, keepdims=True), "sum": tf.reduce_sum(x, [1, 2]),
        "transpose": tf.transpose(x, [0, 2, 1]), "matmul": tf.matmul(x, x, transpose_b=True),
        "matmul both": tf.matmul(x, x, transpose_a=True), "split": tf.split(x, [1, 2], axis=2)[1],
        "stack": tf.stack([x, x], 1), "unstack": tf.unstack(x, axis=1)[0], "tile": tf.tile(x, [1, 2, 1]),
        "one hot": tf.one_hot(tf.cast(x, "int32"), 4), "where": tf.where(x > 0, x, -x), "reverse": tf.reverse(x, [1]),
        "clip": tf.clip_by_value(x, 0.0, 1.0), "gather": tf.gather(x, [0, 2], axis=1),
        "normalize": tf.math.l2_normalize(x, -1), "pad": tf.pad(x, [[0, 0], [1, 1], [0, 0]]), "argmax": tf.argmax(x, -1),
    }  # fmt: skip


def test_tensorflow_functions_become_operations(tfk: Any, keras: Any) -> None:
    """Every function that has an operation of Keras 3 is translated and computes the same."""
    import tensorflow as tf

    x = tfk.Input((5, 3))
    z = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    for name, y in functions(tf, x).items():
        model = tfk.Model(x, y)
        entry = json.loads(model.to_json())
        root = build_tree(entry)
        keras2.to_keras3(root, version="2.15.0")
        assert unknown_classes(root, "keras3") == [], name
        got, wanted = (np.asarray(quietly(m, z)) for m in (opens(keras, entry), model))
        np.testing.assert_allclose(got.astype("float64"), wanted.astype("float64"), atol=1e-6, err_msg=name)


def test_tensorflow_functions_without_an_operation_are_listed(tfk: Any) -> None:
    """What has no exact counterpart stays as it is and is listed as in need of code."""
    import tensorflow as tf

    x = tfk.Input((5, 3))
    model = tfk.Model(x, tf.cumsum(x, axis=1, exclusive=True))
    entry = json.loads(model.to_json())
    root = build_tree(entry)
    changes = keras2.to_keras3(root, version="2.15.0")
    assert unknown_classes(root, "keras3") == ["TFOpLambda"]
    assert any("cumsum" in c.message for c in changes)


def op_layer(op: str, name: str, inputs: list[str], constants: dict[str, Any], **attr: Any) -> Json:
    """A TensorFlowOpLayer as tf.keras 1.14 to 2.3 wrote it: its graph name has a prefix that its config lacks."""
    node_def = {"name": name, "op": op, "input": [f"in_{i}" for i in range(len(inputs) + len(constants))], "attr": attr}
    return {
        "class_name": "TensorFlowOpLayer", "name": f"tf_op_layer_{name}",
        "config": {"name": name, "trainable": True, "dtype": "float32", "node_def": json.dumps(node_def), "constants": constants},
        "inbound_nodes": [[[source, 0, 0, {}] for source in inputs]],
    }  # fmt: skip


OPS: dict[str, tuple[Json, Callable[[Any], Any]]] = {
    "AddV2": (op_layer("AddV2", "y", ["x"], {"1": 2.0}), lambda x: x + 2),
    "Sub from a constant": (op_layer("Sub", "y", ["x"], {"0": 1.0}), lambda x: 1 - x),
    "Mul": (op_layer("Mul", "y", ["x", "x"], {}), lambda x: x * x),
    "Relu": (op_layer("Relu", "y", ["x"], {}), lambda x: np.maximum(x, 0)),
    "Mean": (op_layer("Mean", "y", ["x"], {"1": 1}, keep_dims={"b": True}), lambda x: x.mean(1, keepdims=True)),
    "ConcatV2": (op_layer("ConcatV2", "y", ["x", "x"], {"2": 1}), lambda x: np.concatenate([x, x], 1)),
    "Reshape": (op_layer("Reshape", "y", ["x"], {"1": [-1, 15]}), lambda x: x.reshape(-1, 15)),
    "Transpose": (op_layer("Transpose", "y", ["x"], {"1": [0, 2, 1]}), lambda x: x.transpose(0, 2, 1)),
    "BatchMatMulV2": (op_layer("BatchMatMulV2", "y", ["x", "x"], {}, adj_y={"b": True}), lambda x: x @ x.transpose(0, 2, 1)),
    "Pack": (op_layer("Pack", "y", ["x", "x"], {}, axis={"i": "1"}), lambda x: np.stack([x, x], 1)),
    "Squeeze": (
        op_layer("Squeeze", "y", ["x"], {}, squeeze_dims={"list": {"i": []}}), lambda x: x,
    ),
    "Cast": (op_layer("Cast", "y", ["x"], {}, DstT={"type": "DT_INT32"}), lambda x: x.astype("int32")),
    "StridedSlice": (
        op_layer("StridedSlice", "y", ["x"], {"1": [0, -1], "2": [0, 0], "3": [1, 1]},
                 begin_mask={"i": "1"}, end_mask={"i": "1"}, shrink_axis_mask={"i": "2"}),
        lambda x: x[:, -1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPS)
def test_graph_operations_become_operations(case: str, keras: Any) -> None:
    """TensorFlowOpLayers of tf.keras 1.14 to 2.3 become operations of Keras 3 under their graph's name."""
    one, compute = OPS[case]
    one = copy.deepcopy(one)
    box = {"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
           "config": {"name": "x", "batch_input_shape": [None, 5, 3], "dtype": "float32"}}  # fmt: skip
    entry, _ = translated({"class_name": "Model", "config": {
        "name": "m", "layers": [box, one], "input_layers": [["x", 0, 0]], "output_layers": [["tf_op_layer_y", 0, 0]]}})  # fmt: skip
    assert unknown_classes(build_tree(entry), "keras3") == []
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    np.testing.assert_allclose(np.asarray(quietly(opens(keras, entry), x)), compute(x), atol=1e-5)


def test_unknown_graph_operations_are_listed() -> None:
    """A TensorFlowOpLayer without counterpart, or whose definition cannot be read, is listed."""
    box = {"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
           "config": {"name": "x", "batch_input_shape": [None, 5, 3], "dtype": "float32"}}  # fmt: skip
    for one in (op_layer("Cumsum", "y", ["x"], {"1": 1}), op_layer("AddV2", "y", ["x"], {})):
        one = copy.deepcopy(one)
        if one["config"]["constants"] == {}:
            one["config"]["node_def"] = "not JSON"
        entry, _ = translated({"class_name": "Model", "config": {
            "name": "m", "layers": [box, one], "input_layers": [["x", 0, 0]], "output_layers": [["tf_op_layer_y", 0, 0]]}})  # fmt: skip
        assert unknown_classes(build_tree(entry), "keras3") == ["TensorFlowOpLayer"]


# ---------------------------------------------------------------------- detection
def test_keras2_is_detected_by_its_spelling(tfk: Any, keras: Any) -> None:
    """tf.keras 2.13 to 2.15 marks layers as Keras 3 does; the settings tell them apart."""
    old = tfk.Sequential([tfk.layers.InputLayer(input_shape=(3,)), tfk.layers.Dense(2)])
    new = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    for model, dialect in ((old, "keras2"), (new, "keras3")):
        assert detect(json.loads(model.to_json()), None) == dialect
    assert detect(sequential(layer("Dense", "d", units=2, kernel_initializer="zeros")), None) == "keras2"
    assert detect(sequential(layer("Dense", "d", units=2)), "3.1.0") == "keras3"
    x = keras.Input((3,))
    functional = keras.Model(x, keras.layers.Dense(2)(x))
    assert detect(json.loads(functional.to_json()), None) == "keras3"


def test_hundred_thousand_layers_take_linear_time() -> None:
    """A long model is translated in one pass, scaling layers included."""
    import time

    def seconds(count: int) -> float:
        one = layer("Activation", "a", activation="hard_sigmoid")
        layers = [{"class_name": "Activation", "config": {**one["config"], "name": f"a{i}"}} for i in range(count)]
        layers[0]["config"]["batch_input_shape"] = [None, 3]
        root = build_tree(sequential(*layers))
        start = time.perf_counter()
        keras2.to_keras3(root, version="2.2.4")
        assert len(root.children) == 2 * count + 1
        return time.perf_counter() - start

    small, large = seconds(3_000), seconds(30_000)
    assert large < 60 * max(small, 0.05)  # ten times the layers; a quadratic pass would take a hundred times as long
