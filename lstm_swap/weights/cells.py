"""The definitions of LSTM, GRU and SimpleRNN, as the software that each layout comes from states them.

Each layout is read by the equations of the software that defines it: Keras's for standard layers, NVIDIA's for `cudnn`
and `fused`. h and c are the states, x_t the input of a time step, s the recurrent activation, a the activation, * the
elementwise product.

Keras LSTM (`keras.layers.LSTMCell`), the columns of W, U, b being those of i, f, g, o::

    i = s(x_t W_i + h U_i + b_i)    f = s(x_t W_f + h U_f + b_f)    g = a(x_t W_g + h U_g + b_g)
    o = s(x_t W_o + h U_o + b_o)    c' = f * c + i * g              h' = o * a(c')

Keras GRU (`keras.layers.GRUCell`), columns z, r, n, with two biases b and d where `reset_after`::

    z = s(x_t W_z + h U_z + b_z + d_z)              r = s(x_t W_r + h U_r + b_r + d_r)
    n = a(x_t W_n + b_n + r * (h U_n + d_n))        with reset_after
    n = a(x_t W_n + b_n + (r * h) U_n)              without (one bias; also Keras 1)
    h' = z * h + (1 - z) * n

Keras SimpleRNN: h' = a(x_t W + h U + b).

cuDNN LSTM and GRU (cuDNN API, cudnnRNNMode_t), matrices W_g (u, in) and R_g (u, u) on the left of column vectors::

    i = sigm(W_i x + R_i h + bW_i + bR_i), f and o likewise, g = tanh(W_g x + R_g h + bW_g + bR_g)
    c' = f * c + i * g                              h' = o * tanh(c')

    r = sigm(W_r x + R_r h + bW_r + bR_r)           z = sigm(W_z x + R_z h + bW_z + bR_z)
    n = tanh(W_n x + r * (R_n h + bR_n) + bW_n)     h' = (1 - z) * n + z * h
"""

from __future__ import annotations

import numpy as np

from lstm_swap.weights.activations import Floats, activation_function
from lstm_swap.weights.products import dot, dot_rows
from lstm_swap.weights.recurrence import Array, Cell, Recurrence, States, expect_shapes, functions, split_gates

# -- Keras 2 and 3: one kernel whose columns are the gates --------------------------------------------------------


def lstm_standard(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    u, inputs = spec.units, x.shape[2]
    expect_shapes(arrays, [(inputs, 4 * u), (u, 4 * u), (4 * u,)][: 2 + spec.use_bias])
    s, a = functions(spec)
    recurrent = arrays[1]
    projected = dot(x, arrays[0])
    if spec.use_bias:
        projected += arrays[2].astype(np.float64)

    def step(t: int, states: States) -> States:
        h, c = states
        i, f, g, o = split_gates(projected[:, t] + dot(h, recurrent), 4)
        c = s(f) * c + s(i) * a(g)
        return [s(o) * a(c), c]

    return Cell(step, (len(x), u), 2)


def gru_standard(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    u, inputs = spec.units, x.shape[2]
    bias_shape = (2, 3 * u) if spec.reset_after else (3 * u,)
    expect_shapes(arrays, [(inputs, 3 * u), (u, 3 * u), bias_shape][: 2 + spec.use_bias])
    s, a = functions(spec)
    recurrent = arrays[1]
    bias = arrays[2].astype(np.float64).reshape(-1, 3 * u) if spec.use_bias else np.zeros((2, 3 * u))
    projected = dot(x, arrays[0]) + bias[0]

    def reset_after(t: int, states: States) -> States:
        (h,) = states
        xz, xr, xn = split_gates(projected[:, t], 3)
        hz, hr, hn = split_gates(dot(h, recurrent) + bias[1], 3)
        z = s(xz + hz)
        return [z * h + (1.0 - z) * a(xn + s(xr + hr) * hn)]

    def reset_before(t: int, states: States) -> States:
        (h,) = states
        xz, xr, xn = split_gates(projected[:, t], 3)
        hz, hr = split_gates(dot(h, recurrent[:, : 2 * u]), 2)
        z, r = s(xz + hz), s(xr + hr)
        return [z * h + (1.0 - z) * a(xn + dot(r * h, recurrent[:, 2 * u :]))]

    return Cell(reset_after if spec.reset_after else reset_before, (len(x), u), 1)


def simple_rnn(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    u, inputs = spec.units, x.shape[2]
    expect_shapes(arrays, [(inputs, u), (u, u), (u,)][: 2 + spec.use_bias])
    _, a = functions(spec)
    projected = dot(x, arrays[0])
    if spec.use_bias:
        projected += arrays[2].astype(np.float64)
    return Cell(lambda t, states: [a(projected[:, t] + dot(states[0], arrays[1]))], (len(x), u), 1)


# -- cuDNN: matrices on the left, two biases, tanh and sigmoid ------------------------------------------------------


def lstm_cudnn(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    """CuDNNLSTM: gates i f g o; cuDNN reads the numbers of gate k, row by row, as a matrix (u, in)."""
    u, inputs = spec.units, x.shape[2]
    expect_shapes(arrays, [(inputs, 4 * u), (u, 4 * u), (8 * u,)])
    w = [arrays[0][:, k * u : (k + 1) * u].reshape(u, inputs) for k in range(4)]
    r = [arrays[1][:, k * u : (k + 1) * u] for k in range(4)]
    return _cudnn_lstm_equations(x, w, r, arrays[2][: 4 * u].astype(np.float64), arrays[2][4 * u :].astype(np.float64))


def lstm_fused(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    """FusedLSTM: rows are cuDNN's matrices one below the other; the second bias is zero."""
    u, inputs = spec.units, x.shape[2]
    expect_shapes(arrays, [(4 * u, inputs), (4 * u, u), (4 * u,)])
    w = [arrays[0][k * u : (k + 1) * u] for k in range(4)]
    r = [arrays[1][k * u : (k + 1) * u] for k in range(4)]
    return _cudnn_lstm_equations(x, w, r, arrays[2].astype(np.float64), np.zeros(4 * u))


def _cudnn_lstm_equations(x: Floats, w: list[Array], r: list[Array], bw: Floats, br: Floats) -> Cell:
    u = len(r[0])
    projected = [dot_rows(x, matrix) + b for matrix, b in zip(w, split_gates(bw, 4), strict=True)]
    biases = split_gates(br, 4)
    sigmoid = activation_function("sigmoid")

    def step(t: int, states: States) -> States:
        h, c = states
        i, f, g, o = (projected[k][:, t] + dot_rows(h, r[k]) + biases[k] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return [sigmoid(o) * np.tanh(c), c]

    return Cell(step, (len(x), u), 2)


def gru_cudnn(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    """CuDNNGRU: blocks z r n, each read row by row as a matrix (u, in); bias (6u,) in the same order, twice."""
    u, inputs = spec.units, x.shape[2]
    expect_shapes(arrays, [(inputs, 3 * u), (u, 3 * u), (6 * u,)])
    place = {"z": 0, "r": 1, "n": 2}
    w = {g: arrays[0][:, k * u : (k + 1) * u].reshape(u, inputs) for g, k in place.items()}
    r = {g: arrays[1][:, k * u : (k + 1) * u] for g, k in place.items()}
    return _cudnn_gru_equations(x, w, r, arrays[2], place)


def gru_fused(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    """FusedGRU: cuDNN's matrices r z n one below the other; bias (6u,) in the same order, twice."""
    u, inputs = spec.units, x.shape[2]
    expect_shapes(arrays, [(3 * u, inputs), (3 * u, u), (6 * u,)])
    place = {"r": 0, "z": 1, "n": 2}
    w = {g: arrays[0][k * u : (k + 1) * u] for g, k in place.items()}
    r = {g: arrays[1][k * u : (k + 1) * u] for g, k in place.items()}
    return _cudnn_gru_equations(x, w, r, arrays[2], place)


def _cudnn_gru_equations(
    x: Floats, w: dict[str, Array], r: dict[str, Array], bias: Array, place: dict[str, int]
) -> Cell:
    u = len(bias) // 6
    halves = bias.astype(np.float64).reshape(2, 3, u)
    bw, br = ({g: half[k] for g, k in place.items()} for half in halves)
    projected = {g: dot_rows(x, w[g]) + bw[g] for g in place}
    sigmoid = activation_function("sigmoid")

    def step(t: int, states: States) -> States:
        (h,) = states
        rh = {g: dot_rows(h, r[g]) + br[g] for g in place}
        reset = sigmoid(projected["r"][:, t] + rh["r"])
        update = sigmoid(projected["z"][:, t] + rh["z"])
        new = np.tanh(projected["n"][:, t] + reset * rh["n"])
        return [(1.0 - update) * new + update * h]

    return Cell(step, (len(x), u), 1)


# -- Keras 1: W, U, b an array a gate -------------------------------------------------------------------------------


def lstm_keras1(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    """Keras 1.2 `LSTM` with consume_less "cpu" or "mem": arrays of the gates i, c, f, o."""
    u, inputs = spec.units, x.shape[2]
    expect_shapes(arrays, [(inputs, u), (u, u), (u,)] * 4)
    s, a = functions(spec)
    projected = [dot(x, arrays[3 * k]) + arrays[3 * k + 2].astype(np.float64) for k in range(4)]

    def step(t: int, states: States) -> States:
        h, c = states
        i, g, f, o = (projected[k][:, t] + dot(h, arrays[3 * k + 1]) for k in range(4))
        c = s(f) * c + s(i) * a(g)
        return [s(o) * a(c), c]

    return Cell(step, (len(x), u), 2)


def gru_keras1(spec: Recurrence, arrays: list[Array], x: Floats) -> Cell:
    """Keras 1.2 `GRU`: arrays of z, r, h; the reset gate acts before the product."""
    u, inputs = spec.units, x.shape[2]
    expect_shapes(arrays, [(inputs, u), (u, u), (u,)] * 3)
    s, a = functions(spec)
    xz, xr, xn = (dot(x, arrays[3 * k]) + arrays[3 * k + 2].astype(np.float64) for k in range(3))

    def step(t: int, states: States) -> States:
        (h,) = states
        z = s(xz[:, t] + dot(h, arrays[1]))
        r = s(xr[:, t] + dot(h, arrays[4]))
        return [z * h + (1.0 - z) * a(xn[:, t] + dot(r * h, arrays[7]))]

    return Cell(step, (len(x), u), 1)
