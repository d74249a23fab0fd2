"""tf.distribute: a model that was optimised inside a strategy trains, and equals the run on one device.

Logical devices must be made before TensorFlow starts, so all runs share a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent

SCRIPT = """
import json
import numpy as np
import tensorflow as tf

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)

import keras
import lstm_swap

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def build():
    keras.utils.set_random_seed(0)
    x = keras.Input((4, 3))
    h = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True))(x)
    model = keras.Model(x, keras.layers.Dense(1)(keras.layers.GRU(3)(h)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


x = np.random.default_rng(0).normal(size=(32, 4, 3)).astype("float32")
y = np.tanh(x.sum(axis=(1, 2)))[:, None]
fit = {"batch_size": 16, "epochs": 2, "verbose": 0, "shuffle": False}

results = {}


def train(name, model):
    loss = model.fit(x, y, **fit).history["loss"]
    back = lstm_swap.standardize(model)
    results[name] = {
        "mirrored": type(model.layers[1].forward_layer.weights[0].value).__name__,
        "classes": sorted({type(layer).__name__ for layer in model._flatten_layers()}),
        "loss": loss,
        "outputs": np.asarray(model(x)).ravel().tolist(),
        "back": np.asarray(back(x)).ravel().tolist(),
        "replicas": [m.distribute_strategy.num_replicas_in_sync for m in (model, back)],
    }


alone = build()
train("alone", alone)
with strategy.scope():
    inside = lstm_swap.optimize(build(), "fused")  # made and optimised inside the scope
    into = lstm_swap.optimize(alone, "fused")  # trained on one device, optimised into the strategy
train("inside", inside)
results["inside"]["predicted"] = np.asarray(inside.predict(x, verbose=0)).ravel().tolist()
of_its_own = lstm_swap.optimize(inside, "fused")  # outside the scope: it stays with its strategy
train("alone, on", alone)
train("into", into)
train("of its own", of_its_own)
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("where", "reference"),
    [("inside", "alone"), ("of its own", "alone, on"), ("into", "alone, on")],
)
def test_equals_one_device(where: str, reference: str, results: dict[str, dict[str, Any]]) -> None:
    """On two devices the fused model trains as the standard one does on one: made inside the scope, or optimised there
    after training elsewhere, or outside (then it stays with its strategy). The optimizer's state goes on."""
    found, wanted = results[where], results[reference]
    assert found["replicas"] == [2, 2]
    assert wanted["replicas"] == [1, 1]
    assert found["mirrored"] == "MirroredVariable"
    assert {"FusedLSTM", "FusedGRU"} <= set(found["classes"])
    assert not {"FusedLSTM", "FusedGRU"} & set(wanted["classes"])
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
    np.testing.assert_allclose(found["outputs"], wanted["outputs"], atol=1e-5)
    np.testing.assert_allclose(found["back"], wanted["outputs"], atol=1e-5)
    np.testing.assert_allclose(found.get("predicted", wanted["outputs"]), wanted["outputs"], atol=1e-5)


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
