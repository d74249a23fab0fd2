"""What can be known of a weights-only file: the recurrent layers that shapes and names give away.

A weights file has arrays and names but no settings. Three consecutive arrays (in, nu), (u, nu) and a bias tell
the layer and its layout by the bias alone: LSTM 4u, CuDNNLSTM 8u; GRU 3u (reset_after False) or (2, 3u),
CuDNNGRU 6u. Keras 1 keeps one array a gate: 12 for an LSTM, 9 for a GRU.
"""

from __future__ import annotations

import re

from lstm_swap.architecture import Array, Node
from lstm_swap.formats.model_file import ModelFile

_KERAS1_GATE = re.compile(r"_(W|U|b)_([icfozrh])(_\d+)?(:0)?$")


def guess_layers(model: ModelFile) -> None:
    """Put a node for each recognisable recurrent layer below its group, with its arrays; the rest stays put."""
    for group in model.root.children:
        _guess_group(group, model.dialect)


def guess_at(node: Node) -> None:
    """Where the node's arrays are those of one recurrent layer, say so in its entry (names are not asked)."""
    found = _layer_at(node.arrays, 0, named=False) if len(node.arrays) == 3 else None
    if found:
        node.entry["class_name"] = found[0]
        node.entry["config"].update(_settings(*found[::2]))


def _guess_group(group: Node, dialect: str) -> None:
    arrays = group.arrays
    pieces: list[tuple[str, str, list[Array]]] = []
    i = 0
    while i < len(arrays):
        found = _keras1_at(arrays, i) if dialect == "keras1" else None
        found = found or _layer_at(arrays, i)
        if found is None:
            pieces.append(("", "", [arrays[i]]))
            i += 1
        else:
            pieces.append(found)
            i += len(found[2])
    if not any(class_name for class_name, _, _ in pieces):
        return
    group.arrays = []
    whole = len(pieces) == 1
    used: dict[str, int] = {}
    for class_name, name, own in pieces:
        if whole:
            name = group.name
        used[name] = used.get(name, 0) + 1
        shown = name if used[name] == 1 else f"{name}#{used[name]}"
        path = group.name if whole else f"{group.name}/{shown}"
        node = Node({"class_name": class_name, "config": _settings(class_name, own)}, name, path, "item", group)
        node.arrays = own
        group.children.append(node)


def _settings(class_name: str, arrays: list[Array]) -> dict[str, object]:
    """The settings that the arrays prove."""
    config: dict[str, object] = {}
    if not class_name:
        return config
    config["units"] = arrays[1].shape[0]
    config["use_bias"] = True
    if class_name == "GRU" and len(arrays) == 3:
        config["reset_after"] = len(arrays[2].shape) == 2
    elif class_name == "GRU":
        config["reset_after"] = False
    return config


def _stem(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return [p for p in parts if not re.fullmatch(r"(lstm|gru|simple_rnn)_cell(_\d+)?", p)] or parts


def _layer_at(arrays: list[Array], i: int, named: bool = True) -> tuple[str, str, list[Array]] | None:
    """A recurrent layer whose kernel is arrays[i]; None where that is not one."""
    own = arrays[i : i + 3]
    if len(own) < 3 or any(len(a.shape) != 2 for a in own[:2]):
        return None
    (_, width), (units, again), bias = own[0].shape, own[1].shape, own[2].shape
    names = [a.name.split("/")[-1] for a in own]
    if width != again or units == 0 or (named and not names[1].startswith("recurrent_kernel")):
        return None
    classes = {
        (4 * units, (4 * units,)): "LSTM",
        (4 * units, (8 * units,)): "CuDNNLSTM",
        (3 * units, (3 * units,)): "GRU",
        (3 * units, (2, 3 * units)): "GRU",
        (3 * units, (6 * units,)): "CuDNNGRU",
    }
    class_name = classes.get((width, bias))
    if class_name is None:
        return None
    return class_name, (_stem(own[0].name) or ["?"])[-1], own


def _keras1_at(arrays: list[Array], i: int) -> tuple[str, str, list[Array]] | None:
    for class_name, gates in (("LSTM", "icfo"), ("GRU", "zrh")):
        own = arrays[i : i + 3 * len(gates)]
        marks = [_KERAS1_GATE.search(a.name) for a in own]
        wanted = [(part, gate) for gate in gates for part in "WUb"]
        if len(own) == len(wanted) and [(m[1], m[2]) for m in marks if m] == wanted:
            name = own[0].name.split("/")[-1]
            return class_name, _KERAS1_GATE.sub("", name), own
    return None
