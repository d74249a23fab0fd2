"""The kernel of every fused layer, chosen by measuring it on this machine, in the shapes of a sample.

Kept in a file, so that the same layer in the same shape is not measured again on the same machine with the same
versions: `~/.cache/lstm-swap/kernels.json`, or the path in the environment variable LSTM_SWAP_CACHE.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lstm_swap import __version__, bench
from lstm_swap.live_stacks import fused_layers
from lstm_swap.live_tree import to_numpy, walk

LOG = logging.getLogger("lstm_swap")

#: Makes a model of Keras's own layers from one of fused layers, with this `use_cudnn`.
Plain = Callable[[Any, Any], Any]

#: Below this gain over Keras's own layer, that one stays.
WORTH = 1.1
#: A kernel that is slower than this many times Keras's own layer is never taken.
NO_LOSS = 0.97


@dataclass(frozen=True)
class Seen:
    """What a fused layer was called with: shape (batch, time, features), and the mask as an array, or None."""

    shape: tuple[int, ...]
    mask: Any | None


@dataclass(frozen=True)
class Choice:
    """What was measured for one layer and job. seconds: of a call, by kernel; "keras" is Keras's own layer."""

    layer: str
    device: str
    job: str
    seconds: dict[str, float]

    @property
    def kernel(self) -> str:
        """The fastest kernel of the fused layer."""
        own = {name: s for name, s in self.seconds.items() if name != "keras"}
        return min(own, key=lambda name: own[name])

    @property
    def gain(self) -> float:
        """How many times as fast it is as Keras's own layer."""
        return self.seconds["keras"] / self.seconds[self.kernel]

    def __str__(self) -> str:
        times = ", ".join(f"{name} {1000 * s:.3g} ms" for name, s in sorted(self.seconds.items(), key=lambda i: i[1]))
        return f"{self.layer}: {self.job} on the {self.device}: {self.kernel}, {self.gain:.2f} times Keras ({times})"


def select(
    model: Any,
    sample: Any,
    jobs: tuple[str, ...],
    plain: Plain,
    *,
    clock: bench.Clock = time.perf_counter,
    cache: Path | None = None,
) -> list[Any]:
    """Set `kernels` of every fused layer to the fastest one; the layers that had better be Keras's own are returned.

    A layer had better be Keras's own where no job gains 1.1 times, or one loses.

    Args:
        model: a model with fused layers; its kernels are set.
        sample: inputs for it.
        jobs: "inference", "training".
        plain: makes a model of Keras's own layers from one of fused layers; takes `use_cudnn` too.
        clock: gives seconds.
        cache: the file that keeps what was measured.
    """
    from lstm_swap.layers.kernels import current_device_has_cudnn

    device = "gpu" if current_device_has_cudnn() else "cpu"
    store = Store(cache or default_cache())
    better: list[Any] = []
    for layer, seen in _calls(model, sample):
        choices = []
        for job in jobs:
            measure = functools.partial(_measure, layer, seen, device, job, plain, clock)
            choices.append(Choice(str(layer.name), device, job, store.find(layer, seen, device, job, measure)))
            LOG.info("%s", choices[-1])
        layer.kernels = {**layer.kernels, **{f"{device}_{c.job}": c.kernel for c in choices}}
        gains = [choice.gain for choice in choices]
        if max(gains) < WORTH or min(gains) < NO_LOSS:
            LOG.info("%s: Keras's own layer stays, gains %s", layer.name, ", ".join(f"{g:.2f}" for g in gains))
            better.append(layer)
    store.save()
    return better


def _calls(model: Any, sample: Any) -> list[tuple[Any, Seen]]:
    """Every fused layer with what it was first called with when the model ran on the sample."""
    layers = [layer for layer in walk(model) if len(fused_layers(layer)) == 1]
    seen: dict[int, Seen] = {}
    with _watched(layers, seen):
        model(sample, training=False)
    return [(layer, seen[id(layer)]) for layer in layers if id(layer) in seen]


@contextmanager
def _watched(layers: list[Any], seen: dict[int, Seen]) -> Iterator[None]:
    """Note how layers are called meanwhile."""

    def note(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noted(sequences: Any, *args: Any, mask: Any = None, **kwargs: Any) -> Any:
            shape = tuple(int(size or 32) for size in sequences.shape)
            value = mask[0] if isinstance(mask, (list, tuple)) else mask
            known = value is not None and hasattr(value, "numpy")
            seen.setdefault(id(layer), Seen(shape, to_numpy(value) if known else None))
            return call(sequences, *args, mask=mask, **kwargs)

        return noted

    for layer in layers:
        object.__setattr__(layer, "call", note(layer, layer.call))
    try:
        yield
    finally:
        for layer in layers:
            object.__delattr__(layer, "call")


# Measuring


def _measure(layer: Any, seen: Seen, device: str, job: str, plain: Plain, clock: bench.Clock) -> dict[str, float]:
    """Seconds of a call in this shape: Keras's own layers, and each kernel of the fused one."""
    from lstm_swap.layers import choice

    candidates = {"keras": _keras_call(layer, seen, job, plain)}
    for name in choice.candidates(device, job, _case(layer, seen)):
        candidates[name] = _call([_copy(layer, seen, {f"{device}_{job}": name}).layers[-1]], seen, job)
    return bench.medians(candidates, clock=clock)


def _case(layer: Any, seen: Seen) -> Any:
    """What to choose for. The number of steps is left open where the layer was built for any number."""
    from lstm_swap.layers import choice

    time_steps = seen.shape[1] if built_for(layer)[1] is not None else None
    shape = (seen.shape[0], time_steps, seen.shape[2], layer.units)
    return choice.Case(layer.network, shape, layer.compute_dtype, seen.mask is not None)


def built_for(layer: Any) -> tuple[int | None, ...]:
    """The shape of the input that a layer was built for."""
    config = layer.get_build_config()
    return tuple(config.get("input_shape") or next(iter(config["shapes_dict"].values())))


def _copy(layer: Any, seen: Seen, kernels: dict[str, str]) -> Any:
    """A model of this layer alone, with the same weights."""
    import keras

    config = {**layer.get_config(), "kernels": kernels, "stateful": False, "dtype": layer.dtype_policy}
    new = type(layer).from_config(config)
    model = keras.Sequential([keras.Input(batch_shape=seen.shape, dtype=layer.compute_dtype), new])
    new.set_weights(layer.get_weights())
    return model


def _keras_call(layer: Any, seen: Seen, job: str, plain: Plain) -> Callable[[], Any]:
    """Keras's own layers; without cuDNN where Keras's cuDNN cannot take this mask."""
    copy = _copy(layer, seen, {})
    call = _call(plain(copy, "auto").layers, seen, job)
    try:
        call()
    except Exception as problem:  # Keras asserts in the graph that a mask is right padding
        LOG.debug("%s: Keras's cuDNN path: %s", layer.name, problem)
        return _call(plain(copy, False).layers, seen, job)
    return call


def _call(layers: list[Any], seen: Seen, job: str) -> Callable[[], Any]:
    """Layers run, or their gradient taken, through `tf.function`, until the device has finished."""
    import numpy as np
    import tensorflow as tf

    x = tf.constant(np.random.default_rng(0).standard_normal(seen.shape), layers[0].compute_dtype)
    mask = None if seen.mask is None else tf.constant(seen.mask, tf.bool)
    variables = [variable.value for layer in layers for variable in layer.trainable_variables]

    def total(training: bool) -> Any:
        result = x
        for layer in layers:
            result = layer(result, mask=mask, training=training)
        return tf.add_n([tf.reduce_sum(tf.cast(output, tf.float32)) for output in tf.nest.flatten(result)])

    def train() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = total(True)
        return [loss, *tape.gradient(loss, [x, *variables])]

    function = tf.function((lambda: [total(False)]) if job == "inference" else train, autograph=False)
    return lambda: bench.finish(function())


# What was measured before


class Store:
    """Measured times by machine, versions, shape and dtype. A file that cannot be read or written does no harm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._known: dict[str, dict[str, float]] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            self._known = {}

    def find(
        self, layer: Any, seen: Seen, device: str, job: str, measure: Callable[[], dict[str, float]]
    ) -> dict[str, float]:
        """What is known, or else what is measured now."""
        key = json.dumps([machine(), versions(), _described(layer, seen), device, job], sort_keys=True)
        if key not in self._known:
            self._known[key] = measure()
        return self._known[key]

    def save(self) -> None:
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._known, indent=0), "utf-8")
            temporary.replace(self._path)
        except OSError as problem:
            LOG.debug("measured kernels are not kept: %s", problem)


def _described(layer: Any, seen: Seen) -> dict[str, Any]:
    """All that a layer's speed depends on."""
    net = layer.network
    return {
        "mode": net.mode,
        "shape": [*seen.shape, layer.units],
        "layers": net.num_layers,
        "directions": net.directions,
        "dtype": layer.compute_dtype,
        "sequences": net.return_sequences,
        "masked": seen.mask is not None,
        "dropout": layer.dropout > 0,
        "any length": built_for(layer)[1] is None,
    }


def default_cache() -> Path:
    named = os.environ.get("LSTM_SWAP_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lstm-swap" / "kernels.json"


@functools.lru_cache(maxsize=1)
def machine() -> str:
    """The GPUs and the processor, by name."""
    import tensorflow as tf

    gpus = [
        str(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name))
        for gpu in tf.config.get_visible_devices("GPU")
    ]
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return ", ".join([*gpus, f"{processor} ({os.cpu_count()} cores)"])


@functools.lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Of what decides how fast a kernel is."""
    import keras
    import tensorflow as tf

    return {
        "lstm-swap": __version__,
        "tensorflow": str(tf.__version__),
        "keras": str(keras.__version__),
        "cudnn": str(tf.sysconfig.get_build_info().get("cudnn_version", "-")),
    }
