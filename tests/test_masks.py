"""Where masks go, against what Keras 2 itself says reaches each layer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lstm_swap.architecture import build_tree
from lstm_swap.masks import masked_layers


def _masked(model: Any) -> set[str]:
    root = build_tree(json.loads(model.to_json()))
    found = masked_layers(root)
    return {n.path for n in root.walk() if id(n) in found and n.kind is not None}


def _text(tfk: Any, *layers: Any, mask: bool = True) -> Any:
    return tfk.Sequential([tfk.Input((6,)), tfk.layers.Embedding(9, 4, mask_zero=mask), *layers])


def test_embedding_through_dropout_into_bidirectional(tfk: Any) -> None:
    """The mask passes Dropout and reaches both halves."""
    layers = tfk.layers
    model = _text(tfk, layers.Dropout(0.1), layers.Bidirectional(layers.LSTM(3, name="a"), name="b"))
    assert _masked(model) == {"b/forward_a", "b/backward_a"}
    assert _masked(_text(tfk, layers.LSTM(3), mask=False)) == set()


def test_a_sequence_carries_the_mask_on_and_a_last_output_does_not(tfk: Any) -> None:
    """return_sequences passes the mask to the next layer; without it there is no time left to mask."""
    layers = tfk.layers
    model = _text(tfk, layers.LSTM(3, return_sequences=True, name="a"), layers.LSTM(3, name="b"))
    assert _masked(model) == {"a", "b"}
    model = _text(tfk, layers.LSTM(3, name="a"), layers.RepeatVector(4), layers.LSTM(3, name="b"))
    assert _masked(model) == {"a"}


def test_lambda_stops_the_mask(tfk: Any) -> None:
    """Keras hands no mask out of a Lambda that has none of its own."""
    model = _text(tfk, tfk.layers.Lambda(lambda x: x * 2), tfk.layers.LSTM(3, name="a"))
    assert _masked(model) == set()


def test_mask_enters_a_nested_model(tfk: Any) -> None:
    """The inner model has no Masking of its own; the mask comes through its input."""
    layers = tfk.layers
    inner = tfk.Sequential([tfk.Input((6, 4)), layers.LSTM(3, name="inside")], name="inner")
    x = layers.Input((6, 4))
    model = tfk.Model(x, inner(layers.Masking()(x)))
    assert _masked(model) == {"inner/inside"}
    model = tfk.Model(x, inner(layers.Dropout(0.5)(x)))
    assert _masked(model) == set()


def test_states_carry_no_mask(tfk: Any) -> None:
    """A decoder that gets its initial state from a masked encoder is not masked itself."""
    layers = tfk.layers
    words, frames = layers.Input((6,)), layers.Input((5, 4))
    encoder = layers.LSTM(3, return_state=True, return_sequences=True, name="encoder")
    _, h, c = encoder(layers.Embedding(9, 4, mask_zero=True)(words))
    model = tfk.Model([words, frames], layers.LSTM(3, name="decoder")(frames, initial_state=[h, c]))
    assert _masked(model) == {"encoder"}


def test_explicit_mask_argument(keras: Any) -> None:
    """A mask passed by hand reaches the layer as well (Keras 3 writes it into the call)."""
    layers = keras.layers
    x, m = keras.Input((6, 4)), keras.Input((6,), dtype="bool")
    model = keras.Model([x, m], layers.LSTM(3, name="a")(x, mask=m))
    assert _masked(model) == {"a"}


@pytest.mark.parametrize("merge", ["Add", "Concatenate"])
def test_merge_layers_pass_a_mask_on(tfk: Any, merge: str) -> None:
    """One masked branch is enough to be careful."""
    layers = tfk.layers
    x = layers.Input((6, 4))
    y = getattr(layers, merge)()([layers.Masking()(x), x])
    assert _masked(tfk.Model(x, layers.GRU(3, name="a")(y))) == {"a"}
