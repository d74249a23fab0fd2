"""Can the fused layers live in this Python at all?"""

from __future__ import annotations

from typing import Any

from lstm_swap.errors import MissingDependencyError

INSTALL = 'pip install "lstm-swap[tensorflow]"'


def require_tensorflow_backend() -> None:
    """Make sure that Keras 3 runs on TensorFlow.

    Raises:
        MissingDependencyError: TensorFlow or Keras 3 is not installed.
        RuntimeError: Keras runs on another backend.
    """
    try:
        import keras  # imports its backend
    except ImportError as error:
        raise MissingDependencyError(f"The fused layers need Keras 3 on TensorFlow ({error}): {INSTALL}") from error
    check_keras(keras)


def check_keras(keras: Any) -> None:
    """The part of `require_tensorflow_backend` that looks at Keras itself."""
    version = str(keras.__version__)
    if int(version.split(".")[0]) < 3:
        raise MissingDependencyError(f"The fused layers need Keras 3, this is Keras {version}: {INSTALL}")
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            f"The fused layers run on Keras's TensorFlow backend only; this Keras {version} uses {backend!r}. "
            "Set the environment variable KERAS_BACKEND=tensorflow before Keras is imported, or convert the model "
            "with `lstm-swap convert --to standard`."
        )
