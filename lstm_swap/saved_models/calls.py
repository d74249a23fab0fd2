"""Which functions of a graph run, and which cuDNN nodes they hold.

A graph is a main graph of nodes and a library of functions (tensorflow/core/framework/graph.proto, function.proto). A
node calls the functions that its attributes name (`PartitionedCall`, `While`, `If`, `Case`, ...) or the one that is
its op. Two devices exclude each other in two ways, and only the first appears as a call:

- `tf.__internal__.execute_fn_for_device` writes a `Case` whose index is a `DeviceIndex` node: on a CPU only the branch
  of the CPU runs;
- tf.keras registers its GPU function beside the one it calls, with the attribute `api_implements`
  (grappler/optimizers/implementation_selector.h): nothing calls the GPU function, so it is not reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

FORWARD_OPS = frozenset({"CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"})
PARAMETER_OPS = frozenset(
    {
        "CudnnRNNParamsSize",
        "CudnnRNNCanonicalToParams",
        "CudnnRNNCanonicalToParamsV2",
        "CudnnRNNParamsToCanonical",
        "CudnnRNNParamsToCanonicalV2",
    }
)
BACKWARD_OPS = frozenset({"CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3"})
CUDNN_OPS = FORWARD_OPS | PARAMETER_OPS | BACKWARD_OPS

#: Above this product the roots of a graph are followed together, so that a hostile one costs no more than linear time.
_ROOTS_TIMES_NODES = 20_000_000

#: The name under which the main graph stands among the functions.
MAIN = ""


@dataclass(frozen=True)
class Root:
    """Where execution starts: a signature, a restored function, the loading and saving of variables, or a session.

    Attributes:
        kind: "signature", "function", "variables" or "session".
        name: the signature's key, the path of the attribute (`serve`), or the node.
        nodes: names of nodes in the main graph.
        functions: names of library functions.
    """

    kind: str
    name: str
    nodes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "session":
            return "a session that loads the whole graph"
        return (
            f"{self.kind} {self.name!r}" if self.kind != "variables" else f"{self.name!r} (loading or saving variables)"
        )


class CallGraph:
    """The calls of one meta graph, as they happen on a CPU."""

    def __init__(self, meta_graph: Any) -> None:
        self.meta_graph = meta_graph
        self.functions: dict[str, Any] = {f.signature.name: f for f in meta_graph.graph_def.library.function}
        self._main: dict[str, Any] = {node.name: node for node in meta_graph.graph_def.node}
        self._callees: dict[str, frozenset[str]] = {}

    def nodes(self, function: str) -> Sequence[Any]:
        """The nodes of a function, or of the main graph."""
        nodes: Sequence[Any]
        nodes = self.meta_graph.graph_def.node if function == MAIN else self.functions[function].node_def
        return nodes

    def main_ancestors(self, targets: Iterable[str]) -> set[str]:
        """Names of the main graph's nodes that run when `targets` are asked for: themselves and all their inputs."""
        seen: set[str] = set()
        waiting = deque(targets)
        while waiting:
            name = waiting.popleft()
            node = self._main.get(name)
            if node is None or name in seen:
                continue
            seen.add(name)
            waiting.extend(producer(tensor) for tensor in node.input)
        return seen

    def main_descendants(self, sources: Iterable[str]) -> set[str]:
        """Names of the main graph's nodes that cannot run without `sources`: themselves and all that read them."""
        readers: dict[str, list[str]] = {}
        for node in self._main.values():
            for tensor in node.input:
                readers.setdefault(producer(tensor), []).append(node.name)
        seen: set[str] = set()
        waiting = deque(sources)
        while waiting:
            name = waiting.popleft()
            if name not in seen:
                seen.add(name)
                waiting.extend(readers.get(name, ()))
        return seen

    def reach(self, root: Root) -> tuple[set[str], set[str]]:
        """What runs from a root: names of nodes in the main graph, names of functions."""
        main = self.main_ancestors(root.nodes)
        called = set(callees([self._main[name] for name in main], self._main, self.functions))
        return main, self.reachable(called | set(root.functions))

    def reachable(self, names: Iterable[str]) -> set[str]:
        """The functions `names` and all that they call, however deep; a name without a function is left out."""
        seen: set[str] = set()
        waiting = deque(names)
        while waiting:
            name = waiting.popleft()
            if name in seen or name not in self.functions:
                continue
            seen.add(name)
            waiting.extend(self.callees(name))
        return seen

    def missing(self) -> set[str]:
        """Names of functions that something calls and the library lacks."""
        called = set(callees(self._main.values(), self._main, self.functions))
        for function in self.functions:
            called |= self.callees(function)
        return {name for name in called if name and name not in self.functions}

    def callees(self, function: str) -> frozenset[str]:
        found = self._callees.get(function)
        if found is None:
            body = self.functions[function].node_def
            found = frozenset(callees(body, {node.name: node for node in body}, self.functions))
            self._callees[function] = found
        return found

    def roots(self) -> list[Root]:
        """Every place where execution starts, signatures first; where there are absurdly many, one of each kind."""
        graph = self.meta_graph
        found = [
            Root("signature", key, tuple(producer(name) for name in _tensors(signature)))
            for key, signature in sorted(graph.signature_def.items())
            if key not in {"__saved_model_init_op", "__saved_model_train_op"}
        ]
        found += [
            Root("function", path, functions=(name,))
            for name, path in sorted(restored_functions(graph).items())
            if not path.startswith("signatures.")  # the same again
        ]
        variables = [producer(name) for name in _variable_targets(graph)]
        found += [Root("variables", name, (name,)) for name in dict.fromkeys(variables) if name in self._main]
        if len(found) * (len(self.functions) + len(self._main)) <= _ROOTS_TIMES_NODES:
            return found
        return [
            _together(kind, [root for root in found if root.kind == kind])
            for kind in dict.fromkeys(r.kind for r in found)
        ]


def _together(kind: str, roots: list[Root]) -> Root:
    nodes = tuple(node for root in roots for node in root.nodes)
    functions = tuple(function for root in roots for function in root.functions)
    return Root(kind, f"one of {len(roots)}", nodes, functions)


def callees(nodes: Iterable[Any], by_name: dict[str, Any], functions: dict[str, Any]) -> Iterator[str]:
    """The functions that `nodes` call on a CPU."""
    for node in nodes:
        if node.op in functions:
            yield node.op
        if node.op in {"Case", "StatelessCase"}:
            branches = [f.name for f in node.attr["branches"].list.func] if "branches" in node.attr else []
            chosen = cpu_branch(node, by_name, len(branches))
            yield from branches if chosen is None else [branches[chosen]]
            continue
        for value in node.attr.values():
            kind = value.WhichOneof("value")
            if kind == "func":
                yield value.func.name
            elif kind == "list":
                for function in value.list.func:
                    yield function.name


def cpu_branch(node: Any, by_name: dict[str, Any], branches: int) -> int | None:
    """Which branch of a `Case` runs on a CPU; None where its index does not depend on the device.

    DeviceIndex gives the place of its device in `device_names`, or their number; an index outside the branches means
    the last one (tensorflow/core/ops/functional_ops.cc).
    """
    source = by_name.get(producer(node.input[0])) if node.input else None
    for _ in range(8):  # through Identity nodes, of which there is none or one
        if source is None or source.op != "Identity" or not source.input:
            break
        source = by_name.get(producer(source.input[0]))
    if source is None or source.op != "DeviceIndex" or not branches:
        return None
    names = source.attr["device_names"].list.s if "device_names" in source.attr else ()
    devices = [name.decode("utf-8", "replace") for name in names]
    index = devices.index("CPU") if "CPU" in devices else len(devices)
    return min(index, branches - 1)


def producer(tensor: str) -> str:
    """The node that makes a tensor: `^node`, `node:1` and `node:output:0` all mean `node`."""
    return tensor.lstrip("^").split(":", 1)[0]


def restored_functions(meta_graph: Any) -> dict[str, str]:
    """The functions that loading the folder gives back as attributes: name in the library -> path of the attribute."""
    objects = meta_graph.object_graph_def
    nodes = objects.nodes
    paths = {0: ""}
    waiting = deque([0])
    found: dict[str, str] = {}
    while waiting:
        index = waiting.popleft()
        if not 0 <= index < len(nodes):
            continue
        node = nodes[index]
        kind = node.WhichOneof("kind")
        if kind == "function":
            for name in node.function.concrete_functions:
                found.setdefault(name, paths[index])
        elif kind == "bare_concrete_function":
            found.setdefault(node.bare_concrete_function.concrete_function_name, paths[index])
        for child in node.children:
            if child.node_id not in paths:
                paths[child.node_id] = f"{paths[index]}.{child.local_name}".lstrip(".")
                waiting.append(child.node_id)
    for name in objects.concrete_functions:
        found.setdefault(name, name)
    return found


def _tensors(signature: Any) -> Iterator[str]:
    for info in signature.outputs.values():
        kind = info.WhichOneof("encoding")
        if kind == "name":
            yield info.name
        elif kind == "coo_sparse":
            yield from (info.coo_sparse.values_tensor_name, info.coo_sparse.indices_tensor_name)
            yield info.coo_sparse.dense_shape_tensor_name
        elif kind == "composite_tensor":
            yield from (part.name for part in info.composite_tensor.components)


def _variable_targets(meta_graph: Any) -> Iterator[str]:
    saver = meta_graph.saver_def
    yield from (name for name in (saver.restore_op_name, saver.save_tensor_name) if name)
    for key in ("saved_model_main_op", "legacy_init_op"):
        if key in meta_graph.collection_def:
            yield from meta_graph.collection_def[key].node_list.value
    if "__saved_model_init_op" in meta_graph.signature_def:
        yield from _tensors(meta_graph.signature_def["__saved_model_init_op"])
