"""The command line. Thin: each command calls one function of the library and prints its report."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from lstm_swap import __version__
from lstm_swap.errors import LstmSwapError, UsageError
from lstm_swap.report import Report, clean, short

#: Files larger than this get a progress bar on a terminal.
PROGRESS_BYTES = 100 << 20


@contextmanager
def _one_line_errors(codes: list[int] | None = None) -> Iterator[None]:
    """Print what went wrong as one message on stderr, without a traceback, and exit as documented.

    codes: where the exit code is put instead, for a command that goes on with the next model.
    """
    try:
        yield
        return
    except UsageError as problem:
        message, code = str(problem), 2
    except LstmSwapError as problem:
        message, code = str(problem), 1
    except RecursionError:
        message, code = "the model is nested too deeply to be read", 1
    except MemoryError:
        message, code = "not enough memory for an array of this model", 1
    except BrokenPipeError:
        raise  # the reader of a pipe has left: click ends quietly
    except OSError as problem:
        message, code = str(problem), 1
    lines = [clean(short(line, 2000)) for line in message.splitlines()]
    _echo("error: " + "\n".join(lines), err=True)
    if codes is None:
        raise SystemExit(code)
    codes.append(code)


def _echo(text: str, *, err: bool = False) -> None:
    """Print on a terminal of any encoding: what it cannot show is escaped, never an exception."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err, nl=not text.endswith("\n"))


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        _echo(report.to_json())
        return
    columns = max(80, shutil.get_terminal_size((120, 24)).columns)  # COLUMNS counts, on a terminal or not
    _echo(report.text(color=sys.stdout is not None and sys.stdout.isatty(), width=columns))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="lstm-swap")
def main() -> None:
    """Rewrite saved Keras LSTM and GRU models: GPU layers to plain ones and back, old files for today's Keras."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # where TensorFlow is needed, its chatter is not
    with suppress(ValueError):  # not in the main thread
        earlier = signal.signal(signal.SIGTERM, _terminated)
        click.get_current_context().call_on_close(lambda: signal.signal(signal.SIGTERM, earlier))


def _terminated(*_: object) -> None:
    """End as by an exception, so that temporary files are removed."""
    raise SystemExit(128 + signal.SIGTERM)


_to = click.option(
    "--to",
    type=click.Choice(["auto", "standard", "fused", "cudnn"]),
    default="auto",
    show_default=True,
    help="The form to write: plain Keras layers, fused ones (cuDNN on a GPU), or the legacy CuDNN classes.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")


@main.command()
@click.argument("model", type=click.Path(readable=False))
@_to
@click.option("--weights", type=click.Path(readable=False), help="The weights of an architecture in JSON or YAML.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False), help="Also write the report as a web page.")
@_json
def inspect(model: str, to: str, weights: str | None, html_file: str | None, as_json: bool) -> None:
    """Say what MODEL is, whether it needs a GPU, and what each recurrent layer can become."""
    with _one_line_errors():
        from lstm_swap import files

        report = files.inspect(model, to=to, weights=weights)
        if html_file:
            from lstm_swap.output import write_safely

            page = report.to_html()
            inputs = [Path(p) for p in (model, weights) if p]
            write_safely(inputs, Path(html_file), True, lambda file: _write_page(file, page))
        _print(report, as_json)


def _write_page(file: Path, page: str) -> None:
    file.write_text(page, encoding="utf-8")


@main.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(readable=False), metavar="MODEL...")
@click.option(
    "-o",
    "--output",
    type=click.Path(readable=False),
    help="Where to write, of one MODEL. The suffix picks the container.",
)
@_to
@click.option(
    "--dialect",
    type=click.Choice(["keras3", "keras2"]),
    default="keras3",
    show_default=True,
    help="Which Keras the output is for.",
)
@click.option("--inference", is_flag=True, help="Allow what only training would notice (see README).")
@click.option("--strict", is_flag=True, help="Any refused layer is an error, and nothing is written.")
@click.option("--weights", type=click.Path(readable=False), help="The weights of an architecture in JSON or YAML.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--no-verify", is_flag=True, help="Skip the proof that the numbers did not change.")
@click.option("--force", is_flag=True, help="Overwrite an existing output.")
@click.option("--mapping", is_flag=True, help="Show which stored array went to which layer.")
@_json
def convert(models: tuple[str, ...], output: str | None, as_json: bool, no_verify: bool, **options: Any) -> None:
    """Rewrite each MODEL; the input is never changed. Default output: NAME.FORM.SUFFIX beside it.

    Of several models, one that fails does not keep the others from being converted; the exit code tells.
    """
    with _one_line_errors():
        from lstm_swap import files

        if output is not None and len(models) > 1:
            raise UsageError("-o names one output, and there are several models")
        if options["weights"] is not None and len(models) > 1:
            raise UsageError("--weights names the weights of one architecture, and there are several models")
        files.choose_form(options["to"], options["dialect"])  # wrong use is said once, not for each model
    codes: list[int] = []
    for model in models:
        with _one_line_errors(codes), _progress(model, as_json) as progress:
            report = files.convert(model, output, verify=not no_verify, progress=progress, **options)
            _print(report, as_json)
    if codes:
        raise SystemExit(1 if 1 in codes else 2)


@contextmanager
def _progress(model: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar for large files, on a terminal only."""
    path = Path(model)
    if quiet or not sys.stderr.isatty() or not path.is_file() or path.stat().st_size < PROGRESS_BYTES:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"converting {path.name}", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield progress


@main.command()
@click.argument("a", type=click.Path(readable=False))
@click.argument("b", type=click.Path(readable=False))
@_json
def verify(a: str, b: str, as_json: bool) -> None:
    """Run two models on the same random input and say whether they compute the same."""
    with _one_line_errors():
        from lstm_swap import compare

        outcome = compare.compare_files(a, b)
        _echo(outcome.to_json() if as_json else outcome.text())
        raise SystemExit(0 if outcome.equal else 1)


@main.command()
@click.argument("model", type=click.Path(readable=False))
@click.option("--weights", type=click.Path(readable=False), help="The weights of an architecture in JSON or YAML.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Rows of the random input.")
@click.option("--steps", type=click.IntRange(min=1), default=100, show_default=True, help="Steps, where MODEL is open.")
@click.option("--training", is_flag=True, help="Also time gradients.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Measurements of each form.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False), help="Also draw it, as PNG, SVG or PDF.")
@_json
def bench(
    model: str,
    weights: str | None,
    batch: int,
    steps: int,
    training: bool,
    rounds: int,
    plot_file: str | None,
    as_json: bool,
) -> None:
    """Time MODEL on this machine with plain, cuDNN-ready and fused layers. Needs TensorFlow."""
    with _one_line_errors():
        from lstm_swap import bench as benchmark
        from lstm_swap import live

        loaded = live.load_model(model, "standard", weights=weights)
        result = benchmark.measure(loaded, batch=batch, steps=steps, training=training, rounds=rounds)
        if plot_file:
            from lstm_swap.output import write_safely

            inputs = [Path(p) for p in (model, weights) if p]
            kind = Path(plot_file).suffix[1:].lower()
            write_safely(inputs, Path(plot_file), True, lambda file: benchmark.plot(result, str(file), kind))
        _echo(result.to_json() if as_json else result.text())


@main.command()
@click.argument("model", required=False, type=click.Path(readable=False))
def doctor(model: str | None) -> None:
    """Say whether a cuDNN-capable GPU is there, and tell a broken CUDA from a MODEL that cannot use it."""
    with _one_line_errors():
        import importlib.util

        from lstm_swap import device, files

        refused: list[tuple[str, str]] = []
        if model is not None:
            layers = files.inspect(model, to="fused").layers
            refused = [(clean(short(d.path)), clean(r.message)) for d in layers for r in d.reasons]
        live = device.tensorflow_report() if importlib.util.find_spec("tensorflow") else None
        _echo(device.doctor_text(device.gpu_present(), live, refused))


if __name__ == "__main__":
    main()
