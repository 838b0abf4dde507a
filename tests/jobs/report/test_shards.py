"""Runs that are shards of one job become one result."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from fake_answers import facts_of, fake_answers, write_run
from merged_runs import assert_alike, report
from report_page import SWEEP

from jobs.report.compare import report_runs, told_apart
from jobs.results.facts import ShardSize


@pytest.fixture
def job(tmp_path):
    """`job(shard)` is a run of one of the shards of a job of 30 clips; `None` is the whole job."""
    whole = facts_of(*SWEEP, wall_s=None)
    answers = fake_answers(whole, num_clips=30, failed_clips=(4,))
    clip = answers["video_id"].str[-4:].astype(int)

    def make(shard, name=None, **recipe):
        name = name or ("whole" if shard is None else f"shard-{shard.replace('/', '-of-')}")
        index, number = map(int, (shard or "0/1").split("/"))
        counts = [len(range(one, 30, number)) for one in range(number)]
        sizes = tuple(ShardSize(count, 3 * count) for count in counts) if number > 1 else ()
        facts = replace(whole, run_id=name, shards=sizes)
        run = write_run(tmp_path / name, answers[clip % number == index], facts)
        content = yaml.safe_load((run / "job.yaml").read_text()) | recipe
        content |= {"shard": shard} if shard else {}
        (run / "job.yaml").write_text(yaml.safe_dump(content))
        return run

    return make


@pytest.mark.parametrize("shards", [("0/3", "1/3", "2/3"), ("1/2", "2/4", "0/4")])
def test_all_shards_together_are_the_whole_run(shards, job, tmp_path):
    merged, words, table = report([job(shard) for shard in shards], tmp_path / "merged")
    whole = job(None)
    report_runs([whole])
    expected = json.loads((whole / "summary.json").read_text())
    assert_alike(merged, expected)
    assert "Merged shards of one job:" in words
    assert "Missing shards" not in words
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert rows == (whole / "paper_table.md").read_text().strip().splitlines()[: len(rows)]


def test_a_missing_shard_is_named_with_its_questions(job, tmp_path):
    summary, words, table = report([job("0/4"), job("3/4")], tmp_path / "out")
    sentence = (
        "Missing shards: 1/4, 2/4 of the job of shard-0-of-4: 45 questions about 15 clips are in "
        "no table."
    )
    assert sentence in words
    assert sentence in table
    assert summary["run_id"] == "shard-0-of-4 (2 of 4 shards)"
    assert summary["num_clips"] == 15


@pytest.mark.parametrize(
    ("shards", "named"),
    [
        (("0/2", "1/2", "1/2"), r"shard-1-of-2 \(shard 1/2\) and .*again \(shard 1/2\) overlap"),
        (("0/2", "2/4"), r"shard-0-of-2 \(shard 0/2\) and .*\(shard 2/4\) overlap"),
    ],
)
def test_shards_that_overlap_are_refused_by_name(shards, named, job, tmp_path):
    runs = [
        job(shard, "again" if shard in shards[:at] else None) for at, shard in enumerate(shards)
    ]
    with pytest.raises(ValueError, match=named) as error:
        report_runs(runs, tmp_path / "out")
    assert "\n" not in str(error.value)


def test_shards_of_other_jobs_are_not_merged(job, tmp_path):
    runs = [job("0/2"), job("1/2", model={"name": "other"})]
    with pytest.raises(ValueError, match="have no question of shapes in common; --on all"):
        report_runs(runs, tmp_path / "out")
    _, words, _ = report(runs, tmp_path / "out", on="all")
    assert "Merged" not in words


def test_shards_that_hold_the_same_questions_all_the_same_are_refused(job, tmp_path):
    runs = [job("0/2"), job("0/2", "other")]
    text = (runs[1] / "job.yaml").read_text()
    (runs[1] / "job.yaml").write_text(text.replace("0/2", "1/2"))
    with pytest.raises(ValueError, match=r"\(shard 1/2\) holds 45 questions of shapes that"):
        report_runs(runs, tmp_path / "out")


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["one/out/x", "two/out/y"], ["x", "y"]),
        (["one/x", "two/x", "two/y"], ["one/x", "two/x", "two/y"]),
        (["one/out/x", "two/out/x"], ["one/out/x", "two/out/x"]),
    ],
)
def test_names_of_runs_have_as_much_of_their_folder_as_tells_them_apart(folders, names, tmp_path):
    paths = [tmp_path / folder for folder in folders]
    assert told_apart([path.name for path in paths], paths) == names
