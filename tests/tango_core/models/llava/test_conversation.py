"""What the LLaVA models tokenise for a question, byte for byte, against the published harnesses."""

import json

import pytest
import torch
from golden_files import GOLDEN_DIR
from llava_originals import WIDTH, build_original, save_original
from releases import PROTOCOLS

from tango_core.models import load_language_model
from tango_core.types import ClipSource, CompressedVideo, Question

GOLDEN = json.loads((GOLDEN_DIR / "prompts.json").read_text(encoding="utf-8"))
QUESTION = Question(
    "q", "What does the man hold?", ("A cup.", "A bag.", "A book.", "A pen."), answer=1
)
BENCHMARKS = sorted(PROTOCOLS)
# Texts of lmms-eval: (golden entry, benchmark, protocol).
LMMS_EVAL = [
    ("videomme_default", "videomme", "lmms_eval"),
    ("videomme_llava_vid", "videomme", "lmms_eval_llava_vid"),
    ("mvbench", "mvbench", "lmms_eval"),
    ("longvideobench_val_v", "longvideobench", "lmms_eval"),
    ("mlvu_dev", "mlvu", "lmms_eval"),
]
OPENING = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
CLOSING = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(save_original(build_original(), tmp_path_factory.mktemp("conversation")))


@pytest.fixture(scope="module")
def load(directory):
    """A language model of a family; its tokenizer is Qwen2's, bytes instead of merges."""
    loaded = {}

    def _load(*key):
        if key not in loaded:
            name, wording = key
            loaded[key] = load_language_model(name, directory, time_instruction=wording)
        return loaded[key]

    return _load


@pytest.fixture
def video():
    """The clip of the golden strings: 12 s of 360 rows, two frames."""
    return CompressedVideo(
        tokens=torch.zeros(3, WIDTH),
        indices=torch.tensor([0, 4, 9]),
        grid=(2, 3, 3),
        timestamps=torch.tensor([0.0, 1 / 6], dtype=torch.float64),
        source=ClipSource(duration_s=12.0, frame_height=360),
    )


def conversation(model, video, prompt):
    """The ids of a prompt as text; the clip is `<image>`, as in the original code."""
    laid_out = model.layout.lay_out(video, prompt)
    left, right = (
        model.layout.tokenizer.decode(ids) for ids in (laid_out.spans[0].ids, laid_out.question)
    )
    return f"{left}<image>{right}"


@pytest.mark.parametrize(
    ("name", "wording", "golden"),
    [
        ("llava-video-7b", None, "llava_video"),
        ("llava-video-7b", "vlmevalkit", "llava_video"),
        ("llava-video-7b", "none", "llava_onevision"),
        ("llava-onevision-7b", None, "llava_onevision"),
    ],
)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_vlmevalkit_conversations_are_the_published_ones(
    load, video, benchmark, name, wording, golden
):
    prompt = PROTOCOLS[benchmark]["vlmevalkit"].render(QUESTION)
    expected = GOLDEN["vlmevalkit"][benchmark][golden]
    assert conversation(load(name, wording), video, prompt) == expected


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_corrected_sentence_differs_in_the_number_of_frames_only(load, video, benchmark):
    prompt = PROTOCOLS[benchmark]["vlmevalkit"].render(QUESTION)
    expected = GOLDEN["vlmevalkit"][benchmark]["llava_video"].replace("360 frames", "2 frames")
    assert conversation(load("llava-video-7b", "correct"), video, prompt) == expected


@pytest.mark.parametrize(
    ("name", "wording"), [("llava-video-7b", "lmms_eval"), ("llava-onevision-7b", None)]
)
@pytest.mark.parametrize(("entry", "benchmark", "protocol"), LMMS_EVAL)
def test_lmms_eval_conversations_are_the_published_ones(
    load, video, entry, benchmark, protocol, name, wording
):
    """The harness puts its text behind the clip, a line break and the sentence about time."""
    asked = GOLDEN["lmms_eval"][entry].replace(
        "<question column: already holds the question and its '(A) ..' lines>",
        "What does the man hold?\n(A) A cup.\n(B) A bag.\n(C) A book.\n(D) A pen.\n",
    )
    sentence = GOLDEN["lmms_eval"]["llava_video_time_instruction"].replace("64 frames", "2 frames")
    about_time = sentence if wording else ""
    prompt = PROTOCOLS[benchmark][protocol].render(QUESTION)
    found = conversation(load(name, wording), video, prompt)
    assert found == f"{OPENING}<image>\n{about_time}{asked}{CLOSING}"
