"""The rewrite in a process of its own.

TensorFlow checks much of a graph with assertions that end the process, and may take any time and memory to load or run
one. So a damaged or hostile graph is handled where that does no harm, and without a GPU in sight.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from lstm_swap import errors
from lstm_swap.errors import LstmSwapError, UnreadableModelError
from lstm_swap.saved_models.proof import SignatureRun
from lstm_swap.saved_models.rewriting import RewriteResult, RewrittenNode, check_output, rewrite

#: Longest time for a whole rewrite. Copying and proving a model of a gigabyte takes about a minute.
SECONDS = 900.0
#: The share of the machine's memory that the process may take.
MEMORY_SHARE = 0.75

_CODE = "import sys; sys.path.append(sys.argv[1]); from lstm_swap.saved_models.worker import main; main(sys.argv[2])"


def rewrite_apart(
    path: str | Path,
    out_dir_temp: str | Path,
    *,
    to: str = "standard",
    run_signatures: bool = True,
    seconds: float = SECONDS,
) -> RewriteResult:
    """`rewriting.rewrite` in another process of the same Python.

    Raises:
        Those of `rewriting.rewrite`.
        UnreadableModelError: also where TensorFlow crashed, or did not end in `seconds`.
    """
    check_output(Path(path), Path(out_dir_temp), to)
    if not sys.executable:  # Python embedded in another program
        return rewrite(path, out_dir_temp, to=to, run_signatures=run_signatures)
    there = Path(out_dir_temp).exists()
    request = {"path": os.fspath(path), "out": os.fspath(out_dir_temp), "to": to, "run_signatures": run_signatures}
    root = str(Path(__file__).resolve().parents[2])
    # -P: no module of the working folder may stand in for TensorFlow.
    command = [sys.executable, "-P", "-c", _CODE, root, json.dumps(request)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False
        )
        answer = _last_answer(done.stdout)
    except subprocess.TimeoutExpired:
        _remove(Path(out_dir_temp), there)
        raise UnreadableModelError(f"{path}: TensorFlow did not get through this graph in {seconds:g} s") from None
    except BaseException:
        _remove(Path(out_dir_temp), there)
        raise
    if answer is None:
        _remove(Path(out_dir_temp), there)
        reason = _reason(done.stderr.decode("utf-8", "replace"))
        raise UnreadableModelError(f"{path}: TensorFlow crashed on this graph (exit code {done.returncode}){reason}")
    if "error" in answer:
        raise _error(answer["error"], answer["message"])
    return _result(answer)


def _remove(out: Path, there: bool) -> None:
    shutil.rmtree(out, ignore_errors=True)
    if there:
        out.mkdir(exist_ok=True)


def _last_answer(stdout: bytes) -> dict[str, Any] | None:
    """The JSON object in the last line; TensorFlow may print before it."""
    lines = stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _reason(stderr: str) -> str:
    """The line in which TensorFlow says why it ended the process."""
    for line in reversed(stderr.splitlines()):
        if "Check failed" in line or line.startswith(("F0", "MemoryError", "terminate called")):
            return ": " + " ".join(line.split())[-300:]
    return ""


def _error(name: str, message: str) -> LstmSwapError:
    kind = getattr(errors, name, LstmSwapError)
    error: LstmSwapError = kind(message)
    return error


def _result(answer: dict[str, Any]) -> RewriteResult:
    return RewriteResult(
        Path(answer["path"]),
        Path(answer["output"]),
        answer["to"],
        [RewrittenNode(**node) for node in answer["nodes"]],
        [SignatureRun(**run) for run in answer["signatures"]],
        answer["warnings"],
    )


def main(request: str) -> None:
    """What the other process does: rewrite, and print the result or the error as one line of JSON."""
    asked = json.loads(request)
    _limit_memory()
    answer: dict[str, Any]
    try:
        result = rewrite(asked["path"], asked["out"], to=asked["to"], run_signatures=asked["run_signatures"])
    except LstmSwapError as problem:
        answer = {"error": type(problem).__name__, "message": str(problem)}
    except MemoryError:
        answer = {"error": "UnreadableModelError", "message": f"{asked['path']}: too large for this machine's memory"}
    else:
        answer = {**dataclasses.asdict(result), "path": str(result.path), "output": str(result.output)}
    print("\n" + json.dumps(answer), flush=True)


def _limit_memory() -> None:
    """Hold this process to a share of the memory, where the system can."""
    try:
        import resource

        limit = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY_SHARE)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or hard > limit:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    except (ImportError, ValueError, OSError, AttributeError):
        return
