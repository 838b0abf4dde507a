"""Files and texts that nobody planned for: their clips fail or are answered, the job goes on."""

import csv
import json
import os
import shutil

import pyarrow.parquet as pq
import pytest
from clips import clip
from jobs_for_tests import answers_of, run
from numbered_videos import CLOSED_GOP
from report_page import Page
from summaries import write_summary

from jobs.config.recipe import parse_job
from jobs.report.compare import report_runs

HOSTILE = "=cmd|' /C calc'!A0<script>alert(1)</script>"
LATEX = r"\input{/etc/passwd}$x$%&_#"
LONE = "half a pair \ud83d"
SECRET = "wJalrXUtnFEMIK7MDENG"


def job_of(folder, **changes):
    return parse_job(
        {
            "benchmark": {"name": "custom", "root": str(folder)},
            "model": {"name": "tiny", "num_frames": 4},
            "methods": [{"name": "full"}, {"name": "uniform", "retention": 0.5}],
            "executor": "local",
            **changes,
        },
        "test",
    )


def narrow_clip(path, width):
    """A video of a few columns; decord gives it four or more channels."""
    import av
    import numpy as np

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8, options=CLOSED_GOP)
        stream.width, stream.height, stream.pix_fmt = width, 96, "yuv420p"
        for shade in range(8):
            picture = np.full((96, width, 3), 30 * shade, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


@pytest.mark.parametrize("hash_content", [False, True])
def test_odd_files_fail_alone(tmp_path, hash_content):
    videos = tmp_path / "videos"
    videos.mkdir()
    good = clip("five_frames.mp4")
    shutil.copy(good, videos / "good.mp4")
    os.mkfifo(videos / "pipe.mp4")
    (videos / "endless.mp4").symlink_to("/dev/zero")
    (videos / "gone.mp4").symlink_to(tmp_path / "nothing")
    shutil.copy(good, os.fsencode(videos) + b"/vid\xe9o.mp4")
    narrow_clip(videos / "narrow.mp4", 2)
    (videos / "folder.mp4").mkdir()
    rows = [
        {"video": name, "question": "What moves?", "options": ["a", "b"], "answer": "a"}
        for name in ("good.mp4", "pipe.mp4", "endless.mp4", "gone.mp4", "narrow.mp4", "folder.mp4")
    ]
    rows.append({**rows[0], "video": "vid\udce9o.mp4"})  # JSON can name it, CSV cannot
    (videos / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))

    result, run_dir = run(job_of(videos, hash_content=hash_content), tmp_path)

    assert (result.num_clips, result.num_failed_clips) == (7, 5)
    answers = answers_of(run_dir).set_index(["video_id", "cell"])
    for name in ("good.mp4", "narrow.mp4"):
        assert set(answers.loc[name]["status"]) <= {"ok", "unparsed"}
    failed = {
        row["video_id"]: row["error"]
        for row in pq.read_table(run_dir / "failures.parquet").to_pylist()
    }
    reasons = {
        "pipe.mp4": "is not a regular file",
        "endless.mp4": "is not a regular file",
        "gone.mp4": "No such file",
        "folder.mp4": "holds no frames",
        "vid\\xe9o.mp4": "the name is not UTF-8; rename the file",
    }
    assert failed.keys() == reasons.keys()
    assert all(reason in failed[name] for name, reason in reasons.items())


def test_hostile_texts_are_literal_in_every_file_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    videos = tmp_path / "videos"
    videos.mkdir()
    shutil.copy(clip("five_frames.mp4"), videos / "a.mp4")
    signed = f"gs://host/b.mp4?X-Amz-Signature={SECRET}"
    rows = [
        {
            "video": video,
            "question": f"{text} What moves?",
            "options": [text, f"-{text}"],
            "answer": text,
            "kind": text,
            text: "group",
            "id": f"{text} {video[:5]}",
        }
        for text in (HOSTILE, f"+1+1 {LATEX}", LONE)
        for video in ("a.mp4", signed)
    ]
    (videos / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run_dir = run(job_of(videos), tmp_path)[1]
    write_summary(run_dir)
    page = report_runs([run_dir], tmp_path / "report", published=False, confusion="kind")

    texts = {
        path: path.read_bytes()
        for folder in (run_dir, tmp_path / "report")
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert {path.suffix for path in texts} >= {".csv", ".md", ".tex", ".html", ".parquet", ".json"}
    assert not [path for path, data in texts.items() if SECRET.encode() in data]
    for path in texts:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                fields = [field for row in csv.reader(file) for field in row]
            assert not [f for f in fields if f.startswith(("=", "+", "@", "\t", "-="))]
        if path.suffix == ".md":
            assert "<script" not in path.read_text().replace("\\<script", "")
        if path.suffix == ".tex":
            assert "\\input{" not in path.read_text()
    assert "script" not in Page(page.read_text(encoding="utf-8")).tags


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    job = job_of("~/videos", model={"name": "tiny", "sinks": "~/sinks.json", "path": "~/tiny"})
    assert job.benchmark.root == f"{tmp_path}/videos"
    assert (job.model.sinks, job.model.path) == (f"{tmp_path}/sinks.json", f"{tmp_path}/tiny")
    assert job_of("s3://bucket/~x").benchmark.root == "s3://bucket/~x"
