"""Fixtures that several tests share. Models are built here with tf_keras, Keras or h5py; none is copied in."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1" if not os.environ.get("LSTM_SWAP_GPU") else "0")

import numpy as np
import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked gpu run only where `pytest -m gpu` asks for them on a machine with a GPU."""
    if "gpu" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU; run with -m gpu")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def tfk() -> Any:
    """tf_keras: Keras 2, the oracle for old files."""
    return pytest.importorskip("tf_keras")


@pytest.fixture(scope="session")
def keras() -> Any:
    """Keras 3."""
    return pytest.importorskip("keras")


@pytest.fixture
def save_tfk(tmp_path: Path) -> Callable[..., Path]:
    """Save a tf_keras model as HDF5 without the library's advice to use another format."""

    def save(model: Any, name: str = "model.h5", **options: Any) -> Path:
        path = tmp_path / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.save(str(path), save_format="h5", **options)
        return path

    return save


@pytest.fixture(scope="session")
def load_tfk(tfk: Any) -> Callable[[Path], Any]:
    """Open a file in tf_keras, the GPU layers as plain ones: tf_keras converts their arrays with code of its own."""
    layers = tfk.layers

    def load(path: Path) -> Any:
        custom = {"CuDNNLSTM": layers.LSTM, "CuDNNGRU": layers.GRU}  # whose defaults are reset_after and sigmoid
        return tfk.models.load_model(str(path), compile=False, custom_objects=custom)

    return load


@pytest.fixture(scope="session")
def load_keras(keras: Any) -> Callable[[Path], Any]:
    """Open a file in Keras 3, with nothing of ours."""

    def load(path: Path) -> Any:
        return keras.saving.load_model(str(path), compile=False, safe_mode=True)

    return load


@pytest.fixture
def full_precision() -> Iterator[None]:
    """A GPU without TensorFloat-32, which rounds float32 products to ten bits, more than any tolerance allows."""
    import tensorflow as tf

    from lstm_swap.layers import kernels

    if not kernels.cuda_gpu_visible():
        pytest.skip("TensorFlow sees no NVIDIA GPU")
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


def randomise(model: Any, seed: int = 0) -> Any:
    """Give a model weights of a size that saturates nothing and leaves no bias at zero."""
    rng = np.random.default_rng(seed)
    values = []
    for variable in model.weights:
        value = rng.uniform(-0.6, 0.6, tuple(variable.shape))
        if "variance" in variable.name:
            value = np.abs(value) + 0.1
        values.append(value)
    model.set_weights(values)
    return model


def outputs(model: Any, *inputs: Any) -> list[np.ndarray]:
    """Every output of a model on these inputs."""
    result = model(list(inputs) if len(inputs) > 1 else inputs[0], training=False)
    return [np.asarray(r) for r in (result if isinstance(result, list | tuple) else [result])]


def assert_close(got: list[np.ndarray], wanted: list[np.ndarray], atol: float = 1e-6) -> None:
    """Equal within the design's tolerance: atol times max(1, largest magnitude)."""
    assert [g.shape for g in got] == [w.shape for w in wanted]
    for g, w in zip(got, wanted, strict=True):
        scale = max(1.0, float(np.abs(w).max()))
        assert np.isfinite(g).all()
        np.testing.assert_allclose(g, w, rtol=0, atol=atol * scale)
