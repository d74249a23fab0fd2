"""Files of Keras 1 (1.0 to 1.2.2), written here as that version wrote them; the numbers come from tf_keras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lstm_swap
from lstm_swap.architecture import build_tree
from lstm_swap.dialects import custom_functions, detect, keras1
from lstm_swap.errors import UnsupportedLayerError
from tests.dialect_tools import (
    Json,
    assert_same,
    attach,
    converted,
    edited,
    effects,
    entries,
    keras1_sequential,
    layer,
    merge_entry,
    node_of,
    randomised,
    split_gates,
    write_keras1,
)

Arrays = list[Any]


def same(arrays: Arrays) -> Arrays:
    return arrays


def lstm_gates(arrays: Arrays) -> Arrays:
    """Keras 1.2.2 recurrent.py: W, U, b of the gates i, c, f, o."""
    return split_gates(arrays, "ifco", "icfo")


def gru_gates(arrays: Arrays) -> Arrays:
    return split_gates(arrays, "zrh", "zrh")


def row_of_conv2d(arrays: Arrays) -> Arrays:
    """Keras 1.1 and later keep a Convolution1D's kernel as (length, 1, channels, filters)."""
    return [arrays[0][:, None], *arrays[1:]]


def legacy_conv1d(arrays: Arrays) -> Arrays:
    """Keras 1.0: (filters, channels, length, 1)."""
    return [arrays[0].transpose(2, 1, 0)[..., None], *arrays[1:]]


def deconvolution(arrays: Arrays) -> Arrays:
    """Keras 1: (rows, columns, channels, filters); since Keras 2 the filters come before the channels."""
    return [arrays[0].transpose(0, 1, 3, 2), *arrays[1:]]


DENSE = {
    "init": "glorot_uniform", "activation": "relu", "bias": True, "input_dim": None, "W_constraint": None,
    "b_constraint": None,
    "W_regularizer": {"name": "WeightRegularizer", "l1": 0.0, "l2": 0.01}, "b_regularizer": None,
    "activity_regularizer": None,
}  # fmt: skip
RNN = {
    "init": "glorot_uniform", "inner_init": "orthogonal", "activation": "tanh", "return_sequences": True,
    "go_backwards": False,
    "stateful": False, "unroll": False, "consume_less": "cpu", "input_dim": 4, "input_length": None,
    "W_regularizer": None,
    "U_regularizer": None, "b_regularizer": None, "dropout_W": 0.1, "dropout_U": 0.2, "output_dim": 3,
}  # fmt: skip
LSTM = dict(RNN, forget_bias_init="one", inner_activation="hard_sigmoid")
GRU = dict(RNN, inner_activation="hard_sigmoid")
CONV1 = {
    "nb_filter": 3, "filter_length": 2, "init": "uniform", "activation": "hard_sigmoid", "border_mode": "valid",
    "subsample_length": 1,
    "W_regularizer": None, "b_regularizer": None, "activity_regularizer": None, "W_constraint": None,
    "b_constraint": None, "bias": True,
    "input_dim": 4, "input_length": None,
}  # fmt: skip
CONV2 = {
    "nb_filter": 3, "nb_row": 2, "nb_col": 3, "init": "uniform", "activation": "linear", "border_mode": "same",
    "subsample": [1, 1],
    "dim_ordering": "tf", "W_regularizer": None, "b_regularizer": None, "activity_regularizer": None,
    "W_constraint": None,
    "b_constraint": {"name": "NonNeg"}, "bias": True,
}  # fmt: skip
CONV3 = {
    "nb_filter": 2, "kernel_dim1": 2, "kernel_dim2": 1, "kernel_dim3": 2, "init": "uniform", "activation": "relu",
    "border_mode": "valid",
    "subsample": [1, 1, 1], "dim_ordering": "tf", "bias": True,
}  # fmt: skip

Build = Callable[[Any], Any]
LAYERS: dict[str, tuple[tuple[int, ...], Build, str, Json, Callable[[Arrays], Arrays]]] = {
    "dense": ((4,), lambda L: L.Dense(3, activation="relu"), "Dense", dict(DENSE, output_dim=3), same),
    "dense without bias": (
        (4,), lambda L: L.Dense(3, use_bias=False), "Dense",
        dict(DENSE, output_dim=3, bias=False, activation="linear"), same,
    ),
    "lstm": ((5, 4), lambda L: L.LSTM(3, return_sequences=True, recurrent_activation="hard_sigmoid"),
             "LSTM", LSTM, lstm_gates),
    "lstm kept whole": (
        (5, 4), lambda L: L.LSTM(3, return_sequences=True, recurrent_activation="hard_sigmoid"),
        "LSTM", dict(LSTM, consume_less="gpu"), same,
    ),
    "lstm backwards": (
        (5, 4), lambda L: L.LSTM(3, go_backwards=True, activation="relu", recurrent_activation="sigmoid"),
        "LSTM", dict(LSTM, go_backwards=True, return_sequences=False, activation="relu", inner_activation="sigmoid"),
        lstm_gates,
    ),
    "gru": (
        (5, 4), lambda L: L.GRU(3, return_sequences=True, recurrent_activation="hard_sigmoid", reset_after=False),
        "GRU", GRU, gru_gates,
    ),
    "gru with its candidate": (
        (5, 4),
        lambda L: L.GRU(3, recurrent_activation="hard_sigmoid", activation="hard_sigmoid", reset_after=False),
        "GRU", dict(GRU, activation="hard_sigmoid", return_sequences=False), gru_gates,
    ),
    "simple rnn": ((5, 4), lambda L: L.SimpleRNN(3, activation="hard_sigmoid", return_sequences=True),
                   "SimpleRNN", dict(RNN, activation="hard_sigmoid"), same),
    "convolution1d": ((6, 4), lambda L: L.Conv1D(3, 2, activation="hard_sigmoid"), "Convolution1D", CONV1,
    row_of_conv2d),
    "convolution1d of keras 1.0": (
        (6, 4), lambda L: L.Conv1D(3, 2, activation="hard_sigmoid"), "Convolution1D",
        {k: v for k, v in CONV1.items() if k != "bias"}, legacy_conv1d,
    ),
    "convolution1d strided": (
        (7, 4), lambda L: L.Conv1D(3, 3, strides=2, padding="same"), "Convolution1D",
        dict(CONV1, activation="linear", filter_length=3, subsample_length=2, border_mode="same"), row_of_conv2d,
    ),
    "atrous convolution1d": (
        (7, 4), lambda L: L.Conv1D(3, 2, dilation_rate=2), "AtrousConvolution1D",
        dict(CONV1, activation="linear", atrous_rate=2), row_of_conv2d,
    ),
    "convolution2d": ((6, 5, 2), lambda L: L.Conv2D(3, (2, 3), padding="same"), "Convolution2D", CONV2, same),
    "atrous convolution2d": (
        (6, 7, 2), lambda L: L.Conv2D(3, (2, 3), dilation_rate=2), "AtrousConvolution2D",
        dict(CONV2, border_mode="valid", atrous_rate=[2, 2]), same,
    ),
    "deconvolution2d": (
        (4, 4, 2), lambda L: L.Conv2DTranspose(3, (2, 3)), "Deconvolution2D",
        dict(CONV2, border_mode="valid", output_shape=[None, 5, 6, 3]), deconvolution,
    ),
    "separable convolution2d": (
        (6, 5, 2), lambda L: L.SeparableConv2D(3, (2, 3), depth_multiplier=2, activation="hard_sigmoid"),
        "SeparableConvolution2D",
        {"nb_filter": 3, "nb_row": 2, "nb_col": 3, "init": "uniform", "activation": "hard_sigmoid",
        "border_mode": "valid",
             "subsample": [1, 1], "depth_multiplier": 2, "dim_ordering": "tf", "depthwise_regularizer": None,
             "pointwise_regularizer": None, "b_regularizer": None, "activity_regularizer": None,
             "depthwise_constraint": None,
             "pointwise_constraint": None, "b_constraint": None, "bias": True},
        same,
    ),
    "convolution3d": ((4, 3, 4, 2), lambda L: L.Conv3D(2, (2, 1, 2), activation="relu"), "Convolution3D", CONV3, same),
    "conv lstm": (
        (3, 4, 4, 2), lambda L: L.ConvLSTM2D(2, (2, 3), padding="same"), "ConvLSTM2D",
        {"nb_filter": 2, "nb_row": 2, "nb_col": 3, "init": "glorot_uniform", "inner_init": "orthogonal",
        "forget_bias_init": "one",
             "activation": "tanh", "inner_activation": "hard_sigmoid", "dim_ordering": "tf", "border_mode": "same",
             "return_sequences": False, "go_backwards": False, "stateful": False},
        lstm_gates,
    ),
    "max pooling1d": ((6, 2), lambda L: L.MaxPooling1D(3, strides=2), "MaxPooling1D",
                      {"pool_length": 3, "stride": 2, "border_mode": "valid"}, same),
    "average pooling2d": (
        (6, 6, 2), lambda L: L.AveragePooling2D((2, 3), padding="same"), "AveragePooling2D",
        {"pool_size": [2, 3], "strides": [2, 3], "border_mode": "same", "dim_ordering": "tf"}, same,
    ),
    "global pooling": ((6, 5, 2), lambda L: L.GlobalMaxPooling2D(), "GlobalMaxPooling2D", {"dim_ordering": "tf"}, same),
    "up sampling1d": ((3, 2), lambda L: L.UpSampling1D(3), "UpSampling1D", {"length": 3}, same),
    "zero padding1d": ((3, 2), lambda L: L.ZeroPadding1D((1, 2)), "ZeroPadding1D",
                       {"padding": {"left_pad": 1, "right_pad": 2}}, same),
    "zero padding2d by name": (
        (3, 3, 2), lambda L: L.ZeroPadding2D(((1, 0), (0, 2))), "ZeroPadding2D",
        {"padding": {"top_pad": 1, "right_pad": 2}, "dim_ordering": "tf"}, same,
    ),
    "zero padding2d by four": (
        (3, 3, 2), lambda L: L.ZeroPadding2D(((1, 2), (3, 4))), "ZeroPadding2D", {"padding": [1, 2, 3, 4]}, same,
    ),
    "cropping2d": ((6, 6, 2), lambda L: L.Cropping2D(((1, 2), (0, 1))), "Cropping2D",
                   {"cropping": [[1, 2], [0, 1]], "dim_ordering": "tf"}, same),
    "batch normalization": (
        (5, 3), lambda L: L.BatchNormalization(epsilon=1e-3), "BatchNormalization",
        {"epsilon": 1e-3, "mode": 0, "axis": -1, "momentum": 0.99, "gamma_regularizer": None,
        "beta_regularizer": None}, same,
    ),
    "prelu": ((5, 3), lambda L: L.PReLU(), "PReLU", {"init": "zero"}, same),
    "elu": ((5, 3), lambda L: L.ELU(0.5), "ELU", {"alpha": 0.5}, same),
    "leaky relu": ((5, 3), lambda L: L.LeakyReLU(0.2), "LeakyReLU", {"alpha": 0.2}, same),
    "thresholded relu": ((5, 3), lambda L: L.ThresholdedReLU(0.3), "ThresholdedReLU", {"theta": 0.3}, same),
    "activation": ((5, 3), lambda L: L.Activation("hard_sigmoid"), "Activation", {"activation": "hard_sigmoid"}, same),
    "dropout": ((5, 3), lambda L: L.Dropout(0.3), "Dropout", {"p": 0.3}, same),
    "gaussian noise": ((5, 3), lambda L: L.GaussianNoise(0.3), "GaussianNoise", {"sigma": 0.3}, same),
    "spatial dropout": ((5, 3), lambda L: L.SpatialDropout1D(0.3), "SpatialDropout1D", {"p": 0.3}, same),
    "reshape": ((6, 4), lambda L: L.Reshape((3, 8)), "Reshape", {"target_shape": [3, 8]}, same),
    "repeat vector": ((4,), lambda L: L.RepeatVector(3), "RepeatVector", {"n": 3}, same),
    "time distributed dense": (
        (5, 4), lambda L: L.TimeDistributed(L.Dense(3, activation="hard_sigmoid")), "TimeDistributedDense",
        dict(DENSE, output_dim=3, activation="hard_sigmoid", input_length=None), same,
    ),
    "time distributed": (
        (5, 4), lambda L: L.TimeDistributed(L.Dense(3)), "TimeDistributed",
        {"layer": layer("Dense", "dense_9", **dict(DENSE, output_dim=3, activation="linear"))}, same,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYERS)
def test_layer_of_keras1_gives_the_same_numbers(case: str, tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Each built-in layer, with its settings and arrays as Keras 1 kept them, computes the same in Keras 3."""
    shape, build, class_name, config, arrays = LAYERS[case]
    model = randomised(tfk.Sequential([tfk.layers.InputLayer(input_shape=shape), build(tfk.layers)]))
    first = dict(config, batch_input_shape=[None, *shape], input_dtype="float32")
    entry = keras1_sequential(layer(class_name, "first_1", **first))
    path = write_keras1(tmp_path / "old.h5", entry, {"first_1": arrays(model.get_weights())})
    out, _ = converted(path, ".keras")
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype("float32")
    assert_same(model, load_keras(out), [x])


def test_embedding_passes_its_mask_on_and_drops_its_dropout(tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Embedding(mask_zero=True) reaches the LSTM; its dropout of words, for training alone, is reported."""
    L = tfk.layers
    model = tfk.Sequential(
        [L.Embedding(7, 4, mask_zero=True, input_length=5), L.LSTM(3, recurrent_activation="hard_sigmoid")]
    )
    randomised(model)
    embedding = {
        "input_dim": 7, "output_dim": 4, "init": "uniform", "input_length": 5, "mask_zero": True,
        "activity_regularizer": None,
        "W_regularizer": None, "W_constraint": None, "dropout": 0.2, "batch_input_shape": [None, 5],
        "input_dtype": "int32",
    }  # fmt: skip
    entry = keras1_sequential(
        layer("Embedding", "embedding_1", **embedding), layer("LSTM", "lstm_1", **dict(LSTM, return_sequences=False))
    )
    weights = model.get_weights()
    path = write_keras1(tmp_path / "old.h5", entry, {"embedding_1": weights[:1], "lstm_1": lstm_gates(weights[1:])})
    out, report = converted(path, ".h5")
    assert effects(report.changes, "dropout") == {"report"}
    x = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 1, 2]])
    assert_same(model, load_keras(out), [x])


def test_bidirectional_of_keras1(tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Both halves of a Bidirectional are joined from 12 arrays each, the implied backward one too."""
    L = tfk.layers
    model = randomised(
        tfk.Sequential(
            [L.InputLayer(input_shape=(5, 4)), L.Bidirectional(L.LSTM(3, recurrent_activation="hard_sigmoid"))]
        )
    )
    inner = layer("LSTM", "forward_lstm_1", **dict(LSTM, return_sequences=False))
    entry = keras1_sequential(
        layer("Bidirectional", "bidirectional_1", merge_mode="concat", layer=inner, batch_input_shape=[None, 5, 4])
    )
    weights = model.get_weights()
    arrays = lstm_gates(weights[:3]) + lstm_gates(weights[3:])
    out, _ = converted(write_keras1(tmp_path / "old.h5", entry, {"bidirectional_1": arrays}), ".keras")
    assert_same(model, load_keras(out), [np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")])


# ---------------------------------------------------------------------- BatchNormalization
@pytest.mark.parametrize(("version", "theano", "deviation"), [
    ("1.0.5", False, True), ("1.0.6", True, True), ("1.0.6", False, False), ("1.0.7", True, False), ("1.2.2", False,
    False),
])  # fmt: skip
def test_running_std_was_a_deviation_once(version: str, theano: bool, deviation: bool) -> None:
    """Keras up to 1.0.5 (1.0.6 with Theano) normalizes by running_std + epsilon, later ones by sqrt(it + epsilon)."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=3), rng.normal(size=3), rng.normal(size=3), np.abs(rng.normal(size=3)) + 0.1]
    config = {"epsilon": 1e-2, "mode": 0, "axis": -1, "momentum": 0.9, "batch_input_shape": [None, 3]}
    root = build_tree(keras1_sequential(layer("BatchNormalization", "bn_1", **config)))
    node = node_of(root, "bn_1")
    attach(node, arrays)
    keras1.to_keras2(root, theano=theano, version=version)
    gamma, beta, mean, std = arrays
    x = rng.normal(size=(4, 3))
    spread = std + 1e-2 if deviation else np.sqrt(std + 1e-2)
    new = edited(node, arrays)
    got = new[0] * (x - new[2]) / np.sqrt(new[3] + node.config["epsilon"]) + new[1]
    np.testing.assert_allclose(got, gamma * (x - mean) / spread + beta, rtol=1e-12)


@pytest.mark.parametrize("mode", [1, 2])
def test_other_modes_of_batch_normalization_are_refused(mode: int) -> None:
    """Modes 1 and 2 normalize by each sample or each batch, which no later BatchNormalization does at inference."""
    entry = keras1_sequential(layer("BatchNormalization", "bn_1", epsilon=1e-3, mode=mode, axis=-1))
    with pytest.raises(UnsupportedLayerError, match=f"bn_1.*mode={mode}"):
        keras1.to_keras2(build_tree(entry), theano=False)


# ---------------------------------------------------------------------- what is refused
@pytest.mark.parametrize("class_name", ["Highway", "MaxoutDense", "ParametricSoftplus", "SReLU"])
def test_layers_that_died_with_keras1_are_refused_by_name(class_name: str) -> None:
    """A layer without a later form is an error that names it, not a wrong number."""
    entry = keras1_sequential(layer(class_name, "odd_1", output_dim=3))
    with pytest.raises(UnsupportedLayerError, match=rf"odd_1.*{class_name}"):
        keras1.to_keras2(build_tree(entry), theano=False)


def test_full_border_mode_is_refused() -> None:
    """border_mode "full", which Theano alone had, has no later form."""
    entry = keras1_sequential(layer("Convolution1D", "conv_1", **dict(CONV1, border_mode="full")))
    with pytest.raises(UnsupportedLayerError, match=r"conv_1.*full"):
        keras1.to_keras2(build_tree(entry), theano=False)


def test_graph_models_are_refused() -> None:
    """The Graph of Keras 0.3 is named."""
    with pytest.raises(UnsupportedLayerError, match="Graph"):
        keras1.to_keras2(build_tree({"class_name": "Graph", "config": {"name": "g", "layers": []}}), theano=False)


# ---------------------------------------------------------------------- models in models, strangers, reports
def test_shared_layer_and_nested_sequential(tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """A nested Sequential (a bare list beside its name) is called twice, by numbers that start at 1."""
    L = tfk.layers
    inner = tfk.Sequential([L.InputLayer(input_shape=(4,)), L.Dense(3, activation="relu")], name="inner")
    a, b = tfk.Input((4,), name="a"), tfk.Input((4,), name="b")
    model = randomised(tfk.Model([a, b], L.Add(name="add")([inner(a), inner(b)])))
    dense = dict(DENSE, output_dim=3, batch_input_shape=[None, 4], input_dtype="float32")
    layers = [
        {"class_name": "InputLayer", "name": n, "inbound_nodes": [],
         "config": {"name": n, "batch_input_shape": [None, 4], "input_dtype": "float32", "sparse": False}}
        for n in "ab"
    ]  # fmt: skip
    layers.append({
        "class_name": "Sequential", "name": "inner", "config": [layer("Dense", "dense_1", **dense)],
        "inbound_nodes": [[["a", 0, 0]], [["b", 0, 0]]],
    })  # fmt: skip
    sources = [["inner", 1, 0], ["inner", 2, 0]]
    layers.append({**merge_entry("add"), "name": "add", "inbound_nodes": [sources]})
    entry = {"class_name": "Model", "config": {
        "name": "model_1", "layers": layers, "input_layers": [["a", 0, 0], ["b", 0, 0]], "output_layers": [["add", 0,
        0]],
    }}  # fmt: skip
    out, _ = converted(write_keras1(tmp_path / "old.h5", entry, {"inner": model.get_weights()}), ".keras")
    x = [np.random.default_rng(i).normal(size=(3, 4)).astype("float32") for i in range(2)]
    assert_same(model, load_keras(out), x)


def test_custom_layers_and_lambdas_pass_through() -> None:
    """What is not Keras's stays as the file has it, to the letter."""
    odd = layer("MyAttention", "att_1", init="glorot_uniform", W_regularizer=None, p=3)
    code = layer("Lambda", "lambda_1", function=["x", None, None], function_type="lambda", arguments={})
    entry = keras1_sequential(
        layer("Activation", "a", activation="relu", batch_input_shape=[None, 3]), dict(odd), dict(code)
    )
    before = [dict(odd["config"]), dict(code["config"])]
    keras1.to_keras2(build_tree(entry), theano=False)
    assert [e["config"] for e in entry["config"][1:]] == before


def test_settings_have_the_names_of_keras2() -> None:
    """No name of Keras 1 is left, and what was a default then is written out."""
    entry = keras1_sequential(layer("GRU", "gru_1", **dict(GRU, batch_input_shape=[2, 5, 4], stateful=True)))
    keras1.to_keras2(build_tree(entry), theano=False)
    config = entries(entry)["gru_1"]["config"]
    assert config["units"] == 3
    assert config["recurrent_activation"] == "hard_sigmoid"
    assert config["reset_after"] is False
    assert (config["dropout"], config["recurrent_dropout"]) == (0.1, 0.2)
    gone = {
        "output_dim",
        "inner_activation",
        "init",
        "inner_init",
        "consume_less",
        "dropout_W",
        "dropout_U",
        "input_dim",
    }
    assert not gone & config.keys()


def test_regularizers_that_only_keras1_has() -> None:
    """EigenvalueRegularizer, for training alone, is left out and reported; a custom one stays for the user to bring."""
    eigen, mine = {"name": "EigenvalueRegularizer", "k": 0.1}, {"name": "Mine", "a": 1}
    config = dict(DENSE, output_dim=3, W_regularizer=eigen, b_regularizer=mine)
    root = build_tree(keras1_sequential(layer("Dense", "dense_1", **config)))
    changes = keras1.to_keras2(root, theano=False)
    assert effects(changes, "kernel_regularizer") == {"report"}
    found = node_of(root, "dense_1").config
    assert found["kernel_regularizer"] is None
    assert found["bias_regularizer"] == {"class_name": "Mine", "config": {"a": 1}}
    assert custom_functions(root) == {"Mine": ["dense_1"]}


def test_keras1_is_detected_by_its_spelling() -> None:
    """Without a version, names like output_dim with init tell; a Merge does too."""
    assert detect(keras1_sequential(layer("Dense", "d", **dict(DENSE, output_dim=3))), None) == "keras1"
    assert detect(keras1_sequential(layer("Dropout", "d", p=0.5)), None) == "keras1"
    assert detect(keras1_sequential(merge_entry(layers=[])), None) == "keras1"
    assert detect(keras1_sequential(layer("Dense", "d", units=3)), "1.1.0") == "keras1"


def test_the_report_says_that_gates_were_scaled(tmp_path: Path) -> None:
    """hard_sigmoid, the default gate, is named in the report of a Keras 1 file."""
    rng = np.random.default_rng(0)
    arrays = lstm_gates([rng.normal(size=(4, 12)), rng.normal(size=(3, 12)), rng.normal(size=12)])
    entry = keras1_sequential(layer("LSTM", "lstm_1", batch_input_shape=[None, 5, 4], **LSTM))
    path = write_keras1(tmp_path / "old.h5", entry, {"lstm_1": arrays})
    report = lstm_swap.inspect(path, to="standard")
    assert any("hard_sigmoid" in c.message and c.effect == "numbers" for c in report.changes)
    assert report.dialect == "keras1"


@pytest.mark.parametrize(
    "case", ["dense", "gru", "convolution1d", "separable convolution2d", "prelu", "time distributed"]
)
def test_layer_of_keras1_opens_in_keras2(case: str, tfk: Any, load_tfk: Any, tmp_path: Path) -> None:
    """With --dialect keras2 the same files open in tf_keras, whose initializers and regularizers are objects."""
    shape, build, class_name, config, arrays = LAYERS[case]
    model = randomised(tfk.Sequential([tfk.layers.InputLayer(input_shape=shape), build(tfk.layers)]))
    first = dict(config, batch_input_shape=[None, *shape], input_dtype="float32")
    entry = keras1_sequential(layer(class_name, "first_1", **first))
    path = write_keras1(tmp_path / "old.h5", entry, {"first_1": arrays(model.get_weights())})
    out, _ = converted(path, ".h5", dialect="keras2")
    assert_same(model, load_tfk(out), [np.random.default_rng(1).normal(size=(3, *shape)).astype("float32")])


def test_locally_connected_opens_in_keras2_alone(tfk: Any, load_tfk: Any, tmp_path: Path) -> None:
    """LocallyConnected1D lives on in Keras 2; Keras 3 has none, and the error names it."""
    model = randomised(tfk.Sequential([tfk.layers.InputLayer(input_shape=(6, 4)), tfk.layers.LocallyConnected1D(3, 2)]))
    config = dict(CONV1, activation="linear", batch_input_shape=[None, 6, 4])
    entry = keras1_sequential(layer("LocallyConnected1D", "local_1", **config))
    path = write_keras1(tmp_path / "old.h5", entry, {"local_1": model.get_weights()})
    out, _ = converted(path, ".h5", dialect="keras2")
    assert_same(model, load_tfk(out), [np.random.default_rng(1).normal(size=(3, 6, 4)).astype("float32")])
    with pytest.raises(UnsupportedLayerError, match=r"local_1.*LocallyConnected1D"):
        converted(path, ".h5")
