"""Links into the viewer, whose state is in the fragment of the URL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlencode

from tango_core.printable import printable


def deep_link(run: str, clip: tuple[str, str], cells: Iterable[str], *, base: str = "") -> str:
    """Link to a clip with some cells side by side.

    Args:
        run: Name of the run directory (`run_id`), to distinguish cells with equal names.
        clip: Benchmark and video id.
        cells: Names of cells, as in the answers' column `cell`.
        base: URL of the viewer or its export, without a fragment, e.g. `"viewer/index.html"` or
            `"http://127.0.0.1:8780/"`.

    Returns:
        `BASE#/clip?benchmark=...&video=...&run=...&cell=...`, safe in an attribute once escaped.
    """
    pairs = [("benchmark", clip[0]), ("video", clip[1]), ("run", run)]
    return _link(base, "clip", [*pairs, *(("cell", name) for name in cells)])


def list_link(
    *,
    benchmark: str = "",
    groups: Sequence[tuple[str, str]] = (),
    column: str = "",
    outcome: str = "",
    base: str = "",
) -> str:
    """Link to the questions that match a filter.

    Args:
        benchmark: Name; "" for all.
        groups: (name, value) pairs of the questions.
        column: Label of the column for `outcome`; with a single run, the cell's name.
        outcome: As in `site/query.js`, e.g. `"lost"`; "" for all.
        base: As in `deep_link`.
    """
    named = [("group", f"{name}={value}") for name, value in groups]
    return _link(
        base, "list", [("of", benchmark), *named, ("column", column), ("outcome", outcome)]
    )


def _link(base: str, page: str, pairs: Sequence[tuple[str, str]]) -> str:
    """URL of a page of the viewer, with names in their printable form and without empty ones."""
    given = [(name, printable(value)) for name, value in pairs if value]
    return f"{base}#/{page}?{urlencode(given, quote_via=quote, safe='')}"
