"""Failed clips: each has a status and a reason, and good clips are answered."""

from __future__ import annotations

import pandas as pd
import pyarrow.parquet as pq
import pytest
from clips import clip
from jobs_for_tests import answers_of, job, run
from numbered_videos import write_clip
from summaries import write_summary

from jobs.report.compare import write_report
from jobs.run.run_dirs import find_run
from tango_core.errors import InputError


@pytest.fixture
def folder(tmp_path):
    """One good clip, a truncated one, an empty one, a text file named .mp4, and a missing path."""
    videos = tmp_path / "videos"
    videos.mkdir()
    good = write_clip(videos / "good.mp4", 48)
    (videos / "truncated.mp4").write_bytes(good.read_bytes()[: good.stat().st_size // 3])
    (videos / "empty.mp4").touch()
    (videos / "text.mp4").write_text("this is no video\n" * 50)
    rows = [
        f"{name}.mp4,{rest}\n"
        for name in ("good", "truncated", "empty", "text", "missing")
        for rest in ("What is it?,a dog|a cat,A", "Describe it.,,")
    ]
    (videos / "questions.csv").write_text("video,question,options,answer\n" + "".join(rows))
    return videos


def recipe(folder, **changes):
    return job(folder, benchmark={"name": "custom", "root": str(folder)}, limit=None, **changes)


@pytest.mark.parametrize(
    "executor", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])]
)
def test_bad_clips_are_listed_and_good_ones_answered(folder, tmp_path, executor, request):
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


def test_a_question_added_later_is_asked_on_resume(folder, tmp_path):
    for name in ("truncated", "empty", "text"):
        (folder / f"{name}.mp4").unlink()
    table = folder / "questions.csv"
    table.write_text("video,question,options,answer\ngood.mp4,What is it?,a dog|a cat,A\n")
    _, run_dir = run(recipe(folder, executor="local"), tmp_path / "runs")
    assert len(answers_of(run_dir)) == 1
    with table.open("a") as file:
        file.write("good.mp4,What else?,a sun|a moon,B\n")
    outcome, _ = run(recipe(folder, executor="local"), tmp_path / "runs", run_dir)
    assert (outcome.num_clips, outcome.num_encoded) == (1, 0)
    assert len(answers_of(run_dir)) == 2


@pytest.fixture
def damaged_folder(tmp_path):
    """A good clip, and one that has lost two seconds in its middle."""
    videos = tmp_path / "videos"
    videos.mkdir()
    (videos / "good.webm").write_bytes(clip("vp9.webm").read_bytes())
    (videos / "holey.webm").write_bytes(clip("hole.webm").read_bytes())
    rows = "".join(f"{name}.webm,What is it?,a dog|a cat,A\n" for name in ("good", "holey"))
    (videos / "questions.csv").write_text("video,question,options,answer\n" + rows)
    return videos


@pytest.mark.parametrize(
    "executor", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])]
)
def test_a_damaged_clip_fails_unless_the_recipe_keeps_it(
    damaged_folder, tmp_path, executor, request
):
    if executor == "ray":
        request.getfixturevalue("local_ray")
    shared = {"executor": executor, "decode": {"damaged": "fail"}}
    outcome, run_dir = run(recipe(damaged_folder, **shared), tmp_path / "runs")
    assert (outcome.num_failed_clips, outcome.num_encoded) == (1, 1)
    answers = answers_of(run_dir).set_index("video_id")["status"]
    assert sorted(answers)[0] == "decode_damaged"
    failures = pq.read_table(run_dir / "failures.parquet").to_pylist()
    assert [failure["status"] for failure in failures] == ["decode_damaged"]

    # The second time as well: it is not cached, which is the same on Ray.
    for _ in range(2 if executor == "local" else 1):
        keep = recipe(damaged_folder, **{**shared, "decode": {"damaged": "keep"}})
        outcome, kept_dir = run(keep, tmp_path / "runs")
        assert (outcome.num_failed_clips, outcome.num_encoded, outcome.num_hits) == (0, 1, 1)
        answers = answers_of(kept_dir)
        (kept,) = answers[answers["status"] == "decode_damaged"].to_dict("records")
        assert kept["prompt_tokens"] > 0
        assert kept["correct"] in (True, False)
        assert "has lost frames" in kept["error"]
        failures = pq.read_table(kept_dir / "failures.parquet").to_pylist()
        assert [failure["status"] for failure in failures] == ["decode_damaged"]
        counts = write_summary(kept_dir).counts
        assert (counts.num_failed, counts.num_damaged) == (0, 1)
        assert counts.num_answered + counts.num_unparsed == 2
        write_report(kept_dir)
        page = (kept_dir / "report.html").read_text()
        assert "Answers about damaged clips: 1." in page


def test_resuming_with_fail_drops_answers_about_damaged_clips(damaged_folder, tmp_path):
    changes = {"executor": "local", "decode": {"damaged": "keep"}}
    outcome, run_dir = run(recipe(damaged_folder, **changes), tmp_path / "runs")
    assert outcome.facts.work.answered == 2
    changes["decode"] = {"damaged": "fail"}
    going_on = find_run(run_dir.name, tmp_path / "runs")
    outcome, _ = run(recipe(damaged_folder, **changes), tmp_path / "runs", going_on)
    assert outcome.facts.work.answered == 0
    assert sorted(answers_of(run_dir)["status"])[0] == "decode_damaged"
    assert write_summary(run_dir).counts.num_failed == 1


def test_videos_without_questions_are_refused_before_anything_is_encoded(folder, tmp_path):
    (folder / "questions.csv").unlink()
    with pytest.raises(InputError, match=r"no clip has a question.*tango precompute"):
        run(recipe(folder, executor="local"), tmp_path / "runs")
    outcome, _ = run(recipe(folder, executor="local"), tmp_path / "runs", kind="precompute")
    assert outcome.num_encoded == 1
