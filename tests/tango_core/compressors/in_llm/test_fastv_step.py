"""FlashVID's step inside the language model against its release."""

import official
import pytest
import torch
from golden_files import GOLDEN2_DIR

from tango_core.compressors.base import LayerContext
from tango_core.compressors.in_llm.fastv import FastVStep


def _context(rows, visual):
    """A context at layer 1 whose last token attends to the sequence as (heads, S) `rows` say."""
    length = rows.shape[1]
    return LayerContext(
        layer=1,
        num_layers=28,
        hidden=torch.arange(length, dtype=torch.float32)[:, None],
        visual=visual,
        after=int(visual[-1]) + 1,
        num_visual=len(visual),
        previous_visual=torch.arange(len(visual)),
        grid=(1, 1, len(visual)),
        visual_indices=torch.arange(len(visual)),
        attention=lambda wanted: rows[:, None].expand(-1, len(wanted), -1),
        keys=lambda: rows.T,
        norm=lambda states: states,
    )


@pytest.mark.parametrize(("case", "retention"), [("llava", 0.3), ("qwen3", 0.1)])
def test_same_positions_as_the_release(case, retention):
    """The visual tokens of `qwen3` stand apart, with text between them that always stays."""
    arrays = official.load("flashvid_inner.npz", GOLDEN2_DIR)
    rows = torch.from_numpy(arrays[f"{case}/attention_last_row"])
    visual = torch.from_numpy(arrays[f"{case}/visual"]).long()
    keep = FastVStep(retention=retention, layer=1).prune(_context(rows, visual)).keep
    expected = arrays[f"{case}/keep"].tolist()
    assert keep.tolist() == expected
    assert arrays[f"{case}/position_ids"].tolist() == expected


@pytest.mark.parametrize(("count", "kept"), [(10, 3), (11, 4), (1, 1)])
def test_the_count_is_rounded_up(count, kept):
    rows = torch.rand(2, count + 1, generator=torch.Generator().manual_seed(0))
    pruned = FastVStep(retention=0.3, layer=1).prune(_context(rows, torch.arange(count)))
    assert len(pruned.keep) == kept + 1


def test_layer_zero_has_no_attention_before_it():
    with pytest.raises(ValueError, match="layer must be 1 or larger"):
        FastVStep(layer=0)
