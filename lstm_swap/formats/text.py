"""Architectures as text: `model.to_json()` and `model.to_yaml()` of any Keras.

YAML is read with a safe loader. Old Keras wrote Python tags for plain values (tuples, unicode strings, longs);
those are read as such. Any other Python tag would run code, and is an error that names it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from lstm_swap.architecture import build_tree
from lstm_swap.errors import UnreadableModelError
from lstm_swap.formats.checking import CONFIG_LIMIT, check_architecture, parse_architecture
from lstm_swap.formats.model_file import ModelFile

#: More values than this in one architecture are an attack (aliases that multiply), not a model.
EXPANDED_LIMIT = 20_000_000

_PREFIX = "tag:yaml.org,2002:python/"


class _Loader(yaml.SafeLoader):
    """SafeLoader, and the Python tags that stand for plain values."""


def _sequence(loader: _Loader, node: yaml.Node) -> list[Any]:
    return loader.construct_sequence(node, deep=True)  # type: ignore[arg-type]


def _string(loader: _Loader, node: yaml.Node) -> str:
    return str(loader.construct_scalar(node))  # type: ignore[arg-type]


def _integer(loader: _Loader, node: yaml.Node) -> int:
    value = str(loader.construct_scalar(node))  # type: ignore[arg-type]
    try:
        return int(value.rstrip("L"))
    except ValueError:
        raise yaml.constructor.ConstructorError(None, None, f"no whole number: {value!r}", node.start_mark) from None


_Loader.add_constructor(_PREFIX + "tuple", _sequence)
_Loader.add_constructor(_PREFIX + "unicode", _string)
_Loader.add_constructor(_PREFIX + "str", _string)
_Loader.add_constructor(_PREFIX + "long", _integer)


def looks_like_text(head: bytes) -> bool:
    """May this be JSON or YAML? (`head`: the first bytes of a file.)"""
    return bool(head.strip()) and b"\0" not in head


def read(path: Path) -> ModelFile:
    """Open an architecture without weights.

    Raises:
        UnreadableModelError: neither JSON nor YAML, a dangerous YAML tag, or no architecture.
    """
    where = path.name
    if path.stat().st_size > CONFIG_LIMIT:
        raise UnreadableModelError(f"{where}: a text of {path.stat().st_size:,} bytes is no architecture")
    data = path.read_bytes()
    if data.lstrip()[:1] == b'"':  # json.dump(model.to_json()): the text of an architecture as a JSON string
        data = _inner_text(data, where)
    if data.lstrip()[:1] in (b"{", b"["):
        entry = parse_architecture(data, where, "the JSON architecture")
        document = json.loads(data)
    else:
        document = _yaml(data, where)
        entry = check_architecture(document, where, "the YAML architecture")
    version = document.get("keras_version") if isinstance(document, dict) else None
    backend = document.get("backend") if isinstance(document, dict) else None
    from lstm_swap.dialects import detect

    version = str(version) if version else None
    return ModelFile(path, "architecture", entry, build_tree(entry), version, backend, detect(entry, version))


def _expanded_size(value: Any, known: dict[int, int]) -> int:
    """How many values there are when aliases are written out (a few lines can stand for billions)."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = EXPANDED_LIMIT + 1  # a value that holds itself
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_expanded_size(item, known) for item in items)
    return known[id(value)]


def _inner_text(data: bytes, where: str) -> bytes:
    try:
        inner = json.loads(data)
    except ValueError as problem:
        raise UnreadableModelError(f"{where}: neither JSON nor YAML that can be read ({problem})") from None
    return str(inner).encode()


def _yaml(data: bytes, where: str) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableModelError(f"{where}: neither HDF5, zip nor text; not a model file that is read here") from None
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
        if _expanded_size(document, {}) > EXPANDED_LIMIT:
            raise UnreadableModelError(f"{where}: the YAML repeats itself through aliases without end; refused")
        if not isinstance(document, dict | list):
            raise UnreadableModelError(
                f"{where}: a text, not a model: neither HDF5 nor a .keras zip nor an architecture in JSON or YAML "
                f"(it begins with {text[:40]!r})"
            )
        return json.loads(json.dumps(document))  # what aliases share becomes separate: entries are edited in place
    except (TypeError, ValueError) as problem:
        if isinstance(problem, UnreadableModelError):
            raise
        raise UnreadableModelError(f"{where}: the YAML holds a value that JSON has not ({problem})") from None
    except yaml.constructor.ConstructorError as problem:
        raise UnreadableModelError(
            f"{where}: the YAML holds a tag that would run Python code ({problem.problem}); it was not followed. "
            "Replace the tagged value by a plain one"
        ) from None
    except (yaml.YAMLError, RecursionError) as problem:
        first = str(problem).splitlines()[0] if str(problem) else "nested too deeply"
        raise UnreadableModelError(f"{where}: neither JSON nor YAML that can be read ({first})") from None
