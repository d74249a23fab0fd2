"""SavedModels as a GPU machine writes them, made on a CPU, and a process of its own that runs them there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

#: Times max(1, max|reference|): the design's tolerances.
TOLERANCES = {"float32": 1e-6, "float64": 1e-10, "float16": 1e-2, "bfloat16": 5e-2}

#: Loads folders without Keras or this package and calls their signatures, some more than once.
_RUNNER = """
import json, sys
import numpy as np
import tensorflow as tf
jobs = json.loads(sys.argv[1])
assert bool(tf.config.list_physical_devices("GPU")) == (sys.argv[2] == "gpu")
for job in jobs:
    loaded = tf.saved_model.load(job["folder"])
    for number, call in enumerate(job["calls"]):
        with np.load(call["inputs"], allow_pickle=False) as inputs:
            given = {name: tf.constant(inputs[name]) for name in inputs.files}
        result = loaded.signatures[call["signature"]](**given)
        np.savez(call["outputs"], **{n: np.asarray(tf.cast(v, tf.float64) if v.dtype == tf.bfloat16 else v)
                                     for n, v in result.items()})
assert "lstm_swap" not in sys.modules
"""


@contextmanager
def gpu_build() -> Iterator[None]:
    """Keras 3 traces as it does in a TensorFlow built with CUDA that sees a GPU: LSTM and GRU become CudnnRNNV3."""
    import tensorflow as tf

    module = importlib.import_module("keras.src.backend.tensorflow.rnn")
    info = {**tf.sysconfig.get_build_info(), "is_cuda_build": True, "is_rocm_build": False}
    before = module._is_gpu_available, tf.sysconfig.get_build_info
    module._is_gpu_available, tf.sysconfig.get_build_info = (lambda: True), (lambda: info)
    try:
        yield
    finally:
        module._is_gpu_available, tf.sysconfig.get_build_info = before


def export(model: Any, folder: Path) -> Path:
    """`model.export` on a machine with a GPU."""
    with gpu_build():
        model.export(str(folder), verbose=False)
    return folder


def randomize(model: Any, seed: int = 0) -> None:
    """Give every float weight random numbers: fresh biases are zeros, which would hide a wrong place."""
    rng = np.random.default_rng(seed)
    weights = [
        rng.uniform(-0.8, 0.8, w.shape).astype(w.dtype) if w.dtype.kind == "f" else w for w in model.get_weights()
    ]
    model.set_weights(weights)


def run_fresh(
    jobs: Sequence[tuple[Path, Sequence[tuple[str, Arrays]]]], work: Path, gpu: bool = False
) -> list[list[Arrays]]:
    """Run folders in a new process that sees no GPU, or with `gpu` the first one, in full float32.

    jobs: folder and the calls of one loading of it: signature, inputs by name.

    Returns:
        For each folder and call the outputs by name.
    """
    work.mkdir(parents=True, exist_ok=True)
    asked = []
    for number, (folder, calls) in enumerate(jobs):
        entries = []
        for step, (signature, inputs) in enumerate(calls):
            given, taken = work / f"in-{number}-{step}.npz", work / f"out-{number}-{step}.npz"
            np.savez(given, **inputs)  # type: ignore[arg-type]
            entries.append({"signature": signature, "inputs": str(given), "outputs": str(taken)})
        asked.append({"folder": str(folder), "calls": entries})
    devices = {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_TF32_OVERRIDE": "0"} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **devices, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER, json.dumps(asked), "gpu" if gpu else "cpu"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = []
    for job in asked:
        outputs = []
        for call in job["calls"]:
            with np.load(call["outputs"], allow_pickle=False) as stored:
                outputs.append({name: stored[name] for name in stored.files})
        results.append(outputs)
    return results


def close(got: Any, wanted: Any, dtype: str = "float32") -> None:
    """Within the design's tolerance of the dtype."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    assert np.isfinite(got).all()
    error = np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max())
    assert error <= TOLERANCES[dtype], f"differs by {error:.3g} ({dtype})"


#: Where gate k of cuDNN stands among Keras's: LSTM i f c o in both; GRU r z h, of Keras's z r h.
_GATE_PLACES = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}


def pack(mode: str, layers: Sequence[Sequence[np.ndarray[Any, Any]]], skip_input: bool = False) -> np.ndarray[Any, Any]:
    """cuDNN's buffer from the weights of Keras layers, in the order layer 0 forward, layer 0 backward, layer 1 ...

    Keras adds the LSTM's and SimpleRNN's one bias; it is split in two unequal parts here. skip_input: the first layer's
    kernel is left out (of both directions, so give it for one direction only).
    """
    places = _GATE_PLACES[mode]
    rng = np.random.default_rng(5)
    matrices: list[np.ndarray[Any, Any]] = []
    biases: list[np.ndarray[Any, Any]] = []
    for number, (kernel, recurrent, bias) in enumerate(layers):
        gates = len(places)
        for array in ([] if skip_input and number == 0 else [kernel]) + [recurrent]:
            columns = np.split(np.asarray(array, np.float64), gates, axis=1)
            matrices += [columns[place].T.ravel() for place in places]
        if bias.ndim == 1:
            part = rng.uniform(-1, 1, bias.shape)
            bias = np.stack([part, bias - part])
        for half in bias:
            blocks = np.split(np.asarray(half, np.float64), gates)
            biases += [blocks[place] for place in places]
    return np.concatenate(matrices + biases)
