"""Compile settings and optimizer state of a live model, for its clone.

An optimizer of Keras 3 keeps its slots in lists that run parallel to the variables that it trains; what is no slot (the
number of iterations, the learning rate) is a scalar. Slots of a layer whose arrays changed their layout change theirs
in the same way (`weights.layouts.swap_slots`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from lstm_swap.live_rebuild import rebuilt
from lstm_swap.live_state import Link, swap
from lstm_swap.live_tree import to_numpy

LOG = logging.getLogger("lstm_swap")

#: Lists of an optimizer that hold no slots.
_NO_SLOTS = ("_variables", "_trainable_variables")


def carry_compilation(model: Any, new: Any, links: dict[int, Link]) -> None:
    """Compile the clone as the original is compiled, and move the optimizer's state. Metrics begin afresh."""
    import keras

    stored = getattr(getattr(model, "_compile_config", None), "config", None)
    if not model.compiled or stored is None:
        return
    if type(model).compile is not keras.Model.compile:
        LOG.warning("%s: its class has a compile method of its own; compile the new model yourself", model.name)
        return
    optimizer = None if model.optimizer is None else new_optimizer(model.optimizer)
    settings = dict(stored)
    settings.update(
        optimizer=optimizer,
        metrics=_fresh_metrics(stored.get("metrics")),
        weighted_metrics=_fresh_metrics(stored.get("weighted_metrics")),
        jit_compile=_jit(model, new),
        auto_scale_loss=isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer),
    )
    new.compile(**settings)
    if optimizer is not None:
        move_optimizer(model.optimizer, optimizer, new, links)


def _jit(model: Any, new: Any) -> bool | str:
    """XLA or not. Keras keeps what "auto" came to, not that it was asked, and a model that cannot is not compiled."""
    could, can = (all(layer.supports_jit for layer in item._flatten_layers()) for item in (model, new))
    if model.jit_compile:
        return can
    return False if could else "auto"


def _fresh_metrics(metrics: Any) -> Any:
    """Metrics of the same settings without what they have counted; names and functions as they are."""
    import keras

    if isinstance(metrics, keras.metrics.Metric):
        return rebuilt(metrics)
    if isinstance(metrics, dict):
        return {key: _fresh_metrics(item) for key, item in metrics.items()}
    if isinstance(metrics, (list, tuple)):
        return [_fresh_metrics(item) for item in metrics]
    return metrics


def new_optimizer(optimizer: Any) -> Any:
    """An optimizer of the same settings; a schedule of learning rates is shared."""
    import keras

    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return type(optimizer)(
            new_optimizer(optimizer.inner_optimizer),
            initial_scale=optimizer.initial_scale,
            dynamic_growth_steps=optimizer.dynamic_growth_steps,
            name=optimizer.name,
        )
    new = rebuilt(optimizer)
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        new._learning_rate = optimizer._learning_rate
    return new


def move_optimizer(optimizer: Any, new: Any, model: Any, links: dict[int, Link]) -> None:
    """Build the clone's optimizer for the variables that the original's trains, and give it its numbers.

    Args:
        optimizer, new: the original's optimizer and the clone's, not built yet.
        model: the clone.
        links: where each variable of the original has gone.
    """
    if not optimizer.built:
        _copy_scalars(optimizer, new)
        return
    trained = list(optimizer._trainable_variables)
    targets = [links[id(variable)].new for variable in trained if id(variable) in links]
    if len(targets) < len(trained) or not {id(v) for v in model.trainable_variables} <= {id(v) for v in targets}:
        LOG.warning(
            "%s: optimizer state not moved: it was not made for the variables that the new model trains; training "
            "starts afresh",
            model.name,
        )
        return
    _exclude_from_decay(optimizer, new, trained, links)
    new.build(targets)
    left = _copy_state(optimizer, new, trained, links)
    if left:
        LOG.warning(
            "%s: optimizer state (%s) begins afresh where it does not mirror the arrays of a layer",
            model.name,
            ", ".join(left),
        )


def _copy_state(optimizer: Any, new: Any, trained: list[Any], links: dict[int, Link]) -> list[str]:
    """Copy all slots; the names of those that could not be, or not for every variable."""
    left: list[str] = []
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        left += _copy_state(inner, new.inner_optimizer, trained, links)
    found: set[int] = set()
    for attribute, slots, new_slots in _slot_lists(optimizer, new, len(trained)):
        found.update(id(slot) for slot in slots.values())
        if not _copy_slots(slots, new_slots, trained, links):
            left.append(attribute.strip("_"))
    left += [v.name for v in optimizer._variables if tuple(v.shape) != () and id(v) not in found]
    _copy_scalars(optimizer, new)
    return left


def _copy_scalars(optimizer: Any, new: Any) -> None:
    """Iterations, learning rate and the like, which the optimizer makes in one order always."""
    for variable, target in zip(optimizer._variables, new._variables, strict=False):
        if tuple(variable.shape) == () and tuple(target.shape) == ():
            target.assign(to_numpy(variable))


def _slot_lists(optimizer: Any, new: Any, count: int) -> Iterator[tuple[str, dict[int, Any], dict[int, Any]]]:
    """Name and slots by the number of the variable that they belong to, of both optimizers."""
    for attribute, value in vars(optimizer).items():
        slots, new_slots = (_by_number(item, count) for item in (value, vars(new).get(attribute)))
        if attribute not in _NO_SLOTS and slots and new_slots is not None:
            yield attribute, slots, new_slots


def _by_number(value: Any, count: int) -> dict[int, Any] | None:
    import keras

    if isinstance(value, dict):
        items = value
    elif isinstance(value, list) and len(value) == count:
        items = dict(enumerate(value))
    else:
        return None
    found = {key: item for key, item in items.items() if item is not None}
    fits = all(isinstance(key, int) and isinstance(item, keras.Variable) for key, item in found.items())
    return found if fits else None


def _copy_slots(slots: dict[int, Any], new_slots: dict[int, Any], trained: list[Any], links: dict[int, Link]) -> bool:
    """Fill the clone's slots. False where one of a swapped layer has not its array's shape, so that it stays fresh."""
    numbers = {id(variable): number for number, variable in enumerate(trained)}
    complete = True
    for number, slot in slots.items():
        link = links[id(trained[number])]
        target = new_slots.get(number)
        if target is None:
            complete = False
        elif link.decision is None:
            target.assign(to_numpy(slot))
        elif link.position == 0 or numbers.get(id(link.group[0])) not in slots:
            complete &= _copy_group(link, slots, new_slots, numbers)
    return complete


def _copy_group(link: Link, slots: dict[int, Any], new_slots: dict[int, Any], numbers: dict[int, int]) -> bool:
    """The slots of kernel, recurrent kernel and bias of one layer, together."""
    assert link.decision is not None
    there = [slots.get(numbers.get(id(variable), -1)) for variable in link.group]
    if any(s is not None and tuple(s.shape) != tuple(v.shape) for s, v in zip(there, link.group, strict=True)):
        return False
    arrays = [
        np.zeros(tuple(variable.shape), "float32") if slot is None else to_numpy(slot)
        for slot, variable in zip(there, link.group, strict=True)
    ]
    for slot, variable, array in zip(there, link.group, swap(link.decision, arrays, slots=True), strict=False):
        if slot is not None:
            new_slots[numbers[id(variable)]].assign(array)
    return True


def _exclude_from_decay(optimizer: Any, new: Any, trained: list[Any], links: dict[int, Link]) -> None:
    """Variables without weight decay, which no config names."""
    if getattr(optimizer, "inner_optimizer", None) is not None:
        _exclude_from_decay(optimizer.inner_optimizer, new.inner_optimizer, trained, links)
    keys = getattr(optimizer, "_exclude_from_weight_decay", None)
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    if keys or pattern is not None:
        variables = [links[id(v)].new for v in trained if optimizer._var_key(v) in (keys or ())]
        names = [pattern.pattern] if isinstance(pattern, re.Pattern) else None
        new.exclude_from_weight_decay(var_list=variables or None, var_names=names)
