"""On a GPU: what plain Keras exports there runs, once rewritten, without a GPU and with one, to equal numbers.

Run with `LSTM_SWAP_GPU=1 pytest -m gpu tests/test_gpu_saved_model.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lstm_swap import saved_model
from lstm_swap.saved_models import proof, rewriting
from tests.cudnn_nodes import LENGTHS, NODES, TIME, Node
from tests.gpu_shaped import Arrays, close, pack, randomize, run_fresh

pytestmark = pytest.mark.gpu

L = keras.layers


def _sequential(*layers: Any, shape: tuple[int | None, ...] = (9, 5), dtype: str = "float32") -> Any:
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers])


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "lstm": (lambda: _sequential(L.LSTM(16), L.Dense(2)), "float32"),
    "gru": (lambda: _sequential(L.GRU(16, return_sequences=True), L.GRU(8, go_backwards=True)), "float32"),
    "bidirectional": (lambda: _sequential(L.Bidirectional(L.LSTM(8, return_sequences=True)), L.LSTM(4)), "float32"),
    "masked": (
        lambda: _sequential(L.Embedding(9, 5, mask_zero=True), L.Bidirectional(L.GRU(6)), shape=(None,), dtype="int32"),
        "float32",
    ),
    "float16": (lambda: _sequential(L.LSTM(8, dtype="float16"), dtype="float16"), "float16"),
    "bfloat16": (lambda: _sequential(L.LSTM(8, dtype="mixed_bfloat16"), L.Dense(2, dtype="float32")), "bfloat16"),
    "float64": (lambda: _sequential(L.GRU(8, dtype="float64"), dtype="float64"), "float64"),
}


def _plain_numbers(model: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The model on the CPU, without cuDNN."""
    for layer in model._flatten_layers():
        if hasattr(layer, "use_cudnn"):
            layer.use_cudnn = False
    with tf.device("/CPU:0"):
        return np.asarray(tf.cast(model(x, training=False), tf.float64))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each of MODELS exported on this GPU, rewritten to both forms, and run on the CPU and on the GPU."""
    assert tf.config.list_physical_devices("GPU"), "TensorFlow sees no GPU"
    work = tmp_path_factory.mktemp("gpu")
    found: dict[str, dict[str, Any]] = {}
    for name, (build, _) in MODELS.items():
        model = build()
        randomize(model)
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (3, 9, 5)).astype(model.inputs[0].dtype)
        if name == "masked":
            x = np.array([[3, 1, 4, 1, 5], [2, 7, 0, 0, 0], [8, 2, 8, 0, 0]], dtype=np.int32)
        model.export(str(work / name), verbose=False)
        results = {to: saved_model.rewrite(work / name, work / f"{name}.{to}", to=to) for to in ("standard", "auto")}
        given = {model.inputs[0].name: x}
        found[name] = {"folder": work / name, "results": results, "inputs": given, "plain": _plain_numbers(model, x)}
    for gpu in (False, True):
        jobs, keys = [], []
        for name, entry in found.items():
            forms = {"standard": work / f"{name}.standard", "auto": work / f"{name}.auto"}
            if gpu:
                forms["exported"] = work / name
            for form, folder in forms.items():
                jobs.append((folder, [("serving_default", entry["inputs"])]))
                keys.append((name, form))
        for (name, form), (outputs,) in zip(keys, run_fresh(jobs, work / f"runs-{gpu}", gpu=gpu), strict=True):
            (found[name][form, "gpu" if gpu else "cpu"],) = outputs.values()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_exports_run_everywhere(exported: dict[str, dict[str, Any]], name: str) -> None:
    """The untouched export on the GPU, both rewritten forms on the GPU and on the CPU, and plain Keras agree."""
    entry, dtype = exported[name], MODELS[name][1]
    assert saved_model.summarize(entry["folder"]).needs_gpu
    for to in ("standard", "auto"):
        assert entry["results"][to].nodes
        assert not saved_model.summarize(entry["results"][to].output).needs_gpu
        for device in ("cpu", "gpu"):
            close(entry[to, device], entry["plain"], dtype)
            close(entry[to, device], entry["exported", "gpu"], dtype)


def _cudnn_numbers(nodes: dict[str, Node], work: Path) -> dict[str, Arrays]:
    """What cuDNN itself computes for `nodes`, on the GPU."""
    module = tf.Module()
    module.functions = {name: node.signature() for name, node in nodes.items()}
    tf.saved_model.save(module, str(work / "model"), signatures=module.functions)
    calls = [(name, node.inputs()) for name, node in nodes.items()]
    return dict(zip(nodes, run_fresh([(work / "model", calls)], work / "runs", gpu=True)[0], strict=True))


@pytest.mark.parametrize("name", [name for name, node in NODES.items() if node.op == "CudnnRNNV3"])
def test_cudnn_computes_what_the_portable_form_does(name: str, tmp_path: Path) -> None:
    """cuDNN's own numbers for every mode, layout and dtype are those that the portable form is tested against."""
    node = NODES[name]
    got = _cudnn_numbers({name: node}, tmp_path)[name]
    keys = ("output", "output_h", "output_c") if node.mode == "lstm" else ("output", "output_h")
    if node.time_major:  # there cuDNN leaves what lies past a row's length as it finds it
        got["output"] = np.where(np.arange(TIME)[:, None, None] < LENGTHS[:, None], got["output"], 0)
    for key, wanted in zip(keys, node.expected(), strict=False):
        close(got[key], wanted, node.dtype)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("directions", [1, 2])
def test_parameter_buffer(mode: str, directions: int) -> None:
    """cuDNN's buffer is its matrices one behind the other, then its biases: converting it is concatenating."""
    node = Node(mode=mode, layers=2, directions=directions)
    buffer = pack(mode, node.weights()).astype(np.float32)
    how = {"rnn_mode": mode, "direction": ("unidirectional", "bidirectional")[directions - 1]}
    sizes = {"num_layers": 2, "num_units": 3, "input_size": 4}
    count = 2 * {"lstm": 4, "gru": 3}.get(mode, 1) * 2 * directions
    with tf.device("/GPU:0"):
        size = tf.raw_ops.CudnnRNNParamsSize(**sizes, **how, T=tf.float32, S=tf.int32)
        try:
            parts = tf.raw_ops.CudnnRNNParamsToCanonicalV2(
                **sizes, **how, params=tf.constant(buffer), num_params_weights=count, num_params_biases=count
            )
        except tf.errors.InvalidArgumentError as problem:
            if "Number of params mismatch. Expected 0" not in str(problem):
                raise
            pytest.skip("TensorFlow takes parameters apart with cuDNN 8 only")
        joined = tf.raw_ops.CudnnRNNCanonicalToParamsV2(**sizes, **how, weights=parts.weights, biases=parts.biases)
    assert size.numpy().tolist() == [buffer.size]
    flat = np.concatenate([array.numpy().ravel() for array in (*parts.weights, *parts.biases)])
    np.testing.assert_array_equal(flat, buffer)
    np.testing.assert_array_equal(joined.numpy(), buffer)


def test_auto_runs_cudnn_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a portable branch that gives zeros, the GPU still gives the right numbers, and the CPU gives the zeros."""

    def zeros(node: Any, x: Any, h: Any, c: Any, *rest: Any) -> tuple[Any, ...]:
        shape = tf.concat([tf.shape(x)[:2], [node.units]], 0)
        return tf.zeros(shape), tf.zeros_like(h), tf.zeros_like(c), tf.zeros((0,)), tf.zeros((0,), tf.int8)

    monkeypatch.setattr(rewriting, "run_portable", zeros)
    monkeypatch.setattr(proof, "prove", lambda *args: 0.0)
    model = _sequential(L.LSTM(8))
    randomize(model)
    x = np.random.default_rng(0).uniform(-1, 1, (3, 9, 5)).astype(np.float32)
    model.export(str(tmp_path / "model"), verbose=False)
    rewriting.rewrite(tmp_path / "model", tmp_path / "out", to="auto", run_signatures=False)
    job = [(tmp_path / "out", [("serving_default", {model.inputs[0].name: x})])]
    ((on_gpu,),) = run_fresh(job, tmp_path / "gpu", gpu=True)
    ((on_cpu,),) = run_fresh(job, tmp_path / "cpu")
    close(*on_gpu.values(), _plain_numbers(model, x))
    assert not np.any([*on_cpu.values()])
