"""Several questions about a clip in one sequence."""

from __future__ import annotations

import pytest
import torch

from jobs.training.language import LanguageTrainer, synthetic_tokens
from jobs.training.packing import pack
from jobs.training.recipe import architecture
from jobs.training.samples import PROMPT_START, TOKENS_PER_FRAME, synthetic_sample
from tango_core.models.language.layer_loop import LayerLoop


@pytest.fixture(scope="module")
def language():
    torch.manual_seed(0)
    return LanguageTrainer(architecture()).eval()


def test_packed_questions_get_the_logits_that_they_get_alone(language):
    sample = synthetic_sample(0, 2, 2)
    visual = synthetic_tokens(
        language.meaning, [torch.from_numpy(sample.visual)], torch.Generator().manual_seed(0)
    )
    chosen = [(one.kind, one.prompt, one.reply) for one in sample.questions[:3]]
    with torch.no_grad():
        packed = pack([chosen], 2 * TOKENS_PER_FRAME)
        together = language(visual, packed)
        embed = language.language_model.embed_tokens
        plain = LayerLoop(language.language_model, language.lm_head)
        for number, (_, prompt, reply) in enumerate(chosen):
            before = embed(torch.tensor(PROMPT_START))
            after = embed(torch.tensor([*prompt, *reply[:-1]]))
            sequence = torch.cat([before, visual[0], language.image_newline[None], after])[None]
            states = plain.run(sequence, torch.arange(sequence.shape[1])[None])
            alone = plain.logits(states[0, -len(reply) :])
            torch.testing.assert_close(
                together[packed.question == number], alone, atol=2e-4, rtol=1e-4
            )


def test_the_increment_sets_the_distance_of_visual_tokens_alone(language):
    sample = synthetic_sample(0, 2, 2)
    chosen = [(one.kind, one.prompt, one.reply) for one in sample.questions[:2]]
    wide, narrow = pack([chosen], 2 * TOKENS_PER_FRAME), pack([chosen], 2 * TOKENS_PER_FRAME, 1 / 4)
    start = len(PROMPT_START)
    clip = narrow.positions[0, start : start + 2 * TOKENS_PER_FRAME + 1]
    assert clip.tolist() == [start + index / 4 for index in range(2 * TOKENS_PER_FRAME + 1)]
    behind = start + 2 * TOKENS_PER_FRAME + 1
    assert wide.positions[0, :behind].tolist() == list(range(behind))
    question = narrow.positions[0, behind : behind + len(chosen[0][1])]
    first = start + (2 * TOKENS_PER_FRAME + 1) / 4
    assert question.tolist() == [first + index for index in range(len(chosen[0][1]))]
