"""What hangs on a layer or model of the user's: carried over to a second object that was made without its `__init__`.

Layers become their clones, variables, metrics and random generators new ones; anything else is shared, unless it leads
back to layers or variables of the original: a function that closes over one, an object that holds one.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

from lstm_swap.live_rebuild import rebuilt
from lstm_swap.live_tree import to_numpy

#: What `compile`, `fit` and `predict` leave on a model; `live_compile` sees to it.
_OF_TRAINING = frozenset(
    """optimizer loss history stop_training steps_per_execution train_function test_function predict_function
    _compile_config _compiled_trainable_state""".split()
)

#: What every layer has from Keras and may have changed.
_OF_EVERY_LAYER = (
    "_supports_masking",
    "_input_spec",
    "_convert_input_args",
    "_allow_non_tensor_positional_args",
    "autocast",
    "activity_regularizer",
    "supports_jit",
    "built",
    "_build_shapes_dict",
)

#: More objects than this are not looked through for layers.
_LIMIT = 10_000


def unmade(layer: Any) -> Any:
    """A new object of a layer's class, before any `__init__`."""
    cls: Any = type(layer)
    return cls.__new__(cls)


def shell(layer: Any) -> Any:
    """A new object of a layer's class, as Keras's own `__init__` leaves it, with variables of the same kind."""
    import keras

    new = unmade(layer)
    base = keras.Model if isinstance(layer, keras.Model) else keras.layers.Layer
    base.__init__(new, name=layer.name, trainable=layer.trainable, dtype=layer.dtype_policy)
    for name in _OF_EVERY_LAYER:
        setattr(new, name, getattr(layer, name))
    return new


def carry_attributes(layer: Any, new: Any, clone: Callable[[Any], Any]) -> list[str]:
    """Set on `new` what is set on `layer` and is not Keras's own.

    Args:
        clone: the clone of a layer.

    Returns:
        The names of attributes that were left out, because they lead to layers or variables of the original.
    """
    import keras

    variables: dict[int, Any] = {}
    for variable in layer._trainable_variables + layer._non_trainable_variables:
        made = keras.Variable(
            to_numpy(variable), trainable=variable.trainable, dtype=variable.dtype, name=variable.name
        )
        made.regularizer, made.constraint = variable.regularizer, variable.constraint
        variables[id(variable)] = made
        new._track_variable(made)

    def mapped(value: Any) -> Any:
        if id(value) in variables:
            return variables[id(value)]
        if isinstance(value, keras.layers.Layer):
            return clone(value)
        if isinstance(value, (keras.metrics.Metric, keras.random.SeedGenerator)):
            return rebuilt(value)
        if isinstance(value, dict):
            return {key: mapped(item) for key, item in value.items()}
        if isinstance(value, list):
            return [mapped(item) for item in value]
        if type(value) is tuple:
            return tuple(mapped(item) for item in value)
        if isinstance(value, types.MethodType) and value.__self__ is layer:
            return types.MethodType(value.__func__, new)
        if leads_to_state(value):
            raise LookupError
        return value

    left = []
    new._auto_config = layer._auto_config
    for name, value in list(vars(layer).items()):
        known = name in vars(new) or name in _OF_TRAINING or name.startswith("_self_")
        if known or isinstance(value, keras.optimizers.Optimizer):
            continue
        try:
            setattr(new, name, mapped(value))
        except LookupError:
            left.append(name)
    return left


def leads_to_state(value: Any) -> bool:
    """Can a layer or a variable be reached from this object, through attributes, containers and closures?"""
    import keras

    seen: set[int] = set()
    stack = [value]
    while stack and len(seen) < _LIMIT:
        item = stack.pop()
        if id(item) in seen or item is None or isinstance(item, (str, bytes, int, float, type, types.ModuleType)):
            continue
        seen.add(id(item))
        if isinstance(item, (keras.layers.Layer, keras.Variable)) or _is_variable(item):
            return True
        if isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack += item
        elif isinstance(item, types.MethodType):
            stack += [item.__self__, item.__func__]
        elif isinstance(item, partial):
            stack += [item.func, *item.args, *item.keywords.values()]
        elif isinstance(item, types.FunctionType):
            stack += [*_closed_over(item), *(item.__defaults__ or ())]
        else:
            stack += getattr(item, "__dict__", {}).values()
    return False


def _is_variable(item: Any) -> bool:
    """One of TensorFlow's own, or its kind."""
    return hasattr(item, "assign") and hasattr(item, "numpy")


def _closed_over(function: types.FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a name that has no value yet
            continue
    return found
