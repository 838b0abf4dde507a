"""Video-MME with subtitles: the lines that each harness chooses, and the words around them."""

import json
from dataclasses import replace

import pytest
from golden_files import GOLDEN_DIR
from releases import load, mlvu_release, touch, videomme_release

from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.benchmarks.protocols.subtitles import Watched, cues_of_srt
from tango_core.benchmarks.videomme import VideoMMEBenchmark
from tango_core.types import Question, Subtitles

GOLDEN = json.loads((GOLDEN_DIR / "subtitles.json").read_text(encoding="utf-8"))
PROTOCOLS = VideoMMEBenchmark.protocols
QUESTION = Question("q", "What does he hold?", ("A cup.", "A bag."), 0)
TAG = '<font color="white" size=".72c">{}</font>'
SRT = f"1\n00:00:01,000 --> 00:00:02,500\n{TAG.format('Hello')}\n\n"


def chosen(protocol, text, watched):
    """The lines that a protocol shows."""
    return PROTOCOLS[protocol].subtitles.choose(Subtitles(text), watched)


def watched_of(case, seen=8):
    """A clip whose last frame was shown, as the golden case describes it."""
    frames, rate = case["num_frames"], case["rate"]
    return Watched.of(case.get("shown", seen), frames / rate, (frames - 1) / rate)


@pytest.mark.parametrize("protocol", ["vlmevalkit", "lmms_eval", "lmms_eval_llava_vid"])
def test_the_lines_are_the_harnesses(protocol):
    cases = [case for case in GOLDEN["cases"] if protocol in case]
    assert len(cases) >= 7
    for case in cases:
        text = GOLDEN["files"][case["file"]]
        watched = watched_of(case)
        assert watched.rate == case["rate"]
        assert chosen(protocol, text, watched) == case[protocol]


def test_without_the_rate_the_lines_differ_by_a_few_at_the_edges_of_cues():
    for case in GOLDEN["cases"]:
        for protocol in PROTOCOLS.keys() & case.keys():
            text = GOLDEN["files"][case["file"]]
            ours = chosen(protocol, text, replace(watched_of(case), rate=None)).split("\n")
            theirs = case[protocol].split("\n")
            assert len(set(ours) ^ set(theirs)) <= 2
            assert abs(len(ours) - len(theirs)) <= 2


def test_where_the_model_is_shown_vlmevalkits_frames_the_lines_are_exact_without_the_rate():
    """As InternVL is; its last frame is not the video's, which would tell the rate."""
    for case in (one for one in GOLDEN["cases"] if "vlmevalkit" in one):
        blind = replace(watched_of(case), rate=None)
        step = case["num_frames"] / (blind.num_frames + 1)
        times = [int(number * step) / case["rate"] for number in range(1, blind.num_frames + 1)]
        text = GOLDEN["files"][case["file"]]
        assert chosen("vlmevalkit", text, replace(blind, times=tuple(times))) == case["vlmevalkit"]
        others = tuple(time / 2 for time in times)
        assert chosen("vlmevalkit", text, replace(blind, times=others)) == chosen(
            "vlmevalkit", text, blind
        )


@pytest.mark.parametrize(
    ("duration_s", "last_shown_s", "rate"),
    [
        (4.0, 4.0 - 1 / 24, 24.0),
        (3600.0, 3600.0 - 1 / 25, 25.0),
        (1001 / 30, 1001 / 30 - 1001 / 30000, 30000 / 1001),
        (4.0, 3.5, None),
        (4.0, 4.0, None),
        (4.0, 4.2, None),
        (4.0, 3.97, None),
    ],
)
def test_the_rate_follows_from_a_last_frame_that_ends_the_clip(duration_s, last_shown_s, rate):
    assert Watched.of(8, duration_s, last_shown_s).rate == rate


def test_the_words_around_them():
    watched = Watched(4, 5.0)
    prompts = {
        name: PROTOCOLS[name].prompt(QUESTION, Subtitles(SRT), watched)
        for name in ("vlmevalkit", "lmms_eval", "lmms_eval_llava_vid", "lmms_eval_qwen3_vl")
    }
    assert {prompt.before for prompt in prompts.values()} == {""}
    assert prompts["vlmevalkit"].after == (
        "\nThese are the frames of a video. This video's subtitles are listed below:\nHello\n"
        "Select the best answer to the following multiple-choice question based on the video. "
        "Respond with only the letter (A, B, C, or D) of the correct option.\n"
        "Question: What does he hold?\nA. A cup.\nB. A bag.\nAnswer: "
    )
    shown = "This video's subtitles are listed below: \nHello\n"
    asked = (
        "Select the best answer to the following multiple-choice question based on the video and "
        "the subtitles. Respond with only the letter (A, B, C, or D) of the correct option.\n"
        "What does he hold?\nA. A cup.\nB. A bag.\nThe best answer is:"
    )
    assert prompts["lmms_eval"].after == prompts["lmms_eval_llava_vid"].after == shown + asked
    assert prompts["lmms_eval_qwen3_vl"].after == (
        f"{shown}Question: What does he hold?\nOptions:\nA. A cup.\nB. A bag.\n"
        "Answer with the option letter only."
    )


def test_a_video_without_subtitles_is_told_in_the_harnesses_words():
    watched = Watched(4, 5.0)
    asked = {name: PROTOCOLS[name].prompt(QUESTION, Subtitles(None), watched) for name in PROTOCOLS}
    assert "listed below:\n\nSelect the best" in asked["vlmevalkit"].after
    assert "listed below: \nNo subtitles available\nSelect" in asked["lmms_eval"].after
    assert chosen("lmms_eval", "", watched) == chosen("vlmevalkit", "", watched) == ""


def test_without_subtitles_nothing_has_changed():
    for protocol in PROTOCOLS.values():
        assert protocol.prompt(QUESTION, None, Watched(4, 5.0)) == protocol.render(QUESTION)


@pytest.mark.parametrize(
    ("text", "cues"),
    [
        ("1\r\n00:00:01.5 --> 00:00:02,25 X1:3\r\na\r\n\r\n2\r\n", [(1500, 2250, "a||2|")]),
        ("00:00:01,000 --> 00:00:02,000\n", [(1000, 2000, "")]),
        ("nothing at all\n\n", []),
        ("\ufeff1\n01:00:00,001 --> 01:00:00,002\nb", [(3600001, 3600002, "b")]),
    ],
)
def test_odd_files_are_read_all_the_same(text, cues):
    found = [(cue.start_ms, cue.end_ms, "|".join(cue.lines)) for cue in cues_of_srt(text)]
    assert found == cues
    for protocol in ("vlmevalkit", "lmms_eval"):
        chosen(protocol, text, Watched(8, 4.0))


class TestBenchmark:
    def test_clips_come_with_their_subtitles_only_where_they_are_to_be_shown(self, tmp_path):
        root = videomme_release(tmp_path)
        touch(root, "video/aAaAaAaAaA0.mp4")
        (root / "subtitle").mkdir()
        (root / "subtitle" / "aAaAaAaAaA0.srt").write_text(SRT)
        plain = list(load("videomme", root).items())
        assert [item.subtitles for item in plain] == [None, None]
        benchmark = load("videomme", root, subtitles=True)
        shown = list(benchmark.items())
        assert [item.subtitles for item in shown] == [Subtitles(SRT), Subtitles(None)]
        assert [replace(item, subtitles=None) for item in shown] == plain
        assert benchmark.protocol.name == "vlmevalkit+subtitles"

    def test_bytes_that_are_no_text_do_not_end_a_job(self, tmp_path):
        root = videomme_release(tmp_path)
        (root / "subtitle").mkdir()
        (root / "subtitle" / "aAaAaAaAaA0.srt").write_bytes(
            b"\xef\xbb\xbf" + SRT.encode() + b"\xff"
        )
        first = next(load("videomme", root, subtitles=True).items())
        assert first.subtitles == Subtitles(SRT + "\ufffd")

    @pytest.mark.parametrize("folder", ["subtitle", "subtitles", "videomme/subtitle"])
    def test_they_are_found_where_the_harnesses_put_them(self, folder, tmp_path):
        root = videomme_release(tmp_path)
        (root / folder).mkdir(parents=True)
        (root / folder / "-b_B-b_B-b1.srt").write_text(SRT)
        benchmark = load("videomme", root, subtitles=True, protocol="lmms_eval@0.7.3")
        assert [item.subtitles for item in benchmark.items()][1] == Subtitles(SRT)
        assert benchmark.protocol.name == "lmms_eval@0.7.3+subtitles"

    def test_a_release_without_any_is_refused_with_the_command_that_fetches_them(self, tmp_path):
        root = videomme_release(tmp_path)
        with pytest.raises(
            FileNotFoundError, match=r"benchmark\.subtitles true: no subtitles of"
        ) as error:
            load("videomme", root, subtitles=True)
        command = f"tango data get videomme --root {root} --only subtitles"
        assert str(error.value).endswith(command)

    def test_a_benchmark_without_a_prompt_for_them_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"benchmark\.subtitles true: MLVU under protocol"):
            load("mlvu", mlvu_release(tmp_path), subtitles=True)


@pytest.mark.parametrize(
    ("name", "harness"),
    [
        ("vlmevalkit@2026-05", "vlmevalkit"),
        ("vlmevalkit+subtitles", "vlmevalkit+subtitles"),
        ("vlmevalkit@2026-05+subtitles", "vlmevalkit+subtitles"),
    ],
)
def test_answers_with_subtitles_are_those_of_another_protocol(name, harness):
    """So they are never paired with answers without, nor set beside published ones."""
    assert harness_of(name) == harness
