"""Graphs with cuDNN nodes of every kind and place: modes, layouts, dtypes, loops, branches, repeated calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap.saved_model import summarize
from lstm_swap.saved_models.rewriting import rewrite
from tests.gpu_shaped import close, pack, run_fresh

tf = pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from tests.cudnn_nodes import NODES, TIME, UNITS, Node, cudnn_lstm  # noqa: E402


@pytest.fixture(scope="module")
def every_node(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One model with a signature for each of NODES, rewritten, and what they compute in a process without a GPU."""
    work = tmp_path_factory.mktemp("nodes")
    module = tf.Module()
    functions = {name: node.signature() for name, node in NODES.items()}
    module.functions = functions
    tf.saved_model.save(module, str(work / "model"), signatures=functions)
    results = {to: rewrite(work / "model", work / to, to=to) for to in ("standard", "auto")}
    calls = [(name, node.inputs()) for name, node in NODES.items()]
    runs = run_fresh([(work / to, calls) for to in results], work / "runs")
    return {
        to: {"result": results[to], "outputs": dict(zip(NODES, run, strict=True))}
        for to, run in zip(results, runs, strict=True)
    }


@pytest.mark.parametrize("name", NODES)
def test_every_kind_of_node(every_node: dict[str, dict[str, Any]], name: str) -> None:
    """Modes, layers, directions, layouts, lengths, dtypes and input modes: the numbers are plain Keras layers'."""
    node = NODES[name]
    for key, wanted in zip(("output", "output_h", "output_c"), node.expected(), strict=True):
        for found in every_node.values():
            close(found["outputs"][name][key], wanted, node.dtype)


def test_report_of_every_node(every_node: dict[str, dict[str, Any]]) -> None:
    """Each node is reported with its layers, directions and dtype, and every signature ran."""
    wanted = sorted((n.op, n.mode, n.layers, n.directions, n.dtype, UNITS) for n in NODES.values())
    for found in every_node.values():
        result = found["result"]
        assert sorted((n.op, n.kind, n.layers, n.directions, n.dtype, n.units) for n in result.nodes) == wanted
        assert [str(run) for run in result.signatures if not run.ran] == []
        assert not summarize(result.output).needs_gpu


class Places(tf.Module):
    """The same LSTM in a loop, in a branch, in a function that is called twice, and in one that a loop calls."""

    def __init__(self, params: Any) -> None:
        super().__init__()
        self.params = tf.Variable(params, dtype=tf.float32)

    @tf.function(autograph=False)
    def layer(self, x: Any) -> Any:
        return cudnn_lstm(tf.ensure_shape(x, [None, TIME, UNITS]), self.params)

    def loop(self, x: Any) -> Any:
        shape = (x.shape, tf.TensorShape([]))
        return tf.while_loop(lambda y, i: i < 3, lambda y, i: (cudnn_lstm(y, self.params), i + 1), (x, 0), shape)[0]

    def branch(self, x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: cudnn_lstm(x, self.params), lambda: -x)

    def switch(self, x: Any) -> Any:
        return tf.switch_case(tf.size(x) * 0 + 1, [lambda: x, lambda: cudnn_lstm(x, self.params)])

    def twice(self, x: Any) -> Any:
        return self.layer(self.layer(x))

    def nested(self, x: Any) -> Any:
        shape = (x.shape, tf.TensorShape([]))
        return tf.while_loop(lambda y, i: i < 2, lambda y, i: (self.layer(y), i + 1), (x, 0), shape)[0]


def test_every_place_in_a_graph(tmp_path: Path) -> None:
    """Loop bodies, branches, nested and repeated calls: each is found, and computes what a plain Keras LSTM does."""
    node = Node(input_mode="linear_input")
    rng = np.random.default_rng(2)
    weights = [rng.uniform(-0.8, 0.8, shape) for shape in ((UNITS, 4 * UNITS), (UNITS, 4 * UNITS), (4 * UNITS,))]
    module = Places(pack("lstm", [weights]))
    spec = tf.TensorSpec([None, TIME, UNITS], tf.float32, name="x")
    times = {"loop": 3, "branch": 1, "switch": 1, "twice": 2, "nested": 2}
    functions = {name: tf.function(getattr(module, name), input_signature=[spec], autograph=False) for name in times}
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=functions)
    assert {r for n in summarize(tmp_path / "model").cudnn_nodes for r in n.reached_from if "signature" in r} == {
        f"signature {name!r}" for name in times
    }
    forms = ("standard", "auto")
    for to in forms:
        result = rewrite(tmp_path / "model", tmp_path / to, to=to)
        assert not summarize(tmp_path / to).needs_gpu
        assert all(run.ran for run in result.signatures)
    x = rng.uniform(-1, 1, (2, TIME, UNITS)).astype(np.float32)
    plain = node.keras_layer(False)
    plain.build((2, TIME, UNITS))
    plain.set_weights(weights)
    calls = [(name, {"x": x}) for name in times]
    for outputs in run_fresh([(tmp_path / to, calls) for to in forms], tmp_path / "runs"):
        for name, got in zip(times, outputs, strict=True):
            wanted = tf.constant(x, tf.float64)
            for _ in range(times[name]):
                wanted = plain(wanted)[0]
            close(*got.values(), wanted)


def test_branches_by_device_need_no_gpu(tmp_path: Path) -> None:
    """A graph that chooses by device runs on a CPU already: nothing in it changes."""
    params = tf.constant(np.zeros(4 * UNITS * (2 * UNITS + 2), np.float32))

    def choose(x: Any) -> Any:
        branches = {"CPU": lambda: tf.tanh(x), "GPU": lambda: cudnn_lstm(x, params)}
        return tf.__internal__.execute_fn_for_device(branches, lambda: tf.tanh(x))

    module = tf.Module()
    module.call = tf.function(choose, input_signature=[tf.TensorSpec([None, TIME, UNITS])], autograph=False)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    summary = summarize(tmp_path / "model")
    assert len(summary.cudnn_nodes) == 1 and not summary.needs_gpu
    assert any("only a GPU takes" in warning for warning in summary.warnings)
    assert rewrite(tmp_path / "model", tmp_path / "out").nodes == []


def test_tf_keras_needs_no_gpu(tmp_path: Path, tfk: Any) -> None:
    """tf.keras keeps CudnnRNNV3 in functions beside those it calls: no false alarm, and nothing is rewritten."""
    model = tfk.Sequential([tfk.layers.Input((4, 3)), tfk.layers.LSTM(2), tfk.layers.Dense(1)])
    model.save(str(tmp_path / "model"), save_format="tf")
    summary = summarize(tmp_path / "model")
    assert summary.cudnn_nodes and not summary.needs_gpu
    assert rewrite(tmp_path / "model", tmp_path / "out").nodes == []
