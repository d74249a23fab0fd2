"""The README is true: its commands, its transcript, its tables and its Python run as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from lstm_swap import rules
from lstm_swap.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _transcript() -> list[tuple[str, str]]:
    """(command, output) of each `$ lstm-swap ...` in the README."""
    found = []
    for block in re.split(r"^    \$ ", README, flags=re.M)[1:]:
        lines = block.splitlines()
        output = []
        for line in lines[1:]:
            if not line.startswith("    "):
                break
            output.append(line[4:])
        found.append((lines[0], "\n".join(output)))
    return found


def _same(text: str) -> str:
    """Without what differs between machines: the last digits of a proof."""
    return re.sub(r"difference \d(\.\d)?e-\d\d", "difference 2e-16", text).strip()


@pytest.mark.parametrize(("command", "output"), _transcript(), ids=lambda v: v.split()[1] if "lstm-swap" in v else "")
def test_transcript(command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the transcript prints what the README says."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, shlex.split(command)[1:], env={"COLUMNS": "110"}, catch_exceptions=False)
    assert result.exit_code == 0
    assert _same(result.output) == _same(output)


def test_ci_runs_the_printed_test_command() -> None:
    """The test command of the README is the very one that CI calls."""
    command = next(line.strip() for line in README.splitlines() if "-m pytest" in line)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_command_and_option_is_documented() -> None:
    """A command or option that the README does not name is not there for its readers."""
    for name, command in main.commands.items():  # type: ignore[attr-defined]
        assert f"lstm-swap {name}" in README
        for parameter in command.params:
            options = [o for o in parameter.opts if o.startswith("-")]
            assert not options or any(o in README for o in options), f"{name} {options}"


def test_every_reason_is_in_the_table() -> None:
    """The table of refusals names every reason code that the rules can give."""
    source = Path(rules.__file__).read_text()
    codes = set(re.findall(r'Reason\(\s*"(\w+)"', source)) | {"partner"}
    assert len(codes) > 10
    table = README.split("| reason |")[1].split("\n\n")[0]
    for code in codes:
        assert f"`{code}`" in table


def test_tables_are_those_of_the_committed_results() -> None:
    """Every figure in a table of the README comes from a file under benchmarks/results."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("readme_tables", ROOT / "benchmarks" / "readme_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "<!-- gpu_layers -->" in README
    assert module.filled(README) == README
