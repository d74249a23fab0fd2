"""plan: the same rules for live models and files, one line in the log, and the faults of the running Keras."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import lstm_swap
from lstm_swap import live_plan
from lstm_swap.keras_faults import FAULTS, faults
from tests.live_tools import FEATURES, STEPS, chain, classes, layers, outputs, sequences

LSTM, GRU, Bidirectional, Dense = layers.LSTM, layers.GRU, layers.Bidirectional, layers.Dense


def varied() -> Any:
    """One layer for every reason that a live layer can have."""
    return chain(
        LSTM(3, return_sequences=True, name="good"),
        LSTM(3, return_sequences=True, activation="relu", name="relu"),
        GRU(3, return_sequences=True, recurrent_activation="hard_sigmoid", name="hard"),
        GRU(3, return_sequences=True, reset_after=False, name="before"),
        LSTM(3, return_sequences=True, use_bias=False, name="no_bias"),
        LSTM(3, return_sequences=True, recurrent_dropout=0.1, name="dropping"),
        LSTM(3, return_sequences=True, unroll=True, name="unrolled"),
        LSTM(3, return_sequences=True, use_cudnn=False, name="no"),
        Bidirectional(LSTM(3, return_sequences=True, name="half"), backward_layer=LSTM(
            3, return_sequences=True, go_backwards=True, activation="relu", name="other"), name="two"),
        LSTM(3, return_sequences=True, dropout=0.2, implementation=1, name="mask_a_gate"),
        layers.RNN(layers.LSTMCell(3), return_sequences=True, name="cell"),
        layers.RNN([layers.LSTMCell(3)], return_sequences=True, name="cells"),
        layers.SimpleRNN(3, name="simple"),
    )  # fmt: skip


WANTED = {
    "good": ("swap", []),
    "relu": ("refuse", ["activation"]),
    "hard": ("refuse", ["recurrent_activation"]),
    "before": ("refuse", ["reset_after"]),
    "no_bias": ("refuse", ["use_bias"]),
    "dropping": ("refuse", ["recurrent_dropout"]),
    "unrolled": ("swap", []),
    "no": ("refuse", ["use_cudnn"]),
    "two/forward_half": ("refuse", ["partner"]),
    "two/backward_other": ("refuse", ["activation"]),
    "mask_a_gate": ("refuse", ["dropout"]),
    "cell": ("swap", []),
    "cells": ("refuse", ["cell"]),
    "simple": ("keep", ["class"]),
}


def test_reasons() -> None:
    """Each recurrent layer appears once, with its action and its reasons."""
    made = lstm_swap.plan(varied(), "fused")
    assert isinstance(made, lstm_swap.Plan)
    assert made.to == "fused"
    assert {d.path: (d.action, [r.code for r in d.reasons]) for d in made.decisions} == WANTED
    for decision in made.decisions:
        assert decision.parameters == sum(np.prod(array.shape) for array in _arrays(decision))
        assert all(reason.message for reason in decision.reasons)
    assert made.decisions[0].parameters == 4 * 3 * (FEATURES + 3 + 1)


def _arrays(decision: Any) -> list[Any]:
    cell = decision.node.child("cell")
    return decision.node.arrays if cell is None else cell.arrays


def test_the_plan_is_what_happens() -> None:
    """optimize does what plan says, and plan changes nothing."""
    model = varied()
    before = [type(layer) for layer in model.layers]
    made = lstm_swap.plan(model, "fused")
    assert [type(layer) for layer in model.layers] == before
    fused = lstm_swap.optimize(model, "fused")
    assert classes(fused).count("FusedLSTM") == len(made.swapped) == 3
    assert np.abs(outputs(fused, sequences())[0] - outputs(model, sequences())[0]).max() < 1e-6


def test_same_rules_as_for_files(tmp_path: Path) -> None:
    """The plan of the saved model is that of the live one, but for what a file does not say."""
    model = varied()
    model.save(tmp_path / "model.keras")
    from_file = {d.path: d for d in lstm_swap.plan(tmp_path / "model.keras", "fused").decisions}
    for decision in lstm_swap.plan(model, "fused").decisions:
        if decision.path in ("no", "mask_a_gate"):  # use_cudnn and implementation are not saved
            continue
        live, found = decision.as_dict(), from_file[decision.path].as_dict()
        if decision.path == "cells":  # whose arrays a file keeps in the cells
            live["parameters"] = found["parameters"]
        assert live == found


def test_inference_allows_more() -> None:
    """What only training would notice is no reason then."""
    made = lstm_swap.plan(varied(), "fused", inference=True)
    actions = {d.path: d.action for d in made.decisions}
    assert [actions[name] for name in ("no_bias", "dropping", "mask_a_gate", "relu")] == [*["swap"] * 3, "refuse"]


def test_inner_models_and_wrappers_have_paths() -> None:
    """Paths are the names from the outermost in, joined by a slash."""
    inner = keras.Sequential([keras.Input((STEPS, FEATURES)), GRU(2, name="deep")], name="inner")
    model = chain(layers.TimeDistributed(inner, name="each"), LSTM(2, name="top"), shape=(2, STEPS, FEATURES))
    assert [d.path for d in lstm_swap.plan(model, "fused").decisions] == ["each/inner/deep", "top"]


def test_strict(caplog: pytest.LogCaptureFixture) -> None:
    """strict=True is an error that names every refused layer with every reason and the way out."""
    model = chain(LSTM(3, activation="relu", use_bias=False, name="bad"), shape=(STEPS, FEATURES))
    with pytest.raises(lstm_swap.IneligibleLayerError) as caught:
        lstm_swap.optimize(model, "fused", strict=True)
    message = str(caught.value)
    assert "bad: activation: activation='relu'" in message
    assert "bad: use_bias: use_bias=False" in message
    assert "inference" in message
    assert classes(lstm_swap.optimize(model, "standard", strict=True)) == ["LSTM"]
    assert lstm_swap.optimize(chain(LSTM(2)), "fused", strict=True) is not None


@pytest.mark.parametrize("call", ["plan", "optimize", "standardize"])
def test_logged_once(call: str, caplog: pytest.LogCaptureFixture) -> None:
    """One record at INFO says what happens to each layer, and why not."""
    model = chain(LSTM(3, return_sequences=True, name="a"), GRU(2, activation="relu", name="b"))
    model.name = "mine"
    arguments = [] if call == "standardize" else ["fused"]
    with caplog.at_level(logging.INFO, "lstm_swap"):
        getattr(lstm_swap, call)(model, *arguments)
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.INFO, "lstm_swap")
    text = record.getMessage()
    if call == "standardize":
        assert text == "model 'mine' to standard: 0 swapped, 2 kept, 0 refused. a: keep LSTM. b: keep GRU"
    else:
        assert text.startswith("model 'mine' to fused: 1 swapped, 0 kept, 1 refused. a: swap LSTM -> FusedLSTM. ")
        assert "b: refuse GRU (activation: cuDNN computes tanh, and this layer uses relu)" in text


def test_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """auto is fused where TensorFlow can use a GPU, else standard; the new model is a new one in either case."""
    model = chain(LSTM(3))
    monkeypatch.setattr(live_plan, "gpu_is_there", lambda: False)
    assert lstm_swap.plan(model).to == "standard"
    plain = lstm_swap.optimize(model)
    assert plain is not model
    assert classes(plain) == ["LSTM"]
    assert classes(lstm_swap.optimize(lstm_swap.optimize(model, "fused"))) == ["LSTM"]
    monkeypatch.setattr(live_plan, "gpu_is_there", lambda: True)
    assert lstm_swap.plan(model).to == "fused"
    assert classes(lstm_swap.optimize(model)) == ["FusedLSTM"]
    assert classes(lstm_swap.optimize(lstm_swap.optimize(model))) == ["FusedLSTM"]


def test_wrong_use(tfk: Any) -> None:
    """Unknown forms, legacy classes, and what is no model of Keras 3: errors that say what to do."""
    model = chain(LSTM(3))
    with pytest.raises(lstm_swap.UsageError, match="unknown form 'fast'; the forms are auto, standard, fused"):
        lstm_swap.optimize(model, "fast")
    with pytest.raises(lstm_swap.UsageError, match="not part of Keras 3"):
        lstm_swap.plan(model, "cudnn")
    with pytest.raises(lstm_swap.UsageError, match=r"tf_keras.*load_model"):
        lstm_swap.optimize(tfk.Sequential([tfk.layers.LSTM(2)]))
    with pytest.raises(lstm_swap.UsageError, match="NoneType"):
        lstm_swap.standardize(None)
    with pytest.raises(lstm_swap.UsageError, match="use_cudnn must be"):
        lstm_swap.standardize(model, use_cudnn="never")
    with pytest.raises(lstm_swap.UnreadableModelError, match="no such file"):
        lstm_swap.plan("nowhere.keras")


# The faults


def _found(model: Any, version: str, backend: str = "tensorflow", masked: bool = False) -> list[str]:
    tree, made = live_plan.plan_model(model, "standard")
    nodes = frozenset(id(node) for node in tree.root.walk()) if masked else frozenset()
    return list(faults(made.decisions, version, backend, masked=nodes))


def test_dropout_at_inference() -> None:
    """Keras 3.4 to 3.8 dropped inputs at inference on cuDNN."""
    model = chain(LSTM(3, dropout=0.5, name="dropping", return_sequences=True), GRU(2))
    for version, count in [("3.3.3", 0), ("3.4.0", 1), ("3.8.0", 1), ("3.9.0", 0), ("3.15.1", 0)]:
        found = _found(model, version)
        assert len(found) == count
        assert all(f.startswith("dropping: on a GPU this LSTM of Keras") and "at inference" in f for f in found)


def test_state_of_a_gru() -> None:
    """Until Keras 3.11.2 a GRU on cuDNN returned its state row by row."""
    model = chain(GRU(3, return_state=True, name="stating"))
    assert [len(_found(model, v)) for v in ("3.0.5", "3.11.2", "3.11.3", "3.12.0")] == [1, 1, 0, 0]
    assert not _found(chain(LSTM(3, return_state=True)), "3.8.0")
    assert not _found(chain(GRU(3)), "3.8.0")


def test_flag_lost_in_bidirectional() -> None:
    """Until Keras 3.12 Bidirectional forgot use_cudnn=False."""
    model = chain(Bidirectional(LSTM(3), name="two"))
    assert [len(_found(model, v)) for v in ("3.11.3", "3.12.0")] == [2, 0]


def test_time_turned_round_in_jax() -> None:
    """The JAX backend's LSTM, backwards with all outputs; from 3.15 a Bidirectional is right unless it drops inputs."""

    def count(model: Any, version: str, backend: str = "jax") -> int:
        return sum("order of time" in line for line in _found(model, version, backend))

    alone = chain(LSTM(3, go_backwards=True, return_sequences=True))
    assert [count(alone, v) for v in ("3.13.2", "3.14.0", "3.15.1")] == [0, 1, 1]
    assert count(alone, "3.15.1", "tensorflow") == 0
    assert count(chain(LSTM(3, go_backwards=True)), "3.15.1") == 0
    assert count(chain(GRU(3, go_backwards=True, return_sequences=True)), "3.15.1") == 0
    two = chain(Bidirectional(LSTM(3, return_sequences=True)))
    assert [count(two, v) for v in ("3.14.1", "3.15.1")] == [1, 0]
    assert count(chain(Bidirectional(LSTM(3, return_sequences=True, dropout=0.1))), "3.15.1") == 1


def test_masks_that_stop_predict() -> None:
    """On cuDNN a mask that is not padding on the right stops Keras; only where a mask can come from at all."""
    model = chain(LSTM(3))
    assert not _found(model, "3.15.1")
    assert len(_found(model, "3.15.1", masked=True)) == 1


def test_only_what_keras_itself_runs_on_cudnn() -> None:
    """Fused layers, use_cudnn=False and layers that cuDNN cannot run are not touched by any fault."""
    arguments = {"dropout": 0.5, "return_state": True, "return_sequences": True, "go_backwards": True}
    for more in ({"use_cudnn": False}, {"activation": "relu"}, {"unroll": True}, {"recurrent_dropout": 0.1}):
        for fault in FAULTS:
            version = ".".join(map(str, fault.first))
            assert not _found(chain(LSTM(3, **arguments, **more)), version, fault.backend, masked=True)
    _, made = live_plan.plan_model(chain(LSTM(3, dropout=0.5)), "fused")
    assert not list(faults(made.decisions, "3.8.0", "tensorflow"))


def test_plan_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With a GPU and a Keras that has a fault, plan warns of it; not of fused layers, and not without a GPU."""
    x = keras.Input((None,), dtype="int32")
    h = layers.Embedding(5, 3, mask_zero=True)(x)
    model = keras.Model(x, LSTM(3, dropout=0.5, name="touched")(h))
    monkeypatch.setattr(keras, "__version__", "3.8.0")
    monkeypatch.setattr(live_plan, "gpu_is_there", lambda: True)
    with caplog.at_level(logging.WARNING, "lstm_swap"):
        made = lstm_swap.plan(model, "standard")
    assert len(made.warnings) == 2
    assert [r.getMessage() for r in caplog.records] == [f"model {model.name!r}: {w}" for w in made.warnings]
    assert any("random" in w for w in made.warnings)
    assert any("mask" in w for w in made.warnings)
    assert lstm_swap.plan(model, "fused").warnings == []
    monkeypatch.setattr(live_plan, "gpu_is_there", lambda: False)
    assert lstm_swap.plan(model, "standard").warnings == []
