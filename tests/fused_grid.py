"""What the tests of the fused layers share: twins of both kinds, masks, a covering grid, comparisons.

The oracle is `keras.layers.LSTM` or `GRU` with `use_cudnn=False`. Arrays go from one layout to the other by the
definitions in the table of the two layouts, written out here once more and not taken from the package.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lstm_swap.layers import FusedGRU, FusedLSTM

ROWS, STEPS, FEATURES, UNITS = 5, 6, 3, 4

STANDARD = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}
FUSED = {"lstm": FusedLSTM, "gru": FusedGRU}

#: Tolerances for outputs and for gradients, times max(1, max|reference|), by the dtype that is computed in.
TOLERANCES = {"float32": (1e-6, 1e-5), "float64": (1e-10, 1e-10), "float16": (1e-2, 1e-2), "bfloat16": (5e-2, 5e-2)}

MASKS: dict[str, list[str] | None] = {
    "none": None,
    "right": ["######", "####..", "#.....", "#####.", "##...."],
    "left": ["######", "..####", ".....#", ".#####", "...###"],
    "holes": ["#.#.#.", ".##.#.", "##..##", "#....#", "..#.#."],
    "empty row": ["######", "......", ".#..#.", "###...", "......"],
}


def mask_of(name: str, rows: int = ROWS) -> np.ndarray | None:
    """A mask by its name: bool (rows, STEPS)."""
    pattern = MASKS[name]
    return None if pattern is None else np.array([[mark == "#" for mark in row] for row in pattern])[:rows]


def fused_arrays(kind: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """kernel, recurrent_kernel and bias of a standard layer, in the fused layout."""
    kernel, recurrent_kernel, bias = arrays
    if kind == "lstm":  # i f c o in both
        return [kernel.T, recurrent_kernel.T, bias]

    def gates(array: np.ndarray) -> list[np.ndarray]:  # columns z r h, as r z h
        z, r, h = np.split(array, 3, axis=-1)
        return [r, z, h]

    return [
        np.concatenate(gates(kernel), axis=-1).T,
        np.concatenate(gates(recurrent_kernel), axis=-1).T,
        np.concatenate([*gates(bias[0]), *gates(bias[1])]),
    ]


def all_fused_arrays(kind: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same for several layers of one kind, three arrays each."""
    return [new for start in range(0, len(arrays), 3) for new in fused_arrays(kind, arrays[start : start + 3])]


def randomize(layer: Any, seed: int) -> None:
    """Random weights, biases too, about as large as trained ones."""
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(0, 0.5, array.shape) for array in layer.get_weights()])


def covering(factors: dict[str, Sequence[Any]], strength: int, allowed: Callable[..., bool]) -> list[dict[str, Any]]:
    """A small list of cases in which every combination of `strength` factors' values occurs, where it is allowed."""
    names = list(factors)
    cases = [case for values in itertools.product(*factors.values()) if allowed(**(case := dict(zip(names, values))))]

    def combinations(case: dict[str, Any]) -> Iterable[tuple[tuple[str, Any], ...]]:
        return itertools.combinations([(name, str(case[name])) for name in names], strength)

    covered = [(case, set(combinations(case))) for case in cases]
    missing = set().union(*(combos for _, combos in covered))
    chosen = []
    while missing:
        case, combos = max(covered, key=lambda pair: len(pair[1] & missing))
        chosen.append(case)
        missing -= combos
    return chosen


def case_id(case: dict[str, Any]) -> str:
    return "-".join(str(value).replace(" ", "_") for value in case.values())


def close(actual: Any, expected: Any, tolerance: float) -> None:
    """Same shape, and nowhere further apart than the tolerance times max(1, max|expected|)."""
    actual, expected = (np.asarray(tf.cast(array, tf.float64)) for array in (actual, expected))
    assert actual.shape == expected.shape
    assert np.all(np.isfinite(expected))
    worst = np.max(np.abs(actual - expected), initial=0.0)
    scale = max(1.0, np.max(np.abs(expected), initial=0.0))
    assert worst <= tolerance * scale, f"{worst:.3g} apart, allowed {tolerance * scale:.3g}"


def flat(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def outputs_and_gradients(
    layer: Any, x: Any, states: Sequence[Any], mask: Any, how: str
) -> tuple[list[Any], list[Any], list[Any]]:
    """Outputs, gradients by x and by the states, gradients by the variables, of a sum that weighs each output.

    how: "eager", "train" (traced, training) or "infer" (traced, not training).
    """
    variables = [variable.value for variable in layer.trainable_variables]
    watched = [x, *states]

    def run(*watched: Any) -> tuple[list[Any], list[Any]]:
        with tf.GradientTape() as tape:
            tape.watch(watched)
            arguments = {"initial_state": list(watched[1:])} if states else {}
            outputs = flat(layer(watched[0], mask=mask, training=how != "infer", **arguments))
            loss = 0.0
            for output in outputs:
                weights = tf.reshape(tf.cos(tf.range(tf.size(output), dtype=tf.float32)), tf.shape(output))
                loss += tf.reduce_sum(tf.cast(weights, tf.float64) * tf.cast(output, tf.float64))
        return outputs, tape.gradient(loss, [*watched, *variables])

    outputs, gradients = (run if how == "eager" else tf.function(run, autograph=False))(*watched)
    return outputs, gradients[: len(watched)], gradients[len(watched) :]


def make_twins(kind: str, wrapper: str, **arguments: Any) -> tuple[Any, Any]:
    """A standard layer and a fused one in the same wrapper, with the same weights (see `give_weights`)."""

    def wrapped(make: Callable[..., Any], **more: Any) -> Any:
        layer = make(UNITS, **arguments, **more)
        dtype = arguments.get("dtype")
        if wrapper.startswith("bidirectional"):
            mode = wrapper.split()[-1]
            return keras.layers.Bidirectional(layer, merge_mode=None if mode == "none" else mode, dtype=dtype)
        return keras.layers.TimeDistributed(layer, dtype=dtype) if wrapper == "time_distributed" else layer

    return wrapped(STANDARD[kind], use_cudnn=False), wrapped(FUSED[kind])


def give_weights(kind: str, standard: Any, fused: Any, shape: Sequence[int | None]) -> None:
    """Build both and give both the same random weights."""
    standard.build(shape)
    fused.build(shape)
    randomize(standard, seed=1)
    fused.set_weights(all_fused_arrays(kind, standard.get_weights()))


def compare(kind: str, standard: Any, fused: Any, x: Any, states: Sequence[Any], mask: Any, how: str) -> None:
    """Outputs and all gradients of both agree within the tolerances of the dtype that they compute in."""
    forward, backward = TOLERANCES[standard.compute_dtype]
    wanted, wanted_inputs, wanted_weights = outputs_and_gradients(standard, x, states, mask, how)
    got, got_inputs, got_weights = outputs_and_gradients(fused, x, states, mask, how)
    assert len(got) == len(wanted)
    for actual, expected in zip(got, wanted, strict=True):
        assert actual.dtype == expected.dtype
        close(actual, expected, forward)
    wanted_arrays = all_fused_arrays(kind, [np.asarray(tf.cast(array, tf.float64)) for array in wanted_weights])
    for actual, expected in zip([*got_inputs, *got_weights], [*wanted_inputs, *wanted_arrays], strict=True):
        close(actual, expected, backward)
