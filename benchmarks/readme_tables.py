"""Fill the tables of the README from benchmarks/results: `python benchmarks/readme_tables.py`.

Each table stands between `<!-- NAME -->` and `<!-- /NAME -->`; a test checks that it is what this prints.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def line(*cells: Any) -> str:
    return "| " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |"


def head(*titles: str) -> list[str]:
    return [line(*titles), "|---" * len(titles) + "|"]


def ratio(number: float | None) -> str | None:
    return None if number is None else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


KERNELS = ("stack:cudnn", "stack:cudnn_layers", "stack:xla")


def _shape(row: dict[str, Any]) -> str:
    *sizes, both = row["shape"]
    return ", ".join([*map(str, sizes), "yes" if both else "no"]) + (", masked" if row["masked"] else "")


def gpu_layers(data: dict[str, Any]) -> list[str]:
    """The kernels of the fused layer, and the fastest of them, beside Keras's layer (without cuDNN where masked)."""
    titles = [f"{c.removeprefix('stack:')} ms" for c in ("standard", "keras", *KERNELS)]
    lines = head(
        "batch, time, features, units, layers, bidirectional", "job", *titles, "standard / best", "keras / best"
    )
    gains: dict[str, list[float]] = {"predict": [], "train": []}
    for row in data["rows"]:
        for job, gained in gains.items():
            ms, speed = row[job]["ms"], row[job]["speed"]
            best = max(speed[c] for c in KERNELS if c in speed)
            times = [f"{ms[c]:.2f}" if c in ms else None for c in ("standard", "keras", *KERNELS)]
            ratios = [best / speed[c] if c in speed else None for c in ("standard", "keras")]
            lines.append(line(_shape(row), job, *times, *map(ratio, ratios)))
            if not row["masked"]:
                gained.append(best)
    for job, gained in gains.items():
        lines.append(line("geometric mean", job, *[""] * 6, ratio(statistics.geometric_mean(gained))))
    return lines


def gpu_layers_others(data: dict[str, Any]) -> list[str]:
    """Other software beside Keras's cuDNN path."""
    columns = ("standard", "xla", "keras", "torch")
    lines = head("batch, time, features, units, layers, bidirectional", "job", *(f"{c} ms" for c in columns))
    for row in data["rows"]:
        for job in ("predict", "train"):
            ms = row[job]["ms"]
            lines.append(line(_shape(row), job, *(f"{ms[c]:.2f}" if c in ms else None for c in columns)))
    return lines


def gpu_fit(data: dict[str, Any]) -> list[str]:
    columns = ("standard", "xla", "keras", "fused")
    lines = head("one epoch of", *(f"{c} s" for c in columns), *(f"{c} / fused" for c in columns[:-1]))
    for job in ("fit", "evaluate", "predict"):
        seconds, ratios = data[job]["seconds"], data[job]["times_fused"]
        lines.append(
            line(f"`{job}`", *(f"{seconds[c]:.2f}" for c in columns), *(ratio(ratios[c]) for c in columns[:-1]))
        )
    return lines


def cpu_layers(data: dict[str, Any]) -> list[str]:
    """Times as fast as Keras: the fused layer as it is, and other software."""
    others = [c for c in ("onnxruntime", "openvino") if any(c in row["inference"]["ms"] for row in data["rows"])]
    lines = head("batch, time, features, units", "job", "keras ms", "fused ms", "fused", *others)
    for row in data["rows"]:
        shape = ", ".join(map(str, row["shape"]))
        for job in ("inference", "training"):
            ms, speed = row[job]["ms"], row[job]["speed"]
            speeds = [f"{speed[c]:.2f}x" if c in speed else None for c in ("fused", *others)]
            lines.append(line(shape, job, f"{ms['keras']:.2f}", f"{ms['fused']:.2f}", *speeds))
    return lines


def headline(data: dict[str, Any]) -> list[str]:
    """The other tables in a few lines; data: each file of results by its name."""
    lines = head("job", "times as fast", "as what")
    gpu, cpu, fit = data["gpu_layers"]["rows"], data["cpu_layers"]["rows"], data["gpu_fit"]["fit"]["times_fused"]
    for job, words in (("predict", "inference"), ("train", "training")):
        best = [max(row[job]["speed"][c] for c in KERNELS if c in row[job]["speed"]) for row in gpu]
        plain = [b for b, row in zip(best, gpu, strict=True) if not row["masked"]]
        masked = [b for b, row in zip(best, gpu, strict=True) if row["masked"]]
        mean = ratio(statistics.geometric_mean(plain))
        least, most = ratio(min(plain)), ratio(max(plain))
        text = f"{mean} (mean of {len(plain)} shapes; {least} to {most})"
        lines.append(line(f"{words} on a GPU", text, "Keras's LSTM on cuDNN"))
        lines.append(
            line(f"{words} on a GPU, left-padded", ratio(masked[0]), "Keras's LSTM, which cannot use cuDNN there")
        )
    lines.append(line("`fit` on a GPU", ratio(fit["standard"]), "LSTM(use_cudnn=False)"))
    lines.append(line("`fit` on a GPU", ratio(fit["xla"]), "LSTM(use_cudnn=False), jit_compile=True"))
    for job in ("inference", "training"):
        speeds = [row[job]["speed"]["fused"] for row in cpu]
        mean, least, most = ratio(statistics.geometric_mean(speeds)), ratio(min(speeds)), ratio(max(speeds))
        text = f"{mean} (mean of {len(speeds)} shapes; {least} to {most})"
        lines.append(line(f"{job} on two CPU cores", text, "Keras's LSTM"))
    return lines


def convert_files(data: dict[str, Any]) -> list[str]:
    lines = ["| job | seconds (median) | times cp + sync | peak MiB beyond the interpreter |", "|---|---|---|---|"]
    for row in data["rows"]:
        memory = row["peak_mib_beyond_interpreter"]
        lines.append(f"| {row['job']} | {row['seconds']} | {row['times_cp']} | {'-' if memory is None else memory} |")
    return lines


def corpus(data: dict[str, Any]) -> list[str]:
    columns = list(data["columns"])
    lines = ["| real public models | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for title, values in data["rows"].items():
        lines.append(f"| {title} | " + " | ".join(str(v) for v in values) + " |")
    return lines


TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "headline": headline,
    "gpu_layers": gpu_layers,
    "gpu_layers_others": gpu_layers_others,
    "gpu_fit": gpu_fit,
    "cpu_layers": cpu_layers,
    "cpu_layers_gru": cpu_layers,
    "convert_files": convert_files,
    "corpus": corpus,
}


def results() -> dict[str, Any]:
    """Every file of results by its name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}


def filled(text: str) -> str:
    """The README's text with every table that it has a place for."""
    for name, make in TABLES.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
        if place.search(text):
            data = results() if name == "headline" else results()[name]
            table = "\n".join(make(data)) + "\n"
            text = place.sub(lambda m, table=table: m[1] + table + m[2], text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8")), encoding="utf-8")
