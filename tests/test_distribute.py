"""tf.distribute: a model that was optimised inside a strategy trains, and equals the run on one device.

Logical devices must be made before TensorFlow starts, so each run is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent

SCRIPT = """
import json, sys
import numpy as np
import tensorflow as tf

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)

import keras
import lstm_swap

where, to = sys.argv[1:]
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def build():
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 3))
    h = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True))(x)
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.GRU(3)(h)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


x = np.random.default_rng(0).normal(size=(32, 6, 3)).astype("float32")
y = np.tanh(x.sum(axis=(1, 2)))[:, None]
fit = {"batch_size": 16, "epochs": 2, "verbose": 0, "shuffle": False}

if where == "inside":  # made and optimised inside the scope
    with strategy.scope():
        model = lstm_swap.optimize(build(), to)
elif where == "of its own":  # made inside, optimised outside: it stays with its strategy, and with Adam's state
    with strategy.scope():
        model = build()
    model.fit(x, y, **fit)
    model = lstm_swap.optimize(model, to)
elif where == "into":  # trained on one device, optimised into the strategy
    model = build()
    model.fit(x, y, **fit)
    with strategy.scope():
        model = lstm_swap.optimize(model, to)
        # Keras binds an optimizer to the strategy in which it was made, so this is the new one's.
else:
    model = build()
    if where == "alone, twice":
        model.fit(x, y, **fit)
    model = lstm_swap.optimize(model, to)

replicas = model.distribute_strategy.num_replicas_in_sync
kernel = model.layers[1].forward_layer.weights[0].value
history = model.fit(x, y, **fit).history["loss"]
back = lstm_swap.standardize(model)
print(json.dumps({
    "replicas": replicas,
    "mirrored": type(kernel).__name__,
    "classes": sorted({type(layer).__name__ for layer in model._flatten_layers()}),
    "loss": history,
    "predicted": np.asarray(model.predict(x, verbose=0)).ravel().tolist(),
    "back": np.asarray(back.predict(x, verbose=0)).ravel().tolist(),
    "back replicas": back.distribute_strategy.num_replicas_in_sync,
}))
"""


def run(where: str, to: str = "fused") -> dict:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, where, to], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def alone() -> dict:
    return run("alone", "standard")


@pytest.fixture(scope="module")
def alone_twice() -> dict:
    return run("alone, twice", "standard")


def _same(found: dict, wanted: dict) -> None:
    assert found["replicas"] == found["back replicas"] == 2
    assert found["mirrored"] == "MirroredVariable"
    assert {"FusedLSTM", "FusedGRU"} <= set(found["classes"])
    assert not {"FusedLSTM", "FusedGRU"} & set(wanted["classes"])
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
    np.testing.assert_allclose(found["predicted"], wanted["predicted"], atol=1e-5)
    np.testing.assert_allclose(found["back"], wanted["predicted"], atol=1e-5)


def test_optimised_inside_a_strategy(alone: dict) -> None:
    """On two devices the fused model trains as the standard one does on one."""
    _same(run("inside"), alone)


@pytest.mark.parametrize("where", ["of its own", "into"])
def test_strategy_and_state(where: str, alone_twice: dict) -> None:
    """A model that belongs to a strategy stays in it; one that was trained before goes on with its optimizer's state."""
    _same(run(where), alone_twice)


def test_two_workers() -> None:
    """The example for several machines: two workers on this one, with the losses of a process alone."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "multi_worker.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line.split(":")[0].strip() for line in lines[:3]] == ["worker 0", "worker 1", "alone"]
    assert float(lines[-1].split()[-1]) < 1e-6
