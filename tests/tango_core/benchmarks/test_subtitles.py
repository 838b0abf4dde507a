"""Questions with subtitles: the lines that each harness chooses, and the words around them."""

import json
from dataclasses import replace

import pytest
from golden_files import GOLDEN_DIR
from releases import (
    OPTIONS,
    VIDEOMME_V2_ROWS,
    load,
    longvideobench_release,
    mlvu_release,
    touch,
    videomme_release,
    videomme_v2_release,
)

from tango_core.benchmarks import benchmark_class
from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.benchmarks.public.longvideobench import packed
from tango_core.models import MODELS, model_entry
from tango_core.types import Question, Subtitles

GOLDEN = json.loads((GOLDEN_DIR / "subtitles.json").read_text(encoding="utf-8"))
LONG = json.loads((GOLDEN_DIR / "longvideobench_subtitles.json").read_text(encoding="utf-8"))
VIDEOMME, V2, LONGVIDEOBENCH = (
    benchmark_class(name).protocols for name in ("videomme", "videomme_v2", "longvideobench")
)
QUESTION = Question("q", "What does he hold?", ("A cup.", "A bag."), 0)
TAG = '<font color="white" size=".72c">{}</font>'
SRT = f"1\n00:00:01,000 --> 00:00:02,500\n{TAG.format('Hello')}\n\n"


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', '[{"line": "x"}]', '[{"timestamp": [1]}]'])
def test_damaged_files_of_longvideobench_show_no_words(text):
    assert packed(text, 0.0, 9.0) == Subtitles(None)


def chosen(protocol, text, watched):
    """The lines of Video-MME that a protocol shows."""
    return VIDEOMME[protocol].subtitles.choose(Subtitles(text), watched)


def watched_of(case):
    """A clip whose last frame was shown, as the golden case describes it."""
    frames, rate = case["num_frames"], case["rate"]
    return Watched.of(case.get("shown", 8), frames / rate, (frames - 1) / rate)


class TestVideoMME:
    @pytest.mark.parametrize("protocol", ["vlmevalkit", "lmms_eval", "lmms_eval_llava_vid"])
    def test_the_lines_are_the_harnesses(self, protocol):
        cases = [case for case in GOLDEN["cases"] if protocol in case]
        assert len(cases) >= 7
        for case in cases:
            text, watched = GOLDEN["files"][case["file"]], watched_of(case)
            assert watched.rate == case["rate"]
            assert chosen(protocol, text, watched) == case[protocol]
            # Without the rate they differ by a few at the edges of cues.
            ours = chosen(protocol, text, replace(watched, rate=None)).split("\n")
            theirs = case[protocol].split("\n")
            assert len(set(ours) ^ set(theirs)) <= 2
            assert abs(len(ours) - len(theirs)) <= 2

    @pytest.mark.parametrize(
        ("duration_s", "last_shown_s", "rate"),
        [
            (4.0, 4.0 - 1 / 24, 24.0),
            (3600.0, 3600.0 - 1 / 25, 25.0),
            (1001 / 30, 1001 / 30 - 1001 / 30000, 30000 / 1001),
            (4.0, 3.5, None),
            (4.0, 4.0, None),
            (4.0, 3.97, None),
        ],
    )
    def test_the_rate_follows_from_a_last_frame_that_ends_the_clip(
        self, duration_s, last_shown_s, rate
    ):
        assert Watched.of(8, duration_s, last_shown_s).rate == rate

    def test_the_words_around_them(self):
        def asked(name, text):
            return VIDEOMME[name].prompt(QUESTION, Subtitles(text), Watched(4, 5.0)).after

        # `test_protocols.py` compares the words of questions without subtitles.
        plain = {name: protocol.render(QUESTION).after for name, protocol in VIDEOMME.items()}
        opening, listed = "\nThese are the frames of a video. ", "subtitles are listed below:"
        behind = plain["vlmevalkit"].removeprefix(opening)
        assert asked("vlmevalkit", SRT) == f"{opening}This video's {listed}\nHello\n{behind}"
        shown = f"This video's {listed} \nHello\n"
        assert asked("lmms_eval", SRT) == shown + plain["lmms_eval_llava_vid"]
        assert asked("lmms_eval_llava_vid", SRT) == shown + plain["lmms_eval_llava_vid"]
        assert asked("lmms_eval_qwen3_vl", SRT) == (
            f"{shown}Question: What does he hold?\nOptions:\nA. A cup.\nB. A bag.\n"
            "Answer with the option letter only."
        )
        # A video without a file.
        assert "listed below:\n\nSelect the best" in asked("vlmevalkit", None)
        assert "listed below: \nNo subtitles available\nSelect" in asked("lmms_eval", None)
        assert chosen("lmms_eval", "", Watched(4, 5.0)) == ""


JSONL = "".join(json.dumps({"text": word}) + "\n" for word in ("Hello", "you,", "there."))
ALL_WORDS = "This video's subtitles are listed below:\nHello you, there.\n"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("vlmevalkit", f"These are the frames of a video. {ALL_WORDS}", "Select the best answer"),
        ("lmms_eval", f"{ALL_WORDS}\n", "Select the best answer"),
        ("lmms_eval_qwen3_vl", f"{ALL_WORDS}\n", "Answer with the option letter only."),
    ],
)
def test_all_words_of_videomme_v2_stand_where_each_harness_puts_them(tmp_path, name, before, after):
    question = next(load("videomme_v2", videomme_v2_release(tmp_path)).items()).questions[0]
    prompt = V2[name].prompt(question, Subtitles(JSONL), Watched(4, 5.0))
    asked = f"Question: {VIDEOMME_V2_ROWS[0]['question']}\n{OPTIONS}\n"
    assert prompt.after.startswith(before + asked + after)


ABOUT = "starting_timestamp_for_subtitles"
ASKED = Question("q", LONG["question"], tuple(LONG["candidates"]), 0)


def long_case(case):
    """The subtitles of a golden case of LongVideoBench, and what is known of its clip."""
    step = case["num_frames"] / (case["shown"] + 1)
    times = tuple(int(n * step) / case["rate"] for n in range(1, case["shown"] + 1))
    text = json.dumps(LONG["files"][case["file"]])
    watched = Watched(case["shown"], case["num_frames"] / case["rate"], times=times)
    return packed(text, case[ABOUT], case["duration"]), watched


class TestLongVideoBench:
    @pytest.mark.parametrize("case", LONG["cases"], ids=lambda one: f"{one['file']}-{one['shown']}")
    def test_the_words_are_vlmevalkits_byte_for_byte(self, case):
        subtitles, watched = long_case(case)
        # Change 1588 swapped what is asked for lists of frames: both can be asked.
        for version in ("vlmevalkit", "vlmevalkit@2026-05", "vlmevalkit@e8e78f05"):
            internvl = LONGVIDEOBENCH[version].for_family("internvl")
            prompt = internvl.prompt(ASKED, subtitles, watched)
            assert (prompt.before, prompt.after) == ("", case["behind_frames"])
            assert internvl.prompt(ASKED) == LONGVIDEOBENCH["vlmevalkit"].render(ASKED)
            assert "change 1588" in internvl.subtitles.note
            assert LONGVIDEOBENCH[version].for_family("").subtitles is None
        # A video that was not opened gets about as many words, so that an estimate counts them.
        for length_s, nearly in ((watched.duration_s, 100), (0.0, 200)):
            blind = internvl.prompt(ASKED, subtitles, Watched(watched.num_frames, length_s))
            assert len(blind.after) == pytest.approx(len(prompt.after), abs=nearly)

    def write(self, root, **changes):
        """A release in which one video has subtitles, which begin with its fifth second."""
        longvideobench_release(root)
        rows = json.loads((root / "lvb_val.json").read_text())
        (root / "lvb_val.json").write_text(json.dumps([{**r, ABOUT: 5.0, **changes} for r in rows]))
        (root / "subtitles").mkdir(parents=True)
        cues = [{"timestamp": [6.0, 8.0], "text": "hello"}]
        (root / "subtitles" / "long-_1_en.json").write_text(json.dumps(cues))
        return root

    def test_clips_come_with_their_subtitles_in_the_video_s_own_seconds(self, tmp_path):
        benchmark = load("longvideobench", self.write(tmp_path), subtitles=True)
        found = {item.video_id: item.subtitles for item in benchmark.items()}
        assert found["short_2"] == Subtitles(None)
        assert json.loads(found["long-_1"].text) == [[1.0, 3.0, "hello"]]
        assert {item.subtitles for item in load("longvideobench", tmp_path).items()} == {None}

    def test_a_row_that_does_not_say_where_its_video_begins_is_named(self, tmp_path):
        benchmark = load("longvideobench", self.write(tmp_path, **{ABOUT: None}), subtitles=True)
        message = "question long-_1_0: starting_timestamp_for_subtitles must be"
        with pytest.raises(ValueError, match=message):
            list(benchmark.items())

    def test_they_are_refused_where_the_harness_shows_none(self, tmp_path):
        self.write(tmp_path)
        for wording in {model_entry(name).load_family().wording for name in MODELS}:
            benchmark = load("longvideobench", tmp_path, subtitles=True)
            if wording == "internvl":
                benchmark.ask_family(wording)
                assert benchmark.protocol.subtitles is not None
                continue
            with pytest.raises(ValueError, match="has prompts with subtitles for models of"):
                benchmark.ask_family(wording)


class TestBenchmarks:
    def test_clips_come_with_their_subtitles_only_where_they_are_to_be_shown(self, tmp_path):
        root = videomme_release(tmp_path)
        touch(root, "video/aAaAaAaAaA0.mp4")
        (root / "subtitle").mkdir()
        # Bytes that are no text do not end a job.
        (root / "subtitle" / "aAaAaAaAaA0.srt").write_bytes(
            b"\xef\xbb\xbf" + SRT.encode() + b"\xff"
        )
        plain = list(load("videomme", root).items())
        assert [item.subtitles for item in plain] == [None, None]
        benchmark = load("videomme", root, subtitles=True)
        shown = list(benchmark.items())
        assert [item.subtitles for item in shown] == [Subtitles(SRT + "\ufffd"), Subtitles(None)]
        assert [replace(item, subtitles=None) for item in shown] == plain
        assert benchmark.protocol.name == "vlmevalkit+subtitles"
        dated = load("videomme", root, subtitles=True, protocol="lmms_eval@0.7.3")
        assert dated.protocol.name == "lmms_eval@0.7.3+subtitles"

    def test_a_release_without_any_is_refused_with_the_command_that_fetches_them(self, tmp_path):
        root = videomme_release(tmp_path)
        with pytest.raises(FileNotFoundError, match="true: no subtitles of") as error:
            load("videomme", root, subtitles=True)
        command = f"tango data get videomme --root {root} --only subtitles"
        assert str(error.value).endswith(command)

    @pytest.mark.parametrize(
        ("name", "write", "protocol", "message"),
        [
            ("mlvu", mlvu_release, "vlmevalkit", "MLVU under protocol vlmevalkit has no prompt"),
            ("longvideobench", longvideobench_release, "lmms_eval", "has no prompt with subtitles"),
            ("videomme_v2", videomme_v2_release, "lmms_eval_reasoning", "protocols that do are: "),
        ],
    )
    def test_protocols_without_a_prompt_for_them_are_refused(
        self, name, write, protocol, message, tmp_path
    ):
        with pytest.raises(ValueError, match=rf"benchmark\.subtitles true: .*{message}"):
            load(name, write(tmp_path), subtitles=True, protocol=protocol)
