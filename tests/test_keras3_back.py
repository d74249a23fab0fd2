"""Keras 3 back to Keras 2 (`--dialect keras2`), judged by tf_keras; and Keras 3's own files made whole."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from lstm_swap.architecture import build_tree
from lstm_swap.dialects import built_in, detect, keras3
from lstm_swap.errors import UnsupportedLayerError
from tests.dialect_tools import Json, assert_same, converted, effects, entries, layer, quietly, randomised

HS = {"recurrent_activation": "hard_sigmoid"}
FLAT, IMAGE = (6, 4), (8, 8, 3)

LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Any, Any], list[Any]]]] = {
    "Dense": (FLAT, lambda L, K: [L.Dense(3, activation="hard_sigmoid")]),
    "Activation": (FLAT, lambda L, K: [L.Activation("hard_sigmoid")]),
    "TimeDistributed": (FLAT, lambda L, K: [L.TimeDistributed(L.Dense(3, activation="hard_sigmoid"))]),
    "TimeDistributed Activation": (FLAT, lambda L, K: [L.TimeDistributed(L.Activation("hard_sigmoid"))]),
    "Masking": (FLAT, lambda L, K: [L.Masking(0.2), L.LSTM(3)]),
    "Conv1D": (FLAT, lambda L, K: [L.Conv1D(3, 3, activation="hard_sigmoid", padding="same")]),
    "SeparableConv1D": (FLAT, lambda L, K: [L.SeparableConv1D(3, 3, activation="hard_sigmoid")]),
    "Conv2DTranspose": (IMAGE, lambda L, K: [L.Conv2DTranspose(4, 3, activation="hard_sigmoid", strides=2)]),
    "DepthwiseConv2D": (IMAGE, lambda L, K: [L.DepthwiseConv2D(3, depth_multiplier=2, activation="hard_sigmoid")]),
    "LSTM": (FLAT, lambda L, K: [L.LSTM(3, return_sequences=True, seed=3, dropout=0.1, **HS)]),
    "LSTM that zeroes": (FLAT, lambda L, K: [L.Masking(0.2), L.LSTM(3, return_sequences=True,
    zero_output_for_mask=True)]),
    "GRU": (FLAT, lambda L, K: [L.GRU(3, activation="hard_sigmoid", **HS)]),
    "GRU before": (FLAT, lambda L, K: [L.GRU(3, reset_after=False, **HS)]),
    "SimpleRNN": (FLAT, lambda L, K: [L.SimpleRNN(3, activation="hard_sigmoid")]),
    "RNN": (FLAT, lambda L, K: [L.RNN([L.LSTMCell(3, **HS), L.GRUCell(2, **HS)])]),
    "Bidirectional": (FLAT, lambda L, K: [L.Bidirectional(L.LSTM(3, return_sequences=True, **HS))]),
    "Bidirectional of two": (
        FLAT,
        lambda L, K: [L.Bidirectional(L.LSTM(3, **HS), backward_layer=L.GRU(3, go_backwards=True, activation="relu"))],
    ),
    "ConvLSTM2D": ((4, 5, 5, 2), lambda L, K: [L.ConvLSTM2D(2, 3, **HS)]),
    "BatchNormalization": (FLAT, lambda L, K: [L.BatchNormalization()]),
    "LayerNormalization": (FLAT, lambda L, K: [L.LayerNormalization(), L.GroupNormalization(2), L.UnitNormalization()]),
    "activations": (
        FLAT,
        lambda L, K: [
            L.Dense(4, activation=name)
            for name in "elu exponential gelu linear mish relu selu sigmoid silu softplus softsign swish tanh".split()
        ],
    ),
    "activation layers": (
        FLAT,
        lambda L, K: [L.LeakyReLU(0.2), L.PReLU(), L.ELU(0.7), L.ReLU(0.5, 0.1, 0.1), L.Softmax(1)],
    ),
    "pooling": (IMAGE, lambda L, K: [L.MaxPooling2D(2), L.AveragePooling2D(2), L.GlobalMaxPooling2D()]),
    "shapes": (
        FLAT,
        lambda L, K: [L.ZeroPadding1D((1, 2)), L.Cropping1D((0, 1)), L.UpSampling1D(2), L.Permute((2, 1)), L.Flatten(),
                      L.RepeatVector(2), L.Reshape((-1,)), L.Rescaling(2.0, 1.0), L.Identity()],
    ),
    "regularization": (
        FLAT,
        lambda L, K: [L.Dropout(0.1, seed=1), L.SpatialDropout1D(0.2), L.GaussianNoise(0.1), L.GaussianDropout(0.2),
                      L.AlphaDropout(0.1), L.ActivityRegularization(0.1)],
    ),
    "settings of training": (
        FLAT,
        lambda L, K: [
            L.Dense(3, kernel_regularizer="l2", bias_constraint="non_neg", activity_regularizer=K.regularizers.L1(0.1),
                    kernel_initializer=K.initializers.VarianceScaling(2.0))
        ],
    ),
    "model": (
        FLAT,
        lambda L, K: [K.Sequential([K.Input((6, 4)), L.Dense(2), L.Activation("hard_sigmoid"),
        L.BatchNormalization()])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("case", LAYERS)
def test_layers_open_in_keras2_with_the_same_numbers(
    case: str, suffix: str, keras: Any, load_tfk: Any, tmp_path: Path
) -> None:
    """A Keras 3 file, in either container, becomes an HDF5 file that tf_keras opens and computes the same."""
    shape, build = LAYERS[case]
    model = randomised(keras.Sequential([keras.Input(shape), *build(keras.layers, keras)]))
    path = tmp_path / f"new{suffix}"
    quietly(model.save, str(path))
    out, _ = converted(path, ".h5", dialect="keras2")
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype("float32")
    if case in ("Masking", "LSTM that zeroes"):
        x[:, -2:] = 0.2
    assert_same(model, load_tfk(out), [x])


def graph(K: Any) -> Any:
    """Initial states by name, a shared model, a layer called twice, several outputs, attention."""
    L = K.layers
    a, b = K.Input((5, 3), name="a"), K.Input((5, 3), name="b")
    inner = K.Model(a, [L.LSTM(4, return_sequences=True, **HS)(a), L.Dense(4)(a)], name="inner")
    (p, q), (r, _) = inner(a), inner(b)
    _, h, c = L.LSTM(4, return_state=True, **HS)(p)
    y = L.LSTM(4, return_sequences=True)(r, initial_state=[h, c])
    z = L.Bidirectional(L.GRU(4, return_sequences=True))(q, initial_state=[h, c])
    act = L.Activation("hard_sigmoid")
    return K.Model([a, b], [act(y), act(z), L.Attention()([p, r], use_causal_mask=True), L.MultiHeadAttention(2,
    3)(p, r),
                            L.Add()([p, q]), L.Dot(2)([p, q]), L.RNN(L.LSTMCell(2))(p)])  # fmt: skip


def test_graph_opens_in_keras2_and_comes_back(keras: Any, load_tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """There and back again, through both containers, the numbers are the same and hard_sigmoid's factors cancel."""
    model = randomised(graph(keras))
    path = tmp_path / "new.keras"
    quietly(model.save, str(path))
    middle, report = converted(path, ".h5", dialect="keras2")
    assert any("hard_sigmoid" in c.message and "x / 6" in c.message for c in report.changes)
    x = [np.random.default_rng(i).normal(size=(2, 5, 3)).astype("float32") for i in range(2)]
    assert_same(model, load_tfk(middle), x)
    back, report = converted(middle, ".keras")
    assert report.dialect == "keras2"
    assert_same(model, load_keras(back), x)


def test_dtypes_are_written_as_keras2_reads_them(keras: Any, load_tfk: Any, tmp_path: Path) -> None:
    """A DTypePolicy, an object in the file, becomes its name, mixed policies included."""
    L = keras.layers
    model = keras.Sequential([keras.Input((5, 3)), L.LSTM(4, dtype="mixed_float16"), L.Dense(2, dtype="float64")])
    path = tmp_path / "new.keras"
    quietly(model.save, str(path))
    new = load_tfk(converted(path, ".h5", dialect="keras2")[0])
    assert [one.dtype_policy.name for one in new.layers] == ["mixed_float16", "float64"]


def back(model: Any) -> tuple[Json, Any]:
    """The architecture of a Keras 3 model in Keras 2's words."""
    entry = json.loads(model.to_json())
    return entry, keras3.to_keras2(build_tree(entry))


def test_no_word_of_keras3_is_left(keras: Any) -> None:
    """batch_shape, module, registered_name, zero_output_for_mask, seeds and call objects are gone."""
    entry, _ = back(graph(keras))
    text = json.dumps(entry)
    for word in ("batch_shape", "module", "registered_name", "zero_output_for_mask", "keras_tensor", "build_config",
                 "initial_state", "DTypePolicy"):  # fmt: skip
        assert f'"{word}"' not in text, word
    assert detect(entry, None) == "keras2"
    names = entries(entry)
    assert names["inner"]["inbound_nodes"] == [[["a", 0, 0, {}]], [["b", 0, 0, {}]]]
    assert entry["config"]["input_layers"] == [["a", 0, 0], ["b", 0, 0]]
    # Keras 2 counts the calls of a model from 1
    used = {tuple(ref[:2]) for one in names.values() for call in one.get("inbound_nodes", []) for ref in call}
    assert {number for name, number in used if name == "inner"} == {1, 2}


def test_bidirectional_states_its_backward_half_only_where_it_differs(keras: Any) -> None:
    """Keras 3 always writes it; versions of Keras 2 before backward_layer can read what is left."""
    L = keras.layers
    for backward, stated in ((None, False), (L.LSTM(3, go_backwards=True, use_bias=False, name="other"), True)):
        model = keras.Sequential([keras.Input((5, 3)), L.Bidirectional(L.LSTM(3), backward_layer=backward, name="bi")])
        entry, _ = back(model)
        assert ("backward_layer" in entries(entry)["bi"]["config"]) is stated


@pytest.mark.parametrize("one", [
    "RMSNormalization()", "Dense(3, activation='celu')", "Dense(3, activation='hard_silu')",
    "MultiHeadAttention(2, 2, use_gate=True)",
    "LSTM(3, activation='hard_sigmoid')", "Dense(3, dtype='int8_from_float32')",
    "ZeroPadding1D(1, data_format='channels_first')",
])  # fmt: skip
def test_what_keras2_has_not_is_refused_by_name(one: str, keras: Any) -> None:
    """A layer, activation or setting that only Keras 3 has is an error that names the layer."""
    made = eval(f"L.{one}", {"L": keras.layers})
    made.name = "odd_1"
    x = keras.Input((4, 4))
    y = made(x, x) if "MultiHead" in one else made(x)
    with pytest.raises(UnsupportedLayerError, match="odd_1"):
        back(keras.Model(x, y))


def test_operations_are_refused_by_name(keras: Any) -> None:
    """x + 1 is an operation that has a layer's name; it is not taken for that layer."""
    x = keras.Input((3,))
    with pytest.raises(UnsupportedLayerError, match="Add"):
        back(keras.Model(x, x + 1.0))


def test_custom_layers_and_lambdas_stay(keras: Any) -> None:
    """Custom entries go back as they are."""
    odd = {**layer("MyLayer", "mine", units=3, dtype="float32"), "module": "mine", "registered_name": "mine>MyLayer",
           "build_config": {"input_shape": [None, 3]}}  # fmt: skip
    code = {
        **layer("Lambda", "lam", function={"class_name": "__lambda__"}),
        "module": "keras.layers",
        "registered_name": None,
    }
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    entry = json.loads(model.to_json())
    entry["config"]["layers"] += [copy.deepcopy(odd), copy.deepcopy(code)]
    keras3.to_keras2(build_tree(entry))
    assert entries(entry)["mine"] == odd
    assert entries(entry)["lam"] == code


# ---------------------------------------------------------------------- Keras 3's own HDF5 files
def test_modules_that_hdf5_leaves_out(keras: Any, tmp_path: Path) -> None:
    """Keras 3 cannot read its own HDF5 file with `x + 1` in it, and no entry of it as .keras; with modules it can."""
    L = keras.layers
    x = keras.Input((5, 3))
    y = L.Bidirectional(L.LSTM(4))(x)
    model = keras.Model(x, keras.ops.relu(keras.Sequential([keras.Input((8,)), L.Dense(2)])(y) + 1.0))
    path = tmp_path / "new.h5"
    quietly(model.save, str(path))
    entry = json.loads(h5py.File(path).attrs["model_config"])
    with pytest.raises((TypeError, ValueError)):
        keras.saving.deserialize_keras_object(copy.deepcopy(entry))
    changes = keras3.modernize(build_tree(entry))
    assert effects(changes, "module") == {"opens"}
    assert len(changes) == 2  # Add and Relu; layers are found by their names
    new = keras.saving.deserialize_keras_object(copy.deepcopy(entry))
    new.set_weights(model.get_weights())
    assert_same(model, new, [np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")])
    assert keras3.modernize(build_tree(entry)) == []


def test_operations_are_those_of_keras(keras: Any) -> None:
    """Every operation that may be found by its name is in the module that is written for it."""
    import importlib

    from lstm_swap.dialects.modern import OPERATIONS

    for module, names in OPERATIONS.items():
        for name in names:
            found = getattr(importlib.import_module(f"keras.src.ops.{module}"), name)
            assert issubclass(found, keras.Operation), name


# ---------------------------------------------------------------------- the tables
def test_tables_of_layers_are_those_of_the_libraries(keras: Any, tfk: Any) -> None:
    """The classes and settings that the translations rest on are the installed libraries' own."""
    import inspect

    from lstm_swap.dialects.catalog import COMMON, KERAS3_KEYS, ONLY_KERAS2, ONLY_KERAS3

    def classes(K: Any) -> set[str]:
        found = {n: c for n, c in vars(K.layers).items() if inspect.isclass(c) and issubclass(c, K.layers.Layer)}
        return set(found) - {"Layer", "Wrapper"}

    new, old = classes(keras), classes(tfk)
    assert {n for n in new if built_in(n, "keras3")} == new
    assert not any(built_in(n, "keras3") for n in old - new)
    assert {n for n in old if built_in(n, "keras2")} == old
    assert (ONLY_KERAS3 - {"GroupedQueryAttention"}) <= new - old
    assert old - new >= ONLY_KERAS2
    for name, keys in KERAS3_KEYS.items():
        if name.startswith("CuDNN"):
            continue
        taken: set[str] = set()
        for base in getattr(keras.layers, name).__mro__:
            parameters = inspect.signature(base.__init__).parameters.values()
            taken |= {p.name for p in parameters}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
        assert keys <= taken | {"seed"}, (name, keys - taken)
        internal = {"self", "kwargs", "args", "shape", "batch_size", "input_tensor", "weights", "rank", "cell",
        "use_cudnn",
                    "autocast", "pool_dimensions", "pool_mode", "lora_rank", "lora_alpha", "quantization_config",
                    "gptq_unpacked_column_size", "force_generator", "layer"}  # fmt: skip
        assert taken - keys <= internal | COMMON, (name, taken - keys)


def test_modules_for_the_zips_of_tf_keras(keras: Any, tfk: Any) -> None:
    """A `.keras` zip of tf.keras 2.13 to 2.15 names the module of each class; tf_keras opens no other."""
    entry = json.loads(randomised(graph(keras)).to_json())
    bare = copy.deepcopy(entry)
    keras3.to_keras2(build_tree(bare))
    with pytest.raises(TypeError):
        tfk.saving.deserialize_keras_object(bare)
    keras3.to_keras2(build_tree(entry), modules=True)
    assert len(tfk.saving.deserialize_keras_object(entry).outputs) == 7
