"""The plan for a live model: the rules of `planning`, and what only a live layer shows."""

from __future__ import annotations

import importlib
import os
from typing import Any

from lstm_swap import files, formats, multi_gpu, planning
from lstm_swap.architecture import Node
from lstm_swap.errors import MissingDependencyError, UsageError
from lstm_swap.keras_faults import faults
from lstm_swap.live_tree import LiveTree, is_foreign_rnn, model_tree, walk
from lstm_swap.planning import Decision, Plan, make_plan
from lstm_swap.rules import Reason, Settings

LIVE_FORMS = ("auto", "standard", "fused")


def require_keras() -> Any:
    """Keras 3.

    Raises:
        MissingDependencyError: Keras is not installed, or is Keras 2.
    """
    try:
        import keras
    except ImportError as problem:
        raise MissingDependencyError(
            f"live models need Keras 3 ({problem}): pip install 'lstm-swap[tensorflow]'"
        ) from None
    if int(str(keras.__version__).split(".")[0]) < 3:
        raise MissingDependencyError(f"live models need Keras 3, this is Keras {keras.__version__}")
    return keras


def require_model(model: Any) -> None:
    """Is this a model of Keras 3?

    Raises:
        UsageError: it is something else; says what to do with a model of Keras 2.
    """
    keras = require_keras()
    if not isinstance(model, keras.Model):
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        raise UsageError(
            f"expected a model of Keras 3 ({keras.__version__}), got {kind}; a model of tf_keras or tf.keras 2 can be "
            "saved and opened with lstm_swap.load_model"
        )


def tensorflow_runs_keras() -> bool:
    """Is TensorFlow the backend of Keras? Fused layers need it."""
    return bool(require_keras().backend.backend() == "tensorflow")


def gpu_is_there() -> bool:
    """Is there a GPU that Keras's backend would run cuDNN on? Imports the backend; takes no GPU memory."""
    keras = require_keras()
    if keras.backend.backend() == "tensorflow":
        from lstm_swap.device import tensorflow_report

        return tensorflow_report().present
    if keras.backend.backend() == "jax":
        return any(device.platform == "gpu" for device in importlib.import_module("jax").devices())
    return False


def live_form(to: str) -> str:
    """The form that "auto" stands for: fused where TensorFlow can use a GPU with cuDNN, else standard.

    Raises:
        UsageError: an unknown form, or one that no live Keras 3 model can have.
    """
    if to == "cudnn":
        raise UsageError("the legacy CuDNN classes are not part of Keras 3, so no live model can have them")
    if to not in LIVE_FORMS:
        raise UsageError(f"unknown form {to!r}; the forms are {', '.join(LIVE_FORMS)}")
    if to == "auto":
        return "fused" if tensorflow_runs_keras() and gpu_is_there() else "standard"
    return to


def plan_model(model: Any, form: str, *, inference: bool = False) -> tuple[LiveTree, Plan]:
    """Decide about every recurrent layer of a live model; with the faults of this Keras that touch it."""
    tree = model_tree(model)
    plan = make_plan(tree.root, form, inference=inference)
    by_node = {id(decision.node): decision for decision in plan.decisions}
    for node in tree.root.walk():
        layer = tree.layers[id(node)]
        if id(node) not in by_node and is_foreign_rnn(layer):
            by_node[id(node)] = _foreign(node, form)
        elif form == "fused" and not inference and _mask_a_gate(by_node.get(id(node)), layer):
            planning._refuse(by_node[id(node)], [_ONE_MASK])
    if form != "standard":
        for node in tree.root.walk():
            if node.class_name == "Bidirectional":
                planning._pair(node, by_node)
    plan.decisions = [by_node[id(node)] for node in tree.root.walk() if id(node) in by_node]
    plan.warnings = _faults(tree, plan)
    return tree, plan


def plan_file(path: str | os.PathLike[str], form: str, *, inference: bool, weights: Any) -> Plan:
    """The plan that `convert` would carry out."""
    if files.is_saved_model(path):
        return Plan(form, files.inspect(path, to=form).layers)
    with formats.open_model(path, weights) as model:
        multi_gpu.unwrap(model)
        files.normalise(model)
        return make_plan(model.root, form, inference=inference, version=model.keras_version)


# What only a live layer shows

_ONE_MASK = Reason(
    "dropout",
    "implementation",
    1,
    "with implementation=1 each gate drops inputs of its own while training, and cuDNN has one input for all",
    "build the layer with implementation=2, or pass inference=True if the model is not trained any more",
)


def _mask_a_gate(decision: Decision | None, layer: Any) -> bool:
    if decision is None or decision.action != "swap" or not decision.settings.dropout:
        return False
    return getattr(getattr(layer, "cell", None), "implementation", 2) == 1


def _foreign(node: Node, form: str) -> Decision:
    """A user's own subclass of a recurrent layer: never touched."""
    name = node.class_name
    reason = Reason(
        "class",
        "class_name",
        name,
        f"{name} is a class of your own, whose code a swap would lose",
        "use the layer of Keras itself, or leave it",
    )
    action = "keep" if form == "standard" else "refuse"
    reasons = [] if form == "standard" else [reason]
    return Decision(node, node.path, Settings("other", name, None), None, action, name, reasons)


def _faults(tree: LiveTree, plan: Plan) -> list[str]:
    keras = require_keras()
    backend = str(keras.backend.backend())
    if not gpu_is_there():
        return []
    masked = any(
        isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False)
        for layer in walk(tree.layers[id(tree.root)])
    )
    nodes = frozenset(id(node) for node in tree.root.walk()) if masked else frozenset()
    return list(faults(plan.decisions, str(keras.__version__), backend, masked=nodes))


# In words


def described(name: str, plan: Plan) -> str:
    """The plan on one line, for the log: how many of each, then every layer."""
    count = {a: sum(d.action == a for d in plan.decisions) for a in ("swap", "keep", "refuse")}
    head = f"{name} to {plan.to}: {count['swap']} swapped, {count['keep']} kept, {count['refuse']} refused"
    layers = []
    for decision in plan.decisions:
        why = f" ({'; '.join(f'{r.code}: {r.message}' for r in decision.reasons)})" if decision.reasons else ""
        change = f" -> {decision.to_class}" if decision.to_class != decision.settings.class_name else ""
        layers.append(f"{decision.path}: {decision.action} {decision.settings.class_name}{change}{why}")
    return ". ".join([head, *layers])


def refusals(name: str, plan: Plan) -> str:
    """Every refused layer with every reason, for strict mode."""
    lines = [f"{name}: {len(plan.refused)} layer(s) cannot take the form {plan.to} (strict):"]
    lines += [
        f"{decision.path}: {reason.code}: {reason.field}={reason.value!r}: {reason.message} ({reason.remedy})"
        for decision in plan.refused
        for reason in decision.reasons
    ]
    return "\n  ".join(lines)
