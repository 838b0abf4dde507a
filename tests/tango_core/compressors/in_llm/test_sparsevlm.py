"""SparseVLM: raters, ranking, budgets and recycling."""

import pytest
import torch

from tango_core.compressors.contract.inputs import SyntheticPrompt, attention_of, run_layers
from tango_core.compressors.in_llm.sparsevlm import SparseVLM

STAGES = (3, 7, 16)


def test_published_layers_and_table():
    published = (3 + 4 * 300 / 576 + 9 * 200 / 576 + 12 * 110 / 576) / 28
    assert SparseVLM(retention=published).schedule(28) == pytest.approx(
        {3: 300 / 576, 7: 200 / 576, 16: 110 / 576}
    )


def test_a_stage_keeps_as_many_as_leave_room_for_what_is_recycled():
    # The release keeps 300 of 576; int(0.3 * 276) + 1 = 83 dropped ones become 83 // 10 + 1 = 9.
    assert SparseVLM(retention=0.5)._recycling(576, 309) == (9, 83)


def test_a_shallow_model_has_the_same_parts():
    assert SparseVLM(retention=0.5).layers(8) == (0, 1, 2, 4)


def raters_by_definition(hidden, start, stop):
    relevance = torch.zeros(len(hidden) - stop)
    for token in hidden[start:stop]:
        relevance += (hidden[stop:] @ token).softmax(dim=0) / (stop - start)
    return [stop + i for i, value in enumerate(relevance) if value > relevance.mean()]


def test_raters_are_text_tokens_that_match_the_clip_and_rank_by_their_mean_attention():
    prompt = SyntheticPrompt(right=9, scale=0.3)
    raters = raters_by_definition(prompt.hidden(), 3, 39)
    assert 1 < len(raters) < 9
    _, calls = run_layers(SparseVLM(retention=0.375, stages=STAGES, recycled=0), 28, prompt)
    assert [context.layer for context, _ in calls] == [0, *STAGES]
    _, pruned = calls[1]
    scores = attention_of(2, 47)(torch.tensor(raters))[..., 3:39].mean(dim=(0, 1))
    best = scores.sort(descending=True, stable=True).indices[: len(pruned.keep) - 12].sort().values
    assert pruned.keep[3:-9].tolist() == (best + 3).tolist()
    later, _ = calls[2]
    moved = [rater - 36 + later.num_left for rater in raters]
    assert later.scratch["sparsevlm.raters"].tolist() == [i - later.after for i in moved]


def test_a_single_text_token_rates_alone():
    counts, calls = run_layers(SparseVLM(retention=0.3), 28, SyntheticPrompt(right=1))
    assert calls[0][0].scratch["sparsevlm.raters"].tolist() == [0]
    assert counts[-1] < counts[0]
