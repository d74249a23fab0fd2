"""Weights of recurrent layers: how each form stores them, and what they compute. Pure NumPy.

`layouts` rearranges arrays between forms, `reference` computes a layer from its definition in float64; the two
share no code, so that one can prove the other. `activations` names the functions that `reference` knows.
"""
