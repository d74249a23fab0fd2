"""The state of a live model, carried over to its clone: weights, random seeds, states of recurrent layers, flags.

Arrays of layers that changed their class go through `weights.layouts.swap`, which moves numbers and never rounds them,
and the two layers' arrays are then compared as functions by `proof`, as they are for files.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lstm_swap.architecture import Node
from lstm_swap.errors import UnsupportedLayerError, VerificationError
from lstm_swap.live_clone import Cloner
from lstm_swap.live_tree import settings_of, to_numpy
from lstm_swap.planning import Decision
from lstm_swap.proof import TOLERANCE, Prover, recurrence
from lstm_swap.rules import FORM_OF_CLASS
from lstm_swap.settings import own_config
from lstm_swap.weights import layouts

Arrays = list[np.ndarray[Any, Any]]
LOG = logging.getLogger("lstm_swap")


@dataclass(frozen=True)
class Link:
    """Where a variable of the original has gone.

    Attributes:
        new: the variable of the clone.
        decision: of its layer, where that changed its layout; else None.
        group: the original's variables kernel, recurrent kernel and bias, which change their layout together.
        new_group: the same of the clone.
        position: of the variable in both.
    """

    new: Any
    decision: Decision | None = None
    group: tuple[Any, ...] = ()
    new_group: tuple[Any, ...] = ()
    position: int = 0


def swap(decision: Decision, arrays: Sequence[Any], *, slots: bool = False) -> Arrays:
    """A layer's arrays, or optimizer slots that mirror them, in the layout of its new class."""
    source, target = decision.settings.form, FORM_OF_CLASS[decision.to_class]
    change = layouts.swap_slots if slots else layouts.swap
    return change(decision.settings.kind, list(arrays), source, target)


def carry_over(cloner: Cloner, model: Any) -> dict[int, Link]:
    """Give every variable of the clone its value, and say which variable of the original went where (by its id).

    Raises:
        UnsupportedLayerError: a layer made anew has other variables than the original.
        VerificationError: the arrays of a swapped layer are not finite, or compute something else.
    """
    links: dict[int, Link] = {}
    for group in {id(group): group for group in cloner.regroups.values()}.values():
        for variable, target in group.variables():
            target.assign(to_numpy(variable))
            target.trainable = variable.trainable
            links[id(variable)] = Link(target)
    for layer, new in cloner.pairs.values():
        decision = cloner.swaps.get(id(layer))
        if decision is not None:
            if layer.built:
                links.update(_swapped(decision, layer, new))
        else:
            links.update(_copied(layer, new))
        _states(layer, new)
        new._trainable = layer._trainable
    for layer, new in cloner.pairs.values():
        for variable in layer._trainable_variables:
            if id(variable) in links:
                links[id(variable)].new.trainable = variable.trainable
        if id(layer) in cloner.swaps:
            for variable in new._trainable_variables:
                variable.trainable = layer.trainable
    _check_all_filled(links, cloner, model)
    return links


def role_variables(layer: Any) -> list[Any]:
    """Kernel, recurrent kernel and, where there is one, bias of an LSTM or GRU in any form, or of an RNN(cell)."""
    holder = getattr(layer, "cell", layer)
    found = [holder.kernel, holder.recurrent_kernel, holder.bias]
    return [variable for variable in found if variable is not None]


def _swapped(decision: Decision, layer: Any, new: Any) -> dict[int, Link]:
    group, new_group = role_variables(layer), role_variables(new)
    arrays = [to_numpy(variable) for variable in group]
    result = swap(decision, arrays)
    decision.max_error = _prove(decision, settings_of(new), arrays, result)
    for variable, value in zip(new_group, result, strict=True):
        variable.assign(value.astype(variable.dtype) if value.dtype != variable.dtype else value)
    seeds = [getattr(getattr(item, "cell", item), "seed_generator", None) for item in (layer, new)]
    if seeds[0] is not None and seeds[1] is not None:
        seeds[1].state.assign(to_numpy(seeds[0].state))
    return {
        id(variable): Link(new_group[i], decision, tuple(group), tuple(new_group), i)
        for i, variable in enumerate(group)
    }


def _prove(decision: Decision, config: dict[str, Any], before: Arrays, after: Arrays) -> float | None:
    """The largest difference of old and new arrays as functions, by the NumPy reference in float64."""
    if not all(np.isfinite(array).all() for array in before):
        LOG.warning("%s: NaN or infinite weights (a diverged training?): moved, and nothing proved", decision.path)
        return None
    prover = Prover(decision.path)
    node = Node({"class_name": decision.to_class, "config": config}, decision.node.name, decision.path, "item")
    old = recurrence(decision.settings, own_config(decision.node), len(before), prover.dialect)
    worst = prover._compare(node, old, before, after)
    if not worst <= TOLERANCE:
        raise VerificationError(
            f"layer {decision.path!r}: old and new arrays differ by {worst:.3g} (allowed {TOLERANCE:g})"
        )
    return worst


def _copied(layer: Any, new: Any) -> dict[int, Link]:
    """The variables that a layer itself owns, one by one."""
    links: dict[int, Link] = {}
    for store in ("_trainable_variables", "_non_trainable_variables"):
        old, made = getattr(layer, store), getattr(new, store)
        shapes = [[tuple(v.shape) for v in variables] for variables in (old, made)]
        if shapes[0] != shapes[1]:
            raise UnsupportedLayerError(
                f"{layer.name}: {type(layer).__name__} made anew from its config has variables of shapes {shapes[1]}, "
                f"the original of {shapes[0]}; give the class a build (and get_build_config) that makes them all"
            )
        for variable, target in zip(old, made, strict=True):
            target.assign(to_numpy(variable))
            links[id(variable)] = Link(target)
    for seed, target in zip(layer._seed_generators, new._seed_generators, strict=False):
        target.state.assign(to_numpy(seed.state))
    _beyond_variables(layer, new)
    return links


def _beyond_variables(layer: Any, new: Any) -> None:
    """What a layer keeps elsewhere (words of a TextVectorization, mean of a Normalization), as a file would hold it."""
    own = not str(type(layer).load_own_variables.__module__).startswith("keras.src.")
    if own or hasattr(layer, "finalize_state"):
        store: dict[str, Any] = {}
        layer.save_own_variables(store)
        new.load_own_variables(store)
    if hasattr(layer, "save_assets") and hasattr(layer, "load_assets"):
        with tempfile.TemporaryDirectory(prefix="lstm-swap-") as folder:
            layer.save_assets(folder)
            new.load_assets(folder)


def _states(layer: Any, new: Any) -> None:
    """What a stateful layer remembers of the batch before."""
    import keras

    if "states" not in vars(layer):  # a Bidirectional shows the states of its halves
        return
    old, made = (keras.tree.flatten(item.states) for item in (layer, new))
    for variable, target in zip(old, made, strict=True):
        if isinstance(variable, keras.Variable):
            target.assign(to_numpy(variable))


def _check_all_filled(links: dict[int, Link], cloner: Cloner, model: Any) -> None:
    filled = {id(link.new) for link in links.values()}
    for layer, new in cloner.pairs.values():
        if id(layer) in cloner.swaps:
            filled.update(id(variable) for variable in new.weights)
    missing = [variable.path for variable in cloner.pairs[id(model)][1].weights if id(variable) not in filled]
    lost = len({id(v) for v in model.weights} - set(links))
    if missing or lost:
        raise UnsupportedLayerError(
            f"{model.name}: {lost} variables of the model were not found in its clone, and the clone has "
            f"{len(missing)} of its own ({', '.join(missing[:3])}); a layer keeps them where they cannot be followed"
        )
