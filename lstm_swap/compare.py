"""`verify`: two whole models on the same random input, each run by the Keras that it was written for.

A Keras 3 file is run by Keras 3, a Keras 1 or 2 file by tf_keras where that is installed and opens it (its GPU layers
as plain ones: tf_keras converts their arrays itself). What no Keras opens is run through lstm-swap's own
conversion, and the outcome says so. Code in a file (Lambda) is never run.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lstm_swap import files, formats, rewriting
from lstm_swap.architecture import Node, call_inputs, entry_name
from lstm_swap.errors import LstmSwapError, MissingDependencyError, UnreadableModelError, VerificationError
from lstm_swap.formats import ModelFile
from lstm_swap.planning import FUSED_CLASSES, make_plan
from lstm_swap.settings import dtype_name

PathLike = str | Path

#: Largest difference between whole models, times max(1, largest magnitude), by the coarsest dtype in them.
TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}

#: What stands for a dimension that a model leaves open: sequences, time steps.
BATCH, STEPS = 2, 7


@dataclass
class Outcome:
    """What a comparison found.

    equal: every number within `tolerance` (absolute, already scaled). max_error: the largest difference, None where
    shapes or counts differ. programs: what ran each model.
    """

    a: str
    b: str
    equal: bool
    max_error: float | None
    tolerance: float
    programs: tuple[str, str]
    message: str = ""
    warnings: list[str] = field(default_factory=list)

    def text(self) -> str:
        verdict = "compute the same" if self.equal else "DIFFER"
        lines = [f"{self.a} and {self.b} {verdict}: {self.message}"]
        lines.append(f"run by {self.programs[0]} and {self.programs[1]}, on the same random input")
        return "\n".join(lines + [f"warning: {w}" for w in self.warnings])

    def to_json(self) -> str:
        return json.dumps(self.__dict__)


def verify(path_a: PathLike, path_b: PathLike, *, tolerance: float | None = None) -> Outcome:
    """Run two models on the same random input and compare every output.

    tolerance: largest difference, times max(1, largest magnitude of A's outputs); by default 1e-5 for float32, 1e-10
    for float64, 1e-2 for float16, 5e-2 for bfloat16 (the coarsest dtype in either).

    Raises:
        VerificationError: they differ; the message names both files, the output and the largest difference.
        UnreadableModelError, MissingDependencyError: one of them cannot be opened or run.
    """
    outcome = compare_files(path_a, path_b, tolerance=tolerance)
    if not outcome.equal:
        raise VerificationError(f"{outcome.a} and {outcome.b} differ: {outcome.message}")
    return outcome


def compare_files(path_a: PathLike, path_b: PathLike, *, tolerance: float | None = None) -> Outcome:
    """`verify` that returns the outcome even where the models differ."""
    with _open(path_a) as a, _open(path_b) as b:
        if a.entry is None or b.entry is None:
            return _compare_weights(a, b, tolerance)
        found = tolerance if tolerance is not None else max(TOLERANCES[_dtype(a)], TOLERANCES[_dtype(b)])
        inputs = random_inputs(a.root)
        if len(inputs) != len(random_inputs(b.root)):
            raise VerificationError(
                f"{a.path} and {b.path} differ: {len(inputs)} inputs against {len(random_inputs(b.root))}"
            )
        outputs_a, program_a = run(a, inputs)
        outputs_b, program_b = run(b, inputs)
        return _outcome(a, b, outputs_a, outputs_b, found, (program_a, program_b))


def _open(path: PathLike) -> ModelFile:
    if files.is_saved_model(path):
        raise UnreadableModelError(f"{path}: verify compares Keras files; a SavedModel is checked when it is converted")
    return formats.open_model(path)


def _outcome(
    a: ModelFile,
    b: ModelFile,
    outputs_a: list[np.ndarray[Any, Any]],
    outputs_b: list[np.ndarray[Any, Any]],
    tolerance: float,
    programs: tuple[str, str],
) -> Outcome:
    names = str(a.path), str(b.path)
    shapes = [[o.shape for o in outputs] for outputs in (outputs_a, outputs_b)]
    if shapes[0] != shapes[1]:
        message = f"outputs of shapes {shapes[0]} against {shapes[1]}"
        return Outcome(*names, False, None, tolerance, programs, message)
    worst, where, allowed = 0.0, 0, tolerance
    for i, (x, y) in enumerate(zip(outputs_a, outputs_b, strict=True)):
        x, y = x.astype("float64"), y.astype("float64")
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            message = f"output {i} holds NaN or infinite numbers, so nothing can be said"
            return Outcome(*names, False, None, tolerance, programs, message)
        allowed = max(allowed, tolerance * float(np.abs(x).max(initial=0.0)))
        error = float(np.abs(x - y).max(initial=0.0))
        if error >= worst:
            worst, where = error, i
    message = f"largest difference {worst:.3g} (output {where}), allowed {allowed:.3g}"
    return Outcome(*names, worst <= allowed, worst, allowed, programs, message)


def _compare_weights(a: ModelFile, b: ModelFile, tolerance: float | None) -> Outcome:
    """Weights alone: the arrays, each recurrent layer in its standard layout."""
    programs = ("NumPy (arrays in standard layout)",) * 2
    arrays: list[list[np.ndarray[Any, Any]]] = []
    for model in (a, b):
        files.normalise(model)
        plan = make_plan(model.root, "standard", version=model.keras_version)
        rewriting.apply(plan, "keras3")
        own: list[np.ndarray[Any, Any]] = []
        for node in model.root.walk():
            values = [array.read() for array in node.arrays]
            for edit in node.edits:
                values = edit.weights(values)
            own += values
        arrays.append(own)
    return _outcome(a, b, arrays[0], arrays[1], tolerance or TOLERANCES["float32"], programs)


def _dtype(model: ModelFile) -> str:
    """The coarsest dtype that the model computes in."""
    names = {dtype_name(node.config.get("dtype")) for node in model.root.walk() if not node.is_model}
    names |= {array.dtype for node in model.root.walk() for array in node.arrays if array.dtype in TOLERANCES}
    for dtype in ("bfloat16", "float16", "float32"):
        if any(dtype in name for name in names):
            return dtype
    return "float64"


# ------------------------------------------------------------------ inputs


def random_inputs(root: Node) -> list[np.ndarray[Any, Any]]:
    """Random input for a model, from its architecture: whole numbers in the vocabulary for what feeds an Embedding."""
    rng = np.random.default_rng(0)
    found = []
    for shape, dtype, vocabulary in _inputs(root):
        full = [BATCH if i == 0 else STEPS for i in range(len(shape))]
        full = [n if n is not None else f for n, f in zip(shape, full, strict=True)]
        if vocabulary is not None or dtype.startswith(("int", "uint")):
            found.append(rng.integers(0, vocabulary or 2, full).astype("int32"))
        else:
            found.append(rng.standard_normal(full).astype("float32"))
    return found


def _inputs(root: Node) -> list[tuple[list[int | None], str, int | None]]:
    """Batch shape, dtype and vocabulary (or None) of each input."""
    refs = root.config.get("input_layers")
    if refs and isinstance(refs[0], str):
        refs = [refs]
    by_name = {str(c.entry.get("name") or entry_name(c.entry)): c for c in root.children}
    firsts = [by_name[str(r[0])] for r in refs if str(r[0]) in by_name] if refs else root.children[:1]
    result = []
    for node in firsts:
        inner: Node | None = node
        while inner is not None and _shape(inner) is None and inner.children:
            inner = inner.children[0]
        shape = _shape(inner) if inner is not None else None
        if shape is None:
            raise UnreadableModelError(f"the model does not state the shape of its input {node.name!r}")
        vocabulary = _vocabulary(root, node) if refs else _vocabulary_of(root.children)
        result.append((shape, dtype_name(node.config.get("dtype")), vocabulary))
    return result


def _shape(node: Node) -> list[int | None] | None:
    config = node.config
    for key in ("batch_shape", "batch_input_shape", "batch_input_dims"):
        if config.get(key):
            return list(config[key])
    if config.get("input_shape"):
        return [None, *config["input_shape"]]
    return None


def _vocabulary_of(layers: list[Node]) -> int | None:
    """The vocabulary of the Embedding that comes first in a chain of layers."""
    for node in layers:
        if node.class_name == "Embedding":
            return int(node.config["input_dim"])
        if node.children:
            return _vocabulary_of(node.children)
        if node.class_name not in ("InputLayer", "Masking", "Reshape", "Flatten", "Lambda"):
            return None
    return None


def _vocabulary(root: Node, source: Node) -> int | None:
    name = str(source.entry.get("name") or entry_name(source.entry))
    found = []
    for child in root.children:
        calls = child.entry.get("inbound_nodes") or []
        if any(str(r[0]) == name for call in calls for r in call_inputs(call)):
            vocabulary = _vocabulary_of([child])
            if vocabulary is not None:
                found.append(vocabulary)
    return min(found) if found else None


# ------------------------------------------------------------------ running


def run(model: ModelFile, inputs: list[np.ndarray[Any, Any]]) -> tuple[list[np.ndarray[Any, Any]], str]:
    """The outputs of a model on these inputs, and the name of what ran it."""
    classes = {node.class_name for node in model.root.walk()}
    if "Lambda" in classes:
        raise UnreadableModelError(f"{model.path}: holds Lambda layers, whose code is not run here")
    if model.dialect != "keras3":
        ran = _run_tf_keras(model.path, inputs)
        if ran is not None:
            return ran
        with tempfile.TemporaryDirectory(prefix="lstm-swap-") as folder:
            copy = Path(folder) / "model.keras"
            files.convert(model.path, copy, to="standard")
            outputs, program = _run_keras(copy, inputs, fused=False)
        return outputs, f"{program} after conversion by lstm-swap"
    return _run_keras(model.path, inputs, fused=bool(classes & set(FUSED_CLASSES)))


def _run_keras(
    path: Path, inputs: list[np.ndarray[Any, Any]], *, fused: bool
) -> tuple[list[np.ndarray[Any, Any]], str]:
    try:
        import keras
    except ImportError:
        raise MissingDependencyError(
            "verify runs the models and needs Keras: pip install 'lstm-swap[tensorflow]'"
        ) from None
    if fused:
        import lstm_swap.layers  # noqa: F401 - registers the classes
    with tempfile.TemporaryDirectory(prefix="lstm-swap-") as folder:
        named = _with_suffix(path, Path(folder))
        try:
            model = keras.saving.load_model(named, compile=False, safe_mode=True)
        except Exception as problem:
            raise UnreadableModelError(f"{path}: Keras {keras.__version__} cannot open it: {_line(problem)}") from None
    return _predict(model, inputs), f"Keras {keras.__version__}"


def _run_tf_keras(path: Path, inputs: list[np.ndarray[Any, Any]]) -> tuple[list[np.ndarray[Any, Any]], str] | None:
    try:
        import tf_keras
    except ImportError:
        return None
    layers = tf_keras.layers

    with tempfile.TemporaryDirectory(prefix="lstm-swap-") as folder:
        try:
            model = tf_keras.models.load_model(
                str(_with_suffix(path, Path(folder))),
                compile=False,
                safe_mode=True,
                custom_objects={"CuDNNLSTM": layers.LSTM, "CuDNNGRU": layers.GRU},
            )
        except LstmSwapError:
            raise
        except Exception:  # whatever stops tf_keras, the other way is tried
            return None
    return _predict(model, inputs), f"tf_keras {tf_keras.__version__}"


def _predict(model: Any, inputs: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    outputs = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    return [np.asarray(o) for o in (outputs if isinstance(outputs, list | tuple) else [outputs])]


def _with_suffix(path: Path, folder: Path) -> Path:
    """Keras chooses its loader by the name; a link with the right one makes it choose by content."""
    import zipfile

    suffix = ".keras" if path.is_dir() or zipfile.is_zipfile(path) else ".h5"
    if path.suffix == suffix:
        return path
    link = folder / f"model{suffix}"
    link.symlink_to(path.resolve())
    return link


def _line(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return text if len(text) < 300 else text[:300] + "..."
