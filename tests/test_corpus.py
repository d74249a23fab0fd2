"""Real public models, where their collection lies beside the project (see CONTRIBUTING.md); else skipped."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lstm_swap

CORPUS = Path(os.environ.get("LSTM_SWAP_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))

pytestmark = pytest.mark.skipif(not (CORPUS / "manifest.json").is_file(), reason="the corpus is not here")


def _entries() -> list[dict[str, Any]]:
    if not (CORPUS / "manifest.json").is_file():
        return []
    return list(json.loads((CORPUS / "manifest.json").read_text())["files"])


def _runner() -> Any:
    """The corpus's own script: its inputs and its tolerance are the judgement."""
    spec = importlib.util.spec_from_file_location("corpus_run", CORPUS / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_gpu_trained_models_compute_their_references(tmp_path: Path, load_keras: Any) -> None:
    """Every whole model with CuDNN layers converts and computes, on a CPU, what its original program computed."""
    run = _runner()
    found = [e for e in _entries() if e["kind"] == "whole-model" and any("CuDNN" in r for r in e["recurrent"])]
    assert found
    for entry in found:
        out = tmp_path / f"{entry['id']}.keras"
        report = lstm_swap.convert(CORPUS / "files" / entry["file"], out, to="standard")
        assert "swap" in {d.action for d in report.layers}
        reference = entry["reference"]
        inputs = run.make_inputs(reference["inputs"])
        assert run.digest(inputs) == reference["inputs_digest"]
        outputs = load_keras(out)(inputs if len(inputs) > 1 else inputs[0], training=False)
        outputs = [np.asarray(o) for o in (outputs if isinstance(outputs, list | tuple) else [outputs])]
        with np.load(CORPUS / "references" / reference["npz"]) as stored:
            # Behind the model's own outputs stand those of inner layers.
            shapes = reference["outputs"][: reference["model_outputs"]]
            equal, _, why = run.compare(outputs, stored, shapes)
        assert equal, f"{entry['file']}: {why}"


def test_inspect_knows_what_todays_keras_does() -> None:
    """`inspect` says of each file, without Keras, what Keras 3.15.1 was seen to do with it."""
    words = {(True, True): "OPENS+EQUAL", (True, False): "OPENS", (False, None): "FAIL"}
    judged = 0
    for entry in _entries():
        seen = entry.get("today", {}).get("Keras 3.15.1")
        if not seen or entry["container"] == "SavedModel" or seen["status"] == "CONVERTED-NEEDS-CUSTOM":
            continue
        report = lstm_swap.inspect(CORPUS / "files" / entry["file"], to="standard")
        assert words[(report.opens_today, report.same_numbers)] == seen["status"], entry["file"]  # type: ignore[index]
        judged += 1
    assert judged > 20
