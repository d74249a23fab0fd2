"""Which kernel runs a fused layer, and what the layer shows at steps that a mask leaves out.

While training the choice is made in Python, when the layer is called or traced: cuDNN where the current device is an
NVIDIA GPU of a CUDA build of TensorFlow, the portable loop elsewhere. At inference inside a `tf.function` both are put
into the graph and the device chooses when it runs, so that a SavedModel exported on a machine with a GPU runs on one
without, and the other way round. A gradient through that choice would end the process (TensorFlow differentiates both
branches, and cuDNN's op has no gradient unless it trains), so at inference the gradient is our own: it runs the layer
again, as training would, and differentiates that.

A SavedModel must not be moved to a machine whose GPU is not NVIDIA's: there TensorFlow's op CudnnRNNV3 is missing, or
(ROCm) reads the weights in another order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lstm_swap.layers import cudnn, portable

#: Takes the mask, or None, and tensors; closes over none, so that it can become a function of a graph. Some also take
#: `is_training`.
Kernel = Callable[..., list[Any]]


def recurrent(
    mode: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    mask: Any | None,
    *,
    training: bool,
    return_sequences: bool,
    go_backwards: bool,
    zero_output_for_mask: bool,
) -> tuple[Any, list[Any]]:
    """Run an LSTM or GRU over time, with `keras.layers.RNN`'s rules for masks.

    Args:
        mode: "lstm" or "gru".
        x: (batch, time, features).
        states: [h, c] or [h], each (batch, units), of x's dtype.
        weights: kernel, recurrent_kernel, bias in the fused layout, of x's dtype.
        mask: (batch, time) bool, True where a step counts, in the order of x; any pattern. Or None.
        training: choose the kernel now, and keep what the gradient needs.
        return_sequences: the output of every step, not of the last one.
        go_backwards: last step first; the outputs come in the order of processing.
        zero_output_for_mask: a step that does not count shows zeros, not the output before it.

    Returns:
        The output, (batch, time, units) or the last one (batch, units), and the last states. Before the first step
        that counts the output is zeros, whatever the initial state; the states keep their initial values.
    """
    if go_backwards:
        x = tf.reverse(x, (1,))
        mask = None if mask is None else tf.reverse(mask, (1,))

    def with_portable(mask: Any, x: Any, *rest: Any, is_training: bool) -> list[Any]:
        return portable.run(mode, x, rest[:-3], rest[-3:], mask, return_sequences, is_training)

    def with_cudnn(mask: Any, x: Any, *rest: Any, is_training: bool) -> list[Any]:
        return cudnn.run(mode, x, rest[:-3], rest[-3:], mask, return_sequences, is_training)

    tensors = (x, *states, *weights)
    if training:
        kernel = with_cudnn if current_device_has_cudnn() else with_portable
        results = kernel(mask, *tensors, is_training=True)
    else:
        results = _infer(with_portable, with_cudnn, mask, tensors)

    last = results[-len(states) :]
    output = results[0]  # h of every step, or the last
    if mask is None:
        return output, last
    shown = mask if zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
    shown = shown[:, :, tf.newaxis] if return_sequences else shown[:, -1:]
    return tf.where(shown, output, tf.zeros_like(output)), last


def _infer(with_portable: Kernel, with_cudnn: Kernel, mask: Any | None, tensors: Sequence[Any]) -> list[Any]:
    """Run one of the kernels, without keeping anything for a gradient that may never be asked for."""
    cudnn_here = current_device_has_cudnn()
    if foreign_gpu_visible() or (tf.executing_eagerly() and not cudnn_here):
        return with_portable(mask, *tensors, is_training=False)

    forward = _by_device(*(functools.partial(kernel, is_training=False) for kernel in (with_portable, with_cudnn)))
    # Only the portable loop has a gradient of its gradient, so that one is kept free of the choice where it can be.
    backward = _gradient_of(with_portable, len(tensors))
    if cudnn_here:
        backward = _differentiable_no_more(_by_device(backward, _gradient_of(with_cudnn, len(tensors))))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*tensors: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        return forward(mask, *tensors), lambda *upstream: backward(mask, *tensors, *upstream)

    results: list[Any] = run(*tensors)
    return results


def _by_device(on_cpu: Kernel, on_gpu: Kernel) -> Kernel:
    """Eagerly: the GPU's kernel. In a graph: both, and the device that runs it chooses."""
    if tf.executing_eagerly():
        return on_gpu

    def run(mask: Any | None, *tensors: Any) -> list[Any]:
        inputs = tensors if mask is None else (mask, *tensors)
        signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
        cpu, gpu = (
            tf.function(functools.partial(kernel, None) if mask is None else kernel, autograph=False)
            .get_concrete_function(*signature)
            for kernel in (on_cpu, on_gpu)
        )  # fmt: skip
        # What tf.__internal__.execute_fn_for_device does, but always with the op Case: for branches without variables
        # it takes StatelessCase, which TensorFlow does not replace by the branch that runs (measured: the portable
        # loop then takes a third longer).
        results: list[Any] = tf.raw_ops.Case(
            branch_index=tf.raw_ops.DeviceIndex(device_names=["CPU", "GPU"]),
            input=inputs,
            Tout=[result.dtype for result in cpu.outputs],
            branches=[cpu, gpu, cpu],  # the last for XLA and for every other device
            output_shapes=[result.shape for result in cpu.outputs],
        )
        return results

    return run


def _gradient_of(kernel: Kernel, count: int) -> Kernel:
    """The gradient of a kernel, as a kernel: takes its `count` tensors, then the gradients of its results.

    It runs the kernel again, so that inference need not keep anything.
    """

    def run(mask: Any | None, *tensors: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(tensors[:count])
            results = kernel(mask, *tensors[:count], is_training=True)
        gradients: list[Any] = tape.gradient(
            results, list(tensors[:count]), list(tensors[count:]), tf.UnconnectedGradients.ZERO
        )
        return gradients

    return run


def _differentiable_no_more(kernel: Kernel) -> Kernel:
    """The same kernel, whose gradient is an error that a program can catch."""

    def refuse(*_: Any) -> None:
        raise LookupError(
            "cuDNN has no gradient of its gradient. For second derivatives on a GPU use standard layers: "
            "lstm_swap.standardize(model, use_cudnn=False)."
        )

    def run(mask: Any | None, *tensors: Any) -> list[Any]:
        results: list[Any] = tf.custom_gradient(lambda *tensors: (kernel(mask, *tensors), refuse))(*tensors)
        return results

    return run


def current_device_has_cudnn() -> bool:
    """Would an op that is made here and now run on an NVIDIA GPU of a CUDA build of TensorFlow?"""
    if not (is_cuda_build() and tf.config.list_logical_devices("GPU")):
        return False
    device = tf.zeros(()).device  # in a graph: what the enclosing tf.device scopes say, or nothing
    return tf.DeviceSpec.from_string(device).device_type in (None, "GPU")


def cuda_gpu_visible() -> bool:
    """Is an NVIDIA GPU visible to a CUDA build of TensorFlow? Takes no GPU memory."""
    return is_cuda_build() and bool(tf.config.get_visible_devices("GPU"))


def foreign_gpu_visible() -> bool:
    """Is there a device that TensorFlow calls GPU and that has no cuDNN (ROCm, DirectML, Metal)?"""
    return not is_cuda_build() and bool(tf.config.get_visible_devices("GPU"))


def is_cuda_build() -> bool:
    return bool(tf.sysconfig.get_build_info().get("is_cuda_build", False))
