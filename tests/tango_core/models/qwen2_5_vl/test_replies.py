"""Pruned clips: places, replies, shared prefixes and pruning inside, against plain loops."""

import math

import pytest
import torch
from qwen_by_hand import (
    ASKED,
    GRIDS,
    NAME,
    reference_positions,
    some,
)

from tango_core.models import load_language_model

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.mark.parametrize("rule", ["hf450", "hf5"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
class TestPrunedClip:
    def test_kept_tokens_and_text_stay_where_they_were(self, qwen_checkpoint, rule, grid):
        model = load_language_model(NAME, qwen_checkpoint, position_rule=rule)
        video = some(grid, math.prod(grid) // 3)
        prompt = model.layout.lay_out(video, ASKED)
        left, right = len(prompt.spans[0].ids), len(prompt.question)
        full = reference_positions(left, grid, right, rule)
        total = left + math.prod(grid)
        keep = [*range(left), *(video.indices + left).tolist(), *range(total, total + right)]
        assert torch.equal(prompt.positions, full[:, keep])


def test_compressors_positions_make_no_difference(endless):
    video = some((3, 2, 5), 10)
    first, second = (
        endless.answer(video, [ASKED], positions=positions)[0].text
        for positions in ("renumbered", "original")
    )
    assert first == second
