"""Large arrays of HDF5 files are read and written past the library, and nothing else is."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import lstm_swap
from lstm_swap.errors import UnreadableModelError, VerificationError
from lstm_swap.formats import direct
from lstm_swap.weights import layouts, memory

INPUTS, UNITS = 300, 320  # a kernel of 1.5 MB, more than a tile each way, and no multiple of one


def _cudnn_file(path: Path, *, dtype: str = "<f4", dataset: dict[str, Any] | None = None, **file: Any) -> list[Any]:
    """A Keras 2.2.4 model of one CuDNNLSTM and a metric dataset behind it; returns the layer's arrays."""
    rng = np.random.default_rng(0)
    shapes = [(INPUTS, 4 * UNITS), (UNITS, 4 * UNITS), (8 * UNITS,)]
    arrays = [(rng.standard_normal(shape) / 16).astype(dtype) for shape in shapes]
    names = [f"gpu/{part}:0" for part in ("kernel", "recurrent_kernel", "bias")]
    config = {"name": "gpu", "units": UNITS, "batch_input_shape": [None, None, INPUTS], "return_sequences": True}
    layers = [{"class_name": "CuDNNLSTM", "config": config}]
    with h5py.File(path, "w", **file) as f:
        weights = f.create_group("model_weights")
        group = weights.create_group("gpu")
        group.attrs["weight_names"] = [n.encode() for n in names]
        for name, array in zip(names, arrays, strict=True):
            group.create_dataset(name, data=array, **(dataset or {}))
        weights.attrs["layer_names"] = [b"gpu"]
        f.attrs["keras_version"] = b"2.2.4"
        f.attrs["backend"] = b"tensorflow"
        entry = {"class_name": "Sequential", "config": {"name": "m", "layers": layers}}
        f.attrs["model_config"] = json.dumps(entry).encode()
        f.create_dataset("mine", data=np.arange(1000))
    return arrays


def _standard(arrays: list[Any]) -> list[Any]:
    """Kernel and recurrent kernel as Keras has them, from the definition of the layout."""
    blocks = [np.split(a, 4, axis=1) for a in arrays[:2]]
    kernel = np.hstack([b.ravel().reshape(UNITS, INPUTS).T for b in blocks[0]])
    return [kernel, np.hstack([b.T for b in blocks[1]])]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "user block": {"userblock_size": 512},
    "newest format": {"libver": "latest"},
    "big-endian": {"dtype": ">f4"},
    "double": {"dtype": "<f8"},
    "half": {"dtype": "<f2"},
    "chunked": {"dataset": {"chunks": True}},
    "compressed": {"dataset": {"compression": "gzip"}},
}


@pytest.mark.parametrize("case", CASES)
def test_every_storage_is_converted_exactly(case: str, tmp_path: Path) -> None:
    """Whatever way an array is stored, its converted numbers are there for HDF5 to read, in the same dtype."""
    arrays = _cudnn_file(tmp_path / "in.h5", **CASES[case])
    before = (tmp_path / "in.h5").read_bytes()
    lstm_swap.convert(tmp_path / "in.h5", tmp_path / "out.h5", to="standard", dialect="keras2")
    assert (tmp_path / "in.h5").read_bytes() == before
    with h5py.File(tmp_path / "out.h5") as f:
        group = f["model_weights/gpu"]
        stored = [group[n] for n in group.attrs["weight_names"]]
        for dataset, expected in zip(stored, _standard(arrays), strict=False):
            assert dataset.dtype == arrays[0].dtype
            np.testing.assert_array_equal(dataset[()], expected)
        np.testing.assert_array_equal(f["mine"][()], np.arange(1000))


def test_only_plain_bytes_are_touched_directly(tmp_path: Path) -> None:
    """Chunks, filters, outside files, other byte orders, other float formats, small and unwritten arrays: HDF5's."""
    values = np.zeros((512, 512), "<f4")
    odd = h5py.h5t.IEEE_F32LE.copy()
    odd.set_fields(30, 23, 7, 0, 23)
    odd.set_precision(31)
    with h5py.File(tmp_path / "f.h5", "w") as f:
        f.create_dataset("plain", data=values)
        f.create_dataset("small", data=values[:8])
        f.create_dataset("chunked", data=values, chunks=True)
        f.create_dataset("filtered", data=values, compression="gzip")
        f.create_dataset("swapped", data=values.astype(">f4"))
        f.create_dataset("unwritten", (512, 512), "<f4")
        f.create_dataset("outside", (512, 512), "<f4", external=[(str(tmp_path / "raw"), 0, values.nbytes)])
        h5py.h5d.create(f.id, b"odd", odd, h5py.h5s.create_simple((512, 512))).write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    with h5py.File(tmp_path / "f.h5", "r") as f:
        place = direct.place(f["plain"], values.dtype)
        assert place == f["plain"].id.get_offset()
        assert f["odd"].dtype == values.dtype
        for name in ("small", "chunked", "filtered", "swapped", "unwritten", "outside", "odd"):
            assert direct.place(f[name], values.dtype) is None, name
        assert direct.place(f["swapped"], np.dtype(">f4")) is not None


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The direct write says why it failed, and no output or temporary file stays."""
    _cudnn_file(tmp_path / "in.h5")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UnreadableModelError, match="No space left on device"):
        lstm_swap.convert(tmp_path / "in.h5", tmp_path / "out.h5", to="standard")
    assert [p.name for p in tmp_path.iterdir()] == ["in.h5"]


def test_a_wrong_bit_on_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read back is the file, not what was to be written."""
    _cudnn_file(tmp_path / "in.h5")
    write = os.pwrite

    def flip(handle: int, data: Any, offset: int) -> int:
        changed = bytearray(data)
        changed[-1] ^= 1
        return write(handle, changed, offset)

    monkeypatch.setattr(os, "pwrite", flip)
    with pytest.raises(VerificationError, match="kernel:0 reads back other numbers"):
        lstm_swap.convert(tmp_path / "in.h5", tmp_path / "out.h5", to="standard")
    assert [p.name for p in tmp_path.iterdir()] == ["in.h5"]


def test_writes_in_parts_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system may take, or give, less than it was asked to."""
    arrays = _cudnn_file(tmp_path / "in.h5")
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: write(handle, data[:100_000], offset))
    monkeypatch.setattr(os, "preadv", lambda handle, parts, offset: read(handle, [parts[0][:70_000]], offset))
    lstm_swap.convert(tmp_path / "in.h5", tmp_path / "out.h5", to="standard", dialect="keras2")
    with h5py.File(tmp_path / "out.h5") as f:
        np.testing.assert_array_equal(f["model_weights/gpu/gpu/kernel:0"][()], _standard(arrays)[0])


@pytest.mark.parametrize("source", layouts.LAYOUTS)
@pytest.mark.parametrize("target", layouts.LAYOUTS)
@pytest.mark.parametrize("kind", layouts.GATES)
def test_large_layouts_by_the_definition(kind: str, source: str, target: str) -> None:
    """Matrices of several tiles, and a rest each way, are moved like small ones."""
    gates, order = layouts.GATES[kind], [1, 0, 2] if kind == "gru" else [0, 1, 2, 3]
    rng = np.random.default_rng(1)
    blocks = [[rng.random((n, UNITS), "float32") for _ in range(gates)] for n in (INPUTS, UNITS)]
    bias = np.zeros({"standard": (2, 3 * UNITS)}.get(source, (6 * UNITS,)) if kind == "gru" else 4 * UNITS, "float32")
    if kind == "lstm" and source == "cudnn":
        bias = np.zeros(8 * UNITS, "float32")
    forms = {
        "standard": [np.hstack(b) for b in blocks],
        "cudnn": [np.hstack([g.T.ravel().reshape(g.shape) for g in b]) for b in blocks],
        "fused": [np.vstack([b[k].T for k in order]) for b in blocks],
    }
    found = layouts.swap(kind, [*forms[source], bias], source, target)
    for result, expected in zip(found, forms[target], strict=False):
        np.testing.assert_array_equal(result, expected)


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    """A view keeps its memory, a dropped array gives it to the next one, and in the end nothing is kept."""
    shape = (1024, 512)
    with memory.kept():
        first = memory.empty(shape, "float32")
        address = first.ctypes.data
        view = first[3:4, ::2].T
        del first
        second = memory.empty(shape, "float32")
        assert second.ctypes.data != address
        del view
        third = memory.empty(shape, np.float32)
        assert third.ctypes.data == address
        assert third.shape == shape
        assert third.flags.writeable
        assert memory.empty((4,), "float32").base is None
    del second, third
    assert not memory._spare
    assert memory.empty(shape, "float32").base is None
