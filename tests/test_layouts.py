"""The arrays of a layer in each layout: moved exactly, computing the same, and as Keras itself converts them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lstm_swap.weights import layouts
from lstm_swap.weights.reference import Recurrence, forward

LAYOUTS = ["standard", "cudnn", "fused"]
Arrays = list[np.ndarray[Any, Any]]


def arrays_of(kind: str, layout: str, inputs: int, units: int, seed: int = 0, dtype: str = "float64") -> Arrays:
    """Random arrays of a layer; the two halves of a bias differ."""
    rng = np.random.default_rng(seed)
    n = {"lstm": 4, "gru": 3}[kind]
    shapes: list[tuple[int, ...]] = [(inputs, n * units), (units, n * units)]
    if layout == "fused":
        shapes = [shape[::-1] for shape in shapes]
    if kind == "lstm":
        shapes.append((8 * units,) if layout == "cudnn" else (4 * units,))
    else:
        shapes.append((2, 3 * units) if layout == "standard" else (6 * units,))
    return [rng.normal(scale=0.5, size=shape).astype(dtype) for shape in shapes]


def output(kind: Any, layout: Any, arrays: Arrays, x: np.ndarray[Any, Any], units: int) -> np.ndarray[Any, Any]:
    return forward(Recurrence(kind, layout, units), arrays, x, return_sequences=True)[0]


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def tf_keras() -> Any:
    pytest.importorskip("tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tf_keras")


sizes = st.integers(1, 6)


@settings(deadline=None, max_examples=120)
@given(
    kind=st.sampled_from(["lstm", "gru"]),
    source=st.sampled_from(LAYOUTS),
    target=st.sampled_from(LAYOUTS),
    inputs=sizes,
    units=sizes,
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_swap_computes_the_same(
    kind: str, source: str, target: str, inputs: int, units: int, dtype: str, seed: int
) -> None:
    """A swapped layer computes the same, by definitions that know nothing of swaps, and so does one swapped back."""
    arrays = arrays_of(kind, source, inputs, units, seed, dtype)
    before = [a.copy() for a in arrays]
    x = np.random.default_rng(seed).normal(size=(2, 3, inputs))
    swapped = layouts.swap(kind, arrays, source, target)
    back = layouts.swap(kind, swapped, target, source)
    expected = output(kind, source, arrays, x, units)
    np.testing.assert_allclose(output(kind, target, swapped, x, units), expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(output(kind, source, back, x, units), expected, rtol=0, atol=1e-13)
    assert all(same_bits(a, b) for a, b in zip(arrays, before, strict=True)), "the input was changed"


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["lstm", "gru"]),
    source=st.sampled_from(LAYOUTS),
    target=st.sampled_from(LAYOUTS),
    inputs=sizes,
    units=sizes,
    dtype=st.sampled_from(["float16", "float32", "float64"]),
)
def test_what_is_only_moved_keeps_every_bit(
    kind: str, source: str, target: str, inputs: int, units: int, dtype: str
) -> None:
    """There and back gives the same bits, NaN and -0.0 included; only an LSTM's cuDNN bias is computed."""
    arrays = arrays_of(kind, source, inputs, units, 1, dtype)
    arrays[0].flat[0] = np.nan
    arrays[1].flat[-1] = -0.0
    swapped = layouts.swap(kind, arrays, source, target)
    back = layouts.swap(kind, swapped, target, source)
    computed = kind == "lstm" and source != target and "cudnn" in (source, target)
    assert [a.dtype for a in swapped[:2]] == [np.dtype(dtype)] * 2
    assert swapped[2].dtype == np.dtype("float64" if computed else dtype)
    assert all(same_bits(a, b) for a, b in zip(arrays[: 2 if computed else 3], back, strict=False))


def test_a_split_bias_loses_nothing() -> None:
    """Halving a float32 bias and adding the halves again, both in float64, gives the very number back."""
    arrays = arrays_of("lstm", "standard", 3, 5, dtype="float32")
    cudnn = layouts.swap("lstm", arrays, "standard", "cudnn")
    assert np.array_equal(layouts.swap("lstm", cudnn, "cudnn", "standard")[2], arrays[2].astype(np.float64))


def test_the_sum_of_a_half_precision_bias_is_not_rounded() -> None:
    """The sum of two float16 halves is exact, though it has more digits than float16 holds."""
    arrays = arrays_of("lstm", "cudnn", 1, 1, dtype="float16")
    arrays[2][:] = [1, 1, 1, 1, 2**-12, 2**-12, 2**-12, 2**-12]
    assert layouts.swap("lstm", arrays, "cudnn", "standard")[2].tolist() == [1 + 2**-12] * 4


def test_counted_kernels() -> None:
    """Each number of a kernel 0, 1, 2, ... stands where the table of layouts puts it."""
    kernel = np.arange(2 * 9).reshape(2, 9).astype("float32")  # 2 inputs, 3 units: z is columns 0-2, r 3-5, h 6-8
    arrays = [kernel, np.arange(27, dtype="float32").reshape(3, 9), np.arange(18, dtype="float32").reshape(2, 9)]
    fused = layouts.swap("gru", arrays, "standard", "fused")
    r, z, h = [[3, 12], [4, 13], [5, 14]], [[0, 9], [1, 10], [2, 11]], [[6, 15], [7, 16], [8, 17]]
    assert fused[0].tolist() == r + z + h
    assert fused[1][0].tolist() == [3, 12, 21]
    assert fused[2].tolist() == [3, 4, 5, 0, 1, 2, 6, 7, 8, 12, 13, 14, 9, 10, 11, 15, 16, 17]
    cudnn = layouts.swap("gru", arrays, "standard", "cudnn")
    # Block z of cuDNN, read row by row, is the matrix of z from above.
    assert cudnn[0][:, :3].tolist() == [[0, 9, 1], [10, 2, 11]]
    assert cudnn[1][:, :3].tolist() == kernel_block(arrays[1], 0, 3).T.tolist()
    assert cudnn[2].tolist() == list(range(18))


def kernel_block(kernel: np.ndarray[Any, Any], gate: int, units: int) -> np.ndarray[Any, Any]:
    return kernel[:, gate * units : (gate + 1) * units]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("target", ["cudnn", "fused"])
def test_a_missing_bias_becomes_zeros(kind: str, target: str) -> None:
    """A standard layer without bias gets zeros of the kernel's dtype in forms that have one, and none in its own."""
    arrays = arrays_of(kind, "standard", 3, 2, dtype="float16")[:2]
    swapped = layouts.swap(kind, arrays, "standard", target)
    full = arrays_of(kind, target, 3, 2)
    assert swapped[2].shape == full[2].shape and swapped[2].dtype == np.float16 and not swapped[2].any()
    assert len(layouts.swap(kind, arrays, "standard", "standard")) == 2
    with pytest.raises(ValueError, match="2 arrays found, expected 3"):
        layouts.swap(kind, swapped[:2], target, "standard")


def test_swap_refuses_what_it_does_not_know() -> None:
    """Unknown kinds and layouts, reset_after=False and wrong shapes are errors that say what was expected."""
    gru = arrays_of("gru", "standard", 3, 2)
    with pytest.raises(ValueError, match="simple_rnn"):
        layouts.swap("simple_rnn", gru, "standard", "fused")
    with pytest.raises(ValueError, match="'keras1'"):
        layouts.swap("gru", gru, "standard", "keras1")
    with pytest.raises(ValueError, match=r"bias has shape \(6,\), expected \(2, 6\)"):
        layouts.swap("gru", [*gru[:2], gru[2][0]], "standard", "cudnn")
    with pytest.raises(ValueError, match=r"kernel has shape \(6, 3\), expected \(any, 6\)"):
        layouts.swap("gru", [gru[0].T, *gru[1:]], "standard", "cudnn")


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", ["standard", "cudnn"])
def test_equal_to_the_conversion_of_keras_2(tf_keras: Any, kind: str, dtype: str, source: str) -> None:
    """`swap`, rounded to the file's dtype, equals what tf_keras does when it loads the other class, bit for bit."""
    from tf_keras.src.layers.rnn.cudnn_gru import CuDNNGRU
    from tf_keras.src.layers.rnn.cudnn_lstm import CuDNNLSTM
    from tf_keras.src.saving.legacy.hdf5_format import preprocess_weights_for_loading

    classes = {
        ("lstm", "standard"): tf_keras.layers.LSTM,
        ("lstm", "cudnn"): CuDNNLSTM,
        ("gru", "standard"): tf_keras.layers.GRU,
        ("gru", "cudnn"): CuDNNGRU,
    }
    target = "cudnn" if source == "standard" else "standard"
    for inputs, units in [(1, 1), (3, 5), (7, 2), (4, 4)]:
        arrays = arrays_of(kind, source, inputs, units, dtype=dtype)
        theirs = preprocess_weights_for_loading(classes[kind, target](units), [a.copy() for a in arrays])
        ours = [a.astype(dtype) for a in layouts.swap(kind, arrays, source, target)]
        assert all(same_bits(a, np.asarray(b)) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_fused_arrays_are_what_keras_gives_to_cudnn(tf_keras: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused arrays, laid end to end, are what Keras 2's GPU path and CuDNN class hand to the cuDNN operation."""
    import tensorflow as tf
    from tf_keras.src.layers.rnn import cudnn_gru, cudnn_lstm, gru, lstm

    class ReachedError(Exception):
        pass

    seen: list[np.ndarray[Any, Any]] = []

    def capture(**kwargs: Any) -> None:
        seen.append(kwargs["params"].numpy())
        raise ReachedError

    for module in (cudnn_gru, cudnn_lstm, gru, lstm):
        monkeypatch.setattr(module.tf.raw_ops, "CudnnRNN", capture)
        monkeypatch.setattr(module.tf.raw_ops, "CudnnRNNV3", capture)
    inputs, units = 3, 5
    standard = arrays_of(kind, "standard", inputs, units, dtype="float32")
    x, h = tf.zeros((2, 4, inputs)), tf.zeros((2, units))
    common = {"mask": None, "time_major": False, "go_backwards": False, "sequence_lengths": None}
    names = ("kernel", "recurrent_kernel", "bias")
    kwargs = {name: tf.constant(a) for name, a in zip(names, standard, strict=True)}
    run, states = (lstm.gpu_lstm, (h, h)) if kind == "lstm" else (gru.gpu_gru, (h,))
    with pytest.raises(ReachedError):
        run(x, *states, **kwargs, **common, return_sequences=True)
    layer = cudnn_lstm.CuDNNLSTM(units) if kind == "lstm" else cudnn_gru.CuDNNGRU(units)
    layer.build((None, None, inputs))
    layer.set_weights([a.astype("float32") for a in layouts.swap(kind, standard, "standard", "cudnn")])
    with pytest.raises(ReachedError):
        layer._process_batch(x, [h, h])
    fused = layouts.swap(kind, standard, "standard", "fused")
    kernels = np.concatenate([fused[0].ravel(), fused[1].ravel()])
    assert len(seen) == 2
    for params in seen:
        assert np.array_equal(params[: len(kernels)], kernels)
        bias = params[len(kernels) :]
        if kind == "lstm":  # only the sum of the two is defined
            np.testing.assert_array_equal(bias.reshape(2, -1).sum(axis=0), fused[2])
        else:
            assert np.array_equal(bias, fused[2])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_slots_follow_their_arrays(kind: str, source: str, target: str) -> None:
    """Slots move like their arrays; a split bias takes the slot twice, a summed one that of a half."""
    slots = arrays_of(kind, source, 3, 2, dtype="float32")
    moved = layouts.swap_slots(kind, slots, source, target)
    weights = layouts.swap(kind, slots, source, target)
    assert all(same_bits(a, b) for a, b in zip(moved[:2], weights[:2], strict=True))
    if kind == "gru" or source == target or "cudnn" not in (source, target):
        assert same_bits(moved[2], weights[2])
    elif target == "cudnn":
        assert same_bits(moved[2], np.concatenate([slots[2], slots[2]]))
    else:
        assert same_bits(moved[2], slots[2][:8])


def test_slots_of_a_split_bias_are_those_of_training(tf_keras: Any) -> None:
    """Each half of a split bias has the gradient of the sum: momentum moved by a swap is what it would have been."""
    import tensorflow as tf

    units, rate = 2, 0.9
    standard = arrays_of("lstm", "standard", 3, units)
    cudnn = layouts.swap("lstm", standard, "standard", "cudnn")
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 3)))

    def gradient(bias: Any, summed: Any) -> np.ndarray[Any, Any]:
        layer = tf_keras.layers.LSTMCell(units, dtype="float64")
        layer.build((None, 3))
        with tf.GradientTape() as tape:
            layer.kernel, layer.recurrent_kernel = tf.constant(standard[0]), tf.constant(standard[1])
            variable = tf.Variable(bias)
            layer.bias = summed(variable)
            h = c = tf.zeros((2, units), dtype="float64")
            for t in range(4):
                h, (_, c) = layer(x[:, t], [h, c])
            loss = tf.reduce_sum(h * h)
        return np.asarray(tape.gradient(loss, variable))

    momentum = rate * gradient(standard[2], lambda b: b)
    split = rate * gradient(cudnn[2], lambda b: b[: 4 * units] + b[4 * units :])
    moved = layouts.swap_slots("lstm", [standard[0], standard[1], momentum], "standard", "cudnn")
    np.testing.assert_allclose(moved[2], split, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("kind", "gates", "reset_after"), [("lstm", 4, True), ("gru", 3, False)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_keras1_arrays(tf_keras: Any, kind: Any, gates: int, reset_after: bool, dtype: str) -> None:
    """An array a gate joins to the three of tf_keras's own conversion, computes the same, and splits back exactly."""
    from tf_keras.src.saving.legacy.hdf5_format import preprocess_weights_for_loading

    inputs, units = 3, 2
    rng = np.random.default_rng(3)
    old = [rng.normal(size=s).astype(dtype) for _ in range(gates) for s in [(inputs, units), (units, units), (units,)]]
    merged = layouts.merge_keras1(kind, old)
    layer = tf_keras.layers.LSTM(units) if kind == "lstm" else tf_keras.layers.GRU(units, reset_after=False)
    theirs = preprocess_weights_for_loading(layer, list(old), original_keras_version="1")
    assert all(same_bits(a, b) for a, b in zip(merged, theirs, strict=True))
    assert all(same_bits(a, b) for a, b in zip(layouts.split_keras1(kind, merged), old, strict=True))
    x = rng.normal(size=(2, 4, inputs))
    new = forward(Recurrence(kind, "standard", units, reset_after=reset_after), merged, x)[0]
    np.testing.assert_allclose(new, forward(Recurrence(kind, "keras1", units), old, x)[0], rtol=0, atol=1e-14)


def test_keras1_convolutions() -> None:
    """The twelve arrays of a Keras 1 ConvLSTM2D join along their filters, compute the same, and split back."""
    rng = np.random.default_rng(4)
    old = [rng.normal(size=s, scale=0.3) for _ in range(4) for s in [(3, 3, 2, 5), (3, 3, 5, 5), (5,)]]
    merged = layouts.merge_keras1("conv_lstm", old)
    assert [a.shape for a in merged] == [(3, 3, 2, 20), (3, 3, 5, 20), (20,)]
    x = rng.normal(size=(1, 3, 6, 6, 2))
    new = forward(Recurrence("conv_lstm", "standard", 5), merged, x)[0]
    np.testing.assert_allclose(new, forward(Recurrence("conv_lstm", "keras1", 5), old, x)[0], rtol=0, atol=1e-14)
    assert all(same_bits(a, b) for a, b in zip(layouts.split_keras1("conv_lstm", merged), old, strict=True))


def test_keras1_errors() -> None:
    """A wrong number of arrays, a kind without such arrays and a GRU with two biases are refused."""
    with pytest.raises(ValueError, match="12 arrays, found 9"):
        layouts.merge_keras1("lstm", [np.zeros(1)] * 9)
    with pytest.raises(ValueError, match="simple_rnn"):
        layouts.merge_keras1("simple_rnn", [np.zeros(1)] * 3)
    with pytest.raises(ValueError, match="found 2"):
        layouts.split_keras1("lstm", [np.zeros(4)] * 2)
    with pytest.raises(ValueError, match="reset_after"):
        layouts.split_keras1("gru", arrays_of("gru", "standard", 3, 2))


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize(("kind", "reset_after"), [("lstm", True), ("gru", True), ("gru", False), ("conv_lstm", True)])
def test_scaled_gates_carry_hard_sigmoid_over(kind: Any, reset_after: bool, use_bias: bool) -> None:
    """Gates times 1.2 make Keras 3's hard_sigmoid compute what Keras 2's did, with the candidate untouched."""
    if kind == "conv_lstm":
        rng = np.random.default_rng(5)
        arrays = [rng.normal(size=s) for s in [(3, 3, 2, 8), (3, 3, 2, 8), (8,)]]
        x = rng.normal(size=(2, 3, 5, 5, 2))
    else:
        arrays = [3 * a for a in arrays_of(kind, "standard", 3, 2)]  # far enough to meet the corners
        if not reset_after:
            arrays[2] = arrays[2][0]
        x = np.random.default_rng(6).normal(size=(2, 5, 3))
    arrays = arrays[: 2 + use_bias]
    common: dict[str, Any] = {
        "units": 2,
        "use_bias": use_bias,
        "reset_after": reset_after,
        "recurrent_activation": "hard_sigmoid",
    }
    old = forward(Recurrence(kind, "standard", hard_sigmoid="keras2", **common), arrays, x)[0]
    scaled = layouts.scale_gates(kind, arrays, 1.2)
    new = forward(Recurrence(kind, "standard", hard_sigmoid="keras3", **common), scaled, x)[0]
    unscaled = forward(Recurrence(kind, "standard", hard_sigmoid="keras3", **common), arrays, x)[0]
    np.testing.assert_allclose(new, old, rtol=0, atol=1e-13)
    assert np.abs(unscaled - old).max() > 1e-3


@pytest.mark.parametrize("kind", ["gru", "simple_rnn"])
def test_scaled_candidate_carries_hard_sigmoid_over(kind: Any) -> None:
    """Where nothing else uses the candidate's activation, it may be a hard_sigmoid too."""
    rng = np.random.default_rng(7)
    arrays = (
        arrays_of("gru", "standard", 3, 2) if kind == "gru" else [rng.normal(size=s) for s in [(3, 2), (2, 2), (2,)]]
    )
    x = 3 * rng.normal(size=(2, 5, 3))
    common: dict[str, Any] = {"units": 2, "activation": "hard_sigmoid", "recurrent_activation": "hard_sigmoid"}
    old = forward(Recurrence(kind, "standard", hard_sigmoid="keras2", **common), arrays, x)[0]
    scaled = layouts.scale_gates(kind, arrays, 1.2, candidate=True)
    new = forward(Recurrence(kind, "standard", hard_sigmoid="keras3", **common), scaled, x)[0]
    np.testing.assert_allclose(new, old, rtol=0, atol=1e-13)


def test_scaling_touches_only_the_named_columns() -> None:
    """Gates and candidate are chosen apart; results are float64 and the input stays as it was."""
    lstm = [np.ones((2, 8), "float16"), np.ones((2, 8), "float16"), np.ones(8, "float16")]
    gates = [3, 3, 3, 3, 1, 1, 3, 3]
    for scaled in layouts.scale_gates("lstm", lstm, 3.0):
        assert scaled.dtype == np.float64 and np.atleast_2d(scaled).tolist() == [gates] * len(np.atleast_2d(scaled))
    candidate = layouts.scale_gates("lstm", lstm, 3.0, gates=False, candidate=True)[2]
    assert candidate.tolist() == [1, 1, 1, 1, 3, 3, 1, 1]
    assert layouts.scale_gates("gru", [np.ones((1, 3))] * 2 + [np.ones((2, 3))], 3.0)[2].tolist() == [[3, 3, 1]] * 2
    assert layouts.scale_gates("dense", [np.ones((1, 2)), np.ones(2)], 3.0, candidate=True)[1].tolist() == [3, 3]
    assert layouts.scale_gates("dense", [np.ones((1, 2)), np.ones(2)], 3.0)[0].tolist() == [[1, 1]]
    assert all((a == 1).all() for a in lstm)
    with pytest.raises(ValueError, match="unknown kind 'other'"):
        layouts.scale_gates("other", lstm, 3.0)
    with pytest.raises(ValueError, match="found 3 arrays"):
        layouts.scale_gates("dense", lstm, 3.0)


@settings(deadline=None, max_examples=80)
@given(kind=st.sampled_from(["lstm", "gru"]), layout=st.sampled_from(LAYOUTS), inputs=st.integers(1, 40), units=sizes)
def test_layout_is_told_from_shapes(kind: str, layout: str, inputs: int, units: int) -> None:
    """Kind and layout follow from the shapes, however many inputs there are."""
    arrays = arrays_of(kind, layout, inputs, units)
    assert layouts.bias_layout(arrays) == (kind, layout)
    assert layouts.check_shapes(kind, layout, units, arrays, True, True) is None


def test_shapes_that_tell_nothing() -> None:
    """Contradictory shapes, other layers and a GRU without bias give None; reset_after=False is told apart."""
    lstm, gru = arrays_of("lstm", "standard", 3, 2), arrays_of("gru", "standard", 3, 2)
    assert layouts.bias_layout([*gru[:2], gru[2][0]]) == ("gru", "reset_after_false")
    assert layouts.bias_layout(lstm[:2]) == ("lstm", "standard")
    assert layouts.bias_layout(gru[:2]) is None
    assert layouts.bias_layout([*lstm[:2], np.zeros(9)]) is None
    assert layouts.bias_layout([lstm[0][:, :7], *lstm[1:]]) is None
    assert layouts.bias_layout([*lstm[:2], gru[2]]) is None
    assert layouts.bias_layout([np.zeros((3, 2)), np.zeros((2, 2)), np.zeros(2)]) is None
    assert layouts.bias_layout([np.zeros((3, 2)), np.zeros(2)]) is None
    assert layouts.bias_layout(lstm[:1]) is None


def test_messages_on_shapes() -> None:
    """The first array that does not fit is named, with what it has and what was expected."""
    lstm = arrays_of("lstm", "standard", 3, 8)
    check = layouts.check_shapes
    assert check("lstm", "cudnn", 8, lstm, True, True) == "bias has shape (32,), expected (64,)"
    assert check("lstm", "standard", 7, lstm, True, True) == "kernel has shape (3, 32), expected (any, 28)"
    assert check("lstm", "standard", 8, lstm, False, True) == "3 arrays found, expected 2 (kernel, recurrent_kernel)"
    assert check("lstm", "keras1", 8, lstm, True, True) == "3 arrays found, expected 12 (W_i, U_i, b_i, W_c, ...)"
    assert check("gru", "standard", 8, lstm[:1], False, True) == "1 array found, expected 2 (kernel, recurrent_kernel)"
    gru = arrays_of("gru", "standard", 3, 2)
    assert check("gru", "standard", 2, gru, True, False) == "bias has shape (2, 6), expected (6,)"
    rnn = [np.zeros((3, 2)), np.zeros((2, 2)), np.zeros(2)]
    assert check("simple_rnn", "standard", 2, rnn, True, True) is None
    assert check("simple_rnn", "keras1", 2, rnn, True, True) is None
    conv = [np.zeros((3, 3, 2, 8)), np.zeros((3, 1, 2, 8)), np.zeros(8)]
    message = "recurrent_kernel has shape (3, 1, 2, 8), expected (3, 3, 2, 8)"
    assert check("conv_lstm", "standard", 2, conv, True, True) == message
    assert check("conv_lstm", "standard", 2, [conv[0], conv[0], conv[2]], True, True) is None
    assert "expected 3" in str(check("conv_lstm", "standard", 2, [], True, True))
    with pytest.raises(ValueError, match="no layout 'fused'"):
        check("conv_lstm", "fused", 2, conv, True, True)
    with pytest.raises(ValueError, match="unknown layout 'torch'"):
        check("lstm", "torch", 2, lstm, True, True)
    with pytest.raises(ValueError, match="unknown kind 'rnn'"):
        check("rnn", "standard", 2, lstm, True, True)
