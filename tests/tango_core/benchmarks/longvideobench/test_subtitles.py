"""LongVideoBench with subtitles: what VLMEvalKit writes behind the frames for InternVL."""

import json

import pytest
from golden_files import GOLDEN_DIR
from releases import load, longvideobench_release

from tango_core.benchmarks.longvideobench import LongVideoBenchBenchmark, packed
from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.models import MODELS, model_entry
from tango_core.types import Question, Subtitles

GOLDEN = json.loads((GOLDEN_DIR / "longvideobench_subtitles.json").read_text(encoding="utf-8"))
QUESTION = Question("q", GOLDEN["question"], tuple(GOLDEN["candidates"]), 0)
PROTOCOLS = LongVideoBenchBenchmark.protocols
PROTOCOL = PROTOCOLS["vlmevalkit"]
FOR_INTERNVL = PROTOCOL.for_family("internvl")
ABOUT = "starting_timestamp_for_subtitles"


def shown(case):
    """The subtitles of a golden case, and what is known of its clip."""
    step = case["num_frames"] / (case["shown"] + 1)
    numbers = [int(number * step) for number in range(1, case["shown"] + 1)]
    length_s = case["num_frames"] / case["rate"]
    times = tuple(number / case["rate"] for number in numbers)
    text = json.dumps(GOLDEN["files"][case["file"]])
    watched = Watched(case["shown"], length_s, times=times)
    return packed(text, case[ABOUT], case["duration"]), watched


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda one: f"{one['file']}-{one['shown']}")
def test_the_words_are_vlmevalkits_byte_for_byte(case):
    prompt = FOR_INTERNVL.prompt(QUESTION, *shown(case))
    assert (prompt.before, prompt.after) == ("", case["behind_frames"])


def test_a_video_that_was_not_opened_gets_about_as_many_words():
    """So that an estimate counts them; frames are taken as evenly spread."""
    for case in GOLDEN["cases"]:
        subtitles, watched = shown(case)
        expected = len(FOR_INTERNVL.prompt(QUESTION, subtitles, watched).after)
        for length_s, nearly in ((watched.duration_s, 100), (0.0, 200)):
            blind = Watched(watched.num_frames, length_s)
            found = len(FOR_INTERNVL.prompt(QUESTION, subtitles, blind).after)
            assert found == pytest.approx(expected, abs=nearly)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', '[{"line": "x"}]', '[{"timestamp": [1]}]'])
def test_damaged_files_show_no_words(text):
    subtitles = packed(text, 0.0, 9.0)
    assert subtitles == Subtitles(None)
    words = FOR_INTERNVL.prompt(QUESTION, subtitles, Watched(4, 9.0))
    assert words == FOR_INTERNVL.render(QUESTION) == PROTOCOL.render(QUESTION)


def write(root, folder="subtitles", **changes):
    """A release in which one video has subtitles, which begin with its fifth second."""
    longvideobench_release(root)
    rows = json.loads((root / "lvb_val.json").read_text())
    rows = [{**row, ABOUT: 5.0, **changes} for row in rows]
    (root / "lvb_val.json").write_text(json.dumps(rows))
    (root / folder).mkdir(parents=True)
    cues = [{"timestamp": [6.0, 8.0], "text": "hello"}]
    (root / folder / "long-_1_en.json").write_text(json.dumps(cues))
    return root


@pytest.mark.parametrize("folder", ["subtitles", "longvideobench/subtitles"])
def test_clips_come_with_their_subtitles_in_the_video_s_own_seconds(folder, tmp_path):
    benchmark = load("longvideobench", write(tmp_path, folder), subtitles=True)
    found = {item.video_id: item.subtitles for item in benchmark.items()}
    assert found["short_2"] == Subtitles(None)
    assert json.loads(found["long-_1"].text) == [[1.0, 3.0, "hello"]]
    assert benchmark.protocol.name == "vlmevalkit+subtitles"
    assert {item.subtitles for item in load("longvideobench", tmp_path).items()} == {None}


def test_a_row_that_does_not_say_where_its_video_begins_is_named(tmp_path):
    benchmark = load("longvideobench", write(tmp_path, **{ABOUT: None}), subtitles=True)
    with pytest.raises(ValueError, match=r"question long-_1_0: starting_timestamp_for_subtitles m"):
        list(benchmark.items())


def test_they_are_refused_where_the_harness_shows_none(tmp_path):
    write(tmp_path)
    for name in MODELS:
        wording = model_entry(name).load_family().wording
        benchmark = load("longvideobench", tmp_path, subtitles=True)
        if wording == "internvl":
            benchmark.ask_family(wording)
            assert benchmark.protocol.subtitles is not None
            continue
        with pytest.raises(ValueError, match=r"shows subtitles of LongVideoBench to models of the"):
            benchmark.ask_family(wording)
        plain = load("longvideobench", tmp_path)
        plain.ask_family(wording)
        assert plain.protocol.render(QUESTION) == PROTOCOL.render(QUESTION)
    with pytest.raises(ValueError, match="under protocol lmms_eval has no prompt with subtitles"):
        load("longvideobench", tmp_path, subtitles=True, protocol="lmms_eval")


def test_both_sides_of_vlmevalkits_fix_can_be_asked():
    """Change 1588 swapped them for lists of frames; models that read videos see none in either."""
    case = GOLDEN["cases"][0]
    for version in ("vlmevalkit", "vlmevalkit@2026-05", "vlmevalkit@e8e78f05"):
        internvl = PROTOCOLS[version].for_family("internvl")
        assert internvl.prompt(QUESTION, *shown(case)).after == case["behind_frames"]
        assert internvl.prompt(QUESTION) == PROTOCOL.render(QUESTION)
        assert "change 1588" in internvl.subtitles.note
        assert PROTOCOLS[version].for_family("").subtitles is None
