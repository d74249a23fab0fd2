"""`bench`: candidates take turns, medians count, a budget ends it; the command line shows a table and draws it."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from click.testing import CliRunner

from lstm_swap import bench
from lstm_swap.cli import main
from lstm_swap.errors import MissingDependencyError, UsageError


class Clock:
    """Time that passes only while candidates run."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float) -> object:
        """A candidate whose calls take these times, over and over."""
        calls = iter(range(10**9))

        def run() -> None:
            self.now += seconds[next(calls) % len(seconds)]

        return run


def test_medians_of_all_candidates() -> None:
    """One slow call in three does not show; the times are those of one call."""
    clock = Clock()
    candidates = {"steady": clock.takes(2.0), "hiccups": clock.takes(1.0, 1.0, 50.0)}
    assert bench.medians(candidates, rounds=9, budget=1e9, clock=clock) == {"steady": 2.0, "hiccups": 1.0}


def test_quick_calls_are_repeated() -> None:
    """A call of a microsecond is timed many times over, so that the clock's own steps do not matter."""
    clock = Clock()
    count = 0

    def run() -> None:
        nonlocal count
        count += 1
        clock.now += 1e-6

    (seconds,) = bench.medians({"quick": run}, rounds=1, clock=clock).values()
    assert seconds == pytest.approx(1e-6)
    assert count > 500


def test_the_budget_ends_it() -> None:
    """What is left when the time is over is not measured; the first candidate always is, once at least."""
    clock = Clock()
    found = bench.medians({"slow": clock.takes(5.0), "never": clock.takes(1.0)}, rounds=99, budget=8.0, clock=clock)
    assert found == {"slow": 5.0}
    assert clock.now == pytest.approx(20.0)  # three calls to prepare, one round


def small_model() -> keras.Model:
    return keras.Sequential([keras.Input((None, 3)), keras.layers.LSTM(4), keras.layers.Dense(2)])


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LSTM_SWAP_CACHE", str(tmp_path / "cache" / "kernels.json"))


@pytest.mark.usefixtures("cache")
def test_forms_of_a_model() -> None:
    """Each form is timed for each job, and computes the same; the original is left alone."""
    model = small_model()
    before = model.get_weights()
    result = bench.measure(model, batch=2, steps=5, training=True, rounds=1)
    assert [(row.form, row.job) for row in result.rows] == [
        (f, j) for j in ("inference", "training") for f in bench.FORMS
    ]
    assert all(row.milliseconds > 0 and row.max_difference < 1e-6 for row in result.rows)
    assert [row.speedup for row in result.rows if row.form == "standard"] == [1.0, 1.0]
    assert result.shapes == [[2, 5, 3]]
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_words_are_whole_numbers() -> None:
    """A model that looks words up gets whole numbers; one that says nothing of its inputs needs a sample."""
    model = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(4, 2), keras.layers.LSTM(3)])
    assert bench.random_sample(model, 2, 5).dtype == np.int32
    with pytest.raises(UsageError, match="give a sample"):
        bench.random_sample(keras.Sequential([keras.layers.LSTM(3)]), 2, 5)


@pytest.mark.usefixtures("cache")
def test_command_line(tmp_path: Path) -> None:
    """A table for people, one JSON object for programs, a drawing where asked for."""
    path = tmp_path / "model.keras"
    small_model().save(path)
    shared = ["bench", str(path), "--batch", "2", "--steps", "4", "--rounds", "1"]
    shown = CliRunner().invoke(main, shared)
    assert shown.exit_code == 0, shown.output
    for form in bench.FORMS:
        assert f"inference  {form}" in shown.output
    drawing = tmp_path / "bench.svg"
    told = CliRunner().invoke(main, [*shared, "--json", "--training", "--plot", str(drawing)])
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout.splitlines()[-1])
    assert {row["job"] for row in result["rows"]} == {"inference", "training"}
    assert drawing.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The extra that is missing is named."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = bench.Result("model", "machine", {}, [[1]], [])
    with pytest.raises(MissingDependencyError, match=r"lstm-swap\[plot\]"):
        bench.plot(result, str(tmp_path / "x.png"), "png")
