"""A few clips of a run: kept tokens, merged tokens and replies per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.report.page import viewer_of
from jobs.results.cell_summary import BASELINE, CellSummary
from jobs.results.summary import parts_of
from jobs.viewer.panels import ClipPanels

MOST_CELLS = 4
# Cells with a retention near this are drawn; enough tokens are dropped to see a difference.
SHARE = 0.1
_LONGEST_REPLY = 60
# Clips tried per drawn clip, because caches and videos may be missing.
_TRIES = 4


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
    names = _side_by_side(cells)
    if number < 1 or not names or not (run_dir / "clips").is_dir():
        return []
    # The clips of the first part, as a run may have hundreds of thousands.
    found = next(parts_of(run_dir).whole_clips()).to_pandas()
    found = found[found["benchmark"] == cells[0].benchmark]
    found["question"] = found.groupby(["video_id", "cell"]).cumcount()
    found["right"] = found["correct"].eq(True)
    text = found["text"].fillna("").where(found["status"] == "ok", found["status"])
    worth = found["right"].map({True: "right", False: "wrong"})
    found["caption"] = worth + ": " + text.str[:_LONGEST_REPLY]
    right = found.pivot(index=["video_id", "question"], columns="cell", values="right")
    right = right.reindex(columns=[BASELINE, *names])
    lost = right[BASELINE].eq(True) & right[names].eq(False).any(axis=1)
    order = lost.groupby(level="video_id").sum().sort_values(ascending=False, kind="stable").index
    figures: list[str] = []
    with ClipPanels(run_dir) as panels:
        for video in order[: number * _TRIES]:
            # The first question that only some cells answer correctly.
            at = int((right.loc[video].nunique(axis=1) > 1).argmax())
            own = found[(found["video_id"] == video) & (found["question"] == at)]
            captions = own.set_index("cell")["caption"].to_dict()
            clip, viewer = (cells[0].benchmark, str(video)), viewer_of(run_dir)
            figure = panels.figure(clip, names, captions, question=at, viewer=viewer)
            if figure.startswith("<figure"):  # otherwise a message about a missing file
                figures.append(figure)
            if len(figures) == number:
                break
    return figures


def _side_by_side(cells: Sequence[CellSummary]) -> list[str]:
    """Cells of the first benchmark with retention nearest to `SHARE`, best methods first."""
    pruned = [
        cell for cell in cells if not cell.is_baseline and cell.benchmark == cells[0].benchmark
    ]
    shares = [cell.retention_requested for cell in pruned]
    share = min(shares, key=lambda one: abs(one - SHARE), default=0.0)
    best: dict[str, str] = {}
    for cell in sorted(pruned, key=lambda one: -(one.headline.value if one.headline else 0.0)):
        if cell.retention_requested == share:
            best.setdefault(cell.method, cell.name)
    return list(best.values())[:MOST_CELLS]
