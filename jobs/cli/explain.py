"""The command `tango explain`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from jobs.cli.options import expanded_text

_RESULT = "Run directory, its URL, a file of VLMEvalKit or lmms-eval, or `published`."

First = Annotated[
    str, typer.Argument(metavar="A", help=_RESULT, show_default=False, callback=expanded_text)
]
Second = Annotated[
    str, typer.Argument(metavar="B", help=_RESULT, show_default=False, callback=expanded_text)
]


def explain(
    first: First,
    second: Second,
    cell: Annotated[
        str | None,
        typer.Option(
            help='Cell of both, e.g. "tango r=0.1"; of A alone with --other-cell.  '
            "[default: all that both have]"
        ),
    ] = None,
    other_cell: Annotated[str | None, typer.Option(help="Cell of B.  [default: as of A]")] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(help="Of a harness's file.  [default: as in the other run's recipe]"),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            help="Directory of that benchmark's files.  [default: likewise]",
            callback=expanded_text,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of that benchmark.  [default: likewise]")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Examples of each cause.")] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say why B's score is not A's: causes in points that add up, with examples."""
    from jobs.explain.command import HowToExplain, explain
    from jobs.explain.sides import BenchmarkOptions

    where = BenchmarkOptions(benchmark, root, split)
    explain(first, second, HowToExplain(cell, other_cell, where, examples, json), Console())
