"""Several trainings of one model, on answers whose truth is known."""

import re

import numpy as np
import pandas as pd
import pytest

from jobs.results.cell_summary import CellSummary
from jobs.results.replicates import replicated_cells
from tango_core.metrics import clustered_accuracy, compare_paired

CLIPS = np.repeat(np.arange(40), 4)
QUESTIONS = np.array([f"q{number:03}" for number in range(160)])


def _run(rights, retention=0.1, order=slice(None), model="tiny", **about):
    """A run of named cells; `rights` is how many of the 160 questions each answers, and which."""
    cells, answers = [], []
    for method, right in rights.items():
        share = 1.0 if method == "full" else retention
        cells.append(
            CellSummary(
                name=f"{method} r={share:g}",
                benchmark="shapes",
                method=method,
                retention_requested=share,
                equivalent_retention=share,
                scores={"accuracy": clustered_accuracy(right, CLIPS)},
                model=model,
                **about,
            )
        )
        table = pd.DataFrame({"clip": CLIPS, "score": right.astype(float)}, index=QUESTIONS)
        answers.append(table[order] if isinstance(order, slice) else table.iloc[order])
    return cells, answers.__getitem__


def _right(count, seed=0):
    right = np.zeros(160, dtype=bool)
    right[np.random.default_rng(seed).permutation(160)[:count]] = True
    return right


def test_mean_and_spread_are_over_the_trainings():
    runs = [_run({"full": _right(160), "topk": _right(count)}) for count in (80, 96, 112)]
    _, topk = replicated_cells(runs)
    assert topk.values == pytest.approx((0.5, 0.6, 0.7))
    assert topk.mean == pytest.approx(0.6)
    assert topk.spread == pytest.approx(0.1)
    assert topk.kept == pytest.approx(0.1)
    assert topk.versus_full.difference == pytest.approx(-0.4)
    assert topk.control is None


def test_the_difference_is_that_of_scores_averaged_by_question():
    ours = [_right(110, seed) for seed in range(3)]
    theirs = [_right(90, seed + 10) for seed in range(3)]
    runs = [_run({"random": b, "topk": a}) for a, b in zip(ours, theirs, strict=True)]
    topk = replicated_cells(runs)[1]
    truth = compare_paired(np.mean(ours, axis=0), np.mean(theirs, axis=0), CLIPS)
    assert topk.control == "random"
    assert topk.against.versus == truth
    assert topk.against.p_value == truth.p_value  # one method, so nothing to correct
    one = compare_paired(ours[0], theirs[0], CLIPS)
    assert topk.against.versus.high - topk.against.versus.low < one.high - one.low


def test_a_method_is_compared_with_itself_reading_another_question():
    names = ("cdpruner question=own", "semvid", "rediprune question=own")
    rights = {name: _right(96 + 16 * at, at) for at, name in enumerate(names)}
    for name in names[:2]:
        twin = name.replace(" question=own", "") + " question=other_clip"
        rights[twin] = _right(80, 7)
    found = replicated_cells([_run(rights), _run(rights)])
    raw = [compare_paired(rights[name], _right(80, 7), CLIPS) for name in names[:2]]
    assert [one.versus_blind for one in found] == [*raw, None, None, None]
    p_values = [one.p_value for one in raw]
    assert found[1].blind_p_value == pytest.approx(2 * min(p_values))
    assert found[0].blind_p_value == pytest.approx(max(p_values))


def test_verdicts_are_counted_by_training():
    good, bad = {"random": _right(40), "topk": _right(150)}, {"random": _right(150)}
    runs = [_run(good), _run(good), _run({**bad, "topk": _right(40)})]
    random, topk = replicated_cells(runs)
    assert topk.verdicts == ("better", "better", "worse")
    assert random.verdicts == ("", "", "")
    assert topk.against.verdict == "better"


def test_questions_that_not_all_were_asked_do_not_count_whatever_their_order():
    whole = {"random": _right(80), "topk": _right(120, 1)}
    part = _run(whole, order=np.arange(160)[::-1][:100])
    found = replicated_cells([_run(whole), part])[1]
    kept = np.arange(60, 160)
    truth = compare_paired(whole["topk"][kept], whole["random"][kept], CLIPS[kept])
    assert found.against.versus.difference == pytest.approx(truth.difference)
    assert found.against.versus.p_value == pytest.approx(truth.p_value)


def test_cells_of_one_run_alone_are_left_out():
    rights = {"random": _right(80), "topk": _right(120)}
    found = replicated_cells([_run({**rights, "evs": _right(50)}), _run(rights)])
    assert [one.cell.method for one in found] == ["random", "topk"]


def _runs(*abouts):
    return [_run({"topk": _right(90)}, **about) for about in abouts]


FIRST, SECOND = "a1" * 20, "b2" * 20
FRAMES, OTHER_FRAMES = {"num_frames": 32}, {"num_frames": 8}
SIZE = {"input_size": "pooling_step=4"}
LAYERS, OTHER_LAYERS = {"llm_shape": (28, 3584)}, {"llm_shape": (36, 2048)}
PROTOCOL, OTHER_PROTOCOL = {"protocol": "vlmevalkit"}, {"protocol": "lmms_eval"}
HALVES = ({"order": slice(0, 80)}, {"order": slice(80, 160)})
TRAINED_ALIKE = tuple({"checkpoint": own} for own in (FIRST, SECOND, FIRST))


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([_run({"topk": _right(80)}), _run({"evs": _right(80)})], "no cell in common; "),
        (_runs({}), "two runs or more, got 1"),
        (_runs({"model": "tiny"}, {"model": "other"}), "model differs: tiny in run 1, other in"),
        (_runs(FRAMES, FRAMES, OTHER_FRAMES), "frames differs: 32 frames in run 1, 8 frames in"),
        (_runs(SIZE, {}), "input_size differs: pooling_step=4 in run 1, as published in run 2;"),
        (_runs(PROTOCOL, OTHER_PROTOCOL), "harness differs: vlmevalkit in run 1, lmms_eval in"),
        (_runs(LAYERS, OTHER_LAYERS), "size differs: 28 layers of width 3584 in run 1"),
        (_runs(*TRAINED_ALIKE), "run 1 and run 3 are of one checkpoint (a1a1a1a1a1a1)"),
        (_runs(*HALVES), "no common question of cell 'topk r=0.1'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_runs_that_are_no_replicates_are_refused_with_what_differs(runs, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        replicated_cells(runs)


def test_settings_that_are_not_known_and_versions_of_a_harness_may_be_the_same():
    abouts = [{**FRAMES, **PROTOCOL, **LAYERS}, {"protocol": "vlmevalkit@2026-05"}, {}]
    (topk,) = replicated_cells(_runs(*abouts))
    assert len(topk.cells) == 3
