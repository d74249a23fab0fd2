"""Damaged, huge and hostile SavedModels: a clear error, in bounded time and memory, and nothing written."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap import saved_model
from lstm_swap.errors import LstmSwapError, MissingDependencyError, UnreadableModelError, VerificationError
from lstm_swap.saved_models import proof, reading, worker
from lstm_swap.saved_models.rewriting import rewrite

tf = pytest.importorskip("tensorflow")

UNITS = 3
READERS: dict[str, Callable[[Path], object]] = {
    "summarize": saved_model.summarize,
    "keras_architecture": saved_model.keras_architecture,
    "recover_arrays": saved_model.recover_arrays,
    "rewrite": lambda folder: rewrite(folder, folder.parent / "out"),
}


def _call(x: Any, params: Any) -> Any:
    state = tf.zeros([tf.shape(x)[0], 1, UNITS])
    lengths = tf.fill([tf.shape(x)[0]], tf.shape(x)[1])
    return tf.raw_ops.CudnnRNNV3(
        input=x, input_h=state, input_c=state, params=params, sequence_lengths=lengths, time_major=False
    ).output


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small SavedModel with one cuDNN LSTM."""
    folder = tmp_path_factory.mktemp("sound") / "model"
    module = tf.Module()
    module.params = tf.Variable(np.full(96, 0.1, np.float32), name="lstm/params")
    spec = [tf.TensorSpec([None, None, UNITS], name="x")]
    module.call = tf.function(lambda x: {"y": _call(x, module.params)}, input_signature=spec, autograph=False)
    tf.saved_model.save(module, str(folder), signatures=module.call)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(sound, tmp_path / "model"))


def _edit(folder: Path, change: Callable[[Any], None]) -> None:
    graph = reading.read_graph(folder)
    change(graph)
    (folder / "saved_model.pb").write_bytes(graph.SerializeToString())


def _field(number: int, payload: bytes) -> bytes:
    """One length-delimited field of a protocol buffer."""
    length, encoded = len(payload), b""
    while length > 127:
        encoded += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + payload


def _deep(folder: Path) -> bytes:
    nested = b""
    for _ in range(2000):  # FullTypeDef.args, the one message of a graph that holds itself
        nested = _field(2, nested)
    return _field(2, _field(2, _field(1, _field(7, nested))))


DAMAGED: dict[str, Callable[[Path], bytes]] = {
    "empty": lambda folder: b"",
    "text": lambda folder: b"this is no protocol buffer",
    "zeros": lambda folder: bytes(4096),
    "random": lambda folder: np.random.default_rng(0).bytes(5000),
    "truncated": lambda folder: (folder / "saved_model.pb").read_bytes()[:-700],
    "deep": _deep,
    "no graph": lambda folder: b"\x08\x01",
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_graph(folder: Path, kind: str, reader: str) -> None:
    """Every entry refuses a damaged graph within seconds, naming the file, and writes nothing."""
    (folder / "saved_model.pb").write_bytes(DAMAGED[kind](folder))
    started = time.monotonic()
    with pytest.raises(UnreadableModelError, match=r"saved_model\.pb"):
        READERS[reader](folder)
    assert time.monotonic() - started < 10
    assert not (folder.parent / "out").exists()


def test_file_larger_than_a_protocol_buffer(folder: Path) -> None:
    """A sparse file of 100 GB is refused by its size; not a byte of it is read."""
    with (folder / "saved_model.pb").open("wb") as file:
        file.truncate(100 << 30)
    started = time.monotonic()
    with pytest.raises(UnreadableModelError, match="more than a protocol buffer can hold"):
        saved_model.summarize(folder)
    assert time.monotonic() - started < 5


def test_millions_of_empty_entries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of entries that would grow fifty times in memory is counted, not parsed."""
    monkeypatch.setattr(reading, "ENTRY_LIMIT", 200_000)
    (folder / "saved_model.pb").write_bytes(_field(2, _field(2, b"\x0a\x00" * (reading.WALK_ABOVE // 2 + 1))))
    before = _memory()
    with pytest.raises(UnreadableModelError, match="more than 200,000 entries"):
        saved_model.summarize(folder)
    assert _memory() - before < 200e6


def _memory() -> float:
    """Peak resident memory of this process so far, bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024.0)


def test_large_but_honest_graph_is_read(folder: Path) -> None:
    """A graph above the size at which files are walked, because of one big constant, is read as ever."""

    def add_constant(graph: Any) -> None:
        node = graph.meta_graphs[0].graph_def.node.add(name="big", op="Const")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.ones(reading.WALK_ABOVE // 4 + 1, np.float32)))

    _edit(folder, add_constant)
    assert (folder / "saved_model.pb").stat().st_size > reading.WALK_ABOVE
    assert saved_model.summarize(folder).needs_gpu


@pytest.mark.parametrize("reader", READERS)
def test_special_files_are_not_opened(folder: Path, reader: str) -> None:
    """A named pipe in the place of the graph would block whoever reads it."""
    (folder / "saved_model.pb").unlink()
    os.mkfifo(folder / "saved_model.pb")
    with pytest.raises(UnreadableModelError, match=r"regular file|no SavedModel"):
        READERS[reader](folder)


@pytest.mark.parametrize("reader", READERS)
def test_missing_graph(tmp_path: Path, reader: str) -> None:
    """A folder without a graph, and a graph in split form, are named as what they are."""
    (tmp_path / "model").mkdir()
    with pytest.raises(UnreadableModelError, match="no SavedModel there"):
        READERS[reader](tmp_path / "model")
    (tmp_path / "model" / "saved_model.cpb").write_bytes(b"x")
    with pytest.raises(UnreadableModelError, match="split form"):
        READERS[reader](tmp_path / "model")


def _cudnn(graph: Any) -> tuple[Any, Any]:
    """The function with the cuDNN node, and the node."""
    for function in graph.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "CudnnRNNV3":
                return function, node
    raise AssertionError("no cuDNN node")


def _absurd_constant(graph: Any) -> None:
    function, _ = _cudnn(graph)
    constant = next(n for n in function.node_def if n.op == "Const")
    del constant.attr["value"].tensor.tensor_shape.dim[:]
    for _ in range(3):
        constant.attr["value"].tensor.tensor_shape.dim.add(size=1 << 20)


def _wrong_constant(graph: Any) -> None:
    function, _ = _cudnn(graph)
    next(n for n in function.node_def if n.op == "Const").attr["value"].tensor.dtype = 10


def _absurd_outputs(graph: Any) -> None:
    node = _cudnn(graph)[0].node_def.add(name="many", op="Split")
    node.attr["num_split"].i = (1 << 31) - 2


def _unknown_mode(graph: Any) -> None:
    _cudnn(graph)[1].attr["rnn_mode"].s = b"transformer"


def _missing_function(graph: Any) -> None:
    for node in graph.meta_graphs[0].graph_def.node:
        if node.op == "StatefulPartitionedCall":
            node.attr["f"].func.name = "nowhere"


def _unknown_op(graph: Any) -> None:
    function, _ = _cudnn(graph)
    next(n for n in function.node_def if n.op == "Fill").op = "FillItWithSomething"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_absurd_constant, "constant of the shape"),
        (_wrong_constant, "constant of another type"),
        (_absurd_outputs, "num_split=2,147,483,646"),
        (_unknown_mode, "transformer"),
        (_missing_function, "a function that it lacks: 'nowhere'"),
        (_unknown_op, "FillItWithSomething"),
    ],
)
def test_hostile_graph(folder: Path, change: Callable[[Any], None], message: str) -> None:
    """Constants of terabytes or of two types, unknown modes, ops and functions: an error that says so."""
    _edit(folder, change)
    with pytest.raises(LstmSwapError, match=message) as caught:
        rewrite(folder, folder.parent / "out")
    assert str(folder.parent) in str(caught.value)
    assert not (folder.parent / "out").exists()


def test_functions_that_call_each_other(folder: Path) -> None:
    """A circle of calls ends."""

    def circle(graph: Any) -> None:
        function, _ = _cudnn(graph)
        call = function.node_def.add(name="again", op="StatefulPartitionedCall")
        call.attr["f"].func.name = function.signature.name

    _edit(folder, circle)
    assert saved_model.summarize(folder).needs_gpu


def test_thousands_of_functions_and_signatures(folder: Path) -> None:
    """Following every root through every function would take minutes; it takes seconds."""

    def many(graph: Any) -> None:
        (meta_graph,) = graph.meta_graphs
        function, _ = _cudnn(graph)
        for number in range(6000):
            added = meta_graph.graph_def.library.function.add()
            added.signature.name = f"f{number}"
            call = added.node_def.add(name="call", op="PartitionedCall")
            call.attr["f"].func.name = f"f{number + 1}" if number < 5999 else function.signature.name
            meta_graph.object_graph_def.concrete_functions[added.signature.name].SetInParent()

    _edit(folder, many)
    started = time.monotonic()
    assert saved_model.summarize(folder).needs_gpu
    assert time.monotonic() - started < 10


def test_checkpoint_that_claims_an_absurd_shape(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable whose claimed size exceeds all stored bytes is refused before memory is taken for it."""
    from lstm_swap.saved_models.checkpoint import Checkpoint

    checkpoint = Checkpoint(folder)
    (key,) = (key for key in checkpoint.shapes if "params" in key)
    checkpoint.shapes[key] = (1 << 40,)
    with pytest.raises(UnreadableModelError, match="claims the shape"):
        checkpoint.array(key, "params").read()


@pytest.mark.parametrize("file", ["variables.index", "variables.data-00000-of-00001"])
def test_damaged_variables(folder: Path, file: str) -> None:
    """Without its variables a model still has a summary, with a warning; its arrays are an error that says why."""
    path = folder / "variables" / file
    path.write_bytes(path.read_bytes()[:20])
    summary = saved_model.summarize(folder)
    assert summary.needs_gpu and summary.variables == []
    assert any("variables" in warning for warning in summary.warnings)
    with pytest.raises(UnreadableModelError, match="variables"):
        saved_model.recover_arrays(folder)


def test_a_graph_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature with an endless loop is stopped and reported; the rewrite is done and proved without it."""
    monkeypatch.setattr(proof, "_SECONDS", 2.0)
    params = tf.constant(np.full(96, 0.1, np.float32))

    def call(x: Any) -> dict[str, Any]:
        endless = tf.while_loop(lambda i: tf.reduce_sum(x) > -1e9, lambda i: (i * 2,), (tf.constant(1),))[0]
        return {"y": _call(x, params), "endless": endless}

    module = tf.Module()
    module.call = tf.function(call, input_signature=[tf.TensorSpec([None, None, UNITS])], autograph=False)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call)
    result = rewrite(tmp_path / "model", tmp_path / "out")
    assert [run.ran for run in result.signatures] == [False]
    assert "did not end within 2 s" in result.warnings[0]
    assert len(result.nodes) == 1


def test_wrong_numbers_stop_the_rewrite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portable form that is off by more than the tolerance is an error that says by how much; nothing is written."""
    right = proof.run_reference

    def off(*args: Any) -> Any:
        output, h, c = right(*args)
        return output + 1e-4, h, c

    monkeypatch.setattr(proof, "run_reference", off)
    with pytest.raises(VerificationError, match=r"output of the portable form differs from the reference by 0\.0001"):
        rewrite(folder, folder.parent / "out")
    assert not (folder.parent / "out").exists()


def test_public_rewrite_runs_apart(folder: Path, tmp_path: Path) -> None:
    """The public function does the same in a process of its own, and hands over its errors."""
    result = saved_model.rewrite(folder, tmp_path / "out", to="auto")
    assert [node.kind for node in result.nodes] == ["lstm"]
    assert all(run.ran for run in result.signatures)
    assert not saved_model.summarize(tmp_path / "out").needs_gpu
    _edit(folder, _unknown_mode)
    with pytest.raises(UnreadableModelError, match="transformer"):
        saved_model.rewrite(folder, tmp_path / "again")


def test_a_crash_is_an_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TensorFlow ends the process, or never ends, the caller gets an error with the reason and no half folder."""
    out = tmp_path / "out"
    crash = f"import os, sys; os.mkdir({str(out)!r}); sys.stderr.write('F0000 Check failed: a < b\\n'); os.abort()"
    monkeypatch.setattr(worker, "_CODE", crash)
    with pytest.raises(UnreadableModelError, match=r"crashed on this graph.*Check failed: a < b"):
        saved_model.rewrite(folder, out)
    assert not out.exists()
    monkeypatch.setattr(worker, "_CODE", "import time; time.sleep(60)")
    with pytest.raises(UnreadableModelError, match="did not get through this graph in 1 s"):
        saved_model.rewrite(folder, out, seconds=1.0)


def test_missing_tensorflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TensorFlow the error names the extra to install."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingDependencyError, match=r"lstm-swap\[tensorflow\]"):
        saved_model.summarize(folder)
