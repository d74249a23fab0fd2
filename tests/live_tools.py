"""What the tests of live models share: models, random weights, comparisons.

The oracle is the model itself before it was changed: Keras's own layers, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import lstm_swap
from tests.conftest import randomise

layers = keras.layers

ROWS, STEPS, FEATURES, UNITS = 4, 6, 3, 5

#: Times max(1, max|reference|), by the dtype that is computed in.
TOLERANCES = {"float32": 1e-6, "float64": 1e-10, "float16": 1e-2, "bfloat16": 5e-2}


def sequences(rows: int = ROWS, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, STEPS, FEATURES)).astype("float32")


def tokens(rows: int = ROWS) -> np.ndarray:
    """Numbers of words, padded with 0 on the left and on the right."""
    found = np.random.default_rng(1).integers(1, 9, (rows, STEPS))
    found[0, :2] = 0
    found[1, 3:] = 0
    return found


def states(count: int, units: int = UNITS) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.normal(0, 0.5, (ROWS, units)).astype("float32") for _ in range(count)]


def flat(values: Any) -> list[np.ndarray]:
    return [np.asarray(value) for value in keras.tree.flatten(values)]


def outputs(model: Any, inputs: Any) -> list[np.ndarray]:
    return flat(model(inputs, training=False))


def assert_close(got: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    """Same shapes, finite, and nowhere further apart than the tolerance times max(1, max|wanted|)."""
    got, wanted = flat(got), flat(wanted)
    assert [g.shape for g in got] == [w.shape for w in wanted]
    for g, w in zip(got, wanted, strict=True):
        g, w = g.astype("float64"), w.astype("float64")
        assert np.isfinite(w).all()
        assert np.abs(g - w).max(initial=0) <= tolerance * max(1.0, np.abs(w).max(initial=0))


def classes(model: Any) -> list[str]:
    """Class names of the recurrent layers, in the order in which Keras flattens the model."""
    known = {"LSTM", "GRU", "FusedLSTM", "FusedGRU", "RNN"}
    return [type(layer).__name__ for layer in model._flatten_layers() if type(layer).__name__ in known]


def weights(model: Any) -> list[np.ndarray]:
    return [np.array(value) for value in model.get_weights()]


def assert_same_arrays(got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """Bit for bit, dtypes too."""
    assert [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in wanted]
    assert all(g.tobytes() == w.tobytes() for g, w in zip(got, wanted, strict=True))


def there_and_back(model: Any, inputs: Any, swapped: int, dtype: str = "float32") -> Any:
    """optimize to fused and standardize again: outputs, arrays, names; the original stays as it was.

    Returns the fused model.
    """
    randomise(model)
    before, wanted, order = weights(model), outputs(model, inputs), [layer.name for layer in model._flatten_layers()]
    fused = lstm_swap.optimize(model, "fused")
    assert type(fused) is type(model)
    assert sum(name.startswith("Fused") for name in classes(fused)) == swapped
    assert_close(outputs(fused, inputs), wanted, TOLERANCES[dtype])
    back = lstm_swap.standardize(fused)
    assert not any(name.startswith("Fused") for name in classes(back))
    assert_same_arrays(weights(back), before)
    assert_close(outputs(back, inputs), wanted, TOLERANCES[dtype])
    assert_same_arrays(weights(model), before)
    assert [layer.name for layer in model._flatten_layers()] == order
    assert model.name == fused.name == back.name
    return fused


def chain(*stack: Any, shape: tuple[Any, ...] = (STEPS, FEATURES), batch: int | None = None) -> Any:
    return keras.Sequential([keras.Input(shape, batch_size=batch), *stack])


Maker = Callable[[], tuple[Any, Any, int]]
