"""HTML of one clip without scripts: some frames with the kept tokens of several methods.

The result is one SVG, in which every frame is stored once as a small JPEG and reused by all
methods.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from jobs.results.facts import CellFacts, JobFacts
from jobs.viewer.drawings import TokenDrawing, TokenSets
from jobs.viewer.frames import PER_SPRITE, Clip, FrameDecoder, FramesMissingError
from jobs.viewer.links import deep_link
from jobs.viewer.runs import Runs
from pipeline.cache.fingerprint import digest
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.printable import printable

_WIDTH, _GAP, _LABEL = 132, 6, 20
# The same values as in `site/draw.js`.
_GROUPS = (
    "#ff8c42",
    "#4db2ec",
    "#2fc99a",
    "#ec9fcb",
    "#e6c04a",
    "#b39cff",
    "#ff7a7a",
    "#9fd8ff",
)


class ClipPanels:
    """Draws clips of one run; a context manager that ends the decoding process.

    Args:
        run: The run directory.
        cache: Directory or URL of the token caches; `None` for the cache named by the run or next
            to it.
        pixels: Area of a frame in pixels.

    Raises:
        FileNotFoundError: If the directory is not a finished run.
    """

    def __init__(self, run: Path, cache: str | None = None, pixels: int = 24_000) -> None:
        (self._group,) = Runs.open([run], [run]).groups
        self._facts: JobFacts = self._group.facts[0]
        self._sets = TokenSets(self._group.cache_roots(cache))
        self._decoder = FrameDecoder(pixels=pixels)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._decoder.close()

    def figure(
        self,
        clip: tuple[str, str],
        cells: Sequence[str],
        captions: Mapping[str, str] | None = None,
        *,
        positions: int = 4,
        question: int | None = None,
        viewer: str = "",
    ) -> str:
        """A `<figure>` of one clip.

        Args:
            clip: Benchmark and video id.
            cells: Names of the cells, one row each.
            captions: Text to print after a cell's name, e.g. its reply.
            positions: Number of evenly spaced frames.
            question: Index of the question to print above the frames; `None` for none.
            viewer: URL of the viewer or its export, to which the figure links.

        Returns:
            Self-contained, escaped HTML; a `<p>` with the reason if nothing can be drawn.
        """
        asked = self._asked(clip)
        if asked is None:
            return _sentence(f"The run has no record of the file of {clip[1]}.")
        rows: list[tuple[str, TokenDrawing]] = []
        missing: list[str] = []
        sampling: Mapping[str, Any] | None = None
        for name in cells:
            cell = self._cell(clip[0], name)
            found = self._sets.drawing(cell.cache if cell else "", asked["clip_key"] or "")
            if isinstance(found, str):
                missing.append(f"{name}: {found}")
                continue
            sampling = sampling or (self._sets.sampling_of(cell.cache) if cell else None)
            rows.append((name, found))
        if not rows:
            return _sentence(" ".join(missing) or "No cell was named.")
        first = rows[0][1]
        shown = np.unique(np.linspace(0, first.grid[0] - 1, positions).round().astype(int)).tolist()
        try:
            pictures, shape = self._frames(asked, sampling or {}, first, shown)
        except FramesMissingError as error:
            pictures, shape = [""] * len(shown), first.grid[1] / first.grid[2]
            missing.append(str(error))
        self._number += 1
        # A page may show clips of several runs, and ids must be unique per page.
        name = digest(f"{self._group.folders[0]}|{self._number}", 10)
        drawn = _svg(f"clip-{name}", rows, shown, pictures, shape, captions or {})
        notes = "".join(_sentence(text) for text in missing)
        asking = "" if question is None else _sentence(_question(asked, question))
        title = html.escape(printable(clip[1]))
        if viewer:
            link = deep_link(self._facts.run_id, clip, list(cells), base=viewer)
            title = f'<a href="{html.escape(link)}">{title}</a>'
        inside = f"<figcaption>{title}</figcaption>{asking}{drawn}{notes}"
        return f'<figure class="tango-clip">{inside}</figure>'

    def _asked(self, clip: tuple[str, str]) -> dict[str, Any] | None:
        """Recorded questions about the clip."""
        for table in self._group.asked():
            videos = table["video_id"].to_pylist()
            for at, (benchmark, video) in enumerate(
                zip(table["benchmark"].to_pylist(), videos, strict=True)
            ):
                if (benchmark, video) == clip:
                    return dict(table.slice(at, 1).to_pylist()[0])
        return None

    def _cell(self, benchmark: str, name: str) -> CellFacts | None:
        """Recorded facts of a cell."""
        return next(
            (c for c in self._facts.cells if (c.benchmark, c.name) == (benchmark, name)), None
        )

    def _frames(
        self,
        asked: Mapping[str, Any],
        sampling: Mapping[str, Any],
        drawing: TokenDrawing,
        shown: Sequence[int],
    ) -> tuple[list[str], float]:
        """Some frames as data URLs, and the ratio of height to width."""
        from PIL import Image

        if not sampling:
            raise FramesMissingError("The token cache has no record of its frame sampling.")
        start, end = asked["clip_start"], asked["clip_end"]
        bounds = None if start is None else (start, end)
        clip = Clip(asked["path"], bounds, asked["source_fingerprint"])
        sprites = self._decoder.sprites(clip, sampling, drawing.times.tolist())
        opened = [Image.open(io.BytesIO(data)) for data in sprites]
        urls, shape = [], 1.0
        for position in shown:
            sprite = opened[position // PER_SPRITE]
            count = min(PER_SPRITE, drawing.grid[0] - position // PER_SPRITE * PER_SPRITE)
            height = sprite.height // count
            top = position % PER_SPRITE * height
            shape = height / sprite.width
            data = io.BytesIO()
            sprite.crop((0, top, sprite.width, top + height)).save(data, "JPEG", quality=72)
            urls.append(f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}")
        return urls, shape


def _svg(
    name: str,
    rows: Sequence[tuple[str, TokenDrawing]],
    shown: Sequence[int],
    pictures: Sequence[str],
    shape: float,
    captions: Mapping[str, str],
) -> str:
    """SVG with one row per method and one column per frame."""
    height = round(_WIDTH * shape)
    width = len(shown) * (_WIDTH + _GAP) - _GAP
    tall = _LABEL + height + _GAP
    defined = "".join(
        f'<image id="{name}-{at}" width="{_WIDTH}" height="{height}" '
        f'preserveAspectRatio="none" href="{url}"/>'
        for at, url in enumerate(pictures)
        if url
    )
    parts = [f"<defs>{defined}</defs>"]
    for line, (cell, drawing) in enumerate(rows):
        top = line * tall
        total = drawing.grid[0] * drawing.tokens_per_frame
        text = f"{printable(cell)}: {len(drawing.kept)} of {total} tokens"
        if cell in captions:
            text += f", {printable(captions[cell])}"
        parts.append(f'<text x="0" y="{top + 14}" font-size="12">{html.escape(text)}</text>')
        for column, position in enumerate(shown):
            x, y = column * (_WIDTH + _GAP), top + _LABEL
            own = _over(drawing, min(position, drawing.grid[0] - 1), height)
            back = (
                f'<use href="#{name}-{column}"/>'
                if pictures[column]
                else f'<rect width="{_WIDTH}" height="{height}" fill="#5c6b7a"/>'
            )
            time = f"{drawing.times[min(position, drawing.grid[0] - 1)]:.1f} s"
            parts.append(f'<g transform="translate({x} {y})"><title>{time}</title>{back}{own}</g>')
    label = html.escape("; ".join(printable(cell) for cell, _ in rows))
    return (
        f'<svg viewBox="0 0 {width} {len(rows) * tall}" width="{width}" '
        'style="max-width:100%;height:auto" role="img" '
        f'aria-label="Kept tokens of {label}" fill="currentColor" '
        f'font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )


def _over(drawing: TokenDrawing, position: int, height: int) -> str:
    """Overlay of one frame: like the viewer's, with fewer layers."""
    _, rows, columns = drawing.grid
    each = drawing.tokens_per_frame
    into = merged_into(drawing)
    w, h = _WIDTH / columns, height / rows
    kept = {int(place) - position * each for place in drawing.kept}
    dropped: list[str] = []
    groups: dict[int, list[str]] = {}
    outlines: list[str] = []
    for cell in range(each):
        x, y = cell % columns * w, cell // columns * h
        box = f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h-{w:.1f}z"
        token = int(into[position * each + cell])
        if cell in kept:
            outlines.append(
                f"M{x + 0.8:.1f} {y + 0.8:.1f}h{w - 1.6:.1f}v{h - 1.6:.1f}h-{w - 1.6:.1f}z"
            )
        elif token >= 0:
            groups.setdefault(token * 5 % len(_GROUPS), []).append(box)
        else:
            dropped.append(box)
    parts = [f'<path d="{"".join(dropped)}" fill="#080c12" fill-opacity=".74"/>'] if dropped else []
    parts += [
        f'<path d="{"".join(boxes)}" fill="{_GROUPS[color]}" fill-opacity=".45"/>'
        for color, boxes in sorted(groups.items())
    ]
    if len(kept & set(range(each))) < each:
        path = "".join(outlines)
        parts += [
            f'<path d="{path}" fill="none" stroke="#000" stroke-width="2"/>',
            f'<path d="{path}" fill="none" stroke="#fff" stroke-width="1"/>',
        ]
    return "".join(parts)


def merged_into(drawing: TokenDrawing) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(T * L,) kept token into which each position was merged most; -1 for none."""
    total = drawing.grid[0] * drawing.tokens_per_frame
    into = np.full(total, -1, np.int64)
    if drawing.offsets is None or drawing.sources is None or drawing.weights is None:
        into[drawing.kept] = np.arange(len(drawing.kept))
        return into
    tokens = np.repeat(np.arange(len(drawing.kept)), np.diff(drawing.offsets))
    order = np.argsort(np.abs(drawing.weights), kind="stable")  # the largest weight is written last
    into[drawing.sources[order]] = tokens[order]
    return into


def _question(asked: Mapping[str, Any], index: int) -> str:
    """Text of a question about a clip, with its options."""
    one = json.loads(asked["questions"])[index]
    options = [f"{letter}. {text}" for letter, text in zip(LETTERS, one["choices"], strict=False)]
    return " ".join([one["text"], *options])


def _sentence(text: str) -> str:
    """A paragraph with an escaped sentence."""
    return f"<p>{html.escape(printable(text))}</p>"
