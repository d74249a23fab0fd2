"""Classes and functions of the user's in a live model just work, unregistered; what cannot be followed is refused."""

from __future__ import annotations

import functools
import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import lstm_swap
from tests.conftest import randomise
from tests.live_tools import (
    FEATURES,
    STEPS,
    assert_close,
    assert_same_arrays,
    chain,
    layers,
    outputs,
    sequences,
    there_and_back,
    weights,
)

LSTM, GRU, Bidirectional, Dense = layers.LSTM, layers.GRU, layers.Bidirectional, layers.Dense
FACTOR = 3.0


def randomised(model: Any) -> Any:
    """Random weights for the recurrent layers alone."""
    for layer in model.layers:
        if isinstance(layer, (LSTM, GRU)):
            randomise(layer)
    return model


def scaled(x: Any) -> Any:
    return ops.tanh(x) * FACTOR


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


class Raw(layers.Layer):
    """Hands its layer over as it is, which Keras's own files could not hold."""

    def __init__(self, inner: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "inner": self.inner}


def test_a_config_with_a_layer_in_it() -> None:
    """The layer in the config is the original's own; the new model gets another one."""
    model = chain(Raw(Dense(3)), Raw(GRU(2)))
    fused = there_and_back(model, sequences(), 1)
    assert fused.layers[0].inner is not model.layers[0].inner
    fused.layers[0].inner.kernel.assign(ops.zeros_like(fused.layers[0].inner.kernel))
    assert np.abs(np.array(model.layers[0].inner.kernel)).max() > 0


class Table(layers.Layer):
    """Keeps numbers that are no variable, and says how they get into a file."""

    table = 1.0

    def call(self, x: Any) -> Any:
        return x * self.table

    def save_own_variables(self, store: Any) -> None:
        store["table"] = np.array(self.table)

    def load_own_variables(self, store: Any) -> None:
        self.table = float(store["table"][()])


def test_state_that_is_no_variable() -> None:
    """Words of a TextVectorization, statistics of a Normalization, and what a user's layer writes into files."""
    words = layers.TextVectorization(output_sequence_length=STEPS)
    words.adapt(np.array(["one two three", "three four two"]))
    normal = layers.Normalization()
    normal.adapt(sequences() * 3 + 1)
    table = Table()
    table.table = 0.25
    text, numbers = keras.Input((), dtype="string"), keras.Input((STEPS, FEATURES))
    h = GRU(3)(layers.Embedding(9, 4)(words(text)))
    model = randomised(keras.Model([text, numbers], [h, LSTM(3)(table(normal(numbers)))]))
    inputs = [tf.constant(["four three", "one two unknown", "", "two"]), tf.constant(sequences())]
    wanted = outputs(model, inputs)
    fused = lstm_swap.optimize(model, "fused", strict=True)
    assert_close(outputs(fused, inputs), wanted)
    assert_close(outputs(lstm_swap.standardize(fused), inputs), wanted)


class Terse(layers.Layer):
    """Leaves what every layer has out of its config."""

    def build(self, shape: Any) -> None:
        self.gain = self.add_weight(shape=(shape[-1],), name="gain")

    def call(self, x: Any) -> Any:
        return x * self.gain

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


def test_a_frozen_layer_that_does_not_say_so() -> None:
    """trainable comes from the layer, not from its config."""
    model = chain(Terse(), GRU(2))
    model.layers[0].trainable = False
    fused = there_and_back(model, sequences(), 1)
    assert not fused.layers[0].trainable
    assert len(fused.trainable_weights) == len(model.trainable_weights) == 3


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


def test_diverged_weights_are_moved(caplog: pytest.LogCaptureFixture) -> None:
    """NaN weights prove nothing: they are moved bit for bit all the same, and a warning says so."""
    model = chain(LSTM(3))
    model.set_weights([np.full_like(value, np.nan) for value in model.get_weights()])
    with caplog.at_level(logging.WARNING, "lstm_swap"):
        fused = lstm_swap.optimize(model, "fused")
    assert "NaN" in caplog.text
    assert_same_arrays(weights(lstm_swap.standardize(fused)), weights(model))
