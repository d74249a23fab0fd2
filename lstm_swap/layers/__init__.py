"""Keras layers whose arrays lie the way cuDNN wants them: `FusedLSTM` and `FusedGRU`.

`import lstm_swap.layers` registers both with Keras (package ``lstm_swap``), which is what a saved fused model needs
before it can be opened. They compute exactly what `keras.layers.LSTM` and `keras.layers.GRU` compute: on an NVIDIA GPU
with one cuDNN call, elsewhere with a portable loop.

Raises on import:
    MissingDependencyError: TensorFlow or Keras 3 is not installed.
    RuntimeError: Keras runs on another backend than TensorFlow.
"""

from __future__ import annotations

from lstm_swap.layers._backend import require_tensorflow_backend

require_tensorflow_backend()

from lstm_swap.layers.fused_gru import FusedGRU  # noqa: E402
from lstm_swap.layers.fused_lstm import FusedLSTM  # noqa: E402

__all__ = ["FusedGRU", "FusedLSTM"]

# Saved models name the module of a class: the public one, wherever the code may move to.
FusedLSTM.__module__ = FusedGRU.__module__ = __name__
