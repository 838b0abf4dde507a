"""The console script `tango`: parses the command line, runs the command, and reports errors.

Slow imports happen inside the commands, after the checks of recipe and paths, so that help and
user errors are shown immediately.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Annotated

import typer

from jobs import exit_codes
from jobs.cli import analyze as cli_analyze
from jobs.cli import cache as cli_cache
from jobs.cli import completion as cli_completion
from jobs.cli import fetch as cli_fetch
from jobs.cli import measure as cli_measure
from jobs.cli import results as cli_results
from jobs.cli import runs as cli_runs
from jobs.cli import submit as cli_submit
from jobs.cli import tools as cli_tools
from jobs.cli.standard_streams import code_of_output, lasting_streams
from jobs.cli.usage_errors import run_app
from jobs.run.interrupt_message import how_to_go_on, interrupt_message
from pipeline.errors import StoreError, WorkerError
from pipeline.executors.cluster import is_connected
from pipeline.redaction import RedactingFilter, redacted
from pipeline.runtime import background
from pipeline.runtime.stopping import handled, leave
from tango_core.errors import UserError

app = typer.Typer(
    name="tango",
    help="Training-free video-token pruning: encode every clip once, compare every method.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        from tango_core import __version__

        print(f"tango-video {__version__}")
        raise typer.Exit(exit_codes.OK)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Define the options of `tango` itself."""


app.command("evaluate", help="Measure one method on one benchmark.")(cli_measure.evaluate)
app.command(
    "sweep", help="Measure several methods, retentions and benchmarks in one pass over the clips."
)(cli_measure.sweep)
app.command()(cli_measure.precompute)
app.command()(cli_measure.doctor)
app.command()(cli_submit.submit)
app.add_typer(cli_submit.jobs, name="jobs")
app.command()(cli_tools.ask)
app.command("check-method")(cli_tools.check_method)
app.command("train-tiny")(cli_tools.train_tiny)
app.add_typer(cli_analyze.analyze, name="analyze")
app.command("log-run")(cli_results.log_run)
app.command()(cli_results.report)
app.command()(cli_results.explain)
app.command()(cli_results.view)
app.command()(cli_results.export)
app.command("import")(cli_results.import_)
cli_results.data.command("get")(cli_fetch.data_get)
app.add_typer(cli_results.data, name="data")
app.add_typer(cli_fetch.model, name="model")
app.add_typer(cli_runs.runs, name="runs")
app.add_typer(cli_cache.cache, name="cache")
app.command()(cli_completion.completion)


def main() -> None:
    """Entry point. User errors and signals end with a one-line message; see `exit_codes`.

    Other errors print a traceback and how to report them.
    """
    with lasting_streams(), handled(interrupt_message):
        code = code_of_output(_run())
        # Busy threads and Ray can block or break the interpreter's normal shutdown.
        if background.is_busy() or is_connected():
            leave(code)
    sys.exit(code)


_HOW_TO_REPORT = (
    "tango: this is a bug in tango-video, not in your input; please report it with the lines "
    "above, the command and the output of `tango doctor`"
)
_LESS_MEMORY = (
    "a model needs less for fewer frames (num_frames) or shorter replies (max_new_tokens)"
)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an error means lack of memory; torch's errors are checked only if it is loaded."""
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from tango_core.models.memory_faults import is_out_of_memory

    return is_out_of_memory(error)


def _run() -> int:
    """Run the command and return its exit code."""
    handler = logging.StreamHandler()
    handler.addFilter(RedactingFilter())
    level = logging.getLogger().level
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    for noisy in (
        "ray",
        "httpx",
        "httpx2",
        "alembic",
        "mlflow",
        "matplotlib",
        "huggingface_hub",
        "transformers",
    ):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        cli_completion.prepare()
        code = run_app(app)
        if code == exit_codes.INTERRUPTED:
            raise KeyboardInterrupt
        return code
    except (KeyboardInterrupt, UserError, OSError, WorkerError) as error:
        interrupted = isinstance(error, KeyboardInterrupt)  # if no signal handler is installed
        text = "interrupted; finished work is kept" if interrupted else str(error)
        if isinstance(error, StoreError):
            text += f"; {how_to_go_on()}"
        print(f"tango: {redacted(' '.join(text.split()))}", file=sys.stderr)
        return exit_codes.INTERRUPTED if interrupted else exit_codes.MISTAKE
    except ModuleNotFoundError:
        raise  # `entry.py` names the extra
    except Exception as error:
        if _is_out_of_memory(error):
            reason = redacted(str(error).split("\n", 1)[0]) or type(error).__name__
            print(f"tango: out of memory; {_LESS_MEMORY} ({reason})", file=sys.stderr)
            return exit_codes.MISTAKE
        print(redacted(traceback.format_exc()), file=sys.stderr, end="")
        print(_HOW_TO_REPORT, file=sys.stderr)
        return exit_codes.FAILED
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(level)


if __name__ == "__main__":
    main()
