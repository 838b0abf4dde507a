"""People's own videos: what folders, rows, options, answers and bounds mean, what is refused."""

import json
import logging
import tracemalloc
from pathlib import Path

import pytest

from tango_core.benchmarks import build_benchmark
from tango_core.types import Question

MALFORMED = json.loads(Path(__file__).with_name("malformed_rows.json").read_text())


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
        "a.mp4,And later?,red|blue,1,,8.01,,\n"
    )
    assert [item.video_id for item in items] == ["b.mp4", "a.mp4#1.5-4.0", "a.mp4#0.0-8.01"]
    assert [item.clip for item in items] == [None, (1.5, 4.0), (0.0, 8.01)]
    assert items[0].path == str(tmp_path / "b.mp4")
    named, counted, free = items[0].questions
    assert named == Question("q1", "What is it?", ("a dog", "a cat"), 0, {"task": "naming"})
    assert counted == Question("4", "How many?", ("1", "2", "3"), 1, {"task": "counting"})
    assert free == Question("5", "Describe it.")
    assert items[1].questions == (Question("3", "Which color?", ("red", "blue"), 1),)


def test_json_lines_may_hold_lists_numbers_and_nulls(read_table):
    row = {"video": "a.mp4", "question": "How\u2028many?", "options": [1, 2], "answer": 1}
    # A group may be like a column that the row has.
    row |= {"start": 0, "end": 2.5, "id": 7, "questions": 3, "note": None}
    (item,) = read_table("\n" + json.dumps(row, ensure_ascii=False) + "\n\n", "t.jsonl")
    assert item.clip == (0.0, 2.5)
    (question,) = item.questions
    assert question == Question("7", "How\u2028many?", ("1", "2"), 0, {"questions": "3"})


def test_an_answer_is_a_text_a_letter_or_an_index_from_0(load_row):
    answers = {"A": 0, "c": 2, "(B)": 1, "B.": 1, "blue": 1, 0: 0, "2": 2, " green ": 2}
    for answer, index in {**answers, "": None, None: None}.items():
        item = load_row(options="red|blue|green", answer=answer)
        assert item.questions[0].answer == index


def test_letters_in_front_of_all_options_are_taken_off(load_row):
    marked = load_row(options=["A. red", "B. blue"]).questions[0]
    assert marked.choices == ("red", "blue")
    assert load_row(options=["(A) red", "(B) blue"]).questions[0].choices == ("red", "blue")
    assert load_row(options=["A. red", "blue"]).questions[0].choices == ("A. red", "blue")


def test_answers_to_free_form_questions_are_not_scored_and_that_is_said(read_table, caplog):
    with caplog.at_level(logging.WARNING):
        (item,) = read_table("video,question,answer\na.mp4,What happens?,A dog runs.\n")
    assert item.questions[0].answer is None
    assert "1 free-form answer is not scored; a column match" in caplog.text
    assert item.questions[0].accepted == ()


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


@pytest.mark.parametrize(
    ("name", "text", "row", "message"),
    [("questions.csv", *case) for case in MALFORMED["custom_csv"]]
    + [("t.jsonl", *case) for case in MALFORMED["custom_jsonl"]],
)
def test_a_malformed_row_is_refused_in_one_line(read_table, tmp_path, name, text, row, message):
    with pytest.raises(ValueError, match=message) as error:
        read_table(text, name)
    assert str(error.value).startswith(f"{tmp_path / name}, row {row}: ")
    assert "\n" not in str(error.value)


def test_tables_without_rows_or_in_another_encoding_are_refused(read_table, tmp_path):
    with pytest.raises(ValueError, match=r"questions\.csv: no rows"):
        read_table("video,question\n")
    (tmp_path / "q.csv").write_bytes("video,question\na.mp4,Où?\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"q\.csv: not UTF-8 text"):
        build_benchmark("custom", root=str(tmp_path / "q.csv"))


@pytest.fixture
def folder(tmp_path):
    for name in ("b.mp4", "a.MKV", "notes.txt", ".hidden.mp4", "deep/er/c.webm"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("no video at all")
    for name in ("frames/00001.jpg", "frames/00002.jpg", "with_cover/d.mp4", "with_cover/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def test_a_folder_is_its_videos_and_folders_of_images_by_name(folder):
    items = list(build_benchmark("custom", root=str(folder)).items())
    names = [item.video_id for item in items]
    assert names == ["a.MKV", "b.mp4", "deep/er/c.webm", "frames", "with_cover/d.mp4"]
    assert all(item.questions == () and item.clip is None for item in items)
    assert items[2].path == str(folder / "deep/er/c.webm")
    assert items[:2] == list(build_benchmark("custom", root=str(folder)).items(2))


def test_a_folder_s_table_is_used_instead_of_its_files(folder):
    (folder / "questions.jsonl").write_text('{"video": "b.mp4", "question": "What?"}')
    (item,) = build_benchmark("custom", root=str(folder)).items()
    assert item.path == str(folder / "b.mp4")
    assert len(item.questions) == 1
    (folder / "questions.csv").write_text("video\nb.mp4\n")
    with pytest.raises(ValueError, match=r"both questions\.csv and questions\.jsonl are here"):
        build_benchmark("custom", root=str(folder))


def test_a_root_that_is_no_place_for_videos_is_refused(folder):
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="is neither a folder with videos"):
        build_benchmark("custom", root=str(empty))
    with pytest.raises(ValueError, match="is neither a folder with videos"):
        build_benchmark("custom", root=str(folder / "notes.txt"))
    with pytest.raises(ValueError, match=r"benchmark\.root is missing"):
        build_benchmark("custom")
    with pytest.raises(ValueError, match=r"unknown benchmark\.split 'train'"):
        build_benchmark("custom", root=str(folder), split="train")


def test_a_column_that_is_nearly_another_draws_one_warning(read_table, caplog):
    header = "video,question,option\n"
    with caplog.at_level(logging.WARNING):
        items = read_table(header + "a.mp4,What?,red|blue\nb.mp4,What?,red|blue\n")
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == [
        "column 'option' is taken for a group; did you mean 'options'?"
    ]
    assert items[0].questions == (Question("2", "What?", groups={"option": "red|blue"}),)


def test_a_large_table_takes_a_fraction_of_the_memory_of_its_clips(tmp_path):
    table = tmp_path / "table.csv"
    rows = (f"{number}.mp4,What happens?,red|blue,A\n" for number in range(5_000))
    table.write_text("video,question,options,answer\n" + "".join(rows))
    tracemalloc.start()
    try:
        benchmark = build_benchmark("custom", root=str(table))
        stored = tracemalloc.get_traced_memory()[0]
        clips = list(benchmark.items())
        in_objects = tracemalloc.get_traced_memory()[0] - stored
    finally:
        tracemalloc.stop()
    assert len(clips) == 5_000
    assert stored < in_objects / 4
