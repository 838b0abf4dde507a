"""Commands of `tango` about pruning methods: does one keep the contract?"""

from __future__ import annotations

from typing import Annotated

import typer

from jobs import exit_codes
from jobs.cli.completion import method_names


def check_method(
    name: Annotated[
        str,
        typer.Argument(
            help="A method of your own, my_module:MyMethod, or a shipped one.",
            autocompletion=method_names,
        ),
    ],
    set_: Annotated[
        list[str], typer.Option("--set", help="Option of the method: --set retention=0.2.")
    ] = [],  # noqa: B006
) -> None:
    """Check what every method promises, on synthetic features: budget, purity, order, dtype."""
    from jobs.config.overrides import with_overrides
    from tango_core.compressors.contract import check_method

    num_failed = 0
    for result in check_method(name, with_overrides({}, set_)):
        num_failed += result.failure is not None
        failed = f": {result.failure}" if result.failure else ""
        print(f"{'FAILED' if failed else 'ok':<6}  {result.promise}{failed}", flush=True)
    raise typer.Exit(exit_codes.of(not num_failed))
