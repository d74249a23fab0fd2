"""Files that hold models or arrays but are not read here: what they are, and the way out.

`recognise` looks at names, at the first and last bytes and, in archives, at the list of members. Nothing is unpacked,
unpickled or imported, and special files are not opened.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

#: The bytes read from the start of a file. No signature below lies deeper than a zip's or a JSON header's start.
_HEAD = 4096

#: A TensorFlow checkpoint's index (and the whole of a V1 checkpoint) is a LevelDB table; this number ends its footer
#: (tensorflow/core/lib/io/format.h, kTableMagicNumber, little endian).
_TABLE_MAGIC = bytes.fromhex("57fb808b247547db")

#: torch.save before 1.6: a pickled protocol-2 integer, 0x1950a86a20f9469cfc6c (torch/serialization.py, MAGIC_NUMBER).
_TORCH_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")

_SHARD = re.compile(r"\.data-\d{5}-of-\d{5}$")
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"

_CHECKPOINT_WAY_OUT = (
    "it holds arrays but no architecture; load it with the code that made it "
    "(model.load_weights, or tf.train.Checkpoint.restore) and save the model as .h5 or .keras"
)
_TORCH_WAY_OUT = (
    "rebuild the model in Keras and set its weights from the state_dict "
    "(PyTorch's gates are i f g o and r z n, stored as rows), then save it as .h5 or .keras"
)
_PICKLE_WAY_OUT = (
    "it is not opened, because that would run code; load it where you trust it and save the model with model.save"
)
_ARRAYS_WAY_OUT = "arrays without an architecture; set them into the model in Keras and save it as .h5 or .keras"


def recognise(path: str | os.PathLike[str]) -> str | None:
    """What the file, folder or checkpoint prefix `path` is and what its owner can do, or None where it is unknown.

    Returns one line that begins with the path. None also for the containers that this package reads (HDF5, `.keras`,
    SavedModel folders, architectures in JSON or YAML), for files that cannot be opened and for what is no regular file
    or folder.
    """
    target = Path(path)
    try:
        found = _look(target)
    except OSError:
        return None
    return None if found is None else f"{os.fspath(path)}: {found}"


def _look(path: Path) -> str | None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return _prefix(path)
    if stat.S_ISDIR(mode):
        return _folder(path)
    if not stat.S_ISREG(mode):
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    if head.startswith(_HDF5_MAGIC):
        return None
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    checks: tuple[Callable[[Path, bytes, bytes], str | None], ...] = (_checkpoint_file, _signature, _by_name, _text)
    for check in checks:
        found = check(path, head, tail)
        if found is not None:
            return found
    return None


def _prefix(path: Path) -> str | None:
    """`model.ckpt`, which is no file itself, beside `model.ckpt.index`."""
    if path.name and Path(f"{path}.index").is_file():
        return f"the prefix of a TensorFlow checkpoint ({path.name}.index lies there): {_CHECKPOINT_WAY_OUT}"
    return None


def _folder(path: Path) -> str | None:
    names = set()
    with os.scandir(path) as entries:
        for entry in entries:
            names.add(entry.name)
            if len(names) > 10_000:  # a folder of that many files is no model
                break
    if names & {"saved_model.pb", "saved_model.pbtxt"}:
        return None
    if "saved_model.cpb" in names:
        return (
            "a SavedModel in split form (saved_model.cpb): load it with TensorFlow and save it again "
            "without the image format (tf.saved_model.save)"
        )
    if "checkpoint" in names or any(_SHARD.search(name) for name in names):
        return f"a folder with a TensorFlow checkpoint: {_CHECKPOINT_WAY_OUT}"
    if "Manifest.json" in names and path.suffix == ".mlpackage":
        return "a Core ML package: convert the Keras model that it was made from"
    if names & {"pytorch_model.bin", "pytorch_model.bin.index.json"}:
        return f"a folder with PyTorch weights (pytorch_model.bin): {_TORCH_WAY_OUT}"
    if "model.json" in names and any(name.endswith(".bin") for name in names):
        return _text(path / "model.json", _first_bytes(path / "model.json"), b"")
    return None


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def _checkpoint_file(path: Path, head: bytes, tail: bytes) -> str | None:
    if tail == _TABLE_MAGIC:
        what = "the index of a TensorFlow checkpoint" if path.suffix == ".index" else "a TensorFlow checkpoint (V1)"
        if b"_CHECKPOINTABLE_OBJECT_GRAPH" in head:
            what += " with an object graph (tf.keras save_weights, or tf.train.Checkpoint)"
        return f"{what}: {_CHECKPOINT_WAY_OUT}"
    if path.suffix == ".index":
        return f"by its name the index of a TensorFlow checkpoint, though damaged or empty: {_CHECKPOINT_WAY_OUT}"
    if _SHARD.search(path.name):
        return f"the data of a TensorFlow checkpoint: {_CHECKPOINT_WAY_OUT}"
    if path.name == "checkpoint" and b"model_checkpoint_path" in head:
        return f"the list of TensorFlow checkpoints in its folder (text): {_CHECKPOINT_WAY_OUT}"
    if path.suffix == ".meta" and path.with_suffix(".index").is_file():
        return f"the graph of a TensorFlow 1 checkpoint (.meta): {_CHECKPOINT_WAY_OUT}"
    return None


def _signature(path: Path, head: bytes, tail: bytes) -> str | None:
    """Formats that say in their first bytes what they are."""
    if head.startswith(b"\x93NUMPY"):
        return f"a NumPy array (.npy): {_ARRAYS_WAY_OUT}"
    if head[4:8] == b"TFL3":
        return "a TensorFlow Lite model: it cannot be turned back; convert the Keras model that it was made from"
    if head.startswith(b"GGUF"):
        return "a GGUF file (llama.cpp): not a Keras model"
    if head.startswith(_TORCH_MAGIC):
        return f"a PyTorch file (torch.save before 1.6; a pickle): {_TORCH_WAY_OUT}"
    if head[8:9] == b"{" and _is_safetensors(path, head):
        return f"a safetensors file: {_ARRAYS_WAY_OUT}"
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`, or download the file again"
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "a web page, not a model: download the file itself (on GitHub: the raw file)"
    if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!")):
        if path.suffix in {".joblib", ".pkl", ".pickle"}:
            return f"a compressed pickle ({path.suffix}): {_PICKLE_WAY_OUT}"
        return "a compressed archive: unpack it and name the model inside"
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it and name the model inside"
    if len(head) > 2 and head[0] == 0x80 and head[1] in (2, 3, 4, 5) and tail.endswith(b"."):
        which = "a joblib file (a pickle)" if path.suffix == ".joblib" else "a Python pickle"
        return f"{which}: {_PICKLE_WAY_OUT}"
    return None


def _is_safetensors(path: Path, head: bytes) -> bool:
    """Eight bytes of header length, then that much JSON (the safetensors README)."""
    length = int.from_bytes(head[:8], "little")
    if not 2 <= length <= min(100_000_000, path.stat().st_size - 8):
        return False
    return b'"data_offsets"' in head or b'"__metadata__"' in head or head[8:10] == b"{}"


#: By suffix: where the bytes alone say nothing certain.
_SUFFIXES = {
    ".onnx": "an ONNX model: it cannot be turned back into Keras layers here; convert the Keras model it was made from",
    ".npz": f"NumPy arrays (.npz), though not a zip archive: {_ARRAYS_WAY_OUT}",
    ".tflite": "by its name a TensorFlow Lite model, though damaged: convert the Keras model that it was made from",
    ".pkl": f"a Python pickle by its name: {_PICKLE_WAY_OUT}",
    ".pickle": f"a Python pickle by its name: {_PICKLE_WAY_OUT}",
    ".joblib": f"a joblib file (a pickle) by its name: {_PICKLE_WAY_OUT}",
    ".pt": f"a PyTorch file by its name: {_TORCH_WAY_OUT}",
    ".pth": f"a PyTorch file by its name: {_TORCH_WAY_OUT}",
    ".mlmodel": "a Core ML model: convert the Keras model that it was made from",
    ".caffemodel": "a Caffe model: not a Keras model",
    ".params": "an MXNet parameter file by its name: not a Keras model",
    ".safetensors": f"a safetensors file by its name, though damaged: {_ARRAYS_WAY_OUT}",
}


def _by_name(path: Path, head: bytes, tail: bytes) -> str | None:
    if path.name in {"saved_model.pb", "saved_model.pbtxt"}:
        return f"the graph of a SavedModel: name its folder instead ({path.parent})"
    if path.name == "keras_metadata.pb":
        return f"a part of a SavedModel: name its folder instead ({path.parent})"
    if path.suffix == ".pb":
        return (
            "a TensorFlow graph (.pb), frozen by its look: only SavedModel folders are read; "
            "convert the model that it was made from"
        )
    if _is_onnx(head):
        return _SUFFIXES[".onnx"]
    return _SUFFIXES.get(path.suffix.lower())


def _is_onnx(head: bytes) -> bool:
    """Does it begin like ONNX's ModelProto (onnx.proto): ir_version (field 1), producer_name (2), a later field?"""
    if len(head) < 5 or head[0] != 0x08 or not 1 <= head[1] <= 30 or head[2] != 0x12 or head[3] > 100:
        return False
    end = 4 + head[3]
    return end < len(head) and all(32 <= c < 127 for c in head[4:end]) and head[end] in b"\x1a\x22\x28\x32\x3a\x42"


def _archive(path: Path) -> str | None:
    """A zip file, by the names of its members."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()[:100_000]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError):
        return None
    if "config.json" in names and any(name.endswith(".h5") for name in names):
        return None  # a .keras file
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
        kind = "a TorchScript file" if any("/code/" in f"/{name}" for name in names) else "a PyTorch file"
        return f"{kind}: {_TORCH_WAY_OUT}"
    if names and all(name.endswith(".npy") for name in names):
        return f"NumPy arrays (.npz): {_ARRAYS_WAY_OUT}"
    if {"configuration.json", "coefficients.bin"} <= set(names):
        return "a Deeplearning4j model: convert the Keras model that it was made from"
    saved_model = next((name for name in names if name.rsplit("/", 1)[-1] == "saved_model.pb"), None)
    if saved_model is not None:
        return "a zipped SavedModel: unpack it and name the folder that holds saved_model.pb"
    inner = next((name for name in names if name.endswith((".h5", ".hdf5", ".keras"))), None)
    if inner is not None:
        return f"a zip archive with {os.path.basename(inner)!r} inside: unpack it and name that file"
    return None


def _text(path: Path, head: bytes, tail: bytes) -> str | None:
    """JSON files that hold another program's model."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] not in (b"{", b'"'):
        return None
    if b'"modelTopology"' in head or b'"weightsManifest"' in head or b'"format": "layers-model"' in head:
        return (
            "a TensorFlow.js model: turn it back with "
            "`tensorflowjs_converter --input_format=tfjs_layers_model --output_format=keras`"
        )
    if path.suffix == ".json" and b'"learner"' in head:
        return "an XGBoost model: not a Keras model"
    return None
