"""Keras 1's Merge: every mode in a graph, and branches at the head of a Sequential."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap.architecture import build_tree
from lstm_swap.dialects import keras1, keras2
from lstm_swap.dialects.keras1_merge import flattened_layers
from lstm_swap.errors import UnsupportedLayerError
from tests.dialect_tools import (
    assert_same,
    converted,
    keras1_sequential,
    layer,
    merge_entry,
    node_of,
    randomised,
    write_keras1,
)
from tests.test_keras1 import DENSE

MERGES: dict[str, tuple[dict[str, Any], Callable[[Any, Any], Any]]] = {
    "sum": ({"mode": "sum"}, lambda L, t: L.Add()(t)),
    "mul": ({"mode": "mul"}, lambda L, t: L.Multiply()(t)),
    "ave": ({"mode": "ave"}, lambda L, t: L.Average()(t)),
    "max": ({"mode": "max"}, lambda L, t: L.Maximum()(t)),
    "concat": ({"mode": "concat", "concat_axis": 1}, lambda L, t: L.Concatenate(axis=1)(t)),
    "dot": ({"mode": "dot", "dot_axes": [1, 1]}, lambda L, t: L.Dot(1)(t)),
    "dot of old spelling": ({"mode": "dot", "dot_axes": [[1], [1]]}, lambda L, t: L.Dot(1)(t)),
    "cos": ({"mode": "cos", "dot_axes": [1, 1]}, lambda L, t: L.Reshape((1, 1))(L.Dot(1, normalize=True)(t))),
}


def two_inputs(tfk: Any, merge: Callable[[Any, Any], Any]) -> Any:
    L = tfk.layers
    inputs = [tfk.Input((4,), name=n) for n in ("a", "b")]
    dense = [L.Dense(3, name=f"dense_{t.name}")(t) for t in inputs]
    return randomised(tfk.Model(inputs, merge(L, dense)))


@pytest.mark.parametrize("case", MERGES)
def test_merge_in_a_graph(case: str, tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """Every mode of Merge becomes the layer that it is called since Keras 2."""
    config, merge = MERGES[case]
    model = two_inputs(tfk, merge)
    dense = dict(DENSE, output_dim=3, activation="linear")
    layers = []
    for name in ("a", "b"):
        box = {"batch_input_shape": [None, 4], "input_dtype": "float32", "sparse": False, "name": name}
        layers.append({"class_name": "InputLayer", "config": box, "inbound_nodes": [], "name": name})
        inner = layer("Dense", f"dense_{name}", **dense)
        layers.append({**inner, "name": f"dense_{name}", "inbound_nodes": [[[name, 0, 0]]]})
    sources = [["dense_a", 0, 0], ["dense_b", 0, 0]]
    layers.append({**merge_entry(**config), "name": "merge_1", "inbound_nodes": [sources]})
    entry = {"class_name": "Model", "config": {
        "name": "model_1", "layers": layers, "input_layers": [["a", 0, 0], ["b", 0, 0]],
        "output_layers": [["merge_1", 0, 0]],
    }}  # fmt: skip
    weights = model.get_weights()
    path = write_keras1(tmp_path / "old.h5", entry, {"dense_a": weights[:2], "dense_b": weights[2:]})
    out, _ = converted(path, ".h5")
    x = [np.random.default_rng(i).normal(size=(3, 4)).astype("float32") for i in range(2)]
    assert_same(model, load_keras(out), x)


@pytest.mark.parametrize("case", ["sum", "concat", "cos"])
def test_merge_at_the_head_of_a_sequential(case: str, tfk: Any, load_keras: Any, tmp_path: Path) -> None:
    """A Sequential with branches becomes a functional model: all layers in one list, an input for each branch."""
    config, merge = MERGES[case]
    model = two_inputs(tfk, merge)
    head = tfk.layers.Dense(2, name="head")
    model = randomised(tfk.Model(model.inputs, head(model.output)))
    dense = dict(DENSE, output_dim=3, activation="linear", batch_input_shape=[None, 4], input_dtype="float32")
    branches = [keras1_sequential(layer("Dense", f"dense_{n}", **dense)) for n in "ab"]
    outer = layer("Dense", "head", **dict(DENSE, output_dim=2, activation="linear"))
    entry = keras1_sequential(merge_entry(layers=branches, **config), outer)
    weights = model.get_weights()
    arrays = {"dense_a": weights[:2], "dense_b": weights[2:4], "head": weights[4:]}
    out, report = converted(write_keras1(tmp_path / "old.h5", entry, arrays), ".h5")
    assert any("Merge at its head" in change.message for change in report.changes)
    x = [np.random.default_rng(i).normal(size=(3, 4)).astype("float32") for i in range(2)]
    assert_same(model, load_keras(out), x)


def test_branches_within_branches_and_one_branch_twice(tfk: Any) -> None:
    """A Merge inside a branch is unfolded too; a branch that stands in two places is one."""
    dense = dict(DENSE, output_dim=3, activation="linear", batch_input_shape=[None, 4], input_dtype="float32")
    a, b = (keras1_sequential(layer("Dense", f"dense_{n}", **dense)) for n in "ab")
    inner = keras1_sequential(merge_entry("merge_1", layers=[a, b]), layer("Activation", "act", activation="relu"))
    entry = keras1_sequential(merge_entry("merge_2", layers=[inner, a], mode="concat"))
    entry = json.loads(json.dumps(entry))
    root = build_tree(entry)
    changes = keras1.to_keras2(root, theano=False) + keras2.to_keras3(root, version="1.2.2")
    assert changes
    names = [child.name for child in root.children]
    assert names == ["dense_a_input", "dense_a", "dense_b_input", "dense_b", "merge_1", "act", "merge_2"]
    assert [e["class_name"] for e in entry["config"]["layers"]] == [
        "InputLayer", "Dense", "InputLayer", "Dense", "Add", "Activation", "Concatenate",
    ]  # fmt: skip
    assert entry["config"]["layers"][-1]["inbound_nodes"] == [[["act", 0, 0, {}], ["dense_a", 0, 0, {}]]]


def test_merge_with_a_function_becomes_a_lambda() -> None:
    """The code of a Lambda mode is carried along and not read."""
    code = ["not even code", None, None]
    root = build_tree(
        {"class_name": "Model", "config": {
            "name": "m", "input_layers": [["a", 0, 0]], "output_layers": [["merge_1", 0, 0]],
            "layers": [
                {"class_name": "InputLayer", "name": "a", "inbound_nodes": [],
                 "config": {"name": "a", "batch_input_shape": [None, 4], "input_dtype": "float32"}},
                {**merge_entry(mode=code, mode_type="lambda", output_shape=[4]), "name": "merge_1",
                 "inbound_nodes": [[["a", 0, 0], ["a", 0, 0]]]},
            ]}}
    )  # fmt: skip
    keras1.to_keras2(root, theano=False)
    merged = node_of(root, "merge_1")
    assert merged.class_name == "Lambda"
    assert merged.config["function"] == code
    assert merged.config["output_shape"] == [4]


def test_cos_of_sequences_is_refused() -> None:
    """Merge(mode="cos") of more than vectors computed no cosine, and no later layer computes it."""
    a = keras1_sequential(layer("Activation", "x", activation="relu", batch_input_shape=[None, 3, 4]))
    b = keras1_sequential(layer("Activation", "y", activation="relu", batch_input_shape=[None, 3, 4]))
    entry = keras1_sequential(merge_entry(layers=[a, b], mode="cos", dot_axes=[2, 2]))
    with pytest.raises(UnsupportedLayerError, match=r"merge_1.*dot_axes"):
        keras1.to_keras2(build_tree(entry), theano=False)


def test_saved_layers_of_a_sequential_with_branches() -> None:
    """Keras 1 saves the layers of the branches one by one, before those behind the Merge, and a branch only once."""
    dense = dict(DENSE, output_dim=3, batch_input_shape=[None, 4])
    a, b = (keras1_sequential(layer("Dense", f"dense_{n}", **dense), layer("Activation", f"act_{n}")) for n in "ab")
    inner = keras1_sequential(merge_entry("merge_1", layers=[a, b]), layer("Dense", "dense_c", **dense))
    entry = json.loads(
        json.dumps(keras1_sequential(merge_entry("merge_2", layers=[inner, b, b]), layer("Flatten", "f")))
    )
    names = [node.name for node in flattened_layers(build_tree(entry))]
    assert names == ["dense_a", "act_a", "dense_b", "act_b", "dense_c", "dense_b", "act_b", "f"]
    plain = keras1_sequential(layer("Dense", "d", **dense), layer("Flatten", "f"))
    assert [node.name for node in flattened_layers(build_tree(plain))] == ["d", "f"]
