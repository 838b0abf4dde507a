"""People's own videos: what rows, options, answers and bounds mean."""

import json
import logging

import pytest

from tango_core.benchmarks import build_benchmark
from tango_core.benchmarks.custom import PROTOCOL
from tango_core.types import Question


@pytest.fixture
def load_row(read_table):
    """Read the one question of a row given as fields."""

    def read(**fields):
        (item,) = read_table(
            json.dumps({"video": "a.mp4", "question": "What?", **fields}), "t.jsonl"
        )
        return item

    return read


def test_rows_about_one_clip_become_one_item(read_table, tmp_path):
    items = read_table(
        "video,question,options,answer,start,end,id,task\n"
        "b.mp4,What is it?,a dog|a cat,A,,,q1,naming\n"
        'a.mp4,Which color?,"[""red"", ""blue""]",blue,1.5,4,,\n'
        "b.mp4,How many?,1|2|3,2,,,,counting\n"
        "b.mp4,Describe it.,,,,,,\n"
        "a.mp4,And later?,red|blue,1,4,8,,\n"
    )
    assert [item.video_id for item in items] == ["b.mp4", "a.mp4#1.5-4.0", "a.mp4#4.0-8.0"]
    assert [item.clip for item in items] == [None, (1.5, 4.0), (4.0, 8.0)]
    assert items[0].path == str(tmp_path / "b.mp4")
    named, counted, free = items[0].questions
    assert named == Question("q1", "What is it?", ("a dog", "a cat"), 0, {"task": "naming"})
    assert counted == Question("4", "How many?", ("1", "2", "3"), 1, {"task": "counting"})
    assert free == Question("5", "Describe it.")
    assert items[1].questions == (Question("3", "Which color?", ("red", "blue"), 1),)


def test_json_lines_may_hold_lists_numbers_and_nulls(read_table):
    row = {"video": "a.mp4", "question": "How\u2028many?", "options": [1, 2], "answer": 1}
    row |= {"start": 0, "end": 2.5, "id": 7, "level": 3, "note": None}
    (item,) = read_table("\n" + json.dumps(row, ensure_ascii=False) + "\n\n", "t.jsonl")
    assert item.clip == (0.0, 2.5)
    (question,) = item.questions
    assert question == Question("7", "How\u2028many?", ("1", "2"), 0, {"level": "3"})


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ("A", 0),
        ("c", 2),
        ("(B)", 1),
        ("B.", 1),
        ("blue", 1),
        (0, 0),
        ("2", 2),
        (" green ", 2),
        ("", None),
        (None, None),
    ],
)
def test_an_answer_is_a_text_a_letter_or_an_index_from_0(load_row, answer, index):
    item = load_row(options="red|blue|green", answer=answer)
    assert item.questions[0].answer == index


def test_ids_may_be_numbers_from_0(read_table):
    rows = [{"video": "a.mp4", "question": "What?", "id": number} for number in (0, 1, None)]
    (item,) = read_table("\n".join(map(json.dumps, rows)), "t.jsonl")
    assert [question.id for question in item.questions] == ["0", "1", "3"]


def test_letters_in_front_of_all_options_are_taken_off(load_row):
    marked = load_row(options=["A. red", "B. blue"]).questions[0]
    assert marked.choices == ("red", "blue")
    assert load_row(options=["(A) red", "(B) blue"]).questions[0].choices == ("red", "blue")
    assert load_row(options=["A. red", "blue"]).questions[0].choices == ("A. red", "blue")


def test_an_end_alone_starts_at_0(load_row):
    assert load_row(end="3").clip == (0.0, 3.0)


def test_absolute_paths_and_addresses_stay_as_they_are(read_table, tmp_path):
    items = read_table(f"video\n{tmp_path}/x.mp4\ns3://bucket/y.mp4\n../z.mp4\n")
    assert [item.path for item in items] == [
        f"{tmp_path}/x.mp4",
        "s3://bucket/y.mp4",
        f"{tmp_path}/../z.mp4",
    ]
    assert all(item.questions == () for item in items)


def test_a_video_that_does_not_exist_is_still_an_item(read_table):
    (item,) = read_table("video,question\nnowhere.mp4,What?\n")
    assert item.path.endswith("nowhere.mp4")
    assert len(item.questions) == 1


def test_answers_to_free_form_questions_are_not_scored_and_that_is_said(read_table, caplog):
    with caplog.at_level(logging.WARNING):
        (item,) = read_table("video,question,answer\na.mp4,What happens?,A dog runs.\n")
    assert item.questions[0].answer is None
    assert "1 free-form answer is not scored; a column match" in caplog.text
    assert item.questions[0].accepted == ()
    with caplog.at_level(logging.WARNING):
        read_table("video,question,answer\na.mp4,What happens?,A dog runs.\na.mp4,Where?,At sea.\n")
    assert "2 free-form answers are not scored; a column match" in caplog.text


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("a red cup", ("a red cup",)),
        ("a cup | a mug", ("a cup", "a mug")),
        ('["cup", "mug|glass"]', ("cup", "mug|glass")),
        (["cup", 3], ("cup", "3")),
        (3, ("3",)),
    ],
)
@pytest.mark.parametrize("match", ["exact", "contains"])
def test_a_free_form_answer_with_a_match_is_scored(load_row, answer, accepted, match, caplog):
    with caplog.at_level(logging.WARNING):
        (question,) = load_row(answer=answer, match=match).questions
    assert (question.accepted, question.match) == (accepted, match)
    assert (question.answer, question.groups) == (None, {})
    assert not caplog.records


def test_a_match_may_stand_beside_rows_that_leave_it_empty(read_table):
    (item,) = read_table(
        "video,question,options,answer,match\n"
        "a.mp4,Which?,red|blue,B,\na.mp4,What?,,red,exact\na.mp4,Describe it.,,,\n"
    )
    assert [question.answer for question in item.questions] == [1, None, None]
    assert [question.accepted for question in item.questions] == [(), ("red",), ()]


def test_a_spreadsheet_s_byte_order_mark_and_line_ends_are_understood(read_table):
    (item,) = read_table("\ufeffvideo, question \r\na.mp4,What?\r\n")
    assert item.questions[0].text == "What?"


def test_the_prompt_lists_options_by_line_and_leaves_free_questions_alone():
    prompt = PROTOCOL.render(Question("q", "What is it?", ("a dog", "a cat"), 0))
    assert prompt.before == ""
    assert prompt.after.split("\n") == [
        "What is it?",
        "A. a dog",
        "B. a cat",
        "Answer with the option's letter from the given choices directly.",
    ]
    assert PROTOCOL.render(Question("q", "Describe it.")).after == "Describe it."


def test_replies_are_read_by_the_general_rules_and_free_replies_name_no_option():
    question = Question("q", "What is it?", ("a dog", "a cat"), 0)
    assert PROTOCOL.read_choice("The answer is B.", question) == 1
    assert PROTOCOL.read_choice("I cannot tell.", question) is None
    assert PROTOCOL.read_choice("B", Question("q", "Describe it.")) is None


def test_clips_that_differ_by_a_hundredth_of_a_second_have_two_ids(tmp_path):
    table = tmp_path / "q.csv"
    table.write_text(
        "video,question,start,end\na.mp4,one?,12345.67,12350\na.mp4,two?,12345.71,12350\n"
    )
    ids = [item.video_id for item in build_benchmark("custom", root=str(table)).items()]
    assert len(set(ids)) == 2


def test_a_column_that_is_nearly_another_draws_one_warning(read_table, caplog):
    header = "video,question,option\n"
    with caplog.at_level(logging.WARNING):
        items = read_table(header + "a.mp4,What?,red|blue\nb.mp4,What?,red|blue\n")
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == [
        "column 'option' is taken for a group; did you mean 'options'?"
    ]
    assert items[0].questions == (Question("2", "What?", groups={"option": "red|blue"}),)


def test_a_line_of_json_that_has_the_column_may_have_a_group_like_it(read_table, caplog):
    with caplog.at_level(logging.WARNING):
        read_table(json.dumps({"video": "a.mp4", "question": "What?", "questions": 3}), "t.jsonl")
    assert not caplog.records


def test_a_cell_that_a_data_frame_left_empty_is_no_group_and_no_id(read_table):
    """`json.dumps` of a frame's rows writes NaN there."""
    rows = [{"video": "a.mp4", "question": "What?", "id": float("nan"), "type": float("nan")}] * 2
    (item,) = read_table("\n".join(map(json.dumps, rows)), "t.jsonl")
    assert [(one.id, dict(one.groups)) for one in item.questions] == [("1", {}), ("2", {})]
