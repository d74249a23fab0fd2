"""What FusedLSTM and FusedGRU share: arguments, variables, states, masks, dropout, config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras import ops

from lstm_swap.layers import choice, views
from lstm_swap.layers.kernels import cuda_gpu_visible, recurrent
from lstm_swap.layers.network import Network

#: Arguments of the standard layers that cuDNN fixes, with the only value that it takes.
FIXED: dict[str, Any] = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "use_bias": True,
    "recurrent_dropout": 0.0,
    "unroll": False,
}

#: Arguments that the standard layers do not have, with their defaults.
EXTRAS: dict[str, Any] = {
    "num_layers": 1,
    "bidirectional": False,
    "merge_mode": "concat",
    "kernels": {},
    "parts": None,
}

MERGE_MODES = ("concat", "sum", "ave", "mul", None)


class FusedRNN(keras.layers.Layer):  # type: ignore[misc]
    """Base of the fused layers. Not for direct use; the arguments are described in `FusedLSTM`."""

    mode: ClassVar[str]  # of the kernel: "lstm" or "gru"
    gates: ClassVar[int]  # the kernels have gates * units rows
    state_count: ClassVar[int]
    kernel_view: ClassVar[views.View]
    fixed: ClassVar[dict[str, Any]] = FIXED

    def __init__(
        self,
        units: int,
        *,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        num_layers: int = 1,
        bidirectional: bool = False,
        merge_mode: str | None = "concat",
        kernels: Mapping[str, str] | None = None,
        parts: Sequence[Mapping[str, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._check_fixed(kwargs)
        for name, number in (("units", units), ("num_layers", num_layers)):
            if not isinstance(number, int) or number <= 0:
                raise ValueError(f"{type(self).__name__}: {name} must be a positive integer, not {number!r}")
        if merge_mode not in MERGE_MODES:
            raise ValueError(f"{type(self).__name__}: merge_mode must be one of {MERGE_MODES}, not {merge_mode!r}")
        if bidirectional and go_backwards:
            raise ValueError(f"{type(self).__name__}: a bidirectional layer runs both ways; drop go_backwards")
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.recurrent_regularizer = keras.regularizers.get(recurrent_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.recurrent_constraint = keras.constraints.get(recurrent_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.dropout = min(1.0, max(0.0, dropout))
        self.seed = seed
        # The standard layer makes a generator whether it drops or not. Making one here too draws the same numbers
        # from Python's generator, so that a model built after keras.utils.set_random_seed gets the same weights.
        seed_generator = keras.random.SeedGenerator(seed)
        if self.dropout > 0:
            self.seed_generator = seed_generator
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        # A Bidirectional sets this for its halves, whatever they say (keras/src/layers/rnn/bidirectional.py).
        self.zero_output_for_mask = return_sequences if bidirectional else zero_output_for_mask
        self.num_layers = num_layers
        self.bidirectional = bidirectional
        self.merge_mode = merge_mode
        self.kernels = choice.check(kernels)
        self.parts = None if parts is None else [dict(part) for part in parts]
        self.supports_masking = True
        # CudnnRNNV3 has no XLA kernel; without a GPU the portable loop compiles.
        self.supports_jit = not cuda_gpu_visible()
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.state_size = [units] * self.state_count * self.network.parts
        self.states: list[Any] | None = None
        self._batch_size: int | None = None

    def _check_fixed(self, kwargs: dict[str, Any]) -> None:
        """Take the arguments that have one allowed value out of `kwargs`; any other value is an error."""
        for name, allowed in self.fixed.items():
            value = kwargs.pop(name, allowed)
            if isinstance(allowed, str):  # a function, which Keras and TensorFlow have under the same name
                same = keras.activations.get(value) in [getattr(m, allowed) for m in (keras.activations, ops, tf)]
            else:
                same = value == allowed
            if not same:
                raise ValueError(
                    f"{type(self).__name__}: {name}={value!r} cannot run on cuDNN, which takes {allowed!r} only. "
                    f"Use keras.layers.{self.mode.upper()} for this layer."
                )

    @property
    def network(self) -> Network:
        return Network(self.mode, self.return_sequences, self.num_layers, self.bidirectional)

    # Variables

    def build(self, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        """Make kernel, recurrent_kernel and bias of each layer and direction, in this order; saved files rely on it."""
        if sequences_shape[-1] is None:
            raise ValueError(f"{self.name}: the last dimension of the input must be known, got {sequences_shape}")
        rows = self.gates * self.units
        for layer in range(self.num_layers):
            width = sequences_shape[-1] if layer == 0 else self.units * self.network.directions
            for suffix in ("", "_reverse")[: self.network.directions]:
                end = (f"_l{layer}" if layer else "") + suffix
                self._add_kernel("kernel", end, (rows, width), "kernel")
                self._add_kernel("recurrent_kernel", end, (rows, self.units), "recurrent")
                self._add_bias(f"bias{end}")
        if self.stateful and self.states is None:
            self._make_states(sequences_shape[0])
        elif self.stateful:
            self.reset_state()

    def _add_kernel(self, name: str, end: str, shape: tuple[int, int], role: str) -> None:
        view = self.kernel_view
        variable = self.add_weight(
            name=name + end,
            shape=shape,
            initializer=views.initializer(view, getattr(self, f"{role}_initializer")),
            regularizer=views.regularizer(view, getattr(self, f"{role}_regularizer")),
            constraint=views.constraint(view, getattr(self, f"{role}_constraint")),
        )
        setattr(self, name + end, variable)

    def _add_bias(self, name: str) -> None:
        """Make the bias of this name and set it as an attribute."""
        raise NotImplementedError

    @property
    def arrays(self) -> list[Any]:
        """kernel, recurrent_kernel, bias of each layer and direction, whether they train or not."""
        return [
            getattr(self, f"{name}{f'_l{layer}' if layer else ''}{suffix}")
            for layer in range(self.num_layers)
            for suffix in ("", "_reverse")[: self.network.directions]
            for name in ("kernel", "recurrent_kernel", "bias")
        ]

    # States

    def _make_states(self, batch_size: int | None) -> None:
        if batch_size is None:
            raise ValueError(
                f"{self.name}: a stateful layer needs a fixed batch size, because it keeps a state for each row. "
                "Give the input a batch_shape whose first number is known."
            )
        with keras.name_scope(self.name):
            states = [
                keras.Variable(value, trainable=False, dtype=self.variable_dtype, name="rnn_state")
                for value in self.get_initial_state(batch_size)
            ]
        # Not through Keras's __setattr__: as with the standard layer, states are no weights and are not saved.
        object.__setattr__(self, "states", states)
        self._batch_size = batch_size

    def get_initial_state(self, batch_size: Any) -> list[Any]:
        """Zeros, a tensor (batch_size, units) a state."""
        return [ops.zeros((batch_size, size), dtype=self.compute_dtype) for size in self.state_size]

    def reset_state(self) -> None:
        """Set the states of a stateful layer to zeros."""
        for state in self.states or []:
            state.assign(ops.zeros_like(state.value))

    def reset_states(self) -> None:
        """The same as `reset_state`, under its older name."""
        self.reset_state()

    def _starting_states(self, sequences: Any, initial_state: Any) -> list[Any]:
        if self.stateful:
            batch_size = sequences.shape[0]
            if None not in (batch_size, self._batch_size) and batch_size != self._batch_size:
                raise ValueError(
                    f"{self.name}: this stateful layer keeps {self._batch_size} states and got {batch_size} rows"
                )
        if initial_state is None:
            initial_state = self.states if self.stateful else self.get_initial_state(ops.shape(sequences)[0])
        if not isinstance(initial_state, (list, tuple)):
            initial_state = [initial_state]
        if len(initial_state) != len(self.state_size):
            raise ValueError(
                f"{self.name}: initial_state must have {len(self.state_size)} tensors, got {len(initial_state)}"
            )
        return [ops.cast(state, self.compute_dtype) for state in initial_state]

    # Computation

    def call(
        self,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool = False,
    ) -> Any:
        """Run over time.

        Args:
            sequences: (batch, time, features).
            initial_state: one tensor (batch, units) a state, as a list (for FusedGRU a single tensor will do); layer by
                layer, forward before backward.
            mask: (batch, time), True where a step counts. Any pattern.
            training: drop inputs; choose the kernel when traced, not when run.
        """
        sequences = ops.cast(sequences, self.compute_dtype)
        states = self._starting_states(sequences, initial_state)
        weights = [ops.cast(variable, self.compute_dtype) for variable in self.arrays]
        outputs, states = recurrent(
            self.network,
            self._drop_inputs(sequences, training),
            states,
            weights,
            _as_steps(mask),
            training=training,
            go_backwards=self.go_backwards,
            zero_output_for_mask=self.zero_output_for_mask,
            kernels=self.kernels,
        )
        output = self._merged(outputs)
        if self.stateful:
            for variable, state in zip(self.states or [], states, strict=True):
                variable.assign(state)
        if not self.return_state:
            return output
        return (*output, *states) if isinstance(output, list) else (output, *states)

    def _merged(self, outputs: list[Any]) -> Any:
        """The outputs of both directions as `keras.layers.Bidirectional` puts them together."""
        if not self.bidirectional:
            return outputs[0]
        if self.merge_mode is None:
            return outputs
        if self.merge_mode == "concat":
            return ops.concatenate(outputs, axis=-1)
        if self.merge_mode == "mul":
            return outputs[0] * outputs[1]
        total = outputs[0] + outputs[1]
        return total / 2 if self.merge_mode == "ave" else total

    def _drop_inputs(self, sequences: Any, training: bool) -> Any:
        """The same features of a row are dropped at every step, as the standard layer does it."""
        if self.dropout == 0.0:
            return sequences
        if not training:
            # The standard layer draws a mask at inference too and throws it away. The numbers that training draws
            # after a validation run are the same only if this layer moves its generator on as well.
            self.seed_generator.next()
            return sequences
        kept = keras.random.dropout(ops.ones_like(sequences[:, 0, :]), self.dropout, seed=self.seed_generator)
        return sequences * kept[:, None, :] if self.dropout < 1.0 else sequences

    def compute_mask(self, _: Any, mask: Any) -> Any:
        """The mask goes on with the sequence; what has no time axis has no mask."""
        if isinstance(mask, (list, tuple)):
            mask = mask[0]
        output_mask = mask if self.return_sequences else None
        masks = [output_mask] * self._output_count()
        if self.return_state:
            return [*masks, *([None] * len(self.state_size))]
        return masks if len(masks) > 1 else output_mask

    def _output_count(self) -> int:
        return 2 if self.bidirectional and self.merge_mode is None else 1

    def compute_output_shape(self, sequences_shape: Any, initial_state_shape: Any = None) -> Any:
        batch_size, time_steps = sequences_shape[:2]
        width = self.units * (2 if self.bidirectional and self.merge_mode == "concat" else 1)
        output = (batch_size, time_steps, width) if self.return_sequences else (batch_size, width)
        outputs = [output] * self._output_count()
        if self.return_state:
            return (*outputs, *((batch_size, size) for size in self.state_size))
        return outputs if len(outputs) > 1 else output

    def get_config(self) -> dict[str, Any]:
        """Every argument, the fixed ones too, so that the file says what it computes.

        Those that the standard layers do not have are left out where they are as usual.
        """
        return {
            **super().get_config(),
            "units": self.units,
            **self.fixed,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "recurrent_initializer": keras.initializers.serialize(self.recurrent_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "recurrent_regularizer": keras.regularizers.serialize(self.recurrent_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "recurrent_constraint": keras.constraints.serialize(self.recurrent_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
            "dropout": self.dropout,
            "seed": self.seed,
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "go_backwards": self.go_backwards,
            "stateful": self.stateful,
            "zero_output_for_mask": self.zero_output_for_mask,
            **{name: _plain(getattr(self, name)) for name, usual in EXTRAS.items() if getattr(self, name) != usual},
        }


def _as_steps(mask: Any) -> Any | None:
    """A mask as Keras hands it over, as bool (batch, time)."""
    if isinstance(mask, (list, tuple)):
        mask = mask[0]
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    return ops.squeeze(mask, -1) if len(mask.shape) == 3 else mask


def _plain(value: Any) -> Any:
    """Without the classes that Keras puts around the lists and dicts of a layer."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
