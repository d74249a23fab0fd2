"""Fused layers with `num_layers` and `bidirectional` compute what stacks of standard layers compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lstm_swap.layers import FusedGRU, FusedLSTM
from tests.fused_grid import (
    FEATURES,
    FUSED,
    ROWS,
    STANDARD,
    STEPS,
    TOLERANCES,
    UNITS,
    all_fused_arrays,
    case_id,
    close,
    compare,
    covering,
    flat,
    mask_of,
    randomize,
)
from tests.fused_stacks import sequences, stack_twins, states_for

layers = keras.layers

SETTINGS = {
    "kind": ["lstm", "gru"],
    "num_layers": [1, 2, 3],
    "bidirectional": [False, True],
    "merge_mode": ["concat", "sum", "ave", "mul", None],
    "go_backwards": [False, True],
    "mask": ["none", "left", "holes", "empty row"],
    "state": ["zeros", "stateful", "initial_state return_state"],
    "dtype": ["float32", "float64", "mixed_float16", "mixed_bfloat16"],
    "return_sequences": [False, True],
    "zero_output_for_mask": [False, True],
    "how": ["eager", "train", "infer"],
    "kernel": ["loop", "scan"],  # the others are in tests/test_kernels.py
}


def _allowed(num_layers: int, bidirectional: bool, merge_mode: str | None, go_backwards: bool, **_: Any) -> bool:
    if bidirectional:  # the largest is in another test, since a graph of it takes seconds to trace
        return num_layers < 3 and not go_backwards
    return num_layers > 1 and merge_mode == "concat"  # the rest is tests/test_fused_layers.py


@pytest.mark.parametrize("case", covering(SETTINGS, strength=2, allowed=_allowed), ids=case_id)
def test_equals_a_stack_of_standard_layers(case: dict[str, Any]) -> None:
    """Outputs, states and gradients equal those of the standard layers for every pair of settings."""
    state, dtype = case["state"], case["dtype"]
    arguments = {name: value for name, value in case.items() if name not in ("mask", "state", "how", "kernel")}
    arguments["kernels"] = {"cpu_inference": case["kernel"], "cpu_training": case["kernel"]}
    stateful = state == "stateful"
    standard, fused = stack_twins(stateful=stateful, return_state="return_state" in state, **arguments)
    x = sequences("float64" if dtype == "float64" else "float32")
    states = states_for(fused, x.dtype) if "initial_state" in state else []
    mask = mask_of(case["mask"])
    compare(case["kind"], standard, fused, x, states, mask, case["how"])
    if stateful:  # and from where the first batch ended
        wanted, got = (flat(layer(x[:, ::-1], mask=mask)) for layer in (standard, fused))
        for actual, expected in zip(got, wanted, strict=True):
            close(actual, expected, TOLERANCES[standard.compute_dtype][0])


@pytest.mark.parametrize("kind", FUSED)
def test_stateful_stack_starts_again(kind: str) -> None:
    """Each layer and direction keeps its own state from batch to batch, until reset_state."""
    standard, fused = stack_twins(kind, num_layers=3, bidirectional=True, stateful=True, return_sequences=True)
    outputs = []
    for seed in (0, 1, 0):
        x = sequences(seed=seed)
        outputs.append(fused(x))
        close(outputs[-1], standard(x), 1e-6)
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-3
    fused.reset_state()
    np.testing.assert_array_equal(fused(sequences(seed=0)), outputs[0])
    assert len(fused.states) == len(fused.state_size) == 6 * (2 if kind == "lstm" else 1)
    assert len(fused.weights) == 6 * 3  # states are no weights


def _functional(kind: str, merge_mode: str | None, return_sequences: bool, fused: bool) -> keras.Model:
    """Masking, two bidirectional layers, their states, and a layer that sees the mask that goes on."""
    x = keras.Input((None, FEATURES))
    masked = layers.Masking()(x)
    arguments = {"return_sequences": return_sequences, "return_state": True}
    if fused:
        results = FUSED[kind](UNITS, num_layers=2, bidirectional=True, merge_mode=merge_mode, **arguments)(masked)
    else:
        first = layers.Bidirectional(STANDARD[kind](UNITS, use_cudnn=False, return_sequences=True, return_state=True))
        output, *states = first(masked)
        layer = layers.Bidirectional(STANDARD[kind](UNITS, use_cudnn=False, **arguments), merge_mode=merge_mode)
        own = layer(output)
        count = 2 if merge_mode is None else 1
        results = [*own[:count], *states, *own[count:]]
    results = list(results)
    if return_sequences:
        results[0] = STANDARD[kind](2, use_cudnn=False, name="after")(results[0])
    return keras.Model(x, results)


@pytest.mark.parametrize(
    ("kind", "return_sequences", "merge_mode"),
    [("lstm", False, "concat"), ("lstm", True, None), ("gru", True, "mul")],
)
def test_in_a_functional_model(kind: str, return_sequences: bool, merge_mode: str | None) -> None:
    """Symbolic shapes, and masks that go on to the next layer, with batch and time unknown."""
    standard = _functional(kind, merge_mode, return_sequences, fused=False)
    fused = _functional(kind, merge_mode, return_sequences, fused=True)
    assert [output.shape for output in fused.outputs] == [output.shape for output in standard.outputs]
    randomize(standard, seed=4)
    arrays = standard.get_weights()
    fused.set_weights([*all_fused_arrays(kind, arrays[:12]), *arrays[12:]])
    for rows, steps in ((ROWS, STEPS), (2, 4)):
        x = sequences(rows=rows, steps=steps) * mask_of("holes", rows)[:, :steps, None]
        for actual, expected in zip(fused(x), standard(x), strict=True):
            close(actual, expected, 1e-6)


def test_masks_that_go_on() -> None:
    """The mask goes on with each output that is a sequence, and with no state."""
    x, mask = sequences(), mask_of("holes")
    for merge_mode, outputs in (("concat", 1), (None, 2)):
        for return_sequences in (False, True):
            layer = FusedGRU(UNITS, bidirectional=True, merge_mode=merge_mode, return_sequences=return_sequences)
            wanted = [mask if return_sequences else None] * outputs
            assert [m is w for m, w in zip(flat(layer.compute_mask(x, mask)), wanted, strict=True)] == [True] * outputs
            layer.return_state = True
            masks = layer.compute_mask(x, mask)
            assert len(masks) == outputs + 2 == len(layer.compute_output_shape(x.shape))
            assert masks[outputs:] == [None, None]


def test_trains_like_a_stack() -> None:
    """With dropout, penalties and constraints, fit gives the loss curve and the weights of the standard layers."""
    arguments = {"recurrent_regularizer": keras.regularizers.L2(0.02), "kernel_constraint": "unit_norm"}
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, STEPS, FEATURES)).astype("float32"), rng.normal(size=(20, UNITS)).astype("float32")
    x[:, 4:][::2] = 0.0

    def model(*inner: Any) -> keras.Model:
        return keras.Sequential([keras.Input((STEPS, FEATURES)), layers.Masking(), *inner])

    def losses(model: keras.Model) -> list[float]:
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
        return model.fit(x, y, batch_size=5, epochs=3, shuffle=False, verbose=0).history["loss"]

    standard = model(
        layers.GRU(UNITS, use_cudnn=False, dropout=0.3, seed=5, return_sequences=True, **arguments),
        layers.GRU(UNITS, use_cudnn=False, **arguments),
    )
    fused = model(FusedGRU(UNITS, num_layers=2, dropout=0.3, seed=5, kernels={"cpu_training": "scan"}, **arguments))
    fused.set_weights(all_fused_arrays("gru", standard.get_weights()))
    wanted, got = losses(standard), losses(fused)
    assert len(set(wanted)) == 3  # it does train
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    for actual, expected in zip(fused.get_weights(), all_fused_arrays("gru", standard.get_weights()), strict=True):
        close(actual, expected, 1e-5)


# Settings and files


def test_names_of_the_arrays() -> None:
    """The arrays stand layer by layer, forward before backward, under names of their own."""
    layer = FusedLSTM(UNITS, num_layers=2, bidirectional=True)
    layer.build((None, None, FEATURES))
    names = [
        f"{name}{end}"
        for end in ("", "_reverse", "_l1", "_l1_reverse")
        for name in ("kernel", "recurrent_kernel", "bias")
    ]
    assert [weight.name for weight in layer.weights] == names
    widths = [array.shape[1] for array in layer.get_weights()[::3]]
    assert widths == [FEATURES, FEATURES, 2 * UNITS, 2 * UNITS]
    assert layer.arrays == layer.weights


def test_config_says_what_a_plain_layer_does_not_have() -> None:
    """get_config holds the new arguments where they are not as usual, plain data all, and from_config takes them."""
    extras = {
        "num_layers": 2,
        "bidirectional": True,
        "merge_mode": None,
        "kernels": {"cpu_inference": "xla2", "gpu_training": "cudnn_layers"},
        "parts": [{"name": "one"}, {"name": "two", "layer": "inner"}],
    }
    assert not set(extras) & set(FusedGRU(UNITS, kernels={}).get_config())
    layer = FusedGRU(UNITS, **extras)
    config = layer.get_config()
    assert {name: config[name] for name in extras} == extras
    assert [type(config[name]) for name in ("kernels", "parts")] == [dict, list]
    assert type(config["parts"][0]) is dict
    again = FusedGRU.from_config(config)
    assert again.get_config() == config
    assert again.network == layer.network
    assert "merge_mode" not in FusedGRU(UNITS, bidirectional=True, merge_mode="concat").get_config()


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
def test_comes_back_from_a_file(suffix: str, tmp_path: Path) -> None:
    """Saved and opened again, a model has the same arrays, settings and outputs."""
    x = keras.Input((STEPS, FEATURES))
    kernels = {"cpu_inference": "scan", "gpu_inference": "xla"}
    parts = [{"name": "a"}, {"name": "b"}]
    lstm = FusedLSTM(
        UNITS, name="lstm", num_layers=2, bidirectional=True, return_sequences=True, kernels=kernels, parts=parts
    )
    gru = FusedGRU(UNITS, name="gru", num_layers=3, go_backwards=True)
    model = keras.Model(x, gru(lstm(x)))
    randomize(model, seed=5)
    path = tmp_path / f"model{suffix}"
    if suffix == ".weights.h5":
        model.save_weights(path)
        again = keras.models.clone_model(model)
        randomize(again, seed=6)
        again.load_weights(path)
    else:
        model.save(path)
        again = keras.saving.load_model(path, compile=False)
    for actual, expected in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(again(sequences()), model(sequences()))
    for name in ("lstm", "gru"):
        assert again.get_layer(name).get_config() == model.get_layer(name).get_config()
    assert again.get_layer("lstm").kernels == kernels


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a positive integer, not 0"),
        ({"num_layers": 1.5}, "num_layers must be a positive integer, not 1.5"),
        ({"bidirectional": True, "go_backwards": True}, "drop go_backwards"),
        ({"bidirectional": True, "merge_mode": "max"}, r"merge_mode must be one of .*'ave'.*, not 'max'"),
        ({"kernels": {"cpu": "loop"}}, "unknown key 'cpu'; the keys are cpu_inference, cpu_training, gpu_inference"),
        ({"kernels": {"tpu_inference": "loop"}}, "unknown key 'tpu_inference'"),
        ({"kernels": {"cpu_inference": "cudnn"}}, r"unknown kernel 'cudnn'; on a cpu there are .*'xla4'"),
        ({"kernels": {"gpu_training": "xla2"}}, r"unknown kernel 'xla2'; on a gpu there are .*'cudnn_layers'"),
    ],
)
def test_refuses(arguments: dict[str, Any], message: str) -> None:
    """A wrong argument is an error that says what is right."""
    for make in FUSED.values():
        with pytest.raises(ValueError, match=message):
            make(UNITS, **arguments)


def test_counts_the_states() -> None:
    """Too few initial states are an error that says how many there must be."""
    with pytest.raises(ValueError, match="must have 8 tensors, got 2"):
        FusedLSTM(UNITS, num_layers=2, bidirectional=True)(sequences(), initial_state=[tf.zeros((ROWS, UNITS))] * 2)
