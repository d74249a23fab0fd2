"""FusedLSTM and FusedGRU compute what keras.layers.LSTM and GRU compute: outputs, states, gradients, training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lstm_swap.layers import FusedGRU, FusedLSTM, kernels
from tests.fused_grid import (
    FEATURES,
    FUSED,
    MASKS,
    ROWS,
    STANDARD,
    STEPS,
    UNITS,
    all_fused_arrays,
    case_id,
    close,
    compare,
    covering,
    flat,
    fused_arrays,
    give_weights,
    make_twins,
    mask_of,
)

layers = keras.layers


def sequences(dtype: str = "float32", rows: int = ROWS, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=(rows, STEPS, FEATURES)), dtype)


def states_for(kind: str, halves: int, dtype: str) -> list[tf.Tensor]:
    rng = np.random.default_rng(7)
    count = halves * (2 if kind == "lstm" else 1)
    return [tf.constant(rng.normal(0, 0.5, (ROWS, UNITS)), dtype) for _ in range(count)]


def _allowed(**case: Any) -> bool:
    if case["wrapper"] == "time_distributed":  # hands over neither states nor a mask of its inner time axis
        return case["state"] == "zeros" and case["mask"] == "none"
    if case["wrapper"] == "bidirectional none":  # Keras adds a list to a tuple there
        return case["state"] == "zeros"
    return True


GRID = covering(
    {
        "kind": ["lstm", "gru"],
        "go_backwards": [False, True],
        "mask": list(MASKS),
        "state": ["zeros", "initial_state", "stateful", "return_state", "initial_state return_state"],
        "dtype": ["float32", "float64", "mixed_float16", "mixed_bfloat16"],
        "wrapper": ["plain", "bidirectional concat", "bidirectional none", "time_distributed"],
        "return_sequences": [False, True],
        "zero_output_for_mask": [False, True],
        "how": ["eager", "train", "infer"],
    },
    strength=2,
    allowed=_allowed,
)


@pytest.mark.parametrize("case", GRID, ids=case_id)
def test_equals_the_standard_layer(case: dict[str, Any]) -> None:
    """Outputs, states and gradients equal the standard layer's for every pair of settings."""
    kind, wrapper, state, dtype = case["kind"], case["wrapper"], case["state"], case["dtype"]
    arguments = {name: case[name] for name in ("go_backwards", "return_sequences", "zero_output_for_mask")}
    if wrapper.startswith("bidirectional"):
        del arguments["go_backwards"]  # the halves settle that between them
    stateful = state == "stateful"
    standard, fused = make_twins(
        kind, wrapper, dtype=dtype, stateful=stateful, return_state="return_state" in state, **arguments
    )
    x = sequences("float64" if dtype == "float64" else "float32")
    if wrapper == "time_distributed":
        x = tf.stack([x, x[::-1] * 0.5], axis=1)
    give_weights(kind, standard, fused, tuple(x.shape))
    states = states_for(kind, 1 + wrapper.startswith("bidirectional"), x.dtype) if "initial_state" in state else []
    compare(kind, standard, fused, x, states, mask_of(case["mask"]), case["how"])
    if stateful:  # and from where the first batch ended
        compare(kind, standard, fused, x[:, ::-1], states, mask_of(case["mask"]), case["how"])


@pytest.mark.parametrize("mode", ["sum", "mul", "ave"])
def test_bidirectional_merges_as_ever(mode: str) -> None:
    """The other merge modes of Bidirectional work with a fused layer in it."""
    for kind in FUSED:
        standard, fused = make_twins(kind, f"bidirectional {mode}", return_sequences=True)
        give_weights(kind, standard, fused, (ROWS, STEPS, FEATURES))
        compare(kind, standard, fused, sequences(), [], mask_of("holes"), "eager")


@pytest.mark.parametrize("kind", FUSED)
def test_same_seed_gives_the_same_weights(kind: str) -> None:
    """After set_random_seed a model of fused layers starts with the weights of the standard one, to the last bit."""

    def weights(make: Any, dropout: float) -> list[np.ndarray]:
        keras.utils.set_random_seed(11)
        inner = make(UNITS, dropout=dropout, return_sequences=True)
        wrapped = layers.Bidirectional(make(UNITS, bias_initializer="random_normal", recurrent_initializer="he_normal"))
        model = keras.Sequential([keras.Input((STEPS, FEATURES)), inner, wrapped, layers.Dense(2)])
        return model.get_weights()

    for dropout in (0.0, 0.5):
        wanted, got = weights(STANDARD[kind], dropout), weights(FUSED[kind], dropout)
        for actual, expected in zip(got, [*all_fused_arrays(kind, wanted[:9]), *wanted[9:]], strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_forget_bias_may_start_at_zero() -> None:
    """unit_forget_bias=False leaves the whole bias to its initializer."""
    layer = FusedLSTM(UNITS, unit_forget_bias=False, bias_initializer=keras.initializers.Constant(0.25))
    layer.build((None, None, FEATURES))
    np.testing.assert_array_equal(layer.get_weights()[2], np.full(4 * UNITS, 0.25, "float32"))


def _fit(make: Any, **arguments: Any) -> tuple[Any, dict[str, list[float]]]:
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(24, STEPS, FEATURES)).astype("float32")
    x[rng.random((24, STEPS)) < 0.3] = 0.0  # steps for Masking to leave out, one row altogether
    x[4] = 0.0
    y = rng.normal(size=(24, 2)).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((None, FEATURES)),
            layers.Masking(),
            make(UNITS, return_sequences=True, dropout=0.3, seed=5),
            make(UNITS, **arguments),
            layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=False)
    history = model.fit(x, y, batch_size=8, epochs=4, validation_data=(x, y), shuffle=False, verbose=0)
    return model, history.history


@pytest.mark.parametrize("kind", FUSED)
def test_training_is_the_same_step_by_step(kind: str) -> None:
    """Dropout, penalties and constraints act as on the standard layer, so that loss curves and weights agree."""
    arguments = {
        "kernel_regularizer": keras.regularizers.L2(0.01),
        "recurrent_regularizer": keras.regularizers.OrthogonalRegularizer(0.01),
        "bias_regularizer": keras.regularizers.L1(0.01),
        "activity_regularizer": keras.regularizers.L2(0.01),
        "kernel_constraint": keras.constraints.MaxNorm(0.3, axis=0),
        "recurrent_constraint": keras.constraints.UnitNorm(axis=1),
        "bias_constraint": keras.constraints.NonNeg(),
    }
    standard, wanted = _fit(lambda *a, **k: STANDARD[kind](*a, use_cudnn=False, **k), **arguments)
    fused, got = _fit(FUSED[kind], **arguments)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-5)
        assert len(set(wanted[name])) == 4  # it does train
    arrays = standard.get_weights()
    for actual, expected in zip(fused.get_weights(), [*all_fused_arrays(kind, arrays[:6]), *arrays[6:]], strict=True):
        close(actual, expected, 1e-5)
    np.testing.assert_allclose(np.linalg.norm(arrays[3], axis=0).max(), 0.3, rtol=1e-5)  # the constraint was at work


@pytest.mark.parametrize("kind", FUSED)
def test_constraint_sees_the_standard_array(kind: str) -> None:
    """A constraint and a penalty are given the standard layer's shapes, gates in its order."""
    seen: list[np.ndarray] = []

    def record(array: Any) -> Any:
        seen.append(np.asarray(array))
        return array

    layer = FUSED[kind](UNITS, kernel_constraint=record, bias_constraint=record, recurrent_constraint=record)
    layer.build((None, None, FEATURES))
    arrays = [np.random.default_rng(2).normal(size=array.shape).astype("float32") for array in layer.get_weights()]
    layer.set_weights(arrays)
    for variable in layer.trainable_variables:
        variable.assign(variable.constraint(variable))
    for actual, expected in zip(fused_arrays(kind, seen), arrays, strict=True):
        np.testing.assert_array_equal(actual, expected)
    for actual, expected in zip(layer.get_weights(), arrays, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_stateful_goes_on_and_starts_again() -> None:
    """A stateful layer goes on where the batch before ended, and from zeros after reset_state(s)."""
    for kind in FUSED:
        standard, fused = make_twins(kind, "plain", stateful=True)
        give_weights(kind, standard, fused, (ROWS, STEPS, FEATURES))
        for reset in (lambda layer: None, lambda layer: layer.reset_states(), lambda layer: layer.reset_state()):
            for layer in (standard, fused):
                reset(layer)
            for seed in (1, 2):
                close(fused(sequences(seed=seed)), standard(sequences(seed=seed)), 1e-6)
        assert [len(layer.weights) for layer in (fused, standard)] == [3, 3]  # states are no weights
        with pytest.raises(ValueError, match="keeps 5 states and got 2 rows"):
            fused(sequences(rows=2))
    with pytest.raises(ValueError, match="fixed batch size"):
        FusedLSTM(UNITS, stateful=True).build((None, STEPS, FEATURES))


@pytest.mark.parametrize("kind", FUSED)
def test_states_pass_between_layers_of_a_functional_model(kind: str) -> None:
    """Encoder and decoder, nested and shared: symbolic states, batch and time unknown."""

    def build(make: Any) -> keras.Model:
        encoder_input, decoder_input = keras.Input((None, FEATURES)), keras.Input((None, FEATURES))
        _, *states = make(UNITS, return_state=True)(encoder_input)
        inner_input = keras.Input((None, FEATURES))
        shared = make(UNITS, return_sequences=True)
        inner = keras.Model(inner_input, shared(inner_input))
        output = make(UNITS, return_sequences=True)(decoder_input, initial_state=states)
        return keras.Model([encoder_input, decoder_input], [output, inner(decoder_input), shared(encoder_input)])

    standard, fused = build(lambda *a, **k: STANDARD[kind](*a, use_cudnn=False, **k)), build(FUSED[kind])
    fused.set_weights(all_fused_arrays(kind, standard.get_weights()))
    assert [output.shape for output in fused.outputs] == [output.shape for output in standard.outputs]
    for rows, steps in ((2, 6), (5, 3)):
        inputs = [sequences(rows=rows)[:, :steps], sequences(rows=rows, seed=1)[:, :steps]]
        for actual, expected in zip(fused(inputs), standard(inputs), strict=True):
            close(actual, expected, 1e-6)


def test_masks_of_other_kinds() -> None:
    """A mask of numbers, of shape (batch, time, 1), in a list, or set by a Masking layer, and the mask passed on."""
    layer = FusedLSTM(UNITS, return_sequences=True, return_state=True)
    x, mask = sequences(), mask_of("holes")
    wanted = layer(x, mask=mask)[0]
    for other in (mask.astype("float32"), mask[:, :, None], [mask], tf.constant(mask)):
        np.testing.assert_array_equal(layer(x, mask=other)[0], wanted)
    np.testing.assert_array_equal(layer(layers.Masking()(x * mask[:, :, None]))[0], layer(x, mask=mask)[0])
    assert layer.compute_mask(x, mask)[0] is mask
    assert layer.compute_mask(x, mask)[1:] == [None, None]
    assert FusedGRU(UNITS).compute_mask(x, mask) is None


def test_masked_input_may_hold_anything() -> None:
    """NaN in steps that the mask leaves out reaches no output."""
    for kind in FUSED:
        layer = FUSED[kind](UNITS, return_sequences=True)
        mask = mask_of("holes")
        x = sequences()
        poisoned = tf.where(mask[:, :, None], x, np.nan)
        np.testing.assert_array_equal(layer(poisoned, mask=mask), layer(x, mask=mask))


@pytest.mark.parametrize("training", [True, False])
def test_gradient_of_a_gradient(training: bool) -> None:
    """Without cuDNN, second derivatives exist in training and inference and equal the standard layer's."""
    standard, fused = make_twins("lstm", "plain")
    give_weights("lstm", standard, fused, (ROWS, STEPS, FEATURES))

    def second(layer: Any) -> Any:
        @tf.function(autograph=False)
        def run(x: Any) -> Any:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_sum(layer(x, training=training) ** 2)
                penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
            return outer.gradient(penalty, x)

        return run(sequences())

    wanted = second(standard)
    assert np.abs(wanted).max() > 1e-3
    close(second(fused), wanted, 1e-5)


def test_compiles_with_xla() -> None:
    """Without a GPU a model of fused layers trains and predicts under jit_compile=True."""
    x = sequences()
    model = keras.Sequential([keras.Input((STEPS, FEATURES)), FusedLSTM(UNITS, return_sequences=True), FusedGRU(UNITS)])
    wanted = model(x)
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile
    close(model.predict(x, verbose=0), wanted, 1e-6)
    assert np.isfinite(model.fit(x, np.zeros((ROWS, UNITS)), verbose=0).history["loss"][0])


def _ops(function: Any, x: Any) -> tuple[set[str], set[str]]:
    """The op types of a traced function: of its own graph, and of the functions that it may call."""
    graph = function.get_concrete_function(x).graph.as_graph_def()
    inner = {node.op for item in graph.library.function for node in item.node_def}
    return {node.op for node in graph.node}, inner


def test_inference_leaves_the_kernel_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traced inference holds both kernels; a traced training step, and a foreign GPU's inference, the loop alone."""
    layer = FusedLSTM(UNITS)
    x = sequences()
    outer, inner = _ops(tf.function(lambda x: layer(x, training=False), autograph=False), x)
    assert {"DeviceIndex", "Case"} <= outer
    assert "CudnnRNNV3" in inner
    for foreign, training in ((False, True), (True, False)):
        monkeypatch.setattr(kernels, "foreign_gpu_visible", lambda foreign=foreign: foreign)
        outer, inner = _ops(tf.function(lambda x, t=training: layer(x, training=t), autograph=False), x)
        assert not {"DeviceIndex", "Case", "CudnnRNNV3"} & (outer | inner)


def test_output_shapes_are_known_before_a_call() -> None:
    """Symbolic shapes are those of the standard layer."""
    for arguments in ({}, {"return_sequences": True}, {"return_state": True}):
        for kind in FUSED:
            standard, fused = make_twins(kind, "plain", **arguments)
            x = keras.Input((None, FEATURES))
            assert [t.shape for t in flat(fused(x))] == [t.shape for t in flat(standard(x))]
