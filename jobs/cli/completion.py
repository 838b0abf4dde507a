"""Shell completion: `tango completion SHELL`, and completion of names.

Typer generates the script and completes commands and options. The functions of this module run on
every completion, so they avoid slow imports.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Literal

import typer

VARIABLE = "_TANGO_COMPLETE"
"""Environment variable set by the completion script when it calls this program."""


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that completes commands, options and names.

    Args:
        shell: Your shell.
    """
    # Importable from this module, but not declared as an export.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name="tango", complete_var=VARIABLE, shell=shell))


def prepare() -> None:
    """Enable typer's completion if the completion script called this program."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


def names_in(module: str, table: str) -> Callable[[str], list[str]]:
    """Completion of the names in a table, whose module is imported when a user asks for them."""
    return lambda incomplete: [
        name for name in getattr(import_module(module), table) if name.startswith(incomplete)
    ]


method_names = names_in("tango_core.compressors", "METHODS")
model_names = names_in("tango_core.models", "MODELS")
benchmark_names = names_in("tango_core.benchmarks", "BENCHMARKS")


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the runs in ROOT of the command line; none if it is a URL."""
    root = str(ctx.params.get("root") or "runs")
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    found = [name for name in names if name.startswith(incomplete)]
    return [name for name in found if os.path.isfile(f"{root}/{name}/job.yaml")]
