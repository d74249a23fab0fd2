"""SavedModels of a GPU machine become portable: the numbers are the plain Keras model's, in a process without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lstm_swap import saved_model
from lstm_swap.errors import UsageError
from lstm_swap.saved_models.rewriting import RewriteResult, rewrite
from tests.gpu_shaped import Arrays, close, export, randomize, run_fresh

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
L = keras.layers


def _sequential(*layers: Any, shape: tuple[int | None, ...] = (7, 3), **options: Any) -> Any:
    return keras.Sequential([keras.Input(shape, **options), *layers])


def _two_inputs() -> Any:
    """One LSTM, called twice."""
    first, second = keras.Input((7, 3), name="first"), keras.Input((7, 3), name="second")
    shared = L.LSTM(4)
    return keras.Model([first, second], L.Dense(2)(L.concatenate([shared(first), shared(second)])))


def _states() -> Any:
    """Initial states come in, last states go out."""
    x, h, c = keras.Input((None, 3), name="x"), keras.Input((4,), name="h"), keras.Input((4,), name="c")
    return keras.Model([x, h, c], L.LSTM(4, return_sequences=True, return_state=True)(x, initial_state=[h, c]))


def _mixed() -> Any:
    return _sequential(
        L.LSTM(4, return_sequences=True, dtype="mixed_float16"), L.GRU(3, dtype="mixed_float16"), L.Dense(2)
    )


#: name -> (model, dtype of the tolerance, kinds of the nodes that must have been replaced)
MODELS: dict[str, tuple[Callable[[], Any], str, list[str]]] = {
    "lstm": (lambda: _sequential(L.LSTM(4), L.Dense(2)), "float32", ["lstm"]),
    "gru": (lambda: _sequential(L.GRU(4), L.Dense(2)), "float32", ["gru"]),
    "backwards": (
        lambda: _sequential(L.LSTM(4, go_backwards=True, return_sequences=True), L.GRU(3, go_backwards=True)),
        "float32",
        ["lstm", "gru"],
    ),
    "stacked": (
        lambda: _sequential(L.LSTM(5, return_sequences=True), L.GRU(4, return_sequences=True), L.LSTM(3)),
        "float32",
        ["lstm", "gru", "lstm"],
    ),
    "bidirectional": (
        lambda: _sequential(L.Bidirectional(L.LSTM(4, return_sequences=True)), L.Bidirectional(L.GRU(3))),
        "float32",
        ["lstm", "lstm", "gru", "gru"],
    ),
    "masked": (
        lambda: _sequential(
            L.Embedding(9, 5, mask_zero=True),
            L.Bidirectional(L.LSTM(4, return_sequences=True)),
            L.GRU(3),
            shape=(None,),
            dtype="int32",
        ),
        "float32",
        ["lstm", "lstm", "gru"],
    ),
    "dynamic": (lambda: _sequential(L.LSTM(4, return_sequences=True), shape=(None, 3)), "float32", ["lstm"]),
    "stateful": (lambda: _sequential(L.LSTM(4, stateful=True), shape=(7, 3), batch_size=2), "float32", ["lstm"]),
    "twice": (_two_inputs, "float32", ["lstm", "lstm"]),
    "states": (_states, "float32", ["lstm"]),
    "float16": (lambda: _sequential(L.LSTM(4, dtype="float16"), dtype="float16"), "float16", ["lstm"]),
    "mixed_float16": (_mixed, "float16", ["lstm", "gru"]),
    "float64": (lambda: _sequential(L.GRU(4, dtype="float64"), dtype="float64"), "float64", ["gru"]),
}


def _inputs(name: str, model: Any) -> list[np.ndarray[Any, Any]]:
    """Inputs of a model: batch 2, seven steps where it leaves them open (nine in `dynamic`)."""
    rng = np.random.default_rng(3)
    if name == "masked":
        return [np.array([[3, 1, 4, 1, 5], [2, 7, 0, 0, 0]], dtype=np.int32)]
    steps = 9 if name == "dynamic" else 7
    shapes = [(2, *(n or steps for n in tensor.shape[1:])) for tensor in model.inputs]
    return [rng.uniform(-1, 1, shape).astype(tensor.dtype) for shape, tensor in zip(shapes, model.inputs, strict=True)]


class Converted:
    """Every model of MODELS: exported, rewritten, run in one new process."""

    def __init__(self, work: Path) -> None:
        self.wanted: dict[str, list[np.ndarray[Any, Any]]] = {}
        self.results: dict[tuple[str, str], RewriteResult] = {}
        self.exported: dict[str, Path] = {}
        self.got: dict[tuple[str, str], list[Arrays]] = {}
        jobs, keys = [], []
        for name, (build, _, _) in MODELS.items():
            keras.utils.clear_session()
            model = build()
            randomize(model)
            inputs = _inputs(name, model)
            calls = 2 if name == "stateful" else 1
            runs = [model(inputs if len(inputs) > 1 else inputs[0], training=False) for _ in range(calls)]
            self.wanted[name] = [
                np.asarray(array) for run in runs for array in (run if isinstance(run, list | tuple) else [run])
            ]
            if name == "stateful":
                model.layers[0].reset_states()
            self.exported[name] = export(model, work / name)
            given = dict(zip((tensor.name for tensor in model.inputs), inputs, strict=True))
            for to in ("standard", "auto"):
                self.results[name, to] = rewrite(self.exported[name], work / f"{name}.{to}", to=to)
                jobs.append((work / f"{name}.{to}", [("serving_default", given)] * calls))
                keys.append((name, to))
        self.got = dict(zip(keys, run_fresh(jobs, work / "runs"), strict=True))


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return Converted(tmp_path_factory.mktemp("saved_models"))


@pytest.mark.parametrize("to", ["standard", "auto"])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_the_plain_model(converted: Converted, name: str, to: str) -> None:
    """What Keras exports on a GPU machine computes, once rewritten, what the plain model computes on a CPU."""
    outputs = [run[key] for run in converted.got[name, to] for key in sorted(run)]
    assert len(outputs) == len(converted.wanted[name])
    for got, wanted in zip(outputs, converted.wanted[name], strict=True):
        close(got, wanted, MODELS[name][1])


def test_stateful_signature_keeps_its_state(converted: Converted) -> None:
    """The second call of a stateful model goes on from the first: its numbers differ from it."""
    first, second = converted.wanted["stateful"]
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_every_node_is_reported_and_proved(converted: Converted, name: str) -> None:
    """The result names each node with its kind, widths and the error of its proof; no signature was left unrun."""
    result = converted.results[name, "standard"]
    assert [node.kind for node in result.nodes] == MODELS[name][2]
    assert all(node.units and node.layers == node.directions == 1 for node in result.nodes)
    assert all(node.max_error is not None for node in result.nodes)
    assert {run.signature for run in result.signatures if run.ran} == {"serve", "serving_default"}
    assert result.warnings == []


@pytest.mark.parametrize("name", ["lstm", "masked", "twice"])
def test_summary_says_what_needs_a_gpu(converted: Converted, name: str) -> None:
    """The export needs a GPU and says which nodes of which signature; neither rewritten form needs one."""
    exported = saved_model.summarize(converted.exported[name])
    assert exported.needs_gpu
    assert {node.op for node in exported.cudnn_nodes} == {"CudnnRNNV3"}
    assert all("signature 'serving_default'" in node.reached_from for node in exported.cudnn_nodes)
    assert [signature.name for signature in exported.signatures] == ["serve", "serving_default"]
    assert exported.architecture is None and not exported.has_keras_metadata
    standard = saved_model.summarize(converted.results[name, "standard"].output)
    assert not standard.needs_gpu and standard.cudnn_nodes == []
    both = saved_model.summarize(converted.results[name, "auto"].output)
    assert not both.needs_gpu
    assert len(both.cudnn_nodes) == len(exported.cudnn_nodes)
    assert all(node.reached_from == () for node in both.cudnn_nodes)


def test_only_the_graph_changes(converted: Converted) -> None:
    """Variables are byte for byte the same, signatures, objects and tags too; the fingerprint is the new graph's."""
    from lstm_swap.saved_models.reading import read_graph

    source, out = converted.exported["masked"], converted.results["masked", "standard"].output
    assert sorted(p.relative_to(source) for p in source.rglob("*")) == sorted(
        p.relative_to(out) for p in out.rglob("*")
    )
    for file in source.glob("variables/*"):
        assert file.read_bytes() == (out / "variables" / file.name).read_bytes()
    (before,), (after,) = read_graph(source).meta_graphs, read_graph(out).meta_graphs
    assert before.signature_def == after.signature_def
    assert before.object_graph_def == after.object_graph_def
    assert list(before.meta_info_def.tags) == list(after.meta_info_def.tags)
    assert [node.name for node in before.graph_def.node] == [node.name for node in after.graph_def.node]
    old, new = (tf.saved_model.experimental.read_fingerprint(str(folder)) for folder in (source, out))
    assert old.saved_model_checksum != new.saved_model_checksum
    assert old.signature_def_hash == new.signature_def_hash


def test_the_same_model_gives_the_same_file(converted: Converted, tmp_path: Path) -> None:
    """Two rewrites of one model write the same graph, byte for byte."""
    again = rewrite(converted.exported["bidirectional"], tmp_path / "again", run_signatures=False)
    first = converted.results["bidirectional", "standard"].output
    assert (again.output / "saved_model.pb").read_bytes() == (first / "saved_model.pb").read_bytes()


def test_functions_hold_no_attributes_that_older_programs_lack(converted: Converted) -> None:
    """Added nodes leave attributes at their defaults out, so that servers older than the ops' newest attributes load
    them, and their ops are listed."""
    from lstm_swap.saved_models.reading import read_graph

    (graph,) = read_graph(converted.results["lstm", "standard"].output).meta_graphs
    listed = {op.name: op for op in graph.meta_info_def.stripped_op_list.op}
    added = [f for f in graph.graph_def.library.function if f.signature.name.startswith("lstm_swap_")]
    products = [node for f in added for node in f.node_def if node.op == "MatMul"]
    assert products
    assert all("grad_a" not in node.attr for node in products)
    assert {node.op for f in added for node in f.node_def} <= set(listed)
    assert "PartitionedCall" in listed


def test_gradients_pass_through_the_rewritten_model(converted: Converted) -> None:
    """A rewritten model can be trained further: its gradients are those of the plain model, and not zero."""
    loaded = tf.saved_model.load(str(converted.results["stacked", "standard"].output))
    keras.utils.clear_session()
    model = MODELS["stacked"][0]()
    randomize(model)
    x = tf.constant(_inputs("stacked", model)[0])
    gradients = []
    for call in (loaded.serve, lambda value: model(value, training=False)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(call(x) ** 2)
        gradients.append(tape.gradient(total, x).numpy())
    assert np.abs(gradients[1]).max() > 1e-3
    assert np.abs(gradients[0] - gradients[1]).max() <= 1e-5 * max(1.0, np.abs(gradients[1]).max())


def test_several_signatures(tmp_path: Path) -> None:
    """Two endpoints of one archive, one of them without a recurrent layer: all run, under their own names."""
    from tests.gpu_shaped import gpu_build

    model = _sequential(L.LSTM(4, return_sequences=True, name="features"), L.GRU(3))
    randomize(model)
    features = keras.Model(model.inputs, model.get_layer("features").output)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 7, 3)).astype(np.float32)
    wanted = {"whole": model(x), "features": features([x]), "plain": 2 * x}
    spec = [tf.TensorSpec((None, 7, 3), tf.float32, name="x")]
    with gpu_build():
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("whole", lambda x: model(x, training=False), input_signature=spec)
        archive.add_endpoint("features", lambda x: features([x], training=False), input_signature=spec)
        archive.add_endpoint("plain", lambda x: 2.0 * x, input_signature=spec)
        archive.write_out(str(tmp_path / "model"), verbose=False)
    summary = saved_model.summarize(tmp_path / "model")
    reached = {node.mode: node.reached_from for node in summary.cudnn_nodes if "signature 'whole'" in node.reached_from}
    assert set(reached) == {"lstm", "gru"}
    rewrite(tmp_path / "model", tmp_path / "out")
    names = {s.name: s.inputs[0].name for s in summary.signatures}
    calls = [(name, {names[name]: x}) for name in wanted]
    for name, outputs in zip(wanted, run_fresh([(tmp_path / "out", calls)], tmp_path / "runs")[0], strict=True):
        (got,) = outputs.values()
        close(got, wanted[name])


def test_a_portable_model_is_copied(converted: Converted, tmp_path: Path) -> None:
    """Nothing is left to rewrite in a rewritten model: the copy holds the same graph and says that nothing was done."""
    source = converted.results["gru", "standard"].output
    result = rewrite(source, tmp_path / "copy")
    assert result.nodes == []
    assert (tmp_path / "copy" / "saved_model.pb").read_bytes() == (source / "saved_model.pb").read_bytes()


def test_an_existing_folder_is_not_touched(converted: Converted, tmp_path: Path) -> None:
    """A folder with files in it is refused, and so is a form that SavedModels do not have."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    for options in ({"to": "standard"}, {"to": "fused"}):
        with pytest.raises(UsageError):
            saved_model.rewrite(converted.exported["lstm"], tmp_path / "there", **options)
    assert (tmp_path / "there" / "file").read_text() == "mine"
