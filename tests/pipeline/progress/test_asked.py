"""What a run was asked: written before its answers, and read without the benchmark."""

from __future__ import annotations

import json

from pipeline.clips import clip_of
from pipeline.progress.resume import ASKED, read_asked, write_asked
from pipeline.rows import CLIP, to_table
from pipeline.storage import Storage
from pipeline.storage.seal import write_sealed
from tango_core.types import Question, VideoItem


def clips(*names, text="What?", path="/videos/{}.mp4"):
    rows = []
    for name in names:
        question = Question(f"{name}-0", text, ("a", "b"), 1)
        item = VideoItem(name, path.format(name), (1.0, 2.0), (question,))
        rows.append(clip_of("bench", item, f"key-{name}", f"stat:{name}"))
    return to_table(rows, CLIP)


def asked_of(run):
    """Clip -> its row, of the newest part that has one."""
    rows = [row for table in read_asked(run) for row in table.to_pylist()]
    return {(row["benchmark"], row["video_id"]): row for row in reversed(rows)}


def test_what_was_asked_is_read_back(tmp_path):
    write_asked(clips("one", "two"), Storage.at(tmp_path / "run"))
    found = asked_of(tmp_path / "run")
    assert set(found) == {("bench", "one"), ("bench", "two")}
    row = found["bench", "two"]
    assert (row["path"], row["clip_start"], row["clip_key"]) == ("/videos/two.mp4", 1.0, "key-two")
    assert json.loads(row["questions"])[0]["text"] == "What?"
    assert list(read_asked(tmp_path / "elsewhere")) == []


def test_a_continued_run_adds_to_it_and_the_later_row_counts(tmp_path):
    run = Storage.at(tmp_path / "run")
    write_asked(clips("one", "two"), run)
    write_asked(clips("two", text="Really?"), run)
    write_asked(clips(), run)
    assert len(list(read_asked(run))) == 2
    texts = [json.loads(row["questions"])[0]["text"] for row in asked_of(run).values()]
    assert sorted(texts) == ["Really?", "What?"]


def test_many_clips_are_several_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.progress.resume._ROWS_PER_PART", 2)
    write_asked(clips("a", "b", "c"), Storage.at(tmp_path / "run"))
    assert [table.num_rows for table in read_asked(tmp_path / "run")] == [1, 2]


def test_secrets_of_addresses_are_not_written(tmp_path):
    secret = "https://user:hunter2@host/{}.mp4?X-Amz-Signature=abcdef"
    write_asked(clips("one", path=secret), Storage.at(tmp_path / "run"))
    (row,) = asked_of(tmp_path / "run").values()
    assert "hunter2" not in row["path"]
    assert "abcdef" not in row["path"]


def test_a_column_that_an_earlier_release_did_not_write_is_null(tmp_path):
    run = Storage.at(tmp_path / "run")
    old = clips("one").select([name for name in ASKED.names if name != "subtitles_digest"])
    name = f"part-00000-{'0' * 12}.parquet"
    write_sealed(old, run.child("clips"), name, "run")
    (table,) = read_asked(run)
    assert table.schema == ASKED
    assert table["subtitles_digest"].null_count == 1
