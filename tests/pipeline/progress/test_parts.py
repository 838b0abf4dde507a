"""Answers read part by part: whole clips, nothing twice, whatever a driver left behind."""

from __future__ import annotations

import pytest
from answer_rows import answer, has
from fake_clock import FakeClock
from faulty_storage import opener

from pipeline.progress.answers import AnsweredClips, AnswerWriter
from pipeline.progress.parts import AnswerParts
from pipeline.rows import ANSWER, to_table
from pipeline.storage import Storage
from pipeline.storage.seal import DamagedFileError, write_sealed


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "answers"


def put(folder, *parts, first=0):
    """One part per list of rows."""
    for number, rows in enumerate(parts, first):
        name = f"part-{number:05d}-{number:012x}.parquet"
        write_sealed(to_table(rows, ANSWER), Storage.at(folder), name, "run")


def read(folder, **options):
    """Per table: (video, text) of its rows."""
    tables = AnswerParts(folder).whole_clips(**options)
    return [list(zip(*t.select(["video_id", "text"]).to_pydict().values(), strict=True))
            for t in tables]  # fmt: skip


def test_tables_are_cut_between_parts_and_hold_all_rows_in_order(folder):
    put(folder, *([answer(f"v{n}", f"q{q}") for q in range(3)] for n in range(5)))
    put(folder, [], first=5)
    assert [len(table) for table in read(folder, rows=1)] == [3, 3, 3, 3, 3]
    (whole,) = read(folder)
    assert [video for video, _ in whole] == [f"v{n}" for n in range(5) for _ in range(3)]


def test_a_clip_of_several_parts_comes_once_and_the_later_row_counts(folder):
    put(
        folder,
        [answer("v1", "q1", text="old"), answer("v1", "q2", text="only here"), answer("v2")],
        [answer("v3")],
        [answer("v1", "q1", text="new"), answer("v4")],
    )
    tables = read(folder, rows=1)
    assert sorted(row for table in tables for row in table) == [
        ("v1", "new"), ("v1", "only here"), ("v2", "A"), ("v3", "A"), ("v4", "A"),
    ]  # fmt: skip
    assert sum(any(video == "v1" for video, _ in table) for table in tables) == 1
    assert read(folder, only_split=True) == [[("v1", "only here"), ("v1", "new")]]


def test_a_damaged_part_does_not_hold_a_clip_back(folder, caplog):
    put(folder, [answer("v1", "q1"), answer("v2")], [answer("v1", "q2")])
    last = sorted(folder.glob("*.parquet"))[-1]
    last.rename(last.with_name("part-00001-ffffffffffff.parquet"))  # its seal names another file
    with pytest.raises(DamagedFileError, match="it was written as"):
        read(folder)
    parts = AnswerParts(folder, set_aside=True)
    (table,) = parts.whole_clips()
    assert table["video_id"].to_pylist() == ["v2", "v1"]
    assert "renamed to" in caplog.text


def test_a_part_that_cannot_even_be_opened_is_never_taken_for_empty(folder):
    put(folder, [answer("v1")], [answer("v2")])
    first, _ = sorted(folder.glob("*.parquet"))
    first.write_bytes(b"PAR1 no more")
    with pytest.raises(DamagedFileError, match=first.name):
        AnswerParts(folder).overview  # noqa: B018
    assert len(AnswerParts(folder, set_aside=True).overview.names) == 1
    assert not first.exists()


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_part_that_is_lost_while_it_is_read_is_named_with_the_remedy(folder, caplog, looked_at):
    put(folder, [answer("v1")], [answer("v2")])
    reader, driver = AnswerParts(folder), AnswerParts(folder, set_aside=True)
    lost, _ = sorted(folder.glob("*.parquet"))
    for parts in (reader, driver):
        if looked_at:
            assert len(parts.overview.names) == 2
    if not looked_at:  # it is there when the directory is listed, and gone when it is opened
        names = sorted(path.name for path in folder.iterdir())
        for parts in (reader, driver):
            parts.storage = Listed(parts.storage, names)
    lost.unlink()
    for read_all in (reader.whole_clips, reader.names):
        with pytest.raises(DamagedFileError, match=rf"{lost} is gone.*--resume run asks"):
            list(read_all())
    (table,) = driver.whole_clips()
    assert table["video_id"].to_pylist() == ["v2"]
    assert f"{lost} is gone" in caplog.text
    assert driver.read(lost.name) is None


class Listed:
    """A directory whose listing is older than what is in it."""

    def __init__(self, storage, names):
        self._storage, self._names = storage, names

    def names(self, suffix=""):
        return self._names

    def __getattr__(self, name):
        return getattr(self._storage, name)


class TestAnsweredClips:
    CELLS = ("full", "tango")

    def of(self, *rows):
        return AnsweredClips.of([to_table(rows, ANSWER)], self.CELLS)

    def test_a_clip_needs_the_same_questions_under_every_cell(self):
        both = [answer("v1", q, c) for c in self.CELLS for q in ("q1", "q2")]
        assert has(self.of(*both), "b", "v1", ["q2", "q1"])
        assert not has(self.of(*both), "b", "v1", ["q1"])
        assert not has(self.of(*both), "b", "v1", ["q1", "q3"])
        assert not has(self.of(*both), "other", "v1", ["q1", "q2"])
        assert len(self.of(*both[:-1])) == 0
        assert len(self.of(*both, answer("v1", "q1", "another"))) == 0

    def test_failed_clips_are_told_apart(self):
        rows = [answer(v, "q1", c) for c in self.CELLS for v in ("v1", "v2")]
        rows[0] |= {"status": "answer_failed"}
        rows[1] |= {"status": "decode_damaged", "prompt_tokens": 7}
        clips = self.of(*rows)
        assert (len(clips), len(clips.without_failed())) == (2, 1)
        assert has(clips.without_failed(), "b", "v2", ["q1"]), "answered though damaged"
        strict = AnsweredClips.of([to_table(rows, ANSWER)], self.CELLS, keep_damaged=False)
        assert len(strict.without_failed()) == 0


def test_a_disk_that_fills_up_while_parts_are_rewritten_loses_nothing(tmp_path):
    folder = tmp_path / "run" / "answers"
    bad = {"status": "answer_failed"}
    put(folder, *([answer(f"v{n}"), answer(f"w{n}") | bad] for n in range(4)))
    written = iter(range(100))

    def refuse(path):
        if next(written) == 2:
            raise OSError(28, "No space left on device")

    writer = AnswerWriter(opener(refuse)(folder), FakeClock())
    writer.keep(writer.finished(["full"]))
    writer.add([answer("new")])
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    assert has(AnswerWriter(folder).finished(["full"]), "b", "new", ["q1"]), "written first"
    writer.add([answer("newer")])
    writer.flush()
    videos = [video for table in read(folder) for video, _ in table]
    assert sorted(videos) == ["new", "newer", "v0", "v1", "v2", "v3"]
