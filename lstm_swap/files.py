"""Files in, files out: the flow of the whole program, readable from top to bottom.

open -> ModelFile -> plan -> translate the dialect -> apply -> prove and write -> Report
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lstm_swap import dialects, formats, multi_gpu, rewriting, slots, training
from lstm_swap.architecture import Change, Node
from lstm_swap.errors import IneligibleLayerError, UnreadableModelError, UnsupportedLayerError, UsageError
from lstm_swap.formats import ModelFile
from lstm_swap.formats.catalogue import variables
from lstm_swap.formats.checking import untrusted
from lstm_swap.normalization import state_statistics
from lstm_swap.output import default_output, write_safely
from lstm_swap.planning import FUSED_CLASSES, Plan, make_plan, recurrent_layers
from lstm_swap.proof import Ahead, Prover
from lstm_swap.report import Report
from lstm_swap.rules import FORMS
from lstm_swap.settings import all_arrays, problem, settings

PathLike = str | os.PathLike[str]
DIALECTS = ("keras3", "keras2")


def choose_form(to: str, dialect: str) -> str:
    """The form that "auto" stands for: fused where a cuDNN-capable GPU is present, else standard.

    Raises:
        UsageError: an unknown form, or one that the dialect cannot express.
    """
    if dialect not in DIALECTS:
        raise UsageError(f"unknown dialect {dialect!r}; the dialects are {' and '.join(DIALECTS)}")
    if to == "auto":
        from lstm_swap.device import gpu_present

        return "fused" if dialect == "keras3" and gpu_present().present else "standard"
    if to not in FORMS:
        raise UsageError(f"unknown form {to!r}; the forms are auto, {', '.join(FORMS)}")
    if to == "cudnn" and dialect != "keras2":
        raise UsageError("the legacy CuDNN classes exist in Keras 2 only: --to cudnn needs --dialect keras2")
    if to == "fused" and dialect != "keras3":
        raise UsageError("the fused layers exist in Keras 3 only: --to fused needs --dialect keras3")
    return to


# ------------------------------------------------------------------ inspect


def inspect(path: PathLike, *, to: str = "auto", weights: PathLike | None = None) -> Report:
    """Say what a model file is, what each recurrent layer can become, and why not. Nothing is written.

    to: the form to judge for; "auto" as in `convert`. weights: arrays for an architecture in JSON or YAML.

    Raises:
        UnreadableModelError: not a model that is read here.
        UsageError: an unknown form.
    """
    form = choose_form(to, "keras2" if to == "cudnn" else "keras3")
    if is_saved_model(path):
        from lstm_swap import saved_files

        return saved_files.inspect(Path(path), form)
    with formats.open_model(path, weights) as model, untrusted(model.path.name):
        report = _new_report(model, form)
        report.inspected = True
        classes = [node.class_name for node in model.root.walk()]
        report.needs_gpu = any(name.startswith("CuDNN") for name in classes)
        _check_shapes(model)
        if model.entry is not None:
            report.unknown_classes = _unknown(model)
            report.lambdas = dialects.lambdas(model.root)
        changes = normalise(model)
        plan = make_plan(model.root, form, version=model.keras_version)
        report.layers = plan.decisions
        if model.entry is not None:
            _judge_today(report, model, changes)
        else:
            report.warnings += _weights_only_notes(model)
        report.warnings = model.warnings + report.warnings
        return report


def _judge_today(report: Report, model: ModelFile, changes: list[Change]) -> None:
    """Would today's Keras open the file as it is, and compute the same? A dry translation tells."""
    try:
        changes = changes + translate(model, "keras3", model.container)
    except UnreadableModelError:
        raise
    except (ValueError, KeyError) as problem:
        report.opens_today, report.same_numbers = False, None
        report.changes = [*changes, Change("", "", None, None, "opens", str(problem))]
        return
    report.changes = changes
    effects = {c.effect for c in changes}
    report.opens_today = not report.needs_gpu and model.dialect != "keras1" and "opens" not in effects
    if report.needs_gpu:
        gone = "CuDNNLSTM and CuDNNGRU are not part of it"
        report.changes = [Change("", "class_name", None, None, "opens", gone), *changes]
    report.same_numbers = "numbers" not in effects if report.opens_today else None


def _weights_only_notes(model: ModelFile) -> list[str]:
    notes = ["weights only: activations and gates cannot be known without the architecture"]
    if model.dialect != "keras3" and any(recurrent_layers(model.root)):
        notes.append(
            "if the gates are hard_sigmoid, today's Keras computes other numbers from these weights: convert them "
            "together with their architecture (lstm-swap convert ARCHITECTURE.json --weights FILE)"
        )
    return notes


# ------------------------------------------------------------------ convert


def convert(
    path: PathLike,
    out: PathLike | None = None,
    *,
    to: str = "auto",
    dialect: str = "keras3",
    inference: bool = False,
    strict: bool = False,
    weights: PathLike | None = None,
    dry_run: bool = False,
    verify: bool = True,
    force: bool = False,
    mapping: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Rewrite a model file so that its recurrent layers take another form, and its dialect another Keras's.

    Args:
        path: a model in any container that is read here; out: where to write (default: NAME.FORM.SUFFIX beside
            it). The suffix of `out` picks the container.
        to: "auto" (fused where a cuDNN-capable GPU is present, else standard), "standard", "fused" or "cudnn".
        dialect: "keras3" or "keras2", for whom the output is written.
        inference: allow changes that only training would notice (recurrent dropout to 0, a bias of zeros, ...).
        strict: any refused layer is an error. weights: arrays for an architecture in JSON or YAML.
        dry_run: plan only. verify: prove each rewritten layer. force: overwrite an existing output.
        mapping: list which stored array went to which layer in the report.
        progress: called with (layers done, layers to do).

    Raises:
        UsageError, UnreadableModelError, UnsupportedLayerError, IneligibleLayerError, VerificationError:
            see `lstm_swap.errors`. Nothing is written then, and the input is never changed.
    """
    form = choose_form(to, dialect)
    if is_saved_model(path):
        from lstm_swap import saved_files

        return saved_files.convert(
            Path(path), out, to=to, form=form, dialect=dialect, inference=inference, strict=strict,
            dry_run=dry_run, verify=verify, force=force,
        )  # fmt: skip
    with formats.open_model(path, weights) as model:
        return convert_model(
            model, out, form=form, dialect=dialect, inference=inference, strict=strict, dry_run=dry_run,
            verify=verify, force=force, mapping=mapping, progress=progress,
        )  # fmt: skip


def convert_model(
    model: ModelFile,
    out: PathLike | None,
    *,
    form: str,
    dialect: str,
    inference: bool = False,
    strict: bool = False,
    dry_run: bool = False,
    verify: bool = True,
    force: bool = False,
    mapping: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """`convert` for a model that is open already."""
    if model.entry is not None and model.container == "architecture" and not _has_arrays(model):
        raise UsageError(f"{model.path}: an architecture without weights; name their file with --weights")
    target = Path(out) if out is not None else default_output(model, form)
    container = formats.container_for(model, target)
    if container == "saved_model":
        raise UsageError(f"{target}: only a SavedModel folder can become one; give the output a suffix, .h5 or .keras")
    report = _new_report(model, form)
    prover = Prover(model.path.name, verify=verify)
    with untrusted(model.path.name):
        edited = _rewrite(model, report, prover, container, form, dialect, inference, strict, mapping)
    report.verified = (verify or False) if edited else None
    if dry_run:
        report.verified = None
        return report
    with Ahead(prover, edited, progress) as materialize:
        write_safely(
            [path for path in (model.path, model.weights_path) if path is not None],
            target,
            force,
            lambda temporary: formats.save_model(model, temporary, materialize, dialect, container),
        )
    report.output = str(target)
    for decision in report.layers:
        decision.max_error = prover.errors.get(id(decision.node))
    return report


def _rewrite(
    model: ModelFile,
    report: Report,
    prover: Prover,
    container: str,
    form: str,
    dialect: str,
    inference: bool,
    strict: bool,
    mapping: bool,
) -> list[Node]:
    """Plan, and rewrite the architecture and everything else but the arrays; returns the layers with edits to do."""
    _check_shapes(model, prover)
    report.unknown_classes = _unknown(model) if model.entry is not None else []
    report.lambdas = dialects.lambdas(model.root) if model.entry is not None else []
    if mapping:
        report.mapping = _mapping(model.root)
    source_dialect = model.dialect
    report.changes += multi_gpu.unwrap(model)
    stored = slots.Slots(model) if model.optimizer else None
    plan = make_plan(model.root, form, inference=inference, version=model.keras_version)
    for decision in plan.decisions:
        prover.remember(decision.node, decision.settings, len(all_arrays(decision.node)), source_dialect)
    report.layers = plan.decisions
    if strict and plan.refused:
        raise IneligibleLayerError(_refusals(model, plan))
    report.changes += normalise(model)
    report.changes += translate(model, dialect, container)
    rewriting.apply(plan, dialect)
    prover.dialect, prover.version = dialect, model.keras_version
    if container != model.container:
        report.warnings += _losses(model, container)
    if container == "hdf5" and dialect == "keras3":
        report.changes += state_statistics(model.root)
    edited = [node for node in model.root.walk() if node.edits]
    if model.entry is None:
        report.warnings += _weights_only_notes(model)
    if model.entry is not None:
        model.training_config, notes = training.translate(model, container, source_dialect, dialect)
        report.warnings += notes
        if stored is not None:
            model.optimizer, notes = stored.relaid(model, container, source_dialect, dialect)
            report.warnings += notes
        report.warnings += training.without_state(model, container)
    report.warnings = model.warnings + report.warnings
    return edited


def _losses(model: ModelFile, container: str) -> list[str]:
    """What another container cannot hold, or may hold in another order.

    Raises:
        UnsupportedLayerError: vocabularies and the like, without which layers do not work.
    """
    notes = []
    assets = sorted(extra.name for extra in model.extras if extra.name.startswith("assets/"))
    if assets:
        raise UnsupportedLayerError(
            f"{model.path.name}: {', '.join(assets)[:300]}: what these layers learned (a vocabulary) lies in files of "
            "its own, which only .keras can hold; write .keras"
        )
    if model.extras:
        names = ", ".join(extra.name for extra in model.extras)
        notes.append(f"left out, because only .keras can hold them: {names}")
    for node in model.root.walk():
        inside = [a for a in node.arrays if a.name.count("/") > 1]
        if model.container == "keras" and inside and variables(node, model.dialect) is None:
            notes.append(
                f"the arrays of {node.path!r} ({node.class_name}) lie in several folders; {container} has one list, "
                "whose order was guessed: load it and compare (lstm-swap verify)"
            )
    return notes


def _refusals(model: ModelFile, plan: Plan) -> str:
    lines = [f"{model.path.name}: {len(plan.refused)} layer(s) cannot take the form {plan.to} (--strict):"]
    for decision in plan.refused:
        for reason in decision.reasons:
            lines.append(
                f"{decision.path}: {reason.code}: {reason.field}={reason.value!r}: {reason.message}"
                + (f" ({reason.remedy})" if reason.remedy else "")
            )
    return "\n  ".join(lines)


# ------------------------------------------------------------------ the parts that both share


def is_saved_model(path: PathLike) -> bool:
    folder = Path(path)
    return folder.is_dir() and ((folder / "saved_model.pb").is_file() or (folder / "saved_model.pbtxt").is_file())


def _new_report(model: ModelFile, form: str) -> Report:
    return Report(str(model.path), model.container, model.keras_version, model.dialect, form)


def _has_arrays(model: ModelFile) -> bool:
    return any(node.arrays for node in model.root.walk())


def _check_shapes(model: ModelFile, prover: Prover | None = None) -> None:
    prover = prover or Prover(model.path.name)
    for node in recurrent_layers(model.root):
        wrong = problem(node) if model.entry is not None else None
        if wrong:
            raise UnreadableModelError(f"{model.path.name}: layer {node.path!r} ({node.class_name}): {wrong}")
        found = settings(node, version=model.keras_version)
        prover.check_layer(node, found, all_arrays(node))


def _unknown(model: ModelFile) -> list[str]:
    """Classes that the user must supply to load the model; ours come with `import lstm_swap.layers`."""
    return [c for c in dialects.unknown_classes(model.root, model.dialect) if c not in FUSED_CLASSES]


def _mapping(root: Node) -> list[dict[str, Any]]:
    return [
        {"layer": node.path, "stored": array.source or array.name, "shape": list(array.shape)}
        for node in root.walk()
        for array in node.arrays
    ]


def normalise(model: ModelFile) -> list[Change]:
    """Keras 1 becomes Keras 2: there the rules and the other dialects begin."""
    if model.dialect != "keras1":
        return []
    if model.entry is None:
        return _merge_keras1_gates(model)
    from lstm_swap.dialects import keras1

    return keras1.to_keras2(model.root, theano=model.theano, version=model.keras_version)


def _merge_keras1_gates(model: ModelFile) -> list[Change]:
    """Weights alone: the arrays of each recurrent layer, one a gate, become three. Other layers stay."""
    changes = []
    for node in recurrent_layers(model.root):
        if len(node.arrays) in (9, 12):
            from lstm_swap.dialects.array_edits import MergeGates

            node.edits.append(MergeGates(str(node.kind)))
            message = f"{len(node.arrays)} arrays of Keras 1, one a gate, became kernel, recurrent_kernel and bias"
            changes.append(Change(node.path, "weights", len(node.arrays), 3, "report", message))
    return changes


def translate(model: ModelFile, dialect: str, container: str) -> list[Change]:
    """From Keras 2 (or what was Keras 1) to the dialect of the output, as its container spells it."""
    if model.entry is None:
        return []
    if dialect == "keras3":
        if model.dialect == "keras3":
            return dialects.keras3.modernize(model.root)
        theano = model.theano and model.dialect == "keras2"  # from Keras 1 the kernels come turned round already
        return dialects.keras2.to_keras3(model.root, version=model.keras_version, theano=theano)
    if model.dialect == "keras3":
        return dialects.keras3.to_keras2(model.root, modules=container == "keras")
    if container == "keras":
        dialects.keras3.add_modules(model.root)
    return []
