"""A few clips of a run: kept tokens, merged tokens and replies per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jobs.report.page import viewer_of
from jobs.results.cell_summary import BASELINE, CellSummary
from jobs.results.reduction import parts_of
from jobs.viewer.panels import ClipPanels

MOST_CELLS = 4
# Cells at about this share stand side by side: enough is gone to see a difference.
SHARE = 0.1
# Clips that are looked at; a run may have hundreds of thousands.
LOOKED_AT = 200
_LONGEST_REPLY = 60
# Clips that are tried for each that is drawn: caches and videos may be gone.
_TRIES = 4
_COLUMNS = ("benchmark", "video_id", "cell", "correct", "score", "text", "status")


class _Said(NamedTuple):
    """A reply, and what it is worth: a score where a benchmark has more than right and wrong."""

    right: bool
    text: str
    score: float | None

    @property
    def caption(self) -> str:
        """The worth in words, then the reply."""
        worth = "right" if self.right else "wrong"
        if self.score is not None:
            worth = f"{100 * self.score:.0f} %"
        return f"{worth}: {self.text[:_LONGEST_REPLY]}"


@dataclass
class _Sampled:
    """What cells said about a clip; of several questions the first one that tells them apart."""

    replies: dict[str, list[_Said]] = field(default_factory=dict)

    def question(self, cells: Sequence[str]) -> int:
        """Index of a question that some cell answers and another one does not, or of the first."""
        said = [self.replies[cell] for cell in cells if cell in self.replies]
        for at, replies in enumerate(zip(*said, strict=False)):
            if len({said.right for said in replies}) > 1:
                return at
        return 0

    def lost(self, cells: Sequence[str]) -> int:
        """Questions that all tokens answer and one of the cells does not."""
        full = self.replies.get(BASELINE, [])
        return sum(
            one.right
            and any(
                not said[at].right for cell in cells if at < len(said := self.replies.get(cell, []))
            )
            for at, one in enumerate(full)
        )


def gallery(run_dir: Path, cells: Sequence[CellSummary], number: int) -> list[str]:
    """Draw some clips of a finished run, those first that a method got wrong and `full` did not.

    Args:
        run_dir: Its directory.
        cells: Its cells.
        number: How many clips at most.

    Returns:
        HTML of figures that need nothing else; empty where the run has no pruned cell, or is older
        than the record of its clips (`clips/*.parquet`).
    """
    shown = _side_by_side(cells)
    if number < 1 or not shown or not (run_dir / "clips").is_dir():
        return []
    names = [cell.name for cell in shown]
    found = _sampled(run_dir, shown[0].benchmark)
    order = sorted(found, key=lambda clip: -found[clip].lost(names))
    viewer = viewer_of(run_dir)
    figures: list[str] = []
    with ClipPanels(run_dir) as panels:
        for clip in order[: number * _TRIES]:
            figure = panels.figure(
                clip,
                names,
                _captions(found[clip], names),
                question=found[clip].question([BASELINE, *names]),
                viewer=viewer,
            )
            if figure.startswith("<figure"):  # else it says what is missing
                figures.append(figure)
            if len(figures) == number:
                break
    return figures


def _side_by_side(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Cells of the first benchmark at the share nearest to `SHARE`, the methods with most first."""
    pruned = [
        cell for cell in cells if not cell.is_baseline and cell.benchmark == cells[0].benchmark
    ]
    if not pruned:
        return []
    share = min((cell.retention_requested for cell in pruned), key=lambda one: abs(one - SHARE))
    near = [cell for cell in pruned if cell.retention_requested == share]
    best: dict[str, CellSummary] = {}
    for cell in sorted(near, key=lambda one: -(one.headline.value if one.headline else 0.0)):
        best.setdefault(cell.method, cell)
    return list(best.values())[:MOST_CELLS]


def _sampled(run_dir: Path, benchmark: str) -> dict[tuple[str, str], _Sampled]:
    """The first clips of a benchmark, with what every cell said about them."""
    found: dict[tuple[str, str], _Sampled] = {}
    for table in parts_of(run_dir).whole_clips():
        there = [name for name in _COLUMNS if name in table.column_names]
        for row in table.select(there).to_pylist():
            if row["benchmark"] != benchmark:
                continue
            clip = found.setdefault((benchmark, row["video_id"]), _Sampled())
            score = row["score"] if "score" in row and row["status"] == "ok" else None
            said = _Said(bool(row["correct"]), row["text"] or row["status"], score)
            clip.replies.setdefault(row["cell"], []).append(said)
        if len(found) >= LOOKED_AT:
            break
    return found


def _captions(clip: _Sampled, names: Sequence[str]) -> dict[str, str]:
    """What each cell said to one question about the clip."""
    at = clip.question([BASELINE, *names])
    captions = {}
    for name in names:
        replies = clip.replies.get(name, [])
        if at < len(replies):
            captions[name] = replies[at].caption
    return captions
