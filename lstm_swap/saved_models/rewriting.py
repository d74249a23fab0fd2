"""A SavedModel folder with its cuDNN nodes replaced by functions that run anywhere.

Only `saved_model.pb` is written anew; variables, assets and everything else are copied. In the graph only the nodes
that need a GPU change: each becomes a call of a new function with the same inputs and outputs under the same name, so
signatures, restored functions and the description of Keras stay as they are.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lstm_swap.errors import LstmSwapError, UnreadableModelError, UnsupportedLayerError, UsageError
from lstm_swap.saved_models import proof
from lstm_swap.saved_models.calls import BACKWARD_OPS, FORWARD_OPS, MAIN, CallGraph, producer
from lstm_swap.saved_models.library import Added, Library, Traced, rename_outputs, trace
from lstm_swap.saved_models.node import RnnNode, Shape, describe
from lstm_swap.saved_models.parameters import portable_parameter_op
from lstm_swap.saved_models.portable import run_portable
from lstm_swap.saved_models.reading import read_graph
from lstm_swap.saved_models.shapes import Shapes, check_sizes
from lstm_swap.saved_models.summary import CudnnNode, find_cudnn_nodes

#: Files that describe the graph as it was; the fingerprint is computed anew.
_GRAPH_FILES = {"saved_model.pb", "saved_model.pbtxt", "fingerprint.pb"}
#: A SavedModel has two levels of folders.
_FOLDER_DEPTH = 16


@dataclass(frozen=True)
class RewrittenNode:
    """A cuDNN node that became portable.

    Attributes:
        function: the library function that it stands in, "" for the main graph; node: its name.
        kind: lstm, gru, rnn_tanh or rnn_relu; "parameters" for an op that converts parameter buffers.
        units: None where only the running graph knows (also 0 layers for "parameters").
        max_error: largest difference from the float64 reference, over max(1, largest value of it); None where there was
            nothing to compare ("parameters").
    """

    function: str
    node: str
    op: str
    kind: str
    units: int | None
    layers: int
    directions: int
    dtype: str
    time_major: bool
    max_error: float | None

    @property
    def path(self) -> str:
        """Function and node, joined by "/"."""
        return f"{self.function}/{self.node}" if self.function else self.node


@dataclass
class RewriteResult:
    """What `rewrite` did.

    Attributes:
        nodes: every node that was replaced; none where the model ran on a CPU already.
        signatures: for each signature whether it ran on a CPU with random input, and why not.
        warnings: what stays as it was, and why.
    """

    path: Path
    output: Path
    to: str
    nodes: list[RewrittenNode] = field(default_factory=list)
    signatures: list[proof.SignatureRun] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def rewrite(
    path: str | Path, out_dir_temp: str | Path, *, to: str = "standard", run_signatures: bool = True
) -> RewriteResult:
    """Write the SavedModel `path` to the new folder `out_dir_temp` so that it runs without a GPU.

    Args:
        path: the folder; never changed.
        out_dir_temp: must not exist, or be empty; removed again when something fails.
        to: "standard" replaces each cuDNN node that runs; "auto" keeps it for GPUs and adds the portable branch, chosen
            by the device when it runs (V1 and V2 nodes become V3 there, since cuDNN 9 runs no others).
        run_signatures: load the result and run its signatures on random input. Without it nothing of the model is run.

    Raises:
        UnreadableModelError, MissingDependencyError: as for `summarize`.
        UnsupportedLayerError: a node that a signature needs has no portable form.
        VerificationError: a portable function does not compute what the reference does, or the result does not load.
        UsageError: another word for `to`, or a folder that is there already.
    """
    source, out = Path(path), Path(out_dir_temp)
    check_output(source, out, to)
    graph = read_graph(source)
    result = RewriteResult(source, out, to)
    for meta_graph in graph.meta_graphs:
        _Rewriter(source, meta_graph, to, result).run()
    created = not out.exists()
    try:
        _copy_folder(source, out)
        _write(out / "saved_model.pb", graph.SerializeToString(deterministic=True))
        _write_fingerprint(out)
        if run_signatures:
            result.signatures = proof.run_signatures(out, graph)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        if not created:
            out.mkdir(exist_ok=True)
        raise
    result.warnings += [f"{run}" for run in result.signatures if not run.ran]
    return result


def check_output(source: Path, out: Path, to: str) -> None:
    """Raises UsageError for a folder that is there already or lies in the model, and for an unknown `to`."""
    if to not in {"standard", "auto"}:
        raise UsageError(f"to={to!r}: a SavedModel can be rewritten to 'standard' or 'auto'")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists already")
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise UsageError(f"{out}: lies inside the model that is read")


class _Rewriter:
    """The work on one meta graph."""

    def __init__(self, path: Path, meta_graph: Any, to: str, result: RewriteResult) -> None:
        self.path = path
        self.to = to
        self.result = result
        self.calls = CallGraph(meta_graph)
        self.library = Library(meta_graph)
        self.traced: dict[RnnNode, tuple[Traced, float]] = {}

    def run(self) -> None:
        self._drop_training()
        running = [node for node in find_cudnn_nodes(self.calls) if node.reached_from]
        if not running:
            return
        check_sizes(self.calls, self.path)
        missing = self.calls.missing()
        if missing:
            raise UnreadableModelError(
                f"{self.path}: damaged, the graph calls a function that it lacks: {min(missing)!r}"
            )
        shapes = Shapes(self.calls, self.path)
        for function in dict.fromkeys(node.function for node in running):
            self._rewrite_function(function, [node for node in running if node.function == function], shapes)
        for node in find_cudnn_nodes(CallGraph(self.calls.meta_graph)):
            if node.needed:
                raise UnsupportedLayerError(f"{self._where(node)}: {node.op} still runs, and has no portable form")

    def _drop_training(self) -> None:
        """Take the backward pass of a TensorFlow 1 training graph out, where nothing that is served reads it."""
        graph = self.calls.meta_graph
        served = self.calls.main_ancestors(name for root in self.calls.roots() for name in root.nodes)
        training = [node.name for node in graph.graph_def.node if node.op in BACKWARD_OPS and node.name not in served]
        if not training:
            return
        dropped = self.calls.main_descendants(training)
        kept = [node for node in graph.graph_def.node if node.name not in dropped]
        del graph.graph_def.node[:]
        graph.graph_def.node.extend(kept)
        for collection in graph.collection_def.values():
            if collection.WhichOneof("kind") == "node_list":
                names = [name for name in collection.node_list.value if producer(name) not in dropped]
                del collection.node_list.value[:]
                collection.node_list.value.extend(names)
        self.calls = CallGraph(graph)
        self.result.warnings.append(
            f"{len(dropped)} nodes of the training graph were left out: they need a GPU, and no signature reads them"
        )

    def _rewrite_function(self, function: str, found: Sequence[CudnnNode], shapes: Shapes) -> None:
        """Replace what can be replaced; what cannot is an error where a signature needs it, else a warning."""
        by_name = {node.name: node for node in self.calls.nodes(function)}
        training = [node for node in found if node.op in BACKWARD_OPS]
        plans: list[Callable[[], None]] = []
        try:
            if training:
                raise UnsupportedLayerError(
                    f"{self._where(training[0])}: {training[0].op} trains with cuDNN; only inference can be rewritten"
                )
            known = shapes.of_inputs(function, [node.node for node in found])
            plans = [self._plan(node, by_name[node.node], known[node.node]) for node in found]
        except LstmSwapError as problem:
            if any(node.needed for node in found):
                raise
            self.result.warnings.append(f"left as it is, since no signature needs it: {problem}")
        for plan in plans:
            plan()

    def _where(self, node: CudnnNode) -> str:
        place = f"function {node.function!r}, " if node.function else ""
        return f"{self.path}: {place}node {node.node!r}"

    def _plan(self, found: CudnnNode, node: Any, shapes: list[Shape]) -> Callable[[], None]:
        """What is to be done to one node; raises before anything of the graph has changed."""
        import tensorflow as tf

        where = self._where(found)
        if found.op in FORWARD_OPS:
            described = describe(node, shapes, where)
            outputs = [f"{name}:0" for name in described.outputs]
            types = [described.dtype] * 4 + ["int32"] * (len(shapes) - 4)
            return lambda: self._replace_recurrent(found, node, described, outputs, types)
        computes, outputs = portable_parameter_op(node, where)
        dtype = tf.dtypes.as_dtype(node.attr["T"].type).name if "T" in node.attr else "float32"
        types = ["int32"] * 3 + [dtype] * (len(shapes) - 3)
        return lambda: self._replace_parameters(found, node, computes, outputs, types, shapes)

    def _replace_recurrent(
        self, found: CudnnNode, node: Any, described: RnnNode, outputs: list[str], types: list[str]
    ) -> None:
        if described not in self.traced:
            function = auto(described) if self.to == "auto" else portable(described)
            specs = _specs(types, described.shapes)
            max_error = proof.prove(described, function, specs, self._where(found))
            self.traced[described] = (trace(function, specs), max_error)
        traced, max_error = self.traced[described]
        self._call(found, node, self.library.add(f"lstm_swap_{described.mode}", traced), outputs, types)
        self.result.nodes.append(
            RewrittenNode(
                found.function,
                found.node,
                found.op,
                described.mode,
                described.units,
                described.layers,
                described.directions,
                described.dtype,
                described.time_major,
                max_error,
            )
        )

    def _replace_parameters(
        self,
        found: CudnnNode,
        node: Any,
        computes: Callable[..., tuple[Any, ...]],
        outputs: list[str],
        types: list[str],
        shapes: list[Shape],
    ) -> None:
        added = self.library.add("lstm_swap_parameters", trace(computes, _specs(types, shapes)))
        self._call(found, node, added, outputs, types)
        self.result.nodes.append(
            RewrittenNode(found.function, found.node, found.op, "parameters", None, 0, 0, types[-1], True, None)
        )

    def _call(self, found: CudnnNode, node: Any, added: Added, outputs: list[str], types: list[str]) -> None:
        import tensorflow as tf

        self.library.call(node, added, [tf.dtypes.as_dtype(name).as_datatype_enum for name in types])
        if found.function != MAIN:
            rename_outputs(self.calls.functions[found.function], found.node, outputs)


def portable(node: RnnNode) -> Callable[..., tuple[Any, ...]]:
    """The node's inputs to its outputs, on any device."""
    return lambda *inputs: run_portable(node, *inputs)


def auto(node: RnnNode) -> Callable[..., tuple[Any, ...]]:
    """The same, by cuDNN where the caller runs on a GPU.

    This is what `tf.__internal__.execute_fn_for_device` writes: a Case whose index is the device.
    """
    import tensorflow as tf

    anywhere = tf.function(portable(node), autograph=False)

    def choose(*inputs: Any) -> tuple[Any, ...]:
        # int32 lies in the host's memory within a function and in the GPU's at a Case's door, and a length that is
        # looked for in the wrong one ends the process (seen on an H200): lengths pass as floats, exact to 2 ** 24.
        passed = [tf.cast(t, tf.float32) if t.dtype == tf.int32 else t for t in inputs]

        def given() -> list[Any]:
            return [tf.cast(p, tf.int32) if t.dtype == tf.int32 else p for t, p in zip(inputs, passed, strict=True)]

        branches = {"CPU": lambda: anywhere(*given()), "GPU": lambda: _cudnn(node, *given())}
        return tuple(tf.__internal__.execute_fn_for_device(branches, lambda: anywhere(*given())))

    return choose


def _cudnn(
    node: RnnNode, x: Any, input_h: Any, input_c: Any, params: Any, lengths: Any | None = None
) -> tuple[Any, ...]:
    """The cuDNN node itself, as CudnnRNNV3.

    What it keeps for a gradient does not leave the branch: `host_reserved` lies in the host's memory, and a Case that
    hands it on as if it were the GPU's ends the process (seen on an H200).
    """
    import tensorflow as tf

    if lengths is None:
        shape = tf.shape(x)
        lengths = tf.fill(shape[1:2], shape[0])
    outputs = tf.raw_ops.CudnnRNNV3(
        input=x,
        input_h=input_h,
        input_c=input_c,
        params=params,
        sequence_lengths=lengths,
        rnn_mode=node.mode,
        input_mode="skip_input" if node.skip_input else "linear_input",
        direction="bidirectional" if node.directions == 2 else "unidirectional",
        is_training=node.is_training,
        time_major=node.time_major,
    )
    kept = (tf.zeros((0,), x.dtype), tf.zeros((0,), tf.int8))
    return (*outputs[:3], *kept)[: len(node.outputs)]


def _specs(types: Sequence[str], shapes: Sequence[Shape]) -> list[Any]:
    import tensorflow as tf

    return [tf.TensorSpec(shape, name) for name, shape in zip(types, shapes, strict=True)]


def _copy_folder(source: Path, out: Path, depth: int = 0) -> None:
    """Copy regular files and folders. Links to files, as a model cache has them, become files; all else is an error."""
    if depth > _FOLDER_DEPTH:
        raise UnreadableModelError(f"{source}: folders nested more than {_FOLDER_DEPTH} deep")
    try:
        out.mkdir(parents=depth == 0, exist_ok=depth == 0)
        for name in sorted(os.listdir(source)):
            if depth == 0 and name in _GRAPH_FILES:
                continue
            mode = (source / name).stat().st_mode
            if stat.S_ISDIR(mode) and not (source / name).is_symlink():  # which could lead round in a circle
                _copy_folder(source / name, out / name, depth + 1)
            elif stat.S_ISREG(mode):
                shutil.copyfile(source / name, out / name)
            else:
                raise UnreadableModelError(f"{source / name}: neither a file nor a folder of its own, cannot be copied")
    except OSError as problem:
        raise UnreadableModelError(f"{source}: cannot be copied ({problem})") from None


def _write(file: Path, data: bytes) -> None:
    with file.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())


def _write_fingerprint(folder: Path) -> None:
    """The fingerprint of the new graph, as TensorFlow 2.12 and later write it; loading works without it too."""
    try:
        from tensorflow.python.saved_model import fingerprinting_utils

        fingerprinting_utils.write_fingerprint(str(folder))
    except (ImportError, ValueError, RuntimeError, OSError):
        (folder / "fingerprint.pb").unlink(missing_ok=True)
