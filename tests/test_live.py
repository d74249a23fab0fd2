"""optimize and standardize for every shape of model: the same numbers, the same arrays, the original untouched."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import lstm_swap
from tests.conftest import randomise
from tests.live_tools import (
    FEATURES,
    ROWS,
    STEPS,
    TOLERANCES,
    UNITS,
    assert_close,
    assert_same_arrays,
    chain,
    classes,
    flat,
    layers,
    outputs,
    sequences,
    states,
    there_and_back,
    tokens,
    weights,
)

LSTM, GRU, Bidirectional, Dense = layers.LSTM, layers.GRU, layers.Bidirectional, layers.Dense


def stacked() -> tuple[Any, Any, int]:
    return chain(LSTM(UNITS, return_sequences=True), layers.Dropout(0.3), GRU(4), Dense(2)), sequences(), 2


def without_input() -> tuple[Any, Any, int]:
    model = keras.Sequential([GRU(UNITS, return_sequences=True), LSTM(2)])
    model.build((None, STEPS, FEATURES))
    return model, sequences(), 2


def bidirectional() -> tuple[Any, Any, int]:
    two = Bidirectional(LSTM(4, return_sequences=True), backward_layer=GRU(4, go_backwards=True, return_sequences=True))
    return chain(two, Bidirectional(GRU(3), merge_mode="sum"), Dense(2)), sequences(), 4


def masked() -> tuple[Any, Any, int]:
    x = keras.Input((None,), dtype="int32")
    h = layers.Embedding(9, 4, mask_zero=True)(x)
    h = Bidirectional(LSTM(4, return_sequences=True))(h)
    return keras.Model(x, GRU(3)(LSTM(4, return_sequences=True, zero_output_for_mask=True)(h))), tokens(), 4


def time_distributed() -> tuple[Any, Any, int]:
    inner = chain(LSTM(4, return_sequences=True), GRU(2), shape=(STEPS, FEATURES))
    model = chain(layers.TimeDistributed(inner), layers.TimeDistributed(Dense(3)), LSTM(2), shape=(2, STEPS, FEATURES))
    return model, np.stack([sequences(), sequences(seed=1)], axis=1), 3


def nested() -> tuple[Any, Any, int]:
    x = keras.Input((STEPS, FEATURES))
    deepest = chain(GRU(4, return_sequences=True), shape=(None, 4))
    middle_input = keras.Input((None, FEATURES))
    middle = keras.Model(middle_input, deepest(LSTM(4, return_sequences=True)(middle_input)), name="middle")
    return keras.Model(x, [LSTM(3)(middle(x)), middle(x * 0.5)]), sequences(), 3


def shared() -> tuple[Any, Any, int]:
    """One layer called three times, with states of its own as initial states, and inside another model too."""
    a, b = keras.Input((STEPS, FEATURES), name="a"), keras.Input((STEPS, FEATURES), name="b")
    layer = LSTM(UNITS, return_state=True, return_sequences=True, name="shared")
    first, h, c = layer(a)
    second, *_ = layer(b, initial_state=[h, c])
    inner_input = keras.Input((STEPS, FEATURES))
    inner = keras.Model(inner_input, layer(inner_input)[0])
    return keras.Model([a, b], [first + second, inner(b)]), [sequences(), sequences(seed=3)], 1


def sequence_to_sequence() -> tuple[Any, Any, int]:
    source, target = keras.Input((STEPS, FEATURES), name="source"), keras.Input((None, FEATURES), name="target")
    _, *state = Bidirectional(GRU(4, return_state=True))(source)
    joined = layers.Concatenate()(state)
    decoded = GRU(8, return_sequences=True)(target, initial_state=joined)
    model = keras.Model({"source": source, "target": target}, {"decoded": decoded, "state": ops.relu(joined)})
    return model, {"source": sequences(), "target": sequences(seed=1)}, 3


def given_states_and_mask() -> tuple[Any, Any, int]:
    x, mask = keras.Input((STEPS, FEATURES)), keras.Input((STEPS,), dtype="bool")
    h, c = keras.Input((UNITS,)), keras.Input((UNITS,))
    y = LSTM(UNITS, return_sequences=True)(x, mask=mask, initial_state=[h, c])
    pattern = np.random.default_rng(0).random((ROWS, STEPS)) > 0.4
    return keras.Model([x, mask, h, c], y), [sequences(), pattern, *states(2)], 1


def cells_and_unrolled() -> tuple[Any, Any, int]:
    stack = layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], return_sequences=True)
    cell = layers.RNN(layers.GRUCell(3), return_sequences=True)
    return chain(stack, cell, LSTM(2, unroll=True)), sequences(), 2


def with_normalization() -> tuple[Any, Any, int]:
    model = chain(layers.BatchNormalization(), LSTM(4, return_sequences=True), layers.LayerNormalization())
    return model, sequences(), 1


MODELS = [
    stacked, without_input, bidirectional, masked, time_distributed, nested, shared, sequence_to_sequence,
    given_states_and_mask, cells_and_unrolled, with_normalization,
]  # fmt: skip


@pytest.mark.parametrize("make", MODELS)
def test_same_numbers_there_and_back(make: Any) -> None:
    """The fused model computes what the original does, and going back gives the original's arrays bit for bit."""
    model, inputs, swapped = make()
    fused = there_and_back(model, inputs, swapped)
    assert [layer.name for layer in fused.layers] == [layer.name for layer in model.layers]
    assert fused.count_params() == model.count_params()


@pytest.mark.parametrize("make", [masked, nested, sequence_to_sequence, given_states_and_mask])
def test_saved_and_loaded(make: Any, tmp_path: Any) -> None:
    """A fused model goes through a `.keras` file."""
    model, inputs, _ = make()
    fused = lstm_swap.optimize(randomise(model), "fused")
    fused.save(tmp_path / "fused.keras")
    again = keras.saving.load_model(tmp_path / "fused.keras")
    assert classes(again) == classes(fused)
    assert_close(outputs(again, inputs), outputs(model, inputs))


@pytest.mark.parametrize("policy", ["float64", "mixed_float16", "mixed_bfloat16", "float16"])
def test_dtypes(policy: str) -> None:
    """Each dtype policy goes along, the arrays bit for bit."""
    model = chain(Bidirectional(LSTM(4, return_sequences=True, dtype=policy), dtype=policy), GRU(3, dtype=policy))
    compute = keras.DTypePolicy(policy).compute_dtype
    fused = there_and_back(model, sequences(), 3, compute)
    assert [fused.layers[0].forward_layer.dtype_policy.name, fused.layers[1].dtype_policy.name] == [policy, policy]


def test_stateful() -> None:
    """The states of stateful layers come along, and both models go on from them alike."""
    model = chain(LSTM(4, stateful=True, return_sequences=True), Bidirectional(GRU(3, stateful=True)), batch=ROWS)
    randomise(model)
    model(sequences(seed=5))
    fused = lstm_swap.optimize(model, "fused")
    back = lstm_swap.standardize(fused)
    for seed in (6, 7):
        wanted = outputs(model, sequences(seed=seed))
        assert_close(outputs(fused, sequences(seed=seed)), wanted)
        assert_close(outputs(back, sequences(seed=seed)), wanted)
    for layer in (model.layers[0], fused.layers[0]):
        layer.reset_state()
    assert_close(fused.layers[0](sequences()), model.layers[0](sequences()))


def test_training_baked_into_the_graph() -> None:
    """training=True of a call stays, and drops the same inputs (the random generator comes along)."""
    x = keras.Input((STEPS, FEATURES))
    model = randomise(keras.Model(x, LSTM(4, dropout=0.5)(x, training=True)))
    model(sequences())
    fused = lstm_swap.optimize(model, "fused")
    wanted = [flat(model(sequences())) for _ in range(3)]
    assert np.abs(wanted[0][0] - wanted[1][0]).max() > 1e-3
    for numbers in wanted:
        assert_close(fused(sequences()), numbers)


def test_trainable_flags() -> None:
    """Frozen layers, halves and models stay frozen, and nothing else is."""
    normal = layers.BatchNormalization()
    inner = chain(GRU(4, return_sequences=True), LSTM(3, return_sequences=True), normal)
    model = chain(Bidirectional(LSTM(2, return_sequences=True)), LSTM(FEATURES, return_sequences=True), inner, Dense(2))
    for frozen in (model.layers[0], model.layers[1], inner.layers[0], normal):
        frozen.trainable = False
    model.layers[0].backward_layer.trainable = True
    randomise(model)

    def flags(m: Any) -> dict[str, bool]:
        return {layer.name: layer.trainable for layer in m._flatten_layers() if not layer.name.endswith("_cell")}

    fused = lstm_swap.optimize(model, "fused")
    assert flags(fused) == flags(model)
    assert [len(fused.trainable_weights), len(fused.weights)] == [len(model.trainable_weights), len(model.weights)]
    back = lstm_swap.standardize(fused)
    assert flags(back) == flags(model)
    assert [w.trainable for w in back.weights] == [w.trainable for w in model.weights]
    assert [w.path for w in back.trainable_weights] == [w.path for w in model.trainable_weights]


def test_settings_come_along() -> None:
    """Regularizers, constraints and initializers act as before, on the same numbers."""
    arguments = {
        "kernel_regularizer": keras.regularizers.L1(0.1),
        "recurrent_regularizer": keras.regularizers.OrthogonalRegularizer(0.1),
        "bias_regularizer": "l2",
        "activity_regularizer": keras.regularizers.L2(0.3),
        "kernel_constraint": keras.constraints.MaxNorm(0.5, axis=0),
        "bias_constraint": "non_neg",
        "recurrent_initializer": keras.initializers.RandomNormal(0.2, seed=3),
        "go_backwards": True,
        "seed": 11,
    }
    model = randomise(chain(GRU(4, **arguments)))
    fused = lstm_swap.optimize(model, "fused")
    for m in (model, fused):
        m(sequences())
    assert_close(fused.losses, model.losses, 1e-5)
    for m in (model, fused):
        for variable in m.trainable_variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
    assert_same_arrays(weights(lstm_swap.standardize(fused)), weights(model))
    wanted = model.layers[0].get_config()
    config = fused.layers[0].get_config()
    assert config == {**wanted, "reset_after": True}
    assert lstm_swap.standardize(fused).layers[0].get_config() == wanted


def test_use_cudnn_false_means_no() -> None:
    """A layer that says use_cudnn=False is refused with that reason and keeps its flag, in a Bidirectional too."""
    both = Bidirectional(GRU(4, use_cudnn=False, return_sequences=True))
    model = chain(LSTM(4, return_sequences=True, use_cudnn=False), both, LSTM(2))
    made = lstm_swap.plan(model, "fused")
    assert [(d.action, [r.code for r in d.reasons]) for d in made.decisions] == [
        *[("refuse", ["use_cudnn"])] * 3,
        ("swap", []),
    ]
    fused = lstm_swap.optimize(randomise(model), "fused")
    assert classes(fused) == ["LSTM", "GRU", "GRU", "FusedLSTM"]
    kept = [layer for layer in fused._flatten_layers() if hasattr(layer, "use_cudnn")]
    assert [layer.use_cudnn for layer in kept] == [False] * 3
    assert all(layer.supports_jit for layer in kept)


@pytest.mark.parametrize("flag", ["auto", True, False])
def test_standardize_sets_use_cudnn_everywhere(flag: Any) -> None:
    """The flag reaches every LSTM and GRU: alone, in Bidirectional, TimeDistributed and inner models, fused or not."""
    inner = chain(GRU(2), shape=(STEPS, FEATURES))
    both = Bidirectional(LSTM(2, return_sequences=True))
    last = chain(LSTM(2, use_cudnn=False), shape=(None, 4))
    model = chain(layers.TimeDistributed(inner), both, last, shape=(2, STEPS, FEATURES))
    for candidate in (model, lstm_swap.optimize(model, "fused")):
        plain = lstm_swap.standardize(candidate, use_cudnn=flag)
        found = [layer.use_cudnn for layer in plain._flatten_layers() if hasattr(layer, "use_cudnn")]
        assert found == [flag] * 4
    if flag is False:
        assert all(layer.supports_jit for layer in plain._flatten_layers())


def test_nothing_global_changes() -> None:
    """Neither Python's random numbers nor Keras's registry of classes depend on whether optimize was called."""
    import random

    model = randomise(stacked()[0])
    registered = set(keras.saving.get_custom_objects())
    random.seed(4)
    wanted = random.random()
    random.seed(4)
    lstm_swap.optimize(model, "fused")
    assert random.random() == wanted
    assert set(keras.saving.get_custom_objects()) == registered


def test_a_model_without_weights_yet() -> None:
    """A model that is not built is swapped all the same, and is built by its first call."""
    model = keras.Sequential([LSTM(4), Dense(2)])
    fused = lstm_swap.optimize(model, "fused")
    assert not fused.built
    assert classes(fused) == ["FusedLSTM"]
    assert fused(sequences()).shape == (ROWS, 2)
    assert not model.built


def test_tolerances_are_the_designs() -> None:
    """No test here may loosen them."""
    assert TOLERANCES == {"float32": 1e-6, "float64": 1e-10, "float16": 1e-2, "bfloat16": 5e-2}
