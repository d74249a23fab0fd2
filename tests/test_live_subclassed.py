"""Models of classes of the user's: subclassed ones, and classes on top of a graph or a Sequential."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import lstm_swap
from tests.conftest import randomise
from tests.live_tools import FEATURES, STEPS, chain, classes, layers, outputs, sequences, there_and_back

LSTM, GRU, Bidirectional, Dense = layers.LSTM, layers.GRU, layers.Bidirectional, layers.Dense
FACTOR = 3.0


def scaled(x: Any) -> Any:
    return ops.tanh(x) * FACTOR


class Described(keras.Model):
    """A subclassed model with get_config; layers in attributes, a list, a dict, and behind an underscore."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.stack = [LSTM(units, return_sequences=True), GRU(units, return_sequences=True)]
        self.heads = {"a": Bidirectional(LSTM(units)), "b": Dense(2)}
        self._hidden = LSTM(3, name="hidden")

    def call(self, x: Any) -> Any:
        for layer in self.stack:
            x = layer(x)
        return ops.concatenate([self.heads["b"](self.heads["a"](x)), self._hidden(x)], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


class Bare(keras.Model):
    """A subclassed model as most people write it, with an argument and without get_config."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.first = LSTM(units, return_sequences=True)
        self.last = GRU(units)
        self.seen = keras.metrics.Mean(name="seen")
        self.factor = np.float32(FACTOR)
        self.activate = scaled

    def call(self, x: Any) -> Any:
        return self.activate(self.last(self.first(x))) * self.factor


@pytest.mark.parametrize(("cls", "swapped"), [(Described, 5), (Bare, 2)])
def test_subclassed_models(cls: Any, swapped: int) -> None:
    """Layers in attributes are replaced, in the order in which Keras lists weights; the model trains."""
    model = cls(4)
    model(sequences())
    fused = there_and_back(model, sequences(), swapped)
    for m in (model, fused):
        m.compile(keras.optimizers.SGD(0.05), "mse")
    y = outputs(model, sequences())[0] * 0.5
    losses = [m.fit(sequences(), y, epochs=2, verbose=0, shuffle=False).history["loss"] for m in (model, fused)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_subclassed_model_without_weights_yet() -> None:
    """Not built: swapped, and built by its first call."""
    fused = lstm_swap.optimize(Described(4), "fused")
    assert fused(sequences()).shape == (4, 5)
    assert classes(fused).count("FusedLSTM") == 4


def test_attributes_of_a_bare_model_are_its_own() -> None:
    """Metrics are new, plain values and functions the same."""
    model = Bare(3)
    model(sequences())
    fused = lstm_swap.optimize(model, "fused")
    assert fused.seen is not model.seen
    assert fused.seen.name == "seen"
    assert fused.activate is scaled
    assert fused.first.name == model.first.name


class Counted(keras.Model):
    """A graph with a training step and a state of its own."""

    def train_step(self, data: Any) -> Any:
        self.steps_taken += 1
        return super().train_step(data)


class Composed(keras.Model):
    """A graph that is made in __init__, with its layers in attributes."""

    def __init__(self, units: int) -> None:
        x = keras.Input((STEPS, FEATURES))
        rnn = LSTM(units)
        super().__init__(x, Dense(2)(rnn(x)))
        self.rnn = rnn
        self.extra = [GRU(units)]


def test_classes_on_top_of_a_graph() -> None:
    """The class stays, and so do training steps and attributes; layers in attributes are the new ones."""
    x = keras.Input((STEPS, FEATURES))
    model = Counted(x, LSTM(3)(x))
    model.steps_taken = 0
    fused = there_and_back(model, sequences(), 1)
    fused.compile("sgd", "mse", run_eagerly=True)
    fused.fit(sequences(), np.zeros((4, 3)), verbose=0)
    assert (fused.steps_taken, model.steps_taken) == (1, 0)

    composed = Composed(4)
    composed.extra[0].build((None, STEPS, FEATURES))
    fused = there_and_back(composed, sequences(), 2)
    assert type(fused) is Composed
    assert fused.rnn is fused.layers[1]
    assert type(fused.extra[0]).__name__ == "FusedGRU"


class Named(keras.Sequential):
    """A Sequential with another signature."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.tag = tag


def test_a_class_on_top_of_sequential() -> None:
    """It stays too."""
    model = Named("x")
    model.add(keras.Input((STEPS, FEATURES)))
    model.add(GRU(3))
    fused = there_and_back(model, sequences(), 1)
    assert fused.tag == "x"


def test_what_leads_back_to_the_original_is_refused() -> None:
    """A bare class whose attribute closes over its own layers cannot be followed: the error names the attribute."""

    class Closing(Bare):
        def __init__(self, units: int) -> None:
            super().__init__(units)
            self.activate = lambda x: x * len(self.last.weights)

    model = Closing(3)
    model(sequences())
    with pytest.raises(lstm_swap.UnsupportedLayerError, match=r"Closing .* 'activate' leads to layers .*get_config"):
        lstm_swap.optimize(model, "fused")


def test_attributes_set_on_a_model(caplog: pytest.LogCaptureFixture) -> None:
    """What a user hangs on a model comes along, save what leads to the original's layers: that is said."""
    model = randomise(chain(LSTM(3), Dense(1)))
    model.notes = {"author": "me"}
    model.peek = lambda: model.layers[0]
    with caplog.at_level(logging.WARNING, "lstm_swap"):
        fused = lstm_swap.optimize(model, "fused")
    assert fused.notes == {"author": "me"}
    assert not hasattr(fused, "peek")
    assert "peek" in caplog.text
