"""A recurrent layer's settings, read from its entry in any dialect, with the defaults of its Keras version."""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import RECURRENT_KINDS, Node
from lstm_swap.rules import FORM_OF_CLASS, Settings

_CELL_KINDS = {"LSTMCell": "lstm", "GRUCell": "gru"}
_CONSTRAINTS = ("kernel_constraint", "recurrent_constraint", "bias_constraint")
_SIZES = ("units", "output_dim", "filters", "nb_filter")
_SWITCHES = frozenset(
    "return_sequences return_state go_backwards stateful unroll use_bias reset_after time_major trainable".split()
)
_FUNCTIONS = ("activation", "recurrent_activation", "inner_activation")


def function_name(value: Any, default: str = "linear") -> str:
    """The name of an activation, however it is spelled ("tanh", {"class_name": "function", "config": "tanh"}, None)."""
    if value is None:
        return default
    if isinstance(value, dict):
        inner = value.get("config")
        if isinstance(inner, str):
            return inner
        if isinstance(inner, dict) and isinstance(inner.get("activation"), str):
            return str(inner["activation"])
        return str(value.get("class_name", value))
    return str(value)


def dtype_name(value: Any) -> str:
    """The name of a dtype or policy ("float32", "mixed_float16") in any of its spellings."""
    if isinstance(value, dict):
        config = value.get("config")
        if isinstance(config, dict):
            return str(config.get("name", "float32"))
        return str(config or "float32")
    return str(value or "float32")


def version_tuple(version: str | None) -> tuple[int, ...]:
    """(2, 2, 4) of "2.2.4-tf"; () where nothing is known."""
    parts: list[int] = []
    for piece in (version or "").replace("-", ".").split("."):
        if not piece.isdigit():
            break
        parts.append(int(piece))
    return tuple(parts)


def default_gate(version: str | None) -> str:
    """The recurrent activation of a layer that does not state it.

    hard_sigmoid until Keras 2.2.5; sigmoid in Keras 2.3 and in tf.keras 2 ("2.2.4-tf").
    """
    known = version_tuple(version)
    return "hard_sigmoid" if known and known < (2, 3) and "tf" not in str(version) else "sigmoid"


def cell_node(node: Node) -> Node | None:
    """The cell of an RNN(cell) layer."""
    return node.child("cell") if node.class_name == "RNN" else None


def layer_kind(node: Node) -> str | None:
    """lstm, gru, simple_rnn, conv_lstm or other; None for what is not recurrent."""
    cell = cell_node(node)
    if cell is not None:
        return _CELL_KINDS.get(cell.class_name, "other")
    return RECURRENT_KINDS.get(node.class_name)


def own_config(node: Node) -> dict[str, Any]:
    """The settings that say what is computed: of an RNN(cell), the layer's and the cell's together."""
    cell = cell_node(node)
    if cell is None:
        return node.config
    return {**{k: v for k, v in cell.config.items() if k not in ("name", "trainable", "dtype")}, **node.config}


def all_arrays(node: Node) -> list[Any]:
    """The layer's arrays: of an RNN(cell), the cell's."""
    cell = cell_node(node)
    return cell.arrays if cell is not None else node.arrays


def reset_after(config: dict[str, Any], shapes: list[tuple[int, ...]]) -> bool:
    """Does this GRU apply the reset gate after the product? Where the key is missing, the bias shows it: (2, 3u) yes.

    Without a bias and without the key: no, since the key came (Keras 2.1.3) with False as its default, and every
    version with another default writes it.
    """
    if "reset_after" in config:
        return bool(config["reset_after"])
    return len(shapes) == 3 and len(shapes[2]) == 2


def problem(node: Node) -> str | None:
    """What in a recurrent layer's settings no Keras writes, as in "units='4' is no ..."; None if all is well."""
    if layer_kind(node) == "other":
        return None  # a cell of the user's own may call its settings what it likes
    config = own_config(node)
    size = next((key for key in _SIZES if key in config), None)
    if size is None:
        return "units is not stated"
    units = config[size]
    if not isinstance(units, int) or isinstance(units, bool) or units <= 0:
        return f"{size}={units!r} is no positive whole number"
    for key, value in config.items():
        if key in _SWITCHES and not (value is None or (isinstance(value, int) and value in (0, 1))):
            return f"{key}={value!r} is neither true nor false"
        if key in ("dropout", "recurrent_dropout") and not (value is None or isinstance(value, int | float)):
            return f"{key}={value!r} is no number"
        if key in _FUNCTIONS and not (value is None or isinstance(value, str | dict)):
            return f"{key}={value!r} is no function"
    return None


def settings(node: Node, *, version: str | None = None, mask: bool = False) -> Settings:
    """What the rules need to know of a recurrent layer."""
    config = own_config(node)
    cell = cell_node(node)
    cell_class = cell.class_name if cell else ("?" if node.class_name == "RNN" else None)
    if cell_class == "?" and isinstance(config.get("cell"), dict):
        cell_class = str(config["cell"].get("class_name", "?"))
    if cell is not None and cell.class_name == "StackedRNNCells":
        cell_class = f"StackedRNNCells({', '.join(c.class_name for c in cell.children)})"
    kind = layer_kind(node) or "other"
    form = FORM_OF_CLASS.get(node.class_name, "standard")
    units = config.get("units", config.get("output_dim", config.get("filters")))
    fixed = form != "standard"
    found = tuple((c, function_name(config[c])) for c in _CONSTRAINTS if config.get(c) is not None)
    return Settings(
        kind=kind,
        class_name=node.class_name,
        units=units if isinstance(units, int) else None,
        activation="tanh" if fixed else function_name(config.get("activation", "tanh")),
        recurrent_activation="sigmoid"
        if fixed or kind == "simple_rnn"
        else function_name(config.get("recurrent_activation", config.get("inner_activation", default_gate(version)))),
        use_bias=True if fixed else bool(config.get("use_bias", True)),
        reset_after=kind == "gru" and (True if fixed else reset_after(config, [a.shape for a in all_arrays(node)])),
        dropout=float(config.get("dropout") or 0.0),
        recurrent_dropout=float(config.get("recurrent_dropout") or 0.0),
        unroll=bool(config.get("unroll", False)),
        time_major=bool(config.get("time_major", False)),
        dtype=dtype_name(config.get("dtype")),
        cell=cell_class,
        constraints=found,
        mask=mask,
        constants=bool(config.get("num_constants")),
    )
