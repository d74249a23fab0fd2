"""Flat weight lists: in which order HDF5 files list the arrays of a layer and all that it holds.

HDF5 models have one group per layer of the outermost model. A wrapper or an inner model is one such layer: its
group lists the arrays of everything inside it, trainable ones first. Keras 2: `trainable_weights +
non_trainable_weights` (tf_keras/src/saving/legacy/hdf5_format.py `_legacy_weights`), where a frozen inner layer
moves its arrays to the second part and a frozen outer one joins both parts. Keras 3 sorts all variables by
their own flag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lstm_swap.architecture import Array, Node
from lstm_swap.errors import UnreadableModelError
from lstm_swap.formats.catalogue import variables

Slot = tuple[Node, int]  # a layer, and the index among its own arrays
Parts = tuple[list[Slot], list[Slot]]  # trainable, fixed
Split = Callable[[Node], tuple[int, int]]  # how many trainable and fixed arrays of its own a layer has


def _trainable(node: Node) -> bool:
    return bool(node.config.get("trainable", True))


def _own(node: Node, split: Split) -> Parts:
    trainable, fixed = split(node)
    slots = [(node, i) for i in range(trainable + fixed)]
    return slots[:trainable], slots[trainable:]


def keras2_order(top: Node, split: Split) -> list[Slot]:
    """Each layer gathers (trainable, fixed) of its children; a frozen one turns both into fixed."""

    def gather(node: Node) -> Parts:
        first, second = _own(node, split)
        first, second = list(first), list(second)
        for child in node.children:
            a, b = gather(child)
            first += a
            second += b
        return (first, second) if _trainable(node) else ([], first + second)

    first, second = gather(top)
    return first + second


def keras3_order(top: Node, split: Split) -> list[Slot]:
    """Variables in order of creation, those that train before those that do not; freezing reaches inwards."""
    first: list[Slot] = []
    second: list[Slot] = []
    stack = [(top, _trainable(top))]
    while stack:
        node, trains = stack.pop()
        a, b = _own(node, split)
        (first if trains else second).extend(a)
        second.extend(b)
        stack.extend((child, trains and _trainable(child)) for child in reversed(node.children))
    return first + second


def _frozen_inside_order(top: Node, split: Split) -> list[Slot]:
    """Keras 2 where freezing the outer layer was passed on to the inner ones (tf.keras)."""

    def gather(node: Node, trains: bool) -> Parts:
        trains = trains and _trainable(node)
        first, second = _own(node, split)
        if not trains:
            first, second = [], first + second
        first, second = list(first), list(second)
        for child in node.children:
            a, b = gather(child, trains)
            first += a
            second += b
        return first, second

    first, second = gather(top, True)
    return first + second


def file_order(top: Node, dialect: str, split: Split) -> list[Slot]:
    """The order that a file of this dialect is written in."""
    return (keras3_order if dialect == "keras3" else keras2_order)(top, split)


def distribute(top: Node, arrays: Sequence[Array], dialect: str, where: str) -> None:
    """Give each layer in `top` its own arrays from the flat list of its group.

    Several orders are possible (see above): the first one whose shapes fit the layers is taken. Layers of
    unknown classes get the arrays that bear their name, or all that is left over.

    Raises:
        UnreadableModelError: the arrays do not belong to these layers.
    """
    if not top.children:
        known = variables(top, dialect)
        if known is not None and len(known.names) != len(arrays) and not _tolerated(top, arrays, dialect):
            raise UnreadableModelError(
                f"{where}: layer {top.path!r} ({top.class_name}) should have {len(known.names)} arrays "
                f"({', '.join(known.names) or 'none'}), the file holds {len(arrays)} weights"
            )
        top.arrays = list(arrays)
        return
    arrays = list(arrays)
    taken = _arrays_of_unknown(top, arrays, dialect)
    claimed = {id(array) for own in taken.values() for array in own}
    rest = [array for array in arrays if id(array) not in claimed]

    def split(node: Node) -> tuple[int, int]:
        if id(node) in taken:
            return 0, 0
        known = variables(node, dialect)
        return (len(known.trainable), len(known.fixed)) if known else (0, 0)

    orders = [keras3_order] if dialect == "keras3" else [keras2_order, _frozen_inside_order, keras3_order]
    problem = ""
    for order in orders:
        slots = order(top, split)
        if len(slots) != len(rest):
            problem = f"its layers need {len(slots)} arrays, the file holds {len(rest)} weights"
            continue
        own: dict[int, list[Array]] = {}  # every order lists the arrays of one layer in that layer's own
        for (node, _), array in zip(slots, rest, strict=True):
            own.setdefault(id(node), []).append(array)
        own = _halves_by_name(top, own)
        misfit = next((n.path for n in top.walk() if id(n) in own and not shapes_fit(n, own[id(n)])), None)
        if misfit is None or order is orders[-1]:
            for node in top.walk():
                node.arrays = taken.get(id(node)) or own.get(id(node), [])
            return
    raise UnreadableModelError(f"{where}: layer {top.path!r} ({top.class_name}): {problem}")


def _tolerated(node: Node, arrays: Sequence[Array], dialect: str) -> bool:
    """Counts that differ from the table and still are whole layers: renamed by hand, or merged early."""
    if node.kind in ("lstm", "gru") and len(arrays) in (2, 3):
        return True
    return node.class_name == "Normalization" and len(arrays) in (0, 3)


def _arrays_of_unknown(top: Node, arrays: list[Array], dialect: str) -> dict[int, list[Array]]:
    unknown = [n for n in top.walk() if variables(n, dialect) is None]
    taken: dict[int, list[Array]] = {}
    for node in unknown:  # a wrapper owns what bears its name and the name of nothing inside it
        inside = {n.name for n in node.walk() if n is not node} - {node.name}
        taken[id(node)] = [a for a in arrays if node.name in (parts := a.name.split("/")) and not inside & set(parts)]
    if len(unknown) == 1 and not taken[id(unknown[0])]:
        known = [variables(n, dialect) for n in top.walk()]
        count = len(arrays) - sum(len(v.names) for v in known if v)
        before = _position(top, unknown[0], dialect)
        if count > 0:
            taken[id(unknown[0])] = arrays[before : before + count]
    return taken


def _position(top: Node, node: Node, dialect: str) -> int:
    """How many trainable arrays of known layers stand before this one."""
    count = 0
    for other in top.walk():
        if other is node:
            return count
        known = variables(other, dialect)
        count += len(known.trainable) if known else 0
    return count


def _halves_by_name(top: Node, own: dict[int, list[Array]]) -> dict[int, list[Array]]:
    """Where names say that the backward half of a Bidirectional stands first, exchange the halves."""
    for node in top.walk():
        if node.class_name != "Bidirectional":
            continue
        pair = [child for child in node.children if own.get(id(child))]
        if len(pair) != 2:
            continue
        says = [{_direction(a.name) for a in own[id(child)]} for child in pair]
        if says == [{"backward"}, {"forward"}]:
            own[id(pair[0])], own[id(pair[1])] = own[id(pair[1])], own[id(pair[0])]
    return own


def _direction(name: str) -> str:
    for part in name.split("/"):
        for direction in ("forward", "backward"):
            if part.startswith(direction):
                return direction
    return ""


def shapes_fit(node: Node, arrays: Sequence[Array]) -> bool:
    """Do these arrays look like this layer's? (A wrong order of layers shows here; unknown classes always fit.)"""
    config, shapes = node.config, [a.shape for a in arrays]
    units = config.get("units") or config.get("output_dim")
    if node.class_name == "Embedding":
        return len(shapes[0]) == 2 and config.get("input_dim", shapes[0][0]) == shapes[0][0]
    if node.class_name == "Dense" and isinstance(units, int):
        return shapes[0][-1:] == (units,) and all(s == (units,) for s in shapes[1:])
    if node.class_name.startswith("BatchNormalization"):
        return len(set(shapes)) == 1
    if node.kind in ("lstm", "gru", "simple_rnn") and isinstance(units, int) and len(shapes) in (2, 3):
        return len(shapes[1]) == 2 and units in shapes[1]
    filters = config.get("filters")
    if node.class_name.startswith("Conv") and isinstance(filters, int) and "Transpose" not in node.class_name:
        return shapes[0][-1] in (filters, 4 * filters)
    return True
