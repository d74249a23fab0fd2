"""Training goes on where it was: compile settings, optimizer state, random numbers; the losses are the original's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import lstm_swap
from tests.conftest import randomise
from tests.live_tools import FEATURES, STEPS, assert_same_arrays, chain, classes, layers, sequences, tokens, weights

LSTM, GRU, Bidirectional, Dense = layers.LSTM, layers.GRU, layers.Bidirectional, layers.Dense
optimizers = keras.optimizers

X = sequences(16)
Y = np.tanh(X.sum(axis=(1, 2)))[:, None]


def small() -> Any:
    return randomise(chain(LSTM(4, return_sequences=True), GRU(3), Dense(1)))


def curve(model: Any, x: Any = X, y: Any = Y, epochs: int = 2) -> list[float]:
    """Losses of a few epochs, in one order of the rows."""
    losses: list[float] = model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, shuffle=False).history["loss"]
    return losses


def assert_goes_on(model: Any, x: Any = X, y: Any = Y) -> None:
    """After some training: the fused model loses what the original loses; made plain again it is the original."""
    curve(model, x, y, epochs=1)
    fused = lstm_swap.optimize(model, "fused")
    assert any(name.startswith("Fused") for name in classes(fused))
    back = lstm_swap.standardize(fused)
    assert_same_arrays(*([np.array(v) for v in m.optimizer.variables] for m in (back, model)))
    assert_same_arrays(weights(back), weights(model))
    wanted = curve(model, x, y)
    assert wanted[1] != wanted[0]
    np.testing.assert_allclose(curve(fused, x, y), wanted, rtol=1e-5)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd with momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam with amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True, clipnorm=0.5),
    "nadam": lambda: optimizers.Nadam(0.01),
    "ema": lambda: optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=3),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01), 64.0, dynamic_growth_steps=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_goes_on_with(name: str) -> None:
    """Each optimizer goes on with its slots, counters and rates: the next losses are the original's."""
    model = small()
    model.compile(OPTIMIZERS[name](), "mse", run_eagerly=True)  # no tracing: most of the time otherwise
    assert_goes_on(model)


def test_random_numbers_go_on() -> None:
    """Dropout, inside the recurrent layer and beside it, drops what the original would have dropped."""
    x = keras.Input((STEPS,), dtype="int32")
    h = layers.Embedding(9, 6, mask_zero=True)(x)
    h = Bidirectional(LSTM(4, return_sequences=True, dropout=0.4))(layers.Dropout(0.2)(h))
    model = randomise(keras.Model(x, Dense(1)(GRU(3, dropout=0.3)(h))))
    model.compile(optimizers.Adam(0.01), "mse")
    words = np.concatenate([tokens()] * 4)
    assert_goes_on(model, words, Y)


def test_weight_decay_exceptions_come_along() -> None:
    """What exclude_from_weight_decay said, by name or by variable, holds for the new variables."""
    for by_name in (True, False):
        model = small()
        optimizer = optimizers.AdamW(0.01, weight_decay=0.5)
        if by_name:
            optimizer.exclude_from_weight_decay(var_names=["bias", "recurrent"])
        else:
            optimizer.exclude_from_weight_decay(var_list=model.layers[0].trainable_variables)
        model.compile(optimizer, "mse", run_eagerly=True)
        assert_goes_on(model)


def test_a_rate_that_was_changed() -> None:
    """The learning rate is the current one, not the one that the optimizer was made with."""
    model = small()
    model.compile(optimizers.SGD(0.5), "mse")
    model.optimizer.learning_rate = 0.125
    fused = lstm_swap.optimize(model, "fused")
    assert float(fused.optimizer.learning_rate) == 0.125
    assert not fused.optimizer.built


def test_compile_settings() -> None:
    """Losses, weights, metrics and modes are kept, also where they are lambdas or classes that nobody registered."""

    class Scaled(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return ops.mean(ops.abs(y_true - y_pred)) * scale

    scale = 3.0
    x = keras.Input((STEPS, FEATURES))
    h = LSTM(4)(x)
    model = randomise(keras.Model(x, {"a": Dense(1, name="a")(h), "b": Dense(1, name="b")(h)}))
    model.compile(
        optimizers.Adam(0.01),
        loss={"a": Scaled(), "b": lambda t, p: ops.mean((t - p) ** 2) * scale},
        loss_weights={"a": 0.25, "b": 2.0},
        metrics={"a": [keras.metrics.MeanAbsoluteError(name="error"), "mse"], "b": lambda t, p: ops.mean(p) * scale},
        weighted_metrics={"a": ["mae", keras.metrics.MeanMetricWrapper(lambda t, p: ops.mean(p) * scale, name="own")]},
        steps_per_execution=2,
    )
    y = {"a": Y, "b": -Y}
    model.fit(X, y, epochs=1, verbose=0)
    fused = lstm_swap.optimize(model, "fused")
    assert fused.steps_per_execution == 2
    wanted, got = (m.evaluate(X, y, verbose=0, return_dict=True) for m in (model, fused))
    assert list(got) == list(wanted)
    assert len(got) >= 7
    for key, value in wanted.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-5)
    metric = fused._compile_config.config["metrics"]["a"][0]
    assert metric is not model._compile_config.config["metrics"]["a"][0]


def test_modes_of_running() -> None:
    """run_eagerly and XLA are kept; without a GPU the fused layers compile."""
    model = small()
    model.compile(optimizers.SGD(0.05), "mse", run_eagerly=True)
    assert lstm_swap.optimize(model, "fused").run_eagerly
    model.compile(optimizers.SGD(0.05), "mse", jit_compile=True)
    assert lstm_swap.optimize(model, "fused").jit_compile is True
    model.compile(optimizers.SGD(0.05), "mse", jit_compile=False)
    assert lstm_swap.optimize(model, "fused").jit_compile is False


def test_not_compiled_stays_so() -> None:
    """A model that was not compiled is not compiled."""
    assert not lstm_swap.optimize(small(), "fused").compiled


def test_inner_models_keep_their_compilation() -> None:
    """An inner model that was compiled by itself can still be evaluated by itself."""
    inner = chain(LSTM(3), Dense(1))
    inner.compile("sgd", "mse", metrics=["mae"])
    x = keras.Input((STEPS, FEATURES))
    model = randomise(keras.Model(x, inner(x)))
    model.compile("adam", "mse")
    model.fit(X, Y, epochs=1, verbose=0)
    fused = lstm_swap.optimize(model, "fused")
    np.testing.assert_allclose(
        fused.layers[1].evaluate(X, Y, verbose=0), inner.evaluate(X, Y, verbose=0), rtol=1e-5
    )  # fmt: skip


def test_the_original_trains_on_undisturbed() -> None:
    """Training the new model changes nothing in the original, nor the other way round."""
    model = small()
    model.compile(optimizers.Adam(0.01), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    curve(model)
    state = [np.array(v) for v in [*model.variables, *model.optimizer.variables, *model.metrics_variables]]
    fused = lstm_swap.optimize(model, "fused")
    curve(fused)
    assert_same_arrays(
        [np.array(v) for v in [*model.variables, *model.optimizer.variables, *model.metrics_variables]], state
    )
    before = weights(fused)
    curve(model)
    assert_same_arrays(weights(fused), before)


def test_mixed_precision_trains_on() -> None:
    """float16 with the loss scale that compile adds by itself: scale, counters and slots come along."""
    policy = keras.DTypePolicy("mixed_float16")
    model = chain(LSTM(4, dtype=policy), Dense(1, dtype=policy))
    model.dtype_policy = policy
    randomise(model)
    model.compile(optimizers.Adam(0.001), "mse")
    curve(model)
    fused = lstm_swap.optimize(model, "fused")
    assert isinstance(fused.optimizer, optimizers.LossScaleOptimizer)
    assert not isinstance(fused.optimizer.inner_optimizer, optimizers.LossScaleOptimizer)
    assert float(fused.optimizer.dynamic_scale) == float(model.optimizer.dynamic_scale)
    np.testing.assert_allclose(curve(fused), curve(model), rtol=1e-2)


def test_slots_that_do_not_mirror_arrays(caplog: pytest.LogCaptureFixture) -> None:
    """Adafactor's row and column sums of a swapped layer begin afresh, and a warning says so; the rest is kept."""
    model = small()
    model.compile(optimizers.Adafactor(0.01), "mse")
    curve(model)
    with caplog.at_level(logging.WARNING, "lstm_swap"):
        fused = lstm_swap.optimize(model, "fused")
    (record,) = [r for r in caplog.records if "optimizer state" in r.getMessage()]
    assert "(r, c)" in record.getMessage()
    assert int(fused.optimizer.iterations) == int(model.optimizer.iterations) > 0
    dense = [np.array(m.optimizer._r[-2]) for m in (model, fused)]
    assert_same_arrays(dense[:1], dense[1:])
    assert np.isfinite(curve(fused)).all()


def test_an_optimizer_for_other_variables(caplog: pytest.LogCaptureFixture) -> None:
    """Where layers were unfrozen since compile, the state cannot be moved: a warning says so."""
    model = small()
    model.layers[0].trainable = False
    model.compile(optimizers.Adam(0.01), "mse")
    curve(model)
    model.layers[0].trainable = True
    with caplog.at_level(logging.WARNING, "lstm_swap"):
        fused = lstm_swap.optimize(model, "fused")
    assert "optimizer state not moved" in caplog.text
    fused.compile(optimizers.Adam(0.01), "mse")
    assert np.isfinite(curve(fused)).all()


def test_an_added_bias_starts_the_optimizer_afresh(caplog: pytest.LogCaptureFixture) -> None:
    """inference=True gives a layer a bias of zeros, which the old optimizer does not know."""
    model = randomise(chain(LSTM(4, use_bias=False), Dense(1)))
    model.compile(optimizers.Adam(0.01), "mse")
    curve(model)
    with caplog.at_level(logging.WARNING, "lstm_swap"):
        fused = lstm_swap.optimize(model, "fused", inference=True)
    assert "optimizer state not moved" in caplog.text
    np.testing.assert_allclose(fused.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6)


def test_a_compile_method_of_the_users(caplog: pytest.LogCaptureFixture) -> None:
    """A class with a compile method of its own is left uncompiled, and a warning says so."""

    class Twice(keras.Model):
        def compile(self, extra: Any, **kwargs: Any) -> None:
            super().compile(**kwargs)
            self.extra = extra

    x = keras.Input((STEPS, FEATURES))
    model = randomise(Twice(x, LSTM(3)(x)))
    model.compile(optimizers.SGD(0.1), optimizer="adam", loss="mse")
    with caplog.at_level(logging.WARNING, "lstm_swap"):
        fused = lstm_swap.optimize(model, "fused")
    assert "compile method of its own" in caplog.text
    assert type(fused) is Twice
    assert not fused.compiled
    assert not hasattr(fused, "extra")
