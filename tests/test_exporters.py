"""After standardize(use_cudnn=False) a model can be exported: TFLite, ONNX, XLA, second derivatives.

TFLite comes with TensorFlow. tf2onnx and onnxruntime are not part of the test extra; where both are installed the
ONNX test runs.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import lstm_swap
from tests.conftest import randomise
from tests.gpu_shaped import gpu_build
from tests.live_tools import FEATURES, ROWS, STEPS, assert_close, layers, outputs, sequences


def model() -> Any:
    """A graph with every place in which a recurrent layer can hang, of a fixed batch, as converters like it."""
    x = keras.Input((STEPS, FEATURES), batch_size=ROWS)
    h = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    inner = keras.Sequential([keras.Input((STEPS, 8)), layers.GRU(5, return_sequences=True)])
    h = inner(h)
    return randomise(keras.Model(x, layers.Dense(2)(layers.LSTM(3)(h))))


@pytest.fixture(scope="module")
def plain() -> tuple[Any, Any]:
    """The original, and what came out of it by way of fused layers."""
    original = model()
    fused = lstm_swap.optimize(original, "fused", strict=True)
    return original, lstm_swap.standardize(fused, use_cudnn=False)


def traced(candidate: Any, training: bool = False) -> set[str]:
    """The kinds of all operations in the traced model, in the functions that it calls too."""
    function = tf.function(lambda x: candidate(x, training=training), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec((ROWS, STEPS, FEATURES))).graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return {node.op for node in nodes}


def test_no_cudnn_op_is_traced(plain: tuple[Any, Any]) -> None:
    """Keras traces cuDNN's op by itself where it sees a GPU; with use_cudnn=False it does not, in no wrapper."""
    original, exportable = plain
    with gpu_build():
        assert "CudnnRNNV3" in traced(model())
        assert not {op for op in traced(exportable) if "Cudnn" in op}
        assert not {op for op in traced(exportable, training=True) if "Cudnn" in op}
    assert_close(outputs(exportable, sequences()), outputs(original, sequences()))


@pytest.mark.filterwarnings("ignore")  # TensorFlow's converters use what TensorFlow itself is about to remove
def test_tflite(plain: tuple[Any, Any]) -> None:
    """TFLite converts the model to its own operations alone, and computes the same."""
    original, exportable = plain
    converter = tf.lite.TFLiteConverter.from_keras_model(exportable)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], sequences())
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert_close(got, outputs(original, sequences()), 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_onnx(plain: tuple[Any, Any]) -> None:
    """tf2onnx converts the model to standard ONNX operations, LSTM among them, and onnxruntime computes the same."""
    tf2onnx = pytest.importorskip("tf2onnx", reason="tf2onnx is not installed", exc_type=ImportError)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed", exc_type=ImportError)
    original, exportable = plain
    run = tf.function(lambda x: exportable(x, training=False))
    signature = [tf.TensorSpec((ROWS, STEPS, FEATURES), tf.float32, name="x")]
    converted, _ = tf2onnx.convert.from_function(run, input_signature=signature, opset=15)
    assert {node.domain for node in converted.graph.node} <= {"", "ai.onnx"}
    assert "LSTM" in {node.op_type for node in converted.graph.node}
    (got,) = onnxruntime.InferenceSession(converted.SerializeToString()).run(None, {"x": sequences()})
    assert_close(got, outputs(original, sequences()), 1e-5)


def test_xla(plain: tuple[Any, Any]) -> None:
    """XLA compiles the model."""
    original, exportable = plain
    assert all(layer.supports_jit for layer in exportable._flatten_layers())
    compiled = tf.function(lambda x: exportable(x, training=False), jit_compile=True)
    assert_close(compiled(tf.constant(sequences())), outputs(original, sequences()), 1e-5)


def test_second_derivatives(plain: tuple[Any, Any]) -> None:
    """The gradient of the gradient (as SHAP and gradient penalties take it) is that of finite differences."""
    _, exportable = plain
    x = tf.constant(sequences())

    def slope(at: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(at)
            loss = tf.reduce_sum(exportable(at, training=False) ** 2)
        return tape.gradient(loss, at)

    direction = tf.constant(sequences(seed=9))
    with tf.GradientTape() as tape:
        tape.watch(x)
        along = tf.reduce_sum(slope(x) * direction)
    exact = tape.gradient(along, x).numpy()
    step = 1e-2
    estimate = (slope(x + step * direction) - slope(x - step * direction)).numpy() / (2 * step)
    assert np.abs(exact).max() > 1e-3
    np.testing.assert_allclose(exact, estimate, atol=2e-3 * np.abs(exact).max() + 1e-4)
