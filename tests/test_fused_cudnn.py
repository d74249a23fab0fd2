"""The cuDNN path without a GPU: the op is replaced by one that does, on its buffer, what cuDNN documents.

`emulated` reads the weight buffer by NVIDIA's description of it (cudnnGetRNNWeightParams: for each layer and
direction the input matrix of each gate, then the recurrent matrices; then, again for each, the input biases and the
recurrent biases; LSTM i f c o, GRU r z h) and runs the formulas of cudnnRNNMode_t, with cuDNN's rules for sequence
lengths. So the packing, the treatment of masks and the gradients are tested here; that TensorFlow's op does what the
emulation does is tested on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lstm_swap.layers import FusedLSTM, cudnn, kernels
from tests.fused_grid import (
    FEATURES,
    FUSED,
    MASKS,
    ROWS,
    STEPS,
    UNITS,
    case_id,
    close,
    compare,
    covering,
    give_weights,
    make_twins,
    mask_of,
)
from tests.fused_stacks import Inferring, sequences, stack_twins, states_for


def read_buffer(params: Any, gates: int, features: int, units: int, parts: int, directions: int) -> list[list[Any]]:
    """For each layer and direction its input matrices, recurrent matrices, input biases and recurrent biases, one a
    gate, from cuDNN's buffer."""
    position = 0

    def take(*shape: int) -> list[Any]:
        nonlocal position
        taken = []
        for _ in range(gates):
            size = int(np.prod(shape))
            taken.append(tf.reshape(params[position : position + size], shape))
            position += size
        return taken

    widths = [features if part < directions else units * directions for part in range(parts)]
    matrices = [[take(units, width), take(units, units)] for width in widths]
    biases = [[take(units), take(units)] for _ in range(parts)]
    assert position == params.shape[0], "the buffer has another size"
    return [of_matrices + of_biases for of_matrices, of_biases in zip(matrices, biases)]


def emulated(
    *,
    input: Any,
    input_h: Any,
    input_c: Any,
    params: Any,
    sequence_lengths: Any,
    rnn_mode: str,
    direction: str,
    is_training: bool,
    time_major: bool,
) -> tuple[Any, ...]:
    """CudnnRNNV3, batch-major. States are declared (B, parts, u) and lie in memory as (parts, B, u), a part being one
    direction of one layer, forward before backward."""
    assert not time_major
    (parts, units), batch_size = input_h.shape[1:], tf.shape(input)[0]
    directions = {"unidirectional": 1, "bidirectional": 2}[direction]
    weights = read_buffer(params, 4 if rnn_mode == "lstm" else 3, input.shape[2], units, parts, directions)
    tf.debugging.assert_greater(sequence_lengths, 0, "cuDNN refuses an empty row")
    tf.debugging.assert_less_equal(sequence_lengths, input.shape[1], "cuDNN refuses more steps than there are")
    h = tf.unstack(tf.reshape(input_h, (parts, batch_size, units)))
    c = tf.unstack(tf.reshape(input_c, (parts, batch_size, units))) if rnn_mode == "lstm" else [None] * parts
    x = input
    for layer in range(parts // directions):
        outputs = []
        for part in range(layer * directions, (layer + 1) * directions):
            backward = part % directions == 1
            output, h[part], c[part] = _one_direction(
                rnn_mode, x, h[part], c[part], weights[part], sequence_lengths, backward
            )
            outputs.append(output)
        x = tf.concat(outputs, 2)
    results = [x, tf.reshape(tf.stack(h), (batch_size, parts, units))]
    results.append(tf.reshape(tf.stack(c), (batch_size, parts, units)) if rnn_mode == "lstm" else tf.zeros((), x.dtype))
    if not is_training:  # no gradient may be taken through it
        results = [_without_gradient(result) for result in results]
    return (*results, tf.zeros(()), tf.zeros((), tf.int8))


def _one_direction(
    rnn_mode: str, inputs: Any, h: Any, c: Any, weights: list[list[Any]], lengths: Any, backward: bool
) -> tuple[Any, Any, Any]:
    """One layer in one direction; backward from each row's last step, which its length says, to its first."""
    input_matrices, recurrent_matrices, input_biases, recurrent_biases = weights
    times = range(inputs.shape[1])
    outputs = {}
    for time in reversed(times) if backward else times:
        x = inputs[:, time]
        from_input = [tf.matmul(x, w, transpose_b=True) + b for w, b in zip(input_matrices, input_biases)]
        from_state = [tf.matmul(h, r, transpose_b=True) + b for r, b in zip(recurrent_matrices, recurrent_biases)]
        runs = (time < lengths)[:, tf.newaxis]
        if rnn_mode == "lstm":
            i, f, candidate, o = (a + b for a, b in zip(from_input, from_state))
            new_c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(candidate)
            new_h = tf.sigmoid(o) * tf.tanh(new_c)
            c = tf.where(runs, new_c, c)
        else:
            r, z = (tf.sigmoid(from_input[gate] + from_state[gate]) for gate in (0, 1))
            new_h = (1 - z) * tf.tanh(from_input[2] + r * from_state[2]) + z * h
        h = tf.where(runs, new_h, h)
        outputs[time] = tf.where(runs, new_h, tf.zeros_like(new_h))
    return tf.stack([outputs[time] for time in times], 1), h, c


@tf.custom_gradient
def _without_gradient(x: Any) -> Any:
    def gradient(*_: Any) -> Any:
        raise AssertionError("a gradient was taken through cuDNN's inference")

    return tf.identity(x), gradient


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Put the emulation in the op's place and let the layers believe in a GPU; gives is_training of each call."""
    calls: list[bool] = []

    def recording(**arguments: Any) -> tuple[Any, ...]:
        calls.append(arguments["is_training"])
        return emulated(**arguments)

    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", recording)
    monkeypatch.setattr(kernels, "current_device_has_cudnn", lambda: True)
    return calls


GRID = covering(
    {
        "kind": ["lstm", "gru"],
        "go_backwards": [False, True],
        "mask": list(MASKS),
        "initial_state": [False, True],
        "dtype": ["float32", "float64"],
        "return_sequences": [False, True],
        "zero_output_for_mask": [False, True],
        "training": [True, False],
    },
    strength=3,
    allowed=lambda **_: True,
)


@pytest.mark.parametrize("case", GRID, ids=case_id)
def test_cudnn_path_equals_the_standard_layer(case: dict[str, Any], calls: list[bool]) -> None:
    """Through cuDNN's buffer and sequence lengths, with any mask: outputs, states, gradients."""
    arguments = {name: case[name] for name in ("go_backwards", "return_sequences", "zero_output_for_mask", "dtype")}
    standard, fused = make_twins(case["kind"], "plain", return_state=True, **arguments)
    give_weights(case["kind"], standard, fused, (ROWS, STEPS, FEATURES))
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(ROWS, STEPS, FEATURES)), case["dtype"])
    states = [tf.constant(rng.normal(size=(ROWS, UNITS)), case["dtype"]) for _ in fused.state_size]
    mask = mask_of(case["mask"])
    # Eagerly the GPU's kernel is called at once; a traced inference would leave the choice to the device, a CPU here.
    if case["training"]:
        compare(case["kind"], standard, fused, x, states if case["initial_state"] else [], mask, "train")
        assert calls == [True]
    else:
        given = states if case["initial_state"] else []
        compare(case["kind"], Inferring(standard), Inferring(fused), x, given, mask, "eager")
        assert calls == [False, True]  # once for the outputs, once more for the gradient


STACKS = covering(
    {
        "kind": ["lstm", "gru"],
        "num_layers": [1, 2, 3],
        "bidirectional": [False, True],
        "merge_mode": ["concat", "sum", "ave", "mul", None],
        "mask": list(MASKS),
        "initial_state": [False, True],
        "return_sequences": [False, True],
        "return_state": [False, True],
        "zero_output_for_mask": [False, True],
        "training": [True, False],
    },
    strength=2,
    # without a second direction nothing is merged, and one layer in one direction is the grid above
    allowed=lambda num_layers, bidirectional, merge_mode, **_: (
        bidirectional or (num_layers > 1 and merge_mode == "concat")
    ),
)


@pytest.mark.parametrize("case", STACKS, ids=case_id)
def test_one_call_equals_a_stack_of_standard_layers(case: dict[str, Any], calls: list[bool]) -> None:
    """Several layers, and both directions, through one call of cuDNN: outputs, states, gradients."""
    arguments = {name: value for name, value in case.items() if name not in ("mask", "initial_state", "training")}
    standard, fused = stack_twins(**arguments, kernels={"gpu_inference": "cudnn", "gpu_training": "cudnn"})
    states = states_for(fused) if case["initial_state"] else []
    wrap = (lambda layer: layer) if case["training"] else Inferring
    compare(case["kind"], wrap(standard), wrap(fused), sequences(), states, mask_of(case["mask"]), "eager")
    assert calls == ([True] if case["training"] else [False, True])


@pytest.mark.parametrize("kind", FUSED)
def test_calls_of_a_stack(kind: str, calls: list[bool]) -> None:
    """Kernel "cudnn" is one call for a stack, "cudnn_layers" one for each layer and direction; the numbers agree."""
    for name, count in (("cudnn", 1), ("cudnn_layers", 3 * 2)):
        chosen = {"gpu_inference": name, "gpu_training": name}
        standard, fused = stack_twins(kind, kernels=chosen, num_layers=3, bidirectional=True, return_state=True)
        x, mask, states = sequences(), mask_of("empty row"), states_for(fused)
        fused(x, mask=mask, training=False)
        assert calls == [False] * count
        calls.clear()
        compare(kind, standard, fused, x, states, mask, "eager")
        assert calls == [True] * count
        calls.clear()


@pytest.mark.parametrize("kind", FUSED)
def test_stack_traced_for_any_batch(kind: str, calls: list[bool]) -> None:
    """Traced with the batch unknown, a training step of a stack is one call still, and right for every batch."""
    chosen = {"gpu_training": "cudnn"}
    settings = {"num_layers": 2, "bidirectional": True, "return_state": True, "return_sequences": True}
    standard, fused = stack_twins(kind, kernels=chosen, **settings)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, STEPS, FEATURES))])
    def run(x: Any) -> Any:
        return fused(x, training=True)

    for rows in (ROWS, 1):
        x = sequences(rows=rows)
        for actual, expected in zip(run(x), standard(x), strict=True):
            close(actual, expected, 1e-6)
    assert calls == [True]


@pytest.mark.parametrize("kind", FUSED)
def test_padding_gets_no_gradient(kind: str, calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that the mask leaves out get a gradient of exactly zero, even if cuDNN leaves rubbish in theirs."""
    inner = tf.raw_ops.CudnnRNNV3

    def with_rubbish(*, input: Any, sequence_lengths: Any, **arguments: Any) -> Any:
        padding = (tf.range(input.shape[1])[tf.newaxis] >= sequence_lengths[:, tf.newaxis])[:, :, tf.newaxis]

        @tf.custom_gradient
        def spoiled(x: Any) -> Any:  # as if cuDNN had not cleared the gradient of what it does not read
            return tf.identity(x), lambda upstream: tf.where(padding, tf.fill(tf.shape(x), np.float32(1e6)), upstream)

        return inner(input=spoiled(input), sequence_lengths=sequence_lengths, **arguments)

    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", with_rubbish)
    layer = FUSED[kind](UNITS, return_sequences=True)
    mask = mask_of("empty row")
    x = tf.constant(np.random.default_rng(0).normal(size=(ROWS, STEPS, FEATURES)), "float32")
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x, mask=mask, training=True) ** 2)
    gradient = np.asarray(tape.gradient(loss, x))
    assert not gradient[~mask].any()
    assert np.abs(gradient).max() < 100
    assert calls == [True]


def test_inference_gradient_on_a_gpu_is_chosen_by_device(calls: list[bool]) -> None:
    """In a graph of a GPU machine outputs and gradient hold both kernels; here the CPU's run, and are right."""
    standard, fused = make_twins("lstm", "plain", return_sequences=True)
    give_weights("lstm", standard, fused, (ROWS, STEPS, FEATURES))
    x = tf.constant(np.random.default_rng(0).normal(size=(ROWS, STEPS, FEATURES)), "float32")
    compare("lstm", standard, fused, x, [], mask_of("holes"), "infer")
    assert calls == [False, True]  # both were traced


@pytest.mark.parametrize("how", ["eager", "graph"])
def test_second_derivative_of_cudnn_is_an_error(how: str, calls: list[bool]) -> None:
    """cuDNN has no gradient of its gradient; at inference that is an error with the way out, not a crash."""
    layer = FusedLSTM(UNITS)

    def second(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(layer(x, training=False) ** 2)
            penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
        return outer.gradient(penalty, x)

    with pytest.raises(LookupError, match=r"standardize\(model, use_cudnn=False\)"):
        (second if how == "eager" else tf.function(second, autograph=False))(tf.ones((2, STEPS, FEATURES)))
    assert calls == [False, True]


def test_buffer_size() -> None:
    """The buffer has cudnnGetRNNWeightSpaceSize's number of elements: g u (n + u + 2), two bias sets."""
    for kind, gates in (("lstm", 4), ("gru", 3)):
        layer = FUSED[kind](UNITS)
        layer.build((None, None, FEATURES))
        size = cudnn.buffer(kind, [tf.constant(array) for array in layer.get_weights()]).shape[0]
        assert size == gates * UNITS * (FEATURES + UNITS + 2)


def test_current_device_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN is taken where ops go to a GPU: not under tf.device of a CPU, not without CUDA, not without a GPU."""
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr(kernels, "is_cuda_build", lambda: True)
    seen = []

    @tf.function(autograph=False)
    def traced() -> Any:
        seen.append(kernels.current_device_has_cudnn())
        with tf.device("/CPU:0"):
            seen.append(kernels.current_device_has_cudnn())
        with tf.device("/GPU:0"):
            seen.append(kernels.current_device_has_cudnn())
        return tf.zeros(())

    traced.get_concrete_function()
    assert seen == [True, False, True]
    assert not kernels.current_device_has_cudnn()  # eagerly, on this machine, ops go to the CPU whatever is listed
    monkeypatch.setattr(kernels, "is_cuda_build", lambda: False)
    traced.get_concrete_function()
    assert seen[3:] == [], "traced once only"
    with tf.Graph().as_default():
        assert not kernels.current_device_has_cudnn()
        monkeypatch.setattr(kernels, "is_cuda_build", lambda: True)
        assert kernels.current_device_has_cudnn()
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])
        assert not kernels.current_device_has_cudnn()


def test_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of a CUDA build forbids XLA; a GPU of another build is a foreign one."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["GPU:0"])
    for cuda in (True, False):
        monkeypatch.setattr(kernels, "is_cuda_build", lambda cuda=cuda: cuda)
        assert kernels.cuda_gpu_visible() is cuda
        assert kernels.foreign_gpu_visible() is not cuda
        assert FUSED["gru"](UNITS).supports_jit is not cuda


def test_emulation_of_known_numbers() -> None:
    """The emulation itself, on a buffer that says in which order it is read: one unit, one feature, one step."""
    weights = [0.1, 0.2, 0.3, 0.4] + [0.0] * 4 + [0.5, 0.6, 0.7, 0.8] + [0.0] * 4
    output, _, c, _, _ = emulated(
        input=tf.ones((1, 1, 1), tf.float64),
        input_h=tf.zeros((1, 1, 1), tf.float64),
        input_c=tf.ones((1, 1, 1), tf.float64),
        params=tf.constant(weights, tf.float64),
        sequence_lengths=tf.constant([1]),
        rnn_mode="lstm",
        direction="unidirectional",
        is_training=True,
        time_major=False,
    )
    i, f, o = (1 / (1 + np.exp(-z)) for z in (0.6, 0.8, 1.2))
    close(c, np.reshape(f + i * np.tanh(1.0), (1, 1, 1)), 1e-12)
    close(output, np.reshape(o * np.tanh(f + i * np.tanh(1.0)), (1, 1, 1)), 1e-12)
