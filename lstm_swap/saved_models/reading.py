"""Opening a SavedModel folder without trusting it.

The graph is one protocol buffer, `saved_model.pb` (tensorflow/core/protobuf/saved_model.proto). Parsed it takes up to
sixty times its size in memory where a file is built for that, so files above a small size are walked first, and one
with too many entries is refused. Nothing that the graph describes is run.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lstm_swap.errors import MissingDependencyError, UnreadableModelError

#: Protocol buffers end at 2 GiB; TensorFlow refuses larger ones as well.
SIZE_LIMIT = (1 << 31) - 1
#: Below this size the parsed form cannot exceed about 1 GiB (measured with protobuf 7.36: at most 57 bytes a byte).
WALK_ABOVE = 16 << 20
#: Entries (fields of all messages together) in a file above that size; about 100 bytes each when parsed.
ENTRY_LIMIT = 10_000_000
#: protobuf's own limit of nesting is 100.
DEPTH_LIMIT = 100

_PB = "saved_model.pb"
_PBTXT = "saved_model.pbtxt"


def is_saved_model(path: Path) -> bool:
    """Does the folder hold a SavedModel's graph?"""
    return (path / _PB).is_file() or (path / _PBTXT).is_file()


def tensorflow(purpose: str) -> Any:
    """The tensorflow module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a line for each missing GPU library would fill stderr
    try:
        import tensorflow as tf
    except ImportError as problem:
        raise MissingDependencyError(
            f"{purpose} needs TensorFlow, which is not installed: pip install 'lstm-swap[tensorflow]' ({problem})"
        ) from problem
    return tf


def read_graph(path: Path) -> Any:
    """The SavedModel message of the folder `path`.

    Raises:
        UnreadableModelError: no such file, no permission, damaged, too large, or no graph in it.
        MissingDependencyError: TensorFlow is not installed.
    """
    if (path / "saved_model.cpb").exists() and not is_saved_model(path):
        raise UnreadableModelError(
            f"{path}: a SavedModel in split form (saved_model.cpb), which is not read; load it with TensorFlow and "
            "save it again with tf.saved_model.save"
        )
    file = path / _PB if (path / _PB).exists() or not (path / _PBTXT).exists() else path / _PBTXT
    size = _regular_size(file)
    tensorflow("reading a SavedModel")
    from google.protobuf import message, text_format
    from tensorflow.core.protobuf import saved_model_pb2

    graph = saved_model_pb2.SavedModel()
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if file.suffix == ".pbtxt":
                if size > WALK_ABOVE:
                    raise UnreadableModelError(f"{file}: too large for a graph in text form ({size:,} bytes)")
                text_format.Parse(bytes(data), graph)
            else:
                view = memoryview(data)
                try:
                    if size > WALK_ABOVE:
                        _count_entries(file, view, saved_model_pb2.SavedModel.DESCRIPTOR)
                    graph.ParseFromString(view)
                finally:
                    view.release()
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError) as problem:
        raise UnreadableModelError(f"{file}: damaged, not the graph of a SavedModel ({problem})") from None
    except (OSError, MemoryError) as problem:
        raise UnreadableModelError(f"{file}: cannot be read ({problem})") from None
    if not graph.meta_graphs:
        raise UnreadableModelError(f"{file}: damaged or empty, it holds no graph")
    return graph


def _regular_size(file: Path) -> int:
    try:
        status = file.stat()
    except FileNotFoundError:
        raise UnreadableModelError(f"{file.parent}: no SavedModel there (no {_PB})") from None
    except OSError as problem:
        raise UnreadableModelError(f"{file}: {problem.strerror or problem}") from None
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableModelError(f"{file}: not a regular file")
    if status.st_size == 0:
        raise UnreadableModelError(f"{file}: the file is empty")
    if status.st_size > SIZE_LIMIT:
        raise UnreadableModelError(f"{file}: {status.st_size:,} bytes, more than a protocol buffer can hold (2 GiB)")
    return status.st_size


def _count_entries(file: Path, data: memoryview, descriptor: Any) -> None:
    """Walk the message, skipping over bytes and strings, and refuse it where it has too many or too deep entries."""
    kinds: dict[str, dict[int, Any]] = {}

    def nested(kind: Any) -> dict[int, Any]:
        found = kinds.get(kind.full_name)
        if found is None:
            found = {f.number: f.message_type for f in kind.fields if f.message_type is not None}
            kinds[kind.full_name] = found
        return found

    entries = 0
    stack = [_Span(0, len(data), nested(descriptor))]
    while stack:
        span = stack[-1]
        if span.position >= span.end:
            stack.pop()
            continue
        entries += 1
        if entries > ENTRY_LIMIT:
            raise UnreadableModelError(f"{file}: more than {ENTRY_LIMIT:,} entries, which no model of Keras needs")
        number, wire, start, end = next_field(data, span.position, span.end)
        if wire < 0:
            raise UnreadableModelError(f"{file}: damaged near byte {span.position:,}, not the graph of a SavedModel")
        span.position = end
        inner = span.nested.get(number) if wire == 2 else None
        if inner is not None:
            if len(stack) > DEPTH_LIMIT:
                raise UnreadableModelError(f"{file}: nested more than {DEPTH_LIMIT} deep")
            stack.append(_Span(start, end, nested(inner)))


class _Span:
    __slots__ = ("end", "nested", "position")

    def __init__(self, position: int, end: int, nested: dict[int, Any]) -> None:
        self.position, self.end, self.nested = position, end, nested


def next_field(data: memoryview | bytes, position: int, end: int) -> tuple[int, int, int, int]:
    """The field that begins at `position`: number, wire type (-1: damaged), and where its payload starts and ends.

    Source: protobuf.dev/programming-guides/encoding. Groups (wire types 3, 4) do not occur in TensorFlow's messages.
    """
    key, position = _varint(data, position, end)
    wire = key & 7
    if wire == 0:
        _, stop = _varint(data, position, end)
        start = position
    elif wire == 2:
        length, start = _varint(data, position, end)
        stop = start + length
    else:
        start, stop = position, position + {1: 8, 5: 4}.get(wire, 1 << 40)
    if key < 8 or stop > end or start > end:
        return 0, -1, 0, 0
    return key >> 3, wire, start, stop


def _varint(data: memoryview | bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    return 0, end + 1


def fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The fields of a small message: number, wire type and raw payload; a damaged rest ends it silently."""
    position = 0
    while position < len(data):
        number, wire, start, position = next_field(data, position, len(data))
        if wire < 0:
            return
        yield number, wire, data[start:position]


def varint(payload: bytes) -> int:
    """The number that a payload of wire type 0 holds."""
    return _varint(payload, 0, len(payload))[0]
