"""The commands `tango cache ...`: look at token caches, check them, and make room."""

from __future__ import annotations

from typing import Annotated

import typer

cache = typer.Typer(no_args_is_help=True, help="Look after the token caches.")

Root = Annotated[str, typer.Option("--cache", help="Directory or URL of the token caches.")]

CACHE = "runs/cache"


@cache.command("ls")
def list_(root: Root = CACHE) -> None:
    """List the caches: what is in them, how large and how old they are."""
    from jobs.cache_table import cache_table
    from pipeline.cache_folders import find_caches

    print(cache_table(find_caches(root)) or f"no token caches in {root}")


@cache.callback()
def _group() -> None:
    """Keep `ls` a word of its own."""
