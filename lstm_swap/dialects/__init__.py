"""Dialects: the ways in which Keras 1, 2 and 3 write an architecture, and translations between them."""

from __future__ import annotations

from lstm_swap.dialects import keras1, keras2, keras3
from lstm_swap.dialects.detect import detect
from lstm_swap.dialects.known import built_in, custom_functions, lambdas, unknown_classes

__all__ = ["built_in", "custom_functions", "detect", "keras1", "keras2", "keras3", "lambdas", "unknown_classes"]
