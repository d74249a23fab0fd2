"""Which kernel runs a fused layer: the one that was chosen for it by measurement, or what the committed tables say.

================  =========  =======================================================================================
kernel            device     what it is
================  =========  =======================================================================================
loop              cpu        TensorFlow's loop and its own gradient (`portable`)
scan              cpu        the same loop with a gradient written by hand (`scan`)
xla               cpu, gpu   that, forward and backward each compiled by XLA
xla2, xla4        cpu        that, for 2 or 4 shares of the batch side by side
block             cpu        one op, BlockLSTMV2: LSTM, inference, no mask, small batches (`block`)
cudnn             gpu        all layers and directions in one call of cuDNN (`cudnn`)
cudnn_layers      gpu        a call of cuDNN for each layer and direction
================  =========  =======================================================================================

A choice is kept for each device and job, under keys such as "cpu_inference" and "gpu_training".
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import tensorflow as tf

from lstm_swap.layers import block
from lstm_swap.layers.network import Network

DEVICES = ("cpu", "gpu")
JOBS = ("inference", "training")
KERNELS: dict[str, tuple[str, ...]] = {
    "cpu": ("loop", "scan", "xla", "xla2", "xla4", "block"),
    "gpu": ("cudnn", "cudnn_layers", "xla"),
}
#: What runs everywhere and always, for a SavedModel too.
SAFE = {"cpu": "loop", "gpu": "cudnn"}
#: A batch of unknown size is taken for Keras's default.
USUAL_BATCH = 32
#: Above this batch, BlockLSTMV2 loses to the loop.
BLOCK_BATCH = 8


@dataclass(frozen=True)
class Case:
    """What a kernel is chosen for. shape: batch, time, features, units; None where not known when traced."""

    network: Network
    shape: tuple[int | None, int | None, int, int]
    dtype: str
    masked: bool


def check(kernels: Mapping[str, str] | None) -> dict[str, str]:
    """The choice as a layer keeps it.

    Raises:
        ValueError: an unknown key, or a kernel that the device does not have.
    """
    for key, name in (kernels or {}).items():
        device, _, job = key.partition("_")
        if device not in DEVICES or job not in JOBS:
            known = ", ".join(f"{d}_{j}" for d in DEVICES for j in JOBS)
            raise ValueError(f"kernels: unknown key {key!r}; the keys are {known}")
        if name not in KERNELS[device]:
            raise ValueError(f"kernels[{key!r}]: unknown kernel {name!r}; on a {device} there are {KERNELS[device]}")
    return dict(kernels or {})


def choose(device: str, job: str, case: Case, kernels: Mapping[str, str], *, eager: bool) -> str:
    """The kernel to run, or to put into the graph that is being made."""
    chosen = kernels.get(f"{device}_{job}")
    if chosen is not None and _can(chosen, device, job, case):
        return chosen
    names = candidates(device, job, case, eager=eager)
    speeds = _nearest(device, job, case)
    return max(names, key=lambda name: speeds.get(name, 0.0))


def candidates(device: str, job: str, case: Case, *, eager: bool = False) -> list[str]:
    """The kernels that may be picked without being asked for; the safe one first.

    XLA compiles anew for every shape, so it is left out where shapes may vary: eager calls, an unknown number of steps;
    and on a GPU, where that takes seconds, inference on any number of rows.
    """
    rows, time_steps = case.shape[:2]
    fixed = not eager and time_steps is not None and (rows is not None or (device, job) != ("gpu", "inference"))
    small = rows is not None and rows <= BLOCK_BATCH
    names = [n for n in KERNELS[device] if (fixed or not n.startswith("xla")) and (small or n != "block")]
    names = [n for n in names if shares(n) <= min(os.cpu_count() or 1, rows or USUAL_BATCH)]
    names = [n for n in names if _can(n, device, job, case)]
    if case.network.parts == 1:  # both are the same call then
        names = [n for n in names if n != "cudnn_layers"]
    return sorted(names, key=lambda name: name != SAFE[device])


def _can(name: str, device: str, job: str, case: Case) -> bool:
    if name == SAFE[device]:
        return True
    if saving():  # what is saved must run where there is no XLA (TensorFlow Serving), and in other programs
        return False
    if name == "block":
        return case.network.mode == "lstm" and job == "inference" and not case.masked and case.dtype in block.DTYPES
    return not name.startswith("xla") or xla_works(device)


def shares(name: str) -> int:
    """Into how many shares a kernel splits the batch."""
    return int(name[3:] or 1) if name.startswith("xla") else 1


def saving() -> bool:
    """Is a SavedModel being written? `model.export` and `tf.saved_model.save` trace its signatures while they write."""
    context = importlib.import_module("tensorflow.python.saved_model.save_context")
    return bool(context.in_save_context())


@functools.cache
def xla_works(device: str) -> bool:
    """Can XLA compile for this device here? Tried once."""
    if not tf.config.list_logical_devices(device.upper()):  # the probe would run on the CPU then
        return False
    try:
        with tf.init_scope(), tf.device(f"/{device.upper()}:0"):
            probe = tf.function(lambda x: tf.tanh(x) + 1.0, jit_compile=True, autograph=False)
            return float(probe(tf.zeros(()))) == 1.0
    except (tf.errors.OpError, RuntimeError, ValueError):
        return False


# The committed tables


@functools.cache
def table() -> list[dict[str, Any]]:
    """Measured speeds: device, job, mode, shape (batch, time, features, units, layers, directions), and by kernel how
    many times as fast as Keras's own layer it was. Written by `benchmarks/kernel_table.py`."""
    text = resources.files("lstm_swap.layers").joinpath("measured.json").read_text("utf-8")
    rows: list[dict[str, Any]] = json.loads(text)["rows"]
    return rows


def _nearest(device: str, job: str, case: Case) -> dict[str, float]:
    """The speeds that were measured for the shape that is nearest to this one."""
    rows = [row for row in table() if (row["device"], row["job"]) == (device, job)]
    same = [row for row in rows if row["mode"] == case.network.mode] or rows
    if not same:
        return {}
    batch, time, features, units = case.shape
    shape = (batch or USUAL_BATCH, time, features, units, case.network.num_layers, case.network.directions)
    nearest = min(same, key=lambda row: _distance(row["shape"], shape))
    speeds: dict[str, float] = nearest["speed"]
    return speeds


def _distance(measured: Sequence[int], shape: Sequence[int | None]) -> float:
    """Doublings from one shape to the other; the number of steps counts little, since time is linear in it."""
    weights = (1.0, 0.25, 0.5, 1.0, 2.0, 2.0)
    pairs = zip(weights, measured, shape, strict=True)
    return sum(w * abs(math.log2(max(a, 1) / max(b, 1))) for w, a, b in pairs if b is not None)
