"""What surrounds a clip and stands between its frames, byte for byte."""

import json
import re

import pytest
import torch
from golden_files import GOLDEN_DIR
from internvl_by_hand import ASKED, GRIDS, conversation, full_ids, kept_places, stock_logits
from internvl_checkpoints import IMG_CONTEXT, NAME, SPECIAL
from qwen_by_hand import assert_close, embeddings, some, whole
from releases import PROTOCOLS as OLDER_PROTOCOLS
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from without_cache import run_whole

from tango_core.benchmarks import benchmark_class
from tango_core.models import load_language_model, model_entry
from tango_core.models.internvl.layout import Layout
from tango_core.models.language.chat import INTERNVL2_5
from tango_core.models.language.prompt import TextTokens
from tango_core.types import CompressedVideo, Prompt, Question

pytestmark = pytest.mark.usefixtures("no_gradients")
GOLDEN = json.loads((GOLDEN_DIR / "internvl_prompts.json").read_text(encoding="utf-8"))
QUESTION = Question(
    "q", "What does the man hold?", ("A cup.", "A bag.", "A book.", "A pen."), answer=1
)
EIGHT = ("A phone.", "A hat.", "A key.", "None of the above.")
QUESTIONS = {
    "videomme_v2": Question(
        "q", "What does the man hold first?", (*QUESTION.choices, *EIGHT), answer=1
    )
}
PROTOCOLS = {**OLDER_PROTOCOLS, "videomme_v2": benchmark_class("videomme_v2").protocols}


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
    return (
        PROTOCOLS[benchmark][protocol]
        .for_family(wording)
        .render(QUESTIONS.get(benchmark, QUESTION))
    )


@pytest.mark.parametrize("version", ["", "@2026-05", "@e8e78f05"])
@pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
def test_conversations_of_vlmevalkit_are_the_published_ones(model, benchmark, version):
    prompt = model.layout.lay_out(whole((3, 1, 2)), asked(benchmark, f"vlmevalkit{version}"))
    assert text_of(model, prompt) == GOLDEN[benchmark]["internvl_full"]


@pytest.fixture(scope="module")
def merging(model):
    """A layout whose tokenizer cuts text as the published ones do and joins what occurs often."""
    texts = [one["internvl_full"] for one in GOLDEN.values()]
    pieces = [part for text in texts for part in re.split("|".join(map(re.escape, SPECIAL)), text)]
    learned = Tokenizer(BPE())
    learned.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    learned.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=900,
        initial_alphabet=alphabet,
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    learned.train_from_iterator(pieces * 2, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=learned, eos_token="<|im_end|>")
    assert tokenizer.get_vocab()["<IMG_CONTEXT>"] == IMG_CONTEXT
    assert {"ĊĊ", "Frame", "ĠSelect"} <= set(tokenizer.get_vocab())
    return Layout(model.spec, tokenizer, INTERNVL2_5)


@pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
def test_a_turn_in_pieces_has_the_tokens_that_it_has_as_a_whole(merging, benchmark):
    prompt = merging.lay_out(whole((3, 1, 2)), asked(benchmark))
    assert ids_of(prompt) == merging.tokenizer(GOLDEN[benchmark]["internvl_full"]).input_ids


def test_frames_of_lmms_eval_are_labelled_its_way(internvl_checkpoint):
    """Its other words are the task's: those of Video-MME-v2 in the golden text."""
    expected = GOLDEN["lmms_eval_videomme_v2"]["internvl_full"]
    words = expected.split("</img>\n")[-1].removesuffix("<|im_end|>\n<|im_start|>assistant\n")
    model = load_language_model(NAME, internvl_checkpoint, frame_label="lmms_eval")
    prompt = model.layout.lay_out(whole((3, 1, 2)), Prompt("", words))
    assert text_of(model, prompt) == expected
    for benchmark in sorted(PROTOCOLS):
        task = PROTOCOLS[benchmark]["lmms_eval"]
        assert asked(benchmark, "lmms_eval") == task.render(QUESTIONS.get(benchmark, QUESTION))


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


def test_marks_stand_around_every_frame_also_one_that_keeps_nothing(model):
    full = whole((5, 1, 2))
    kept = torch.tensor([2, 3, 5])
    video = CompressedVideo(full.tokens[kept], kept, full.grid, full.timestamps)
    prompt = model.layout.lay_out(video, ASKED)
    frames = [
        "Frame-1: <img></img>\n",
        "Frame-2: <img><IMG_CONTEXT><IMG_CONTEXT></img>\n",
        "Frame-3: <img><IMG_CONTEXT></img>\n",
        "Frame-4: <img></img>\n",
        "Frame-5: <img></img>\n",
    ]
    assert text_of(model, prompt) == conversation(ASKED, (0, 1, 2)).replace(
        "user\n", "user\n" + "".join(frames)
    )
    clip_text = len(model.layout.tokenize("".join(frames)[:-1].replace("<IMG_CONTEXT>", "")))
    assert (prompt.num_clip_text, prompt.num_visual) == (clip_text, 3)


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


def of_second_and_third(model, positions="renumbered"):
    """Two tokens of the second frame of five and one of the third, and their prompt."""
    full = whole((5, 1, 2))
    kept = torch.tensor([2, 3, 5])
    video = CompressedVideo(full.tokens[kept], kept, full.grid, full.timestamps)
    return video, model.layout.lay_out(video, ASKED, positions)


@pytest.mark.parametrize("positions", ["renumbered", "original"])
def test_frames_that_keep_nothing_may_be_left_out(internvl_checkpoint, model, positions):
    """Without a blank line behind the last frame shown; all else stays where it was."""
    dropping = load_language_model(NAME, internvl_checkpoint, empty_blocks="drop")
    video, prompt = of_second_and_third(dropping, positions)
    frames = "Frame-2: <img><IMG_CONTEXT><IMG_CONTEXT></img>\nFrame-3: <img><IMG_CONTEXT></img>\n"
    words = conversation(ASKED, (0, 1, 2)).replace("user\n", f"user\n{frames}")
    assert text_of(model, prompt) == words
    ids = full_ids(model, ASKED, video.grid)[0].tolist()
    text = model.layout.tokenizer.decode(ids, skip_special_tokens=False)
    cut = text.index("Frame-1"), text.index("Frame-2"), text.index("\nFrame-4"), text.index("Look")
    begin, end, tail, behind = (len(model.layout.tokenizer(text[:at]).input_ids) for at in cut)
    places = [*range(begin), *range(end, tail), *range(behind - 1, len(ids))]
    gone = tail - 1 - 2  # the first of the two tokens of the third frame
    assert [ids[one] for one in places if one != gone] == ids_of(prompt)
    expected = [one for one in places if one != gone]
    if positions == "renumbered":
        expected = list(range(len(expected)))
    assert prompt.positions.tolist() == expected


def own_logits(model, prompt):
    loop = model.engine.layer_loop
    return loop.logits(run_whole(loop, embeddings(model, prompt), prompt.positions[None]))


@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_pruned_clip_gives_the_logits_of_the_stock_layers(internvl, model, grid, positions):
    """The reference: embeddings and numbers of the whole turn, without the dropped tokens."""
    video = some(grid, max(1, grid[0] * grid[1] * grid[2] // 3))
    ids = full_ids(model, ASKED, grid)
    embeds = internvl.get_input_embeddings()(ids)
    embeds[ids == IMG_CONTEXT] = whole(grid).tokens
    places = kept_places(ids, video)
    numbers = places if positions == "original" else torch.arange(len(places))
    expected = stock_logits(internvl, embeds[:, places], numbers[None])
    prompt = model.layout.lay_out(video, ASKED, positions)
    assert_close(own_logits(model, prompt), expected)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_pruned_clip_is_what_the_stock_model_makes_of_fewer_context_tokens(internvl, model, grid):
    video = some(grid, max(1, grid[0] * grid[1] * grid[2] // 3))
    ids = full_ids(model, ASKED, grid)
    kept = ids[:, kept_places(ids, video)]
    image = BaseModelOutputWithPooling(pooler_output=video.tokens[None])
    expected = internvl(input_ids=kept, mm_encoder_outputs={"image": image}).logits
    assert_close(own_logits(model, model.layout.lay_out(video, ASKED)), expected)
