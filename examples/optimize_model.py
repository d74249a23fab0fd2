"""Train a small model, let lstm-swap choose its layers, and go on training: python examples/optimize_model.py

Needs Keras and TensorFlow: pip install '.[tensorflow]'. With an NVIDIA GPU the recurrent layers run on cuDNN; without
one pass --fused to see the fused layers run (portably, with the same numbers).
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import lstm_swap

layers = keras.layers


def build() -> keras.Model:
    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(50, 16, mask_zero=True)(tokens)
    x = layers.Bidirectional(layers.LSTM(24, return_sequences=True, dropout=0.1))(x)
    x = layers.GRU(24)(x)
    model = keras.Model(tokens, layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


def data(rows: int = 256, steps: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of tokens, padded on the left with 0; the question is whether token 7 occurs."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 20, (rows, steps))
    for row, length in enumerate(rng.integers(3, steps + 1, rows)):
        x[row, : steps - length] = 0
    return x, (x == 7).any(axis=1).astype("float32")


def difference(a: keras.Model, b: keras.Model, x: np.ndarray) -> float:
    """The largest between the outputs of two models."""
    return float(np.abs(a.predict(x, verbose=0) - b.predict(x, verbose=0)).max())


def main(to: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("absl").setLevel(logging.ERROR)
    keras.utils.set_random_seed(1)
    x, y = data()
    model = build()
    model.fit(x, y, epochs=1, verbose=0)

    fast = lstm_swap.optimize(model, to)  # a new model; Adam's state and the dropout's random numbers come along
    print("largest difference of the outputs:", difference(fast, model, x))
    history = [m.fit(x, y, epochs=3, verbose=0, shuffle=False).history["loss"] for m in (model, fast)]
    print("loss of the original:", *(f"{loss:.4f}" for loss in history[0]))
    print("loss of the new one: ", *(f"{loss:.4f}" for loss in history[1]))

    plain = lstm_swap.standardize(fast, use_cudnn=False)  # for ONNX, TFLite, XLA and SHAP
    with tempfile.TemporaryDirectory() as folder:
        plain.save(Path(folder) / "model.keras")
        again = keras.saving.load_model(Path(folder) / "model.keras")
    print("plain again, after a file:", difference(again, fast, x))


if __name__ == "__main__":
    main("fused" if "--fused" in sys.argv else "auto")
