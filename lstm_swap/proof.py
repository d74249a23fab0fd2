"""Proof by default: old and new arrays of each rewritten layer, through an independent reference, must agree.

The arrays are compared as functions: both are run on the same random input, in float64 and before any rounding,
by `weights.reference`, which is written from the definitions of the layers and shares no code with the rewrite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from lstm_swap.architecture import Node
from lstm_swap.errors import UnreadableModelError, VerificationError
from lstm_swap.formats.h5 import rounded
from lstm_swap.rules import Settings
from lstm_swap.settings import own_config, settings
from lstm_swap.weights import layouts, memory
from lstm_swap.weights.recurrence import Recurrence
from lstm_swap.weights.reference import forward

Arrays = list[np.ndarray[Any, Any]]
Values = list[tuple[np.ndarray[Any, Any], str]]

#: Largest difference, times max(1, largest magnitude of the reference).
TOLERANCE = 1e-6

#: Sequences and time steps of the random input. A layer is its step, applied again and again, so one step from random
#: states says the same as many; small layers get several all the same.
BATCH, STEPS = 2, 4
LARGE = 1 << 20  # numbers

#: Layers of fewer numbers than this are prepared while the one before them is written (memory, for the others).
AHEAD = 12 << 20
WORKERS = 2


def recurrence(found: Settings, config: dict[str, Any], arrays: int, dialect: str) -> Recurrence:
    """What `weights.reference` needs to know of a layer that owns this many arrays."""
    layout: Any = found.form
    if (found.kind, arrays) in (("lstm", 12), ("gru", 9)):
        layout = "keras1"
    more: dict[str, Any] = {}
    if found.kind == "conv_lstm":
        for key in ("kernel_size", "strides", "padding", "data_format", "dilation_rate"):
            if config.get(key) is not None:
                value = config[key]
                more[key] = tuple(value) if isinstance(value, list) else value
        more["rank"] = int(found.class_name[-2])
    assert found.units is not None
    return Recurrence(
        kind=found.kind,  # type: ignore[arg-type]
        layout=layout,
        units=found.units,
        activation=found.activation,
        recurrent_activation=found.recurrent_activation,
        use_bias=found.use_bias,
        reset_after=found.reset_after,
        hard_sigmoid="keras3" if dialect == "keras3" else "keras2",
        **more,
    )


class Prover:
    """Reads, edits, proves and rounds the arrays of one layer at a time.

    before: how each layer to be rewritten was, by id of its node: taken with `remember` before anything changes.
    errors: the largest difference found, by id of the node.
    """

    def __init__(self, where: str, *, verify: bool = True) -> None:
        self.where = where
        self.verify = verify
        self.before: dict[int, Recurrence] = {}
        self.errors: dict[int, float] = {}
        self.dialect = "keras3"
        self.version: str | None = None

    def remember(self, node: Node, found: Settings, arrays: int, dialect: str) -> None:
        if found.units is not None and found.kind != "other":
            self.before[id(node)] = recurrence(found, own_config(node), arrays, dialect)

    def check_layer(self, node: Node, found: Settings, arrays: Sequence[Any]) -> None:
        """Do the arrays have the shapes that class and settings ask for?

        Raises:
            UnreadableModelError: naming the layer, the array and both shapes.
        """
        if found.kind not in ("lstm", "gru", "simple_rnn", "conv_lstm") or found.units is None or not arrays:
            return
        for array in arrays:
            if 0 in array.shape or not (array.dtype == "bfloat16" or np.dtype(array.dtype).kind == "f"):
                raise UnreadableModelError(
                    f"{self.where}: layer {node.path!r} ({found.class_name}): the array {array.name!r} holds "
                    + ("no numbers" if 0 in array.shape else f"{array.dtype}, not floating-point numbers")
                )
        if found.kind not in ("lstm", "gru") or len(arrays) in (9, 12):
            return
        problem = layouts.check_shapes(found.kind, found.form, found.units, arrays, found.use_bias, found.reset_after)
        if problem:
            hint = ""
            known = layouts.bias_layout(arrays)
            if known and known[1] in ("standard", "cudnn") and known[1] != found.form:
                hint = f"; the arrays are those of the {known[1]} form, so class and weights disagree"
            raise UnreadableModelError(f"{self.where}: layer {node.path!r} ({found.class_name}): {problem}{hint}")

    def materialize(self, node: Node) -> Values:
        """The layer's final arrays, each with the dtype in which it is stored.

        Raises:
            VerificationError: NaN or infinite numbers, or a difference above the tolerance.
        """
        arrays = [a.read() for a in node.arrays]
        self._check_finite(node, arrays)
        values: Arrays = list(arrays)
        errors: list[float] = []
        rng = np.random.default_rng(0)
        reference = self.before.get(id(node))
        for edit in node.edits:
            edited = edit.weights(values)
            if self.verify and reference is None and hasattr(edit, "prove"):
                errors.append(float(edit.prove(values, edited, rng)))
            values = edited
        if self.verify and reference is not None:
            errors.append(self._compare(node, reference, arrays, values))
        if errors:
            worst = max(errors)
            self.errors[id(node)] = worst
            if not worst <= TOLERANCE:
                raise VerificationError(
                    f"{self.where}: layer {node.path!r}: old and new arrays differ by {worst:.3g} "
                    f"(allowed {TOLERANCE:g}) after: {', '.join(e.title for e in node.edits)}; nothing was written"
                )
        dtypes = [a.dtype for a in node.arrays]
        if len(dtypes) != len(values):
            dtypes = [dtypes[0]] * len(values)
        return [(rounded(v, d), d) for v, d in zip(values, dtypes, strict=True)]

    def _check_finite(self, node: Node, arrays: Arrays) -> None:
        if not self.verify:
            return
        for handle, array in zip(node.arrays, arrays, strict=True):
            if array.dtype.kind == "f" and not _finite(array):
                raise VerificationError(
                    f"{self.where}: layer {node.path!r}: the array {handle.name!r} holds NaN or infinite numbers, so "
                    "nothing can be proved about it (a diverged training?); --no-verify converts it all the same"
                )

    def _compare(self, node: Node, old: Recurrence, arrays: Arrays, values: Arrays) -> float:
        found = settings(node, version=self.version)
        new = recurrence(found, own_config(node), len(values), self.dialect)
        rng = np.random.default_rng(0)
        x = rng.standard_normal(input_shape(old, arrays)) * _moderate(arrays[0])
        options: dict[str, Any] = {"return_sequences": True}
        if old.kind != "conv_lstm":
            count = 2 if old.kind == "lstm" else 1
            h = [rng.standard_normal((BATCH, old.units)) * _moderate(arrays[1]) for _ in range(count)]
            options["initial_state"] = h
        out_a, states_a = forward(old, arrays, x, **options)
        out_b, states_b = forward(new, values, x, **options)
        worst = 0.0
        for a, b in zip([out_a, *states_a], [out_b, *states_b], strict=True):
            scale = max(1.0, float(np.abs(a).max(initial=0.0)))
            worst = max(worst, float(np.abs(a - b).max(initial=0.0)) / scale)
        return worst


def _finite(array: np.ndarray[Any, Any]) -> bool:
    flat = array.reshape(-1)
    step = 1 << 17  # a piece and its answers fit the cache
    return all(np.isfinite(flat[i : i + step]).all() for i in range(0, flat.size, step))


def _moderate(kernel: np.ndarray[Any, Any]) -> float:
    """A factor for random input with which wide layers do not saturate: a flat sigmoid would hide differences."""
    sample = kernel.reshape(-1)[:: max(1, kernel.size // 4096)].astype(np.float64)
    size = float(np.sqrt(np.mean(sample**2) * max(kernel.shape))) if sample.size else 0.0
    return 1.0 / max(1.0, size)


def input_shape(spec: Recurrence, arrays: Arrays) -> tuple[int, ...]:
    """The shape of a random input for a layer with these arrays."""
    kernel = arrays[0].shape
    if spec.kind == "conv_lstm":
        size = [2 * n + 1 for n in kernel[: spec.rank]]
        channels = kernel[spec.rank]
        last = [*size, channels] if spec.data_format == "channels_last" else [channels, *size]
        return (BATCH, STEPS, *last)
    features = kernel[1] if spec.layout == "fused" else kernel[0]
    large = sum(a.size for a in arrays) > LARGE
    return (BATCH, 1 if large else STEPS, features)


class Ahead:
    """Materializes the next layers while the writer is busy with the last one.

    Call it with the nodes in any order; those that come as `nodes` lists them are ready when they are asked for.
    NumPy computes outside the interpreter's lock, so the layers of one file keep several cores busy.
    """

    def __init__(self, prover: Prover, nodes: Sequence[Node], progress: Callable[[int, int], None] | None) -> None:
        self.prover, self.nodes, self.progress = prover, list(nodes), progress
        self.places = {id(node): i for i, node in enumerate(self.nodes)}
        self.pool = ThreadPoolExecutor(WORKERS)
        self.ready: dict[int, Future[Values]] = {}
        self.done = 0
        self._memory = memory.kept()

    def __call__(self, node: Node) -> Values:
        future = self.ready.pop(id(node), None)
        values = self.prover.materialize(node) if future is None else future.result()
        self._prepare(self.places[id(node)] + 1)
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, len(self.nodes))
        return values

    def _prepare(self, following: int) -> None:
        for coming in self.nodes[following : following + WORKERS]:
            if id(coming) not in self.ready and sum(math.prod(a.shape) for a in coming.arrays) < AHEAD:
                self.ready[id(coming)] = self.pool.submit(self.prover.materialize, coming)

    def __enter__(self) -> Ahead:
        self._memory.__enter__()
        self._prepare(0)  # while the output is made
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.ready.clear()
        self._memory.__exit__(None, None, None)
