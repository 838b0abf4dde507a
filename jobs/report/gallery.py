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
# Cells with a retention near this are drawn; enough tokens are dropped to see a difference.
SHARE = 0.1
# Maximum number of clips that are examined; a run may have hundreds of thousands.
LOOKED_AT = 200
_LONGEST_REPLY = 60
# Clips tried per drawn clip, because caches and videos may be missing.
_TRIES = 4
_COLUMNS = ("benchmark", "video_id", "cell", "correct", "score", "text", "status")


class _Said(NamedTuple):
    """A reply with its correctness, or its score if the benchmark has graded scores."""

    right: bool
    text: str
    score: float | None

    @property
    def caption(self) -> str:
        """Correctness or score, then the reply."""
        worth = "right" if self.right else "wrong"
        if self.score is not None:
            worth = f"{100 * self.score:.0f} %"
        return f"{worth}: {self.text[:_LONGEST_REPLY]}"


@dataclass
class _Sampled:
    """Replies of cells to the questions about one clip."""

    replies: dict[str, list[_Said]] = field(default_factory=dict)

    def question(self, cells: Sequence[str]) -> int:
        """Index of the first question that only some cells answer correctly, else 0."""
        said = [self.replies[cell] for cell in cells if cell in self.replies]
        for at, replies in enumerate(zip(*said, strict=False)):
            if len({said.right for said in replies}) > 1:
                return at
        return 0

    def lost(self, cells: Sequence[str]) -> int:
        """Number of questions that `full` answers correctly and one of the cells does not."""
        full = self.replies.get(BASELINE, [])
        return sum(
            one.right
            and any(
                not said[at].right for cell in cells if at < len(said := self.replies.get(cell, []))
            )
            for at, one in enumerate(full)
        )


def gallery(run_dir: Path, cells: Sequence[CellSummary], number: int) -> list[str]:
    """Draw clips of a finished run, first those with answers lost by a method but not by `full`.

    Args:
        run_dir: The run's directory.
        cells: The run's cells.
        number: Maximum number of clips.

    Returns:
        Self-contained HTML figures; empty if the run has no pruned cell or no record of its clips
        (`clips/*.parquet`, missing in old runs).
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
            if figure.startswith("<figure"):  # otherwise a message about a missing file
                figures.append(figure)
            if len(figures) == number:
                break
    return figures


def _side_by_side(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Cells of the first benchmark with retention nearest to `SHARE`, best methods first."""
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
    """The first clips of a benchmark with the replies of every cell."""
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
    """Caption per cell with its reply to one question about the clip."""
    at = clip.question([BASELINE, *names])
    captions = {}
    for name in names:
        replies = clip.replies.get(name, [])
        if at < len(replies):
            captions[name] = replies[at].caption
    return captions
