"""A run in a notebook: typed frames, filters, parts, and mistakes."""

from __future__ import annotations

import pandas as pd
import pytest
from fake_answers import cell, facts_of, fake_answers, write_run

from jobs.notebook import load_run

FACTS = facts_of(cell("full"), cell("tango", 0.1), cell("tango", 0.2, benchmark="mlvu"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two benchmarks, with failed clips and unreadable answers."""
    folder = tmp_path_factory.mktemp("runs") / FACTS.run_id
    write_run(folder, fake_answers(FACTS, num_clips=12, failed_clips=(2,)), FACTS, parts=3)
    return load_run(folder)


@pytest.fixture(scope="module")
def answers():
    return fake_answers(FACTS, num_clips=12, failed_clips=(2,))


def test_cells_are_those_of_the_summary(run):
    assert list(run.cells["cell"]) == [one.name for one in run.summary.cells]
    assert list(run.cells["benchmark"]) == ["shapes", "shapes", "mlvu"]
    for row, one in zip(run.cells.itertuples(), run.summary.cells, strict=True):
        assert row.accuracy == pytest.approx(one.accuracy.value)
        assert row.accuracy_low <= row.accuracy <= row.accuracy_high
        assert row.prefill_ms == pytest.approx(one.p50("prefill"))
    assert run.facts.model == "llava-onevision-7b"


def test_answers_keep_what_is_missing_missing(run, answers):
    frame = run.answers()
    assert len(frame) == len(answers)
    assert frame["choice"].dtype == pd.Int64Dtype()
    assert frame["correct"].dtype == pd.BooleanDtype()
    assert frame["choice"].isna().sum() == answers["choice"].isna().sum() > 0
    assert frame["correct"].sum() == answers["correct"].sum()


def test_columns_cells_benchmarks_and_groups_are_chosen(run, answers):
    frame = run.answers(["video_id", "correct"], cells=["tango r=0.1"], groups=True)
    own = answers[answers["cell"] == "tango r=0.1"]
    assert list(frame.columns) == ["video_id", "correct", "group.duration", "group.task"]
    assert len(frame) == len(own)
    by_task = frame.groupby("group.task")["correct"].sum()
    assert set(by_task.index) == {"count", "order"}
    assert by_task.sum() == own["correct"].sum()
    other = run.answers(["cell"], benchmarks=["mlvu"])
    assert set(other["cell"]) == {"tango r=0.2"}
    assert run.answers(["cell"], cells=[]).empty
    assert list(run.answers(["cell"], cells=[]).columns) == ["cell"]


def test_parts_hold_whole_clips_and_add_up(run):
    parts = list(run.answers_in_parts(["benchmark", "video_id", "question_id", "cell"], rows=1))
    assert len(parts) > 1
    together = pd.concat(parts)
    assert len(together) == len(run.answers(["cell"]))
    clips = [set(zip(part["benchmark"], part["video_id"], strict=True)) for part in parts]
    assert sum(map(len, clips)) == len(set().union(*clips))


def test_a_summary_that_is_missing_is_computed(run, tmp_path):
    folder = tmp_path / FACTS.run_id
    write_run(folder, fake_answers(FACTS, num_clips=12, failed_clips=(2,)), FACTS)
    (folder / "summary.json").unlink(missing_ok=True)
    again = load_run(folder)
    assert again.cells["accuracy"].tolist() == pytest.approx(run.cells["accuracy"].tolist())
    (folder / "summary.json").write_text('{"run_id": 1}')
    with pytest.raises(ValueError, match=r"summary\.json is damaged .*tango report"):
        load_run(folder).cells  # noqa: B018


def test_mistakes_say_what_there_is(run, tmp_path):
    with pytest.raises(ValueError, match="no column 'corect'; choose from: answer,"):
        run.answers(["corect"])
    with pytest.raises(ValueError, match=r"no cell 'topk'; choose from: full, tango r=0\.1"):
        run.answers(cells=["topk"])
    with pytest.raises(ValueError, match="no benchmark 'videomme'"):
        run.answers(benchmarks=["videomme"])
    with pytest.raises(FileNotFoundError, match="is not a finished run"):
        load_run(tmp_path)
