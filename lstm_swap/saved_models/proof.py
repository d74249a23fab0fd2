"""The proof of a rewritten SavedModel: each portable function against NumPy, then the signatures on a CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lstm_swap.errors import VerificationError
from lstm_swap.saved_models.calls import CUDNN_OPS, MAIN, CallGraph
from lstm_swap.saved_models.node import RnnNode, parameter_count
from lstm_swap.saved_models.reference import run_reference

#: Times max(1, max|reference|), as for every swap.
TOLERANCES = {"float32": 1e-6, "float64": 1e-10, "float16": 1e-2, "bfloat16": 5e-2}

#: The test input: batch and time steps where the graph leaves them open or makes them larger.
BATCH, TIME = 3, 6
UNITS, FEATURES = 4, 5
#: Multiplications of the reference, about: above this, batch and time are made small.
_PRODUCTS = 300_000_000

#: Ops that reach outside the graph, or run code that is no part of it. A model with one is not run by the proof.
_OUTSIDE = frozenset(
    {
        "EagerPyFunc",
        "PyFunc",
        "PyFuncStateless",
        "ReadFile",
        "WriteFile",
        "MatchingFiles",
        "ReaderReadV2",
        "WholeFileReaderV2",
        "TextLineDataset",
        "TFRecordDataset",
        "FixedLengthRecordDataset",
        "SaveDataset",
        "LoadDataset",
        "CreateSummaryFileWriter",
    }
)
_SECONDS = 60.0


@dataclass(frozen=True)
class SignatureRun:
    """A signature of the result, run on a CPU with random input. ran: False with the reason."""

    signature: str
    ran: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"signature {self.signature!r} " + ("ran on a CPU" if self.ran else f"was not run: {self.reason}")


def prove(node: RnnNode, function: Callable[..., tuple[Any, ...]], specs: Sequence[Any], where: str) -> float:
    """Run the portable form of `node` on random input and compare every output with the float64 reference.

    Args:
        function: the portable form, of the node's inputs to its outputs.
        specs: tf.TensorSpec of each input, as the function is written into the graph.
        where: file, function and node, for messages.

    Returns:
        The largest difference over max(1, largest value of the reference).

    Raises:
        VerificationError: it exceeds the tolerance of the dtype, or is not finite.
    """
    import tensorflow as tf

    inputs = _random_inputs(node, [spec.shape for spec in specs])
    if not all(spec.shape.is_compatible_with(array.shape) for spec, array in zip(specs, inputs, strict=True)):
        specs = [tf.TensorSpec(array.shape, spec.dtype) for spec, array in zip(specs, inputs, strict=True)]
    with tf.device("/CPU:0"):
        tensors = [tf.constant(array) for array in inputs]
        got = tf.function(function, input_signature=list(specs), autograph=False).get_concrete_function()(*tensors)
    wanted = run_reference(node, *inputs)
    worst = 0.0
    for name, computed, reference in zip(("output", "output_h", "output_c"), got, wanted, strict=False):
        if reference is None:
            continue
        error = np.abs(np.asarray(computed, np.float64) - reference).max() / max(1.0, np.abs(reference).max())
        if not error <= TOLERANCES[node.dtype]:
            raise VerificationError(
                f"{where}: {name} of the portable form differs from the reference by {error:.3g}, more than "
                f"{TOLERANCES[node.dtype]:g} ({node.dtype}); nothing was written"
            )
        worst = max(worst, float(error))
    return worst


def _random_inputs(node: RnnNode, shapes: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Inputs of a node with its real widths, and rows of different lengths.

    Batch and time are the graph's own unless it leaves them open or the reference would take long.
    """
    import tensorflow as tf

    rng = np.random.default_rng(0)
    units = node.units or UNITS
    features = node.features or (units if node.skip_input else FEATURES)
    stacked = node.layers * node.directions
    parameters = parameter_count(node, units, features)
    known = shapes[0].as_list() if shapes[0].rank is not None else [None] * 3
    time, batch = known[:2] if node.time_major else known[1::-1]
    time, batch = time or TIME, batch or BATCH
    if time * batch * parameters > _PRODUCTS:
        time, batch = TIME, BATCH
    x, h = (time, batch, features), (stacked, batch, units)
    if not node.time_major:
        x, h = (batch, time, features), (batch, stacked, units)
    scale = 1.0 / np.sqrt(max(units, features))
    dtype = tf.dtypes.as_dtype(node.dtype).as_numpy_dtype
    arrays = [
        rng.uniform(-1, 1, x),
        rng.uniform(-1, 1, h),
        rng.uniform(-1, 1, h if node.mode == "lstm" else ()),
        rng.uniform(-scale, scale, parameters),
    ]
    inputs = [np.asarray(array).astype(dtype) for array in arrays]  # rounded: both sides read the same numbers
    if node.op == "CudnnRNNV3":
        inputs.append(np.linspace(time, 1, batch).astype(np.int32))
    return inputs


def run_signatures(folder: Path, graph: Any) -> list[SignatureRun]:
    """Load the folder with TensorFlow and run on a CPU each signature that takes random input.

    A model that holds ops which reach outside the graph is not loaded; a signature is stopped after a minute.

    Raises:
        VerificationError: the folder does not load, or a signature still asks for a GPU.
    """
    import tensorflow as tf

    runs: list[SignatureRun] = []
    for meta_graph in graph.meta_graphs:
        keys = [key for key in sorted(meta_graph.signature_def) if not key.startswith("__saved_model_")]
        outside = _outside_ops(CallGraph(meta_graph))
        if outside:
            runs += [SignatureRun(key, False, f"the graph holds {outside}, which reaches outside it") for key in keys]
            continue
        try:
            with tf.device("/CPU:0"):
                loaded = tf.saved_model.load(str(folder), tags=list(meta_graph.meta_info_def.tags))
        except Exception as problem:  # whatever TensorFlow raises: the result is then not what was promised
            raise VerificationError(f"{folder}: the rewritten model does not load: {_line(problem)}") from None
        runs += [_run(folder, key, loaded.signatures[key], meta_graph) for key in keys if key in loaded.signatures]
    return runs


def _outside_ops(calls: CallGraph) -> str:
    found = {node.op for function in (MAIN, *calls.functions) for node in calls.nodes(function)} & _OUTSIDE
    return ", ".join(sorted(found))


def _run(folder: Path, key: str, signature: Any, meta_graph: Any) -> SignatureRun:
    """Try input shapes until the signature takes one."""
    from tensorflow.python.eager import cancellation

    reason = "it takes no input that can be drawn at random"
    for inputs in _candidates(meta_graph.signature_def[key].inputs):
        manager = cancellation.CancellationManager()
        late = threading.Event()

        def stop(manager: Any = manager, late: threading.Event = late) -> None:
            late.set()
            manager.start_cancel()

        timer = threading.Timer(_SECONDS, stop)
        timer.start()
        try:
            manager.get_cancelable_function(signature)(**inputs)
        except Exception as problem:  # input that does not fit raises anything; only a missing kernel is our failure
            reason = _line(problem)
            if late.is_set():
                return SignatureRun(key, False, f"it did not end within {_SECONDS:g} s")
            if any(op in reason for op in CUDNN_OPS):
                raise VerificationError(f"{folder}: signature {key!r} does not run on a CPU: {reason}") from None
        else:
            return SignatureRun(key, True)
        finally:
            timer.cancel()
    return SignatureRun(key, False, reason)


def _candidates(infos: Any) -> Iterator[dict[str, Any]]:
    """Random inputs for a signature, with several guesses for its open dimensions."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    # whole numbers are ones first: tokens that a mask keeps
    for batch, size, highest in ((2, 4, 1), (2, 4, 2), (1, 8, 1), (2, 16, 1), (1, 1, 1)):
        inputs = {}
        for name, info in infos.items():
            if info.WhichOneof("encoding") != "name" or info.tensor_shape.unknown_rank:
                return
            dims = [dim.size for dim in info.tensor_shape.dim]
            shape = [n if n >= 0 else (batch if axis == 0 else size) for axis, n in enumerate(dims)]
            if np.prod(shape, dtype=float) > 1e8:
                return
            try:
                dtype = tf.dtypes.as_dtype(info.dtype)
            except (TypeError, KeyError):  # a damaged signature
                return
            if dtype.is_floating:
                inputs[name] = tf.cast(rng.uniform(-1, 1, shape), dtype)
            elif dtype.is_integer or dtype.is_bool:
                inputs[name] = tf.cast(rng.integers(2 - highest, 2, shape), dtype)
            else:
                return
        yield inputs


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300]
