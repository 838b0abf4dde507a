"""A failure is a row: good clips are answered, each bad one has a status and a reason."""

from __future__ import annotations

import csv

import pandas as pd
import pyarrow.parquet as pq
import pytest
from clips import write_clip
from jobs_for_tests import answers_of, job, run

from jobs.config import RecipeError


@pytest.fixture
def folder(tmp_path):
    """One good clip, a truncated one, an empty one, a text file named .mp4, and a missing path."""
    videos = tmp_path / "videos"
    videos.mkdir()
    good = write_clip(videos / "good.mp4", 48)
    (videos / "truncated.mp4").write_bytes(good.read_bytes()[: good.stat().st_size // 3])
    (videos / "empty.mp4").touch()
    (videos / "text.mp4").write_text("this is no video\n" * 50)
    with (videos / "questions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["video", "question", "options", "answer"])
        for name in ("good", "truncated", "empty", "text", "missing"):
            writer.writerow([f"{name}.mp4", "What is it?", "a dog|a cat", "A"])
            writer.writerow([f"{name}.mp4", "Describe it.", "", ""])
    return videos


def recipe(folder, **changes):
    return job(folder, benchmark={"name": "custom", "root": str(folder)}, limit=None, **changes)


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_bad_clips_are_listed_and_the_good_one_is_answered(folder, tmp_path, executor, request):
    if executor == "ray":
        request.getfixturevalue("local_ray")
    outcome, run_dir = run(recipe(folder, executor=executor), tmp_path / "runs")
    assert (outcome.num_clips, outcome.num_failed_clips, outcome.num_encoded) == (5, 4, 1)
    answers = answers_of(run_dir)
    assert len(answers) == 10, "every question appears, whatever became of its clip"
    by_status = answers.groupby("status")["video_id"].nunique()
    assert by_status["decode_failed"] == 4
    failed = answers[answers["status"] == "decode_failed"]
    assert failed["choice"].isna().all()
    assert (failed.dropna(subset="answer")["correct"] == False).all()  # noqa: E712
    good = answers[answers["status"] != "decode_failed"]
    assert good["prompt_tokens"].gt(0).all()
    failures = pq.read_table(run_dir / "failures.parquet").to_pandas()
    reasons = {row.path.rsplit("/", 1)[-1]: row.error for row in failures.itertuples()}
    assert set(reasons) == {"truncated.mp4", "empty.mp4", "text.mp4", "missing.mp4"}
    assert "No such file" in reasons["missing.mp4"]
    assert all(reason and "\n" not in reason for reason in reasons.values())
    assert len(set(reasons.values())) == 4


def test_failed_clips_are_not_cached_and_are_tried_again_on_resume(folder, tmp_path):
    _, run_dir = run(recipe(folder, executor="local"), tmp_path / "runs")
    before = answers_of(run_dir).set_index("question_id")
    write_clip(folder / "missing.mp4", 30)
    outcome, _ = run(recipe(folder, executor="local"), tmp_path / "runs", run_dir)
    assert (outcome.num_clips, outcome.num_encoded, outcome.num_failed_clips) == (4, 1, 3)
    answers = answers_of(run_dir)
    assert len(answers) == 10
    assert (answers["status"] == "decode_failed").sum() == 6
    after = answers.set_index("question_id")
    good = before.index[before["status"] != "decode_failed"]
    pd.testing.assert_series_equal(before.loc[good, "text"], after.loc[good, "text"])


def test_a_replaced_video_is_encoded_again(folder, tmp_path):
    run(recipe(folder, executor="local"), tmp_path / "runs")
    write_clip(folder / "good.mp4", 36)
    outcome, _ = run(recipe(folder, executor="local"), tmp_path / "runs")
    assert outcome.num_encoded == 1


def test_a_run_is_not_continued_with_another_recipe(folder, tmp_path):
    _, run_dir = run(recipe(folder, executor="local"), tmp_path / "runs")
    other = recipe(folder, executor="local", methods=[{"name": "uniform", "retention": 0.5}])
    with pytest.raises(RecipeError, match="the recipe's methods differs from that run"):
        run(other, tmp_path / "runs", run_dir)
