"""Live Keras models in, live Keras models out: `plan`, `optimize`, `standardize`, and `load_model` for any file.

model -> tree of its layers -> plan -> clone -> weights, states, compile settings -> model

Keras is imported by the functions, and must be Keras 3; fused layers need its TensorFlow backend.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lstm_swap import files
from lstm_swap.errors import IneligibleLayerError, UnreadableModelError, UsageError
from lstm_swap.live_clone import Cloner
from lstm_swap.live_compile import carry_compilation
from lstm_swap.live_plan import (
    described,
    gpu_is_there,
    live_form,
    plan_file,
    plan_model,
    refusals,
    require_keras,
    require_model,
    tensorflow_runs_keras,
)
from lstm_swap.live_select import select
from lstm_swap.live_stacks import Regroup, fused_layers, merges, splits
from lstm_swap.live_state import carry_over
from lstm_swap.live_tree import LiveTree, model_tree
from lstm_swap.planning import Plan

PathLike = str | os.PathLike[str]
LOG = logging.getLogger("lstm_swap")


def plan(
    model_or_path: Any,
    to: str = "auto",
    *,
    inference: bool = False,
    weights: PathLike | None = None,
) -> Plan:
    """What `optimize` would do to a live model, or `convert` to a file: a decision for every recurrent layer.

    Nothing is changed. The plan is logged once at level INFO (logger "lstm_swap"). Faults of the running Keras that
    touch the model on a GPU that is here stand in `Plan.warnings` and are logged as warnings.

    Args:
        model_or_path: a model of Keras 3, or the path of a model in any container that `convert` reads.
        to: "auto", "standard" or "fused"; "cudnn" too for a file. "auto" is fused where a GPU with cuDNN can be used:
            as TensorFlow finds it for a live model, as files on the disk tell it for a path.
        inference: allow changes that only training would notice (see `convert`).
        weights: for a path: the weights of an architecture in JSON or YAML.

    Raises:
        UsageError: an unknown form, or no model of Keras 3.
        UnreadableModelError: the path is no model that is read here.
    """
    if isinstance(model_or_path, (str, os.PathLike)):
        form = files.choose_form(to, "keras2" if to == "cudnn" else "keras3")
        made = plan_file(model_or_path, form, inference=inference, weights=weights)
        name = Path(model_or_path).name
    else:
        require_model(model_or_path)
        _, made = plan_model(model_or_path, live_form(to), inference=inference)
        name = f"model {model_or_path.name!r}"
    _announce(name, made)
    return made


def optimize(
    model: Any,
    to: str = "auto",
    *,
    inference: bool = False,
    strict: bool = False,
    sample: Any = None,
    merge: bool | None = None,
) -> Any:
    """A new model that computes the same, its recurrent layers in the form that is fastest here.

    Names, shared layers, weights (bit for bit), `trainable`, compile settings, the optimizer's state, random seeds,
    the states of stateful layers and `use_cudnn` come along; metrics begin afresh. The original is not touched. Each
    swapped layer's arrays are proved as those of files are. What was done is logged once at level INFO (logger
    "lstm_swap").

    Made inside the scope of a `tf.distribute` strategy, or from a model that was, the new model belongs to it.

    Args:
        model: a Sequential, Functional, nested or subclassed model. A subclassed one is made anew from its config, or
            without running its `__init__` where it has none; then the layers in its attributes, lists and dicts are
            replaced. Loading a saved one runs `__init__`, which makes plain layers: `standardize` it before saving.
        to: "fused" (cuDNN on a GPU, the same numbers everywhere), "standard" (plain Keras layers), or "auto": fused
            where TensorFlow can use a GPU with cuDNN, or where there is a sample to measure with, else standard.
        inference: allow changes that only training would notice: recurrent dropout to 0, a bias of zeros.
        strict: a layer that cannot take the form is an error.
        sample: inputs for the model. Each fused layer's kernels are then timed on this machine in the shapes of the
            sample, for inference and, without `inference`, for training (a few seconds a layer; the times are kept in
            ~/.cache/lstm-swap, see LSTM_SWAP_CACHE). The fastest is set as the layer's `kernels`, which its config
            keeps. A layer that gains less than 1.1 times, or loses anywhere, stays Keras's own. Without a sample the
            kernels come from measured tables when the layer is traced.
        merge: put consecutive layers of equal width, and both halves of a Bidirectional, into one fused layer, which is
            one call of cuDNN. It has the name of the first; `standardize` takes it apart again. None: where
            TensorFlow can use a GPU with cuDNN.

    Returns:
        A new model of the same class, compiled if the original is.

    Raises:
        IneligibleLayerError: strict, and a layer is refused; says which, and every reason.
        UnsupportedLayerError: a layer or model that cannot be made anew.
        UsageError: no model of Keras 3, or an unknown form.
        VerificationError: old and new arrays of a layer differ as functions.
    """
    require_model(model)
    form = "fused" if to == "auto" and sample is not None and tensorflow_runs_keras() else live_form(to)
    if form == "standard":
        model = _regrouped(model, splits)
    tree, made = plan_model(model, form, inference=inference)
    _announce(f"model {model.name!r}", made)
    if strict and made.refused:
        raise IneligibleLayerError(refusals(f"model {model.name!r}", made))
    new = _rebuild(model, tree, made, _same_use_cudnn)
    if form == "standard":
        return new
    if gpu_is_there() if merge is None else merge:
        new = _regrouped(new, merges)
    return new if sample is None else _measured(new, sample, inference=inference)


def standardize(model: Any, *, use_cudnn: bool | str = "auto") -> Any:
    """The way back: a new model whose recurrent layers are plain Keras layers; all else as in `optimize`.

    Args:
        model: a model, with fused layers or without.
        use_cudnn: set on every LSTM and GRU, also inside Bidirectional, TimeDistributed and inner models. False for
            export to ONNX, TFLite or XLA, for second-order gradients, and for SHAP: no cuDNN op is traced then. True
            makes Keras raise where cuDNN cannot run a layer.

    Raises:
        UnsupportedLayerError: a layer or model that cannot be made anew.
        UsageError: no model of Keras 3, or another value of `use_cudnn`.
    """
    require_model(model)
    if use_cudnn not in ("auto", True, False):
        raise UsageError(f"use_cudnn must be 'auto', True or False, not {use_cudnn!r}")
    return _plain(model, use_cudnn, _announce)


def load_model(
    path: PathLike,
    to: str = "auto",
    *,
    custom_objects: dict[str, Any] | None = None,
    weights: PathLike | None = None,
    inference: bool = False,
    compile: bool = False,
    safe_mode: bool = True,
) -> Any:
    """Any file that `convert` reads, of any Keras version, as a live Keras 3 model.

    The file is converted and proved in a temporary folder, then opened by Keras.

    Args:
        path: a whole model in any container, or an architecture in JSON or YAML together with `weights`.
        to: as in `optimize`. A fused model runs without a GPU too.
        custom_objects: classes and functions of yours by the names that the file has for them.
        weights: the weights of an architecture.
        inference: as in `convert`.
        compile: compile the model as the file says, where that can be kept (HDF5 to Keras 3, and `.keras` of Keras 3).
        safe_mode: refuse to run the code of Lambda layers. Pass False only if you trust the file.

    Raises:
        UnreadableModelError: no model, or Keras cannot open it: names the classes that `custom_objects` lacks.
        UsageError, UnsupportedLayerError, VerificationError: as `convert`.
    """
    keras = require_keras()
    form = live_form(to)
    if keras.backend.backend() == "tensorflow":
        import lstm_swap.layers  # noqa: F401 - registers the fused classes
    with tempfile.TemporaryDirectory(prefix="lstm-swap-") as folder:
        for suffix in (".h5", ".keras") if compile and _is_hdf5(path) else (".keras",):
            copy = Path(folder) / f"model{suffix}"
            report = files.convert(path, copy, to=form, inference=inference, weights=weights)
            for warning in report.warnings:
                LOG.warning("%s: %s", path, warning)
            try:
                return keras.saving.load_model(
                    copy, custom_objects=custom_objects, compile=compile, safe_mode=safe_mode
                )
            except Exception as caught:
                problem: Exception = caught
    lacking = [name for name in report.unknown_classes if name not in (custom_objects or {})]
    hints = [f"; pass {', '.join(lacking)} in custom_objects"] if lacking else []
    if report.lambdas and safe_mode:
        hints.append(f"; Lambda layers ({', '.join(report.lambdas)}) need safe_mode=False, if you trust the file")
    text = " ".join(str(problem).split())
    raise UnreadableModelError(
        f"{path}: Keras {keras.__version__} cannot open it{''.join(hints)} ({text[:300]})"
    ) from problem


# ------------------------------------------------------------------ the parts that they share


def _announce(name: str, made: Plan) -> None:
    LOG.info("%s", described(name, made))
    for warning in made.warnings:
        LOG.warning("%s: %s", name, warning)


def _rebuild(
    model: Any, tree: LiveTree, made: Plan, use_cudnn: Callable[[Any], Any], only: frozenset[int] | None = None
) -> Any:
    """Clone a model as planned, and give the clone everything that the original knows.

    only: ids of the layers to swap; None: all that the plan swaps.
    """
    cloner = Cloner(tree, use_cudnn)
    for decision in made.decisions:
        layer = tree.layer_of(decision)
        if decision.to_class != decision.settings.class_name and (only is None or id(layer) in only):
            cloner.swaps[id(layer)] = decision
    return _cloned(model, cloner)


def _plain(model: Any, use_cudnn: Any, announce: Callable[[str, Plan], None] = lambda *_: None) -> Any:
    """The model with Keras's own layers only."""
    model = _regrouped(model, splits)
    tree, made = plan_model(model, "standard")
    announce(f"model {model.name!r}", made)
    return _rebuild(model, tree, made, lambda _: use_cudnn)


def _regrouped(model: Any, find: Callable[[Any], list[Regroup]]) -> Any:
    """The model with rows of fused layers put together or taken apart; the model itself where there are none."""
    groups = find(model) if tensorflow_runs_keras() else []
    return _cloned(model, _regrouping(model, groups)) if groups else model


def _regrouping(model: Any, groups: list[Regroup]) -> Cloner:
    cloner = Cloner(model_tree(model), _same_use_cudnn)
    for group in groups:
        cloner.regroups.update((id(layer), group) for layer in group.old)
    return cloner


def _measured(model: Any, sample: Any, *, inference: bool) -> Any:
    """The fastest kernel for every fused layer, and Keras's own layers where those do as well."""
    slow = select(model, sample, ("inference",) if inference else ("inference", "training"), _plain)
    if not slow:
        return model
    groups = splits(model, lambda layer: any(layer is other for other in slow))
    if groups:
        cloner = _regrouping(model, groups)
        model = _cloned(model, cloner)
        apart = {id(group.old[0]): group.made() for group in groups}
        slow = [
            fused
            for layer in slow
            for new in apart.get(id(layer)) or [cloner.pairs[id(layer)][1]]
            for fused in fused_layers(new)
        ]
    tree, made = plan_model(model, "standard")
    return _rebuild(model, tree, made, _same_use_cudnn, frozenset(id(layer) for layer in slow))


def _same_use_cudnn(layer: Any) -> Any:
    return getattr(layer, "use_cudnn", "auto")


def _cloned(model: Any, cloner: Cloner) -> Any:
    model_class = require_keras().Model
    with _scope_of(model), _random_undisturbed():
        new = cloner.clone(model)
        cloner.finish(model)
        links = carry_over(cloner, model)
        for old_inner, new_inner in cloner.pairs.values():
            if isinstance(old_inner, model_class):
                carry_compilation(old_inner, new_inner, links)
    return new


@contextlib.contextmanager
def _scope_of(model: Any) -> Iterator[None]:
    """The distribution strategy that is current, or else the model's own."""
    strategy = getattr(model, "_distribute_strategy", None)
    if strategy is None or _has_strategy():
        yield
        return
    with strategy.scope():
        yield


def _has_strategy() -> bool:
    import tensorflow as tf

    return bool(tf.distribute.has_strategy())


@contextlib.contextmanager
def _random_undisturbed() -> Iterator[None]:
    """Layers without a seed draw one from Python's generator; the program's own draws must not depend on that."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def _is_hdf5(path: PathLike) -> bool:
    import h5py

    return os.path.isfile(path) and bool(h5py.is_hdf5(path))
