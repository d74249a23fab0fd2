"""`inspect` and `convert` for SavedModel folders: the graph by `saved_model`, the Keras model inside like any file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lstm_swap import saved_model
from lstm_swap.architecture import Node, build_tree
from lstm_swap.errors import UnreadableModelError, UsageError
from lstm_swap.formats import ModelFile
from lstm_swap.output import default_name, write_safely
from lstm_swap.planning import Decision, make_plan
from lstm_swap.report import Report
from lstm_swap.rules import Settings

#: What a rewritten cuDNN node is in the report: a function of the graph, which runs on any device.
PORTABLE = "portable function"


def inspect(path: Path, form: str) -> Report:
    """What a SavedModel holds: its cuDNN nodes, and the recurrent layers of the Keras model where it states one.

    Raises:
        UnreadableModelError, MissingDependencyError: see `saved_model.summarize`.
    """
    found = saved_model.summarize(path)
    report = _report(path, form, found)
    report.inspected = True
    report.warnings += _without_architecture(found)
    return report


def _report(path: Path, form: str, found: saved_model.SavedModelSummary) -> Report:
    """What `inspect` and `convert` both say of the input."""
    report = Report(str(path), "saved_model", found.keras_version, _dialect(found.keras_version), form)
    report.needs_gpu = found.needs_gpu
    report.warnings += found.warnings
    for node in found.cudnn_nodes:
        if node.needed:  # the others are alternatives, which a warning of the summary counts
            report.layers.append(_node(_place(node), node.op, node.mode, None, "swap" if found.needs_gpu else "keep"))
    if found.architecture is not None:
        root = build_tree(found.architecture)
        report.layers += make_plan(root, form, version=found.keras_version).decisions
        if not found.needs_gpu:
            report.warnings.append(
                f"today's Keras does not load a SavedModel: lstm-swap convert {path} -o {path.name}.keras"
            )
    return report


def _without_architecture(found: saved_model.SavedModelSummary) -> list[str]:
    """What can be had where Keras left no description of its layers."""
    if found.architecture is not None:
        return []
    return [
        "no Keras architecture inside: only the graph can be rewritten (to a SavedModel that runs anywhere); "
        f"{len(found.variables)} variables can be read by name"
    ]


def convert(
    path: Path,
    out: str | os.PathLike[str] | None,
    *,
    to: str,
    form: str,
    dialect: str,
    dry_run: bool = False,
    verify: bool = True,
    force: bool = False,
    **options: Any,
) -> Report:
    """Rewrite a SavedModel so that it runs without a GPU; or write the Keras model inside it as .keras or .h5.

    to: "standard" leaves the portable functions alone, "auto" keeps cuDNN for GPUs beside them.

    Raises:
        UsageError: a form that a graph cannot take. Otherwise as `files.convert`.
    """
    target = Path(out) if out is not None else default_name(path, "saved_model", to)
    if target.suffix.lower() in (".keras", ".h5", ".hdf5"):
        from lstm_swap import files

        with open_keras_model(path) as model:
            return files.convert_model(
                model, target, form=form, dialect=dialect, dry_run=dry_run, verify=verify, force=force, **options
            )
    if to not in ("auto", "standard"):
        raise UsageError(f"{path}: a SavedModel becomes another one with --to standard or auto, not {to}")
    if target.suffix and target.suffix[1:].isalpha() and target.suffix != f".{to}":
        raise UsageError(f"{target}: unknown suffix {target.suffix!r}; write .keras, .h5, or no suffix for a folder")
    found = saved_model.summarize(path)
    report = _report(path, form, found)
    report.to = to
    if dry_run:
        report.layers = [d for d in report.layers if d.to_class == PORTABLE]
        report.warnings += _without_architecture(found)
        return report
    result: list[saved_model.RewriteResult] = []
    write_safely(path, target, force, lambda temporary: result.append(saved_model.rewrite(path, temporary, to=to)))
    report.layers = [_node(n.path, n.op, n.kind, n.units, "swap", n.max_error) for n in result[0].nodes]
    report.verified = True if report.layers else None
    report.output = str(target)
    report.warnings += result[0].warnings
    return report


def open_keras_model(path: Path) -> ModelFile:
    """The Keras model inside a SavedModel folder, with its arrays unread.

    Raises:
        UnreadableModelError: it states none; the message says what can be had instead.
    """
    found = saved_model.keras_architecture(path)
    if found is None:
        names = ", ".join(list(saved_model.recover_arrays(path))[:5])
        raise UnreadableModelError(
            f"{path}: this SavedModel holds a graph and no Keras architecture, so there is no model to write as .keras "
            f"or .h5. What can be had: a SavedModel that runs anywhere (give an output without a suffix), and the "
            f"arrays by layer (lstm_swap.saved_model.recover_arrays; here {names})"
        )
    root = build_tree(found.entry)
    for node in root.walk():
        node.arrays = list(found.arrays.get(node.path, []))
    version = found.keras_version
    return ModelFile(path, "saved_model", found.entry, root, version, "tensorflow", _dialect(version))


def _dialect(version: str | None) -> str:
    return "keras3" if version is None or version.startswith("3") else "keras2"


def _place(node: saved_model.CudnnNode) -> str:
    return f"{node.function}/{node.node}" if node.function else node.node


def _node(path: str, op: str, kind: str, units: int | None, action: str, max_error: float | None = None) -> Decision:
    """A node of the graph as an entry of the report."""
    known = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "simple_rnn", "rnn_relu": "simple_rnn"}
    settings = Settings(known.get(kind, "other"), op, units)
    to_class = PORTABLE if action == "swap" else op
    node = Node({"class_name": op, "config": {}}, path, path, "item")
    return Decision(node, path, settings, None, action, to_class, max_error=max_error)
