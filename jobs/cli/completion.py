"""Shell completion: `tango completion SHELL`, and names that a command line may be completed with.

Typer makes the script and answers it from the commands and options themselves. What is here runs
when somebody presses the key, so names are found without heavy imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

PROGRAM = "tango"
VARIABLE = "_TANGO_COMPLETE"
"""Set by the script while it asks this program how a line goes on."""


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell.", show_default=False)
    ],
) -> None:
    """Print a script that completes commands, options, and names of methods, models and runs."""
    # Typer hands it on without listing it.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))


def prepare() -> None:
    """Let typer answer the script, if it is the one that asks."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


def method_names(incomplete: str) -> list[str]:
    """Pruning methods."""
    from tango_core.compressors import METHODS

    return _beginning(METHODS, incomplete)


def model_names(incomplete: str) -> list[str]:
    """Models."""
    from tango_core.models import MODELS

    return _beginning(MODELS, incomplete)


def benchmark_names(incomplete: str) -> list[str]:
    """Benchmarks."""
    from tango_core.benchmarks import BENCHMARKS

    return _beginning(BENCHMARKS, incomplete)


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the runs in the local ROOT of the command line."""
    root = str(ctx.params.get("root") or "runs")
    if "://" in root or "/" in incomplete:
        return []
    try:
        with os.scandir(root) as entries:
            names = sorted(one.name for one in entries if one.is_dir())
    except OSError:
        return []
    found = (name for name in names if os.path.isfile(os.path.join(root, name, "job.yaml")))
    return _beginning(found, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """Names that begin as what has been typed."""
    return [name for name in names if name.startswith(incomplete)]
