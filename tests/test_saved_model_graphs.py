"""Graphs with cuDNN nodes of every kind and place: modes, layouts, loops, TensorFlow 1, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap.errors import UnsupportedLayerError
from lstm_swap.saved_model import summarize
from lstm_swap.saved_models.rewriting import rewrite
from tests.gpu_shaped import Arrays, close, pack, run_fresh

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

BATCH, TIME, FEATURES, UNITS = 3, 5, 4, 3
LENGTHS = np.array([5, 2, 4], dtype=np.int32)


@dataclass
class Node:
    """A cuDNN node, and Keras layers with the same numbers."""

    op: str = "CudnnRNNV3"
    mode: str = "lstm"
    layers: int = 1
    directions: int = 1
    time_major: bool = False
    dtype: str = "float32"
    input_mode: str = "linear_input"
    is_training: bool = True

    @property
    def features(self) -> int:
        return UNITS if self.skips else FEATURES

    @property
    def skips(self) -> bool:
        return self.input_mode != "linear_input"

    def weights(self) -> list[list[np.ndarray[Any, Any]]]:
        """Keras's arrays of each layer and direction, float64."""
        rng = np.random.default_rng(11)
        gates = {"lstm": 4, "gru": 3}.get(self.mode, 1)
        found = []
        for layer in range(self.layers):
            width = self.features if layer == 0 else self.directions * UNITS
            for _ in range(self.directions):
                kernel = rng.uniform(-0.7, 0.7, (width, gates * UNITS))
                if layer == 0 and self.skips:  # every gate gets the input itself
                    kernel = np.tile(np.eye(UNITS), (1, gates))
                bias = rng.uniform(-0.7, 0.7, (2, gates * UNITS) if self.mode == "gru" else (gates * UNITS,))
                found.append([kernel, rng.uniform(-0.7, 0.7, (UNITS, gates * UNITS)), bias])
        return found

    def inputs(self) -> Arrays:
        rng = np.random.default_rng(12)
        x, state = (BATCH, TIME, self.features), (BATCH, self.layers * self.directions, UNITS)
        arrays = {"x": rng.uniform(-1, 1, x), "h": rng.uniform(-1, 1, state), "c": rng.uniform(-1, 1, state)}
        if self.time_major:
            arrays = {name: array.transpose(1, 0, 2) for name, array in arrays.items()}
        return {
            name: array.astype("float32" if self.dtype == "bfloat16" else self.dtype) for name, array in arrays.items()
        }

    def signature(self) -> Any:
        """A tf.function of x, h and c that runs the node."""
        params = tf.constant(pack(self.mode, self.weights(), self.skips), self.dtype)
        outer = "float32" if self.dtype == "bfloat16" else self.dtype
        batch_axis = 1 if self.time_major else 0
        shapes = {"x": [None, None, self.features], "h": [None, None, UNITS]}
        shapes["h"][1 - batch_axis] = self.layers * self.directions

        def run(x: Any, h: Any, c: Any) -> dict[str, Any]:
            given = {"input": x, "input_h": h, "input_c": c if self.mode == "lstm" else tf.zeros(())}
            given = {name: tf.cast(value, self.dtype) for name, value in given.items()}
            given |= {"params": params, "rnn_mode": self.mode, "input_mode": self.input_mode}
            given |= {"direction": ("unidirectional", "bidirectional")[self.directions - 1]}
            if self.op == "CudnnRNNV3":
                rows = tf.gather(tf.constant(LENGTHS), tf.range(tf.shape(x)[batch_axis]))
                steps = tf.shape(x)[1 - batch_axis]
                given |= {"sequence_lengths": tf.minimum(rows, steps), "time_major": self.time_major}
            result = getattr(tf.raw_ops, self.op)(**given, is_training=self.is_training)
            named = {"output": result.output, "output_h": result.output_h, "output_c": result.output_c}
            return {name: tf.cast(value, outer) for name, value in named.items()}

        specs = [tf.TensorSpec(shapes[name[:1] if name == "x" else "h"], outer, name=name) for name in ("x", "h", "c")]
        return tf.function(run, input_signature=specs, autograph=False)

    def expected(self) -> list[np.ndarray[Any, Any]]:
        """output, output_h and output_c of plain Keras layers in float64, each row alone and cut to its length."""
        inputs = {k: v.astype(np.float64) for k, v in self.inputs().items()}
        if self.time_major:
            inputs = {name: array.transpose(1, 0, 2) for name, array in inputs.items()}
        lengths = LENGTHS if self.op == "CudnnRNNV3" else np.full(BATCH, TIME)
        output = np.zeros((BATCH, TIME, self.directions * UNITS))
        h, c = np.zeros_like(inputs["h"]), np.zeros_like(inputs["c"])
        cells = [self._keras(place % self.directions == 1) for place in range(self.layers * self.directions)]
        for row, length in enumerate(lengths):
            sequence = inputs["x"][row : row + 1, :length]
            for layer in range(self.layers):
                halves = []
                for direction in range(self.directions):
                    place = layer * self.directions + direction
                    first = [inputs[name][row : row + 1, place] for name in "hc"][: 2 if self.mode == "lstm" else 1]
                    cell = cells[place]
                    if not cell.built:
                        cell.build((1, None, sequence.shape[-1]))
                        cell.set_weights(self.weights()[place])
                    half, *last = cell(tf.constant(sequence), initial_state=[tf.constant(s) for s in first])
                    halves.append(half.numpy()[:, ::-1] if direction else half.numpy())
                    h[row, place], c[row, place] = last[0].numpy()[0], last[-1].numpy()[0]
                sequence = np.concatenate(halves, axis=-1)
            output[row, :length] = sequence
        results = [output, h, c]
        if self.time_major:
            results = [array.transpose(1, 0, 2) for array in results]
        return results if self.mode == "lstm" else [*results[:2], np.zeros(())]

    def _keras(self, backward: bool) -> Any:
        options = {"return_sequences": True, "return_state": True, "go_backwards": backward, "dtype": "float64"}
        if self.mode == "lstm":
            return keras.layers.LSTM(UNITS, **options)
        if self.mode == "gru":
            return keras.layers.GRU(UNITS, **options)
        return keras.layers.SimpleRNN(UNITS, activation=self.mode.removeprefix("rnn_"), **options)


NODES = {
    "lstm": Node(),
    "lstm_2_layers_both_ways": Node(layers=2, directions=2),
    "lstm_time_major_float64": Node(time_major=True, dtype="float64", is_training=False),
    "lstm_bfloat16": Node(dtype="bfloat16"),
    "lstm_skip_input": Node(input_mode="skip_input"),
    "lstm_auto_select_2_layers": Node(input_mode="auto_select", layers=2),
    "gru_2_layers_both_ways_time_major": Node(mode="gru", layers=2, directions=2, time_major=True),
    "gru_float16": Node(mode="gru", dtype="float16"),
    "gru_skip_input": Node(mode="gru", input_mode="skip_input"),
    "tanh_3_layers": Node(mode="rnn_tanh", layers=3),
    "relu_both_ways": Node(mode="rnn_relu", directions=2, time_major=True),
    "v1_lstm_2_layers_both_ways": Node(op="CudnnRNN", layers=2, directions=2, time_major=True),
    "v2_gru": Node(op="CudnnRNNV2", mode="gru", time_major=True, is_training=False),
}


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


def _cudnn_lstm(x: Any, params: Any) -> Any:
    """A batch-major LSTM over x (batch, TIME, UNITS): the sequence."""
    batch = tf.shape(x)[0]
    state = tf.zeros([batch, 1, UNITS])
    lengths = tf.fill([batch], TIME)
    return tf.raw_ops.CudnnRNNV3(
        input=x, input_h=state, input_c=state, params=params, sequence_lengths=lengths, time_major=False
    ).output


class Places(tf.Module):
    """The same LSTM in a loop, in a branch, in a function that is called twice, and in one that a loop calls."""

    def __init__(self, params: Any) -> None:
        super().__init__()
        self.params = tf.Variable(params, dtype=tf.float32)

    @tf.function(autograph=False)
    def layer(self, x: Any) -> Any:
        return _cudnn_lstm(tf.ensure_shape(x, [None, TIME, UNITS]), self.params)

    def loop(self, x: Any) -> Any:
        shape = (x.shape, tf.TensorShape([]))
        return tf.while_loop(lambda y, i: i < 3, lambda y, i: (_cudnn_lstm(y, self.params), i + 1), (x, 0), shape)[0]

    def branch(self, x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: _cudnn_lstm(x, self.params), lambda: -x)

    def switch(self, x: Any) -> Any:
        return tf.switch_case(tf.size(x) * 0 + 1, [lambda: x, lambda: _cudnn_lstm(x, self.params)])

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
    plain = node._keras(False)
    plain.build((2, TIME, UNITS))
    plain.set_weights(weights)
    calls = [(name, {"x": x}) for name in times]
    for outputs in run_fresh([(tmp_path / to, calls) for to in forms], tmp_path / "runs"):
        for name, got in zip(times, outputs, strict=True):
            wanted = tf.constant(x, tf.float64)
            for _ in range(times[name]):
                wanted = plain(wanted)[0]
            close(*got.values(), wanted)


def _tensorflow_1_model(folder: Path, node: Node) -> int:
    """A TensorFlow 1 SavedModel: nodes in the main graph, conversions of the buffer, and a training part.

    Returns the size of the buffer.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    v1 = tf.compat.v1
    params = pack(node.mode, node.weights()).astype(np.float32)
    sizes = {"num_layers": node.layers, "num_units": UNITS, "input_size": FEATURES}
    how = {"rnn_mode": node.mode, "direction": "bidirectional"}
    predict = v1.saved_model.signature_def_utils.predict_signature_def

    def variables() -> tuple[Any, Any]:
        x = v1.placeholder(tf.float32, [None, None, FEATURES], "x")
        return x, v1.get_variable("opaque", initializer=params, use_resource=False)

    # TensorFlow on a CPU does not even save a graph with such nodes: save the variables, then put the nodes in.
    with tf.Graph().as_default(), v1.Session() as session:
        x, _ = variables()
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": predict({"x": x}, {"y": x})})
        builder.save()
    with tf.Graph().as_default() as graph:
        x, opaque = variables()
        h = tf.zeros([node.layers * 2, tf.shape(x)[1], UNITS])
        states = {"input": x, "input_h": h, "input_c": h, "params": opaque}
        out = tf.raw_ops.CudnnRNN(**states, **how, is_training=False)
        parts = tf.raw_ops.CudnnRNNParamsToCanonical(**sizes, params=opaque, num_params=16 * node.layers, **how)
        joined = tf.raw_ops.CudnnRNNCanonicalToParams(**sizes, weights=parts.weights, biases=parts.biases, **how)
        count = tf.raw_ops.CudnnRNNParamsSize(**sizes, T=tf.float32, S=tf.int32, **how)
        grads = tf.raw_ops.CudnnRNNBackprop(
            **states,
            output=out.output,
            output_h=out.output_h,
            output_c=out.output_c,
            output_backprop=out.output,
            output_h_backprop=h,
            output_c_backprop=h,
            reserve_space=out.reserve_space,
            **how,
        )
        v1.add_to_collection("train_op", tf.identity(grads.params_backprop, "train").op)
        first = {"kernel": parts.weights[0], "bias": parts.biases[0]}
        signature = predict({"x": x}, {"y": out.output, "h": out.output_h, "joined": joined, "count": count, **first})
        whole = v1.train.export_meta_graph(graph=graph)
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((folder / "saved_model.pb").read_bytes())
    (meta_graph,) = saved.meta_graphs
    there = {n.name for n in meta_graph.graph_def.node}
    meta_graph.graph_def.node.extend(n for n in whole.graph_def.node if n.name not in there)
    meta_graph.signature_def["serving_default"].CopyFrom(signature)
    meta_graph.collection_def["train_op"].CopyFrom(whole.collection_def["train_op"])
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    return params.size


def test_tensorflow_1_model(tmp_path: Path) -> None:
    """A TensorFlow 1 graph with its opaque buffer, conversions of it and a training part runs in TensorFlow 1 and 2."""
    node = Node(op="CudnnRNN", layers=2, directions=2, time_major=True)
    size = _tensorflow_1_model(tmp_path / "model", node)
    assert summarize(tmp_path / "model").needs_gpu
    forms = ("standard", "auto")
    for to in forms:
        result = rewrite(tmp_path / "model", tmp_path / to, to=to)
        assert sorted(n.kind for n in result.nodes) == ["lstm", "parameters", "parameters", "parameters"]
        assert "training graph" in " ".join(result.warnings)
        assert not summarize(tmp_path / to).needs_gpu
    x = node.inputs()["x"]
    wanted = _from_zero_states(node, x)
    kernel, _, bias = node.weights()[0]
    for (outputs,) in run_fresh([(tmp_path / to, [("serving_default", {"x": x})]) for to in forms], tmp_path / "runs"):
        close(outputs["y"], wanted)
        close(outputs["kernel"], kernel[:, :UNITS].T)
        assert outputs["bias"].shape == bias[:UNITS].shape
        assert outputs["count"].tolist() == [size]
        np.testing.assert_array_equal(outputs["joined"], pack(node.mode, node.weights()).astype(np.float32))
    v1 = tf.compat.v1
    for to in forms:
        with v1.Session(graph=tf.Graph()) as session:
            v1.saved_model.load(session, ["serve"], str(tmp_path / to))
            close(session.run("CudnnRNN:0", {"x:0": x}), wanted)


def _from_zero_states(node: Node, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Two stacked Bidirectional LSTMs of Keras, time-major, float64."""
    arrays = node.weights()
    stack = keras.Sequential([keras.Input((None, FEATURES), dtype="float64")])
    for _ in range(node.layers):
        inner = keras.layers.LSTM(UNITS, return_sequences=True, dtype="float64")
        stack.add(keras.layers.Bidirectional(inner, dtype="float64"))
    stack.set_weights([array for layer in arrays for array in layer])
    return np.asarray(stack(x.transpose(1, 0, 2).astype(np.float64))).transpose(1, 0, 2)


def test_branches_by_device_need_no_gpu(tmp_path: Path) -> None:
    """A graph that chooses by device runs on a CPU already: nothing in it changes."""
    params = tf.constant(np.zeros(4 * UNITS * (2 * UNITS + 2), np.float32))

    def choose(x: Any) -> Any:
        branches = {"CPU": lambda: tf.tanh(x), "GPU": lambda: _cudnn_lstm(x, params)}
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


def _v3(x: Any, h: Any, c: Any, size: int, **options: Any) -> Any:
    lengths = tf.fill([tf.shape(x)[0]], tf.shape(x)[1])
    given = {"input": x, "input_h": h, "input_c": c, "params": tf.zeros([size]), "sequence_lengths": lengths}
    return tf.raw_ops.CudnnRNNV3(**given, time_major=False, **options)


def _refused(kind: str, x: Any) -> Any:
    batch = tf.shape(x)[0]
    one = tf.zeros([batch, 1, UNITS])
    if kind == "dropout":
        two = tf.zeros([batch, 2, UNITS])
        return _v3(x, two, two, 192, dropout=0.5).output
    if kind == "num_proj":
        return _v3(x, one[:, :, :2], one, 114, num_proj=2).output
    if kind == "number of layers":
        state = tf.raw_ops.PlaceholderWithDefault(input=one, shape=[None, None, UNITS])
        return _v3(x, state, state, 96).output
    out = _v3(x, one, one, 96)
    return tf.raw_ops.CudnnRNNBackpropV3(
        input=x,
        input_h=one,
        input_c=one,
        params=tf.zeros([96]),
        sequence_lengths=tf.fill([batch], TIME),
        output=out.output,
        output_h=out.output_h,
        output_c=out.output_c,
        output_backprop=out.output,
        output_h_backprop=one,
        output_c_backprop=one,
        reserve_space=out.reserve_space,
        host_reserved=out.host_reserved,
        time_major=False,
    ).input_backprop


def _save_refused(folder: Path, kind: str) -> None:
    module = tf.Module()
    spec = [tf.TensorSpec([None, TIME, UNITS], name="x")]
    module.call = tf.function(lambda x: {"y": _refused(kind, x)}, input_signature=spec, autograph=False)
    tf.saved_model.save(module, str(folder), signatures=module.call)


@pytest.mark.parametrize("kind", ["dropout", "num_proj", "number of layers", "CudnnRNNBackpropV3"])
def test_refused_nodes_are_named(tmp_path: Path, kind: str) -> None:
    """What has no portable form is an error that names folder, node and reason; nothing is written."""
    _save_refused(tmp_path / "model", kind)
    assert summarize(tmp_path / "model").needs_gpu
    with pytest.raises(UnsupportedLayerError, match=kind) as caught:
        rewrite(tmp_path / "model", tmp_path / "out")
    assert str(tmp_path / "model") in str(caught.value) and "node 'CudnnRNN" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_training_function_beside_a_signature_stays(tmp_path: Path) -> None:
    """A train step that no signature reaches is left alone with a warning; the signature becomes portable."""
    module = tf.Module()
    spec = [tf.TensorSpec([None, TIME, UNITS], name="x")]
    module.train = tf.function(lambda x: _refused("CudnnRNNBackpropV3", x), input_signature=spec, autograph=False)
    params = tf.constant(np.full(96, 0.1, np.float32))
    serve = tf.function(lambda x: {"y": _cudnn_lstm(x, params)}, input_signature=spec, autograph=False)
    module.serve = serve
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=serve)
    result = rewrite(tmp_path / "model", tmp_path / "out")
    assert len(result.nodes) == 1
    assert [w for w in result.warnings if "no signature needs it" in w and "CudnnRNNBackpropV3" in w]
    after = summarize(tmp_path / "out")
    assert not after.needs_gpu
    assert {node.op for node in after.cudnn_nodes} == {"CudnnRNNV3", "CudnnRNNBackpropV3"}


def test_graphs_that_reach_outside_are_not_run(tmp_path: Path) -> None:
    """A graph with a Python function is rewritten and proved node by node, but neither loaded nor run."""
    marker = tmp_path / "ran"
    params = tf.constant(np.full(96, 0.1, np.float32))

    def call(x: Any) -> dict[str, Any]:
        y = tf.numpy_function(lambda a: (marker.write_text("ran"), a)[1], [x], tf.float32)
        return {"y": _cudnn_lstm(tf.ensure_shape(y, x.shape), params)}

    module = tf.Module()
    module.call = tf.function(call, input_signature=[tf.TensorSpec([None, TIME, UNITS])], autograph=False)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    result = rewrite(tmp_path / "model", tmp_path / "out")
    assert len(result.nodes) == 1 and result.nodes[0].max_error is not None
    assert [run.ran for run in result.signatures] == [False]
    assert "PyFunc" in result.signatures[0].reason
    assert not marker.exists()


def test_the_folder_comes_along(tmp_path: Path) -> None:
    """Assets and files that TensorFlow does not know come along; a link to a file becomes the file."""
    module = tf.Module()
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    module.words = tf.saved_model.Asset(str(tmp_path / "words.txt"))
    params = tf.constant(np.full(96, 0.1, np.float32))
    spec = [tf.TensorSpec([None, TIME, UNITS], name="x")]
    module.call = tf.function(lambda x: {"y": _cudnn_lstm(x, params)}, input_signature=spec, autograph=False)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    (tmp_path / "model" / "assets.extra").mkdir()
    (tmp_path / "model" / "assets.extra" / "note").symlink_to(tmp_path / "words.txt")
    rewrite(tmp_path / "model", tmp_path / "out")
    assert (tmp_path / "out" / "assets" / "words.txt").read_text() == "one\ntwo\n"
    note = tmp_path / "out" / "assets.extra" / "note"
    assert note.read_text() == "one\ntwo\n" and not note.is_symlink()
