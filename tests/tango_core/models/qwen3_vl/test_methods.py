"""Every method on a clip of Qwen3-VL: before the language model, inside it, or both."""

import pytest
import torch
from qwen3_checkpoints import ASKED, NAME, NUM_LAYERS, frames_of

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor
from tango_core.compressors.options import option_names
from tango_core.models import load_language_model
from tango_core.types import Prompt

SIGNALS = frozenset({"saliency", "attention", "keys", "frame_embeddings"})
PROMPTS = [ASKED, Prompt("Look. ", "How many are there?")]
HYBRIDS = {
    "tango": {"name": "fastv-merge", "layer": 2, "retention": 0.5},
    "holitom": {"name": "holitom-merge", "layer": 2, "retention": 0.5},
    "flashvid": "published",
}


@pytest.fixture(scope="module")
def features(encoder):
    return encoder.encode(frames_of(12, (4, 5)), SIGNALS)


def built(name, **options):
    cls = METHODS[name]
    if "retention" in option_names(cls):
        options = {"retention": 0.6 if not issubclass(cls, Compressor) else 0.3, **options}
    if name == "flashvid":
        options = {"inner": None, **options}
    return build_method(name, num_layers=NUM_LAYERS, model=NAME, **options)


def replies(model, method, video):
    return model.answer(video, PROMPTS, pruner=method.pruner, max_new_tokens=5)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers(endless, features, name):
    method = built(name)
    video = method.compressor.compress(features)
    plan = method.compressor.plan(features)
    assert torch.equal(video.companions, plan.companions(features.companions))
    expected = features.companions.flatten(0, 1)[video.indices]
    if plan.is_selection:
        assert torch.equal(video.companions, expected)
    for answer in replies(endless, method, video):
        assert (answer.status, answer.new_tokens) == ("ok", 5)
        assert answer.visual_tokens == video.num_kept
        # One token per byte: six times of 13 characters, and two marks each.
        assert answer.clip_text_tokens == 6 * (13 + 2)


@pytest.mark.parametrize("name", HYBRIDS)
def test_every_hybrid_answers(endless, features, name):
    method = built(name, inner=HYBRIDS[name])
    assert method.pruner is not None
    video = method.compressor.compress(features)
    for answer, other in zip(
        replies(endless, method, video), replies(endless, built(name), video), strict=True
    ):
        assert (answer.status, answer.new_tokens) == ("ok", 5)
        assert answer.prompt_tokens == other.prompt_tokens


@pytest.mark.parametrize("empty", ["keep", "drop"])
def test_answers_do_not_depend_on_how_they_are_asked(qwen3_checkpoint, features, empty):
    model = load_language_model(NAME, qwen3_checkpoint, empty_blocks=empty)
    model.engine.eos_ids = frozenset()
    method = build_method("topk", retention=0.05, score="attention")
    video = method.compressor.compress(features)
    blocks = {int(one) // 20 for one in video.indices}
    assert len(blocks) <= 6
    together = model.answer(video, PROMPTS, max_new_tokens=6)
    alone = model.answer(video, PROMPTS, max_new_tokens=6, share_prefix=False)
    assert [one.text for one in together] == [one.text for one in alone]
    shown = 6 if empty == "keep" else len(blocks)
    assert together[0].clip_text_tokens == shown * (13 + 2)
