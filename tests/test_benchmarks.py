"""The benchmarks: how they time, and that what is made from their results is made from those results."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a script of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    for name in names:  # as new, and gone afterwards
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


class Clock:
    """A machine whose speed is set by hand: every candidate takes its seconds times `slowness`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slowness: Callable[[], float] = lambda: 1.0
        self.calls: list[str] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def timer(self, name: str, seconds: float) -> Callable[[int], float]:
        def run(repeats: int) -> float:
            self.calls.append(name)
            took = seconds * self.slowness() * repeats
            self.now += took
            return took

        return run


@pytest.fixture
def clock(benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(benchmark("timing"), "time", made)
    return made


def test_ratios_are_taken_within_a_round(benchmark: Callable[[str], Any], clock: Clock) -> None:
    """A machine that slows down all the time changes the times, and hardly the ratios."""
    clock.slowness = lambda: 1 + clock.now / 10
    timers = {"base": clock.timer("base", 0.2), "fast": clock.timer("fast", 0.05)}
    result = benchmark("timing").compare(timers, "base", rounds=9, seconds=0.05)
    assert result["rounds"] == 9
    assert result["speed"]["base"] == 1.0
    assert result["speed"]["fast"] == pytest.approx(4.0, rel=0.05)
    assert result["ms"]["base"] > 220


def test_every_candidate_runs_once_a_round_in_changing_order(benchmark: Callable[[str], Any], clock: Clock) -> None:
    """No candidate always follows the same one."""
    timers = {name: clock.timer(name, 1.0) for name in "abc"}
    benchmark("timing").compare(timers, "a", rounds=12)
    rounds = ["".join(clock.calls[i : i + 3]) for i in range(3, len(clock.calls), 3)]  # the first three calibrate
    assert len(rounds) == 12
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert len(set(rounds)) > 2


def test_quick_calls_are_repeated(benchmark: Callable[[str], Any], clock: Clock) -> None:
    """What is too short for the clock runs many times a round; the figure is still that of one call."""
    result = benchmark("timing").compare({"quick": clock.timer("quick", 1e-4)}, "quick", rounds=3, seconds=0.05)
    assert result["ms"]["quick"] == pytest.approx(0.1)
    assert clock.now > 3 * 0.045


def test_no_round_starts_after_the_deadline(benchmark: Callable[[str], Any], clock: Clock) -> None:
    """The time that is given is kept, save for the fewest rounds that make a median."""
    timers = {"a": clock.timer("a", 1.0)}
    assert benchmark("timing").compare(timers, "a", rounds=100, deadline=clock.now + 10.5)["rounds"] == 10
    assert benchmark("timing").compare(timers, "a", rounds=100, deadline=clock.now)["rounds"] == 3


def test_rounds_that_others_disturb_do_not_count(
    benchmark: Callable[[str], Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With patience the figures come from the rounds in which the machine was quiet."""
    timing = benchmark("timing")
    loud = [True, True, False, True, False, False, False]  # what another program does in each round
    asked: list[float] = []  # the CPU time that it has used, whenever it is asked for: before and after a round

    def elsewhere() -> float:
        ends_loud_round = len(asked) % 2 and loud[len(asked) // 2]
        asked.append((asked[-1] if asked else 0.0) + (100.0 if ends_loud_round else 0.0))
        return asked[-1]

    monkeypatch.setattr(timing, "cpu_time_elsewhere", elsewhere)
    clock.slowness = lambda: 5.0 if clock.calls[-1] == "a" and loud[len(asked) // 2] else 1.0
    timers = {"a": clock.timer("a", 1.0), "b": clock.timer("b", 0.5)}
    result = timing.compare(timers, "a", rounds=3, patience=5)
    assert result["speed"]["b"] == 2.0
    assert (result["rounds"], result["busy"]) == (3, 0.0)
    assert len(asked) == 2 * 6


def _cpu_result() -> dict[str, Any]:
    speed = {"keras": 1.0, "fused": 2.0, "loop": 0.9, "xla": 3.0, "onnxruntime": 1.5}
    job = {"speed": speed, "ms": {name: 6.0 / value for name, value in speed.items()}, "rounds": 3}
    row = {"shape": [1, 2, 3, 4], "inference": job, "training": job}
    return {"machine": "some CPU", "versions": {"keras": "3"}, "mode": "lstm", "rows": [row]}


def _gpu_result(device: str = "gpu") -> dict[str, Any]:
    speed = {"standard": 0.1, "keras": 1.0, "fused": 1.1, "stack": 1.25, "stack:cudnn": 1.2, "stack:xla": 1.5}
    job = {"speed": speed, "ms": {name: 5.0 / value for name, value in speed.items()}, "rounds": 3}
    rows = [
        {"shape": [8, 9, 10, 11, 3, True], "masked": False, "predict": job, "train": job},
        {"shape": [8, 9, 10, 11, 1, False], "masked": True, "predict": job, "train": job},
    ]
    result = {"machine": "some GPU", "versions": {"keras": "3"}, "mode": "gru", "device": device, "rows": rows}
    return {**result, "geometric_mean": {name: dict(speed) for name in ("predict", "train")}}


def test_kernel_table(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    """Speeds by kernel, of the rows that compare with Keras's own layer, and of no run without a GPU for the GPU."""
    module = benchmark("kernel_table")
    (tmp_path / "cpu_grid.json").write_text(json.dumps(_cpu_result()))
    (tmp_path / "gpu_layers_gru.json").write_text(json.dumps(_gpu_result()))
    (tmp_path / "gpu_layers.json").write_text(json.dumps(_gpu_result("cpu")))
    table = module.table(tmp_path)
    assert table == json.loads(module.text(table))
    assert [line.split(":")[0] for line in table["source"]] == ["cpu_grid.json", "gpu_layers_gru.json"]
    cpu, gpu = table["rows"][:2], table["rows"][2:]
    assert [(row["device"], row["job"], row["mode"]) for row in (*cpu, *gpu)] == [
        ("cpu", "inference", "lstm"),
        ("cpu", "training", "lstm"),
        ("gpu", "inference", "gru"),
        ("gpu", "training", "gru"),
    ]
    assert cpu[0]["shape"] == [1, 2, 3, 4, 1, 1]
    assert cpu[0]["speed"] == {"loop": 0.9, "xla": 3.0}
    assert gpu[0]["shape"] == [8, 9, 10, 11, 3, 2]
    assert gpu[0]["speed"] == {"cudnn": 1.2, "xla": 1.5}


def test_the_committed_table_is_that_of_the_committed_results(benchmark: Callable[[str], Any]) -> None:
    """No figure that kernels are chosen by is written by hand."""
    module = benchmark("kernel_table")
    assert module.text(module.table()) == module.TABLE.read_text(encoding="utf-8")


def test_readme_tables(benchmark: Callable[[str], Any]) -> None:
    """The tables of the README from results: what was not measured is a dash."""
    module = benchmark("readme_tables")
    cpu = module.TABLES["cpu_layers"](_cpu_result())
    assert cpu[0] == "| batch, time, features, units | job | keras ms | fused ms | fused | onnxruntime |"
    assert cpu[2] == "| 1, 2, 3, 4 | inference | 6.00 | 3.00 | 2.00x | 1.50x |"
    gpu = module.TABLES["gpu_layers"](_gpu_result())
    assert gpu[2] == "| 8, 9, 10, 11, 3, yes | predict | 50.00 | 5.00 | 4.17 | - | 3.33 | 15.0 | 1.50 |"
    assert gpu[4].startswith("| 8, 9, 10, 11, 1, no, masked | predict |")
    assert gpu[-1] == "| geometric mean | train |  |  |  |  |  |  | 1.50 |"
    job = {"seconds": {"standard": 7.0, "xla": 2.0, "keras": 1.0, "fused": 0.5}}
    job["times_fused"] = {"standard": 14.0, "xla": 4.0, "keras": 2.0}
    fit = module.TABLES["gpu_fit"](dict.fromkeys(("fit", "evaluate", "predict"), job))
    assert fit[2] == "| `fit` | 7.00 | 2.00 | 1.00 | 0.50 | 14.0 | 4.00 | 2.00 |"
