"""CDPruner against vectors of its release, and the release's faults."""

from dataclasses import replace

import numpy as np
import official
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.query_aware.cdpruner import CDPruner, greedy_map, greedy_map_of_vectors
from tango_core.types import Question

CLIPS = ("blob6_6x6_11", "noise3_6x6_14", "one1_7x7_15", "pan4_7x7_13", "rect4_5x8_16")
CLIPS += ("static4_6x6_12",)
SIGNALS = {
    "question": "text_embeddings",
    "text_aligned": "clip_image",
    "aligned_question": "clip_text",
}


def _kept(features, retention=0.2, **options):
    return CDPruner(retention, **options).compress(features).indices.tolist()


@pytest.mark.parametrize("clip", CLIPS)
def test_same_choice_as_the_release_where_rounding_does_not_decide(clip):
    arrays, configs = official.load3(f"cdpruner_{clip}.npz")
    features = official.features(arrays, **SIGNALS)
    compared = 0
    for name, facts in configs.items():
        _, relevance, variant = name.split("/")
        if facts["stable_fp"]:
            ours = _kept(features, facts["r"], relevance=relevance, variant=variant)
            assert ours == sorted(arrays[f"{name}/kept"]), name
            compared += 1
    assert compared >= 33  # of 36


@pytest.mark.parametrize("clip", CLIPS)
def test_same_relevance_as_the_release(clip):
    arrays, _ = official.load3(f"cdpruner_{clip}.npz")
    features = official.features(arrays, **SIGNALS)
    units = torch.nn.functional.normalize(features.tokens.double(), dim=-1)
    for relevance in ("clip_text", "lm", "lm_mean"):
        for variant in ("frame", "batch", "clip"):
            ours = CDPruner(0.2, relevance=relevance, variant=variant)._quality(features, units)
            # The release computes in float32: a cosine has an error of about D * 2^-24, and
            # scaling divides it by the range of the relevance, which is above 0.1 here.
            limit = 10 * 2 * features.tokens.shape[2] * 2**-24
            theirs = arrays[f"{relevance}/{variant}/relevance"]
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=limit)


@pytest.mark.parametrize("dim", [16, 96])
@pytest.mark.parametrize("retention", [0.1, 0.5])
def test_a_large_group_needs_no_matrix_of_similarities(dim, retention):
    """With 16 dimensions the chosen items span all of them long before all are chosen."""
    clip = make_clip(num_frames=8, grid=(8, 8), dim=dim)
    units = torch.nn.functional.normalize(clip.tokens.double(), dim=-1).flatten(0, 1)
    quality = torch.rand(512, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    _require_equal_choices(units, quality, round(512 * retention))


def test_a_large_group_of_copies_of_equal_quality_needs_no_matrix():
    units = torch.eye(300, dtype=torch.float64).repeat(2, 1)
    _require_equal_choices(units, torch.ones(600, dtype=torch.float64), 310)


def _require_equal_choices(units, quality, count):
    expected = greedy_map((units @ units.T)[None], quality[None, None], count)[0, 0]
    assert greedy_map_of_vectors(units, quality, count).tolist() == expected.tolist()


def _multiplications(compressor, asked):
    with FlopCounterMode(display=False) as counter:
        compressor.compress_for(asked)
    return counter.get_total_flops()


def test_work_is_shared_by_questions_and_that_of_a_clip_is_bounded():
    features = make_clip(num_frames=16, grid=(12, 12), dim=512)
    questions = torch.randn(8, 6, 512, generator=torch.Generator().manual_seed(1))
    asked = [replace(features, question=question) for question in questions]
    alone, together = (_multiplications(CDPruner(0.1), asked[:n]) for n in (1, 8))
    assert together < 1.5 * alone
    whole = 2 * (16 * 144) ** 2 * 512  # the similarities of all pairs
    assert _multiplications(CDPruner(0.1, variant="clip"), asked[:1]) < whole / 5


@pytest.mark.parametrize("variant", ["frame", "batch", "clip"])
def test_several_questions_at_once_equal_one_by_one(variant):
    features = make_clip(num_frames=4, grid=(5, 5))
    questions = list(torch.randn(3, 6, 32, generator=torch.Generator().manual_seed(1)))
    compressor = CDPruner(0.2, variant=variant)
    asked = [replace(features, question=question) for question in questions]
    together = compressor.compress_for(asked)
    for video, one in zip(together, asked, strict=True):
        alone = compressor.compress(one)
        assert torch.equal(video.indices, alone.indices)
        assert torch.equal(video.tokens, alone.tokens)
    assert len({tuple(video.indices.tolist()) for video in together}) == 3


def test_no_token_is_lost_where_the_tokens_span_few_directions():
    """The release keeps 13 of 40 tokens here: its gains become NaN."""
    clip = make_clip(num_frames=4, grid=(5, 5), dim=12, kind="noise")
    assert len(set(_kept(clip, 0.4, variant="clip"))) == 40


def test_tokens_of_equal_relevance_are_chosen_for_diversity_alone():
    features = make_clip(num_frames=1, grid=(4, 4), kind="noise")
    blank = replace(features, question=torch.zeros(2, 32))
    assert _kept(blank) == _kept(replace(blank, question=torch.zeros(7, 32)))
    assert len(_kept(blank)) == 3


def test_the_text_is_the_question_or_the_question_with_its_options():
    question = Question("q", "What is it?", ("a cat", "a dog"))
    assert CDPruner(0.1).question_text(question) == "What is it?"
    whole = CDPruner(0.1, text="question_and_options")
    assert whole.question_text(question) == "What is it?\na cat\na dog"


def test_a_missing_question_is_named():
    features = replace(make_clip(), question=None)
    with pytest.raises(ValueError, match="needs question"):
        CDPruner(0.1).compress(features)
