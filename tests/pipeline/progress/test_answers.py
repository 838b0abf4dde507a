import json
import shutil
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from answer_rows import answer, has
from fake_clock import FakeClock
from faulty_storage import opener

from pipeline.clips import clip_of
from pipeline.progress.answers import (
    AnsweredClips,
    AnswerWriter,
    Continued,
    read_answers,
    read_asked,
    write_asked,
)
from pipeline.progress.parts import digests_of
from pipeline.rows import ANSWER, CLIP, to_table
from pipeline.storage import Storage
from pipeline.storage.seal import DamagedFileError
from tango_core.types import Question, Subtitles, VideoItem


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "answers"


def write(folder, *clips):
    """A writer that has written the rows of some clips."""
    writer = AnswerWriter(folder)
    for rows in clips:
        writer.add(rows)
    writer.flush()
    return writer


def clips(folder):
    return read_answers(folder)["video_id"].to_pylist()


def test_resuming_keeps_finished_clips_and_drops_the_others_with_the_first_new_answer(folder):
    write(
        folder,
        [answer("done", cell=cell) for cell in ("full", "tango")],
        [answer("unparsed", cell=cell, status="unparsed") for cell in ("full", "tango")],
        [answer("failed", cell=cell, status="answer_failed") for cell in ("full", "tango")],
        [answer("partial", cell="full")],
    )
    resumed = AnswerWriter(folder)
    finished = resumed.finished(["full", "tango"])
    assert len(finished) == 2
    assert has(finished, "b", "done", ["q1"])
    assert has(finished, "b", "unparsed", ["q1"])
    assert not has(finished, "b", "done", ["q1", "q2"]), "another question has come"
    resumed.keep(finished)
    resumed.flush()
    assert len(clips(folder)) == 7, "a job that never starts leaves everything as it was"
    resumed.add([answer("failed", cell=cell) for cell in ("full", "tango")])
    resumed.flush()
    assert sorted(clips(folder)) == ["done"] * 2 + ["failed"] * 2 + ["unparsed"] * 2


def test_a_disk_that_fails_loses_no_answer_that_is_still_pending(folder):
    faults = iter([OSError("full"), None])

    def fail_once(path):
        if fault := next(faults, None):
            raise fault

    writer = AnswerWriter(opener(fail_once)(folder), FakeClock())
    writer.add([answer("v1")])
    with pytest.raises(OSError, match="full"):
        writer.flush()
    writer.flush()
    assert clips(folder) == ["v1"]


def test_a_part_that_came_after_the_reading_is_not_deleted(folder):
    write(folder, [answer("failed", status="answer_failed")])
    resumed = AnswerWriter(folder)
    resumed.keep(resumed.finished(["full"]))
    write(folder, [answer("of another driver")])
    resumed.add([answer("v2")])
    resumed.flush()
    assert sorted(clips(folder)) == ["of another driver", "v2"]


def test_parts_of_release_0_1_are_read_and_go_on(folder):
    folder.mkdir()
    for number, video in enumerate(["v1", "v2"]):
        table = to_table([answer(video)], ANSWER)
        pq.write_table(table.drop_columns(["groups"]), folder / f"part-{number:05d}.parquet")
    writer = AnswerWriter(folder)
    finished = writer.finished(["full"])
    assert has(finished, "b", "v1", ["q1"])
    assert has(finished, "b", "v2", ["q1"])
    writer.add([answer("v3")])
    writer.flush()
    assert clips(folder) == ["v1", "v2", "v3"]
    assert len(list(folder.glob("part-00002-*.parquet"))) == 1


def test_a_damaged_part_is_renamed_and_its_clips_are_not_finished(folder, caplog):
    write(folder, *([answer(f"v{i}", text="A" * i)] for i in range(9)))
    (sealed,) = folder.glob("*.parquet")
    data = bytearray(sealed.read_bytes())
    data[len(data) // 3] ^= 1
    sealed.write_bytes(data)
    with pytest.raises(DamagedFileError, match=f"{sealed.name} is damaged.*--resume"):
        read_answers(folder)
    assert len(AnswerWriter(folder).finished(["full"])) == 0
    assert [path.name for path in folder.iterdir()] == [f"{sealed.name}.damaged"]
    assert f"renamed to {sealed.name}.damaged" in caplog.text


def test_a_part_copied_over_another_or_from_another_run_is_found(tmp_path):
    folders = [tmp_path / run / "answers" for run in ("a", "b")]
    for folder in folders:
        for video in ("v1", "v2"):
            write(folder, [answer(video)])
    first, second = sorted(folders[0].glob("*.parquet"))
    stranger = sorted(folders[1].glob("*.parquet"))[0]
    shutil.copy(stranger, folders[0])
    with pytest.raises(DamagedFileError, match="belongs to the run b"):
        read_answers(folders[0])
    (folders[0] / stranger.name).unlink()
    shutil.copy(first, second)
    with pytest.raises(DamagedFileError, match=f"it was written as {first.name} of the run a"):
        read_answers(folders[0])


def test_a_run_directory_may_be_renamed_and_go_on(tmp_path):
    writer = write(tmp_path / "old" / "answers", [answer("v1")])
    (tmp_path / "old").rename(tmp_path / "new")
    writer = AnswerWriter(tmp_path / "new" / "answers")
    assert len(writer.finished(["full"])) == 1
    writer.add([answer("v2")])
    writer.flush()
    assert clips(tmp_path / "new" / "answers") == ["v1", "v2"]


def test_a_driver_that_died_while_dropping_leaves_no_answer_twice(folder):
    writer = write(folder, [answer("v1", text="old")])
    writer.add([answer("v1", text="new")])  # the kept rows were written, the old not yet deleted
    writer.flush()
    resumed = AnswerWriter(folder)
    resumed.keep(resumed.finished(["full"]))
    resumed.add([answer("v2")])
    resumed.flush()
    assert sorted(read_answers(folder)["text"].to_pylist()) == ["A", "new"]


CELLS = ("full", "tango")


def question(name, text="What?"):
    return Question(f"{name}-q", text, ("a", "b"), 1)


def row(name, *, text="What?", key="key", shown=None):
    subtitles = None if shown is None else Subtitles(shown)
    item = VideoItem(name, f"/{name}.mp4", None, (question(name, text),), subtitles)
    return clip_of("bench", item, f"{key}-{name}", f"stat:{name}")


def answered(*names):
    rows = [
        {"benchmark": "bench", "video_id": name, "cell": cell, "question_id": f"{name}-q"}
        for name in names
        for cell in CELLS
    ]
    return AnsweredClips.of([to_table([{**one, "status": "ok"} for one in rows], ANSWER)], CELLS)


def asked(*rows):
    """One part, as a run keeps it."""
    with TemporaryDirectory() as folder:
        write_asked(to_table(rows, CLIP), Storage.at(folder))
        return next(read_asked(Storage.at(folder)))


def test_answers_stand_to_the_same_words_about_the_same_file():
    before = [asked(*map(row, "abc"))]
    continued = Continued(answered("a", "b", "c"), before)
    rows = [row("a"), row("b", text="Why?"), row("c", key="other")]
    kept = continued.keep(rows, [[f"{name}-q"] for name in "abc"])
    assert kept.tolist() == [True, False, False]
    assert continued.standing.digests.tolist() == digests_of([("bench", "a")]).tolist()


def test_answers_do_not_stand_under_other_subtitles():
    before = Continued(asked=[asked(row("a", shown="Hello."), row("b"), row("c", shown=""))])
    shown = [row("a", shown="Hello."), row("a", shown="Goodbye."), row("a")]
    assert before.agree(shown).tolist() == [True, False, False]
    assert before.agree([row("b", shown="Hello."), row("b")]).tolist() == [False, True]
    assert not before.agree([row("c")]).any(), "an empty file is not none"


def test_a_clip_that_is_not_listed_does_not_stand():
    continued = Continued(answered("a", "b"))
    assert continued.keep([row("a")], [["a-q"]]).all()
    assert (len(continued), len(continued.standing)) == (2, 1)


def test_the_newest_part_says_what_was_asked():
    newer, older = asked(row("a", text="New?")), asked(row("a", text="Old?"), row("b"))
    before = Continued(asked=[newer, older])
    now = [row("a", text="New?"), row("a", text="Old?"), row("b")]
    assert before.agree(now).tolist() == [True, False, True]


def test_what_cannot_be_compared_agrees():
    before = Continued(asked=[asked(row("a"))])
    gone = row("a", key="").failed("decode_failed", "no such file")
    assert before.agree([row("never recorded"), gone]).all()


def planned_clips(*names, text="What?", path="/videos/{}.mp4"):
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
    write_asked(planned_clips("one", "two"), Storage.at(tmp_path / "run"))
    found = asked_of(tmp_path / "run")
    assert set(found) == {("bench", "one"), ("bench", "two")}
    row = found["bench", "two"]
    assert (row["path"], row["clip_start"], row["clip_key"]) == ("/videos/two.mp4", 1.0, "key-two")
    assert json.loads(row["questions"])[0]["text"] == "What?"
    assert list(read_asked(tmp_path / "elsewhere")) == []


def test_a_continued_run_adds_to_it_and_the_later_row_counts(tmp_path):
    run = Storage.at(tmp_path / "run")
    write_asked(planned_clips("one", "two"), run)
    write_asked(planned_clips("two", text="Really?"), run)
    write_asked(planned_clips(), run)
    assert len(list(read_asked(run))) == 2
    texts = [json.loads(row["questions"])[0]["text"] for row in asked_of(run).values()]
    assert sorted(texts) == ["Really?", "What?"]


def test_secrets_of_addresses_are_not_written(tmp_path):
    secret = "https://user:hunter2@host/{}.mp4?X-Amz-Signature=abcdef"
    write_asked(planned_clips("one", path=secret), Storage.at(tmp_path / "run"))
    (row,) = asked_of(tmp_path / "run").values()
    assert "hunter2" not in row["path"]
    assert "abcdef" not in row["path"]
