"""The arrays of a fused layer, seen as those of the standard layer.

Initializers, regularizers and constraints are written for the standard layer's arrays: an orthogonal matrix of shape
(u, 4u), a norm along axis 0. A `View` says how to go from a fused array to the standard one and back, and the
functions below wrap each of the three so that it sees the standard array.

=================  =========================  ==================================
array              fused                      standard
=================  =========================  ==================================
LSTM kernels       (4u, n), rows i f c o      (n, 4u), columns i f c o
GRU kernels        (3u, n), rows r z h        (n, 3u), columns z r h
GRU bias           (6u,) r z h twice          (2, 3u) z r h
=================  =========================  ==================================

The LSTM's bias is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

Shape = Sequence[int]


@dataclass(frozen=True)
class View:
    """How one array goes from the fused layout to the standard one and back."""

    shape: Callable[[Shape], tuple[int, ...]]  # of the standard array, from that of the fused one
    to_standard: Callable[[Any], Any]
    to_fused: Callable[[Any], Any]


def _reset_update_swapped(array: Any, axis: int) -> Any:
    """Three equal blocks a b c along an axis, as b a c: r z h to z r h, and the same way back."""
    first, second, third = ops.split(ops.convert_to_tensor(array), 3, axis=axis)
    return ops.concatenate([second, first, third], axis=axis)


LSTM_KERNEL = View(
    shape=lambda shape: (shape[1], shape[0]),
    to_standard=ops.transpose,
    to_fused=ops.transpose,
)
GRU_KERNEL = View(
    shape=lambda shape: (shape[1], shape[0]),
    to_standard=lambda array: ops.transpose(_reset_update_swapped(array, axis=0)),
    to_fused=lambda array: _reset_update_swapped(ops.transpose(array), axis=0),
)
GRU_BIAS = View(
    shape=lambda shape: (2, shape[0] // 2),
    to_standard=lambda array: _reset_update_swapped(ops.reshape(array, (2, -1)), axis=1),
    to_fused=lambda array: ops.reshape(_reset_update_swapped(array, axis=1), (-1,)),
)


def initializer(view: View, standard: Callable[..., Any]) -> Callable[..., Any]:
    """An initializer of the fused array that draws what `standard` draws for the standard one."""

    def initialize(shape: Shape, **kwargs: Any) -> Any:
        return view.to_fused(standard(view.shape(shape), **kwargs))

    return initialize


def regularizer(view: View, standard: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """A penalty of the fused array that equals `standard`'s of the standard one. None stays None."""
    if standard is None:
        return None
    return _Penalty(view, standard)


class _Penalty(keras.regularizers.Regularizer):  # type: ignore[misc]
    """Keras 3.12 takes nothing else than a Regularizer; the layer's config states `standard`, not this."""

    def __init__(self, view: View, standard: Callable[[Any], Any]) -> None:
        self._view, self._standard = view, standard

    def __call__(self, array: Any) -> Any:
        return self._standard(self._view.to_standard(array))


def constraint(view: View, standard: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """A constraint of the fused array that does what `standard` does to the standard one. None stays None."""
    if standard is None:
        return None
    return lambda array: view.to_fused(standard(view.to_standard(array)))


def forget_gate_at_one(bias_initializer: Callable[..., Any], units: int) -> Callable[..., Any]:
    """The LSTM's bias with ones for the forget gate, drawn in the order in which `keras.layers.LSTM` draws it."""

    def initialize(_shape: Shape, **kwargs: Any) -> Any:
        return ops.concatenate(
            [
                bias_initializer((units,), **kwargs),
                keras.initializers.Ones()((units,), **kwargs),
                bias_initializer((units * 2,), **kwargs),
            ]
        )

    return initialize
