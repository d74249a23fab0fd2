"""Every kernel of the CPU computes what the standard layer computes, and is what the graph then holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from lstm_swap.layers import FusedLSTM, choice
from tests.fused_grid import (
    FEATURES,
    FUSED,
    STEPS,
    UNITS,
    case_id,
    close,
    compare,
    covering,
    flat,
    fused_arrays,
    mask_of,
)
from tests.fused_stacks import Inferring, sequences, stack_twins, states_for

CPU_KERNELS = choice.KERNELS["cpu"]


def chosen(name: str) -> dict[str, str]:
    """This kernel for both jobs of the CPU."""
    return {"cpu_inference": name, "cpu_training": name}


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels of the CPU that were run or traced."""
    names: list[str] = []
    choose = choice.choose

    def recording(device: str, *args: Any, **kwargs: Any) -> str:
        name = choose(device, *args, **kwargs)
        if device == "cpu":
            names.append(name)
        return name

    monkeypatch.setattr(choice, "choose", recording)
    monkeypatch.setattr(choice, "table", list)
    return names


# Numbers

GRID = covering(
    {
        "kernel": ["scan", "xla", "xla2", "xla4", "block"],
        "kind": ["lstm", "gru"],
        "mask": ["none", "left", "empty row"],
        "dtype": ["float32", "float64", "mixed_float16"],
        "rows": [5, 3, 1],
        "return_sequences": [False, True],
        "how": ["eager", "train", "infer"],
    },
    strength=2,
    # the loop is tested in tests/test_fused_layers.py; this is all that the block can do
    allowed=lambda kernel, kind, mask, dtype, how, **_: (
        kernel != "block" or (kind == "lstm" and mask == "none" and dtype != "float64" and how == "infer")
    ),
)


@pytest.mark.parametrize("case", GRID, ids=case_id)
def test_equals_the_standard_layer(case: dict[str, Any], picked: list[str]) -> None:
    """Outputs, states and gradients of each kernel equal the standard layer's, also for fewer rows than shares."""
    kind, dtype, rows, name = case["kind"], case["dtype"], case["rows"], case["kernel"]
    arguments = {"return_sequences": case["return_sequences"], "return_state": True, "dtype": dtype}
    standard, fused = stack_twins(kind, kernels=chosen(name), rows=rows, **arguments)
    x = sequences("float64" if dtype == "float64" else "float32", rows)
    compare(kind, standard, fused, x, states_for(fused, x.dtype, rows), mask_of(case["mask"], rows), case["how"])
    assert set(picked) == ({"block", "loop"} if name == "block" else {name})  # the block has no gradient of its own


@pytest.mark.parametrize("kind", FUSED)
def test_loop_and_block_eagerly(kind: str, picked: list[str]) -> None:
    """The loop by its name, and for LSTM the block, called eagerly for inference, with gradients."""
    for name in ("loop", "block") if kind == "lstm" else ("loop",):
        standard, fused = stack_twins(kind, kernels=chosen(name), return_sequences=True)
        fused(sequences())
        assert set(picked) == {name}
        compare(kind, Inferring(standard), Inferring(fused), sequences(), [], None, "eager")
        assert set(picked) == {name, "loop"}  # the block has no gradient of its own
        picked.clear()


@pytest.mark.parametrize(
    ("kind", "name", "network"),
    [
        ("gru", "xla2", {"num_layers": 2}),
        ("lstm", "xla", {"bidirectional": True}),
        ("lstm", "block", {"num_layers": 2}),
    ],
)
def test_stack(kind: str, name: str, network: dict[str, Any]) -> None:
    """Layers and directions are put together from any kernel."""
    standard, fused = stack_twins(kind, kernels=chosen(name), return_sequences=True, return_state=True, **network)
    mask = None if name == "block" else mask_of("holes")
    compare(kind, standard, fused, sequences(), states_for(fused), mask, "infer" if name == "block" else "train")


@pytest.mark.parametrize(
    ("kind", "name", "training"),
    [("gru", "scan", False), ("gru", "xla", True), ("lstm", "xla4", False), ("lstm", "block", False)],
)
def test_unknown_batch_and_time(kind: str, name: str, training: bool, picked: list[str]) -> None:
    """Traced once with batch and time unknown, each kernel is right for every batch and every number of steps."""
    masked = name != "block"
    standard, fused = stack_twins(kind, kernels=chosen(name), return_sequences=True)

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec((None, None, FEATURES)), tf.TensorSpec((None, None), "bool")]
    )
    def run(x: Any, mask: Any) -> Any:
        return _output_and_gradients(fused, x, mask if masked else None, training)

    for rows, steps in ((5, STEPS), (1, 2)):
        x, mask = sequences(rows=rows, steps=steps), mask_of("holes", rows)[:, :steps]
        wanted = _output_and_gradients(standard, x, mask if masked else None, training)
        for actual, expected, tolerance in zip(run(x, mask), wanted, (1e-6, 1e-5), strict=True):
            close(actual, expected, tolerance)
    assert name in picked


def _output_and_gradients(layer: Any, x: Any, mask: Any, training: bool) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = layer(x, mask=mask, training=training)
        loss = tf.reduce_sum(tf.sin(output) * x[:, :, :1])
    return output, tape.gradient(loss, x)


@pytest.mark.parametrize("name", ["xla4", "block"])
def test_eager_calls_of_many_sizes(name: str) -> None:
    """Called eagerly with one size after another, a layer is right each time, though its function is traced anew."""
    standard, fused = stack_twins("lstm", kernels=chosen(name), return_state=True)
    for rows, steps in ((5, 6), (4, 3), (1, 6), (2, 1)):
        x = sequences(rows=rows, steps=steps)
        for actual, expected in zip(fused(x), standard(x), strict=True):
            close(actual, expected, 1e-6)


@pytest.mark.parametrize(
    ("kind", "name", "how"),
    [
        ("lstm", "xla", "eager training"),
        ("gru", "xla", "around training"),
        ("lstm", "scan", "around inference"),
        ("lstm", "scan", "within"),
        ("gru", "xla", "within"),
    ],
)
def test_gradient_of_a_gradient(kind: str, name: str, how: str) -> None:
    """Second derivatives through the gradient that is written by hand equal the standard layer's: eagerly, with both
    tapes around a traced layer, and with both within what is traced."""
    standard, fused = stack_twins(kind, kernels=chosen(name), return_sequences=True)
    x, mask = sequences(), mask_of("holes")

    def second(layer: Any) -> list[Any]:
        arrays = [variable.value for variable in layer.trainable_variables]

        def call(x: Any) -> Any:
            return layer(x, mask=mask, training=how.endswith("training"))

        traced = tf.function(call, autograph=False)

        def run(x: Any) -> Any:
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_sum((traced if how.startswith("around") else call)(x) ** 2)
                first = inner.gradient(loss, [x, *arrays])
                penalty = sum(tf.reduce_sum(gradient**2) for gradient in first)
            return outer.gradient(penalty, [x, *arrays])

        return (tf.function(run, autograph=False) if how == "within" else run)(x)

    wanted, got = second(standard), second(fused)
    assert np.abs(wanted[0]).max() > 1e-2
    close(got[0], wanted[0], 1e-5)
    for actual, expected in zip(got[1:], fused_arrays(kind, [np.asarray(array) for array in wanted[1:]]), strict=True):
        close(actual, expected, 1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["scan", "xla2"])
def test_inside_a_compiled_function(name: str, training: bool) -> None:
    """A function around the layer that XLA compiles as a whole gives the same numbers, gradients too."""
    standard, fused = stack_twins("gru", kernels=chosen(name), return_sequences=True)
    x, mask = sequences(), tf.constant(mask_of("holes"))

    def run(layer: Any) -> Any:
        return _output_and_gradients(layer, x, mask, training)

    compiled = tf.function(run, jit_compile=True, autograph=False)
    for actual, expected, tolerance in zip(compiled(fused), run(standard), (1e-6, 1e-5), strict=True):
        close(actual, expected, tolerance)


def test_block_inside_a_compiled_function() -> None:
    """XLA has no BlockLSTMV2, so a function that XLA compiles as a whole holds another kernel."""
    standard, fused = stack_twins("lstm", kernels=chosen("block"))
    close(tf.function(fused, jit_compile=True, autograph=False)(sequences()), standard(sequences()), 1e-6)


# What is in the graph

LOOPS = ("While", "StatelessWhile")


def _functions(graph: Any) -> dict[str, Any]:
    return {function.signature.name: function for function in graph.library.function}


def _reachable(nodes: Any, functions: dict[str, Any]) -> Iterator[Any]:
    """The nodes, and those of all functions that they may call, each as often as it would be called."""
    for node in nodes:
        yield node
        for attribute in node.attr.values():
            for called in [attribute.func, *attribute.list.func]:
                if called.name:
                    yield from _reachable(functions[called.name].node_def, functions)


def _compiled(nodes: Any, functions: dict[str, Any]) -> int:
    """How many calls there are of functions that XLA must compile."""
    return sum(
        any(
            functions[attribute.func.name].attr["_XlaMustCompile"].b
            for attribute in node.attr.values()
            if attribute.func.name
        )
        for node in _reachable(nodes, functions)
    )


def _training_graph(name: str) -> Any:
    layer = FusedLSTM(UNITS, kernels=chosen(name))
    layer.build((None, None, FEATURES))

    @tf.function(autograph=False)
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, training=True))
        return tape.gradient(loss, [variable.value for variable in layer.trainable_variables])

    return run.get_concrete_function(sequences(rows=12)).graph.as_graph_def()


def test_gradient_by_hand_has_one_product_a_step() -> None:
    """A training step holds two products inside its loops, one forward and one back; TensorFlow's gradient adds one."""
    products = {}
    for name in ("scan", "loop"):
        graph = _training_graph(name)
        functions = _functions(graph)
        loops = [node for node in _reachable(graph.node, functions) if node.op in LOOPS]
        bodies = [functions[node.attr["body"].func.name].node_def for node in loops]
        products[name] = [sum(node.op == "MatMul" for node in body) for body in bodies]
    assert sorted(products["scan"]) == [1, 1]
    assert sum(products["loop"]) > 2


@pytest.mark.parametrize(("name", "shares"), [("scan", 0), ("xla", 1), ("xla2", 2), ("xla4", 4)])
def test_shares_of_the_batch(name: str, shares: int) -> None:
    """Forward and backward are one compiled call each for every share of the batch."""
    graph = _training_graph(name)
    assert _compiled(graph.node, _functions(graph)) == 2 * shares


def test_exported_model_needs_no_xla(tmp_path: Path) -> None:
    """What export writes runs where XLA is missing, though the layer says xla and was traced with it before."""
    x = keras.Input((STEPS, FEATURES))
    kernels = {**chosen("xla"), "gpu_inference": "xla"}
    hidden = FusedLSTM(UNITS, kernels=kernels, return_sequences=True, bidirectional=True)(x)
    model = keras.Model(x, FUSED["gru"](UNITS, kernels=kernels, num_layers=2)(hidden))
    traced = tf.function(model, autograph=False).get_concrete_function(sequences()).graph.as_graph_def()
    assert _compiled(traced.node, _functions(traced)) >= 4
    wanted = model.predict(sequences(), verbose=0)
    model.export(tmp_path / "saved", verbose=False)
    file = saved_model_pb2.SavedModel()
    file.ParseFromString((tmp_path / "saved" / "saved_model.pb").read_bytes())
    (meta,) = file.meta_graphs
    nodes = {node.name: node for node in meta.graph_def.node}
    outputs = meta.signature_def["serving_default"].outputs.values()
    served = [nodes[output.name.partition(":")[0]] for output in outputs]
    functions = _functions(meta.graph_def)
    assert any(node.op in LOOPS for node in _reachable(served, functions))  # the layers are in there
    assert _compiled(served, functions) == 0
    loaded = tf.saved_model.load(tmp_path / "saved")
    close(loaded.signatures["serving_default"](sequences())["output_0"], wanted, 1e-6)
    close(loaded.serve(sequences(rows=2)), model(sequences(rows=2)), 1e-6)


def test_layer_runs_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that was given no kernel goes by the table: seen by the op that only one of them has."""
    standard, fused = stack_twins("lstm", rows=2)
    x = sequences(rows=2)
    for name, expected in (("scan", False), ("block", True)):
        row = {"device": "cpu", "job": "inference", "mode": "lstm", "shape": [2, 6, 3, 4, 1, 1], "speed": {name: 9.0}}
        monkeypatch.setattr(choice, "table", lambda row=row: [row])
        graph = tf.function(lambda x: fused(x), autograph=False).get_concrete_function(x).graph.as_graph_def()
        ops = {node.op for node in _reachable(graph.node, _functions(graph))}
        assert ("BlockLSTMV2" in ops) is expected
    close(flat(fused(x))[0], standard(x), 1e-6)
