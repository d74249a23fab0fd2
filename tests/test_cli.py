"""The command line: exact outputs, exit codes, names of outputs, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from lstm_swap.cli import main
from tests.test_hostile import _architecture, _arrays, _graph, _write, _zip

KEYS = {"file", "container", "keras_version", "dialect", "to", "output", "verified", "warnings", "layers"}
LAYER_KEYS = {"path", "class", "kind", "units", "parameters", "action", "to_class", "reasons", "max_error"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a GPU model, its architecture and its weights alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    _write(tmp_path / "model.h5")
    (tmp_path / "arch.json").write_text(json.dumps(_architecture()))
    _weights_only(tmp_path / "weights.h5")
    return tmp_path


def _weights_only(path: Path) -> None:
    _write(path)
    with h5py.File(path, "r+") as f:
        for key, value in f["model_weights"].attrs.items():
            f.attrs[key] = value
        for name in ("rnn", "out"):
            f.move(f"model_weights/{name}", name)
        del f["model_weights"], f.attrs["model_config"]


def run(*args: str) -> Any:
    """Run in this process; an error that is not meant for the user fails the test."""
    result = CliRunner().invoke(main, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def command(*args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run as users do."""
    return subprocess.run(
        [sys.executable, "-m", "lstm_swap", *args], capture_output=True, timeout=60, **{"check": False, **options}
    )


def test_inspect_says_what_it_is_and_what_to_do(folder: Path) -> None:
    """The exact text: the file, the GPU, today's Keras, the command that fixes it, and a row a layer."""
    lines = run("inspect", "model.h5").stdout.splitlines()
    assert lines[0] == "model.h5: whole model, HDF5, written by Keras 2.2.4"
    assert lines[1] == "It needs a GPU: it holds layers that only run on cuDNN."
    assert lines[2].startswith("Today's Keras (3) does not open it: CuDNNLSTM and CuDNNGRU are not part of it")
    assert lines[3] == "To fix that: lstm-swap convert model.h5 --to standard"
    row = next(line for line in run("inspect", "model.h5").stdout.splitlines() if line.strip("| ").startswith("rnn "))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:6] == ["rnn", "CuDNNLSTM", "4", "144", "sigmoid", "swap: LSTM"]


def test_convert_says_what_it_did(folder: Path) -> None:
    """The name of the output and a line that sums up."""
    lines = run("convert", "model.h5", "--to", "standard").stdout.splitlines()
    assert lines[:2] == ["model.h5: whole model, HDF5, written by Keras 2.2.4", "written: model.standard.h5"]
    assert lines[-1] == "1 swapped, 0 kept, 0 refused; proved equal."
    assert run("convert", "model.h5", "--to", "standard", "--force", "--no-verify").stdout.splitlines()[-1] == (
        "1 swapped, 0 kept, 0 refused; not verified (--no-verify)."
    )


def test_json_has_every_key(folder: Path) -> None:
    """One object on stdout and nothing else, with the documented keys and values."""
    shown = json.loads(run("inspect", "model.h5", "--json", "--to", "cudnn").stdout)
    assert KEYS | {"needs_gpu", "unknown_classes"} <= shown.keys()
    assert (shown["container"], shown["dialect"], shown["to"]) == ("hdf5", "keras2", "cudnn")
    assert (shown["needs_gpu"], shown["unknown_classes"], shown["output"]) == (True, [], None)
    result = run("convert", "model.h5", "--json", "--to", "standard")
    done = json.loads(result.stdout)
    assert len(result.stdout.splitlines()) == 1
    assert done.keys() >= KEYS
    assert done["verified"] is True and done["output"] == "model.standard.h5"
    (layer,) = done["layers"]
    assert layer.keys() == LAYER_KEYS
    assert {k: layer[k] for k in ("path", "class", "kind", "units", "parameters", "action", "to_class")} == {
        "path": "rnn",
        "class": "CuDNNLSTM",
        "kind": "lstm",
        "units": 4,
        "parameters": 144,
        "action": "swap",
        "to_class": "LSTM",
    }
    assert 0 <= layer["max_error"] < 1e-6


@pytest.mark.parametrize(
    ("name", "args", "output"),
    [
        ("model.h5", [], "model.standard.h5"),
        ("model.v2.hdf5", [], "model.v2.standard.hdf5"),
        ("model.weights.h5", [], "model.weights.standard.h5"),
        ("model.model", [], "model.standard.h5"),
        ("model", [], "model.standard.h5"),
        ("model.keras", [], "model.standard.h5"),
        ("MODEL.H5", [], "MODEL.standard.H5"),
        ("naïve 模型 (1).h5", [], "naïve 模型 (1).standard.h5"),
        ("model.h5", ["--dialect", "keras2", "--to", "cudnn"], "model.cudnn.h5"),
        ("model.h5", ["--to", "fused"], "model.fused.h5"),
    ],
)
def test_default_names(folder: Path, name: str, args: list[str], output: str) -> None:
    """NAME.FORM.SUFFIX beside the input, by content where the suffix lies."""
    (folder / "sub").mkdir()
    (folder / "model.h5").rename(folder / "sub" / name)
    result = run("convert", f"sub/{name}", *(args or ["--to", "standard"]))
    assert result.exit_code == 0, result.stderr
    assert sorted(os.listdir(folder / "sub")) == sorted([name, output])


def test_default_names_of_other_containers(folder: Path) -> None:
    """Weights alone, an architecture with its weights, and a `.keras` file."""
    _zip(folder / "new.keras", lambda m: None)
    for args, output in (
        (["weights.h5"], "weights.standard.h5"),
        (["arch.json", "--weights", "weights.h5"], "arch.standard.h5"),
        (["new.keras"], "new.standard.keras"),
    ):
        assert run("convert", *args, "--to", "standard").exit_code == 0
        assert (folder / output).is_file()


WRONG = [
    (["convert"], "MODEL"),
    (["convert", "model.h5", "--to", "turbo"], "turbo"),
    (["convert", "model.h5", "--dialect", "keras4"], "keras4"),
    (["convert", "model.h5", "--to", "cudnn"], "--dialect keras2"),
    (["convert", "model.h5", "--to", "fused", "--dialect", "keras2"], "keras3"),
    (["convert", "model.h5", "-o", "out.docx"], ".docx"),
    (["convert", "model.h5", "-o", "out"], "SavedModel"),
    (["convert", "model.h5", "-o", "out.weights.h5"], "weights"),
    (["convert", "model.h5", "-o", ""], "suffix"),
    (["convert", "weights.h5", "-o", "out.keras"], ".keras"),
    (["convert", "weights.h5", "--weights", "model.h5"], "architecture"),
    (["convert", "arch.json"], "--weights"),
    (["convert", "model.h5", "model.h5", "-o", "out.h5"], "-o"),
    (["convert", "arch.json", "arch.json", "--weights", "weights.h5"], "--weights"),
    (["convert", "model.h5", "-o", "model.h5", "--force"], "input"),
    (["convert", "model.h5", "-o", "./sub/../model.h5", "--force"], "input"),
    (["convert", "model.h5", "-o", "link.h5", "--force"], "input"),
    (["convert", "link.h5", "-o", "model.h5", "--force"], "input"),
    (["convert", "model.h5", "-o", "hard.h5", "--force"], "input"),
    (["convert", "arch.json", "--weights", "weights.h5", "-o", "weights.h5", "--force"], "input"),
    (["convert", "model.h5", "-o", "there.h5"], "--force"),
    (["convert", "model.h5", "-o", "sub.h5", "--force"], "folder"),
    (["inspect", "model.h5", "--html", "model.h5"], "input"),
    (["inspect"], "MODEL"),
    (["verify", "model.h5"], "B"),
    (["nothing"], "nothing"),
]


@pytest.mark.parametrize(("args", "says"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_wrong_use(folder: Path, args: list[str], says: str) -> None:
    """Exit code 2, a message that names the thing, no input touched, nothing new."""
    (folder / "sub").mkdir()
    (folder / "sub.h5").mkdir()
    (folder / "sub.h5" / "precious").write_text("kept")
    (folder / "there.h5").write_text("kept")
    (folder / "link.h5").symlink_to("model.h5")
    (folder / "hard.h5").hardlink_to("model.h5")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    result = run(*args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert not result.stdout
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["convert", "none.h5"], "none.h5"),
        (["convert", "model.h5", "-o", "none/out.h5"], "none"),
        (["convert", "arch.json", "--weights", "none.h5"], "none.h5"),
        (["convert", "arch.json", "--weights", "arch.json"], "arch.json"),
        (["convert", "arch.json", "--weights", "."], "."),
        (["inspect", "model.h5", "--html", "none/page.html"], "none"),
        (["verify", "none.h5", "model.h5"], "none.h5"),
        (["doctor", "none.h5"], "none.h5"),
    ],
)
def test_failures(folder: Path, args: list[str], says: str) -> None:
    """Exit code 1, one line on stderr, nothing new."""
    before = sorted(os.listdir(folder))
    result = run(*args)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and says in result.stderr
    assert sorted(os.listdir(folder)) == before


def test_dry_run_writes_nothing(folder: Path) -> None:
    """The plan, no output, not even over an existing one."""
    before = sorted(os.listdir(folder))
    for out in ([], ["-o", "out.keras"], ["-o", "weights.h5", "--force"]):
        shown = json.loads(run("convert", "model.h5", "--to", "standard", "--dry-run", "--json", *out).stdout)
        assert (shown["output"], shown["verified"]) == (None, None)
        assert [layer["action"] for layer in shown["layers"]] == ["swap"]
    assert sorted(os.listdir(folder)) == before


def test_force_replaces_a_file_and_a_link(folder: Path) -> None:
    """--force overwrites; a link is replaced, not followed."""
    (folder / "kept.h5").write_text("kept")
    (folder / "out.h5").symlink_to("kept.h5")
    assert run("convert", "model.h5", "-o", "out.h5", "--to", "standard").exit_code == 2
    assert run("convert", "model.h5", "-o", "out.h5", "--to", "standard", "--force").exit_code == 0
    assert not (folder / "out.h5").is_symlink()
    assert (folder / "kept.h5").read_text() == "kept"


def test_strict_names_every_layer_and_reason(folder: Path) -> None:
    """A refused layer is an error then: exit 1, layer, field and value on stderr, nothing written."""
    entry = _architecture("LSTM", activation="relu", recurrent_activation="hard_sigmoid")
    rng = np.random.default_rng(0)
    _write(folder / "relu.h5", entry)
    with h5py.File(folder / "relu.h5", "r+") as f:
        del f["model_weights/rnn/rnn/bias:0"]
        f["model_weights/rnn/rnn/bias:0"] = rng.uniform(size=16).astype("float32")
    before = sorted(os.listdir(folder))
    result = run("convert", "relu.h5", "--to", "cudnn", "--dialect", "keras2", "--strict")
    assert result.exit_code == 1
    for text in ("rnn", "activation='relu'", "recurrent_activation='hard_sigmoid'"):
        assert text in result.stderr
    assert sorted(os.listdir(folder)) == before
    assert run("convert", "relu.h5", "--to", "cudnn", "--dialect", "keras2").exit_code == 0


def test_one_bad_model_among_many(folder: Path) -> None:
    """The others are converted all the same; the exit code and a line on stderr say that one was not."""
    (folder / "bad.h5").write_text("oops")
    shutil.copy("model.h5", "second.h5")
    result = run("convert", "model.h5", "bad.h5", "second.h5", "--to", "standard", "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["file"] for line in result.stdout.splitlines()] == ["model.h5", "second.h5"]
    assert len(result.stderr.splitlines()) == 1 and "bad.h5" in result.stderr
    assert (folder / "second.standard.h5").is_file()
    assert run("convert", "model.h5", "second.h5", "--to", "standard").exit_code == 2  # both exist


def test_html_page(folder: Path) -> None:
    """A page of its own, with names that cannot break out of it."""
    entry = _architecture()
    entry["config"]["layers"][1]["config"]["name"] = "<script>alert(1)</script>"
    entry["config"]["layers"][1]["class_name"] = "Mine<b>"
    (folder / "arch.json").write_text(json.dumps(entry))
    assert run("inspect", "arch.json", "--html", "page.html").exit_code == 0
    page = (folder / "page.html").read_text()
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    assert "<script" not in page and "<b>" not in page
    assert "CuDNNLSTM" in page


def test_not_a_number(folder: Path) -> None:
    """NaN in a layer that is to be rewritten: an error, and --no-verify converts it; elsewhere it does not matter."""
    with h5py.File("model.h5", "r+") as f:
        f["model_weights/rnn/rnn/bias:0"][3] = np.nan
    result = run("convert", "model.h5", "--to", "standard")
    assert result.exit_code == 1 and "rnn" in result.stderr and "--no-verify" in result.stderr
    assert run("convert", "model.h5", "--to", "standard", "--no-verify", "--json").exit_code == 0
    assert run("convert", "model.h5", "--to", "cudnn", "--dialect", "keras2").exit_code == 0


def test_nothing_of_tensorflow_is_loaded(folder: Path) -> None:
    """inspect and convert of files need h5py and NumPy only."""
    code = (
        "import sys; from lstm_swap.cli import main\n"
        "for args in (['inspect', 'model.h5'], ['convert', 'model.h5', '-o', 'o.keras', '--to', 'fused']):\n"
        "    main(args, standalone_mode=False)\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('tensorflow', 'keras', 'tf_keras')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ terminals, pipes, signals, full disks


def test_ascii_terminal_and_no_color(folder: Path) -> None:
    """What a terminal cannot show is escaped; colours only where there is a terminal that wants them."""
    entry = _graph()
    entry["config"]["layers"][1]["config"]["name"] = entry["config"]["layers"][1]["name"] = "слой"
    entry["config"]["layers"][2]["inbound_nodes"] = [[["слой", 0, 0, {}]]]
    (folder / "arch.json").write_text(json.dumps(entry, ensure_ascii=False), encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    for args in (["inspect", "arch.json"], ["inspect", "arch.json", "--json"], ["inspect", "нет.h5"]):
        done = command(*args, env=env)
        assert done.returncode == (1 if "нет" in args[1] else 0)
        (done.stdout + done.stderr).decode("ascii")
        assert b"\\u" in done.stdout + done.stderr
        assert b"\x1b" not in done.stdout


def test_readers_that_leave(folder: Path) -> None:
    """A closed pipe or a closed stdout is no reason for a traceback, and the conversion is done by then."""
    for shell in ("{} inspect model.h5 | head -c 3", "{} inspect model.h5 >&-", "{} inspect none.h5 2>&-"):
        line = shell.format(f"{sys.executable} -m lstm_swap")
        done = subprocess.run(line, shell=True, capture_output=True, timeout=60, check=False)
        assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    line = f"{sys.executable} -m lstm_swap convert model.h5 -o out.h5 --to standard >&-"
    assert subprocess.run(line, shell=True, capture_output=True, timeout=60, check=False).returncode == 0
    assert (folder / "out.h5").is_file()


@pytest.mark.parametrize("suffix", [".h5", ".keras"])
@pytest.mark.parametrize("kilobytes", [4, 12, 17])
def test_disk_full(folder: Path, suffix: str, kilobytes: int) -> None:
    """Wherever in the output the room ends: one line, exit 1, and nothing is left behind."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10))

    with h5py.File("model.h5", "r+") as f:  # more than any of the limits in either container
        f["model_weights/out"].attrs["weight_names"] = [b"out/kernel:0", b"out/bias:0"]
        del f["model_weights/out/out/kernel:0"], f["model_weights/out/out/bias:0"]
        f["model_weights/out/out/kernel:0"] = np.zeros((4, 2000), "float32")
        f["model_weights/out/out/bias:0"] = np.zeros(2000, "float32")
        entry = _architecture()
        entry["config"]["layers"][1]["config"]["units"] = 2000
        f.attrs["model_config"] = json.dumps(entry).encode()
    before = sorted(os.listdir(folder))
    done = command("convert", "model.h5", "-o", f"out{suffix}", "--to", "standard", preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    assert b"File too large" in done.stderr and b"Traceback" not in done.stderr
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(folder: Path, sign: signal.Signals) -> None:
    """Stopped in the middle of writing: the temporary file goes, the input stays."""
    entry = _architecture()
    layers = entry["config"]["layers"]
    layers += [{"class_name": "Activation", "config": {"name": f"a{n}", "activation": "tanh"}} for n in range(30_000)]
    _write(folder / "large.h5", entry)
    before = sorted(os.listdir(folder))
    child = subprocess.Popen(
        [sys.executable, "-m", "lstm_swap", "convert", "large.h5", "-o", "out.h5", "--to", "standard"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 50
    while sorted(os.listdir(folder)) == before and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert child.poll() is None, "it was done before it could be stopped"
    child.send_signal(sign)
    _, stderr = child.communicate(timeout=50)
    assert child.returncode != 0
    assert b"Traceback" not in stderr
    assert sorted(os.listdir(folder)) == before


def test_two_at_once(folder: Path) -> None:
    """Two runs to one output do not meet: the one that is later wins whole, and no temporary file stays."""
    args = [sys.executable, "-m", "lstm_swap", "convert", "model.h5", "-o", "out.h5", "--to", "standard", "--force"]
    children = [subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    for child in children:
        assert child.stderr is not None
        child.stderr.close()
    with h5py.File("out.h5") as f:
        assert f["model_weights/rnn/rnn/bias:0"].shape == (_arrays()["rnn"][2].size // 2,)
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
