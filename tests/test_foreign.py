"""Files that are not read: each is named for what it is, with the way out, and none is unpickled."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from lstm_swap.formats.foreign import recognise


class Trap:
    """Unpickled, it would leave a file."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.marker, "w"))


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3), b=np.ones(2))
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.h5"), io.BytesIO())
    return buffer.getvalue()


def _safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def _onnx() -> bytes:
    """ModelProto: ir_version 8, producer_name, a graph."""
    return b"\x08\x08" + b"\x12\x07pytorch" + b"\x3a\x04\x0a\x02ab"


#: torch.save writes a zip with data.pkl since 1.6; before that, three pickles of which the first is this number.
_TORCH_LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)

#: name of the file -> its bytes, words that the answer must hold
FILES: dict[str, tuple[Callable[[], bytes], list[str]]] = {
    "weights.npy": (_npy, ["NumPy array", ".keras"]),
    "weights.npz": (_npz, ["NumPy arrays", ".h5"]),
    "model.pt": (lambda: _zip({"archive/data.pkl": b"x", "archive/version": b"3"}), ["PyTorch", "state_dict"]),
    "script.pt": (lambda: _zip({"m/data.pkl": b"x", "m/code/f.py": b""}), ["TorchScript", "Keras"]),
    "legacy.pth": (lambda: _TORCH_LEGACY + b"rest", ["PyTorch", "1.6"]),
    "misnamed.h5": (lambda: _zip({"archive/data.pkl": b"x"}), ["PyTorch"]),
    "model.onnx": (_onnx, ["ONNX", "made from"]),
    "no_suffix_onnx": (_onnx, ["ONNX"]),
    "model.tflite": (lambda: b"\x1c\0\0\0TFL3" + bytes(20), ["TensorFlow Lite"]),
    "model.pkl": (lambda: pickle.dumps([1, 2]), ["pickle", "code"]),
    "model.joblib": (lambda: pickle.dumps([1, 2]), ["joblib", "code"]),
    "packed.joblib": (lambda: gzip.compress(pickle.dumps([1])), ["compressed pickle"]),
    "model.safetensors": (_safetensors, ["safetensors"]),
    "model.gguf": (lambda: b"GGUF\x03\0\0\0", ["GGUF"]),
    "model.mlmodel": (lambda: b"\x08\x04\x12\x02hi", ["Core ML"]),
    "frozen.pb": (lambda: b"\x0a\x05\x0a\x03abc", ["TensorFlow graph", "SavedModel folders"]),
    "saved_model.pb": (lambda: b"\x08\x01", ["SavedModel", "folder"]),
    "keras_metadata.pb": (lambda: b"\x0a\x00", ["SavedModel", "folder"]),
    "model.tar": (_tar, ["tar archive", "unpack"]),
    "model.tar.gz": (lambda: gzip.compress(_tar()), ["archive", "unpack"]),
    "model.zip": (lambda: _zip({"a/model.h5": b"x"}), ["zip archive", "model.h5", "unpack"]),
    "folder.zip": (lambda: _zip({"m/saved_model.pb": b"x", "m/variables/variables.index": b""}), ["zipped SavedModel"]),
    "dl4j.zip": (lambda: _zip({"configuration.json": b"{}", "coefficients.bin": b""}), ["Deeplearning4j"]),
    "pointer.h5": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        ["Git LFS", "lfs pull"],
    ),
    "page.h5": (lambda: b"\n<!DOCTYPE html><html>", ["web page", "download"]),
    "tfjs.json": (
        lambda: b'{"format": "layers-model", "modelTopology": {}}',
        ["TensorFlow.js", "tensorflowjs_converter"],
    ),
    "model.ckpt.data-00000-of-00001": (lambda: bytes(100), ["checkpoint", ".keras"]),
    "model.ckpt.index": (lambda: b"damaged", ["checkpoint", "damaged"]),
    "checkpoint": (lambda: b'model_checkpoint_path: "ckpt-1"\n', ["checkpoint", ".h5"]),
}


@pytest.mark.parametrize("name", FILES)
def test_file_is_named_with_a_way_out(tmp_path: Path, name: str) -> None:
    """One line that begins with the path, says what the file is, and what its owner can do."""
    make, words = FILES[name]
    path = tmp_path / name
    path.write_bytes(make())
    answer = recognise(path)
    assert answer is not None and answer.startswith(f"{path}: ") and "\n" not in answer
    for word in words:
        assert word.lower() in answer.lower()


def _h5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = "{}"


READ_HERE: dict[str, Callable[[Path], object]] = {
    "model.h5": _h5,
    "model.keras": lambda path: path.write_bytes(
        _zip({"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": b"x"})
    ),
    "misnamed.pkl": _h5,
    "architecture.json": lambda path: path.write_text('{"class_name": "Sequential", "config": []}'),
    "architecture.yaml": lambda path: path.write_text("class_name: Sequential\nconfig: []\n"),
    "notes.txt": lambda path: path.write_text("hello"),
    "empty.h5": lambda path: path.write_bytes(b""),
    "random.bin": lambda path: path.write_bytes(np.random.default_rng(0).bytes(3000)),
    "damaged.zip": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(50)),
}


@pytest.mark.parametrize("name", READ_HERE)
def test_what_is_read_here_or_unknown_is_left_to_others(tmp_path: Path, name: str) -> None:
    """No answer for the containers that are read, and none for files that say nothing."""
    READ_HERE[name](tmp_path / name)
    assert recognise(tmp_path / name) is None


def test_checkpoints_of_tensorflow(tmp_path: Path) -> None:
    """A real checkpoint by its index, its data, its prefix (which is no file) and its folder."""
    tf = pytest.importorskip("tensorflow")
    variable = tf.Variable([1.0, 2.0])
    prefix = tf.train.Checkpoint(kernel=variable).save(str(tmp_path / "ckpts" / "model.ckpt"))
    for path in (prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001", tmp_path / "ckpts"):
        answer = recognise(path)
        assert answer is not None and str(path) in answer
        assert "TensorFlow checkpoint" in answer and ".keras" in answer
    assert "prefix" in str(recognise(prefix))
    assert "object graph" in str(recognise(f"{prefix}.index"))


def test_folders(tmp_path: Path) -> None:
    """SavedModel folders are read elsewhere; PyTorch's, TensorFlow.js's and Core ML's are named."""
    for name, files in {
        "saved": ["saved_model.pb", "variables.index", "checkpoint"],
        "torch": ["config.json", "pytorch_model.bin"],
        "web": ["group1-shard1of1.bin"],
        "core.mlpackage": ["Manifest.json"],
        "split": ["saved_model.cpb"],
        "other": ["readme.txt"],
    }.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_bytes(b"")
    (tmp_path / "web" / "model.json").write_text('{"modelTopology": {}, "weightsManifest": []}')
    assert recognise(tmp_path / "saved") is None
    assert recognise(tmp_path / "other") is None
    assert "PyTorch" in str(recognise(tmp_path / "torch"))
    assert "TensorFlow.js" in str(recognise(tmp_path / "web"))
    assert "Core ML" in str(recognise(tmp_path / "core.mlpackage"))
    assert "split form" in str(recognise(tmp_path / "split"))


def test_pickles_are_never_run(tmp_path: Path) -> None:
    """A pickle that would write a file when loaded writes none, whatever its name and packing."""
    marker = tmp_path / "marker"
    trap = pickle.dumps(Trap(str(marker)))
    for name, data in {
        "a.pkl": trap,
        "b.joblib": gzip.compress(trap),
        "c.pt": _zip({"archive/data.pkl": trap}),
        "d.h5": trap,
    }.items():
        (tmp_path / name).write_bytes(data)
        assert recognise(tmp_path / name) is not None
    buffer = io.BytesIO()
    np.save(buffer, np.array([Trap(str(marker))], dtype=object), allow_pickle=True)
    (tmp_path / "e.npy").write_bytes(buffer.getvalue())
    assert "NumPy" in str(recognise(tmp_path / "e.npy"))
    assert not marker.exists()


def test_paths_that_cannot_be_looked_into(tmp_path: Path) -> None:
    """No file, a pipe, a broken link, a name with a zero byte: no answer, at once, and no error."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    started = time.monotonic()
    for path in (tmp_path / "nothing", tmp_path / "pipe", tmp_path / "link", "a\0b", ""):
        assert recognise(path) is None
    assert time.monotonic() - started < 2


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    """Only both ends of a file are read, whatever its size."""
    with (tmp_path / "huge.npy").open("wb") as file:
        file.write(b"\x93NUMPY")
        file.truncate(1 << 40)
    started = time.monotonic()
    assert "NumPy" in str(recognise(tmp_path / "huge.npy"))
    assert time.monotonic() - started < 2
