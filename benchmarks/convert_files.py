"""How long a large file takes, and how much memory: `python benchmarks/convert_files.py [--gib 1] [--rounds 3]`.

Makes an HDF5 model of stacked CuDNNLSTM layers, then times, in turn and several times over:

* `cp` of the file and `sync` of the copy;
* `lstm-swap convert` to plain LSTM layers, proof included, in a process of its own;
* tf_keras loading the plain file and saving it again (the same bytes through a program that people have).

Writes benchmarks/results/convert_files.json and prints a Markdown table. Peak memory is that of the process less
that of one that converts a tiny file (the interpreter and its libraries).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

RESULTS = Path(__file__).parent / "results"
UNITS = 1024
LOAD_AND_SAVE = """
import sys, warnings
warnings.simplefilter("ignore")
import tf_keras
tf_keras.models.load_model(sys.argv[1], compile=False).save(sys.argv[2], save_format="h5")
"""


def make_model(path: Path, gib: float, units: int = UNITS) -> int:
    """A Keras 2.2.4 file of about this size; returns the number of its layers."""
    rng = np.random.default_rng(0)
    layer_bytes = 4 * (units * 4 * units * 2 + 8 * units)
    count = max(1, round(gib * 2**30 / layer_bytes))
    layers = []
    with h5py.File(path, "w") as f:
        group = f.create_group("model_weights")
        for i in range(count):
            name = f"cu_dnnlstm_{i + 1}"
            config = {"name": name, "trainable": True, "units": units, "return_sequences": True}
            if i == 0:
                config["batch_input_shape"] = [None, None, units]
            layers.append({"class_name": "CuDNNLSTM", "config": config})
            names = [f"{name}/{part}:0" for part in ("kernel", "recurrent_kernel", "bias")]
            shapes = [(units, 4 * units), (units, 4 * units), (8 * units,)]
            inner = group.create_group(name)
            inner.attrs["weight_names"] = [n.encode() for n in names]
            for n, shape in zip(names, shapes):
                inner.create_dataset(n, data=(rng.random(shape, dtype="float32") - 0.5) / 16)
        group.attrs["layer_names"] = [layer["config"]["name"].encode() for layer in layers]
        for g in (f, group):
            g.attrs["keras_version"] = b"2.2.4"
            g.attrs["backend"] = b"tensorflow"
        entry = {"class_name": "Sequential", "config": {"name": "sequential_1", "layers": layers}}
        f.attrs["model_config"] = json.dumps(entry).encode()
    return count


def run(command: list[str]) -> tuple[float, float]:
    """Seconds and peak MiB of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def copy_and_sync(source: Path, target: Path) -> float:
    start = time.perf_counter()
    subprocess.run(["cp", "--reflink=never", str(source), str(target)], check=True)
    subprocess.run(["sync", str(target)], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files are made (default: a temporary folder)")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once, not at each start
    swap = [sys.executable, "-m", "lstm_swap", "convert"]
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        model, tiny, out = folder / "model.h5", folder / "tiny.h5", folder / "out.h5"
        layers = make_model(model, options.gib)
        make_model(tiny, 0, units=4)
        _, idle = run([*swap, str(tiny), "-o", str(out), "--to", "standard", "--force"])
        out.unlink()
        plain = folder / "plain.h5"
        run([*swap, str(model), "-o", str(plain), "--to", "standard", "--dialect", "keras2"])
        rounds: dict[str, list[float]] = {"cp + sync": [], "lstm-swap convert": [], "tf_keras load + save": []}
        peak = {"lstm-swap convert": 0.0, "tf_keras load + save": 0.0}
        for _ in range(options.rounds):
            rounds["cp + sync"].append(copy_and_sync(model, out))
            out.unlink()
            jobs = {
                "lstm-swap convert": [*swap, str(model), "-o", str(out), "--to", "standard"],
                "tf_keras load + save": [sys.executable, "-c", LOAD_AND_SAVE, str(plain), str(out)],
            }
            for title, command in jobs.items():
                seconds, mib = run(command)
                rounds[title].append(seconds)
                peak[title] = max(peak[title], mib)
                out.unlink()
        size = model.stat().st_size
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {p: importlib.metadata.version(p) for p in ("lstm-swap", "h5py", "numpy", "tf_keras")}
        | {"python": platform.python_version()},
        "file_bytes": size,
        "layers": layers,
        "rows": [
            {
                "job": title,
                "seconds": round(statistics.median(seconds), 2),
                "times_cp": round(statistics.median(s / c for s, c in zip(seconds, rounds["cp + sync"])), 2),
                "peak_mib_beyond_interpreter": round(peak[title] - idle) if title in peak else None,
            }
            for title, seconds in rounds.items()
        ],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "convert_files.json").write_text(json.dumps(result, indent=1) + "\n")
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    print(f"{size / 2**30:.2f} GiB, {layers} CuDNNLSTM({UNITS}) layers; {result['machine']}; {versions}\n")
    print("| job | seconds (median) | times cp + sync | peak MiB beyond the interpreter |\n|---|---|---|---|")
    for row in result["rows"]:
        memory = row["peak_mib_beyond_interpreter"]
        print(f"| {row['job']} | {row['seconds']} | {row['times_cp']} | {'-' if memory is None else memory} |")


if __name__ == "__main__":
    main()
