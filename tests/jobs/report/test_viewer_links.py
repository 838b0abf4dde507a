"""Links from the page of a run: each opens the questions that its number is about."""

import html
import json
import re
from urllib.parse import parse_qsl

import pytest
from clips import clip as clip_file
from fake_answers import unmeasured
from report_page import TANGO
from rich.console import Console
from summaries import read_answers
from viewed_runs import HOSTILE, KINDS, write_viewed_run

from jobs.report.compare import report_runs
from jobs.report.page import VIEWER, failures_link
from jobs.viewer.command import export, opened


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return write_viewed_run(folder, clips=30, video=clip_file("closed_gop.mp4"))


def links_of(page):
    return [html.unescape(one) for one in re.findall('<a href="([^"]*)"', page)]


def test_without_a_viewer_there_are_none_and_the_page_says_how_to_get_them(run):
    page = report_runs([run], num_clips=1).read_text(encoding="utf-8")
    assert links_of(page) == []
    assert "tango view run --export run/viewer" in re.sub(r"\s+", " ", page)


@pytest.mark.system
def test_a_number_opens_the_questions_of_the_group_that_the_cell_lost(run, asked):
    export([run], run / "viewer", Console(quiet=True), pixels=0)
    page = report_runs([run], num_clips=1).read_text(encoding="utf-8")
    answers = read_answers(run)
    right = answers.pivot_table("correct", "question_id", "cell", aggfunc="first").astype(bool)
    with opened([run]) as pages:
        columns, find = pages.index.runs.columns, asked(pages)
        lists = [one for one in links_of(page) if one.startswith(f"{VIEWER}#/list?")]
        assert len(lists) == len(columns) * (len(KINDS) + 2)
        for link in lists:
            pairs = parse_qsl(link.partition("?")[2])
            wanted = dict(pairs)
            found = find(pairs)
            own = answers[answers["cell"] == wanted["column"]].set_index("question_id")
            name, _, value = wanted["group"].partition("=")
            mine = own["groups"].map(lambda text, n=name, v=value: json.loads(text)[n] == v)
            missed = right[wanted["column"]].eq(False)
            if wanted["column"] != "full":
                missed &= right["full"]
            assert found["total"] == int((missed & mine.reindex(right.index)).sum())
    assert any(f"type={HOSTILE}" in dict(parse_qsl(x.partition("?")[2]))["group"] for x in lists)
    (clip,) = [one for one in links_of(page) if one.startswith(f"{VIEWER}#/clip?")]
    assert dict(parse_qsl(clip.partition("?")[2]))["run"] == "run"


def test_groups_with_several_values_have_none():
    (one,) = unmeasured(TANGO)
    object.__setattr__(one, "benchmark", "lvbench")
    assert failures_link(VIEWER, one, [("type", "entity recognition")], has_full=True) == ""
    assert failures_link(VIEWER, one, [("length", "long")], has_full=True).endswith("outcome=lost")
