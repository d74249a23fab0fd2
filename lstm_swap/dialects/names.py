"""Layer names that Keras 3 accepts: present, unique, and without "/"."""

from __future__ import annotations

from collections.abc import Container

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

    The names inside wrappers are made legal as well. Layers of Keras 1 that have no name get that of their class.
    """
    taken: set[str] = set()
    wanted: dict[str, int] = {}
    renames: dict[str, str] = {}
    for child in model.children:
        if child.role == "item" and "/" not in entry_name(child.entry):
            taken.add(entry_name(child.entry))
    seen: set[str] = set()
    for child in model.children:
        entry, old = child.entry, entry_name(child.entry)
        named = "name" in entry or "name" in child.config
        base = old.replace("/", "_") if named else _snake(old)
        new = base
        if "/" in old or old in seen or not named:
            count = wanted.get(base, 0)
            while new in taken or new in seen:
                count += 1
                new = f"{base}_{count}"
            wanted[base] = count
        seen.add(new)
        if isinstance(entry.get("config"), dict):
            entry["config"]["name"] = new
        if "name" in entry:
            entry["name"] = new
        if new != old and named:
            renames[old] = new
            context.add(child, "name", old, new, "opens", f"the layer {old!r} is called {new!r} now: Keras 3 refuses the old name")
        if new != child.name:
            set_name(child, new)
        _legal_inside(child, context)
    return renames


def _legal_inside(node: Node, context: Context) -> None:
    if node.is_model:
        return  # a model of its own
    stack = list(node.children)
    while stack:
        inner = stack.pop()
        old = inner.config.get("name")
        if isinstance(old, str) and "/" in old:
            new = inner.config["name"] = old.replace("/", "_")
            set_name(inner, inner.name.replace("/", "_"))
            if not inner.implicit:
                context.add(inner, "name", old, new, "opens", f"{old!r} is called {new!r} now: Keras 3 refuses a / in names")
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
