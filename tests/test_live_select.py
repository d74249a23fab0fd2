"""`optimize(model, sample=x)` picks kernels by measurement, falls back to Keras's layers, and remembers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import lstm_swap
from lstm_swap import bench, live_select
from tests.conftest import assert_close, outputs, randomise

layers = keras.layers

X = np.random.default_rng(0).normal(size=(4, 6, 3)).astype("float32")


class Clock:
    """Time that passes only while a candidate runs, as long as `costs` says: by kernel, "keras" for Keras's own."""

    def __init__(self, costs: dict[str, float]) -> None:
        self.costs, self.now, self.ran = costs, 0.0, []

    def __call__(self) -> float:
        return self.now

    def candidate(self, layers: list[Any], _seen: Any, job: str) -> Callable[[], None]:
        chosen = getattr(layers[0], "kernels", {})
        name = chosen[f"cpu_{job}"] if chosen else "keras"

        def run() -> None:
            self.ran.append(name)
            self.now += self.costs.get(name, self.costs.get(f"{job} {name}", 5.0))

        return run


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, float]], Clock]:
    """Make every measurement follow a fake clock; the times are kept in a file of the test's."""
    monkeypatch.setenv("LSTM_SWAP_CACHE", str(tmp_path / "kernels.json"))
    medians = bench.medians

    def use(costs: dict[str, float]) -> Clock:
        clock = Clock(costs)
        monkeypatch.setattr(live_select, "_call", clock.candidate)
        monkeypatch.setattr(bench, "medians", lambda candidates, **_: medians(candidates, clock=clock, budget=1e9))
        return clock

    return use


def model_of(time_steps: int | None = 6) -> keras.Model:
    return randomise(keras.Sequential([keras.Input((time_steps, 3)), layers.LSTM(4, name="lstm"), layers.Dense(2)]))


def test_the_fastest_kernel_is_set_for_each_job(measured: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Inference and training each get what took least; the log gives the figures; the numbers stay."""
    measured({"keras": 3.0, "inference xla": 1.0, "training scan": 2.0})
    model = model_of()
    with caplog.at_level(logging.INFO, "lstm_swap"):
        made = lstm_swap.optimize(model, sample=X)
    assert dict(made.layers[0].kernels) == {"cpu_inference": "xla", "cpu_training": "scan"}
    assert "lstm: inference on the cpu: xla, 3.00 times Keras" in caplog.text
    assert_close(outputs(made, X), outputs(model, X))


@pytest.mark.parametrize(
    ("costs", "kept"),
    [
        ({"keras": 1.09, "loop": 1.0}, True),  # gains less than 1.1
        ({"keras": 1.11, "loop": 1.0}, False),
        ({"keras": 1.0, "inference xla": 0.1, "training scan": 1.05}, True),  # one job loses
        ({"keras": 1.0, "inference xla": 0.1, "training scan": 1.02}, False),  # within noise
    ],
)
def test_keras_layer_stays_where_nothing_is_gained(measured: Any, costs: dict[str, float], kept: bool) -> None:
    """Below 1.1 times, or with a loss, the layer is Keras's own."""
    measured(costs)
    made = lstm_swap.optimize(model_of(), sample=X)
    assert (type(made.layers[0]) is layers.LSTM) is kept


def test_a_stack_that_gains_nothing_comes_apart(measured: Any) -> None:
    """Layers that were put together for a stack are Keras's own again, under their names."""
    measured({"keras": 1.0, "loop": 1.0})
    model = randomise(
        keras.Sequential([keras.Input((6, 3)), layers.LSTM(4, return_sequences=True), layers.LSTM(4), layers.Dense(2)])
    )
    made = lstm_swap.optimize(model, sample=X, merge=True)
    assert [layer.name for layer in made.layers] == [layer.name for layer in model.layers]
    assert [type(layer) for layer in made.layers] == [type(layer) for layer in model.layers]
    assert_close(outputs(made, X), outputs(model, X))


def test_what_was_measured_is_kept(measured: Any, tmp_path: Path) -> None:
    """The same layer in the same shape is not measured again; another batch size is; a broken file does no harm."""
    costs = {"keras": 3.0, "xla": 1.0}
    clock = measured(costs)
    lstm_swap.optimize(model_of(), sample=X)
    first = len(clock.ran)
    lstm_swap.optimize(model_of(), sample=X)
    assert len(clock.ran) == first > 0
    lstm_swap.optimize(model_of(), sample=X[:2])
    assert len(clock.ran) > first
    store = tmp_path / "kernels.json"
    assert all("lstm-swap" in key for key in json.loads(store.read_text()))
    store.write_text("{")
    made = lstm_swap.optimize(model_of(), sample=X)
    assert made.layers[0].kernels["cpu_inference"] == "xla"


def test_only_inference(measured: Any) -> None:
    """With inference=True the gradient is not timed."""
    measured({"keras": 3.0, "xla": 1.0})
    made = lstm_swap.optimize(model_of(), sample=X, inference=True)
    assert dict(made.layers[0].kernels) == {"cpu_inference": "xla"}


def test_compiled_kernels_are_not_tried_for_any_length(measured: Any) -> None:
    """XLA compiles for every length, so a model for sequences of any length never gets it."""
    clock = measured({"keras": 3.0, "xla": 0.1, "loop": 1.0})
    made = lstm_swap.optimize(model_of(None), sample=X)
    assert not any(name.startswith("xla") for name in clock.ran)
    assert made.layers[0].kernels["cpu_inference"] == "loop"


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_the_choice_survives_a_file(measured: Any, tmp_path: Path, suffix: str) -> None:
    """Saved and loaded, the layer runs the kernels that were chosen; so does a model made from the config."""
    measured({"keras": 3.0, "scan": 1.0})
    made = lstm_swap.optimize(model_of(), sample=X)
    chosen = {"cpu_inference": "scan", "cpu_training": "scan"}
    made.save(tmp_path / f"model{suffix}")
    loaded = keras.saving.load_model(tmp_path / f"model{suffix}", compile=False)
    assert dict(loaded.layers[0].kernels) == chosen
    assert_close(outputs(loaded, X), outputs(made, X))
    config = made.layers[0].get_config()
    assert config["kernels"] == chosen
    assert dict(type(made.layers[0]).from_config(config).kernels) == chosen


def test_for_real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the real clock: masks, a wrapper and both jobs; whatever is picked computes the same."""
    monkeypatch.setenv("LSTM_SWAP_CACHE", str(tmp_path / "kernels.json"))
    model = randomise(
        keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(7, 3, mask_zero=True), layers.GRU(4)])
    )
    x = np.random.default_rng(0).integers(0, 7, (3, 5))
    made = lstm_swap.optimize(model, sample=x)
    assert_close(outputs(made, x), outputs(model, x))
    (inference, training) = json.loads((tmp_path / "kernels.json").read_text()).values()
    assert inference["keras"] > 0 < training["keras"]
