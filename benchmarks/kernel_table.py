"""The table that the fused layers choose their kernels from: `python benchmarks/kernel_table.py`.

Reads what `cpu_layers.py` (with and without --grid) and `gpu_layers.py` have written for each mode, and writes
lstm_swap/layers/measured.json. A row is a shape: batch, time, features, units, layers, directions; `speed` is by kernel
how many times as fast as Keras's own layer it was in the same run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timing

TABLE = timing.RESULTS.parent.parent / "lstm_swap" / "layers" / "measured.json"
CPU_FILES = ("cpu_layers", "cpu_layers_gru", "cpu_grid", "cpu_grid_gru")
GPU_FILES = ("gpu_layers", "gpu_layers_gru")
#: cpu_layers.py has other columns beside the kernels.
NO_KERNELS = ("keras", "fused", "onnxruntime", "openvino")
GPU_JOBS = {"predict": "inference", "train": "training"}


def table_line(device: str, job: str, mode: str, shape: list[int], speed: dict[str, float]) -> dict[str, Any]:
    return {"device": device, "job": job, "mode": mode, "shape": shape, "speed": speed}


def cpu_rows(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in result["rows"]:
        for job in ("inference", "training"):
            speed = {name: value for name, value in row[job]["speed"].items() if name not in NO_KERNELS}
            yield table_line("cpu", job, result["mode"], [*row["shape"], 1, 1], speed)


def gpu_rows(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for row in result["rows"]:
        if row["masked"]:  # relative to another path of Keras
            continue
        *sizes, layers, both = row["shape"]
        for measured, job in GPU_JOBS.items():
            speeds = row[measured]["speed"]
            speed = {name.removeprefix("stack:"): value for name, value in speeds.items() if name.startswith("stack:")}
            yield table_line("gpu", job, result["mode"], [*sizes, layers, 1 + both], speed)


def table(results: Path = timing.RESULTS) -> dict[str, Any]:
    """The table of what there is in the folder."""
    sources: list[str] = []
    rows: list[dict[str, Any]] = []
    for names, make in ((CPU_FILES, cpu_rows), (GPU_FILES, gpu_rows)):
        for name in names:
            path = results / f"{name}.json"
            result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            if "mode" not in result or result.get("device") == "cpu":  # no result, or a GPU's benchmark without one
                continue
            sources.append(f"{name}.json: {timing.headline(result)}")
            rows += make(result)
    return {"source": sources, "rows": rows}


def text(found: dict[str, Any]) -> str:
    """As JSON, a row a line."""
    sources, rows = ("".join(f"\n  {json.dumps(item)}," for item in found[key])[:-1] for key in ("source", "rows"))
    return f'{{\n "source": [{sources}\n ],\n "rows": [{rows}\n ]\n}}\n'


if __name__ == "__main__":
    TABLE.write_text(text(table()), encoding="utf-8")
    print(f"{TABLE}: {len(table()['rows'])} rows")
