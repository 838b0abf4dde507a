"""What surrounds a clip and stands between its frames, byte for byte."""

import json
import re

import pytest
import torch
from golden_files import GOLDEN_DIR
from internvl_by_hand import ASKED, conversation
from internvl_checkpoints import IMG_CONTEXT, NAME, SPECIAL
from qwen_by_hand import whole
from releases import PROTOCOLS as OLDER_PROTOCOLS
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

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
