"""Measure on this machine: which kernel runs a layer fastest, and how long a whole model takes in each form.

Candidates take turns: in every round each of them runs once, in an order that is drawn anew, and medians are compared.
So what else the machine does hits all of them alike.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lstm_swap.errors import MissingDependencyError, UsageError

Clock = Callable[[], float]

ROUNDS = 7
#: One measurement repeats a call until it has taken about this long (seconds).
TARGET = 0.01
#: Time for all candidates of one comparison (seconds). Every candidate is run once at least.
BUDGET = 10.0


def medians(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = ROUNDS,
    budget: float = BUDGET,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """Seconds a call of each candidate takes, in the order given; the first is always measured.

    A candidate is a function that returns once the work is done. It is called twice before it is timed (to trace and to
    compile). When the budget runs out while candidates are prepared, those that are left are not measured.

    Args:
        rounds: measurements of each, as far as the budget allows; at least one.
        budget: seconds.
        clock: gives seconds.
    """
    start = clock()
    repeats: dict[str, int] = {}
    for name, run in candidates.items():
        if repeats and clock() - start > budget:
            break
        run()
        run()
        begin = clock()
        run()
        repeats[name] = max(1, min(1000, int(TARGET / max(clock() - begin, 1e-7))))
    seconds: dict[str, list[float]] = {name: [] for name in repeats}
    order = list(repeats)
    shuffle = random.Random(0).shuffle  # noqa: S311 - an order, not a secret
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            begin = clock()
            for _ in range(repeats[name]):
                candidates[name]()
            seconds[name].append((clock() - begin) / repeats[name])
        if clock() - start > budget:
            break
    return {name: statistics.median(times) for name, times in seconds.items()}


# Whole models


@dataclass(frozen=True)
class Row:
    """One form of a model doing one job. milliseconds: the median of a call; speedup: of `standard` to it."""

    form: str
    job: str
    milliseconds: float
    speedup: float
    max_difference: float


@dataclass(frozen=True)
class Result:
    """What `measure` found. kernels: what was picked for each fused layer, by layer name."""

    model: str
    machine: str
    versions: dict[str, str]
    shapes: list[list[int]]
    rows: list[Row]
    kernels: dict[str, dict[str, str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "rows": [vars(row) for row in self.rows]}

    def to_json(self) -> str:
        return json.dumps(self.as_dict())

    def text(self) -> str:
        """A table for people."""
        shapes = " and ".join("x".join(map(str, shape)) for shape in self.shapes)
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [f"{self.model}, input {shapes}", f"on {self.machine}; {versions}", ""]
        lines.append(f"{'job':<10} {'form':<9} {'ms a call':>10} {'times standard':>15} {'difference':>11}")
        for row in self.rows:
            numbers = f"{row.milliseconds:>10.3f} {row.speedup:>15.2f} {row.max_difference:>11.1e}"
            lines.append(f"{row.job:<10} {row.form:<9} {numbers}")
        for layer, chosen in self.kernels.items():
            lines.append(f"measured: {layer}: " + ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in chosen.items()))
        return "\n".join(lines) + "\n"


#: Forms of a model, in the order of the table.
FORMS = ("standard", "keras", "fused", "measured")


def measure(
    model: Any,
    sample: Any = None,
    *,
    batch: int = 32,
    steps: int = 100,
    training: bool = False,
    rounds: int = ROUNDS,
    clock: Clock = time.perf_counter,
) -> Result:
    """Time a live Keras 3 model in its forms, through `tf.function`, and compare what they compute.

    Forms: `standard` (plain layers, use_cudnn=False), `keras` (plain layers as Keras runs them), `fused` (kernels by
    the committed tables), `measured` (kernels chosen here for this sample; see `optimize`).

    Args:
        model: the model; it is not changed.
        sample: inputs. None: random ones of `batch` rows, and of `steps` steps where the model leaves that open.
        training: also time the gradient of a sum of the outputs by all weights.

    Raises:
        MissingDependencyError: TensorFlow or Keras 3 is not installed.
        UsageError: no model of Keras 3, or one without known inputs and no sample.
    """
    import tensorflow as tf

    from lstm_swap import live
    from lstm_swap.live_plan import require_model
    from lstm_swap.live_select import machine, versions

    require_model(model)
    sample = random_sample(model, batch, steps) if sample is None else sample
    models = {
        "standard": live.standardize(model, use_cudnn=False),
        "keras": live.standardize(model),
        "fused": live.optimize(model, "fused"),
        "measured": live.optimize(model, "fused", sample=sample),
    }
    outputs = {form: tf.nest.flatten(made(sample, training=False)) for form, made in models.items()}
    rows = []
    for job in ("inference", "training") if training else ("inference",):
        seconds = medians(
            {form: whole_call(made, sample, job) for form, made in models.items()},
            rounds=rounds,
            budget=6 * BUDGET,
            clock=clock,
        )
        rows += [
            Row(form, job, 1000 * s, seconds["standard"] / s, _furthest(outputs["standard"], outputs[form]))
            for form, s in seconds.items()
        ]
    shapes = [[int(n) for n in array.shape] for array in tf.nest.flatten(sample)]
    return Result(str(model.name), machine(), versions(), shapes, rows, kernels_of(models["measured"]))


def whole_call(model: Any, sample: Any, job: str) -> Callable[[], Any]:
    """A call of a model through `tf.function` that returns when the device has finished."""
    import tensorflow as tf

    variables = [variable.value for variable in model.trainable_variables]

    def total(training: bool) -> Any:
        results = tf.nest.flatten(model(sample, training=training))
        return tf.add_n([tf.reduce_sum(tf.cast(result, tf.float32)) for result in results])

    def train() -> Any:
        with tf.GradientTape() as tape:
            loss = total(True)
        return [loss, *(g for g in tape.gradient(loss, variables) if g is not None)]

    function = tf.function((lambda: [total(False)]) if job == "inference" else train, autograph=False)
    return lambda: finish(function())


def finish(results: list[Any]) -> None:
    """Wait for the device: the first of the results is a number, and the last one is made last."""
    results[0].numpy()
    if len(results) > 1:
        results[-1][..., :1].numpy()


def random_sample(model: Any, batch: int, steps: int) -> Any:
    """Inputs as the model declares them: normal numbers, or for whole numbers (and Embedding) ones.

    Raises:
        UsageError: a model that does not say what it takes.
    """
    import keras
    import numpy as np

    from lstm_swap.live_tree import functional_class, walk

    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    if not isinstance(graph, functional_class()):
        raise UsageError(f"{model.name}: the model does not say what inputs it takes; give a sample")
    words = any(isinstance(layer, keras.layers.Embedding) for layer in walk(model))
    rng = np.random.default_rng(0)

    def draw(tensor: Any) -> Any:
        shape = tuple(size or (steps if i else batch) for i, size in enumerate(tensor.shape))
        if (words and len(shape) == 2) or not str(tensor.dtype).startswith(("float", "bfloat")):
            return np.ones(shape, "int32")
        return rng.standard_normal(shape).astype("float32")

    return keras.tree.map_structure(draw, graph.input)


def kernels_of(model: Any) -> dict[str, dict[str, str]]:
    """What was chosen for each fused layer, by layer name."""
    from lstm_swap.live_stacks import fused_layers
    from lstm_swap.live_tree import walk

    return {
        str(layer.name): dict(layer.kernels) for layer in walk(model) if len(fused_layers(layer)) == 1 and layer.kernels
    }


def _furthest(expected: list[Any], actual: list[Any]) -> float:
    """The largest difference, relative to the largest number where that is above one."""
    import numpy as np

    worst = 0.0
    for want, got in zip(expected, actual, strict=True):
        want, got = (np.asarray(array, dtype="float64") for array in (want, got))
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        worst = max(worst, float(np.max(np.abs(want - got), initial=0.0)) / scale)
    return worst


def plot(result: Result, path: str, kind: str) -> None:
    """Draw the table as bars; kind: "png", "svg", "pdf".

    Raises:
        MissingDependencyError: matplotlib is not installed.
        UsageError: matplotlib has no such format.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise MissingDependencyError(f"--plot needs matplotlib ({problem}): pip install 'lstm-swap[plot]'") from None
    jobs = list(dict.fromkeys(row.job for row in result.rows))
    figure = Figure(figsize=(4 * len(jobs) + 2, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    for number, job in enumerate(jobs):
        axes = figure.add_subplot(1, len(jobs), number + 1)
        rows = [row for row in result.rows if row.job == job][::-1]
        bars = axes.barh([row.form for row in rows], [row.milliseconds for row in rows])
        axes.bar_label(bars, [f"{row.milliseconds:.3g} ms ({row.speedup:.2f}x)" for row in rows], padding=3)
        axes.margins(x=0.4)
        axes.set(title=job, xlabel="ms a call (median)")
    figure.suptitle(f"{result.model}: {result.machine}", fontsize=9)
    if kind not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"--plot cannot draw {kind!r}; give a name that ends in .png, .svg or .pdf")
    figure.savefig(path, format=kind)
