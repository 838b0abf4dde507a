import shutil

import pyarrow.parquet as pq
import pytest
from answer_rows import answer, has
from fake_clock import FakeClock
from faulty_storage import opener

from pipeline.progress.answers import AnswerWriter, read_answers
from pipeline.rows import ANSWER, to_table
from pipeline.storage.seal import DamagedFileError


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "answers"


def clips(folder):
    return read_answers(folder)["video_id"].to_pylist()


def test_resuming_keeps_finished_clips_and_drops_the_others_with_the_first_new_answer(folder):
    writer = AnswerWriter(folder)
    writer.add([answer("done", cell=cell) for cell in ("full", "tango")])
    writer.add([answer("unparsed", cell=cell, status="unparsed") for cell in ("full", "tango")])
    writer.add([answer("failed", cell=cell, status="answer_failed") for cell in ("full", "tango")])
    writer.add([answer("partial", cell="full")])
    writer.flush()
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
    writer = AnswerWriter(folder)
    writer.add([answer("failed", status="answer_failed")])
    writer.flush()
    resumed = AnswerWriter(folder)
    resumed.keep(resumed.finished(["full"]))
    other = AnswerWriter(folder)
    other.add([answer("of another driver")])
    other.flush()
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


@pytest.fixture
def sealed(folder):
    """One part with clips of several kinds; its bytes."""
    writer = AnswerWriter(folder)
    rows = [answer(f"v{i}", question=f"q{j}", text="é A" * i) for i in range(9) for j in range(3)]
    writer.add([row | {"choice": 1, "correct": i % 2 == 0} for i, row in enumerate(rows)])
    writer.flush()
    (part,) = folder.glob("*.parquet")
    return part


def test_a_damaged_part_is_renamed_and_its_clips_are_not_finished(folder, sealed, caplog):
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
            writer = AnswerWriter(folder)
            writer.add([answer(video)])
            writer.flush()
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
    writer = AnswerWriter(tmp_path / "old" / "answers")
    writer.add([answer("v1")])
    writer.flush()
    (tmp_path / "old").rename(tmp_path / "new")
    writer = AnswerWriter(tmp_path / "new" / "answers")
    assert len(writer.finished(["full"])) == 1
    writer.add([answer("v2")])
    writer.flush()
    assert clips(tmp_path / "new" / "answers") == ["v1", "v2"]
