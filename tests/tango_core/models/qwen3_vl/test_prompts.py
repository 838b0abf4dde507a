"""What stands around the clip and between its frames: turns, times, marks, empty blocks."""

import json
from dataclasses import replace

import pytest
import torch
from golden_files import GOLDEN_DIR
from qwen3_checkpoints import ASKED, NAME, only, save_qwen3, whole
from qwen_checkpoints import VIDEO_PAD
from releases import PROTOCOLS
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from tango_core.models import describe_model, load_language_model
from tango_core.models.language.prompt import TextTokens, VisualTokens
from tango_core.models.qwen3_vl.layout import joined_left
from tango_core.types import CompressedVideo, Prompt, Question

GOLDEN = json.loads((GOLDEN_DIR / "golden_prompts2.json").read_text(encoding="utf-8"))["models"]
QUESTION = Question(
    "q", "What does the man hold?", ("A cup.", "A bag.", "A book.", "A pen."), answer=1
)


def two_pairs():
    """Two temporal positions of two tokens, at 0.25 s and 1.25 s."""
    video = whole((2, 1, 2))
    times = torch.tensor([0.25, 1.25], dtype=torch.float64)
    return CompressedVideo(
        video.tokens, video.indices, video.grid, times, companions=video.companions
    )


def written(model, prompt):
    """The sequence as text, a placeholder for every visual token."""
    ids = []
    for span in prompt.spans:
        ids += span.ids if isinstance(span, TextTokens) else [VIDEO_PAD] * len(span)
    return model.layout.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("benchmark", ["videomme", "mvbench", "longvideobench", "mlvu"])
def test_turns_are_the_published_ones_byte_for_byte(model, benchmark):
    words = PROTOCOLS[benchmark]["vlmevalkit"].render(QUESTION)
    prompt = model.layout.lay_out(two_pairs(), words)
    assert written(model, prompt) == GOLDEN[benchmark]["qwen3_vl_full"]


def test_lmms_eval_begins_with_a_system_turn(qwen3_checkpoint):
    model = load_language_model(NAME, qwen3_checkpoint, system_turn=True)
    golden = GOLDEN["lmms_eval_videomme_v2"]["qwen3_vl_full"]
    before, after = golden.split("<0.2 seconds>")[0], golden.split("<|vision_end|>")[-1]
    user = "<|im_start|>user\n"
    words = Prompt(before.split(user)[1], after.removesuffix("<|im_end|>\n<|im_start|>assistant\n"))
    assert written(model, model.layout.lay_out(two_pairs(), words)) == golden


def test_transformers_5_puts_a_pair_of_marks_around_the_clip(qwen3_checkpoint):
    model = load_language_model(NAME, qwen3_checkpoint, outer_marks=True)
    prompt = model.layout.lay_out(two_pairs(), Prompt("a", "b"))
    block = "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    assert written(model, prompt) == (
        "<|im_start|>user\na<|vision_start|>"
        f"<0.2 seconds>{block}<1.2 seconds>{block}"
        "<|vision_end|>b<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.num_clip_text == 2 * (13 + 2) + 1  # the first outer mark ends the text before it


def test_qwen3_5_trims_a_turn_and_its_reply_begins_behind_no_thoughts(small_paths):
    """As its chat template with `enable_thinking=False`."""
    model = load_language_model("qwen3.5-9b", small_paths["qwen3.5-9b"])
    video = replace(two_pairs(), companions=None)
    block = "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    assert written(model, model.layout.lay_out(video, Prompt("\n a", "b? \n"))) == (
        f"<|im_start|>user\na<0.2 seconds>{block}<1.2 seconds>{block}b?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize(
    ("kept", "empty", "stamps"),
    [
        ([0, 5, 9], "keep", ["<0.2", "<1.8", "<3.2"]),
        ([5], "keep", ["<0.2", "<1.8", "<3.2"]),
        ([5], "drop", ["<1.8"]),
        ([9], "drop", ["<3.2"]),
        ([0, 11], "drop", ["<0.2", "<3.2"]),
    ],
)
def test_blocks_that_keep_nothing(qwen3_checkpoint, kept, empty, stamps):
    model = load_language_model(NAME, qwen3_checkpoint, empty_blocks=empty)
    prompt = model.layout.lay_out(only(whole((3, 2, 2)), kept), ASKED)
    text = written(model, prompt)
    assert [f"<{one}" for one in text.split("<") if one.endswith("seconds>")] == [
        f"{one} seconds>" for one in stamps
    ]
    assert text.count("<|vision_start|>") == text.count("<|vision_end|>") == len(stamps)
    assert text.count("<|video_pad|>") == len(kept)
    found = [span.indices.tolist() for span in prompt.spans if isinstance(span, VisualTokens)]
    assert [one for span in found for one in span] == kept
    # In every row of positions the sequence goes on; nothing stands twice in the same place.
    assert len(set(map(tuple, prompt.positions.T.tolist()))) == len(prompt)


def test_a_token_may_join_the_text_and_the_first_time():
    """As Qwen's tokenizer joins a full stop and what follows it."""
    merges = [(".", "<")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: at for at, token in enumerate([*alphabet, ".<"])}
    made = Tokenizer(BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)

    def tokenize(text):
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    left, first = joined_left("Look.", "<0.2 seconds>", tokenize)
    assert left + first == tokenize("Look.<0.2 seconds>") != tokenize("Look.") + tokenize("<0.2 s")
    assert tokenizer.decode(left) == "Look.<"
    assert tokenizer.decode(first) == "0.2 seconds>"
    left, first = joined_left("Look\n", "<0.2 seconds>", tokenize)
    assert (left, first) == (tokenize("Look\n"), tokenize("<0.2 seconds>"))


THINKS = "{{- '<|im_start|>assistant\\n<think>\\n' }}"


@pytest.mark.parametrize(
    "file", ["tokenizer_config.json", "chat_template.json", "chat_template.jinja"]
)
def test_a_thinking_checkpoint_is_refused_unless_it_brings_its_conversation(qwen3, tmp_path, file):
    path = save_qwen3(qwen3, tmp_path)
    if file.endswith(".json"):
        known = json.loads((path / file).read_text()) if (path / file).exists() else {}
        (path / file).write_text(json.dumps({**known, "chat_template": THINKS}))
    else:
        (path / file).write_text(THINKS)
    with pytest.raises(ValueError, match=r"is a Thinking checkpoint, .* give the Ins") as error:
        describe_model(NAME, str(path))
    assert "\n" not in str(error.value)
    chat = {"opening": "", "after_clip": "", "closing": "<|im_start|>assistant\n<think>\n"}
    (path / "tango.json").write_text(json.dumps({"chat": chat}))
    assert describe_model(NAME, str(path)).name == NAME
    (path / "tango.json").unlink()
    (path / file).write_text((path / file).read_text().replace("<think>", "</think>"))
    assert describe_model(NAME, str(path)).name == NAME


@pytest.mark.parametrize(
    ("start", "times"),
    [(0.0, ["0.2", "1.2"]), (0.25, ["0.0", "1.0"]), (0.1, ["0.1", "1.1"]), (9.0, ["0.0", "1.0"])],
)
def test_times_may_count_from_where_a_clip_begins(model, start, times):
    text = written(model, model.layout.lay_out(two_pairs().counted_from(start), ASKED))
    assert [part.split(" ")[0] for part in text.split("<")[1:] if "seconds" in part] == times
