"""A live Keras model as the tree of layers that the rules read, and how to get from its nodes back to its layers.

Layers are found where Python holds them: in a model's graph, in wrappers, and in the attributes of layers and models
that users wrote, lists and dicts included. Nothing is called, built or changed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lstm_swap.architecture import RECURRENT_KINDS, Array, Node
from lstm_swap.planning import Decision

#: Where a layer hangs: the attribute, then keys or positions in the containers below it.
Place = tuple[Any, ...]

#: Attributes in which Keras keeps a second book of the layers that it tracks. So do those that begin with "_self_".
_BOOKKEEPING = frozenset(
    """_layers _operations _operations_by_depth _nodes _nodes_by_depth _functional _tracker _tracked _inputs _outputs
    _inputs_struct _outputs_struct _inbound_nodes _outbound_nodes _compiled_trainable_state _losses _metrics
    nnx_operations _nnx_op_mapping""".split()
)

#: Classes whose names the rules know; another class of such a name is not taken for one of them.
_KNOWN = frozenset(RECURRENT_KINDS) | {"Bidirectional", "TimeDistributed", "LSTMCell", "GRUCell", "StackedRNNCells"}

#: Settings of recurrent layers and their cells, by the names of their attributes and arguments.
_FUNCTIONS = ("activation", "recurrent_activation")
_SETTINGS = tuple(
    """units filters use_bias unit_forget_bias reset_after dropout recurrent_dropout seed return_sequences return_state
    go_backwards stateful unroll zero_output_for_mask use_cudnn activity_regularizer kernel_initializer
    recurrent_initializer bias_initializer kernel_regularizer recurrent_regularizer bias_regularizer kernel_constraint
    recurrent_constraint bias_constraint""".split()
)


@dataclass(eq=False)
class LiveTree:
    """The tree of a live model. layers: by id of a node, the layer that it stands for."""

    root: Node
    layers: dict[int, Any] = field(default_factory=dict)

    def layer_of(self, decision: Decision) -> Any:
        return self.layers[id(decision.node)]


def functional_class() -> type[Any]:
    """The class of models that are a graph, which Keras does not export."""
    found: type[Any] = importlib.import_module("keras.src.models.functional").Functional
    return found


def places(layer: Any) -> Iterator[tuple[Place, Any]]:
    """Every layer that hangs directly on this one, in its attributes or in lists, tuples and dicts there."""
    import keras

    def below(place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
        if isinstance(value, keras.layers.Layer):
            yield place, value
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from below((*place, key), item)
        elif isinstance(value, (list, tuple)):
            for position, item in enumerate(value):
                yield from below((*place, position), item)

    for name, value in list(vars(layer).items()):
        if name not in _BOOKKEEPING and not name.startswith("_self_"):
            yield from below((name,), value)


def sublayers(layer: Any) -> list[Any]:
    """The layers inside a layer, each once: a model's in its own order, then those in attributes."""
    import keras

    found: dict[int, Any] = {}
    if isinstance(layer, (keras.Sequential, functional_class())):
        found.update((id(inner), inner) for inner in layer.layers)
    for _, inner in places(layer):
        found.setdefault(id(inner), inner)
    return list(found.values())


def walk(layer: Any) -> Iterator[Any]:
    """A layer and everything inside it, each once, outermost first."""
    seen: set[int] = set()
    stack = [layer]
    while stack:
        item = stack.pop()
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            stack.extend(reversed(sublayers(item)))


def class_name(layer: Any) -> str:
    """The class as the rules know it: a user's class that is merely called LSTM gets its module in front."""
    import keras

    cls = type(layer)
    name = cls.__name__
    if isinstance(layer, keras.layers.Bidirectional):
        return "Bidirectional"
    if name in _KNOWN and getattr(keras.layers, name, None) is not cls and cls.__module__ != "lstm_swap.layers":
        return f"{cls.__module__}.{name}"
    return str(name)


def is_foreign_rnn(layer: Any) -> bool:
    """A user's own subclass of a recurrent layer, whose code a swap would lose."""
    import keras

    base = getattr(importlib.import_module("lstm_swap.layers.base"), "FusedRNN", ()) if _fused_loaded() else ()
    return isinstance(layer, (keras.layers.RNN, base)) and class_name(layer) not in RECURRENT_KINDS


def _fused_loaded() -> bool:
    import sys

    return "lstm_swap.layers" in sys.modules


def model_tree(model: Any) -> LiveTree:
    """The tree of a live model, with a handle on each array of its recurrent layers."""
    tree = LiveTree(Node({"class_name": type(model).__name__, "config": {}}, model.name, "", "model"))
    tree.layers[id(tree.root)] = model
    seen = {id(model)}
    stack = [tree.root]
    while stack:
        node = stack.pop()
        for role, inner in _inner(tree.layers[id(node)]):
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            name = _name_in_path(role, str(inner.name))
            path = f"{node.path}/{name}" if node.path else name
            child = Node({"class_name": class_name(inner), "config": {}}, name, path, role, node)
            if role == "cell" or child.kind is not None:
                child.entry["config"] = settings_of(inner)
            if role == "cell" or (child.kind is not None and child.class_name != "RNN"):
                child.arrays = [_array(variable) for variable in inner.weights]
            node.children.append(child)
            tree.layers[id(child)] = inner
        stack.extend(reversed(node.children))
    return tree


def _inner(layer: Any) -> list[tuple[str, Any]]:
    """Role and layer of what the rules shall see inside a layer."""
    import keras

    name = class_name(layer)
    if name == "Bidirectional":
        return [("forward", layer.forward_layer), ("backward", layer.backward_layer)]
    if name == "RNN":
        return [("cell", layer.cell)] if isinstance(layer.cell, keras.layers.Layer) else []
    if name in RECURRENT_KINDS:  # the cell of an LSTM is no layer of its own
        return []
    role = "layer" if name == "TimeDistributed" else "item"
    return [(role, inner) for inner in sublayers(layer)]


def _name_in_path(role: str, name: str) -> str:
    """As `architecture.build_tree` has it: the halves of a Bidirectional say which they are."""
    prefix = f"{role}_" if role in ("forward", "backward") else ""
    return name if name.startswith(prefix) else prefix + name


def settings_of(layer: Any) -> dict[str, Any]:
    """The settings of a recurrent layer or cell, as `get_config` names them, read from the layer itself.

    Objects (initializers and the like) are the layer's own, so that nothing need be written down. Functions go by names
    that can be trusted. `use_cudnn`, which Keras leaves out of its configs, is in it.
    """
    config = {"name": layer.name, "trainable": layer.trainable, "dtype": layer.dtype_policy.name}
    holders = [item for item in (layer, getattr(layer, "cell", None)) if item is not None]
    for key in (*_SETTINGS, *_FUNCTIONS):
        for holder in holders:
            if hasattr(holder, key):
                value = getattr(holder, key)
                config[key] = function_name(value) if key in _FUNCTIONS else value
                break
    return config


def function_name(function: Any) -> str:
    """Keras's name of a function of Keras or TensorFlow; any other function gets its module in front.

    A user's own function may be called tanh too, and must not be taken for it.
    """
    if function is None:
        return "linear"
    name = str(getattr(function, "__name__", type(function).__name__))
    module = str(getattr(function, "__module__", "") or "")
    if module.split(".")[0] in ("keras", "tensorflow"):
        return name
    return f"{module}.{name}"


def is_users(value: Any) -> bool:
    """A function, or an object of a class, that is not part of Keras or TensorFlow."""
    if isinstance(value, type) or not (inspect.isroutine(value) or callable(value)):
        return False
    module = str(getattr(value, "__module__", "") or "")
    return module.split(".")[0] not in ("keras", "tensorflow", "lstm_swap")


def to_numpy(variable: Any) -> np.ndarray[Any, Any]:
    """A variable's value; of one that is mirrored over several devices, that of the first."""
    import keras

    tensor = keras.ops.convert_to_tensor(variable)
    if keras.backend.backend() == "torch":
        return np.asarray(keras.ops.convert_to_numpy(tensor))
    return np.asarray(tensor)


def _array(variable: Any) -> Array:
    return Array(str(variable.path), tuple(variable.shape), str(variable.dtype), lambda: to_numpy(variable))
