"""Prompts of the LLaVA models: conversations of the harnesses byte for byte, newlines, times."""

import json

import numpy as np
import pytest
import torch
from clips import clip as video_file
from golden_files import GOLDEN_DIR
from hypothesis import given
from hypothesis import strategies as st
from llava_originals import WIDTH, build_original, save_original
from numbered_videos import draw
from releases import PROTOCOLS

from tango_core.models import load_language_model
from tango_core.models.llava.layout import lay_out_clip, time_instruction
from tango_core.types import ClipSource, CompressedVideo, Question
from tango_core.video import FrameSpec, decode_frames

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


def test_rows_end_where_the_official_release_ends_them():
    with np.load(GOLDEN_DIR / "unit_newline_grid.npz") as arrays:
        golden = {name: torch.tensor(arrays[name]) for name in arrays.files}
    num_frames, num_cells, width = golden["x"].shape
    side = round(num_cells**0.5)
    order, _, _ = lay_out_clip(golden["kept"], (num_frames, side, side), "grid")
    kept = golden["x"].reshape(-1, width)[golden["kept"]]
    rows = torch.cat([kept, golden["newline"][None]])[order]
    assert torch.equal(rows, golden["y"])


@st.composite
def kept_of_a_clip(draw):
    grid = tuple(draw(st.integers(1, 5)) for _ in range(3))
    num_total = int(np.prod(grid))
    kept = draw(st.sets(st.integers(0, num_total - 1), max_size=num_total))
    return grid, sorted(kept)


@given(kept_of_a_clip())
def test_a_row_keeps_its_newline_as_long_as_it_keeps_a_token(clip):
    """Against the definition, row by row: where everything stands, and where it would stand."""
    grid, kept = clip
    order, places, place = [], [], 0
    for row in range(grid[0] * grid[1]):
        cells = range(row * grid[2], (row + 1) * grid[2])
        order += [kept.index(cell) for cell in cells if cell in kept]
        places += [place + column for column, cell in enumerate(cells) if cell in kept]
        if any(cell in kept for cell in cells):
            order.append(-1)
            places.append(place + grid[2])
        place += grid[2] + 1
    found = lay_out_clip(torch.tensor(kept, dtype=torch.int64), grid, "grid")
    assert (found[0].tolist(), found[1].tolist(), found[2]) == (order, places, place)


@pytest.mark.parametrize("kept", [[], [0, 5, 23], list(range(24))])
def test_one_newline_ends_a_clip_however_much_is_kept(kept):
    found = lay_out_clip(torch.tensor(kept, dtype=torch.int64), (2, 3, 4), "one_token")
    assert found[0].tolist() == [*range(len(kept)), -1]
    assert (found[1].tolist(), found[2]) == ([*kept, 24], 25)


SOURCE = ClipSource(duration_s=12.0, frame_height=360)


def clip(times, source=SOURCE):
    """A clip of which no token is left; the sentence does not depend on tokens."""
    return CompressedVideo(
        tokens=torch.empty(0, 4),
        indices=torch.empty(0, dtype=torch.int64),
        grid=(len(times), 2, 2),
        timestamps=torch.tensor(times, dtype=torch.float64),
        source=source,
    )


def test_times_of_a_clip_count_from_its_first_frame():
    """The harnesses cut a bounded clip out before they look at its frames."""
    spoken = time_instruction(clip([61.5, 62.25, 63.5]), "correct", 384)
    assert "located at 0.00s,0.75s,2.00s." in spoken


def test_an_unknown_source_is_as_long_as_its_last_frame_and_as_high_as_the_models_frames():
    spoken = time_instruction(clip([4.0, 5.0, 6.5], source=None), "vlmevalkit", 384)
    assert spoken.startswith("The video lasts for 2.50 seconds,and 384 frames")


@pytest.mark.parametrize(
    ("name", "bounds", "count"),
    [
        ("closed_gop.mp4", None, 120),
        ("closed_gop.mkv", None, 120),
        ("vp9.webm", None, 120),
        ("transport_stream.ts", None, 60),
        ("closed_gop.mp4", (1.0, 2.0), 25),
    ],
)
def test_a_decoded_clip_is_described_as_the_harness_describes_it(name, bounds, count):
    """Index over rate, of a file of `count` frames at 24 per second; height instead of number."""
    frames = decode_frames(str(video_file(name)), FrameSpec(16, size=(8, 8)), bounds)
    indices = np.linspace(0, count - 1, 16, dtype=int)
    located = ",".join(f"{index / 24:.2f}s" for index in indices)
    spoken = time_instruction(clip(frames.timestamps.tolist(), frames.source), "vlmevalkit", 8)
    assert spoken == (
        f"The video lasts for {count / 24:.2f} seconds,and {draw(0).shape[0]} frames are uniformly "
        f"sampled from it.These frames are located at {located}."
        "Please answer the following questions related to this video.\n"
    )
