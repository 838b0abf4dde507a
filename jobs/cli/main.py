"""The console script `tango`: parses the command line, runs the command, and reports errors.

Slow imports happen inside the commands, so that help and user errors are shown immediately.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

import typer
from pydantic import ValidationError
from typer.main import get_command

from jobs import exit_codes
from jobs.cli import analyze, cache, completion, measure, results, runs, submit, tools  # noqa: F401  (they add their commands)
from jobs.cli.options import app, command
from jobs.cli.standard_streams import code_of_output, lasting_streams
from jobs.run.interrupt_message import how_to_go_on, interrupt_message
from pipeline.errors import StoreError, WorkerError
from pipeline.executors.cluster import is_connected
from pipeline.redaction import RedactingFilter, redacted
from pipeline.runtime import background
from pipeline.runtime.stopping import handled, leave
from tango_core import __version__
from tango_core.errors import UserError

_QUIET_LOGGERS = (
    *("ray", "httpx", "httpx2", "alembic", "mlflow", "matplotlib"),
    *("huggingface_hub", "transformers"),
)
# Click's base class of usage errors; typer contains a private copy of click.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
_HOW_TO_REPORT = (
    "tango: this is a bug in tango-video, not in your input; please report it with the lines "
    "above, the command and the output of `tango doctor`"
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tango-video {__version__}")
        raise typer.Exit(exit_codes.OK)


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Define the options of `tango` itself."""


app.add_typer(submit.jobs, name="jobs")
app.add_typer(analyze.app, name="analyze")
app.add_typer(tools.data, name="data")
app.add_typer(tools.model, name="model")
app.add_typer(runs.app, name="runs")
app.add_typer(cache.app, name="cache")
command(app)(completion.completion)


def main() -> None:
    """Entry point. User errors and signals end with a one-line message; see `exit_codes`.

    Other errors print a traceback and how to report them.
    """
    handler = logging.StreamHandler()
    handler.addFilter(RedactingFilter())
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for noisy in _QUIET_LOGGERS:
        logging.getLogger(noisy).setLevel(logging.ERROR)
    with lasting_streams(), handled(interrupt_message):
        try:
            completion.prepare()
            code = int(get_command(app)(prog_name=app.info.name, standalone_mode=False) or 0)
        except ModuleNotFoundError:
            raise  # `entry.py` names the extra
        except (KeyboardInterrupt, Exception) as error:
            code = _report(error)
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
        code = code_of_output(code)
        # Busy threads and Ray can block or break the interpreter's normal shutdown.
        if background.is_busy() or is_connected():
            leave(code)
    sys.exit(code)


def _report(error: BaseException) -> int:
    """Print what ended a command; returns the exit code."""
    if isinstance(error, typer.Abort):  # a question was not answered
        return exit_codes.FAILED
    if isinstance(error, KeyboardInterrupt):  # if no signal handler is installed
        return exit_codes.INTERRUPTED
    if isinstance(error, _USAGE_ERROR):
        return _report_usage(error)
    if isinstance(error, (UserError, OSError, WorkerError)):
        text = f"{error}; {how_to_go_on()}" if isinstance(error, StoreError) else str(error)
        print(f"tango: {redacted(' '.join(text.split()))}", file=sys.stderr)
        return exit_codes.MISTAKE
    if _is_out_of_memory(error):
        reason = redacted(str(error).split("\n", 1)[0]) or type(error).__name__
        less = "a model needs less for fewer frames (num_frames) or shorter replies"
        print(f"tango: out of memory; {less} (max_new_tokens): {reason}", file=sys.stderr)
        return exit_codes.MISTAKE
    print(redacted("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    print(_HOW_TO_REPORT, file=sys.stderr)
    return exit_codes.FAILED


def _report_usage(error: Any) -> int:
    """Report a wrong command line in one line that names the option or value and the help."""
    # The class is not public; typer also compares its name. Without a command, help is shown.
    if type(error).__name__ == "NoArgsIsHelpError":
        if text := str(error.format_message()):
            print(text, file=sys.stderr)
        return exit_codes.MISTAKE
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    if isinstance(error.__cause__, ValidationError):
        given = repr(error.__cause__.errors()[0]["input"])
        text = text.replace("Value error, ", "") + ("" if given in text else f", got {given}")
    context = getattr(error, "ctx", None)
    where = f"; see `{context.command_path} --help`" if context else ""
    print(f"tango: {redacted(text[:1].lower() + text[1:] + where)}", file=sys.stderr)
    return exit_codes.MISTAKE


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means lack of memory; torch's errors are checked only if it is loaded."""
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from tango_core.models.memory_faults import is_out_of_memory

    return isinstance(error, Exception) and is_out_of_memory(error)


if __name__ == "__main__":
    main()
