"""How a fused layer is run on the device that is there, and what it shows at steps that a mask leaves out.

While training the choice is made in Python, when the layer is called or traced: a kernel for an NVIDIA GPU where the
current device is one (of a CUDA build of TensorFlow), a kernel for the CPU elsewhere. At inference inside a
`tf.function` both are put into the graph and the device chooses when it runs, so that a SavedModel exported on a
machine with a GPU runs on one without, and the other way round. A gradient through that choice would end the process
(TensorFlow differentiates both branches, and cuDNN's op has no gradient unless it trains), so at inference the gradient
is our own: it runs the layer again, as training would, and differentiates that. Which kernel of a device it is,
`choice` says.

A SavedModel must not be moved to a machine whose GPU is not NVIDIA's: there TensorFlow's op CudnnRNNV3 is missing, or
(ROCm) reads the weights in another order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from lstm_swap.layers import block, choice, cudnn, network, portable, scan
from lstm_swap.layers.network import Network

#: Takes the mask, or None, and tensors; closes over none, so that it can become a function of a graph. Some also take
#: `is_training`.
Kernel = Callable[..., list[Any]]


def recurrent(
    net: Network,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    mask: Any | None,
    *,
    training: bool,
    go_backwards: bool = False,
    zero_output_for_mask: bool = False,
    kernels: Mapping[str, str] | None = None,
) -> tuple[list[Any], list[Any]]:
    """Run an LSTM or GRU over time, with `keras.layers.RNN`'s rules for masks.

    Args:
        net: the layers and directions.
        x: (batch, time, features).
        states: h and c, or h, of each layer and direction, each (batch, units), of x's dtype.
        weights: kernel, recurrent_kernel, bias of each, in the fused layout, of x's dtype.
        mask: (batch, time) bool, True where a step counts, in the order of x; any pattern. Or None.
        training: choose the kernel now, and keep what the gradient needs.
        go_backwards: last step first; the outputs come in the order of processing.
        zero_output_for_mask: a step that does not count shows zeros, not the output before it.
        kernels: what was chosen for this layer; see `choice`.

    Returns:
        The last layer's output in each direction, (batch, time, units) in the order of the input or the last one
        (batch, units); and the last states. Before the first step that counts the output is zeros, whatever the initial
        state; the states keep their initial values.
    """
    if go_backwards:
        x = tf.reverse(x, (1,))
        mask = None if mask is None else tf.reverse(mask, (1,))
    tensors = (x, *states, *weights)
    case = choice.Case(net, (*x.shape[:2], x.shape[2], states[0].shape[1]), x.dtype.name, mask is not None)
    on_cpu, on_gpu = (_kernel(device, case, kernels or {}) for device in choice.DEVICES)
    if training:
        results = (on_gpu if current_device_has_cudnn() else on_cpu)(mask, *tensors, is_training=True)
    else:
        is_block = choice.choose("cpu", "inference", case, kernels or {}, eager=False) == "block"
        # XLA has no such op, when the layer is compiled as part of something else.
        elsewhere = _kernel("cpu", case, {"cpu_inference": "loop"}) if is_block else on_cpu
        results = _infer(on_cpu, on_gpu, elsewhere, mask, tensors)
    outputs, last = net.outputs(results)
    if mask is None:
        return outputs, last
    return [
        _show(output, mask, backward, net.return_sequences, zero_output_for_mask)
        for output, backward in zip(outputs, (False, True), strict=False)
    ], last


def _show(output: Any, mask: Any, backward: bool, return_sequences: bool, zero_output_for_mask: bool) -> Any:
    """The output with zeros before the first step that counts, or wherever one does not."""
    shown = mask if zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32), axis=1, reverse=backward) > 0
    last_step = shown[:, :1] if backward else shown[:, -1:]
    return tf.where(shown[:, :, tf.newaxis] if return_sequences else last_step, output, tf.zeros_like(output))


def _kernel(device: str, case: choice.Case, kernels: Mapping[str, str]) -> Kernel:
    """The kernel for a device, of which training may have another than inference."""

    def run(mask: Any | None, *tensors: Any, is_training: bool) -> list[Any]:
        eager = tf.executing_eagerly()
        name = choice.choose(device, choice.JOBS[is_training], case, kernels, eager=eager)
        if eager and device == "cpu":  # a loop of ops called one by one takes up to 39 times as long
            function = _eager_function(name, case.network, case.shape[2:], case.dtype, mask is not None, is_training)
            return list(function(*tensors) if mask is None else function(mask, *tensors))
        return runner(device, name)(case.network, mask, tensors, is_training)

    return run


@functools.cache
def _eager_function(
    name: str, net: Network, _sizes: tuple[int, int], _dtype: str, masked: bool, is_training: bool
) -> Callable[..., Any]:
    """A kernel on the CPU as a function, one for layers of these sizes, so that only batch and time may vary in it."""
    run = runner("cpu", name)

    def call(*tensors: Any) -> list[Any]:
        mask, rest = (tensors[0], tensors[1:]) if masked else (None, tensors)
        return run(net, mask, rest, is_training)

    return tf.function(call, autograph=False, reduce_retracing=True)  # type: ignore[no-any-return]


def runner(device: str, name: str) -> Callable[[Network, Any | None, Sequence[Any], bool], list[Any]]:
    """A kernel by its name: takes the network, the mask, tensors (x, states, weights) and whether it trains."""
    if name == "cudnn":
        return cudnn.run
    if name.startswith("xla"):
        single = functools.partial(scan.run, compiled=True, for_cpu=device == "cpu")
        return functools.partial(network.in_parts, single, choice.shares(name))
    return functools.partial(network.layer_by_layer, _SINGLE[name])


_SINGLE: dict[str, network.Single] = {
    "loop": portable.run,
    "scan": functools.partial(scan.run, compiled=False, for_cpu=True),
    "block": block.run,
    "cudnn_layers": cudnn.run_one,
}


def _infer(on_cpu: Kernel, on_gpu: Kernel, elsewhere: Kernel, mask: Any | None, tensors: Sequence[Any]) -> list[Any]:
    """Run one of the kernels, without keeping anything for a gradient that may never be asked for."""
    cudnn_here = current_device_has_cudnn()
    cpu_only = foreign_gpu_visible() or (tf.executing_eagerly() and not cudnn_here)
    cpu, gpu, other = (functools.partial(kernel, is_training=False) for kernel in (on_cpu, on_gpu, elsewhere))
    forward = cpu if cpu_only else _by_device(cpu, gpu, cpu if elsewhere is on_cpu else other)
    # Only the CPU's kernels have a gradient of their gradient, so that one is kept free of the choice where it can be.
    backward = _gradient_of(on_cpu, len(tensors))
    if cudnn_here and not cpu_only:
        backward = _differentiable_no_more(_by_device(backward, _gradient_of(on_gpu, len(tensors)), backward))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*tensors: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        # A tape must not look into what runs forward: it may be compiled, or have no gradient.
        still = [tf.stop_gradient(tensor) for tensor in tensors]
        return forward(mask, *still), lambda *upstream: backward(mask, *tensors, *upstream)

    results: list[Any] = run(*tensors)
    return results


def _by_device(on_cpu: Kernel, on_gpu: Kernel, elsewhere: Kernel) -> Kernel:
    """Eagerly: the GPU's kernel. In a graph: all, and the device that runs it chooses; XLA takes `elsewhere`."""
    if tf.executing_eagerly():
        return on_gpu

    def run(mask: Any | None, *tensors: Any) -> list[Any]:
        inputs = tensors if mask is None else (mask, *tensors)
        signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]

        def function(kernel: Kernel) -> Any:
            made = tf.function(functools.partial(kernel, None) if mask is None else kernel, autograph=False)
            return made.get_concrete_function(*signature)

        cpu, gpu = function(on_cpu), function(on_gpu)
        other = cpu if elsewhere is on_cpu else function(elsewhere)
        # What tf.__internal__.execute_fn_for_device does, but always with the op Case: for branches without variables
        # it takes StatelessCase, which TensorFlow does not replace by the branch that runs (measured: the portable
        # loop then takes a third longer).
        results: list[Any] = tf.raw_ops.Case(
            branch_index=tf.raw_ops.DeviceIndex(device_names=["CPU", "GPU"]),
            input=inputs,
            Tout=[result.dtype for result in cpu.outputs],
            branches=[cpu, gpu, other],  # the last for XLA and for every other device
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
