"""HTML of one clip without scripts: some frames with the kept tokens of several methods.

The result has a row of pictures per method, in which dropped tokens are dark, merged ones have the
colour of their group, and kept ones a white frame, as on the page of a clip.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from jobs.viewer.frames import FrameDecoder, NotShownError, View, jpeg
from jobs.viewer.index import QuestionIndex, Runs
from jobs.viewer.pages import Pages, deep_link
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.combination import Combination
from tango_core.printable import printable

# Evenly spaced frames of a clip; area in which they are decoded, and width in the figure.
_FRAMES, _PIXELS = 4, 24_000
_WIDTH, _GAP = 132, 6
# The same colours as in `site/draw.js`; the last two digits are the opacity.
_GROUPS = [
    f"#{colour}73"
    for colour in ["ff8c42", "4db2ec", "2fc99a", "ec9fcb", "e6c04a", "b39cff", "ff7a7a", "9fd8ff"]
]
_DROPPED, _UNKNOWN = "#080c12bd", "#5c6b7a"


class ClipPanels:
    """Draws clips of one run; a context manager that ends the decoding process.

    Args:
        run: The run directory.

    Raises:
        FileNotFoundError: If the directory is not a finished run.
    """

    def __init__(self, run: Path) -> None:
        self._pages = Pages(QuestionIndex(Runs.open([run], [run])))
        self._decoder = FrameDecoder(_PIXELS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._decoder.close()

    def figure(
        self,
        clip: tuple[str, str],
        cells: Sequence[str],
        captions: Mapping[str, str] | None = None,
        *,
        question: int | None = None,
        viewer: str = "",
    ) -> str:
        """A `<figure>` of one clip.

        Args:
            clip: Benchmark and video id.
            cells: Names of the cells, one row each.
            captions: Text to print after a cell's name, e.g. its reply.
            question: Index of the question to print above the frames, whose tokens are drawn for a
                method that reads it; `None` for none.
            viewer: URL of the viewer or its export, to which the figure links.

        Returns:
            Self-contained, escaped HTML; a `<p>` with the reason if nothing can be drawn.
        """
        index, clips = self._pages.index, self._pages.index.clips
        number = clips.index(clip) if clip in clips else -1
        if number < 0 or not index.asked[number]:
            return _sentence(f"The run has no record of the file of {clip[1]}.")
        columns = {column.name: at for at, column in enumerate(index.runs.columns)}
        one = json.loads(index.asked[number][0]["questions"])[question or 0]
        drawn: dict[str, tuple[Combination, View]] = {}
        missing: list[str] = []
        frames_of: dict[View, list[Image.Image]] = {}
        for name in cells:
            try:
                found = self._pages.tokens(number, columns[name])
                drawn[name] = found.sets[found.of.get(one["id"], 0)].plan, found.view
            except NotShownError as error:
                missing.append(f"{name}: {error}")
        parts = []
        for name, (plan, view) in drawn.items():
            text = f"{name}: {plan.num_kept} of {plan.num_total} tokens"
            text += f", {captions[name]}" if captions and name in captions else ""
            label = html.escape(printable(text))
            shown = np.unique(np.linspace(0, plan.grid[0] - 1, _FRAMES).round().astype(int))
            if view not in frames_of:
                try:
                    frames_of[view] = [Image.fromarray(one) for one in self._decoder.frames(view)]
                except NotShownError as error:
                    missing.append(str(error))
                    unknown = Image.new("RGB", (plan.grid[2], plan.grid[1]), _UNKNOWN)
                    frames_of[view] = [unknown] * plan.grid[0]
            images = "".join(_images(plan, shown.tolist(), frames_of[view]))
            parts.append(f'<div>{label}</div><div role="img" aria-label="{label}">{images}</div>')
        notes = "".join(map(_sentence, dict.fromkeys(missing)))
        if not parts:
            return notes
        title = html.escape(printable(clip[1]))
        if viewer:
            link = deep_link(index.runs.groups[0].facts[0].run_id, clip, cells, base=viewer)
            title = f'<a href="{html.escape(link)}">{title}</a>'
        options = zip(LETTERS, one["choices"], strict=False)
        asking = " ".join([one["text"], *(f"{letter}. {text}" for letter, text in options)])
        asking = "" if question is None else _sentence(asking)
        inside = f"<figcaption>{title}</figcaption>{asking}{''.join(parts)}{notes}"
        return f'<figure class="tango-clip">{inside}</figure>'


def _images(
    plan: Combination, shown: Sequence[int], frames: Sequence[Image.Image]
) -> Iterator[str]:
    """The `<img>` of some frames with the tokens of a method over them."""
    into = merged_into(plan).reshape(plan.grid)
    kept = np.zeros(into.shape, bool)
    kept.ravel()[plan.indices.numpy()] = True
    for at in shown:
        drawn = _over(frames[at], into[at], kept[at])
        data = base64.b64encode(jpeg(np.asarray(drawn), 72)).decode()
        time = f"{float(plan.timestamps[at]):.1f} s"
        style = f"margin:0 {_GAP}px {_GAP}px 0"
        yield f'<img alt="" title="{time}" style="{style}" src="data:image/jpeg;base64,{data}">'


def _over(
    frame: Image.Image, into: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_]
) -> Image.Image:
    """A frame with its (H, W) tokens: dropped ones dark, merged ones tinted, kept ones framed."""
    drawn = frame.resize((_WIDTH, round(_WIDTH * frame.height / frame.width)))
    draw = ImageDraw.Draw(drawn, "RGBA")
    rows = np.linspace(0, drawn.height, into.shape[0] + 1).round()
    columns = np.linspace(0, drawn.width, into.shape[1] + 1).round()
    for (row, column), group in np.ndenumerate(into):
        corners = [columns[column], rows[row], columns[column + 1] - 1, rows[row + 1] - 1]
        if not kept[row, column]:
            draw.rectangle(corners, _DROPPED if group < 0 else _GROUPS[group * 5 % len(_GROUPS)])
        elif not kept.all():
            draw.rectangle(corners, outline="white")
    return drawn


def merged_into(plan: Combination) -> npt.NDArray[np.int64]:
    """(T * L,) kept token into which each position was merged most; -1 for none."""
    into = np.full(plan.num_total, -1, np.int64)
    tokens = np.arange(plan.num_kept)
    if plan.offsets is None or plan.sources is None or plan.weights is None:
        into[plan.indices.numpy()] = tokens
        return into
    tokens = np.repeat(tokens, np.diff(plan.offsets.numpy()))
    order = np.argsort(np.abs(plan.weights.numpy()), kind="stable")  # the largest is written last
    into[plan.sources.numpy()[order]] = tokens[order]
    return into


def _sentence(text: str) -> str:
    """A paragraph with an escaped sentence."""
    return f"<p>{html.escape(printable(text))}</p>"
