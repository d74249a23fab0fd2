"""Layer names that Keras 3 accepts: present, unique, and without "/"."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from lstm_swap.architecture import Node, entry_name
from lstm_swap.dialects.context import Context


def unique_name(name: str, taken: Container[str]) -> str:
    """`name`, with a number behind it where it is taken."""
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def rename_layers(model: Node, context: Context) -> dict[str, str]:
    """Give every layer of `model` a legal name, in its entry and in the tree; returns what was renamed, old to new.

    The names inside wrappers are made legal as well. Layers that have no name (a Sequential in a Sequential of Keras 1)
    get that of their class.
    """
    # A functional model's calls go by the name beside the config, which for a TensorFlowOpLayer is another one.
    old_names = [_stated_name(child.entry) for child in model.children]
    taken = {name for name in old_names if name is not None and "/" not in name}
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    renames: dict[str, str] = {}
    for child, old in zip(model.children, old_names, strict=True):
        entry = child.entry
        new = old if old is not None else _snake(entry_name(entry))
        if old is None or "/" in old or old in seen:
            base = new = new.replace("/", "_")
            while new in taken or new in seen:
                numbers[base] = numbers.get(base, 0) + 1
                new = f"{base}_{numbers[base]}"
            if isinstance(entry.get("config"), dict):
                entry["config"]["name"] = new
            if "name" in entry:
                entry["name"] = new
        seen.add(new)
        if old is not None and new != old:
            renames[old] = new
            context.add(
                child, "name", old, new, "opens", f"{old!r} is called {new!r} now: Keras 3 refuses the old name"
            )
        if new != child.name:
            set_name(child, new)
        _legal_inside(child, context)
    return renames


def _stated_name(entry: dict[str, Any]) -> str | None:
    config = entry.get("config")
    name = entry.get("name") or (config.get("name") if isinstance(config, dict) else None)
    return name if isinstance(name, str) else None


def _legal_inside(node: Node, context: Context) -> None:
    stack = [] if node.is_model else list(node.children)  # what is inside a model is that model's affair
    while stack:
        inner = stack.pop()
        old = inner.config.get("name")
        if isinstance(old, str) and "/" in old:
            new = inner.config["name"] = old.replace("/", "_")
            set_name(inner, inner.name.replace("/", "_"))
            if not inner.implicit:
                message = f"{old!r} is called {new!r} now: Keras 3 refuses a / in names"
                context.add(inner, "name", old, new, "opens", message)
        if not inner.is_model:
            stack.extend(inner.children)


def set_name(node: Node, name: str) -> None:
    """Rename a node, with the paths of everything inside it."""
    node.name = name
    parent = node.parent.path if node.parent is not None else ""
    node.path = f"{parent}/{name}" if parent else name
    stack = [node]
    while stack:
        outer = stack.pop()
        for child in outer.children:
            child.path = f"{outer.path}/{child.name}" if outer.path else child.name
            stack.append(child)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
