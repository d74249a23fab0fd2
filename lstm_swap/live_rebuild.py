"""A second object from a live one: layers, metrics, optimizers, each through its own `get_config` and `from_config`.

The classes and functions that the object itself uses are at hand while it is rebuilt, so nothing need be registered,
and a function lives on as the very function: no bytecode takes its place.
"""

from __future__ import annotations

import contextlib
import importlib
import types
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from lstm_swap.live_tree import is_users, walk


def rebuilt(thing: Any) -> Any:
    """A new object with the settings of `thing` (a layer, metric or optimizer) and no state of it.

    Raises:
        Exception: whatever `get_config` or `from_config` raises.
    """
    cls = type(thing)
    with objects_at_hand(thing):
        live = {key: value for key in thing.get_config() if _is_function(value := getattr(thing, key, None))}
        try:
            new = cls.from_config({**_unbuilt(thing.get_config()), **live})
        except (TypeError, ValueError):
            if not live:
                raise
            new = cls.from_config(_unbuilt(thing.get_config()))  # a from_config that wants functions in writing
    for name, value in users_functions(thing).items():
        if callable(vars(new).get(name)):
            setattr(new, name, value)
    return new


def _unbuilt(config: Any) -> Any:
    """A config in which no layer says in which shape it was built: most of those would be built for nothing."""
    if isinstance(config, dict):
        entry = "class_name" in config and "config" in config
        return {key: _unbuilt(value) for key, value in config.items() if not (entry and key == "build_config")}
    return [_unbuilt(item) for item in config] if isinstance(config, list) else config


def describes_itself(thing: Any) -> bool:
    """Does `get_config` work? It fails for a function that cannot be written down, such as a partial one."""
    try:
        with objects_at_hand(thing):
            thing.get_config()
    except Exception:
        return False
    return True


def users_functions(thing: Any) -> dict[str, Any]:
    """The functions of the user's that are attributes of an object, by the names of the attributes."""
    return {name: value for name, value in vars(thing).items() if _is_function(value) and name not in _WRAPPERS}


def _is_function(value: Any) -> bool:
    return isinstance(value, (types.FunctionType, partial)) and is_users(value)


#: Methods that Keras wraps anew for each layer and keeps among its attributes.
_WRAPPERS = ("build", "quantize")


@contextlib.contextmanager
def objects_at_hand(thing: Any) -> Iterator[None]:
    """Deserialization knows every class and function that `thing` holds; lambdas are let through.

    What is read back was written a moment before, from objects of this very process, so no foreign code can be in it.
    """
    import keras

    scope = getattr(importlib.import_module("keras.src.saving.serialization_lib"), "SafeModeScope", None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(keras.saving.custom_object_scope(custom_objects(thing)))
        if scope is not None:
            stack.enter_context(scope(safe_mode=False))
        stack.enter_context(quiet())
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that the user has seen when the original was made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def custom_objects(thing: Any) -> dict[str, Any]:
    """Classes and functions that are not part of Keras, found in the attributes of `thing` and of layers inside it."""
    import keras

    found: dict[str, Any] = {}

    def add(value: Any) -> None:
        if _is_function(value):
            found.setdefault(str(getattr(value, "__name__", "")), value)
        elif is_users(value):
            cls = type(value)
            found.setdefault(cls.__name__, cls)
            found.setdefault(keras.saving.get_registered_name(cls), cls)

    inside: Iterable[Any] = walk(thing) if isinstance(thing, keras.layers.Layer) else [thing]
    for item in inside:
        add(item)
        for name, value in vars(item).items():
            if name in _WRAPPERS:
                continue
            for part in value if isinstance(value, (list, tuple)) else [value]:
                add(part)
    return found
