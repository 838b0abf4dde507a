"""Training data: labels of frames, questions as token ids, packed sequences, samples by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from without_cache import run_whole

from jobs.training.command import ARCHITECTURE, JOINT_PHASES, LANGUAGE_PHASES
from jobs.training.data import (
    KINDS,
    PATCH,
    PROMPT_START,
    SIDE,
    TARGET_WORDS,
    TOKEN_SIDE,
    TOKENS_PER_FRAME,
    label_patches,
    pack,
    step_samples,
    synthetic_sample,
    token_targets,
    training_clip,
)
from jobs.training.model import LanguageTrainer, synthetic_tokens
from tango_core.benchmarks.shapes.world import SCENES, clip_at
from tango_core.models.language.layer_loop import LayerLoop


def test_patches_are_labelled_with_the_covering_object():
    clip = clip_at("train", 0, 3, num_moments=1)
    labels = label_patches(clip, 0)
    grid = labels["kind"].reshape(SIDE, SIDE)
    covered = np.zeros((SIDE, SIDE), dtype=bool)
    for box in clip.boxes(0):
        sprite = clip.sprites[box.sprite]
        x, y = box.center
        name = "plate" if sprite.kind == "plate" else sprite.name
        assert grid[int(y // PATCH), int(x // PATCH)] == 1 + KINDS.index(name)
        top, left = int(box.top // PATCH), int(box.left // PATCH)
        covered[top : int(box.bottom // PATCH) + 1, left : int(box.right // PATCH) + 1] = True
    assert (grid[~covered] == 0).all()
    assert labels["scene"] == SCENES.index(clip.scenes[0].kind)


def test_targets_name_objects_at_their_positions():
    clip, moments = training_clip(0, 1, 2)
    weights = token_targets(clip, moments).reshape(2, TOKEN_SIDE, TOKEN_SIDE, len(TARGET_WORDS))
    for row, moment in enumerate(moments):
        frame = weights[row]
        assert (frame[..., TARGET_WORDS.index(clip.scene_at(moment).kind)] > 0).all()
        for box in clip.boxes(moment):
            sprite = clip.sprites[box.sprite]
            x, y = box.center
            token = frame[int(y // 16), int(x // 16)]
            assert token[TARGET_WORDS.index("digit" if sprite.kind == "plate" else sprite.name)] > 0
    top = weights[..., TARGET_WORDS.index("top")]
    assert (top[:, 0] > top[:, -1]).all()


@pytest.fixture(scope="module")
def language():
    torch.manual_seed(0)
    return LanguageTrainer(ARCHITECTURE).eval()


def test_packed_questions_have_the_logits_of_single_questions(language):
    sample = synthetic_sample(0, 2, 2)
    visual = synthetic_tokens(language.meaning, [sample], torch.Generator().manual_seed(0))
    chosen = [wordings[0] for wordings in sample.questions[:3]]
    with torch.no_grad():
        packed = pack([chosen], 2 * TOKENS_PER_FRAME)
        together = language(visual, packed)
        embed = language.language_model.embed_tokens
        plain = LayerLoop(language.language_model, language.lm_head)
        for number, (_, prompt, reply) in enumerate(chosen):
            before = embed(torch.tensor(PROMPT_START))
            after = embed(torch.tensor([*prompt, *reply[:-1]]))
            sequence = torch.cat([before, visual[0], language.image_newline[None], after])[None]
            states = run_whole(plain, sequence, torch.arange(sequence.shape[1])[None])
            alone = plain.logits(states[0, -len(reply) :])
            torch.testing.assert_close(
                together[packed.question[packed.labels >= 0] == number], alone, atol=2e-4, rtol=1e-4
            )


@pytest.mark.parametrize("phases", [LANGUAGE_PHASES, JOINT_PHASES], ids=["language", "joint"])
def test_samples_are_deterministic_and_of_the_training_split(phases, monkeypatch):
    splits = []
    real = clip_at

    def spy(split, *args, **kwargs):
        splits.append(split)
        return real(split, *args, **kwargs)

    monkeypatch.setattr("jobs.training.data.clip_at", spy)
    first, second = (step_samples(phases, synthetic_sample, 0, 100, 3) for _ in range(2))
    assert first.num_frames == second.num_frames
    for one, other in zip(first.samples, second.samples, strict=True):
        assert np.array_equal(one.visual, other.visual)
    assert set(splits) == {"train"}
