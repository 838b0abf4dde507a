"""Video-MME: the releases' layouts, groups, ids and prompts."""

import pytest
from releases import (
    VIDEOMME_ROWS,
    asked,
    load,
    touch,
    videomme_release,
    videomme_vlmevalkit,
    write_json,
)


@pytest.mark.parametrize("write", [videomme_release, videomme_vlmevalkit])
def test_videomme_groups_the_questions_of_a_video(write, tmp_path):
    touch(tmp_path, "video/aAaAaAaAaA0.mp4", "video/-b_B-b_B-b1.mp4")
    items = list(load("videomme", write(tmp_path)).items())
    assert [(item.video_id, len(item.questions)) for item in items] == [
        ("aAaAaAaAaA0", 2),
        ("-b_B-b_B-b1", 2),
    ]
    assert items[0].path == str(tmp_path / "video" / "aAaAaAaAaA0.mp4")
    assert items[0].clip is None
    question = items[1].questions[0]
    assert question.text == "Which number is\nwritten?"
    assert question.choices == ("One.", "Two.", "Three.", "I can't tell.")
    assert question.answer == 0
    assert question.groups == {
        "duration": "long",
        "domain": "Knowledge",
        "sub_category": "Geography",
        "task_type": "OCR Problems",
    }


def test_videomme_question_ids_are_the_releases_where_it_has_them(tmp_path):
    release = load("videomme", videomme_release(tmp_path / "release"))
    assert [q.id for q in asked(release)] == ["001-1", "001-2", "002-1", "002-2"]
    table = load("videomme", videomme_vlmevalkit(tmp_path / "table"))
    assert [q.id for q in asked(table)][:2] == ["aAaAaAaAaA0-1", "aAaAaAaAaA0-2"]
    assert [record.index for record in table.records()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "file", ["data/aAaAaAaAaA0.mkv", "data/aAaAaAaAaA0.MP4", "aAaAaAaAaA0.mp4"]
)
def test_videomme_finds_videos_where_lmms_eval_and_people_put_them(file, tmp_path):
    touch(tmp_path, file)
    item = next(load("videomme", videomme_release(tmp_path)).items())
    assert item.path == str(tmp_path / file)


def test_videomme_below_hf_home_as_lmms_eval_leaves_it(tmp_path):
    snapshot = tmp_path / "hub" / "datasets--lmms-lab--Video-MME" / "snapshots" / "abc"
    videomme_release(snapshot)
    touch(tmp_path, "videomme/data/aAaAaAaAaA0.mp4")
    expected = str(tmp_path / "videomme" / "data" / "aAaAaAaAaA0.mp4")
    assert next(load("videomme", tmp_path).items()).path == expected
    assert next(load("videomme", tmp_path / "videomme").items()).path == expected


def test_videomme_prompt_is_the_release_text_in_both_layouts(tmp_path):
    first = VIDEOMME_ROWS[0]
    for write in (videomme_release, videomme_vlmevalkit):
        benchmark = load("videomme", write(tmp_path / write.__name__))
        text = benchmark.protocol.render(asked(benchmark)[0]).after
        assert text.endswith(
            "Question: " + "\n".join([first["question"], *first["options"]]) + "\nAnswer: "
        )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"answer": "E"}, "answer 'E' is not a letter of its 4 options"),
        ({"answer": ""}, "no answer"),
        ({"options": "A. One."}, "options is not a list: 'A. One.'"),
        ({"options": []}, r"options must be a list of texts, got \[\]"),
        ({"duration": None}, "no duration"),
    ],
)
def test_videomme_rows_that_are_no_questions(change, problem, tmp_path):
    write_json(tmp_path / "videomme.json", [{**VIDEOMME_ROWS[0], **change}])
    with pytest.raises(ValueError, match=problem):
        next(load("videomme", tmp_path).items())


def test_videomme_options_in_another_form_are_noted(tmp_path):
    options = ["(A) One", "(B) Two", "(C) Three", "(D) Four"]
    write_json(tmp_path / "videomme.json", [{**VIDEOMME_ROWS[0], "options": options}])
    record = load("videomme", tmp_path).records()[0]
    assert record.question.choices == ("One", "Two", "Three", "Four")
    assert record.notes == ("options are not written 'A. text'; the prompt has them in that form",)


def test_a_repository_folder_of_the_hub_cache_stands_for_its_snapshot(tmp_path):
    videomme_release(tmp_path / "snapshots" / "abc")
    item = next(load("videomme", tmp_path).items())
    assert item.path.startswith(str(tmp_path / "snapshots" / "abc" / "video"))
