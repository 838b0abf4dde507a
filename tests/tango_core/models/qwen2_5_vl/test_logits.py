"""Logits and positions of a whole clip against the stock model."""

import math

import pytest
import torch
from qwen_by_hand import (
    ASKED,
    GRIDS,
    NAME,
    reference_positions,
    some,
    whole,
)
from qwen_checkpoints import VIDEO_PAD

from tango_core.models import load_language_model

pytestmark = pytest.mark.usefixtures("no_gradients")


class TestFullClip:
    @pytest.mark.parametrize("seconds", [1.0, 0.3, 2.5])
    @pytest.mark.parametrize("grid", GRIDS, ids=str)
    def test_positions_of_transformers_5(self, qwen, qwen_checkpoint, grid, seconds):
        model = load_language_model(
            NAME, qwen_checkpoint, position_rule="hf5", seconds_per_grid=seconds
        )
        prompt = model.layout.lay_out(whole(grid), ASKED)
        ids = torch.tensor(
            [[*prompt.spans[0].ids, *[VIDEO_PAD] * math.prod(grid), *prompt.question]]
        )
        stock, _ = qwen.model.get_rope_index(
            ids,
            mm_token_type_ids=(ids == VIDEO_PAD).int() * 2,
            video_grid_thw=torch.tensor([[grid[0], 2 * grid[1], 2 * grid[2]]]),
            second_per_grid_ts=torch.tensor([seconds]),
        )
        assert torch.equal(prompt.positions, stock[:, 0])

    @pytest.mark.parametrize(("rule", "gap"), [("hf450", 31), ("hf5", 16)])
    def test_text_behind_the_publications_clip(self, qwen_checkpoint, rule, gap):
        model = load_language_model(NAME, qwen_checkpoint, position_rule=rule)
        prompt = model.layout.lay_out(some((16, 16, 16), 10), ASKED)
        assert (
            prompt.positions[:, prompt.prefix_length].tolist()
            == [len(prompt.spans[0].ids) + gap] * 3
        )


@pytest.mark.parametrize("part", [1, 3], ids=["whole", "pruned"])
@pytest.mark.parametrize("rule", ["hf450", "hf5"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_tokens_and_text_stand_where_they_do_in_the_whole_clip(qwen_checkpoint, rule, grid, part):
    model = load_language_model(NAME, qwen_checkpoint, position_rule=rule)
    video = some(grid, math.prod(grid) // part)
    prompt = model.layout.lay_out(video, ASKED)
    left, right = len(prompt.spans[0].ids), len(prompt.question)
    full = reference_positions(left, grid, right, rule)
    total = left + math.prod(grid)
    keep = [*range(left), *(video.indices + left).tolist(), *range(total, total + right)]
    assert torch.equal(prompt.positions, full[:, keep])
