"""Rewrite saved Keras recurrent models: GPU layers to plain ones and back, with proof.

Nothing here imports TensorFlow; the functions that need it import it when they are called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lstm_swap.compare import verify
    from lstm_swap.errors import (
        IneligibleLayerError,
        LstmSwapError,
        MissingDependencyError,
        UnreadableModelError,
        UnsupportedLayerError,
        UsageError,
        VerificationError,
    )
    from lstm_swap.files import convert, inspect
    from lstm_swap.live import load_model, optimize, plan, standardize
    from lstm_swap.planning import Plan
    from lstm_swap.report import Report

#: Where each public name lives; imported when it is first asked for, so that `--help` is quick.
_HOMES = {
    "convert": "files",
    "inspect": "files",
    "load_model": "live",
    "optimize": "live",
    "plan": "live",
    "standardize": "live",
    "verify": "compare",
    "Plan": "planning",
    "Report": "report",
    "LstmSwapError": "errors",
    "UsageError": "errors",
    "UnreadableModelError": "errors",
    "IneligibleLayerError": "errors",
    "UnsupportedLayerError": "errors",
    "VerificationError": "errors",
    "MissingDependencyError": "errors",
}

__all__ = [
    "IneligibleLayerError",
    "LstmSwapError",
    "MissingDependencyError",
    "Plan",
    "Report",
    "UnreadableModelError",
    "UnsupportedLayerError",
    "UsageError",
    "VerificationError",
    "convert",
    "inspect",
    "load_model",
    "optimize",
    "plan",
    "standardize",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"lstm_swap.{_HOMES[name]}"), name)
    if name == "layers":
        return importlib.import_module("lstm_swap.layers")
    raise AttributeError(f"module 'lstm_swap' has no attribute {name!r}")
