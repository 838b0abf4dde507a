"""LVBench: both tables, the prompt byte for byte, the rule of lmms-eval."""

import json

import pytest
from golden_files import GOLDEN_DIR
from newer_releases import LVBENCH_ROWS, lvbench_authors, lvbench_lines, lvbench_release
from releases import asked, load, touch

from tango_core.benchmarks.base import Defect
from tango_core.benchmarks.lvbench import LVBenchBenchmark
from tango_core.types import Question

GOLDEN = json.loads((GOLDEN_DIR / "prompts_tempcompass_lvbench.json").read_text(encoding="utf-8"))
LAYOUTS = [lvbench_authors, lvbench_release, lvbench_lines]
PROTOCOLS = LVBenchBenchmark.protocols


@pytest.mark.parametrize("write", LAYOUTS)
def test_every_layout_gives_the_same_clips_and_questions(write, tmp_path):
    touch(tmp_path, "videos/-a.b-c_d-e1.mp4")
    items = list(load("lvbench", write(tmp_path)).items())
    assert [(item.video_id, len(item.questions)) for item in items] == [
        ("Cm73ma6Ibcs", 2),
        ("-a.b-c_d-e1", 1),
    ]
    assert items[1].path == str(tmp_path / "videos" / "-a.b-c_d-e1.mp4")
    first = items[0].questions[0]
    assert (first.text, first.choices, first.answer) == (
        "How many\ncats?",
        ("One", "Two", "Three", "4"),
        2,
    )


@pytest.mark.parametrize(
    "file", ["Cm73ma6Ibcs.mp4", "all_videos/Cm73ma6Ibcs.mp4", "lvbench/videos/Cm73ma6Ibcs.mkv"]
)
def test_videos_are_found_where_people_put_them(file, tmp_path):
    touch(tmp_path, file)
    assert next(load("lvbench", lvbench_authors(tmp_path)).items()).path == str(tmp_path / file)


def test_ids_are_the_releases_where_it_has_them(tmp_path):
    authors = asked(load("lvbench", lvbench_authors(tmp_path / "a")))
    assert [one.id for one in authors] == ["0", "1", "2"]
    table = asked(load("lvbench", lvbench_release(tmp_path / "b")))
    assert [one.id for one in table] == ["Cm73ma6Ibcs-1", "Cm73ma6Ibcs-2", "-a.b-c_d-e1-1"]


@pytest.mark.parametrize("case", [0, 1], ids=["options in a column", "options in the question"])
@pytest.mark.parametrize("protocol", ["vlmevalkit", "lmms_eval"])
def test_the_prompt_is_lmms_evals_byte_for_byte(case, protocol, tmp_path):
    row = {"video_path": "a.mp4", **GOLDEN["lvbench"][case]["row"]}
    (tmp_path / "lvbench.json").write_text(json.dumps([row]))
    benchmark = load("lvbench", tmp_path, protocol=protocol)
    prompt = benchmark.protocol.render(asked(benchmark)[0])
    assert (prompt.before, prompt.after) == ("", GOLDEN["lvbench"][case]["lmms_eval"])


def test_the_score_is_lmms_evals_and_vlmevalkit_has_none():
    choices = ("1636", "1366", "1363", "1633")
    for case in GOLDEN["scores"]["lvbench_letter"]:
        for right, letter in enumerate("ABCD"):
            one = Question("q", "Which?", choices, right)
            expected = float(case["lmms_eval"] == letter)
            assert PROTOCOLS["lmms_eval"].harness_score(case["reply"], one) == expected
    assert PROTOCOLS["vlmevalkit"].harness_score is None


def test_our_reading_also_knows_an_options_text():
    one = Question("q", "Which?", ("1636", "1366", "1363", "1633"), 3)
    read = PROTOCOLS["lmms_eval"].read_choice
    replies = {"1633": 3, "d": 3, "A or D": None, "(D) 1633": 3, "I see it": None}
    assert {reply: read(reply, one) for reply in replies} == replies


def test_malformed_rows_are_named(tmp_path):
    video = json.loads(json.dumps(LVBENCH_ROWS[0]))
    video["qa"][0]["answer"] = "E"
    video["qa"][1]["question"] = "Who wins?"
    (tmp_path / "video_info.meta.jsonl").write_text(json.dumps(video))
    entries = list(load("lvbench", tmp_path).entries())
    assert [entry.problem for entry in entries if isinstance(entry, Defect)] == [
        "answer 'E' is not a letter of its 4 options",
        "the question has no lines '(A) ..' and there is no list of options",
    ]
    video["qa"] = "none"
    (tmp_path / "video_info.meta.jsonl").write_text(json.dumps(video))
    with pytest.raises(ValueError, match=r"line 1: qa must be a list of questions") as error:
        load("lvbench", tmp_path)
    assert "\n" not in str(error.value)
