"""Keras 2 to Keras 3, rule by rule: settings, shapes and calls that moved, were refused or have to be reported."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap.architecture import Array, build_tree
from lstm_swap.dialects import custom_functions, detect, keras2, lambdas, unknown_classes
from lstm_swap.errors import UnreadableModelError, UnsupportedLayerError
from tests.dialect_tools import (
    Json,
    converted,
    effects,
    entries,
    layer,
    node_of,
    opens,
    quietly,
    randomised,
    save_h5,
    sequential,
    translated,
)

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


@pytest.mark.parametrize(("version", "gate"), [("2.1.6", "hard_sigmoid"), ("2.2.5", "hard_sigmoid"), ("2.3.1",
"sigmoid"),
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


@pytest.mark.parametrize("class_name", ["LSTMCell", "GRUCell", "SimpleRNNCell", "SimpleRNN", "ConvLSTM2D"])
def test_silent_layers_and_cells_state_what_they_are(class_name: str) -> None:
    """What a layer or cell leaves to a default is written out: for ConvLSTM2D, hard_sigmoid in all of Keras 2."""
    sizes: Json = {"filters": 2, "kernel_size": [3, 3]} if class_name == "ConvLSTM2D" else {"units": 3}
    one = layer(class_name, "x", **sizes)
    entry, changes = translated(
        sequential(layer("RNN", "rnn", cell=one) if class_name.endswith("Cell") else one), "2.11.0"
    )
    config = entries(entry)["x"]["config"]
    assert (config["activation"], config["use_bias"], config["dropout"]) == ("tanh", True, 0.0)
    if not class_name.startswith("Simple"):
        gate = "hard_sigmoid" if class_name == "ConvLSTM2D" else "sigmoid"
        assert config["recurrent_activation"] == gate
        assert ("numbers" in effects(changes, "recurrent_activation")) is (gate == "hard_sigmoid")
    if class_name == "GRUCell":
        assert config["reset_after"] is False


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
    with pytest.raises(UnsupportedLayerError, match=r"act.*hard_sigmoid"):
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


def test_ragged_inputs_of_recurrent_layers_are_refused() -> None:
    """Recurrent layers of Keras 3 take no ragged tensors; without one the input stays ragged."""
    box = {"class_name": "InputLayer", "config": {"name": "in_1", "batch_input_shape": [None, None, 3], "ragged": True}}
    with pytest.raises(UnsupportedLayerError, match=r"in_1.*ragged"):
        translated(sequential(box, layer("LSTM", "lstm_1", **LSTM)))
    entry, _ = translated(sequential(box, layer("Dense", "dense_1", units=2)))
    assert entries(entry)["in_1"]["config"]["ragged"] is True


def test_layers_that_act_in_training_alone(keras: Any) -> None:
    """RandomHeight and RandomWidth, which Keras 3 dropped, are an Identity."""
    one = layer("RandomHeight", "h", factor=0.1, interpolation="bilinear", batch_input_shape=[None, 8, 8, 3])
    entry, changes = translated(sequential(one, layer("RandomWidth", "w", factor=0.1)), "2.9.0")
    assert [entries(entry)[n]["class_name"] for n in "hw"] == ["Identity", "Identity"]
    assert effects(changes, "class_name") == {"opens"}
    opens(keras, entry)


def test_old_spellings_of_settings(keras: Any) -> None:
    """Initializers, regularizers, constraints, policies, tuples and axes of all versions open in Keras 3."""
    odd = layer(
        "Dense", "dense_1", units=2, activation="softmax_v2", batch_input_shape={"class_name": "__tuple__",
        "items": [None, 3]},
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
        "name": "m", "layers": [box, one], "input_layers": [["a", 0, 0]], "output_layers": [["att", 0,
        0]]}})  # fmt: skip
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
           "module": "mine", "registered_name": "mine>MyAttention", "build_config": {"input_shape": [None,
           3]}}  # fmt: skip
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


def test_preprocessing_layers_of_tf_2_3(keras: Any) -> None:
    """Settings of the experimental preprocessing layers have the names that they got later."""
    encoding = layer("CategoryEncoding", "c", max_tokens=4, output_mode="binary", sparse=False)
    text = layer("TextVectorization", "t", max_tokens=5, output_mode="tf-idf", vocabulary=["a"], idf_weights=[1.0])
    bins = layer("Discretization", "b", bins=[0.5], dtype="float32")
    entry, changes = translated(sequential(encoding, text, bins), "2.4.0")
    found = entries(entry)
    assert found["c"]["config"]["num_tokens"] == 4
    assert found["c"]["config"]["output_mode"] == "multi_hot"
    assert found["t"]["config"]["output_mode"] == "tf_idf"
    assert found["b"]["config"]["bin_boundaries"] == [0.5]
    assert {"max_tokens", "bins", "output_mode"} <= {c.field for c in changes}
    for name in "cb":
        quietly(keras.saving.deserialize_keras_object, found[name])


@pytest.mark.parametrize(("version", "stated", "reverses"), [
    ("2.2.0", {}, True), ("2.2.4", {}, False), ("2.2.4", {"reverse_state_order": True}, True), ("2.4.0", {}, False),
])  # fmt: skip
def test_states_of_stacked_cells_in_reverse(version: str, stated: dict[str, bool], reverses: bool) -> None:
    """Keras before 2.2.3 listed the states of stacked cells backwards: where they are used, that is refused."""
    box = {"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
           "config": {"name": "x", "batch_input_shape": [None, 5, 3], "dtype": "float32"}}  # fmt: skip
    cells = [layer("LSTMCell", f"cell_{i}", **LSTM) for i in range(2)]
    for used in (True, False):
        cell = layer("StackedRNNCells", "stack", cells=copy.deepcopy(cells), **stated)
        rnn = {**layer("RNN", "rnn", cell=cell, return_state=used), "name": "rnn", "inbound_nodes": [[["x", 0, 0, {}]]]}
        ends = {"input_layers": [["x", 0, 0]], "output_layers": [["rnn", 0, 0]]}
        model = {"class_name": "Model", "config": {"name": "m", "layers": [copy.deepcopy(box), rnn], **ends}}
        if used and reverses:
            with pytest.raises(UnsupportedLayerError, match="reverse_state_order"):
                translated(model, version)
        else:
            translated(model, version)


def test_names_inside_wrappers_and_models_without_a_name(keras: Any) -> None:
    """A slash goes from inner names too; models in a list, which Keras 1 gave no name, get one each."""
    wrapped = layer("TimeDistributed", "td/1", layer=layer("Dense", "in/ner", units=2), batch_input_shape=[None, 5, 3])
    bare = {"class_name": "Sequential", "config": [layer("Dense", "d", units=2)]}
    entry, changes = translated(sequential(wrapped, bare, copy.deepcopy(bare)))
    assert effects(changes, "name") == {"opens"}
    model = opens(keras, entry)
    assert [one.name for one in model.layers] == ["td_1", "sequential", "sequential_1"]
    assert model.layers[0].layer.name == "in_ner"


def test_damaged_architectures_are_unreadable() -> None:
    """Calls to layers that are not there, and values that no Keras writes, are errors that say so."""
    box = {
        "class_name": "InputLayer",
        "name": "x",
        "inbound_nodes": [],
        "config": {"name": "x", "batch_input_shape": [None, 3]},
    }
    dense = {**layer("Dense", "d", units=2), "name": "d"}
    ends = {"input_layers": [["x", 0, 0]], "output_layers": [["d", 0, 0]]}
    for calls in ([[["y", 0, 0, {}]]], [[["x", 0, {}, {}]]]):
        layers = [copy.deepcopy(box), {**copy.deepcopy(dense), "inbound_nodes": calls}]
        with pytest.raises(UnreadableModelError):
            translated({"class_name": "Model", "config": {"name": "m", "layers": layers, **ends}})


def test_layers_without_a_dtype_take_that_of_the_arrays(keras: Any) -> None:
    """Keras 2.0 to 2.2 states no dtype: a model whose arrays are float64 was computed in float64."""
    model = sequential(
        layer("Dense", "d", units=2, batch_input_shape=[None, 3]), layer("Activation", "a", activation="relu")
    )
    entry = copy.deepcopy(model)
    root = build_tree(entry)
    node_of(root, "d").arrays = [Array("w", (3, 2), "float64", lambda: np.ones((3, 2)))]
    keras2.to_keras3(root, version="2.2.4")
    assert {one.dtype_policy.name for one in opens(keras, entry).layers} == {"float64"}
    entry, _ = translated(model)
    assert {one.dtype_policy.name for one in opens(keras, entry).layers} == {"float32"}
