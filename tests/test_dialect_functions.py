"""TensorFlow functions in graphs of tf.keras, as operations of Keras 3."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lstm_swap.architecture import build_tree
from lstm_swap.dialects import keras2, unknown_classes
from tests.dialect_tools import Json, opens, quietly, translated


def functions(tf: Any, x: Any) -> dict[str, Any]:
    return {
        "add": x + 1.0, "subtract from": 1.0 - x, "multiply": x * x, "divide": x / 2.0, "power": x**2.0,
        "maximum": tf.maximum(x, 0.0), "concat": tf.concat([x, x], axis=1), "last": x[:, -1],
        "slice": x[:, 1:3, tf.newaxis], "ellipsis": x[..., 0], "reshape": tf.reshape(x, [-1, 15]),
        "expand and squeeze": tf.squeeze(tf.expand_dims(x, 1), 1), "cast": tf.cast(x, tf.float16),
        "relu": tf.nn.relu(x), "leaky relu": tf.nn.leaky_relu(x), "softmax": tf.nn.softmax(x), "gelu": tf.nn.gelu(x),
        "tanh": tf.tanh(x), "mean": tf.reduce_mean(x, axis=1, keepdims=True), "sum": tf.reduce_sum(x, [1, 2]),
        "transpose": tf.transpose(x, [0, 2, 1]), "matmul": tf.matmul(x, x, transpose_b=True),
        "matmul both": tf.matmul(x, x, transpose_a=True), "split": tf.split(x, [1, 2], axis=2)[1],
        "stack": tf.stack([x, x], 1), "unstack": tf.unstack(x, axis=1)[0], "tile": tf.tile(x, [1, 2, 1]),
        "one hot": tf.one_hot(tf.cast(x, "int32"), 4), "where": tf.where(x > 0, x, -x), "reverse": tf.reverse(x, [1]),
        "clip": tf.clip_by_value(x, 0.0, 1.0), "gather": tf.gather(x, [0, 2], axis=1),
        "normalize": tf.math.l2_normalize(x, -1), "pad": tf.pad(x, [[0, 0], [1, 1], [0, 0]]), "argmax": tf.argmax(x,
        -1),
    }  # fmt: skip


def test_tensorflow_functions_become_operations(tfk: Any, keras: Any) -> None:
    """Every function that has an operation of Keras 3 is translated and computes the same."""
    import tensorflow as tf

    x = tfk.Input((5, 3))
    z = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    for name, y in functions(tf, x).items():
        model = tfk.Model(x, y)
        entry = json.loads(model.to_json())
        root = build_tree(entry)
        keras2.to_keras3(root, version="2.15.0")
        assert unknown_classes(root, "keras3") == [], name
        got, wanted = (np.asarray(quietly(m, z)) for m in (opens(keras, entry), model))
        np.testing.assert_allclose(got.astype("float64"), wanted.astype("float64"), atol=1e-6, err_msg=name)


def test_tensorflow_functions_without_an_operation_are_listed(tfk: Any) -> None:
    """What has no exact counterpart stays as it is and is listed as in need of code."""
    import tensorflow as tf

    x = tfk.Input((5, 3))
    model = tfk.Model(x, tf.cumsum(x, axis=1, exclusive=True))
    entry = json.loads(model.to_json())
    root = build_tree(entry)
    changes = keras2.to_keras3(root, version="2.15.0")
    assert unknown_classes(root, "keras3") == ["TFOpLambda"]
    assert any("cumsum" in c.message for c in changes)


def op_layer(op: str, name: str, inputs: list[str], constants: dict[str, Any], **attr: Any) -> Json:
    """A TensorFlowOpLayer as tf.keras 1.14 to 2.3 wrote it: its graph name has a prefix that its config lacks."""
    node_def = {"name": name, "op": op, "input": [f"in_{i}" for i in range(len(inputs) + len(constants))], "attr": attr}
    return {
        "class_name": "TensorFlowOpLayer", "name": f"tf_op_layer_{name}",
        "config": {"name": name, "trainable": True, "dtype": "float32", "node_def": json.dumps(node_def),
        "constants": constants},
        "inbound_nodes": [[[source, 0, 0, {}] for source in inputs]],
    }  # fmt: skip


OPS: dict[str, tuple[Json, Callable[[Any], Any]]] = {
    "AddV2": (op_layer("AddV2", "y", ["x"], {"1": 2.0}), lambda x: x + 2),
    "Sub from a constant": (op_layer("Sub", "y", ["x"], {"0": 1.0}), lambda x: 1 - x),
    "Mul": (op_layer("Mul", "y", ["x", "x"], {}), lambda x: x * x),
    "Relu": (op_layer("Relu", "y", ["x"], {}), lambda x: np.maximum(x, 0)),
    "Mean": (op_layer("Mean", "y", ["x"], {"1": 1}, keep_dims={"b": True}), lambda x: x.mean(1, keepdims=True)),
    "ConcatV2": (op_layer("ConcatV2", "y", ["x", "x"], {"2": 1}), lambda x: np.concatenate([x, x], 1)),
    "Reshape": (op_layer("Reshape", "y", ["x"], {"1": [-1, 15]}), lambda x: x.reshape(-1, 15)),
    "Transpose": (op_layer("Transpose", "y", ["x"], {"1": [0, 2, 1]}), lambda x: x.transpose(0, 2, 1)),
    "BatchMatMulV2": (op_layer("BatchMatMulV2", "y", ["x", "x"], {}, adj_y={"b": True}), lambda x: x @ x.transpose(0,
    2, 1)),
    "Pack": (op_layer("Pack", "y", ["x", "x"], {}, axis={"i": "1"}), lambda x: np.stack([x, x], 1)),
    "Squeeze": (
        op_layer("Squeeze", "y", ["x"], {}, squeeze_dims={"list": {"i": []}}), lambda x: x,
    ),
    "Cast": (op_layer("Cast", "y", ["x"], {}, DstT={"type": "DT_INT32"}), lambda x: x.astype("int32")),
    "StridedSlice": (
        op_layer("StridedSlice", "y", ["x"], {"1": [0, -1], "2": [0, 0], "3": [1, 1]},
                 begin_mask={"i": "1"}, end_mask={"i": "1"}, shrink_axis_mask={"i": "2"}),
        lambda x: x[:, -1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPS)
def test_graph_operations_become_operations(case: str, keras: Any) -> None:
    """TensorFlowOpLayers of tf.keras 1.14 to 2.3 become operations of Keras 3 under their graph's name."""
    one, compute = OPS[case]
    one = copy.deepcopy(one)
    box = {"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
           "config": {"name": "x", "batch_input_shape": [None, 5, 3], "dtype": "float32"}}  # fmt: skip
    entry, _ = translated({"class_name": "Model", "config": {
        "name": "m", "layers": [box, one], "input_layers": [["x", 0, 0]], "output_layers": [["tf_op_layer_y", 0,
        0]]}})  # fmt: skip
    assert unknown_classes(build_tree(entry), "keras3") == []
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    np.testing.assert_allclose(np.asarray(quietly(opens(keras, entry), x)), compute(x), atol=1e-5)


def test_unknown_graph_operations_are_listed() -> None:
    """A TensorFlowOpLayer without counterpart, or whose definition cannot be read, is listed."""
    box = {"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
           "config": {"name": "x", "batch_input_shape": [None, 5, 3], "dtype": "float32"}}  # fmt: skip
    for one in (op_layer("Cumsum", "y", ["x"], {"1": 1}), op_layer("AddV2", "y", ["x"], {})):
        one = copy.deepcopy(one)
        if one["config"]["constants"] == {}:
            one["config"]["node_def"] = "not JSON"
        entry, _ = translated({"class_name": "Model", "config": {
            "name": "m", "layers": [box, one], "input_layers": [["x", 0, 0]], "output_layers": [["tf_op_layer_y", 0,
            0]]}})  # fmt: skip
        assert unknown_classes(build_tree(entry), "keras3") == ["TensorFlowOpLayer"]
