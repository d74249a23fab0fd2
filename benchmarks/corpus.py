"""Real public models, before and after: `python benchmarks/corpus.py PATH_OF_THE_CORPUS`.

Runs the corpus's own `run.py` three times over the same files: Keras 3 and tf_keras on the untouched files, and Keras 3
on what `lstm-swap convert --to standard` made of them. A model is equal when it computes what the program that wrote it
computes. The corpus itself does not ship with this project. Writes benchmarks/results/corpus.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

#: Title of each row, and what a file must be to count in it.
ROWS = {
    "opens and computes the same": lambda r: r["status"] == "OPENS+EQUAL",
    "needs custom classes, the rest computes the same": lambda r: (
        r["status"] == "CONVERTED-NEEDS-CUSTOM" and r["equal"] is not False
    ),
    "opens with other numbers, or cannot run": lambda r: (
        r["status"] == "OPENS" or (r["status"] == "CONVERTED-NEEDS-CUSTOM" and r["equal"] is False)
    ),
    "does not open": lambda r: r["status"] == "FAIL",
}


def judge(corpus: Path, *options: str) -> dict[str, dict[str, Any]]:
    """The corpus script's verdict on each file, by id."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        subprocess.run([sys.executable, str(corpus / "run.py"), "--json", str(out), *options], check=False)
        results: dict[str, dict[str, Any]] = json.loads(out.read_text())["results"]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    corpus = parser.parse_args().corpus
    kinds = {str(e["id"]): e["kind"] for e in json.loads((corpus / "manifest.json").read_text())["files"]}
    versions = {p: importlib.metadata.version(p) for p in ("keras", "tf_keras", "tensorflow", "lstm-swap")}
    columns = {
        f"Keras {versions['keras']}": judge(corpus, "--baseline", "keras"),
        f"tf_keras {versions['tf_keras']}": judge(corpus, "--baseline", "tf_keras"),
        "lstm-swap, then Keras": judge(corpus, "--cmd", f"{sys.executable} -m lstm_swap", "--savedmodel"),
    }
    whole = [i for i, kind in kinds.items() if kind == "whole-model" and all(i in c for c in columns.values())]
    rows: dict[str, list[Any]] = {f"whole models: {len(whole)}": ["" for _ in columns]}
    for title, test in ROWS.items():
        rows[title] = [sum(test(column[i]) for i in whole) for column in columns.values()]
    swapped = columns["lstm-swap, then Keras"]
    for kind, title, good in (
        ("pair", "architecture and weights", "OPENS+EQUAL"),
        ("weights-only", "weights alone, every array kept", "KEPT"),
    ):
        ids = [i for i, k in kinds.items() if k.startswith(kind) and i in swapped]
        rows[f"{title}: {len(ids)}"] = ["", "", sum(swapped[i]["status"] == good for i in ids)]
    result = {
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": versions | {"python": platform.python_version()},
        "columns": list(columns),
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "corpus.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
