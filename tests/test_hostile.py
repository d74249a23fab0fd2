"""Foreign and broken files: one clear line with the file and the place, exit 1, nothing written, nothing run."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from lstm_swap.cli import main

UNITS, FEATURES = 4, 3
Edit = Callable[[Any], Any]


def _architecture(layer: str = "CuDNNLSTM", **settings: Any) -> dict[str, Any]:
    """A Sequential as Keras 2.2.4 wrote it."""
    config = {"name": "rnn", "batch_input_shape": [None, 5, FEATURES], "units": UNITS, **settings}
    return {
        "class_name": "Sequential",
        "config": {
            "name": "s",
            "layers": [
                {"class_name": layer, "config": config},
                {"class_name": "Dense", "config": {"name": "out", "units": 2, "use_bias": True}},
            ],
        },
    }


def _graph() -> dict[str, Any]:
    """A functional model: in -> rnn -> out."""
    layers = _architecture()["config"]["layers"]
    shape = {"name": "in", "batch_input_shape": [None, 5, FEATURES], "dtype": "float32", "sparse": False}
    layers.insert(0, {"class_name": "InputLayer", "config": shape})
    for layer, before in zip(layers, (None, "in", "rnn"), strict=True):
        layer["name"] = layer["config"]["name"]
        layer["inbound_nodes"] = [[[before, 0, 0, {}]]] if before else []
    ends = {"input_layers": [["in", 0, 0]], "output_layers": [["out", 0, 0]]}
    return {"class_name": "Model", "config": {"name": "m", "layers": layers, **ends}}


def _arrays() -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = {"rnn": [(FEATURES, 4 * UNITS), (UNITS, 4 * UNITS), (8 * UNITS,)], "out": [(UNITS, 2), (2,)]}
    return {name: [rng.uniform(-1, 1, s).astype("float32") for s in own] for name, own in shapes.items()}


NAMES = {"rnn": ["rnn/kernel:0", "rnn/recurrent_kernel:0", "rnn/bias:0"], "out": ["out/kernel:0", "out/bias:0"]}


def _write(path: Path, entry: Any = None) -> Path:
    """A whole model in HDF5."""
    with h5py.File(path, "w") as f:
        f.attrs["keras_version"] = b"2.2.4"
        f.attrs["backend"] = b"tensorflow"
        f.attrs["model_config"] = json.dumps(entry or _architecture()).encode()
        weights = f.create_group("model_weights")
        weights.attrs["layer_names"] = [b"rnn", b"out"]
        for name, own in _arrays().items():
            group = weights.create_group(name)
            group.attrs["weight_names"] = [n.encode() for n in NAMES[name]]
            for n, value in zip(NAMES[name], own, strict=True):
                group[n] = value
    return path


def _run(folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and stderr; a failed command must leave the folder as it was."""

    def state() -> dict[str, Any]:
        return {p.name: (os.lstat(p).st_mode, p.read_bytes() if p.is_file() else None) for p in folder.iterdir()}

    before = state()
    result = CliRunner().invoke(main, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    after = state()
    if result.exit_code:
        assert after == before
        assert not result.stdout
    else:
        assert {k: after[k] for k in before} == before
    return result.exit_code, result.stderr


def _refused(path: Path, *says: str) -> None:
    """inspect and convert both exit with 1 and one line that says the file and these texts."""
    for args in (["inspect", str(path)], ["convert", str(path), "-o", str(path.parent / "out.h5"), "--to", "standard"]):
        code, stderr = _run(path.parent, *args)
        assert code == 1, stderr
        assert stderr.startswith("error: ") and len(stderr.splitlines()) == 1
        assert stderr.count(path.name) >= 1
        for text in says:
            assert text.lower() in stderr.lower()


def _converts(path: Path, out: str = "out.h5") -> str:
    code, stderr = _run(path.parent, "convert", str(path), "-o", str(path.parent / out), "--to", "standard")
    assert code == 0, stderr
    with h5py.File(path.parent / out) as f:
        return str(f.attrs["model_config"])


# ------------------------------------------------------------------ HDF5: arrays and groups

KERNEL = "model_weights/rnn/rnn/kernel:0"


def _put(f: Any, value: Any, **options: Any) -> None:
    del f[KERNEL]
    f.create_dataset(KERNEL, data=value, **options)


def _virtual(f: Any) -> None:
    shape = f[KERNEL].shape
    del f[KERNEL]
    layout = h5py.VirtualLayout(shape, "float32")
    layout[:] = h5py.VirtualSource("/etc/passwd", "k", shape=shape)
    f.create_virtual_dataset(KERNEL, layout)


def _external(f: Any) -> None:
    del f[KERNEL]
    f.create_dataset(KERNEL, (FEATURES, 4 * UNITS), "float32", external=[("/etc/passwd", 0, 192)])


def _link(f: Any, link: Any, at: str = KERNEL) -> None:
    del f[at]
    f[at] = link


SHAPE = (FEATURES, 4 * UNITS)


def _edited_and_refused(tmp_path: Path, edit: Edit, says: tuple[str, ...]) -> None:
    path = _write(tmp_path / "model.h5")
    with h5py.File(path, "r+") as f:
        edit(f)
    _refused(path, *says)


BROKEN_ARRAYS: dict[str, tuple[Edit, tuple[str, ...]]] = {
    "missing": (lambda f: f.__delitem__(KERNEL), ("rnn", "kernel", "missing")),
    "a group": (lambda f: (f.__delitem__(KERNEL), f.create_group(KERNEL)), ("rnn", "kernel", "not an array")),
    "transposed": (lambda f: _put(f, np.zeros(SHAPE[::-1], "f4")), ("rnn", "kernel", "shape (16, 3)")),
    "of rank 3": (lambda f: _put(f, np.zeros((1, *SHAPE), "f4")), ("rnn", "kernel", "shape")),
    "a scalar": (lambda f: _put(f, np.float32(1)), ("rnn", "kernel", "shape ()")),
    "empty": (lambda f: _put(f, np.zeros((0, 4 * UNITS), "f4")), ("rnn", "no numbers")),
    "without a space": (lambda f: _put(f, h5py.Empty("f4")), ("rnn", "no shape")),
    "texts": (lambda f: _put(f, np.full(SHAPE, b"1.5")), ("rnn", "not numbers")),
    "compound": (lambda f: _put(f, np.zeros(SHAPE, [("a", "f4"), ("b", "i4")])), ("rnn", "not numbers")),
    "references": (lambda f: _put(f, [f.ref], dtype=h5py.ref_dtype), ("rnn", "not numbers")),
    "complex": (lambda f: _put(f, np.zeros(SHAPE, "c8")), ("rnn", "not numbers")),
    "whole numbers": (lambda f: _put(f, np.ones(SHAPE, "i4")), ("rnn", "int32", "not floating-point")),
    "a bomb": (
        lambda f: (f.__delitem__(KERNEL), f.create_dataset(KERNEL, (10**6, 16000), "f4", chunks=(999, 999))),
        ("rnn", "64,000,000,000"),
    ),
    "external": (_external, ("rnn", "outside")),
    "virtual": (_virtual, ("rnn", "outside")),
    "an external link": (lambda f: _link(f, h5py.ExternalLink("/etc/passwd", "/k")), ("rnn", "outside")),
    "a link to itself": (lambda f: _link(f, h5py.SoftLink(f"/{KERNEL}")), ("rnn", "kernel", "link")),
    "a group elsewhere": (
        lambda f: _link(f, h5py.ExternalLink("other.h5", "/"), "model_weights"),
        ("model_weights", "outside"),
    ),
}


@pytest.mark.parametrize("what", BROKEN_ARRAYS)
def test_broken_arrays(tmp_path: Path, what: str) -> None:
    """An array that is none, or not the layer's, or not in the file, is named with its layer; nothing is followed."""
    _edited_and_refused(tmp_path, *BROKEN_ARRAYS[what])


STORED_OTHERWISE: dict[str, Edit] = {
    "compressed": lambda f: _put(f, f[KERNEL][()], chunks=(1, 4), compression="gzip", shuffle=True, fletcher32=True),
    "big-endian": lambda f: _put(f, f[KERNEL][()].astype(">f4")),
    "resizable": lambda f: _put(f, f[KERNEL][()], maxshape=(None, None)),
    "behind a link": lambda f: (f.move(KERNEL, "elsewhere"), f.__setitem__(KERNEL, h5py.SoftLink("/elsewhere"))),
    "named by objects": lambda f: f["model_weights/rnn"].attrs.__setitem__("weight_names", NAMES["rnn"]),
    "beside a link out": lambda f: f.__setitem__("notes", h5py.ExternalLink("/etc/passwd", "/")),
    "with a byte-order mark": lambda f: f.attrs.__setitem__("model_config", "\ufeff" + json.dumps(_architecture())),
}


@pytest.mark.parametrize("what", STORED_OTHERWISE)
def test_unusual_storage_is_read(tmp_path: Path, what: str) -> None:
    """HDF5 may store the same numbers in many ways; the output has them where Keras looks."""
    from lstm_swap.weights import layouts

    path = _write(tmp_path / "model.h5")
    with h5py.File(path, "r+") as f:
        STORED_OTHERWISE[what](f)
    assert '"LSTM"' in _converts(path)
    with h5py.File(tmp_path / "out.h5") as f:
        group = f["model_weights/rnn"]
        got = [group[n][()] for n in group.attrs["weight_names"]]
    for a, b in zip(got, layouts.swap("lstm", _arrays()["rnn"], "cudnn", "standard"), strict=True):
        np.testing.assert_array_equal(a, b.astype("float32"))


BROKEN_LISTS: dict[str, tuple[Edit, tuple[str, ...]]] = {
    "no group of a layer": (lambda f: f.__delitem__("model_weights/rnn"), ("rnn", "missing")),
    "no weights": (lambda f: f.__delitem__("model_weights"), ("model_weights", "missing")),
    "weights are an array": (lambda f: _link(f, np.zeros(3), "model_weights"), ("model_weights", "not a group")),
    "no layer_names": (lambda f: f["model_weights"].attrs.__delitem__("layer_names"), ("layer_names",)),
    "layer_names too short": (lambda f: f["model_weights"].attrs.__setitem__("layer_names", [b"rnn"]), ("out",)),
    "layer_names too long": (
        lambda f: (
            f["model_weights"].attrs.__setitem__("layer_names", [b"rnn", b"out", b"more"]),
            f["model_weights"].copy("out", "more"),
        ),
        ("more", "not in the model"),
    ),
    "layer_names empty": (
        lambda f: f["model_weights"].attrs.__setitem__("layer_names", h5py.Empty("S1")),
        ("rnn", "no arrays"),
    ),
    "weight_names too short": (
        lambda f: f["model_weights/rnn"].attrs.__setitem__("weight_names", [b"rnn/kernel:0"]),
        ("rnn", "3 arrays"),
    ),
    "weight_names too long": (
        lambda f: f["model_weights/out"].attrs.__setitem__("weight_names", [b"out/kernel:0", b"out/bias:0", b"x"]),
        ("out", "'x'", "missing"),
    ),
    "weight_names lead out": (
        lambda f: f["model_weights/rnn"].attrs.__setitem__("weight_names", [b"../../x", b"a", b"b"]),
        ("rnn", "missing"),
    ),
}


@pytest.mark.parametrize("what", BROKEN_LISTS)
def test_broken_lists(tmp_path: Path, what: str) -> None:
    """Layers and arrays are those that the file lists, no more and no fewer than the architecture needs."""
    _edited_and_refused(tmp_path, *BROKEN_LISTS[what])


def test_damaged_training_settings_do_not_matter(tmp_path: Path) -> None:
    """Compile settings or optimizer state that cannot be read go with a warning; the model converts all the same."""
    for n, edit in enumerate(
        (
            lambda f: f.attrs.__setitem__("training_config", b"{oops"),
            lambda f: f.attrs.__setitem__("training_config", 3),
            lambda f: f.create_group("optimizer_weights").attrs.__setitem__("weight_names", [b"nope"]),
            lambda f: f.__setitem__("optimizer_weights", np.zeros(3)),
        )
    ):
        path = _write(tmp_path / f"model{n}.h5")
        with h5py.File(path, "r+") as f:
            edit(f)
        result = CliRunner().invoke(main, ["convert", str(path), "--to", "standard", "--json"])
        assert result.exit_code == 0
        assert any("dropped" in w for w in json.loads(result.stdout)["warnings"])
        with h5py.File(tmp_path / f"model{n}.standard.h5") as f:
            assert "training_config" not in f.attrs
            assert "optimizer_weights" not in f


# ------------------------------------------------------------------ architectures


def _set(entry: dict[str, Any], *path: Any) -> dict[str, Any]:
    *steps, key, value = path
    at: Any = entry
    for step in steps:
        at = at[step]
    at[key] = value
    return entry


L0 = ("config", "layers", 0)
BROKEN_ARCHITECTURES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "null": (None, ("model_config",)),
    "a list": ([1], ("model_config", "list")),
    "a subclassed model": ({"class_name": "MyModel", "config": {"a": 1}}, ("MyModel", "lists no layers")),
    "layers are no list": (_set(_architecture(), "config", "layers", "rnn"), ("lists no layers",)),
    "a layer is a number": (_set(_architecture(), "config", "layers", 0, 7), ("layer", "no object")),
    "a layer without config": (_set(_architecture(), *L0, "config", None), ("no config",)),
    "a class that is a list": (_set(_architecture(), *L0, "class_name", ["LSTM"]), ("class_name",)),
    "a name that is a number": (_set(_architecture(), *L0, "config", "name", 7), ("name", "7")),
    "a name with a NUL": (_set(_architecture(), *L0, "config", "name", "a\0b"), ("name",)),
    "units as a text": (_set(_architecture(), *L0, "config", "units", "4"), ("rnn", "units='4'")),
    "units null": (_set(_architecture(), *L0, "config", "units", None), ("rnn", "units=None")),
    "units negative": (_set(_architecture(), *L0, "config", "units", -1), ("rnn", "units=-1")),
    "units zero": (_set(_architecture(), *L0, "config", "units", 0), ("rnn", "units=0")),
    "units true": (_set(_architecture(), *L0, "config", "units", True), ("rnn", "units=True")),
    "units broken": (_set(_architecture(), *L0, "config", "units", 4.5), ("rnn", "units=4.5")),
    "units enormous": (_set(_architecture(), *L0, "config", "units", 10**30), ("rnn", "shape")),
    "return_sequences as a text": (
        _set(_architecture(), *L0, "config", "return_sequences", "yes"),
        ("rnn", "return_sequences='yes'"),
    ),
    "dropout as a text": (_set(_architecture("LSTM"), *L0, "config", "dropout", "a lot"), ("rnn", "dropout='a lot'")),
    "activation as a number": (_set(_architecture("LSTM"), *L0, "config", "activation", 3), ("rnn", "activation=3")),
    "a wrapper around nothing": (
        _set(_architecture(), "config", "layers", 0, {"class_name": "Bidirectional", "config": {"name": "b"}}),
        ("'b'", "no layer"),
    ),
    "two layers of one name": (_set(_graph(), "config", "layers", 2, "name", "rnn"), ("two layers", "rnn")),
    "a call of a stranger": (
        _set(_graph(), "config", "layers", 1, "inbound_nodes", [[["who", 0, 0, {}]]]),
        ("rnn", "'who'"),
    ),
    "a call that is a number": (_set(_graph(), "config", "layers", 1, "inbound_nodes", 3), ("rnn", "inbound_nodes")),
    "a call with broken numbers": (
        _set(_graph(), "config", "layers", 1, "inbound_nodes", [[["in", 0, "first", {}]]]),
        ("rnn", "in"),
    ),
    "an output that is not there": (
        _set(_graph(), "config", "output_layers", [["nobody", 0, 0]]),
        ("output_layers", "nobody"),
    ),
    "a circle": (
        _set(_graph(), "config", "layers", 1, "inbound_nodes", [[["out", 0, 0, {}]]]),
        ("circle",),
    ),
}


@pytest.mark.parametrize("what", BROKEN_ARCHITECTURES)
def test_broken_architectures(tmp_path: Path, what: str) -> None:
    """What no Keras writes is named: the layer, the field and its value."""
    entry, says = BROKEN_ARCHITECTURES[what]
    path = _write(tmp_path / "model.h5")
    with h5py.File(path, "r+") as f:
        f.attrs["model_config"] = json.dumps(entry).encode()
    _refused(path, *says)


@pytest.mark.parametrize(
    "value",
    [3, np.zeros(4), ["{}", "{}"], h5py.Empty("S3"), "", '{"class_name":', "[" * 100_000, np.void(b"\xff\0")],
    ids=["number", "numbers", "texts", "Empty", "nothing", "cut", "deep", "bytes"],
)
def test_model_config_of_an_odd_type(tmp_path: Path, value: Any) -> None:
    """The attribute may be of any HDF5 type, and its text of any kind."""
    path = _write(tmp_path / "model.h5")
    with h5py.File(path, "r+") as f:
        del f.attrs["model_config"]
        f.attrs["model_config"] = value
    _refused(path, "model_config")


def test_every_setting_of_every_odd_kind(tmp_path: Path) -> None:
    """Whatever single value of an architecture is exchanged: no traceback, and nothing left behind after an error."""
    odd = [None, "yes", -1, 10**30, float("nan"), [], {}, [[1]], {"class_name": ["a"], "config": 3}]
    source = _write(tmp_path / "source.h5", _graph())
    path = tmp_path / "model.h5"

    def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [at, *(p for key, inner in items for p in places(inner, (*at, key)))]

    for place in places(_graph())[1:]:
        for n, value in enumerate(odd):
            if (n + len(place)) % 2:
                continue  # every other one is enough
            shutil.copy(source, path)
            with h5py.File(path, "r+") as f:
                f.attrs["model_config"] = json.dumps(_set(_graph(), *place, value)).encode()
            code, _ = _run(tmp_path, "convert", str(path), "-o", str(tmp_path / "out.keras"), "--to", "standard")
            assert code in (0, 1), (place, value)
            (tmp_path / "out.keras").unlink(missing_ok=True)


def test_bidirectionals_in_each_other(tmp_path: Path) -> None:
    """Each one doubles what is in it: forty would be a million million layers."""
    entry: dict[str, Any] = {"class_name": "LSTM", "config": {"name": "l", "units": 2}}
    for n in range(40):
        entry = {"class_name": "Bidirectional", "config": {"name": f"b{n}", "layer": entry}}
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"class_name": "Sequential", "config": {"name": "s", "layers": [entry]}}))
    code, stderr = _run(tmp_path, "inspect", str(path))
    assert code == 1
    assert "Bidirectional" in stderr


def test_names_cannot_paint_the_terminal(tmp_path: Path) -> None:
    """Escape codes, newlines and long names come from foreign files; they are shown harmlessly and kept in the file."""
    name = "r\x1b[31mnn\n" + "x" * 500
    entry = _set(_architecture(), *L0, "config", "name", name)
    path = _write(tmp_path / "model.h5", entry)
    with h5py.File(path, "r+") as f:
        f.move("model_weights/rnn", f"model_weights/{name}")
        f["model_weights"].attrs["layer_names"] = [name.encode(), b"out"]
    for args in (["inspect", str(path)], ["convert", str(path), "-o", str(tmp_path / "o.h5"), "--to", "standard"]):
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0
        assert "\x1b" not in result.output
        assert "x" * 400 not in result.output
    with h5py.File(tmp_path / "o.h5") as f:
        assert json.loads(f.attrs["model_config"])["config"]["layers"][-2]["config"]["name"] == name


# ------------------------------------------------------------------ containers


def test_what_is_no_model(tmp_path: Path) -> None:
    """Everything that people name .h5 by mistake is said to be what it is."""
    contents = {
        "empty": (b"", "empty"),
        "a page": (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        "a text": (b"hello world\n" * 9, "text"),
        "an LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n", "git lfs"),
        "a pickle": (pickle.dumps({"a": 1}), "pickle"),
        "zeros": (bytes(1000), "not a model"),
        "a number": (b"42\n", "text"),
        "only the beginning": (b"\x89HDF\r\n\x1a\n" + bytes(90), "damaged"),
    }
    for name, (data, says) in contents.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.h5").write_bytes(data)
        _refused(folder / "model.h5", says)


def test_truncated_anywhere(tmp_path: Path) -> None:
    """An interrupted copy is damaged wherever it ends."""
    whole = _write(tmp_path / "whole.h5").read_bytes()
    for end in (8, 100, 700, 3000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "model.h5").write_bytes(whole[:end])
        _refused(tmp_path / "model.h5", "HDF5")


def test_special_files_and_folders(tmp_path: Path) -> None:
    """Pipes and devices are not waited for; folders and missing files are said to be that."""
    os.mkfifo(tmp_path / "pipe.h5")
    (tmp_path / "folder.h5").mkdir()
    (tmp_path / "dangling.h5").symlink_to("nowhere")
    (tmp_path / "loop.h5").symlink_to("loop.h5")
    for name, says in {
        str(tmp_path / "pipe.h5"): "not a regular file",
        "/dev/zero": "not a regular file",
        str(tmp_path / "folder.h5"): "a folder",
        str(tmp_path / "dangling.h5"): "no such file",
        str(tmp_path / "loop.h5"): "symbolic link",
        str(tmp_path / "none.h5"): "no such file",
    }.items():
        code, stderr = _run(tmp_path, "convert", name, "-o", str(tmp_path / "out.h5"))
        assert code == 1
        assert says in stderr


def _zip(path: Path, change: Callable[[dict[str, bytes]], Any], compression: int = zipfile.ZIP_STORED) -> Path:
    """A `.keras` file of one LSTM, changed."""
    rng = np.random.default_rng(0)
    with h5py.File(path.with_suffix(".w"), "w") as f:
        for i, shape in enumerate([(FEATURES, 4 * UNITS), (UNITS, 4 * UNITS), (4 * UNITS,)]):
            f[f"layers/lstm/cell/vars/{i}"] = rng.uniform(-1, 1, shape).astype("float32")
    shape = {"batch_shape": [None, 5, FEATURES], "dtype": "float32", "sparse": False, "name": "in"}
    lstm = {"name": "rnn", "units": UNITS, "zero_output_for_mask": False}
    layers = [
        {"module": "keras.layers", "class_name": "InputLayer", "config": shape, "registered_name": None},
        {"module": "keras.layers", "class_name": "LSTM", "config": lstm, "registered_name": None},
    ]
    entry = {"module": "keras", "class_name": "Sequential", "config": {"name": "s", "layers": layers}}
    members = {
        "metadata.json": b'{"keras_version": "3.15.1"}',
        "config.json": json.dumps({**entry, "registered_name": None}).encode(),
        "model.weights.h5": path.with_suffix(".w").read_bytes(),
    }
    path.with_suffix(".w").unlink()
    change(members)
    with zipfile.ZipFile(path, "w", compression) as z:
        for name, data in members.items():
            z.writestr(name, data)
    return path


def _weights(change: Edit) -> Callable[[dict[str, bytes]], None]:
    def edit(members: dict[str, bytes]) -> None:
        buffer = io.BytesIO(members["model.weights.h5"])
        with h5py.File(buffer, "r+") as f:
            change(f)
        members["model.weights.h5"] = buffer.getvalue()

    return edit


CELL = "layers/lstm/cell/vars/0"
BROKEN_ZIPS: dict[str, tuple[Callable[[dict[str, bytes]], Any], tuple[str, ...]]] = {
    "no config": (lambda m: m.pop("config.json"), ("config.json",)),
    "no weights": (lambda m: m.pop("model.weights.h5"), ("model.weights.h5",)),
    "config cut": (lambda m: m.update({"config.json": m["config.json"][:99]}), ("config.json", "JSON")),
    "weights cut": (lambda m: m.update({"model.weights.h5": m["model.weights.h5"][:999]}), ("model.weights.h5",)),
    "weights are a text": (lambda m: m.update({"model.weights.h5": b"hello"}), ("model.weights.h5", "damaged")),
    "an array is missing": (_weights(lambda f: f.__delitem__(CELL)), ("rnn", "arrays")),
    "an array is a link": (_weights(lambda f: _link(f, h5py.ExternalLink("/etc/passwd", "/"), CELL)), ("link",)),
    "a group in itself": (_weights(lambda f: f["layers"].__setitem__("loop", f["layers"])), ("too deeply",)),
}


@pytest.mark.parametrize("what", BROKEN_ZIPS)
def test_broken_zips(tmp_path: Path, what: str) -> None:
    """A piece that is missing or broken is named."""
    change, says = BROKEN_ZIPS[what]
    _refused(_zip(tmp_path / "model.keras", change), *says)


def test_a_zip_bomb(tmp_path: Path) -> None:
    """A member that unpacks to a thousand times its size is refused before it is unpacked."""
    bomb = bytes(300 << 20)
    path = _zip(tmp_path / "model.keras", lambda m: m.update({"model.weights.h5": bomb}), zipfile.ZIP_DEFLATED)
    _refused(path, "model.weights.h5", "314,572,800")


def test_zip_members_that_lead_out(tmp_path: Path) -> None:
    """Nothing is unpacked beside the folder, and the output does not pass such members on."""
    evil = {"../evil.txt": b"x", "/tmp/evil.txt": b"x", "assets/../../evil.txt": b"x", "notes.txt": b"kept"}
    path = _zip(tmp_path / "model.keras", lambda m: m.update(evil))
    code, stderr = _run(tmp_path, "convert", str(path), "-o", str(tmp_path / "out.keras"), "--to", "standard")
    assert code == 0, stderr
    with zipfile.ZipFile(tmp_path / "out.keras") as z:
        assert not [n for n in z.namelist() if "evil" in n]
        assert z.read("notes.txt") == b"kept"
    assert not Path("/tmp/evil.txt").exists()
    assert not (tmp_path.parent / "evil.txt").exists()


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system ['touch pwned']", "!!python/module:os", "!mine x", "!!binary aGk="]
)
def test_yaml_runs_nothing(tmp_path: Path, tag: str) -> None:
    """A tag that Python would have to run, or that JSON has not, is an error that names it."""
    path = tmp_path / "model.yaml"
    path.write_text(f"class_name: Sequential\nconfig:\n  name: s\n  layers: []\n  x: {tag}\n")
    code, stderr = _run(tmp_path, "inspect", str(path))
    assert code == 1
    assert "model.yaml" in stderr
    assert not (tmp_path / "pwned").exists()


def test_yaml_bomb_and_circle(tmp_path: Path) -> None:
    """Aliases that multiply, or that hold themselves, are refused at once."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    for n, text in enumerate(("\n".join(lines), "class_name: Sequential\nconfig: &x\n  layers: [*x]\n")):
        path = tmp_path / f"model{n}.yaml"
        path.write_text(text)
        code, stderr = _run(tmp_path, "inspect", str(path))
        assert code == 1
        assert "alias" in stderr


def test_yaml_aliases_do_not_tie_layers_together(tmp_path: Path) -> None:
    """What a YAML file writes once and uses twice becomes two: the layers are edited in place."""
    settings = {
        "name": "rnn",
        "units": UNITS,
        "batch_input_shape": [None, 5, FEATURES],
        "recurrent_activation": "sigmoid",
    }
    shared = {"class_name": "VarianceScaling", "config": {"scale": 1.0, "mode": "fan_avg", "distribution": "uniform"}}
    entry = _architecture()
    entry["config"]["layers"][0] = {"class_name": "CuDNNLSTM", "config": {**settings, "kernel_initializer": shared}}
    entry["config"]["layers"][1]["config"]["kernel_initializer"] = shared
    import yaml

    text = yaml.safe_dump(entry)
    assert "*id001" in text
    (tmp_path / "model.yaml").write_text(text)
    _write(tmp_path / "weights.h5")
    out = tmp_path / "out.h5"
    args = ["convert", str(tmp_path / "model.yaml"), "--weights", str(tmp_path / "weights.h5"), "-o", str(out)]
    code, stderr = _run(tmp_path, *args, "--to", "standard")
    assert code == 0, stderr
    with h5py.File(out) as f:
        layers = [e["config"] for e in json.loads(f.attrs["model_config"])["config"]["layers"]]
    assert [c["kernel_initializer"]["config"]["scale"] for c in layers if "units" in c] == [1.0, 1.0]


def test_a_hundred_thousand_layers(tmp_path: Path) -> None:
    """Time grows with the number of layers, not with its square, in every container."""
    import time

    layers = [{"class_name": "Activation", "config": {"name": f"a{n}", "activation": "tanh"}} for n in range(100_000)]
    entry = _architecture()
    entry["config"]["layers"] += layers
    path = _write(tmp_path / "model.h5", entry)
    start = time.monotonic()
    code, stderr = _run(tmp_path, "convert", str(path), "-o", str(tmp_path / "out.keras"), "--to", "standard")
    assert code == 0, stderr
    assert time.monotonic() - start < 40
