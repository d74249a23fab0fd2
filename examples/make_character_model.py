"""Train the small character model that ships in examples/models, and write it as a GPU machine of 2018 would have.

    pip install '.[test]'
    python examples/make_character_model.py

A stack of two LSTM layers learns to continue the Apache licence, letter by letter, in tf_keras (Keras 2). The trained
layers are plain ones, since CuDNNLSTM trains on a GPU alone; lstm-swap then writes them in the CuDNN form, which
computes the same (proved while it writes). The result is a file that no machine without a GPU could open.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tf_keras

import lstm_swap

HERE = Path(__file__).parent
STEPS, UNITS, EPOCHS = 40, 48, 70


def main() -> None:
    text = " ".join((HERE.parent / "LICENSE").read_text().split())
    letters = sorted(set(text))
    codes = np.array([letters.index(c) for c in text])
    starts = np.arange(0, len(codes) - STEPS - 1, 2)
    x = np.stack([codes[s : s + STEPS] for s in starts])
    y = np.stack([codes[s + 1 : s + STEPS + 1] for s in starts])
    tf_keras.utils.set_random_seed(7)
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.Embedding(len(letters), 24, input_length=STEPS, name="embedding_1"),
            layers.LSTM(UNITS, return_sequences=True, name="cu_dnnlstm_1"),
            layers.LSTM(UNITS, return_sequences=True, name="cu_dnnlstm_2"),
            layers.Dense(len(letters), activation="softmax", name="dense_1"),
        ],
        name="licence_characters",
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=64, epochs=EPOCHS, verbose=2)
    out = HERE / "models" / "licence_characters_gpu.h5"
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.h5"
        model.save(plain, include_optimizer=False)
        report = lstm_swap.convert(plain, out, to="cudnn", dialect="keras2", strict=True, force=True)
    print(report.text())
    notes = {"letters": "".join(letters), "steps": STEPS, "accuracy": round(history.history["accuracy"][-1], 3)}
    (HERE / "models" / "licence_characters.json").write_text(json.dumps(notes, indent=1) + "\n")


if __name__ == "__main__":
    main()
