"""Classes and functions of the user's in a live model just work, unregistered; what cannot be followed is refused."""

from __future__ import annotations

import functools
import logging
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import lstm_swap
from tests.conftest import randomise
from tests.live_tools import (
    FEATURES,
    STEPS,
    assert_close,
    assert_same_arrays,
    chain,
    classes,
    layers,
    outputs,
    sequences,
    there_and_back,
    weights,
)

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


class Encoder(layers.Layer):
    """Makes its recurrent layer and a variable when it is built."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, shape: Any) -> None:
        self.rnn = LSTM(self.units, return_sequences=True, name="inside")
        self.rnn.build(shape)
        self.gain = self.add_weight(shape=(self.units,), name="gain")

    def call(self, x: Any) -> Any:
        return self.rnn(x) * self.gain

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


class Around(layers.Layer):
    """Takes a layer and a function, and writes neither down."""

    def __init__(self, inner: Any, function: Any) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def build(self, shape: Any) -> None:
        self.shift = self.add_weight(shape=(4,), name="shift", regularizer="l2")
        self.still = self.add_weight(shape=(4,), name="still", trainable=False)
        self.inner.build(shape)

    def call(self, x: Any) -> Any:
        return self.function(self.inner(x)) * self.shift + self.still


def test_layers_that_hold_layers() -> None:
    """A user's layer is kept, the recurrent layer inside it replaced, when made early or late."""
    x = keras.Input((STEPS, FEATURES))
    model = keras.Model(x, GRU(2)(Around(LSTM(4, return_sequences=True), scaled)(Encoder(FEATURES)(x))))
    fused = there_and_back(model, sequences(), 3)
    assert fused.layers[1].rnn.name == "inside"
    assert_close(fused.losses, model.losses)


def test_a_layer_shared_with_a_wrapper() -> None:
    """A recurrent layer that is called directly and inside a user's layer is one layer in the new model too."""
    shared = LSTM(4, return_sequences=True)
    x = keras.Input((STEPS, FEATURES))
    model = keras.Model(x, [Around(shared, scaled)(x), shared(x)])
    fused = there_and_back(model, sequences(), 1)
    around = next(layer for layer in fused.layers if isinstance(layer, Around))
    assert around.inner is fused.get_layer(shared.name)


class Shout(keras.initializers.Initializer):
    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return ops.ones(shape, dtype) * 0.1


class Pull(keras.regularizers.Regularizer):
    def __call__(self, weight: Any) -> Any:
        return FACTOR * ops.sum(weight * weight)


def test_functions_and_objects_of_the_users() -> None:
    """Activations, initializers and regularizers that nobody registered, lambdas with names from around them too."""
    local = 0.5
    recurrent = LSTM(4, kernel_initializer=Shout(), kernel_regularizer=Pull(), return_sequences=True)
    model = chain(
        recurrent,
        Dense(3, activation=scaled),
        Dense(3, activation=lambda x: x * local, kernel_regularizer=lambda w: local * ops.sum(ops.abs(w))),
        layers.Activation(functools.partial(ops.leaky_relu, negative_slope=local)),
        layers.Lambda(lambda x: x + local),
        GRU(2),
    )
    fused = there_and_back(model, sequences(), 2)
    assert_close(fused.losses, model.losses)
    assert fused.layers[2].activation is model.layers[2].activation
    assert fused.layers[4].function is model.layers[4].function
    assert isinstance(fused.layers[0].kernel_initializer, Shout)


def test_a_function_that_is_only_called_tanh() -> None:
    """A user's function of the name tanh is not cuDNN's, and the layer is refused."""

    def tanh(x: Any) -> Any:
        return ops.tanh(x) * 2

    model = chain(LSTM(4, activation=tanh, return_sequences=True), GRU(3, recurrent_activation=lambda x: x))
    made = lstm_swap.plan(model, "fused")
    codes = [[reason.code for reason in decision.reasons] for decision in made.decisions]
    assert codes == [["activation"], ["recurrent_activation"]]
    assert_close(outputs(lstm_swap.optimize(randomise(model), "fused"), sequences()), outputs(model, sequences()))


def test_functions_of_tensorflow_and_of_keras_ops_are_cudnns() -> None:
    """tanh and sigmoid are what they are, whoever exports them."""
    import tensorflow as tf

    model = chain(LSTM(4, activation=tf.tanh, recurrent_activation=ops.sigmoid))
    assert [decision.action for decision in lstm_swap.plan(model, "fused").decisions] == ["swap"]


@keras.saving.register_keras_serializable("test_live_custom")
class MyLSTM(LSTM):
    """A recurrent layer with code of its own."""

    def call(self, sequences: Any, initial_state: Any = None, mask: Any = None, training: bool = False) -> Any:
        return super().call(sequences, initial_state, mask, training) * 2


def test_subclasses_of_recurrent_layers() -> None:
    """They are reported, refused with a reason, and left as they are; their partner in a Bidirectional too."""
    half = LSTM(3, go_backwards=True)
    model = chain(MyLSTM(3, return_sequences=True), Bidirectional(MyLSTM(3), backward_layer=half))
    made = lstm_swap.plan(model, "fused")
    assert [(d.action, [r.code for r in d.reasons]) for d in made.decisions] == [
        ("refuse", ["class"]),
        ("refuse", ["class"]),
        ("refuse", ["partner"]),
    ]
    assert made.decisions[0].settings.class_name == "MyLSTM"
    fused = lstm_swap.optimize(randomise(model), "fused")
    assert type(fused.layers[0]) is MyLSTM
    assert_close(outputs(fused, sequences()), outputs(model, sequences()))
    assert [d.action for d in lstm_swap.plan(model, "standard").decisions] == ["keep"] * 3


def test_a_class_that_is_only_called_lstm() -> None:
    """A user's layer of the name LSTM is not Keras's: it is copied, not swapped."""

    class LSTM(layers.Layer):
        def call(self, x: Any) -> Any:
            return x * 2

    model = chain(LSTM(), GRU(2))
    assert [d.path for d in lstm_swap.plan(model, "fused").decisions] == [model.layers[1].name]
    fused = there_and_back(model, sequences(), 1)
    assert type(fused.layers[0]) is LSTM


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


def test_a_config_that_does_not_fit_is_refused() -> None:
    """A class whose from_config fails: the error names the layer, the class and what went wrong."""

    class Wrong(layers.Layer):
        def __init__(self, needed: int, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.needed = needed

        def get_config(self) -> dict[str, Any]:
            return super().get_config()

        def call(self, x: Any) -> Any:
            return x

    model = chain(Wrong(1), GRU(2))
    with pytest.raises(lstm_swap.UnsupportedLayerError, match=rf"{model.layers[0].name}: Wrong .*needed"):
        lstm_swap.optimize(model, "fused")


def test_a_copy_with_other_variables_is_refused() -> None:
    """A class that forgets an argument in its config would come back in another size: the error says so."""

    class Forgetful(layers.Layer):
        def __init__(self, size: int = 1, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.size = size

        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(self.size,), name="table")

        def get_config(self) -> dict[str, Any]:
            return super().get_config()

        def call(self, x: Any) -> Any:
            return x * self.table[0]

    with pytest.raises(lstm_swap.UnsupportedLayerError, match=r"Forgetful .*\[\(1,\)\].*\[\(5,\)\]"):
        lstm_swap.optimize(chain(Forgetful(5), GRU(2)), "fused")


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


def test_diverged_weights_are_moved(caplog: pytest.LogCaptureFixture) -> None:
    """NaN weights prove nothing: they are moved bit for bit all the same, and a warning says so."""
    model = chain(LSTM(3))
    model.set_weights([np.full_like(value, np.nan) for value in model.get_weights()])
    with caplog.at_level(logging.WARNING, "lstm_swap"):
        fused = lstm_swap.optimize(model, "fused")
    assert "NaN" in caplog.text
    assert_same_arrays(weights(lstm_swap.standardize(fused)), weights(model))
