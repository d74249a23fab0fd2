"""What a SavedModel folder holds, read without running anything of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lstm_swap.errors import UnreadableModelError
from lstm_swap.saved_models.calls import BACKWARD_OPS, CUDNN_OPS, MAIN, CallGraph, Root
from lstm_swap.saved_models.checkpoint import Checkpoint, Variable
from lstm_swap.saved_models.metadata import Metadata, read_metadata
from lstm_swap.saved_models.reading import read_graph


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a signature. shape: None where the rank is unknown, None for an open dimension."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Signature:
    """What TensorFlow Serving calls: `name` is its key, such as serving_default."""

    name: str
    method_name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class CudnnNode:
    """A node that has a kernel on GPUs only.

    Attributes:
        function: the library function that it stands in; "" for the main graph.
        op: CudnnRNNV3 and the like; mode: lstm, gru, rnn_tanh or rnn_relu.
        reached_from: what runs it on a CPU, in words; empty for a node in an alternative that only a GPU takes.
        needed: it runs from a signature, from the loading of variables or, in a folder without signatures, from a
            function that loading gives back; or it stands in the main graph.
    """

    function: str
    node: str
    op: str
    mode: str
    reached_from: tuple[str, ...]
    needed: bool


@dataclass
class SavedModelSummary:
    """What `summarize` found.

    Attributes:
        tf_version: the TensorFlow that wrote the folder ("" where it does not say).
        tags: of each graph, mostly one with ("serve",).
        cudnn_nodes: all of them, whether they run or not.
        needs_gpu: a cuDNN node runs, and there is no other branch for a CPU.
        has_keras_metadata: Keras left its description of the layers.
        architecture: the root model's {"class_name", "config"}, None where there is none (as in Keras 3's export).
        keras_version: of the Keras that wrote the description.
        variables: of the checkpoint; empty where it cannot be read (then a warning says so).
    """

    path: Path
    tf_version: str
    tags: tuple[tuple[str, ...], ...]
    signatures: list[Signature]
    cudnn_nodes: list[CudnnNode]
    needs_gpu: bool
    has_keras_metadata: bool
    architecture: dict[str, Any] | None
    keras_version: str | None
    variables: list[Variable]
    warnings: list[str] = field(default_factory=list)


def summarize(path: str | Path) -> SavedModelSummary:
    """Read a SavedModel folder: signatures, cuDNN nodes, the Keras architecture if it is there, variables.

    Raises:
        UnreadableModelError: no SavedModel, or a damaged or absurdly large one.
        MissingDependencyError: TensorFlow is not installed.
    """
    folder = Path(path)
    graph = read_graph(folder)
    warnings: list[str] = []
    nodes: list[CudnnNode] = []
    signatures: list[Signature] = []
    for meta_graph in graph.meta_graphs:
        found = find_cudnn_nodes(CallGraph(meta_graph))
        nodes += found
        signatures += _signatures(meta_graph)
        warnings += _warnings(found)
    metadata = _metadata(folder, graph, warnings)
    return SavedModelSummary(
        path=folder,
        tf_version=graph.meta_graphs[0].meta_info_def.tensorflow_version,
        tags=tuple(tuple(m.meta_info_def.tags) for m in graph.meta_graphs),
        signatures=signatures,
        cudnn_nodes=nodes,
        needs_gpu=any(node.needed for node in nodes),
        has_keras_metadata=metadata is not None,
        architecture=metadata.architecture if metadata else None,
        keras_version=metadata.keras_version if metadata else None,
        variables=_variables(folder, graph, warnings),
        warnings=warnings,
    )


def find_cudnn_nodes(calls: CallGraph) -> list[CudnnNode]:
    """The cuDNN nodes of a meta graph, and what runs them.

    A node in the main graph is always needed: a TensorFlow 1 session, and so a server, places all of that graph and has
    no place for the node on a CPU even where nothing asks for it.
    """
    sites = [
        (function, node)
        for function in (MAIN, *calls.functions)
        for node in calls.nodes(function)
        if node.op in CUDNN_OPS
    ]
    if not sites:
        return []
    roots = calls.roots()
    reached: dict[tuple[str, str], list[Root]] = {}
    for root in roots:
        main, functions = calls.reach(root)
        for function, node in sites:
            if node.name in main if function == MAIN else function in functions:
                reached.setdefault((function, node.name), []).append(root)
    vital = {"session", "variables", "signature" if any(r.kind == "signature" for r in roots) else "function"}
    found = []
    for function, node in sites:
        by = reached.get((function, node.name), [])
        if function == MAIN and not by:
            by = [Root("session", "a session")]
        mode = node.attr["rnn_mode"].s.decode("utf-8", "replace") if "rnn_mode" in node.attr else "lstm"
        needed = any(root.kind in vital for root in by)
        found.append(CudnnNode(function, node.name, node.op, mode, tuple(str(root) for root in by), needed))
    return found


def _warnings(found: list[CudnnNode]) -> list[str]:
    """What a reader should know beside needs_gpu."""
    out = []
    if found and not any(node.needed for node in found):
        only = sorted({where for node in found for where in node.reached_from})
        if only:
            out.append(f"cuDNN nodes run only from {', '.join(only[:3])}; the signatures do without")
        else:
            out.append(f"{len(found)} cuDNN nodes stand in alternatives that only a GPU takes; the model runs on a CPU")
    if any(node.op in BACKWARD_OPS and node.reached_from for node in found):
        out.append("the graph trains with cuDNN (CudnnRNNBackprop); only inference can be made portable")
    return out


def _signatures(meta_graph: Any) -> list[Signature]:
    return [
        Signature(key, signature.method_name, _tensors(signature.inputs), _tensors(signature.outputs))
        for key, signature in sorted(meta_graph.signature_def.items())
        if not key.startswith("__saved_model_")
    ]


def _tensors(infos: Any) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(key, dtype_name(info.dtype), shape_of(info.tensor_shape)) for key, info in sorted(infos.items())
    )


def dtype_name(number: int) -> str:
    """The name of a DataType: float32, string, ... (its number where TensorFlow knows none)."""
    from tensorflow import dtypes

    try:
        return str(dtypes.as_dtype(number).name)
    except (TypeError, KeyError, ValueError):
        return f"dtype {number}"


def shape_of(shape: Any) -> tuple[int | None, ...] | None:
    """A TensorShapeProto as a tuple."""
    if shape.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else int(dim.size) for dim in shape.dim)


def _metadata(folder: Path, graph: Any, warnings: list[str]) -> Metadata | None:
    try:
        return read_metadata(folder, graph)
    except UnreadableModelError as problem:
        warnings.append(str(problem))
        return None


def _variables(folder: Path, graph: Any, warnings: list[str]) -> list[Variable]:
    try:
        return Checkpoint(folder).variables(graph.meta_graphs[0].object_graph_def)
    except UnreadableModelError as problem:
        warnings.append(str(problem))
        return []
