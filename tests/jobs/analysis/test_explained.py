"""Evidence beside answers, counted by hand; correlations over cells whose order is known."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from jobs.analysis.clips import Cell, common_retention
from jobs.analysis.coverage import correlations, measured
from jobs.analysis.evidence import BINS, bins_of, cell_table, explained
from jobs.config.recipe import RecipeError
from tango_core.analysis.coverage import CoverageTotals
from tango_core.compressors import build_method

CELL = Cell("topk r=0.1", "topk", 0.1, "cache", build_method("topk", retention=0.1).compressor)
# Question, share that survives, best share for the clip, whether its evidence is gone; whether the
# cell and all tokens answer it.
ROWS = [
    ("kept", 0.6, 1.0, False, True, True),
    ("kept but wrong", 0.3, 1.0, False, False, True),
    ("gone", 0.0, 1.0, True, False, True),
    ("gone for all", 0.0, 0.0, True, False, True),
    ("thin", 0.05, 1.0, True, True, True),
    ("never right", 0.9, 1.0, False, False, False),
]
EVIDENCE = pd.DataFrame(
    [("cache", "v", name, share, 1.0, best, gone) for name, share, best, gone, _, _ in ROWS],
    columns=["cache", "video_id", "question_id", "share", "best", "best_for_clip", "gone"],
)


def answers(cells, video="v"):
    rows = [(CELL.name, name, right) for name, *_, right, _ in ROWS]
    rows += [("full", name, right) for name, *_, right in ROWS]
    rows += [(cell, "about no object", True) for cell in (CELL.name, "full")]
    return pd.DataFrame(
        [(cell, video, name, right) for cell, name, right in rows if cell in cells],
        columns=["cell", "video_id", "question_id", "correct"],
    )


def joined(found):
    return explained([CELL], {"cache": 51 / 512}, EVIDENCE, found)


def test_lost_answers_are_explained_by_what_became_of_their_evidence():
    rows = joined(answers({CELL.name, "full"}))
    found = cell_table(rows).loc[CELL.name]
    assert found["share"] == pytest.approx((0.6 + 0.3 + 0 + 0 + 0.05 + 0.9) / 6)
    assert found["gone"] == pytest.approx(3 / 6)
    assert found["accuracy"] == pytest.approx(2 / 6)
    counts = ["known", "lost", "lost_gone", "lost_avoidable", "lost_kept"]
    assert found[counts].tolist() == [5, 3, 2, 1, 1]
    known = rows[rows["known"]]
    assert bins_of(known).T.to_dict("list") == {
        "0": [2, 0],
        "0 to 10 %": [1, 1],
        "10 to 25 %": [0, 0],
        "25 to 50 %": [1, 0],
        "50 to 75 %": [1, 1],
        "75 to 100 %": [0, 0],
    }


@pytest.mark.parametrize(
    ("found", "number"),
    [(answers({CELL.name}), 6), (answers({"full"}), 0), (None, 0)],
    ids=["without full", "without the cell", "without a run"],
)
def test_questions_count_whose_answer_full_can_give(found, number):
    assert joined(found)["known"].sum() == number


def test_a_run_about_other_clips_is_refused():
    with pytest.raises(RecipeError, match=r"no answers of topk r=0\.1"):
        joined(answers({CELL.name}, "other"))


@pytest.mark.parametrize(
    ("share", "number"), [(0, 0), (1e-6, 1), (0.1, 1), (0.11, 2), (0.5, 3), (0.76, 5), (1, 5)]
)
def test_bins_hold_their_upper_end(share, number):
    found = bins_of(pd.DataFrame({"share": [float(share)], "right": [True]}))
    assert found["right"].tolist() == [int(place == number) for place in range(len(BINS))]


def test_correlations_within_methods_and_within_retentions():
    """More coverage is better at every retention; more tokens say nothing there."""
    cells, totals, scores = [], {}, {}
    for retention, base in ((0.25, 0.2), (0.5, 0.3)):
        for number, series in enumerate("abcd"):
            name = f"{series} r={retention}"
            cells.append(Cell(name, series, retention, name, CELL.compressor))
            totals[name] = CoverageTotals()
            cosines = torch.full((2, 4), 0.5 + number / 10 + retention / 5)
            totals[name].add(cosines, round(8 * retention), (2, 2))
            scores[name] = base + number / 10
    found = correlations(measured(cells, totals, scores))
    row = found.loc["methods at one retention (mean over retentions)"]
    assert row[["cells", "mean", "tail", "worst"]].tolist() == pytest.approx([8, 1, 1, 1])
    assert pd.isna(row["kept"])
    assert found.loc["methods at retention 0.25", "cells"] == 4
    assert found.loc["all cells", "mean"] > 0.9
    assert "retentions of one method (mean over methods)" not in found.index  # of two cells each


def test_the_common_retention_is_that_of_most_series_near_a_tenth():
    cells = [
        Cell(f"{name} r={share}", name, share, "", build_method("topk", retention=share).compressor)
        for name, shares in (("a", (0.05, 0.1, 0.25)), ("b", (0.25, 0.5)), ("c", (0.1, 0.25)))
        for share in shares
    ]
    assert common_retention(cells) == 0.25
    assert common_retention([*cells, cells[1]]) == 0.1
