"""Models of Keras 1 and 2, written as Keras 3 reads them: their class, their input layers, their graph."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import Node, entry_name, is_model_entry, layer_entries
from lstm_swap.dialects.calls3 import translate_calls
from lstm_swap.dialects.context import Context
from lstm_swap.dialects.graph import Graph, Ref, is_functional
from lstm_swap.dialects.insertion import Insertions
from lstm_swap.dialects.layers3 import flatten_json
from lstm_swap.dialects.mask_notes import note_masks
from lstm_swap.dialects.names import rename_layers, unique_name
from lstm_swap.dialects.tf_op_layers import translate_op_layer
from lstm_swap.dialects.tf_ops import translate_function

_FUNCTIONAL_KEYS = ("name", "trainable", "layers", "input_layers", "output_layers")


def translate_model(node: Node, context: Context, dialect: str, insertions: Insertions) -> None:
    """Rewrite the entry of `node`, a model whose layers are translated already, in place.

    Args:
        dialect: what the graph is written in now, "keras1" or "keras2".
        insertions: the layers that are to stand before others.
    """
    entry = node.entry
    if isinstance(entry.get("config"), list):
        entry["config"] = {
            "name": entry_name(entry).lower() if "name" not in entry else entry["name"],
            "layers": entry["config"],
        }
        context.add(node, "config", "list", "object", "opens", "Keras 3 reads no bare list of layers")
    config = node.config
    if not isinstance(config.get("name"), str):
        config["name"] = str(entry.get("name") or "model")
    if node.role == "model" and "/" in config["name"]:  # the names of inner models are seen to with their layers
        old, config["name"] = config["name"], config["name"].replace("/", "_")
        context.add(node, "name", old, config["name"], "opens", f"the model {old!r} has a / in its name")
    if is_functional(entry):
        graph = Graph(node, dialect)
        _report_bases(node, graph, context)
        renames = rename_layers(node, context)
        graph.rename(renames)
        if context.masks:
            note_masks(node, graph, context)
        translate_calls(node, graph, context)
        for child in list(node.children):
            if child.class_name in ("TFOpLambda", "SlicingOpLambda"):
                translate_function(child, graph, context)
            elif child.class_name == "TensorFlowOpLayer":
                translate_op_layer(child, graph, context)
        insertions.insert(node, graph)
        graph.inputs, graph.outputs = _single(graph.inputs), _single(graph.outputs)
        graph.write("keras3")
        if entry["class_name"] in ("Model", "Functional"):
            for key in [k for k in config if k not in _FUNCTIONAL_KEYS]:
                del config[key]
            entry["class_name"] = "Functional"
            _finish(node, "keras.src.models.functional", context)
    else:
        rename_layers(node, context)
        if context.masks:
            note_masks(node, None, context)
        _input_layer(node, context)  # before anything stands in front of the layer that states the shape
        insertions.insert(node, None)
        if entry["class_name"] == "Sequential":
            config.pop("build_input_shape", None)
            _finish(node, "keras", context)


def _finish(node: Node, module: str, context: Context) -> None:
    entry = node.entry
    old = entry.get("module")
    if node.role not in ("item", "model") and old is None:
        message = "inside a wrapper Keras 3 finds a model by its module alone, which the file lacks"
        context.add(node, "module", None, module, "opens", message)
    elif isinstance(old, str) and old not in ("keras", "keras.models", module):
        context.add(node, "module", old, module, "opens", f"Keras 3 has no module {old}")
    entry["module"] = module
    entry["registered_name"] = None
    entry.pop("build_config", None)
    shared = entry.pop("shared_object_id", None)
    if shared is not None and node.role != "model":
        context.shared.setdefault(shared, []).append(node.path or node.name)


def _single(ends: Any) -> Any:
    """One tensor in place of a list of one, as Keras 3 writes it: else a nested model would answer with a list."""
    return ends[0] if isinstance(ends, list) and len(ends) == 1 and isinstance(ends[0], Ref) else ends


def _report_bases(node: Node, graph: Graph, context: Context) -> None:
    for name in graph.counted_from_one:
        message = f"the calls of the nested model {name} are counted from 1, and from 0 in Keras 3"
        context.add(node, "inbound_nodes", 1, 0, "opens", message)


# ---------------------------------------------------------------------- inputs of Sequential models
def _input_layer(node: Node, context: Context) -> None:
    """Put an InputLayer first: without one Keras 3 makes no weights until the model sees data."""
    layers = layer_entries(node.entry)
    if not layers or not isinstance(layers[0], dict) or layers[0].get("class_name") == "InputLayer":
        return
    known = _stated_shape(node, context)
    stated = known is not None
    if known is None:
        known = _guessed_shape(node)
    if known is None:
        return
    shape, dtype = known
    name = unique_name(f"{entry_name(layers[0])}_input", {entry_name(e) for e in layers if isinstance(e, dict)})
    dtype = dtype if dtype in _PLAIN_DTYPES else context.default_dtype
    config = {"batch_shape": shape, "dtype": dtype, "sparse": False, "name": name}
    entry = {"module": "keras.layers", "class_name": "InputLayer", "config": config, "registered_name": None}
    layers.insert(0, entry)
    path = f"{node.path}/{name}" if node.path else name
    node.children.insert(0, Node(entry, name, path, "item", node))
    why = "the first layer states it" if stated else "as far as the arrays of the first layer tell"
    message = f"Keras 3 wants an input layer; its shape is {shape}, {why}"
    context.add(node, "batch_input_shape", shape, name, "opens", message)


_PLAIN_DTYPES = {
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "bool",
    "string",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}


def _stated_shape(node: Node, context: Context) -> tuple[list[int | None], str | None] | None:
    """The input shape that the first layer of a Sequential states, or the model's own record of it."""
    entry = layer_entries(node.entry)[0]
    while True:  # the first layer may be a model, or a wrapper round the layer that states it
        if id(entry) in context.input_shapes:
            return context.input_shapes[id(entry)]
        config = entry.get("config")
        if entry.get("class_name") == "InputLayer" and isinstance(config, dict):
            shape = config.get("batch_shape")
            return (list(shape), config.get("dtype")) if isinstance(shape, list) else None
        if is_functional(entry) and isinstance(config, dict):
            return _functional_input(entry)
        inner = layer_entries(entry)[0] if is_model_entry(entry) and layer_entries(entry) else None
        if inner is None and isinstance(config, dict):
            inner = config.get("layer")
        if not isinstance(inner, dict) or "class_name" not in inner:
            break
        entry = inner
    for source in (node.config.get("build_input_shape"), (node.entry.get("build_config") or {}).get("input_shape")):
        shape = flatten_json(source)
        if isinstance(shape, list) and shape and not isinstance(shape[0], list):
            return shape, None
    return None


def _functional_input(entry: dict[str, Any]) -> tuple[list[int | None], str | None] | None:
    inputs = [e for e in layer_entries(entry) if isinstance(e, dict) and e.get("class_name") == "InputLayer"]
    if len(inputs) != 1:
        return None
    config = inputs[0].get("config", {})
    shape = config.get("batch_shape")
    return (list(shape), config.get("dtype")) if isinstance(shape, list) else None


_RANKS = {
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU", "Conv1D", "Dense"), -2),
}


def _guessed_shape(node: Node) -> tuple[list[int | None], str | None] | None:
    """A shape from the kernel of the first layer that has one, where nothing is stated.

    Kernels are (features, ...) for dense and recurrent layers and (..., channels, filters) for convolutions.
    """
    first = node.children[0] if node.children else None
    while first is not None and first.class_name in ("Bidirectional", "TimeDistributed") and first.children:
        first = first.children[0]
    if first is None:
        return None
    shapes = [a.shape for a in first.arrays]
    name = first.class_name
    if name == "Embedding":
        return [None, None], None
    if not shapes or len(shapes[0]) < 2:
        return None
    kernel = shapes[0]
    wrapped = first.role == "layer"
    if name == "Dense":
        return ([None, None, kernel[0]] if wrapped else [None, kernel[0]]), None
    if name in ("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU"):
        return [None, None, kernel[0]], None
    if name in ("Conv1D", "Conv2D", "Conv3D") and first.config.get("data_format") != "channels_first":
        return [None] * (len(kernel) - 1) + [kernel[-2]], None
    return None
