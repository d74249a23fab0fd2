"""FusedGRU: `keras.layers.GRU(reset_after=True)` with its arrays in cuDNN's order."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from lstm_swap.layers import views
from lstm_swap.layers.base import FIXED, FusedRNN


@keras.saving.register_keras_serializable(package="lstm_swap")
class FusedGRU(FusedRNN):
    """GRU that runs on cuDNN on an NVIDIA GPU, with any mask, and gives the same numbers everywhere else.

    It computes what `keras.layers.GRU` computes with tanh, sigmoid, a bias and reset_after=True: outputs, states,
    gradients, penalties, constraints and, from the same seeds, initial weights and dropout.

    Variables, in this order (`.keras`: layers/NAME/vars/0 to 2; nothing else of the layer is stored):

    - kernel (3u, features), recurrent_kernel (3u, u): u is the units, gates r z h by rows;
    - bias (6u,): r z h of the input, then r z h of the recurrence.

    Arguments, XLA and errors are those of `FusedLSTM`, without `unit_forget_bias`; initializers, regularizers and
    constraints act on (features, 3u), (u, 3u) and (2, 3u), gates z r h. `reset_after` is taken if True.
    """

    mode = "gru"
    gates = 3
    state_count = 1
    kernel_view = views.GRU_KERNEL
    fixed: ClassVar[dict[str, Any]] = {**FIXED, "reset_after": True}

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)

    def _add_bias(self, name: str) -> None:
        variable = self.add_weight(
            name=name,
            shape=(2 * self.gates * self.units,),
            initializer=views.initializer(views.GRU_BIAS, self.bias_initializer),
            regularizer=views.regularizer(views.GRU_BIAS, self.bias_regularizer),
            constraint=views.constraint(views.GRU_BIAS, self.bias_constraint),
        )
        setattr(self, name, variable)
