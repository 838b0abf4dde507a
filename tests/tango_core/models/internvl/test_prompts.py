"""What surrounds a clip and stands between its frames, byte for byte."""

import json

import pytest
import torch
from golden_files import GOLDEN_DIR
from internvl_by_hand import ASKED, GRIDS, conversation, full_ids, kept_places
from internvl_checkpoints import ENDOFTEXT, IM_END, IMG, IMG_CONTEXT, IMG_END, NAME, save_internvl
from qwen_by_hand import some, whole
from releases import PROTOCOLS

from tango_core.models import load_language_model, model_entry
from tango_core.models.language.prompt import TextTokens
from tango_core.types import CompressedVideo, Prompt, Question

pytestmark = pytest.mark.usefixtures("no_gradients")
GOLDEN = json.loads((GOLDEN_DIR / "internvl_prompts.json").read_text(encoding="utf-8"))
QUESTION = Question(
    "q", "What does the man hold?", ("A cup.", "A bag.", "A book.", "A pen."), answer=1
)


def ids_of(prompt):
    """Ids of a laid out prompt, the context token for visual ones."""
    return [
        token
        for span in prompt.spans
        for token in (span.ids if isinstance(span, TextTokens) else [IMG_CONTEXT] * len(span))
    ]


def text_of(model, prompt):
    return model.layout.tokenizer.decode(ids_of(prompt), skip_special_tokens=False)


def asked(benchmark, protocol="vlmevalkit"):
    """The words of a protocol as its harness puts them to this family."""
    wording = model_entry(NAME).load_family().wording
    return PROTOCOLS[benchmark][protocol].for_family(wording).render(QUESTION)


@pytest.mark.parametrize("version", ["", "@2026-05", "@e8e78f05"])
@pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
def test_conversations_of_vlmevalkit_are_the_published_ones(model, benchmark, version):
    prompt = model.layout.lay_out(whole((3, 1, 2)), asked(benchmark, f"vlmevalkit{version}"))
    text = text_of(model, prompt)
    assert text == GOLDEN[benchmark]["internvl_full"]
    # Cut at the marks, a turn has the tokens that it has as a whole.
    assert list(model.layout.tokenizer(text).input_ids) == ids_of(prompt)


def test_other_families_read_the_usual_words():
    usual = PROTOCOLS["videomme"]["vlmevalkit"]
    for name in ("llava-onevision-7b", "llava-video-7b", "qwen2.5-vl-7b", "tiny"):
        wording = model_entry(name).load_family().wording
        assert usual.for_family(wording).render(QUESTION) == usual.render(QUESTION)
    assert usual.for_family("internvl").render(QUESTION) != usual.render(QUESTION)


def test_frames_of_lmms_eval_are_labelled_its_way(internvl_checkpoint):
    """Its other words are the task's: those of Video-MME-v2 in the golden text."""
    expected = GOLDEN["lmms_eval_videomme_v2"]["internvl_full"]
    words = expected.split("</img>\n")[-1].removesuffix("<|im_end|>\n<|im_start|>assistant\n")
    model = load_language_model(NAME, internvl_checkpoint, frame_label="lmms_eval")
    prompt = model.layout.lay_out(whole((3, 1, 2)), Prompt("", words))
    assert text_of(model, prompt) == expected
    for benchmark in sorted(PROTOCOLS):
        task = PROTOCOLS[benchmark]["lmms_eval"]
        assert asked(benchmark, "lmms_eval") == task.render(QUESTION)


@pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
def test_a_single_frame_has_no_label(model, benchmark):
    """VLMEvalKit sets line breaks between the parts of the words then, which stay as they are."""
    text = text_of(model, model.layout.lay_out(whole((1, 1, 2)), asked(benchmark)))
    frames = "<|im_start|>user\n<img><IMG_CONTEXT><IMG_CONTEXT></img>\n"
    assert frames in text
    published = GOLDEN[benchmark]["internvl_question_1_frame"]
    assert published.startswith("<image>\n")
    words = text.partition(frames)[2].removesuffix("<|im_end|>\n<|im_start|>assistant\n")
    assert words.replace("\n", "") == published.removeprefix("<image>").replace("\n", "")


@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_all_text_stays_however_little_is_kept(model, grid, positions):
    ids = full_ids(model, ASKED, grid)
    for num_kept in (1, 3, grid[0] * grid[1] * grid[2]):
        video = some(grid, num_kept)
        prompt = model.layout.lay_out(video, ASKED, positions)
        places = kept_places(ids, video)
        assert ids_of(prompt) == ids[0, places].tolist()
        expected = places if positions == "original" else torch.arange(len(places))
        assert torch.equal(prompt.positions, expected)
        visual = torch.cat([s.embeddings for s in prompt.spans if not isinstance(s, TextTokens)])
        assert torch.equal(visual, video.tokens)
        assert prompt.num_visual == num_kept


def test_marks_stand_around_every_frame_also_one_that_keeps_nothing(model):
    full = whole((4, 1, 2))
    kept = torch.tensor([2, 3])  # of the second frame
    video = CompressedVideo(full.tokens[kept], kept, full.grid, full.timestamps)
    prompt = model.layout.lay_out(video, ASKED)
    left, _, right = prompt.spans
    assert [ids_of(prompt).count(mark) for mark in (IMG, IMG_END)] == [4, 4]
    assert text_of(model, prompt) == conversation(ASKED, full.grid).replace(
        "<img><IMG_CONTEXT><IMG_CONTEXT></img>", "<img></img>"
    ).replace("Frame-2: <img></img>", "Frame-2: <img><IMG_CONTEXT><IMG_CONTEXT></img>")
    assert (left.ids[-1], right.ids[0]) == (IMG, IMG_END)


def test_a_checkpoint_may_bring_its_own_conversation(internvl, tmp_path):
    path = save_internvl(internvl, tmp_path)
    chat = {"opening": "<", "after_clip": "|", "closing": ">"}
    (path / "tango.json").write_text(json.dumps({"chat": chat, "note": "own words"}))
    model = load_language_model(NAME, str(path))
    prompt = model.layout.lay_out(whole((2, 1, 1)), Prompt("a", "b"))
    frames = "<Frame-1: <img><IMG_CONTEXT></img>\nFrame-2: <img><IMG_CONTEXT></img>"
    assert text_of(model, prompt) == f"{frames}|ab>"
    assert model.spec.note == "own words"


def test_tokens_of_another_width_are_refused(model):
    video = some((2, 2, 2), 3)
    wrong = CompressedVideo(video.tokens[:, :5], video.indices, video.grid, video.timestamps)
    with pytest.raises(ValueError, match=r"width 5, but model internvl3\.5-8b has 48"):
        model.layout.lay_out(wrong, ASKED)


def test_replies_end_at_the_tokens_of_the_generation_config(model):
    assert model.engine.eos_ids == {IM_END, ENDOFTEXT}
