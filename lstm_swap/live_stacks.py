"""Consecutive fused layers of a live model as one layer, which is one call of cuDNN, and back again.

Layers that follow one another, run alike and hand on nothing but their sequence become one `FusedLSTM` or `FusedGRU`
with `num_layers`; a `Bidirectional` becomes one with `bidirectional`. The variables are the same ones in the same
order, so values and optimizer slots move as they are. The new layer notes what the old ones were called (`parts`), and
`split` gives those names back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lstm_swap.errors import UnsupportedLayerError
from lstm_swap.live_tree import functional_class, to_numpy, walk

#: What may differ among the layers of a stack: what only the first or only the last of them has, or no computation.
_OF_ONE_LAYER = frozenset(
    """name seed return_sequences return_state activity_regularizer dropout go_backwards merge_mode kernels
    parts trainable""".split()
)


@dataclass(eq=False)
class Regroup:
    """A row of layers that gives way to another row with the same variables in the same order.

    make: makes the new row, not built yet. new: it, once made.
    """

    old: list[Any]
    make: Callable[[], list[Any]]
    new: list[Any] | None = None

    def made(self) -> list[Any]:
        if self.new is None:
            self.new = self.make()
        return self.new

    def variables(self) -> list[tuple[Any, Any]]:
        """Old and new variable, of every array; dropout's random numbers go on where they were."""
        rows = [[fused for layer in row for fused in fused_layers(layer)] for row in (self.old, self.made())]
        old_seed, new_seed = (getattr(row[0], "seed_generator", None) for row in rows)
        if old_seed is not None and new_seed is not None:
            new_seed.state.assign(to_numpy(old_seed.state))
        old, new = ([array for fused in row for array in fused.arrays] for row in rows)
        return list(zip(old, new, strict=True))


def fused_layers(layer: Any) -> list[Any]:
    """The fused layer itself, or the two inside a Bidirectional; none for any other layer."""
    import keras

    from lstm_swap.layers.base import FusedRNN

    if isinstance(layer, FusedRNN):
        return [layer]
    if type(layer) is keras.layers.Bidirectional:
        halves = [layer.forward_layer, layer.backward_layer]
        return halves if all(isinstance(half, FusedRNN) for half in halves) else []
    return []


# Merging


def merges(model: Any) -> list[Regroup]:
    """Every row of fused layers in the graphs of a model that can be one layer."""
    import keras

    models = [item for item in walk(model) if isinstance(item, (keras.Sequential, functional_class())) and item.built]
    owners: dict[int, int] = {}
    for owner in models:
        for layer in owner.layers:
            owners[id(layer)] = owners.get(id(layer), 0) + 1
    found = []
    for owner in models:
        for row in _rows(owner, lambda layer: owners.get(id(layer)) == 1):
            if len(row) > 1 or len(fused_layers(row[0])) == 2:
                found.append(Regroup(row, lambda row=row: [merged(row)]))  # type: ignore[misc]
    return found


def _rows(model: Any, alone: Callable[[Any], bool]) -> Iterator[list[Any]]:
    """The longest rows of layers, each the only reader of the one before."""
    follower = _followers(model)
    eligible = {id(layer) for layer in model.layers if alone(layer) and _single(layer) and id(layer) in follower}
    row: list[Any] = []
    taken: set[int] = set()
    for layer in model.layers:
        if id(layer) not in eligible or id(layer) in taken:
            continue
        row = [layer]
        while (after := follower[id(row[-1])]) is not None and id(after) in eligible and _goes_on(row[-1], after):
            row.append(after)
        taken.update(id(item) for item in row)
        yield row


def _followers(model: Any) -> dict[int, Any | None]:
    """For every layer that is called once, on one tensor: the layer that alone reads its output, with the same mask."""
    import keras

    if isinstance(model, keras.Sequential):
        model = model._functional
    if model is None:
        return {}
    nodes = [node for depth in model._nodes_by_depth.values() for node in depth if not node.is_input]
    calls: dict[int, list[Any]] = {}
    readers: dict[int, list[Any]] = {}
    for node in nodes:
        calls.setdefault(id(node.operation), []).append(node)
        for tensor in node.input_tensors:
            readers.setdefault(id(tensor), []).append(node)
    given = {id(tensor) for tensor in model.outputs}
    result: dict[int, Any | None] = {}
    for node in nodes:
        if len(calls[id(node.operation)]) != 1 or not _plain_call(node):
            continue
        (output, *others) = node.outputs
        reading = readers.get(id(output), [])
        free = not others and len(reading) == 1 and id(output) not in given
        follows = free and _plain_call(reading[0]) and _mask(reading[0]) is _mask(node)
        result[id(node.operation)] = reading[0].operation if follows else None
    return result


def _plain_call(node: Any) -> bool:
    """Called on one tensor, with a mask at most. (`training` is False where nobody said anything.)"""
    more = {name for name, value in node.arguments.kwargs.items() if value is not None and value is not False}
    return len(node.arguments.args) == 1 and len(node.input_tensors) <= 2 and more <= {"mask"}


def _mask(node: Any) -> Any:
    return node.arguments.kwargs.get("mask")


def _single(layer: Any) -> bool:
    """A fused layer, or a Bidirectional of two alike, that is a layer of a stack at most."""
    fused = fused_layers(layer)
    if not fused or any(item.stateful or item.network.parts > 1 for item in fused):
        return False
    if len(fused) == 1:
        return True
    forward, backward = fused
    same = _comparable(forward) == _comparable(backward) and forward.trainable == backward.trainable
    ways = (forward.go_backwards, backward.go_backwards) == (False, True)
    ends = [(f.return_sequences, f.return_state, f.dropout) for f in fused]
    quiet = forward.activity_regularizer is None and backward.activity_regularizer is None
    # Each half drops inputs of its own.
    return same and ways and quiet and ends[0] == ends[1] and forward.dropout == 0


def _goes_on(layer: Any, after: Any) -> bool:
    """Can `after` be the next layer of the stack in which `layer` is?"""
    first, second = fused_layers(layer), fused_layers(after)
    if len(first) != len(second) or type(first[0]) is not type(second[0]):
        return False
    inner = all(f.return_sequences and not f.return_state and f.activity_regularizer is None for f in first)
    joined = len(first) == 1 or layer.merge_mode == "concat"
    plain = second[0].dropout == 0 and not second[0].return_state
    # Keras turns the outputs of a layer that goes backwards, and hands its mask on unturned.
    forward = len(first) == 2 or not (first[0].go_backwards or second[0].go_backwards)
    alike = _comparable(first[0]) == _comparable(second[0])
    trained = len({flag for item in (layer, after, *first, *second) for flag in [item.trainable]}) == 1
    each = all(v.trainable == f.trainable for f in (*first, *second) for v in f.arrays)
    return inner and joined and plain and forward and alike and trained and each


def _comparable(fused: Any) -> dict[str, Any]:
    return {name: value for name, value in fused.get_config().items() if name not in _OF_ONE_LAYER}


def merged(row: list[Any]) -> Any:
    """One fused layer for a row of them, not built."""
    first, last = fused_layers(row[0])[0], fused_layers(row[-1])[0]
    config = first.get_config()
    for name in ("return_sequences", "return_state", "activity_regularizer"):
        config[name] = last.get_config()[name]
    config.update(
        name=row[0].name,
        trainable=row[0].trainable,
        dtype=first.dtype_policy,
        num_layers=len(row),
        parts=[_names(layer) for layer in row],
    )
    if len(fused_layers(row[0])) == 2:
        config.update(bidirectional=True, merge_mode=row[-1].merge_mode, go_backwards=False)
    return type(first).from_config(config)


def _names(layer: Any) -> dict[str, str]:
    halves = fused_layers(layer)
    names = {"name": str(layer.name)}
    if len(halves) == 2:
        names.update(forward=str(halves[0].name), backward=str(halves[1].name))
    return names


# Splitting


def splits(model: Any, which: Callable[[Any], bool] = lambda _: True) -> list[Regroup]:
    """Every fused layer that holds several (of those that `which` picks), with the layers that it stands for.

    Raises:
        UnsupportedLayerError: one that cannot be taken apart.
    """
    import keras

    graphs = [item for item in walk(model) if isinstance(item, (keras.Sequential, functional_class()))]
    inside = {id(layer) for graph in graphs for layer in graph.layers}
    found = []
    for layer in walk(model):
        if len(fused_layers(layer)) != 1 or layer.network.parts == 1 or not which(layer):
            continue
        why = None
        if id(layer) not in inside:
            why = "hangs on a layer or model of your own"
        elif layer.stateful or (layer.num_layers > 1 and layer.return_state):
            why = "hands on the states of its layers"
        if why is not None:
            raise UnsupportedLayerError(
                f"{layer.name}: {type(layer).__name__} of {layer.num_layers} layers {why}, so it cannot be taken apart"
            )
        found.append(Regroup([layer], lambda layer=layer: split(layer)))  # type: ignore[misc]
    return found


def split(layer: Any) -> list[Any]:
    """The layers that a fused layer of several stands for, not built."""
    import keras

    made = []
    for number in range(layer.num_layers):
        last = number == layer.num_layers - 1
        names = layer.parts[number] if layer.parts is not None else _new_names(layer, number)
        config = layer.get_config()
        for name in ("num_layers", "bidirectional", "merge_mode", "parts", "kernels"):
            config.pop(name, None)
        config["dtype"] = layer.dtype_policy
        if not last:
            config.update(return_sequences=True, activity_regularizer=None)
        if number > 0:
            config.update(dropout=0.0, go_backwards=False)

        def one(config: dict[str, Any], **changes: Any) -> Any:
            return type(layer).from_config({**config, **changes})

        if not layer.bidirectional:
            made.append(one(config, name=names["name"]))
            continue
        made.append(
            keras.layers.Bidirectional(
                one(config, name=names["forward"]),
                backward_layer=one(config, name=names["backward"], go_backwards=True),
                merge_mode=layer.merge_mode if last else "concat",
                name=names["name"],
                trainable=layer.trainable,
                dtype=layer.dtype_policy,
            )
        )
    return made


def _new_names(layer: Any, number: int) -> dict[str, str]:
    name = f"{layer.name}_l{number}" if layer.num_layers > 1 else str(layer.name)
    return {"name": name, "forward": f"forward_{name}", "backward": f"backward_{name}"}
