"""Normalization layers that learned their statistics, in HDF5 files for Keras 3.

Keras 3 uses the statistics in `mean` and `variance` of such a layer only after `finalize_state`, which reading an HDF5
file does not call (keras/src/legacy/saving/legacy_h5_format.py; Keras 2 and `.keras` files do): the layer would pass
its input through, without a word. Stated in the settings they are used at once; a float32 is exact there.
"""

from __future__ import annotations

from lstm_swap.architecture import Change, Node


def state_statistics(root: Node) -> list[Change]:
    """Move the statistics of every adapted Normalization from its arrays to its settings, in place."""
    changes = []
    for node in root.walk():
        if node.class_name != "Normalization" or len(node.arrays) != 3 or node.config.get("mean") is not None:
            continue
        mean, variance = (array.read() for array in node.arrays[:2])
        node.config["mean"], node.config["variance"] = mean.tolist(), variance.tolist()
        node.arrays, node.edits = [], []
        message = "its mean and variance stand in the settings now: as weights of an HDF5 file Keras 3 ignores them"
        changes.append(Change(node.path, "mean", None, f"{mean.size} numbers", "report", message))
    return changes
