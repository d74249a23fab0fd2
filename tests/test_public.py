"""The public surface: pinned names, no TensorFlow where none is needed, quick to start."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import lstm_swap

EXAMPLE = Path(__file__).parent.parent / "examples" / "models" / "licence_characters_gpu.h5"
NAMES = {
    "IneligibleLayerError",
    "LstmSwapError",
    "MissingDependencyError",
    "Plan",
    "Report",
    "UnreadableModelError",
    "UnsupportedLayerError",
    "UsageError",
    "VerificationError",
    "convert",
    "inspect",
    "load_model",
    "optimize",
    "plan",
    "standardize",
    "verify",
}


def test_names_are_pinned() -> None:
    """Adding or removing a public name is a decision, not an accident; each is there, twice asked."""
    assert set(lstm_swap.__all__) == NAMES
    assert list(lstm_swap.__all__) == sorted(lstm_swap.__all__)
    for name in NAMES:
        assert getattr(lstm_swap, name) is getattr(lstm_swap, name)
    with pytest.raises(AttributeError, match="nothing_like_this"):
        lstm_swap.nothing_like_this  # noqa: B018


def test_errors_form_the_documented_tree() -> None:
    """Every error is an LstmSwapError and the built-in that people catch."""
    for name, base in {
        "UsageError": ValueError,
        "UnreadableModelError": ValueError,
        "IneligibleLayerError": ValueError,
        "UnsupportedLayerError": ValueError,
        "VerificationError": ArithmeticError,
        "MissingDependencyError": ImportError,
    }.items():
        error = getattr(lstm_swap, name)
        assert issubclass(error, lstm_swap.LstmSwapError)
        assert issubclass(error, base)


def _modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(m.split('.')[0] for m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split()[-4000:])


@pytest.mark.parametrize(
    "code",
    [
        "import lstm_swap",
        f"import lstm_swap; lstm_swap.inspect({str(EXAMPLE)!r})",
        f"import lstm_swap; lstm_swap.convert({str(EXAMPLE)!r}, to='standard', dry_run=True)",
        "from click.testing import CliRunner\nfrom lstm_swap.cli import main\n"
        f"assert CliRunner().invoke(main, ['inspect', {str(EXAMPLE)!r}]).exit_code == 0",
    ],
    ids=["import", "inspect", "plan", "command line"],
)
def test_file_work_imports_no_tensorflow(code: str) -> None:
    """Reading and planning need h5py and NumPy; TensorFlow and Keras are never loaded."""
    assert not {"tensorflow", "keras", "tf_keras"} & _modules_after(code)


def test_converting_imports_no_tensorflow(tmp_path: Path) -> None:
    """Nor does a conversion with proof, in either container."""
    for out in ("out.h5", "out.keras"):
        target = str(tmp_path / out)
        modules = _modules_after(f"import lstm_swap; lstm_swap.convert({str(EXAMPLE)!r}, {target!r}, to='standard')")
        assert not {"tensorflow", "keras", "tf_keras"} & modules


def test_starting_costs_little_more_than_its_libraries() -> None:
    """inspect of a small file takes a fraction of what importing TensorFlow takes (a ratio in one run, not a time)."""
    pytest.importorskip("tensorflow")

    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        return time.perf_counter() - start

    ours = min(seconds(f"import lstm_swap; lstm_swap.inspect({str(EXAMPLE)!r})") for _ in range(2))
    assert ours < seconds("import tensorflow") / 2
