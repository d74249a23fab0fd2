"""Convert the GPU-trained character model for a CPU and let it write: python examples/continue_text.py "You may "

Needs Keras and TensorFlow: pip install '.[tensorflow]'
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import lstm_swap

MODELS = Path(__file__).parent / "models"


def main(start: str) -> None:
    notes = json.loads((MODELS / "licence_characters.json").read_text())
    letters, steps = notes["letters"], notes["steps"]
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.keras"
        lstm_swap.convert(MODELS / "licence_characters_gpu.h5", plain, to="standard")
        model = keras.saving.load_model(plain)
    text = start
    for _ in range(200):
        known = [letters.index(c) for c in text[-steps:] if c in letters]
        x = np.array([known + [0] * (steps - len(known))])
        text += letters[int(np.argmax(model(x)[0, len(known) - 1]))]
    print(text)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "You may reproduce ")
