"""Methods against the best control, on answers whose truth is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jobs.results.cell_summary import CellSummary
from jobs.results.comparisons import against_controls
from tango_core.metrics import clustered_accuracy

CLIPS = np.repeat(np.arange(40), 4)
QUESTIONS = np.array([f"q{number:03}" for number in range(160)])


def _answers(right, rows=slice(None)):
    table = pd.DataFrame({"clip": CLIPS, "score": np.asarray(right, float)}, index=QUESTIONS)
    return table[rows]


def _cell(method, right, retention=0.1, kept=None, **changes):
    """A cell and what it answered; `right` is a bool per question."""
    summary = CellSummary(
        name=f"{method} r={retention:g}",
        benchmark="shapes",
        method=method,
        retention_requested=retention,
        equivalent_retention=retention if kept is None else kept,
        scores={"accuracy": clustered_accuracy(right, CLIPS)},
        model="tiny",
    )
    return replace(summary, **changes), _answers(right)


def _controlled(*pairs):
    cells = [cell for cell, _ in pairs]
    return against_controls(cells, lambda index: pairs[index][1])


def _right(count, start=0):
    right = np.zeros(160, dtype=bool)
    right[start : start + count] = True
    return right


FULL = _cell("full", _right(160), retention=1.0)


def test_the_control_is_the_best_one_at_that_retention():
    (found,) = _controlled(
        FULL,
        _cell("random", _right(60)),
        _cell("pool_space", _right(80)),
        _cell("fewer_frames", _right(150), retention=0.2),
        _cell("tango", _right(120)),
    )
    assert found.control.method == "pool_space"
    assert [method.cell.method for method in found.methods] == ["tango"]
    assert found.methods[0].versus.difference == pytest.approx(0.25)


def test_verdicts_are_of_corrected_p_values():
    methods = [_cell("tango", _right(140)), _cell("evs", _right(20)), _cell("topk", _right(81))]
    (found,) = _controlled(FULL, _cell("random", _right(80)), *methods)
    assert [method.verdict for method in found.methods] == ["better", "worse", "open"]
    plain = [method.versus.p_value for method in found.methods]
    assert found.methods[0].p_value == pytest.approx(3 * plain[0])
    assert all(method.p_value >= p for method, p in zip(found.methods, plain, strict=True))


def test_the_filter_divides_what_all_tokens_answer():
    full = _cell("full", _right(100), retention=1.0)
    control, own = _cell("random", _right(60)), _cell("tango", _right(60, start=30))
    (found,) = _controlled(full, control, own)
    filtered = found.methods[0].filtered
    assert (filtered.num_hard, filtered.num_easy) == (40, 60)
    assert filtered.hard == pytest.approx(30 / 40)
    assert filtered.easy == pytest.approx(30 / 60)


def test_questions_are_matched_by_name_where_cells_were_asked_others():
    (control, _), (own, _) = _cell("random", _right(80)), _cell("tango", _right(80))
    parts = [_answers(_right(80), slice(None, None, -1)), _answers(_right(80), slice(100))]
    (found,) = against_controls([control, own], lambda index: parts[index])
    assert found.methods[0].versus.num_questions == 100
    assert found.methods[0].versus.difference == 0
    assert found.methods[0].filtered is None  # nobody ran all tokens


def test_without_a_control_or_without_a_method_there_is_nothing_to_say():
    assert _controlled(FULL, _cell("tango", _right(80))) == ()
    assert _controlled(FULL, _cell("random", _right(80))) == ()


def test_other_checkpoints_are_other_groups_even_beside_one_that_is_not_known():
    full = _cell("full", _right(160), retention=1.0, checkpoint="first")
    control = _cell("random", _right(80))
    first, second = (_cell("tango", _right(120), checkpoint=own) for own in ("first", "second"))
    assert _controlled(_cell("random", _right(80), checkpoint="first"), second) == ()
    (found,) = _controlled(full, control, first, second)
    assert [method.cell.checkpoint for method in found.methods] == ["first"]
    assert found.methods[0].filtered is not None
    (found,) = _controlled(full, control, second)
    assert found.methods[0].filtered is None


def _smaller(right, kept, step=4, **changes):
    """All tokens of a smaller input, `kept` of the 1000 that the methods' input has."""
    size = f"pooling_step={step}"
    given = {"name": "full", "kept": 1.0, "tokens_total": kept, "tokens_kept": kept, **changes}
    return _cell("full", right, retention=1.0, input_size=size, **given)


WHOLE = {"tokens_total": 1000}


def test_a_smaller_input_is_a_control_at_its_share_of_the_whole_input():
    (found,) = _controlled(
        _cell("full", _right(160), retention=1.0, **WHOLE),
        _cell("random", _right(60), retention=0.25, **WHOLE),
        _cell("tango", _right(120), retention=0.25, **WHOLE),
        _smaller(_right(80), kept=250),
    )
    assert found.control.series == "full pooling_step=4"
    assert (found.retention, found.control.equivalent_retention) == (0.25, 0.25)
    (tango,) = found.methods
    assert tango.equal_tokens is True
    assert tango.versus.difference == pytest.approx(0.25)
    assert (tango.filtered.num_hard, tango.filtered.num_easy) == (80, 80)


def test_a_smaller_input_stands_where_its_share_is_near_and_says_what_it_keeps():
    sizes = [_smaller(_right(80), kept=140, step=6), _smaller(_right(90), kept=180, step=5)]
    methods = [_cell("tango", _right(120), retention=share, **WHOLE) for share in (0.05, 0.15)]
    (found,) = _controlled(*methods, *sizes)
    assert (found.retention, found.control.series) == (0.15, "full pooling_step=6")
    assert found.control.equivalent_retention == 0.14
    assert found.methods[0].equal_tokens is False


@pytest.mark.parametrize(
    "changes",
    [
        {"questions_digest": "others"},
        {"model": "other"},
        {"num_frames": 4},
        {"protocol": "lmms_eval"},
    ],
)
def test_a_smaller_input_of_another_comparison_is_no_control(changes):
    own = _cell("tango", _right(120), retention=0.25, num_frames=8, protocol="vlmevalkit", **WHOLE)
    given = {"num_frames": 8, "protocol": "vlmevalkit"}
    assert len(_controlled(own, _smaller(_right(80), kept=250, **given))) == 1
    assert _controlled(own, _smaller(_right(80), kept=250, **{**given, **changes})) == ()
