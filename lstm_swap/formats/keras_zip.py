"""`.keras` files: a zip of config.json, metadata.json and model.weights.h5 (and assets).

keras/src/saving/saving_lib.py: weights lie under paths of attributes, `layers/lstm_1/cell/vars/0`, where a layer
of a model is numbered among those of its class in the order of `model.layers`, whatever the user called it.
tf.keras 2.13 to 2.15 write the same paths, on Windows with a backslash between some parts.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from lstm_swap.architecture import Array, Node, build_tree
from lstm_swap.errors import UnreadableModelError
from lstm_swap.formats import h5
from lstm_swap.formats.catalogue import variables
from lstm_swap.formats.checking import CONFIG_LIMIT, parse_architecture
from lstm_swap.formats.model_file import Extra, ModelFile
from lstm_swap.formats.order import layer_order

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"

#: A zip member may unpack to this many times its packed size, above a floor in bytes.
MAX_RATIO, RATIO_FLOOR = 200, 256 << 20


def snake_case(name: str) -> str:
    """The name of a class in a weight path (keras/src/utils/naming.py `to_snake_case`)."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def read(path: Path) -> ModelFile:
    """Open a `.keras` zip, or the folder that `save(zipped=False)` writes.

    Raises:
        UnreadableModelError: a piece is missing or broken; the message says which.
    """
    folder = tempfile.TemporaryDirectory(prefix="lstm-swap-")
    try:
        return _read(path, folder)
    except BaseException:
        folder.cleanup()
        raise


def _read(path: Path, folder: tempfile.TemporaryDirectory[str]) -> ModelFile:
    where = path.name
    source = _Folder(path) if path.is_dir() else _Zip(path)
    if CONFIG not in source.names:
        raise UnreadableModelError(f"{where}: no {CONFIG} inside, so this is no Keras model (or only a part of one)")
    if source.size(CONFIG) > CONFIG_LIMIT:
        raise UnreadableModelError(f"{where}: {CONFIG} is absurdly large")
    entry = parse_architecture(source.read(CONFIG), where, CONFIG)
    metadata: dict[str, Any] = {}
    if METADATA in source.names:
        with contextlib.suppress(ValueError, RecursionError):
            metadata = json.loads(source.read(METADATA))
    version = metadata.get("keras_version") if isinstance(metadata, dict) else None
    version = version if isinstance(version, str) else None
    if WEIGHTS not in source.names:
        raise UnreadableModelError(f"{where}: no {WEIGHTS} inside: the weights are missing")
    target = Path(folder.name) / WEIGHTS
    source.extract(WEIGHTS, target)
    try:
        file = h5.open_file(target)
    except UnreadableModelError as problem:
        reason = str(problem).removeprefix(f"{target}: ")
        raise UnreadableModelError(f"{where}: the weights inside ({WEIGHTS}) are damaged: {reason}") from None

    def close() -> None:
        file.close()
        source.close()
        folder.cleanup()

    from lstm_swap.dialects import detect

    root = build_tree(entry)
    model = ModelFile(path, "keras", entry, root, version, None, detect(entry, version), store=file, close=close)
    try:
        attach(root, file, where, model.dialect)
    except BaseException:
        file.close()
        raise
    model.training_config = entry.get("compile_config")
    for name in source.names:
        if name in (CONFIG, METADATA, WEIGHTS):
            continue
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name:
            model.warnings.append(f"the zip member {name!r} would land outside of its folder, and was left out")
            continue
        model.extras.append(Extra(name, lambda name=name: source.read(name)))  # type: ignore[misc]
    _read_optimizer(model, file)
    return model


def _read_optimizer(model: ModelFile, file: h5py.File) -> None:
    """The optimizer's arrays; damaged ones are not worth failing for, and are left out with a word."""
    if "optimizer/vars" not in file:
        return
    try:
        group = h5.get_group(file, "optimizer/vars", model.path.name)
        keys = sorted(group, key=lambda k: int(k) if k.isdigit() else 1 << 30)
        model.optimizer = [h5.get_array(group, k, "optimizer") for k in keys]
    except UnreadableModelError as problem:
        model.warnings.append(f"optimizer state dropped: {problem}")


class _Zip:
    def __init__(self, path: Path) -> None:
        self.where = path.name
        try:
            self.zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile, ValueError) as problem:
            raise UnreadableModelError(f"{path}: the zip file cannot be read ({problem})") from None
        self.names = list(dict.fromkeys(i.filename for i in self.zip.infolist() if not i.is_dir()))

    def size(self, name: str) -> int:
        return self.zip.getinfo(name).file_size

    def _check(self, name: str) -> None:
        info = self.zip.getinfo(name)
        if info.file_size > RATIO_FLOOR and info.file_size > MAX_RATIO * max(info.compress_size, 1):
            raise UnreadableModelError(
                f"{self.where}: {name} claims to unpack {info.compress_size:,} bytes to {info.file_size:,}; refused"
            )

    def read(self, name: str) -> bytes:
        self._check(name)
        with self._broken(name):
            return self.zip.read(name)
        raise AssertionError("unreachable")

    def extract(self, name: str, target: Path) -> None:
        self._check(name)
        with self._broken(name), self.zip.open(name) as src, open(target, "wb") as dst:
            while piece := src.read(1 << 22):
                try:
                    dst.write(piece)
                except OSError as problem:
                    raise UnreadableModelError(
                        f"{self.where}: {name} inside cannot be unpacked into {target.parent.parent} "
                        f"({problem.strerror}); TMPDIR names another folder"
                    ) from None

    @contextlib.contextmanager
    def _broken(self, name: str) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as problem:
            raise UnreadableModelError(f"{self.where}: {name} inside cannot be unpacked ({problem})") from None

    def close(self) -> None:
        self.zip.close()


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = [p.relative_to(path).as_posix() for p in sorted(path.rglob("*")) if p.is_file()]

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def extract(self, name: str, target: Path) -> None:
        shutil.copyfile(self.path / name, target)

    def close(self) -> None:
        pass


# ------------------------------------------------------------------ paths


class Paths:
    """Every array of a weights file by its path, with forward slashes whatever the file was written on."""

    def __init__(self, file: h5py.File, where: str) -> None:
        self.where = where
        self.arrays: dict[str, Any] = {}
        stack: list[tuple[str, Any]] = [("", file)]
        while stack:
            prefix, group = stack.pop()
            for key in group:
                path = f"{prefix}/{key}".replace("\\", "/").strip("/")
                link = group.get(key, getlink=True)
                if not isinstance(link, h5py.HardLink):
                    raise UnreadableModelError(f"{where}: {path!r} in the weights is a link, not an array")
                if len(path) > 1 << 16 or path.count("/") > 200:
                    raise UnreadableModelError(f"{where}: the weights are nested too deeply")
                item = group[key]
                if isinstance(item, h5py.Group):
                    stack.append((path, item))
                else:
                    self.arrays[path] = item
        self.children: dict[str, list[str]] = {}
        for path in self.arrays:
            parts = path.split("/")
            for i in range(len(parts)):
                self.children.setdefault("/".join(parts[:i]), []).append(path)

    def below(self, path: str) -> list[str]:
        """Paths of all arrays below this one, numbers in numeric order."""
        found = self.children.get(path, [])
        return sorted(found, key=lambda p: [(0, int(x), "") if x.isdigit() else (1, 0, x) for x in p.split("/")])

    def array(self, path: str, name: str) -> Array:
        return h5.dataset_array(self.arrays[path], name, self.where)


def weight_paths(root: Node) -> Iterator[tuple[Node, str]]:
    """The path of every layer in a `.keras` weights file, with the classes as they are now."""
    stack = [(root, "")]
    while stack:
        node, path = stack.pop()
        yield node, path
        if node.is_model:
            used: dict[str, int] = {}
            for child in layer_order(node):
                stack.append((child, f"{path}/layers/{_numbered(child, used)}".strip("/")))
            continue
        used = {}
        for child in node.children:
            if child.role in ("forward", "backward"):
                stack.append((child, f"{path}/{child.role}_layer"))
            elif child.role == "item":  # cells of StackedRNNCells
                stack.append((child, f"{path}/cells/{_numbered(child, used)}"))
            else:
                stack.append((child, f"{path}/{child.role}"))


#: Classes that Keras exports under another name than their own.
_PYTHON_CLASS = {"GroupQueryAttention": "GroupedQueryAttention"}


def _numbered(node: Node, used: dict[str, int]) -> str:
    name = snake_case(model_class(node) if node.is_model else _PYTHON_CLASS.get(node.class_name, node.class_name))
    used[name] = used.get(name, -1) + 1
    return f"{name}_{used[name]}" if used[name] else name


def model_class(node: Node) -> str:
    """The Python class of an inner model: files of Keras 2 say Model where it is a Functional."""
    return "Functional" if node.class_name == "Model" else node.class_name


def attach(root: Node, file: h5py.File, where: str, dialect: str) -> None:
    """Give every layer of the tree its arrays.

    Raises:
        UnreadableModelError: a layer's arrays are not there.
    """
    paths = Paths(file, where)
    roots = ("layers", "_layer_checkpoint_dependencies")
    for node, path in weight_paths(root):
        known = variables(node, dialect)
        if node is root:
            continue
        for old in roots[1:]:  # tf.keras 2.12
            if path not in paths.children and path.replace("layers/", f"{old}/") in paths.children:
                path = path.replace("layers/", f"{old}/")
        if known is None:
            inner = {p for c in node.children for p in paths.below(f"{path}/{c.role}")}
            node.arrays = [paths.array(p, p[len(path) + 1 :]) for p in paths.below(path) if p not in inner]
            continue
        node.arrays = []
        for i in range(len(known.names)):
            folder, number = known.place(i)
            name = f"{folder}/vars/{number}".strip("/")
            for candidate in (f"{path}/{name}", f"{path}/_{name}"):
                if candidate in paths.arrays:
                    node.arrays.append(paths.array(candidate, name))
                    break
        if len(node.arrays) != len(known.names):
            _complain(node, known.names, path, where)


def _complain(node: Node, names: tuple[str, ...], path: str, where: str) -> None:
    if node.class_name == "Normalization" and not node.arrays:
        return
    shown = node.path if len(node.path) < 80 else node.path[:77] + "..."
    raise UnreadableModelError(
        f"{where}: layer {shown!r} ({node.class_name}) should have {len(names)} arrays ({', '.join(names)}), but the "
        f"weights hold {len(node.arrays)} at {path[:80]!r}"
    )
