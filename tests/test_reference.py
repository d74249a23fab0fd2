"""The NumPy reference against Keras 3 and Keras 2 layers in float64."""

from __future__ import annotations

import itertools
import time
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from lstm_swap.weights.activations import KNOWN_ACTIVATIONS, activation_function, is_known_activation
from lstm_swap.weights.convolution import convolve
from lstm_swap.weights.products import dot, dot_rows
from lstm_swap.weights.reference import Recurrence, forward

TOLERANCE = 1e-10  # float64, times max(1, max|reference|)
BATCH, STEPS, INPUTS, UNITS = 3, 5, 4, 3

MASKS = {
    "none": None,
    "right": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]],
    "left": [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 0, 0, 1], [1, 1, 0, 1, 0]],
    "empty row": [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]],
}


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def library(request: pytest.FixtureRequest) -> Any:
    """Keras 3 and Keras 2."""
    pytest.importorskip("tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(request.param)


def meaning(library: Any) -> Any:
    return "keras2" if library.__name__ == "tf_keras" else "keras3"


def close(actual: np.ndarray[Any, Any], expected: Any) -> None:
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * scale)


def randomise(layer: Any, x: np.ndarray[Any, Any], scale: float = 0.6) -> list[np.ndarray[Any, Any]]:
    """Build the layer and give it random arrays, biases included."""
    layer(x)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(scale=scale, size=w.shape) for w in layer.get_weights()]
    layer.set_weights(arrays)
    return arrays


def call(layer: Any, x: Any, mask: Any, states: Any, as_tensor: Any) -> list[np.ndarray[Any, Any]]:
    kwargs: dict[str, Any] = {}
    if mask is not None:
        kwargs["mask"] = as_tensor(mask)
    if states is not None:
        kwargs["initial_state"] = [as_tensor(s) for s in states]
    return [np.asarray(y) for y in layer(as_tensor(x), **kwargs)]


LAYERS = {
    "LSTM": ("lstm", {}),
    "GRU": ("gru", {"reset_after": True}),
    "GRU before": ("gru", {"reset_after": False}),
    "SimpleRNN": ("simple_rnn", {}),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("go_backwards", [False, True])
def test_layers(library: Any, name: str, mask: str, go_backwards: bool) -> None:
    """Outputs and states equal the layer's, for masks of each kind, both directions, any initial state."""
    import tensorflow as tf

    kind, options = LAYERS[name]
    layer = getattr(library.layers, name.split()[0])(
        UNITS, go_backwards=go_backwards, return_state=True, dtype="float64", **options
    )
    rng = np.random.default_rng(2)
    x = rng.normal(size=(BATCH, STEPS, INPUTS))
    arrays = randomise(layer, x)
    given = [rng.normal(size=(BATCH, UNITS)) for _ in range(2 if kind == "lstm" else 1)]
    kept = None if MASKS[mask] is None else np.array(MASKS[mask], dtype=bool)
    spec = Recurrence(kind, "standard", UNITS, **options)  # type: ignore[arg-type]
    for sequences, states in itertools.product([False, True], [None, given]):
        layer.return_sequences = sequences
        expected = call(layer, x, kept, states, tf.constant)
        output, last = forward(
            spec, arrays, x, mask=kept, initial_state=states, go_backwards=go_backwards, return_sequences=sequences
        )
        for ours, theirs in zip([output, *last], expected, strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("name", LAYERS)
def test_zero_output_for_mask(library: Any, name: str) -> None:
    """With zero_output_for_mask, as in a Bidirectional, skipped steps give zeros and leave the states alone."""
    import tensorflow as tf

    kind, options = LAYERS[name]
    layer = getattr(library.layers, name.split()[0])(
        UNITS, return_state=True, return_sequences=True, dtype="float64", zero_output_for_mask=True, **options
    )
    x = np.random.default_rng(2).normal(size=(BATCH, STEPS, INPUTS))
    arrays = randomise(layer, x)
    kept = np.array(MASKS["holes"], dtype=bool)
    spec = Recurrence(kind, "standard", UNITS, **options)  # type: ignore[arg-type]
    for sequences in (True, False):
        layer.return_sequences = sequences
        expected = call(layer, x, kept, None, tf.constant)
        output, last = forward(
            spec, arrays, x, mask=kept[..., None], return_sequences=sequences, zero_output_for_mask=True
        )
        for ours, theirs in zip([output, *last], expected, strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("activation", "recurrent_activation"),
    [
        ("tanh", "hard_sigmoid"),
        ("hard_sigmoid", "hard_sigmoid"),
        ("relu", "sigmoid"),
        ("softmax", "softmax"),
        ("softplus", "tanh"),
        (None, None),
    ],
)
@pytest.mark.parametrize("use_bias", [True, False])
def test_activations_of_layers(
    library: Any, name: str, activation: str | None, recurrent_activation: str | None, use_bias: bool
) -> None:
    """Other activations than the default ones, hard_sigmoid in the meaning of its Keras, and layers without bias."""
    import tensorflow as tf

    kind, options = LAYERS[name]
    common: dict[str, Any] = {**options, "activation": activation, "use_bias": use_bias}
    if kind != "simple_rnn":
        common["recurrent_activation"] = recurrent_activation
    layer = getattr(library.layers, name.split()[0])(UNITS, dtype="float64", return_state=True, **common)
    x = 2 * np.random.default_rng(2).normal(size=(BATCH, STEPS, INPUTS))
    arrays = randomise(layer, x)
    expected = call(layer, x, None, None, tf.constant)
    spec = Recurrence(kind, "standard", UNITS, hard_sigmoid=meaning(library), **common)  # type: ignore[arg-type]
    output, last = forward(spec, arrays, x)
    for ours, theirs in zip([output, *last], expected, strict=True):
        close(ours, theirs)


CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"padding": "same", "kernel_size": (3, 2)},
    {"strides": 2, "padding": "same", "kernel_size": (2, 4)},
    {"strides": (1, 2), "kernel_size": (2, 3)},
    {"dilation_rate": 2, "kernel_size": 2},
    {"dilation_rate": (1, 3), "padding": "same", "recurrent_activation": "hard_sigmoid"},
    {"use_bias": False, "activation": "softmax"},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_conv_lstm_2d(library: Any, options: dict[str, Any]) -> None:
    """ConvLSTM2D with each padding, with strides, dilation, other activations, no bias, and a mask."""
    import tensorflow as tf

    options = {"kernel_size": 3, "recurrent_activation": "sigmoid", **options}
    layer = library.layers.ConvLSTM2D(2, return_state=True, return_sequences=True, dtype="float64", **options)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 3, 7, 8, 3))
    arrays = randomise(layer, x, 0.3)
    mask = np.array([[1, 1, 0], [0, 1, 1]], dtype=bool)
    spec = Recurrence("conv_lstm", "standard", 2, hard_sigmoid=meaning(library), **options)
    for kept in (None, mask):
        expected = call(layer, x, kept, None, tf.constant)
        output, last = forward(spec, arrays, x, mask=kept, return_sequences=True)
        for ours, theirs in zip([output, *last], expected, strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_lstm_of_other_ranks(library: Any, rank: int) -> None:
    """ConvLSTM1D and 3D, backwards, from an initial state, with the last output only."""
    import tensorflow as tf

    options: dict[str, Any] = {"kernel_size": 2, "strides": 2, "padding": "same", "recurrent_activation": "sigmoid"}
    layer = getattr(library.layers, f"ConvLSTM{rank}D")(
        2, return_state=True, go_backwards=True, dtype="float64", **options
    )
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 3, *[5, 4, 3][:rank], 3))
    arrays = randomise(layer, x, 0.3)
    states = [rng.normal(size=(2, *[3, 2, 2][:rank], 2)) for _ in range(2)]
    expected = call(layer, x, None, states, tf.constant)
    spec = Recurrence("conv_lstm", "standard", 2, rank=rank, **options)
    output, last = forward(spec, arrays, x, initial_state=states, go_backwards=True)
    for ours, theirs in zip([output, *last], expected, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("activation", ["tanh", "softmax"])
def test_conv_lstm_channels_first(activation: str) -> None:
    """Channels before space: the same numbers laid out otherwise, but softmax runs over the last axis of space."""
    tf = pytest.importorskip("tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("tf_keras")  # Keras 3 has no such convolution on a CPU
    options: dict[str, Any] = {
        "kernel_size": (2, 3),
        "data_format": "channels_first",
        "activation": activation,
        "recurrent_activation": "sigmoid",
    }
    layer = library.layers.ConvLSTM2D(2, return_state=True, dtype="float64", **options)
    x = np.random.default_rng(5).normal(size=(2, 3, 3, 5, 6))
    arrays = randomise(layer, x, 0.3)
    expected = call(layer, x, None, None, tf.constant)
    output, last = forward(Recurrence("conv_lstm", "standard", 2, **options), arrays, x)
    for ours, theirs in zip([output, *last], expected, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("name", sorted(KNOWN_ACTIVATIONS))
def test_activation_functions(library: Any, name: str) -> None:
    """Each named activation equals that of each Keras which knows the name, at its corners and far out as well."""
    import tensorflow as tf

    x = np.concatenate([np.linspace(-8, 8, 161), [-30.0, 30.0, -1e-3, 1e-3], np.arange(-6.0, 7.0)]).reshape(2, -1)
    try:
        theirs = library.activations.get(name)
    except ValueError:
        assert library.__name__ == "tf_keras", f"Keras 3 does not know {name}"
        pytest.skip("not in Keras 2")
    expected = np.asarray(theirs(tf.constant(x)))
    exact = {  # TensorFlow rounds a constant of these two to float32, even for float64 input
        "gelu": lambda: 0.5 * x * (1 + tf.math.erf(x / np.sqrt(2)).numpy()),
        "leaky_relu": lambda: np.maximum(x, 0.2 * x),
    }
    if name in exact:
        rounded, expected = expected, exact[name]()
        np.testing.assert_allclose(rounded, expected, rtol=0, atol=8 * float(np.finfo(np.float32).eps))
    np.testing.assert_allclose(activation_function(name, meaning(library))(x), expected, rtol=1e-12, atol=1e-12)


def test_every_activation_of_keras_is_known() -> None:
    """All activations that Keras 3 knows by name are there, but for three that nobody puts into a layer."""
    pytest.importorskip("tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras_names = pytest.importorskip("keras.src.activations").ALL_OBJECTS_DICT
    unknown = {name for name in keras_names if not is_known_activation(name)}
    # glu halves its input, threshold needs arguments, sparsemax sorts.
    assert unknown == {"glu", "threshold", "sparsemax"}


def test_unknown_activations_have_a_stand_in() -> None:
    """A custom activation gets a fixed smooth function of its own, elementwise, and is reported as unknown."""
    assert not is_known_activation("my_tanh") and is_known_activation(None) and is_known_activation("tanh")
    x = np.linspace(-3, 3, 50).reshape(2, 25)
    mine, other = activation_function("my_tanh"), activation_function("my_gate")
    np.testing.assert_array_equal(mine(x), activation_function("my_tanh")(x))
    np.testing.assert_array_equal(mine(x)[:, ::-1], mine(x[:, ::-1]))
    assert np.abs(mine(x) - other(x)).max() > 1e-3
    assert np.abs(mine(x) + mine(-x)).max() > 1e-2 and np.abs(mine(x) - mine(-x)).max() > 1e-2
    assert (np.diff(mine(x).ravel()) > 0).all() and np.ptp(np.diff(mine(x)[0])) > 1e-3


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_products_of_any_dtype(dtype: str) -> None:
    """Blocked products are those of the whole matrix cast to float64, also of transposed and sliced ones."""
    if dtype == "bfloat16":
        w = np.random.default_rng(0).normal(size=(700, 900)).astype(pytest.importorskip("ml_dtypes").bfloat16)
    else:
        w = np.random.default_rng(0).normal(size=(700, 900)).astype(dtype)
    x = np.random.default_rng(1).normal(size=(2, 3, 700))
    for matrix in (w, w[:, 100:400], np.asfortranarray(w)):
        expected = x @ matrix.astype(np.float64)
        np.testing.assert_allclose(dot(x, matrix), expected, rtol=0, atol=1e-11)
        np.testing.assert_allclose(dot_rows(x, matrix.T), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("layout", ["standard", "cudnn", "fused"])
def test_large_layers_stay_small(layout: Any) -> None:
    """A layer of 64 MB in float32 needs less than a third of that in working memory, and seconds, not minutes."""
    units = 1448
    shape = (units, 4 * units)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape[:: -1 if layout == "fused" else 1], dtype="float32") for _ in range(2)]
    arrays.append(rng.standard_normal((8 if layout == "cudnn" else 4) * units, dtype="float32"))
    x = rng.normal(size=(2, 3, units))
    size = sum(a.nbytes for a in arrays)
    assert size > 64e6
    tracemalloc.start()
    try:
        start = time.perf_counter()
        forward(Recurrence("lstm", layout, units), arrays, x)
        took = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 3
    assert took < 20  # a second at most where nothing else runs


def test_wrong_shapes_are_refused() -> None:
    """Arrays, input, mask and states that do not fit are errors; NumPy would broadcast some of them."""
    arrays = [np.zeros((4, 12)), np.zeros((3, 12)), np.zeros(12)]
    spec, x = Recurrence("lstm", "standard", 3), np.zeros((2, 5, 4))
    with pytest.raises(ValueError, match=r"expected \[\(4, 12\), \(3, 12\), \(12,\)\]"):
        forward(spec, [*arrays[:2], np.zeros(1)], x)
    with pytest.raises(ValueError, match="one time step or more"):
        forward(spec, arrays, x[:, :0])
    with pytest.raises(ValueError, match=r"\(batch, time, in\)"):
        forward(spec, arrays, x[..., None])
    with pytest.raises(ValueError, match="mask has shape"):
        forward(spec, arrays, x, mask=np.ones((2, 4)))
    with pytest.raises(ValueError, match="initial states"):
        forward(spec, arrays, x, initial_state=[np.zeros((2, 3))])
    with pytest.raises(ValueError, match="no definition for a conv_lstm in the layout 'fused'"):
        forward(Recurrence("conv_lstm", "fused", 3), arrays, x)
    conv = Recurrence("conv_lstm", "standard", 1, kernel_size=(3, 3, 3))
    with pytest.raises(ValueError, match="where 2 sizes are expected"):
        forward(conv, arrays, np.zeros((1, 2, 4, 4, 1)))
    with pytest.raises(ValueError, match="expected 5 axes for a ConvLSTM2D"):
        forward(conv, arrays, np.zeros((1, 2, 4, 4)))
    with pytest.raises(ValueError, match="neither 'valid' nor 'same'"):
        convolve(np.zeros((1, 4, 1)), np.zeros((2, 1, 1)), (1,), "full", (1,))
    with pytest.raises(ValueError, match="does not fit into 4"):
        convolve(np.zeros((1, 4, 1)), np.zeros((5, 1, 1)), (1,), "valid", (1,))


def test_overflow_is_silent() -> None:
    """A layer that overflows gives inf or NaN without a warning, for the caller to judge."""
    arrays = [np.full((1, 1), 1e300), np.full((1, 1), 1e300), np.zeros(1)]
    spec = Recurrence("simple_rnn", "keras1", 1, activation="exponential")
    assert not np.isfinite(forward(spec, arrays, np.ones((1, 3, 1)))[0]).all()
