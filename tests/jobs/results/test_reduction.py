"""Answers reduced part by part against the same answers reduced at once."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fake_answers import cell, facts_of, fake_answers
from merged_runs import assert_alike
from summaries import summarize

from jobs.results.facts import JobFacts
from jobs.results.summary import (
    Reduction,
    parts_of,
    questions_asked,
    reduce_runs,
    summarize_reduced,
)
from pipeline.progress.parts import AnswerParts
from pipeline.rows import ANSWER, to_table
from pipeline.storage import Storage
from pipeline.storage.copies import local_copy
from pipeline.storage.seal import write_sealed
from pipeline.storage.urls import Url

SWEEP = (cell("full"), cell("tango", 0.1), cell("tango", 0.2, inner={"layer": 1}))
TWO = (cell("full", 1.0, "mlvu"), cell("tango", 0.1, "mlvu"), cell("full", 1.0, "videomme"))


def write_parts(run_dir, answers, num_parts, seed=0):
    """Write answers in sealed parts, a clip maybe in several; returns them in the written order."""
    draw = np.random.default_rng(seed)
    part_of = draw.integers(0, num_parts, len(answers))
    part_of[draw.random(len(answers)) < 0.9] = num_parts // 2
    for number in range(num_parts):
        rows = answers[part_of == number].astype(object)
        rows = rows.where(rows.notna(), None).to_dict("records")
        name = f"part-{number:05d}-{number:012x}.parquet"
        write_sealed(to_table(rows, ANSWER), Storage.at(run_dir / "answers"), name, run_dir.name)
    return answers.iloc[np.argsort(part_of, kind="stable")]


def plain(summary):
    return json.loads(json.dumps(summary.to_json()))


@pytest.mark.parametrize("mode", ["throughput", "profile"])
@pytest.mark.parametrize("cells", [SWEEP, TWO], ids=["sweep", "benchmarks"])
def test_however_answers_are_spread_over_parts_the_numbers_are_the_same(cells, mode, tmp_path):
    facts = facts_of(*cells, mode=mode)
    answers = fake_answers(facts, num_clips=40, failed_clips=(3, 8), hits=0.3, unparsed=0.1)
    score = answers["correct"].astype("Float64").fillna(0).astype(float)
    answers = answers.assign(harness_score=score, error=answers["error"].replace("", None))
    written = write_parts(tmp_path / "run", answers, 7)
    expected = plain(summarize(written, facts))
    assert_alike(plain(summarize_reduced(reduce_runs([tmp_path / "run"], mode), facts)), expected)
    reduction = Reduction(mode)
    for table in AnswerParts(tmp_path / "run" / "answers").whole_clips(rows=1):
        reduction.add(table)
    assert_alike(plain(summarize_reduced(reduction, facts)), expected)


def test_an_answer_that_is_there_twice_counts_once(tmp_path):
    facts = facts_of(*SWEEP)
    answers = fake_answers(facts, num_clips=12)
    stale = answers[answers["video_id"] < "shapes-0005"].assign(status="answer_failed")
    write_parts(tmp_path / "run", stale, 1)
    later = tmp_path / "later"
    written = write_parts(later, answers, 3)
    for number, path in enumerate(sorted((later / "answers").iterdir()), 1):
        table = AnswerParts(later / "answers").read(path.name)
        name = f"part-{number:05d}-{number:012x}.parquet"
        write_sealed(table, Storage.at(tmp_path / "run" / "answers"), name, "run")
    reduced = summarize_reduced(reduce_runs([tmp_path / "run"], "throughput"), facts)
    assert_alike(plain(reduced), plain(summarize(written, facts)))


def test_only_chosen_questions_count(tmp_path):
    facts = facts_of(*SWEEP)
    answers = fake_answers(facts, num_clips=12)
    some = answers[
        answers["question_id"].str.endswith("-1") & (answers["video_id"] > "shapes-0003")
    ]
    for name, rows in (("all", answers), ("some", some)):
        write_parts(tmp_path / name, rows, 1)
    only = questions_asked(tmp_path / "some")
    assert len(only["shapes"]) == 8
    reduced = reduce_runs([tmp_path / "all"], "throughput", only=only)
    assert_alike(plain(summarize_reduced(reduced, facts)), plain(summarize(some, facts)))


def test_a_run_of_a_store_without_answers_is_named_by_its_url():
    run = Url("memory://without-answers/runs/20260101T000000-run")
    Storage.at(run).write("job.yaml", b"")
    with local_copy(run, sent=lambda name: False) as folder:
        with pytest.raises(FileNotFoundError) as no_answers:
            parts_of(folder)
        with pytest.raises(FileNotFoundError) as unfinished:
            JobFacts.load(folder)
    for error in (no_answers, unfinished):
        assert str(error.value).startswith(f"{run} ")
        assert str(error.value).endswith(f"--resume {run}")
