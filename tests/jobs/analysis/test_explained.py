"""Evidence beside answers, counted by hand; correlations over cells whose order is known."""

from __future__ import annotations

import pytest
import torch

from jobs.analysis.cells import Cell, common_retention
from jobs.analysis.correlations import Measured, correlations
from jobs.analysis.explained import BIN_NAMES, CellEvidence, bin_of, explain_cell
from jobs.config.recipe import RecipeError
from tango_core.analysis.coverage import CoverageTotals
from tango_core.analysis.evidence import Evidence
from tango_core.compressors import build_method

CELL = Cell("topk r=0.1", "topk", 0.1, "cache", build_method("topk", retention=0.1).compressor)


def left(share, purest, best=1.0):
    return Evidence(num_tokens=10, share=share, purest=purest, best=1.0, best_for_clip=best)


EVIDENCE = {
    ("v", "kept"): left(0.6, 1.0),
    ("v", "kept but wrong"): left(0.3, 0.8),
    ("v", "gone"): left(0.0, 0.0),
    ("v", "gone for all"): left(0.0, 0.0, best=0.0),
    ("v", "thin"): left(0.05, 0.2),
    ("v", "never right"): left(0.9, 1.0),
}
RIGHT = {("v", name): name in ("kept", "thin") for _, name in EVIDENCE} | {("v", "order"): True}
FULL = {key: key[1] != "never right" for key in RIGHT}


def explained(right=RIGHT, full=FULL):
    own = CellEvidence(dict(EVIDENCE), kept=51, total=512)
    return explain_cell(CELL, own, right, full)


def test_lost_answers_are_told_by_what_became_of_their_evidence():
    found = explained()
    told = found.outcome
    assert found.retention == pytest.approx(51 / 512)
    assert found.share == pytest.approx((0.6 + 0.3 + 0 + 0 + 0.05 + 0.9) / 6)
    assert found.gone == pytest.approx(3 / 6)
    assert told.accuracy == pytest.approx(2 / 6)
    assert (told.num_right_in_full, told.num_lost) == (5, 3)
    assert (told.lost_gone, told.lost_avoidable) == (2, 1)
    assert (told.num_gone, told.right_gone, told.num_kept, told.right_kept) == (3, 1, 2, 1)
    assert dict(zip(BIN_NAMES, told.bins, strict=True)) == {
        "0": (2, 0),
        "0 to 10 %": (1, 1),
        "10 to 25 %": (0, 0),
        "25 to 50 %": (1, 0),
        "50 to 75 %": (1, 1),
        "75 to 100 %": (0, 0),
    }
    # Of six pairs (right: 0.6 and 0.05; lost: 0.3, 0, 0) five are in order.
    assert told.told_by_evidence == pytest.approx(5 / 6)


def test_without_all_tokens_every_question_counts_and_without_a_run_none():
    assert explained(full=None).outcome.num_right_in_full == 6
    assert explained(right=None).outcome is None


def test_a_run_about_other_clips_is_refused():
    with pytest.raises(RecipeError, match=r"no answers of topk r=0\.1"):
        explained(right={("other", "question"): True})


@pytest.mark.parametrize(
    ("share", "number"), [(0, 0), (1e-6, 1), (0.1, 1), (0.11, 2), (0.5, 3), (0.76, 5), (1, 5)]
)
def test_bins_hold_their_upper_end(share, number):
    assert bin_of(share) == number


def measured(series, retention, cosine, accuracy):
    total = CoverageTotals()
    total.add(torch.full((2, 4), cosine), max(1, round(8 * retention)), (2, 2))
    return Measured(series, retention, total, accuracy)


def test_correlations_within_methods_and_within_retentions():
    """More coverage is better at every retention; more tokens say nothing there."""
    cells = [
        measured(series, retention, cosine=0.5 + number / 10 + retention / 5, accuracy=accuracy)
        for retention, base in ((0.25, 0.2), (0.5, 0.3))
        for number, series in enumerate("abcd")
        for accuracy in [base + number / 10]
    ]
    found = correlations(cells, "accuracy")
    rows = {row[0]: row[1:] for row in found.table.rows}
    assert rows["methods at one retention (mean over retentions)"] == [
        *("8", "1.00", "1.00", "1.00", "-")
    ]
    assert rows["methods at retention 0.25"][0] == "4"
    assert float(rows["all cells"][1]) > 0.9
    assert "retentions of one method (mean over methods)" not in rows  # of two cells each
    assert "mean cosine 1.00" in found.findings[1]


def test_the_common_retention_is_that_of_most_series_near_a_tenth():
    cells = [
        Cell(f"{name} r={share}", name, share, "", build_method("topk", retention=share).compressor)
        for name, shares in (("a", (0.05, 0.1, 0.25)), ("b", (0.25, 0.5)), ("c", (0.1, 0.25)))
        for share in shares
    ]
    assert common_retention(cells) == 0.25
    assert common_retention([*cells, cells[1]]) == 0.1
