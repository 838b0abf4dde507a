"""Some clips on the page of a run: those first that a method lost."""

import html

import pytest
from clips import clip as clip_file
from summaries import read_answers, write_summary
from viewed_runs import write_viewed_run

from jobs.report.compare import report_runs
from jobs.report.gallery import gallery


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    video = clip_file("closed_gop.mp4")
    return write_viewed_run(tmp_path_factory.mktemp("run"), video=video)


def lost(answers, methods):
    """Clip -> questions that all tokens answer and one of some methods does not."""
    right = answers.pivot_table(
        index=["video_id", "question_id"], columns="cell", values="correct", aggfunc="first"
    ).fillna(False)
    missed = (right["full"] == True) & (right[methods] == False).any(axis=1)  # noqa: E712
    return missed.groupby("video_id").sum()


def test_clips_that_a_method_lost_come_first_with_question_and_replies(run):
    cells = write_summary(run).cells
    figures = gallery(run, cells, 2)
    assert len(figures) == 2
    counts = lost(read_answers(run), ["tango r=0.25", "uniform r=0.25", "old r=0.25"])
    shown = []
    for figure in figures:
        shown.append(html.unescape(figure.split("<figcaption>")[1].split("</figcaption>")[0]))
        assert "A. red B. Blue" in figure
        assert "wrong: " in figure
        assert "<script" not in figure
        assert figure.count("<img") == figure.count('src="data:image/jpeg;base64,') > 0
    assert counts[shown[0]] >= counts[shown[1]] > 0
    assert "right: " in figures[0] + figures[1]


def test_the_page_of_a_run_holds_them_and_needs_nothing_else(run):
    page = report_runs([run], num_clips=1).read_text(encoding="utf-8")
    assert page.count('class="tango-clip"') == 1
    assert "<script" not in page
    assert 'src="http' not in page
    assert 'class="tango-clip"' not in report_runs([run]).read_text(encoding="utf-8")
