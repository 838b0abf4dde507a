import pytest

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


def test_a_second_writer_goes_on_counting(folder):
    for video in ("v1", "v2"):
        writer = AnswerWriter(folder)
        writer.add([answer(video)])
        writer.flush()
    assert clips(folder) == ["v1", "v2"]


def test_resuming_keeps_finished_clips_and_drops_failed_and_partial_ones(folder):
    writer = AnswerWriter(folder)
    writer.add([answer("done", cell=cell) for cell in ("full", "tango")])
    writer.add([answer("unparsed", cell=cell, status="unparsed") for cell in ("full", "tango")])
    writer.add([answer("failed", cell=cell, status="answer_failed") for cell in ("full", "tango")])
    writer.add([answer("partial", cell="full")])
    writer.flush()
    finished = AnswerWriter(folder).resume(["full", "tango"])
    assert finished == {("b", "done"), ("b", "unparsed")}
    assert sorted(clips(folder)) == ["done", "done", "unparsed", "unparsed"]


def test_a_driver_that_died_while_resuming_leaves_no_answer_twice(folder):
    writer = AnswerWriter(folder)
    writer.add([answer("v1", text="old")])
    writer.flush()
    writer.add(
        [answer("v1", text="new")]
    )  # the kept rows were written, the old part not yet deleted
    writer.flush()
    AnswerWriter(folder).resume(["full"])
    assert read_answers(folder)["text"].to_pylist() == ["new"]
