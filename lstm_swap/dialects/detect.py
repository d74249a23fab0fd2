"""Which Keras wrote this architecture: by its version, else by its spelling."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import build_tree
from lstm_swap.dialects.context import version_numbers

#: Settings that only one of the two has. `input_dim` of Dense and the like is in both.
_KERAS1_KEYS = frozenset(
    (
        "init inner_init inner_activation forget_bias_init consume_less W_regularizer U_regularizer "
        "b_regularizer W_constraint b_constraint dropout_W dropout_U nb_filter nb_row nb_col filter_length "
        "border_mode subsample subsample_length pool_length dim_ordering input_dtype concat_axis dot_axes p"
    ).split()
)
_KERAS2_KEYS = frozenset(["batch_input_shape", "time_major", "implementation", "ragged", "input_length"])
_KERAS3_KEYS = frozenset(["batch_shape", "zero_output_for_mask"])


def detect(entry: dict[str, Any], keras_version: str | None) -> str:
    """The dialect of an architecture: "keras1", "keras2" or "keras3".

    Args:
        entry: the architecture; keras_version: as the file states it, None where it does not.

    tf.keras 2.13 to 2.15 marks layers with `module` and `registered_name` as Keras 3 does; the settings tell.
    """
    numbers = version_numbers(keras_version)
    if numbers:
        return f"keras{min(max(numbers[0], 1), 3)}"
    marked = False
    for node in build_tree(entry).walk():
        config = node.config
        if isinstance(node.entry.get("config"), list) and any(
            isinstance(e, dict) and "inbound_nodes" in e for e in node.entry["config"]
        ):
            return "keras2"
        if _KERAS1_KEYS & config.keys() or node.class_name in ("Merge", "Convolution1D", "Convolution2D"):
            return "keras1"
        if _KERAS3_KEYS & config.keys() and "batch_input_shape" not in config:
            return "keras3"
        if _KERAS2_KEYS & config.keys():
            return "keras2"
        policy = config.get("dtype")
        if isinstance(policy, dict):
            return "keras3" if policy.get("class_name") == "DTypePolicy" else "keras2"
        if any(isinstance(call, dict) and "args" in call for call in node.entry.get("inbound_nodes") or []):
            return "keras3"
        marked = marked or "registered_name" in node.entry
    return "keras3" if marked else "keras2"
