"""TensorFlow 1 graphs, and what a rewrite refuses, leaves alone or does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap.errors import UnreadableModelError, UnsupportedLayerError, UsageError
from lstm_swap.saved_model import summarize
from lstm_swap.saved_models.rewriting import rewrite
from tests.gpu_shaped import close, pack, run_fresh

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from tests.cudnn_nodes import FEATURES, TIME, UNITS, Node, cudnn_lstm  # noqa: E402


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
    serve = tf.function(lambda x: {"y": cudnn_lstm(x, params)}, input_signature=spec, autograph=False)
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
        return {"y": cudnn_lstm(tf.ensure_shape(y, x.shape), params)}

    module = tf.Module()
    module.call = tf.function(call, input_signature=[tf.TensorSpec([None, TIME, UNITS])], autograph=False)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    result = rewrite(tmp_path / "model", tmp_path / "out")
    assert len(result.nodes) == 1 and result.nodes[0].max_error is not None
    assert [run.ran for run in result.signatures] == [False]
    assert "PyFunc" in result.signatures[0].reason
    assert not marker.exists()


def test_graph_in_text_form(tmp_path: Path) -> None:
    """A saved_model.pbtxt is read like the binary form, which is what is written."""
    from google.protobuf import text_format

    from lstm_swap.saved_models.reading import read_graph

    module = tf.Module()
    params = tf.constant(np.full(96, 0.1, np.float32))
    spec = [tf.TensorSpec([None, TIME, UNITS], name="x")]
    module.call = tf.function(lambda x: {"y": cudnn_lstm(x, params)}, input_signature=spec, autograph=False)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    (tmp_path / "model" / "saved_model.pbtxt").write_text(text_format.MessageToString(read_graph(tmp_path / "model")))
    (tmp_path / "model" / "saved_model.pb").unlink()
    assert summarize(tmp_path / "model").needs_gpu
    result = rewrite(tmp_path / "model", tmp_path / "out")
    assert [run.ran for run in result.signatures] == [True]
    assert not (tmp_path / "out" / "saved_model.pbtxt").exists()


def test_the_folder_comes_along(tmp_path: Path) -> None:
    """Assets and files that TensorFlow does not know come along; a link to a file becomes it."""
    module = tf.Module()
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    module.words = tf.saved_model.Asset(str(tmp_path / "words.txt"))
    params = tf.constant(np.full(96, 0.1, np.float32))
    spec = [tf.TensorSpec([None, TIME, UNITS], name="x")]
    module.call = tf.function(lambda x: {"y": cudnn_lstm(x, params)}, input_signature=spec, autograph=False)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    (tmp_path / "model" / "assets.extra").mkdir()
    (tmp_path / "model" / "assets.extra" / "note").symlink_to(tmp_path / "words.txt")
    rewrite(tmp_path / "model", tmp_path / "out")
    assert (tmp_path / "out" / "assets" / "words.txt").read_text() == "one\ntwo\n"
    note = tmp_path / "out" / "assets.extra" / "note"
    assert note.read_text() == "one\ntwo\n" and not note.is_symlink()
    (tmp_path / "model" / "round").symlink_to(tmp_path / "model")
    with pytest.raises(UnreadableModelError, match="round"):
        rewrite(tmp_path / "model", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    with pytest.raises(UsageError, match="inside the model"):
        rewrite(tmp_path / "model", tmp_path / "model" / "assets" / "new")
