"""A few clips of a run: kept tokens, merged tokens and replies per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

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
_COLUMNS = ["benchmark", "video_id", "cell", "correct", "score", "text", "status"]


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
    answers = _sampled(run_dir, shown[0].benchmark)
    right = answers.pivot(index=["video_id", "question"], columns="cell", values="right")
    right = right.reindex(columns=[BASELINE, *names])
    lost = right[BASELINE].eq(True) & right[names].eq(False).any(axis=1)
    order = lost.groupby(level="video_id").sum().sort_values(ascending=False, kind="stable").index
    viewer = viewer_of(run_dir)
    figures: list[str] = []
    with ClipPanels(run_dir) as panels:
        for video in order[: number * _TRIES]:
            # The first question that only some cells answer correctly.
            at = int((right.loc[video].nunique(axis=1) > 1).argmax())
            own = answers[(answers["video_id"] == video) & (answers["question"] == at)]
            captions = own.set_index("cell")["caption"].to_dict()
            clip = shown[0].benchmark, str(video)
            figure = panels.figure(clip, names, captions, question=at, viewer=viewer)
            if figure.startswith("<figure"):  # otherwise a message about a missing file
                figures.append(figure)
            if len(figures) == number:
                break
    return figures


def _side_by_side(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Cells of the first benchmark with retention nearest to `SHARE`, best methods first."""
    first = cells[0].benchmark if cells else ""
    pruned = [cell for cell in cells if not cell.is_baseline and cell.benchmark == first]
    shares = [cell.retention_requested for cell in pruned]
    share = min(shares, key=lambda one: abs(one - SHARE), default=0.0)
    best: dict[str, CellSummary] = {}
    for cell in sorted(pruned, key=lambda one: -(one.headline.value if one.headline else 0.0)):
        if cell.retention_requested == share:
            best.setdefault(cell.method, cell)
    return list(best.values())[:MOST_CELLS]


def _sampled(run_dir: Path, benchmark: str) -> pd.DataFrame:
    """Answers to the first clips of a benchmark, with index of the question, `right`, `caption`."""
    tables: list[pd.DataFrame] = []
    for table in parts_of(run_dir).whole_clips():
        own = table.to_pandas().reindex(columns=_COLUMNS)
        tables.append(own[own["benchmark"] == benchmark])
        if sum(one["video_id"].nunique() for one in tables) >= LOOKED_AT:
            break
    found = pd.concat(tables)
    found["question"] = found.groupby(["video_id", "cell"]).cumcount()
    found["right"] = found["correct"].eq(True)
    worth = found["right"].map({True: "right", False: "wrong"})
    scored = found["score"].notna() & (found["status"] == "ok")
    worth = worth.mask(scored, found["score"].map("{:.0%}".format))
    text = found["text"].where(found["text"].fillna("") != "", found["status"])
    found["caption"] = worth + ": " + text.str[:_LONGEST_REPLY]
    return found
