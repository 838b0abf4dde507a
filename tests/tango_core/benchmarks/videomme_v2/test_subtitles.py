"""Video-MME-v2 with subtitles: every word of a video, in the words of both harnesses."""

import json

import pytest
from releases import load
from scored_releases import OPTIONS, VIDEOMME_V2_ROWS, videomme_v2_release

from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.benchmarks.videomme_v2 import VideoMMEV2Benchmark
from tango_core.types import Subtitles

PROTOCOLS = VideoMMEV2Benchmark.protocols
WORDS = [("Hello", 0.5, 0.9), ("you,", 0.9, 1.2), ("there.", 2.0, 2.4)]
JSONL = "".join(
    json.dumps({"text": text, "start_time": start, "end_time": end}) + "\n"
    for text, start, end in WORDS
)
INSTRUCTION = (
    "Select the best answer to the following multiple-choice question based on the video. Respond "
    "with only the letter (A, B, C, D, E, F, G, or H) of the correct option."
)


@pytest.fixture
def root(tmp_path):
    return videomme_v2_release(tmp_path)


def prompt_of(root, name, text):
    """The first question with the words of a file, by one protocol."""
    question = next(load("videomme_v2", root).items()).questions[0]
    prompt = PROTOCOLS[name].prompt(question, Subtitles(text), Watched(4, 5.0))
    assert prompt.before == ""
    return prompt.after


def test_all_words_stand_where_each_harness_puts_them(root):
    asked = f"Question: {VIDEOMME_V2_ROWS[0]['question']}\n{OPTIONS}\n"
    said = "This video's subtitles are listed below:\nHello you, there.\n"
    frames = "These are the frames of a video."
    assert prompt_of(root, "vlmevalkit", JSONL) == f"{frames} {said}{asked}{INSTRUCTION}"
    assert prompt_of(root, "lmms_eval", JSONL) == f"{said}\n{asked}{INSTRUCTION}"
    qwen = "Answer with the option letter only."
    assert prompt_of(root, "lmms_eval_qwen3_vl", JSONL) == f"{said}\n{asked}{qwen}"
    reasoning = prompt_of(root, "vlmevalkit_reasoning", JSONL)
    assert reasoning.startswith(f"{frames} {said}{asked}Please perform a detailed reasoning")


@pytest.mark.parametrize(
    "text", [None, "", "\n", '{"text": "a"}\n{"text', '["a"]', '{"word": "a"}']
)
def test_without_words_lmms_eval_says_nothing_and_vlmevalkit_lists_none(root, text):
    question = next(load("videomme_v2", root).items()).questions[0]
    plain = PROTOCOLS["lmms_eval"].render(question).after
    assert prompt_of(root, "lmms_eval", text) == plain
    assert "listed below:\n\nQuestion: " in prompt_of(root, "vlmevalkit", text)


@pytest.mark.parametrize("folder", ["subtitle", "subtitle/subtitle", "videomme_v2/subtitle"])
def test_files_are_found_where_the_harnesses_put_them(root, folder):
    (root / folder).mkdir(parents=True)
    (root / folder / "001.jsonl").write_text(JSONL)
    shown = {
        item.video_id: item.subtitles for item in load("videomme_v2", root, subtitles=True).items()
    }
    assert shown == {"001": Subtitles(JSONL), "002": Subtitles(None), "700": Subtitles(None)}


def test_the_reasoning_task_of_lmms_eval_shows_none(root):
    with pytest.raises(ValueError, match=r"benchmark\.subtitles true: .* protocols that do are: "):
        load("videomme_v2", root, subtitles=True, protocol="lmms_eval_reasoning")
