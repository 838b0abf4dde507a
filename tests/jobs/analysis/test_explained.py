"""Evidence beside answers, counted by hand; correlations over cells whose order is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from jobs.analysis.methods import (
    ENDS,
    bins_of,
    by_cell,
    cell_table,
    correlations,
    explained,
    measured,
)
from jobs.config.recipe import RecipeError

NAME = "topk r=0.1"


def cells_of(*rows):
    """`JobCells.table` of (series, retention); every cell has its own cache."""
    columns = ["cell", "series", "cache", "retention", "pruned"]
    return pd.DataFrame(
        [(f"{s} r={r}", s, f"{s} r={r}", r, True) for s, r in rows], columns=columns
    )


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
    [(NAME, "v", name, share, 1.0, best, gone) for name, share, best, gone, _, _ in ROWS],
    columns=["cache", "video_id", "question_id", "share", "best", "best_for_clip", "gone"],
)


def answers(cells, video="v"):
    rows = [(NAME, name, right) for name, *_, right, _ in ROWS]
    rows += [("full", name, right) for name, *_, right in ROWS]
    rows += [(cell, "about no object", True) for cell in (NAME, "full")]
    return pd.DataFrame(
        [(cell, video, name, right) for cell, name, right in rows if cell in cells],
        columns=["cell", "video_id", "question_id", "correct"],
    )


def joined(found):
    return explained(cells_of(("topk", 0.1)), {NAME: 51 / 512}, EVIDENCE, found)


def test_lost_answers_are_explained_by_what_became_of_their_evidence():
    rows = joined(answers({NAME, "full"}))
    found = cell_table(rows).loc[NAME]
    assert found["share"] == pytest.approx((0.6 + 0.3 + 0 + 0 + 0.05 + 0.9) / 6)
    assert found["gone"] == pytest.approx(3 / 6)
    assert found["accuracy"] == pytest.approx(2 / 6)
    counts = ["known", "lost", "lost_gone", "lost_avoidable", "lost_kept"]
    assert found[counts].tolist() == [5, 3, 2, 1, 1]
    known = rows[rows["known"]]
    found = bins_of(known)
    assert found["number"].tolist() == [2, 1, 0, 1, 1, 0]
    assert found["accuracy"].dropna().tolist() == [0, 100, 0, 100]


@pytest.mark.parametrize(
    ("found", "number"),
    [(answers({NAME}), 6), (answers({"full"}), 0), (None, 0)],
    ids=["without full", "without the cell", "without a run"],
)
def test_questions_count_whose_answer_full_can_give(found, number):
    assert joined(found)["known"].sum() == number


def test_a_run_about_other_clips_is_refused():
    with pytest.raises(RecipeError, match=r"no answers of topk r=0\.1"):
        joined(answers({NAME}, "other"))


@pytest.mark.parametrize(
    ("share", "number"), [(0, 0), (1e-6, 1), (0.1, 1), (0.11, 2), (0.5, 3), (0.76, 5), (1, 5)]
)
def test_bins_hold_their_upper_end(share, number):
    found = bins_of(pd.DataFrame({"share": [float(share)], "right": [True]}))
    assert found["number"].tolist() == [int(place == number) for place in range(len(ENDS))]


def test_correlations_within_methods_and_within_retentions():
    """More coverage is better at every retention; more tokens say nothing there."""
    cells = cells_of(*((series, share) for share in (0.25, 0.5) for series in "abcd"))
    rows, scores = [], []
    for at, (cache, share) in enumerate(zip(cells["cache"], cells["retention"], strict=True)):
        cosines = np.full((2, 4), 0.5 + at % 4 / 10 + share / 5)
        rows.append({"cache": cache, **measured(cosines), "kept": 8 * share, "total": 8})
        scores.append(0.2 + at % 4 / 10 + (share - 0.25) * 0.4)
    table = correlations(by_cell(cells, pd.DataFrame(rows)).assign(score=scores))
    row = table.loc["methods at one retention (mean over retentions)"]
    assert row[["cells", "mean", "tail", "worst"]].tolist() == pytest.approx([8, 1, 1, 1])
    assert pd.isna(row["kept"])
    assert table.loc["methods at retention 0.25", "cells"] == 4
    assert table.loc["all cells", "mean"] > 0.9
    assert "retentions of one method (mean over methods)" not in table.index  # of two cells each


def test_coverage_over_clips_of_any_length():
    rng = np.random.default_rng(1)
    clips = [rng.uniform(-1, 1, shape) for shape in ((8, 12), (8, 12), (3, 12), (2, 20))]
    rows = [{"cache": "a r=0.1", **measured(one), "kept": 6, "total": one.size} for one in clips]
    row = by_cell(cells_of(("a", 0.1)), pd.DataFrame(rows)).iloc[0]
    tails = [np.sort(one.ravel())[: max(1, round(one.size / 20))].mean() for one in clips]
    expected = [[one.mean() for one in clips], tails, [one.min() for one in clips]]
    assert row[["mean", "tail", "worst"]].tolist() == pytest.approx(np.mean(expected, axis=1))
    assert row["kept"] == pytest.approx(24 / sum(one.size for one in clips))
