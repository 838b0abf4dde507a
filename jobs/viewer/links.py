"""Links into the viewer, whose state is in the fragment of the URL."""

from __future__ import annotations

from collections.abc import Iterable
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
    named = [("benchmark", clip[0]), ("video", clip[1]), ("run", run)]
    pairs = [*named, *(("cell", name) for name in cells)]
    given = [(name, printable(value)) for name, value in pairs if value]
    return f"{base}#/clip?{urlencode(given, quote_via=quote, safe='')}"
