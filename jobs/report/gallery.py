"""A few clips of a run: kept tokens, merged tokens and replies per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jobs.report.page import viewer_of
from jobs.results.cell_summary import BASELINE, CellSummary
from jobs.results.summary import parts_of
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


class _Reply(NamedTuple):
    """A reply: whether it is right, and its caption."""

    right: bool
    caption: str


# Cell -> its replies to the questions about one clip.
_Replies = dict[str, list[_Reply]]


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
    order = sorted(found, key=lambda clip: -_lost(found[clip], names))
    viewer = viewer_of(run_dir)
    figures: list[str] = []
    with ClipPanels(run_dir) as panels:
        for clip in order[: number * _TRIES]:
            at, replies = _question(found[clip], [BASELINE, *names]), found[clip]
            captions = {n: replies[n][at].caption for n in names if at < len(replies.get(n, ()))}
            figure = panels.figure(clip, names, captions, question=at, viewer=viewer)
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


def _sampled(run_dir: Path, benchmark: str) -> dict[tuple[str, str], _Replies]:
    """The first clips of a benchmark with the replies of every cell."""
    found: dict[tuple[str, str], _Replies] = {}
    for table in parts_of(run_dir).whole_clips():
        there = [name for name in _COLUMNS if name in table.column_names]
        for row in table.select(there).to_pylist():
            if row["benchmark"] == benchmark:
                replies = found.setdefault((benchmark, row["video_id"]), {})
                right, score = bool(row["correct"]), row.get("score")
                worth = "right" if right else "wrong"
                if score is not None and row["status"] == "ok":
                    worth = f"{100 * score:.0f} %"
                caption = f"{worth}: {(row['text'] or row['status'])[:_LONGEST_REPLY]}"
                replies.setdefault(row["cell"], []).append(_Reply(right, caption))
        if len(found) >= LOOKED_AT:
            break
    return found


def _question(replies: _Replies, cells: Sequence[str]) -> int:
    """Index of the first question that only some cells answer correctly, else 0."""
    by_question = zip(*(replies[cell] for cell in cells if cell in replies), strict=False)
    mixed = (at for at, own in enumerate(by_question) if len({one.right for one in own}) > 1)
    return next(mixed, 0)


def _lost(replies: _Replies, cells: Sequence[str]) -> int:
    """Number of questions that `full` answers correctly and one of the cells does not."""
    others = [replies[cell] for cell in cells if cell in replies]
    return sum(
        one.right and any(at < len(own) and not own[at].right for own in others)
        for at, one in enumerate(replies.get(BASELINE, ()))
    )
