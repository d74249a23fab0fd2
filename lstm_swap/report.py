"""The report: what was found, planned, done, verified and warned of. As text for a person, JSON, or HTML."""

from __future__ import annotations

import html
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lstm_swap.architecture import Change
from lstm_swap.planning import Decision

#: Longer names are cut in tables; JSON has them whole.
NAME_LIMIT = 60


@dataclass(eq=False)
class Report:
    """What lstm-swap found in a file or did to it.

    Attributes:
        file, container, keras_version, dialect: the input; `dialect` is keras1, keras2 or keras3.
        to: the form that was asked for, or that "auto" chose.
        output: the file that was written, or None.
        verified: True (proved), False (--no-verify) or None (nothing to prove).
        warnings: what a reader should know; changes: what the change of dialect did.
        layers: a `planning.Decision` for each recurrent layer.
        needs_gpu: the file cannot run without a GPU as it is.
        unknown_classes: classes that are not part of Keras, so that the user must supply them to load the model.
        lambdas: names of Lambda layers, whose code is never run or read here.
        opens_today, same_numbers: does today's Keras open the file, and compute what it computed? None: unknown.
    """

    file: str
    container: str
    keras_version: str | None
    dialect: str
    to: str
    output: str | None = None
    verified: bool | None = None
    warnings: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    layers: list[Decision] = field(default_factory=list)
    needs_gpu: bool = False
    unknown_classes: list[str] = field(default_factory=list)
    lambdas: list[str] = field(default_factory=list)
    opens_today: bool | None = None
    same_numbers: bool | None = None
    mapping: list[dict[str, Any]] = field(default_factory=list)
    inspected: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data (the object that --json prints)."""
        data: dict[str, Any] = {
            "file": self.file,
            "container": self.container,
            "keras_version": self.keras_version,
            "dialect": self.dialect,
            "to": self.to,
            "output": self.output,
            "verified": self.verified,
            "warnings": self.warnings,
            "changes": [
                {"path": c.path, "field": c.field, "effect": c.effect, "message": c.message}
                for c in self.changes
                if c.effect != "style"
            ],
            "layers": [d.as_dict() for d in self.layers],
        }
        if self.mapping:
            data["mapping"] = self.mapping
        if self.inspected:
            data["needs_gpu"] = self.needs_gpu
            data["unknown_classes"] = self.unknown_classes
            data["lambdas"] = self.lambdas
            data["opens_in_keras3"] = self.opens_today
            data["same_numbers_in_keras3"] = self.same_numbers
        return data

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), ensure_ascii=True)

    @property
    def remedy(self) -> str | None:
        """The command that makes the file run on any machine in today's Keras; None where it does already."""
        if self.needs_gpu:
            return f"lstm-swap convert {quote(self.file)} --to standard"
        if self.opens_today is False or self.same_numbers is False:
            return f"lstm-swap convert {quote(self.file)}"
        return None

    # ------------------------------------------------------------------ text

    def text(self, *, color: bool = False, width: int | None = None) -> str:
        """The report for a terminal."""
        from rich.console import Console

        buffer = io.StringIO()
        console = Console(
            file=buffer, force_terminal=color, no_color=not color, width=width or 100, highlight=False, emoji=False
        )
        for line in self._head():
            console.print(clean(line), markup=False, soft_wrap=True)
        if self.layers:
            console.print(self._table())
        for line in self._tail():
            console.print(clean(line), markup=False, soft_wrap=True)
        return buffer.getvalue()

    def _head(self) -> list[str]:
        names = {"keras1": "Keras 1", "keras2": "Keras 2", "keras3": "Keras 3"}
        kinds = {
            "hdf5": "whole model, HDF5",
            "hdf5-weights": "weights only, HDF5",
            "keras": "whole model, .keras",
            "weights.h5": "weights only, .weights.h5",
            "saved_model": "SavedModel folder",
            "architecture": "architecture",
        }
        wrote = f"written by Keras {self.keras_version}" if self.keras_version else f"{names[self.dialect]} layout"
        lines = [f"{self.file}: {kinds.get(self.container, self.container)}, {wrote}"]
        if self.inspected:
            if self.needs_gpu:
                lines.append("It needs a GPU: it holds layers that only run on cuDNN.")
            else:
                lines.append("It runs without a GPU.")
            if self.opens_today is not None:
                lines.append(self._today())
            if self.remedy:
                lines.append(f"To fix that: {self.remedy}")
        elif self.output:
            lines.append(f"written: {self.output}")
        return lines

    def _today(self) -> str:
        if not self.opens_today:
            return "Today's Keras (3) does not open it: " + self._why("opens")
        if self.same_numbers is False:
            return "Today's Keras (3) opens it and computes other numbers: " + self._why("numbers")
        needs = ""
        if self.unknown_classes:
            needs = f", given {', '.join(short(c) for c in self.unknown_classes)}"
        return f"Today's Keras (3) opens it and computes the same numbers{needs}."

    def _why(self, effect: str) -> str:
        found = list(dict.fromkeys(c.message for c in self.changes if c.effect == effect))
        shown = "; ".join(short(m, 160) for m in found[:3])
        return shown + (f"; and {len(found) - 3} more" if len(found) > 3 else "") + "."

    def _table(self) -> Any:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.ASCII2, show_lines=False, pad_edge=False)
        for title in ("layer", "class", "units", "parameters", "gates", f"to {self.to}", "why, and the way out"):
            last = title.startswith("why")
            table.add_column(
                title,
                justify="right" if title in ("units", "parameters") else "left",
                overflow="fold",
                min_width=24 if last else None,
                no_wrap=title in ("units", "parameters"),
            )
        for d in self.layers:
            found = d.settings
            gates = found.recurrent_activation if found.kind in ("lstm", "gru", "conv_lstm") else "-"
            verdict = {"swap": f"swap: {d.to_class}", "keep": "keep", "refuse": "refuse"}[d.action]
            style = {"swap": "green", "keep": "", "refuse": "yellow"}[d.action]
            why = "; ".join(clean(n) for n in d.notes)
            if d.reasons:
                first = d.reasons[0]
                more = f" (and {', '.join(r.code for r in d.reasons[1:])})" if len(d.reasons) > 1 else ""
                why = f"{first.code}: {first.message}{more}. {first.remedy}"
            if d.max_error is not None:
                why = f"proved, largest difference {d.max_error:.1g}" + (f"; {why}" if why else "")
            table.add_row(
                clean(short(d.path)),
                clean(short(found.class_name)),
                str(found.units if found.units is not None else "-"),
                f"{d.parameters:,}" if d.parameters is not None else "-",
                clean(gates),
                Text(verdict, style=style),
                clean(why),
            )
        return table

    def _tail(self) -> list[str]:
        lines = []
        shown = [c for c in self.changes if c.effect != "style"]
        if shown and not self.inspected:
            lines += [f"changed: {short(c.path)}: {short(c.message, 300)}" for c in shown]
        elif shown:
            lines += [f"note: {short(c.path)}: {short(c.message, 300)}" for c in shown if c.effect == "report"]
        if self.unknown_classes:
            lines.append(
                "to load it you must supply (custom_objects): " + ", ".join(short(c) for c in self.unknown_classes)
            )
        if self.lambdas:
            lines.append(
                "Lambda layers were not run or read: "
                + ", ".join(short(n) for n in self.lambdas)
                + " (to load them: safe_mode=False, if you trust the file)"
            )
        for row in self.mapping:
            lines.append(f"weights: {row['layer']} <- {row['stored']}")
        lines += [f"warning: {short(w, 500)}" for w in self.warnings]
        if not self.inspected and self.output:
            lines.append(self._summary())
        return lines

    def _summary(self) -> str:
        count = {a: sum(d.action == a for d in self.layers) for a in ("swap", "keep", "refuse")}
        proof = {True: "proved equal", False: "not verified (--no-verify)", None: "nothing to prove"}[self.verified]
        return f"{count['swap']} swapped, {count['keep']} kept, {count['refuse']} refused; {proof}."

    # ------------------------------------------------------------------ HTML

    def to_html(self) -> str:
        """The report as one self-contained page."""
        rows = []
        for d in self.layers:
            why = [f"{r.code}: {r.message}. {r.remedy}" for r in d.reasons] + d.notes
            cells = [
                d.path,
                d.settings.class_name,
                d.settings.units,
                f"{d.parameters:,}" if d.parameters is not None else "",
                d.settings.recurrent_activation,
                d.action,
                d.to_class,
                "" if d.max_error is None else f"{d.max_error:.1g}",
            ]
            body = "".join(f"<td>{html.escape(str(c if c is not None else ''))}</td>" for c in cells)
            rows.append(f'<tr class="{d.action}">{body}<td>{"<br>".join(html.escape(w) for w in why)}</td></tr>')
        titles = ("layer", "class", "units", "parameters", "gates", "verdict", f"to {self.to}", "error", "why")
        head = "".join(f"<th>{html.escape(t)}</th>" for t in titles)
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in [*self._head(), *self._tail()])
        name = html.escape(Path(self.file).name)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>lstm-swap: {name}</title><style>'
            "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}"
            "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ccc;padding:.3rem .6rem;"
            "text-align:left;vertical-align:top;overflow-wrap:anywhere}.swap{background:#e8f5e9}"
            ".refuse{background:#fff8e1}</style></head><body>"
            f"<h1>{name}</h1>{lines}<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
            "</body></html>\n"
        )


def short(name: str, limit: int = NAME_LIMIT) -> str:
    """A text cut to a length that a terminal bears."""
    return name if len(name) <= limit else f"{name[: limit - 12]}... ({len(name)})"


def clean(text: str) -> str:
    """Without control characters: names come from foreign files and must not reach a terminal as escape codes."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def quote(name: str) -> str:
    import shlex

    return shlex.quote(name)
