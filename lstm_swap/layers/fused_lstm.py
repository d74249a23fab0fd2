"""FusedLSTM: `keras.layers.LSTM` with its arrays in cuDNN's order."""

from __future__ import annotations

from typing import Any

import keras

from lstm_swap.layers import views
from lstm_swap.layers.base import FusedRNN


@keras.saving.register_keras_serializable(package="lstm_swap")
class FusedLSTM(FusedRNN):
    """LSTM that runs on cuDNN on an NVIDIA GPU, with any mask, and gives the same numbers everywhere else.

    It computes what `keras.layers.LSTM` computes with tanh, sigmoid and a bias: outputs, states, gradients, penalties,
    constraints and, from the same seeds, initial weights and dropout. So training goes on step for step.

    Variables, in this order (`.keras`: layers/NAME/vars/0 to 2; nothing else of the layer is stored):

    - kernel (4u, features), recurrent_kernel (4u, u), bias (4u,): u is the units, gates i f c o by rows. cuDNN's second
      bias set is zeros: a bias in two halves would learn at twice the rate.
    - then, for more layers and directions, the same three again: kernel_reverse, kernel_l1, kernel_l1_reverse and so
      on.

    XLA: where an NVIDIA GPU is visible the layer tells Keras that it cannot be compiled, because cuDNN's op has no XLA
    kernel; jit_compile="auto" then leaves the model uncompiled, and jit_compile=True does so with a warning.

    Args:
        units: width of output and states.
        kernel_initializer, recurrent_initializer, bias_initializer: of the standard layer's arrays (features, 4u),
            (u, 4u) and (4u,).
        unit_forget_bias: start the forget gate's bias at one.
        kernel_regularizer, recurrent_regularizer, bias_regularizer, activity_regularizer: penalties, of the standard
            layer's arrays.
        kernel_constraint, recurrent_constraint, bias_constraint: constraints, of the standard layer's arrays.
        dropout: rate at which input features are dropped while training, the same ones at every step of a row.
        seed: of dropout.
        return_sequences: the output of every step, (batch, time, units), not of the last one.
        return_state: also the last h and c, each (batch, units).
        go_backwards: last step first; outputs in the order of processing.
        stateful: start from the states where the batch before ended. Needs a fixed batch size.
        zero_output_for_mask: zeros at masked steps instead of the output before.
        num_layers: a stack of such layers, each reading the outputs of the one before. On a GPU one call of cuDNN.
            `dropout` drops inputs of the first, `go_backwards` turns its input, the last one gives the output, and
            states come layer by layer.
        bidirectional: each layer also runs from the last step to the first, as in `keras.layers.Bidirectional`, and the
            next layer reads both outputs side by side. On a GPU one call of cuDNN. Both ways see the same dropped
            inputs.
        merge_mode: of the last layer's outputs: "concat", "sum", "ave", "mul", or None for a list of both.
        kernels: what runs the layer, by device and job: {"gpu_inference": "xla"}; see `lstm_swap.layers.choice`. What
            is not given comes from measured tables. `lstm_swap.optimize(model, sample=x)` fills it in.
        parts: the names of the layers that this one was put together from; `lstm_swap.standardize` reads them.
        **kwargs: name, trainable, dtype (float32, float64, float16, bfloat16, mixed_float16, mixed_bfloat16).
            `activation`, `recurrent_activation`, `use_bias`, `recurrent_dropout` and `unroll` are taken with the one
            value that cuDNN has: "tanh", "sigmoid", True, 0 and False.

    Raises:
        ValueError: an argument that cuDNN cannot honour.
    """

    mode = "lstm"
    gates = 4
    state_count = 2
    kernel_view = views.LSTM_KERNEL

    def __init__(self, units: int, *, unit_forget_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.unit_forget_bias = unit_forget_bias

    def _add_bias(self, name: str) -> None:
        initializer = self.bias_initializer
        if self.unit_forget_bias:
            initializer = views.forget_gate_at_one(initializer, self.units)
        variable = self.add_weight(
            name=name,
            shape=(self.gates * self.units,),
            initializer=initializer,
            regularizer=self.bias_regularizer,
            constraint=self.bias_constraint,
        )
        setattr(self, name, variable)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "unit_forget_bias": self.unit_forget_bias}
