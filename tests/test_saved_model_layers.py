"""What can be had from a SavedModel besides its graph: the Keras architecture, the arrays by layer, other formats."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap.architecture import build_tree
from lstm_swap.errors import UnreadableModelError, UnsupportedLayerError
from lstm_swap.saved_model import KerasModel, keras_architecture, recover_arrays, summarize
from lstm_swap.saved_models.metadata import plain
from lstm_swap.saved_models.reading import fields, read_graph, varint
from lstm_swap.saved_models.rewriting import rewrite
from tests.gpu_shaped import close, export, randomize

tf = pytest.importorskip("tensorflow")


def _build(tfk: Any) -> Any:
    """Every way in which Keras 2 nests layers, with a frozen layer, a shared one and non-trainable weights."""
    layers = tfk.layers
    x = tfk.Input((6, 5), name="inp")
    y = layers.Masking(name="msk")(x)
    y = layers.Bidirectional(layers.LSTM(3, return_sequences=True, name="l"), name="bi")(y)
    y = layers.TimeDistributed(layers.Dense(4, name="inner_dense"), name="td")(y)
    y = layers.BatchNormalization(name="bn")(y)
    inner = tfk.Sequential(
        [layers.Input((6, 4)), layers.GRU(4, return_sequences=True, name="g"), layers.Dropout(0.3)], name="inner"
    )
    y = inner(inner(y))
    y = layers.RNN(layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2)]), name="cells")(y)
    frozen = layers.Dense(3, name="frozen", trainable=False)
    model = tfk.Model(x, layers.Dense(1, name="out")(frozen(y)), name="root")
    model.compile("adam", "mse")
    randomize(model, 4)
    statistics = model.get_layer("bn")
    statistics.set_weights([np.abs(array) for array in statistics.get_weights()])  # a variance is not negative
    return model


@pytest.fixture(scope="module")
def saved(tfk: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The tf_keras model, and the folder that it was saved in, without traces: those take ten seconds."""
    model = _build(tfk)
    folder = tmp_path_factory.mktemp("keras2") / "model"
    model.save(str(folder), save_format="tf", save_traces=False)
    return model, folder


def _rebuilt(tfk: Any, found: KerasModel) -> Any:
    """A model made from the architecture, its layers' weights set one by one by path."""
    model = tfk.Model.from_config(copy.deepcopy(found.entry["config"]))  # which it changes
    by_path = {node.path: node for node in build_tree(found.entry).walk()}
    for path, arrays in found.arrays.items():
        layer = model
        for name, node in zip(path.split("/"), _line(by_path[path])[1:], strict=True):
            layer = {
                "item": lambda owner, name=name: _named(owner, name),
                "layer": lambda owner: owner.layer,
                "cell": lambda owner: owner.cell,
                "forward": lambda owner: owner.forward_layer,
                "backward": lambda owner: owner.backward_layer,
            }[node.role](layer)
        layer.set_weights([array.read() for array in arrays])
    return model


def _named(owner: Any, name: str) -> Any:
    inside = owner.cells if hasattr(owner, "cells") else owner.layers
    return next(layer for layer in inside if layer.name == name)


def _line(node: Any) -> list[Any]:
    line: list[Any] = []
    while node is not None:
        line.insert(0, node)
        node = node.parent
    return line


def test_architecture_and_arrays_make_the_model_again(tfk: Any, saved: tuple[Any, Path]) -> None:
    """The architecture with each layer's arrays in Keras's order is the model: every weight in its place."""
    model, folder = saved
    found = keras_architecture(folder)
    assert found is not None
    assert found.entry["class_name"] == "Functional" and found.keras_version == tfk.__version__
    assert found.training_config is not None and found.training_config["loss"] == "mse"
    again = _rebuilt(tfk, found)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 6, 5)).astype(np.float32)
    x[1, 4:] = 0
    close(again(x), model(x))
    for ours, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_arrays_keep_the_names_and_order_of_keras(saved: tuple[Any, Path]) -> None:
    """A layer owns its own arrays alone: a wrapper has none, BatchNormalization's moving ones come last."""
    found = keras_architecture(saved[1])
    assert found is not None
    own = {path: [array.name.rpartition("/")[2] for array in arrays] for path, arrays in found.arrays.items()}
    cell = ["kernel", "recurrent_kernel", "bias"]
    assert own == {
        "bi/forward_l": cell,
        "bi/backward_l": cell,
        "td/inner_dense": ["kernel", "bias"],
        "bn": ["gamma", "beta", "moving_mean", "moving_variance"],
        "inner/g": cell,
        "cells/stacked_rnn_cells/lstm_cell": cell,
        "cells/stacked_rnn_cells/gru_cell": cell,
        "frozen": ["kernel", "bias"],
        "out": ["kernel", "bias"],
    }
    assert found.arrays["bi/forward_l"][0].shape == (5, 12) and found.arrays["bi/forward_l"][0].dtype == "float32"


def _to_old_form(folder: Path) -> None:
    """As TensorFlow 2.0 to 2.4 wrote it: the JSON in the object graph, tuples spelled as objects."""
    graph = read_graph(folder)
    nodes = graph.meta_graphs[0].object_graph_def.nodes
    for _, _, entry in fields((folder / "keras_metadata.pb").read_bytes()):
        parts = {number: value for number, _, value in fields(entry)}
        nodes[varint(parts.get(2, b"\0"))].user_object.metadata = parts[5].decode()
    (folder / "keras_metadata.pb").unlink()
    (folder / "saved_model.pb").write_bytes(graph.SerializeToString())


def test_old_folders_keep_the_description_in_the_graph(tfk: Any, saved: tuple[Any, Path], tmp_path: Path) -> None:
    """TensorFlow 2.0 to 2.4 left the same description in saved_model.pb itself."""
    folder = Path(shutil.copytree(saved[1], tmp_path / "model"))
    _to_old_form(folder)
    old, new = keras_architecture(folder), keras_architecture(saved[1])
    assert old is not None and new is not None
    assert old.entry == new.entry and old.keras_version == new.keras_version
    assert {p: [a.name for a in arrays] for p, arrays in old.arrays.items()} == {
        p: [a.name for a in arrays] for p, arrays in new.arrays.items()
    }
    assert summarize(folder).architecture == old.entry


def test_tuples_and_shapes_become_lists() -> None:
    """Keras's encoder writes tuples and shapes as objects; layers named alike are left alone."""
    wrapped = {"class_name": "__tuple__", "items": [3, {"class_name": "TensorShape", "items": [None, 2]}]}
    assert plain({"strides": wrapped, "class_name": "Conv1D"}) == {"strides": [3, [None, 2]], "class_name": "Conv1D"}
    layer = {"class_name": "TensorShape", "config": {"items": [1]}}
    assert plain(layer) == layer


def test_folder_with_traces(tfk: Any, tmp_path: Path) -> None:
    """As `model.save` writes it by default, with functions for each layer: the same is found."""
    model = tfk.Sequential([tfk.layers.Input((4, 3)), tfk.layers.GRU(2, name="g"), tfk.layers.Dense(1, name="d")])
    randomize(model)
    model.save(str(tmp_path / "model"), save_format="tf")
    found = keras_architecture(tmp_path / "model")
    assert found is not None and found.entry["class_name"] == "Sequential" and found.training_config is None
    stored = [array.read() for name in ("g", "d") for array in found.arrays[name]]
    for ours, theirs in zip(stored, model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not summarize(tmp_path / "model").needs_gpu


def test_summary_of_a_keras_2_folder(saved: tuple[Any, Path], tfk: Any) -> None:
    """Version, architecture, variables by name, and no alarm about the GPU."""
    summary = summarize(saved[1])
    assert summary.has_keras_metadata and summary.keras_version == tfk.__version__
    assert summary.architecture is not None and summary.architecture["config"]["name"] == "root"
    assert not summary.needs_gpu
    shapes = {variable.name: variable.shape for variable in summary.variables}
    assert shapes["bi/forward_l/lstm_cell/kernel"] == (5, 12)
    assert summary.tf_version == tf.__version__ and summary.tags == (("serve",),)


def test_a_subclassed_model_has_no_architecture(tfk: Any, tmp_path: Path) -> None:
    """Where the layers were called by hand, only the graph and the arrays can be had."""

    class Own(tfk.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cell = tfk.layers.LSTM(3)

        def call(self, x: Any) -> Any:
            return self.cell(x)

    model = Own()
    model(np.zeros((1, 4, 2), np.float32))
    model.save(str(tmp_path / "model"), save_format="tf")
    assert keras_architecture(tmp_path / "model") is None
    arrays = {
        array.name.rpartition("/")[2]: array for found in recover_arrays(tmp_path / "model").values() for array in found
    }
    np.testing.assert_array_equal(arrays["recurrent_kernel"].read(), model.cell.get_weights()[1])


def test_variables_of_unknown_layers_are_not_lost(saved: tuple[Any, Path], tmp_path: Path) -> None:
    """Variables that no layer of the architecture owns are an error that names them, not silence."""
    folder = Path(shutil.copytree(saved[1], tmp_path / "model"))
    _to_old_form(folder)
    graph = read_graph(folder)
    root = graph.meta_graphs[0].object_graph_def.nodes[0].user_object
    description = json.loads(root.metadata)
    layers = description["model_config"]["config"]["layers"]
    layers[:] = [layer for layer in layers if layer["name"] != "frozen"]
    root.metadata = json.dumps(description)
    (folder / "saved_model.pb").write_bytes(graph.SerializeToString())
    with pytest.raises(UnsupportedLayerError, match=r"2 variables belong to no layer.*frozen/kernel"):
        keras_architecture(folder)


def test_damaged_description(saved: tuple[Any, Path], tmp_path: Path) -> None:
    """A description that is no JSON is an error for the architecture, and a warning in the summary."""
    folder = Path(shutil.copytree(saved[1], tmp_path / "model"))
    data = (folder / "keras_metadata.pb").read_bytes()
    (folder / "keras_metadata.pb").write_bytes(data.replace(b'{"name"', b'{"name\x00', 1))
    with pytest.raises(UnreadableModelError, match=r"keras_metadata\.pb.*not JSON"):
        keras_architecture(folder)
    assert any("keras_metadata.pb" in warning for warning in summarize(folder).warnings)
    (folder / "keras_metadata.pb").write_bytes(b"")
    with pytest.raises(UnreadableModelError, match="describes no layer"):
        keras_architecture(folder)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A Keras 3 model with every kind of cuDNN layer, and the folder made from its export on a GPU machine."""
    keras = pytest.importorskip("keras")
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((7, 3)),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
            layers.GRU(3, go_backwards=True, return_sequences=True),
            layers.LSTM(3, name="last"),
            layers.Dense(2),
        ],
        name="whole",
    )
    randomize(model)
    work = tmp_path_factory.mktemp("converters")
    rewrite(export(model, work / "model"), work / "out")
    return model, work / "out"


def test_arrays_of_an_export(converted: tuple[Any, Path]) -> None:
    """Keras 3's export has no architecture; its arrays come by layer, each once, under the names of Keras."""
    model, folder = converted
    assert keras_architecture(folder) is None
    recovered = recover_arrays(folder)
    last = [array.name.rpartition("/")[2] for array in recovered["whole/last/lstm_cell"]]
    assert last == ["kernel", "recurrent_kernel", "bias"]
    stored = {array.name: array for arrays in recovered.values() for array in arrays}
    assert len(stored) == sum(len(arrays) for arrays in recovered.values())
    for weight in model.weights:
        np.testing.assert_array_equal(stored[weight.path].read(), np.asarray(weight))


def test_tensorflow_lite_takes_it(converted: tuple[Any, Path]) -> None:
    """With built-in ops alone, for a fixed batch; the numbers are the plain model's."""
    if not hasattr(tf, "lite"):
        pytest.skip("this TensorFlow has no TensorFlow Lite")
    model, folder = converted
    x = np.random.default_rng(1).uniform(-1, 1, (1, 7, 3)).astype(np.float32)
    loaded = tf.saved_model.load(str(folder))
    fixed = tf.function(lambda x: loaded.serve(x)).get_concrete_function(tf.TensorSpec((1, 7, 3), tf.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tf.lite announces its own end
        written = tf.lite.TFLiteConverter.from_concrete_functions([fixed], loaded).convert()
        interpreter = tf.lite.Interpreter(model_content=written)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    close(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), model(x))


def test_tf2onnx_takes_it(converted: tuple[Any, Path], tmp_path: Path) -> None:
    """The exporter that stops at CudnnRNNV3 writes a model with the plain model's numbers."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    tf2onnx_convert = pytest.importorskip("tf2onnx.convert", reason="tf2onnx is not installed")
    model, folder = converted
    x = np.random.default_rng(1).uniform(-1, 1, (2, 7, 3)).astype(np.float32)
    loaded = tf.saved_model.load(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = (tf.TensorSpec((None, 7, 3), tf.float32, name="x"),)
        call = tf.function(lambda x: loaded.serve(x), input_signature=spec)
        tf2onnx_convert.from_function(call, input_signature=spec, output_path=str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    close(session.run(None, {session.get_inputs()[0].name: x})[0], model(x))
