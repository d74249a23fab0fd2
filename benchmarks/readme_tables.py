"""Fill the tables of the README from benchmarks/results: `python benchmarks/readme_tables.py`.

Each table stands between `<!-- NAME -->` and `<!-- /NAME -->`; a test checks that it is what this prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def gpu_layers(data: dict[str, Any]) -> list[str]:
    lines = [
        "| batch, time, features, units, layers, bidirectional | job | standard ms | keras ms | fused ms "
        "| standard / fused | keras / fused |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        *sizes, both = row["shape"]
        shape = ", ".join([*map(str, sizes), "yes" if both else "no"])
        for job in ("predict", "train"):
            ms, ratio = row[job]["ms"], row[job]["ratio_to_fused"]
            times = " | ".join(f"{ms[c]:.2f}" for c in ("standard", "keras", "fused"))
            lines.append(f"| {shape} | {job} | {times} | {ratio['standard']:.1f} | {ratio['keras']:.2f} |")
    for job, means in data["geometric_mean"].items():
        lines.append(f"| geometric mean | {job} | | | | {means['standard']:.1f} | {means['keras']:.2f} |")
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
    "gpu_layers": gpu_layers,
    "convert_files": convert_files,
    "corpus": corpus,
}


def filled(text: str) -> str:
    """The README's text with every table that it has a place for."""
    for name, make in TABLES.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
        if place.search(text):
            table = "\n".join(make(json.loads((RESULTS / f"{name}.json").read_text()))) + "\n"
            text = place.sub(lambda m, table=table: m[1] + table + m[2], text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8")), encoding="utf-8")
