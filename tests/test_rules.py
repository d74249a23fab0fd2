"""The rules: may a layer take a form, and every reason why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lstm_swap.rules import Settings, judge

LSTM = Settings(kind="lstm", class_name="LSTM", units=4)
GRU = Settings(kind="gru", class_name="GRU", units=4)


@pytest.mark.parametrize("settings", [LSTM, GRU])
@pytest.mark.parametrize("form", ["standard", "fused", "cudnn"])
def test_a_plain_layer_takes_every_form(settings: Settings, form: str) -> None:
    """tanh, sigmoid, a bias, reset_after: what cuDNN computes."""
    assert judge(settings, form)


@pytest.mark.parametrize(
    ("change", "code", "fused"),
    [
        ({"activation": "relu"}, "activation", False),
        ({"recurrent_activation": "hard_sigmoid"}, "recurrent_activation", False),
        ({"use_bias": False}, "use_bias", False),
        ({"recurrent_dropout": 0.1}, "recurrent_dropout", False),
        ({"time_major": True}, "time_major", False),
        ({"use_cudnn": False}, "use_cudnn", False),
        ({"dtype": "int8"}, "dtype", False),
        ({"cell": "PeepholeLSTMCell", "kind": "other", "class_name": "RNN"}, "cell", False),
        ({"constants": True}, "state", False),
        ({"dropout": 0.1}, "dropout", True),
        ({"mask": True}, "mask", True),
        ({"constraints": (("kernel_constraint", "MaxNorm"),)}, "constraint", True),
        ({"dtype": "mixed_bfloat16"}, "dtype", True),
    ],
)
def test_one_reason_each(change: dict[str, object], code: str, fused: bool) -> None:
    """Each obstacle gives its own reason, and only it; some stop the legacy classes alone."""
    settings = replace(LSTM, **change)  # type: ignore[arg-type]
    verdict = judge(settings, "cudnn")
    assert not verdict
    assert [r.code for r in verdict.reasons] == [code]
    assert verdict.reasons[0].message
    assert verdict.reasons[0].remedy
    assert bool(judge(settings, "fused")) is fused


def test_every_reason_is_named() -> None:
    """A GRU of Keras 2.2 has two obstacles, and both are said."""
    verdict = judge(replace(GRU, reset_after=False, recurrent_activation="hard_sigmoid"), "cudnn")
    assert {r.code for r in verdict.reasons} == {"reset_after", "recurrent_activation"}


@pytest.mark.parametrize("kind", ["simple_rnn", "conv_lstm", "other"])
def test_what_cudnn_does_not_have(kind: str) -> None:
    """SimpleRNN, ConvLSTM2D and the rest are refused by their class."""
    verdict = judge(Settings(kind=kind, class_name="SimpleRNN", units=4), "fused")
    assert [r.code for r in verdict.reasons] == ["class"]


def test_inference_allows_what_only_training_notices() -> None:
    """Recurrent dropout, dropout, a missing bias and constraints go; a function never does."""
    change = {
        "recurrent_dropout": 0.1,
        "dropout": 0.2,
        "use_bias": False,
        "constraints": (("kernel_constraint", "MaxNorm"),),
    }
    verdict = judge(replace(LSTM, **change), "cudnn", inference=True)  # type: ignore[arg-type]
    assert verdict
    assert verdict.rewrites == {"recurrent_dropout": 0.0, "dropout": 0.0, "use_bias": True, "kernel_constraint": None}
    assert not judge(replace(LSTM, activation="relu"), "cudnn", inference=True)


def test_unroll_is_rewritten_not_refused() -> None:
    """unroll=True is the same computation written out."""
    verdict = judge(replace(LSTM, unroll=True), "fused")
    assert verdict
    assert verdict.rewrites == {"unroll": False}
    assert "unroll" in verdict.notes[0]
