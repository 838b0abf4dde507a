import pytest
from fake_clock import FakeClock
from faulty_storage import opener

from pipeline.answers import AnswerWriter, read_answers


def answer(video, question="q1", cell="full", status="ok", text="A"):
    return {
        "benchmark": "b",
        "video_id": video,
        "question_id": question,
        "cell": cell,
        "status": status,
        "text": text,
    }


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "answers"


def clips(folder):
    return read_answers(folder)["video_id"].to_pylist()


def test_nothing_is_visible_before_a_flush_and_everything_after(folder):
    writer = AnswerWriter(folder)
    writer.add([answer("v1")])
    assert clips(folder) == []
    writer.flush()
    assert clips(folder) == ["v1"]
    assert read_answers(folder)["correct"].to_pylist() == [None], "absent columns are null"


def test_a_damaged_part_is_named_with_the_remedy(folder):
    writer = AnswerWriter(folder)
    writer.add([answer("v1")])
    writer.flush()
    part = folder / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"part-00000\.parquet is damaged .*delete it.*--resume"):
        read_answers(folder)


def test_a_second_writer_goes_on_counting(folder):
    for video in ("v1", "v2"):
        writer = AnswerWriter(folder)
        writer.add([answer(video)])
        writer.flush()
    assert clips(folder) == ["v1", "v2"]


def test_resuming_keeps_finished_clips_and_drops_the_others_with_the_first_new_answer(folder):
    writer = AnswerWriter(folder)
    writer.add([answer("done", cell=cell) for cell in ("full", "tango")])
    writer.add([answer("unparsed", cell=cell, status="unparsed") for cell in ("full", "tango")])
    writer.add([answer("failed", cell=cell, status="answer_failed") for cell in ("full", "tango")])
    writer.add([answer("partial", cell="full")])
    writer.flush()
    resumed = AnswerWriter(folder)
    finished = resumed.finished(["full", "tango"])
    assert finished == {("b", "done"): {"q1"}, ("b", "unparsed"): {"q1"}}
    resumed.keep(finished)
    resumed.flush()
    assert len(clips(folder)) == 7, "a job that never starts leaves everything as it was"
    resumed.add([answer("failed", cell=cell) for cell in ("full", "tango")])
    resumed.flush()
    assert sorted(clips(folder)) == ["done"] * 2 + ["failed"] * 2 + ["unparsed"] * 2


def test_a_driver_that_died_while_dropping_leaves_no_answer_twice(folder):
    writer = AnswerWriter(folder)
    writer.add([answer("v1", text="old")])
    writer.flush()
    writer.add([answer("v1", text="new")])  # the kept rows were written, the old not yet deleted
    writer.flush()
    resumed = AnswerWriter(folder)
    resumed.keep(resumed.finished(["full"]))
    resumed.add([answer("v2")])
    resumed.flush()
    assert read_answers(folder)["text"].to_pylist() == ["new", "A"]


def test_a_run_without_answers_is_still_a_run(folder):
    AnswerWriter(folder).flush()
    assert read_answers(folder).num_rows == 0
    assert len(list(folder.glob("*.parquet"))) == 1


def test_answers_are_written_every_ten_seconds_of_the_clock(folder):
    clock = FakeClock()
    writer = AnswerWriter(folder, clock)
    writer.add([answer("v1")])
    clock.sleep(10)
    writer.add([answer("v2")])
    assert clips(folder) == []
    clock.sleep(0.1)
    writer.add([answer("v3")])
    assert clips(folder) == ["v1", "v2", "v3"]


def test_a_disk_that_fails_loses_no_answer_that_is_still_pending(folder):
    faults = iter([OSError("full"), None])

    def fail_once(path):
        if fault := next(faults, None):
            raise fault

    writer = AnswerWriter(opener(fail_once)(folder))
    writer.add([answer("v1")])
    with pytest.raises(OSError, match="full"):
        writer.flush()
    writer.flush()
    assert clips(folder) == ["v1"]
