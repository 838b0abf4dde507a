"""Questions about single videos with the embedded model: files, layers and words are real."""

from __future__ import annotations

import shutil

import pytest
import torch
from clips import clip as named_clip
from llava_checkpoints import build_llava, save_llava
from llava_originals import build_original, save_original
from numbered_videos import write_clip

from tango_core import Prompt, VideoChat, build_method, decode_frames
from tango_core.types import Question

CHOICES = ("red", "blue", "green")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def chat():
    return VideoChat("tiny", num_frames=4)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("videos") / "clip.mp4", 48)


def test_a_free_form_question_gets_the_model_s_words(chat, video):
    answer = chat.ask(video, "What moves?", max_new_tokens=5)
    method = build_method("tango", retention=0.1).compressor
    frames = decode_frames(str(video), chat.spec.frames)
    tokens = method.compress(chat.encoder.encode(frames, method.needs))
    (own,) = chat.language_model.answer(tokens, [Prompt("", "What moves?")], max_new_tokens=5)
    assert (answer.text, answer.status) == (own.text, "ok")
    assert answer.choice is answer.letter is None
    assert 1 <= answer.new_tokens <= 5
    assert (answer.tokens_total, answer.choices) == (4 * 64, ())
    assert 20 <= answer.tokens_kept <= 34
    # Kept tokens and the newline token are in the prompt, and the question's words.
    assert answer.prompt_tokens > answer.tokens_kept + 1


def test_a_follow_up_needs_neither_decoding_nor_vision_and_says_the_same(video):
    chat = VideoChat("tiny", num_frames=4)
    first = chat.ask(video, "What moves?", max_new_tokens=4)
    again = chat.ask(video, "What moves?", max_new_tokens=4)
    assert first.latency_ms.keys() > again.latency_ms.keys() == {"prefill", "ttft", "decode"}
    assert {"decode_video", "vision", "compress"} <= first.latency_ms.keys()
    assert all(ms > 0 for ms in first.latency_ms.values())
    assert (again.text, again.tokens_kept) == (first.text, first.tokens_kept)
    halves = chat.encoder, chat.language_model
    other = chat.ask(video, "What moves?", method="uniform", retention=0.5, max_new_tokens=4)
    assert "vision" in other.latency_ms
    assert other.tokens_kept == 128
    assert (chat.encoder, chat.language_model) == halves


def test_a_replaced_file_and_another_part_of_it_are_other_clips(video, tmp_path):
    chat = VideoChat("tiny", num_frames=4)
    file = tmp_path / "clip.mp4"
    shutil.copy(video, file)
    ask = {"video": file, "question": "What moves?", "max_new_tokens": 1}
    assert "vision" in chat.ask(**ask).latency_ms
    assert "vision" not in chat.ask(**ask).latency_ms
    assert "vision" in chat.ask(**ask, clip=(0.5, 1.0)).latency_ms
    write_clip(file, 24)
    assert "vision" in chat.ask(**ask).latency_ms


def test_the_reply_to_a_multiple_choice_question_is_read(video):
    chat = VideoChat("tiny", num_frames=4)
    answer = chat.ask(video, "Which color?", CHOICES)
    # Untrained weights may name no option, trained ones name one; reading follows the protocol.
    choice = chat.protocol.read_choice(answer.text, Question("q", "Which color?", CHOICES))
    assert answer.choice == choice
    assert answer.status == ("unparsed" if choice is None else "ok")
    assert answer.letter == (None if choice is None else "ABC"[choice])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"video": "/no/such.mp4"}, "video /no/such.mp4: no such file"),
        ({"question": "  "}, "must not be empty"),
        ({"choices": ("red",)}, "2 to 26 distinct options"),
        ({"choices": ("red", "Red ")}, "2 to 26 distinct options"),
        ({"method": "tanga"}, "did you mean 'tango'"),
        ({"retention": 0}, r"retention must be in \(0, 1\], got 0"),
        ({"method": "full", "retention": 0.1}, "has no option 'retention'"),
        ({"alhpa": 2}, "did you mean 'alpha'"),
        ({"clip": (100, 200)}, "starts at 100 s"),
        ({"clip": (2, 1)}, "0 <= start <= end"),
        ({"max_new_tokens": 0}, "max_new_tokens must be 1 or larger"),
    ],
)
def test_a_mistake_is_refused_in_one_line(chat, video, change, message):
    arguments = {"video": video, "question": "What moves?", **change}
    with pytest.raises((ValueError, FileNotFoundError), match=message) as refusal:
        chat.ask(**arguments)
    assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def headless(tmp_path_factory):
    """A checkpoint like the published ones: its tower has no pooling head."""
    return save_llava(build_llava(head=False), tmp_path_factory.mktemp("models") / "headless")


def test_a_pooling_head_that_nobody_has_is_named_before_decoding(headless, video):
    chat = VideoChat(str(headless), num_frames=2)
    with pytest.raises(FileNotFoundError, match=r"model\.saliency_from google/siglip"):
        chat.ask(video, "w1")
    assert chat.ask(video, "w1", score="attention", max_new_tokens=1).tokens_kept > 0
    with pytest.raises(ValueError, match=r"model\.saliency_from"):
        VideoChat(chat.spec).ask(video, "w1")


def test_the_published_head_is_taken_when_a_method_needs_one(
    headless, video, tmp_path, monkeypatch
):
    head = save_llava(build_llava(head=True, seed=1), tmp_path / "siglip")
    monkeypatch.setattr("tango_core.models.llava.family.SIGLIP_OF_LLAVA", str(head))
    chat = VideoChat(str(headless), num_frames=2)
    chat.ask(video, "w1", method="uniform", max_new_tokens=1)
    assert chat.spec.saliency_from is None
    answer = chat.ask(video, "w1", max_new_tokens=1)
    chosen = VideoChat(str(headless), num_frames=2, saliency_from=str(head))
    same = chosen.ask(video, "w1", max_new_tokens=1)
    assert chat.spec == chosen.spec
    assert (answer.text, answer.tokens_kept) == (same.text, same.tokens_kept)


@pytest.mark.parametrize(
    ("newlines", "name"), [("grid", "llava-video-7b"), ("one_token", "llava-onevision-7b")]
)
def test_a_checkpoint_is_read_as_the_family_it_was_trained_as(newlines, name, tmp_path):
    directory = save_original(build_original(), tmp_path, mm_newline_position=newlines)
    assert VideoChat(str(directory)).spec.name == name


def test_an_answer_about_a_damaged_clip_says_so():
    answer = VideoChat("tiny", num_frames=4).ask(named_clip("hole.webm"), "What is it?")
    assert any("damaged: the file has lost frames" in text for text in answer.warnings)
