"""The in-LLM step of the dagger setting, against the official release."""

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR

from tango_core.compressors.base import LayerContext
from tango_core.compressors.in_llm.fastv import FastVMerge

GOLDEN = GOLDEN_DIR / "inllm_and_related.npz"


def _context(hidden, attention, start, num_visual, layer=18):
    """What a language model would offer, from recorded states and probabilities."""
    return LayerContext(
        layer=layer,
        num_layers=28,
        hidden=hidden,
        visual=torch.arange(start, start + num_visual),
        after=start + num_visual,
        num_visual=num_visual,
        previous_visual=torch.arange(num_visual),
        grid=(1, 1, num_visual),
        visual_indices=torch.arange(num_visual),
        attention=lambda rows: attention[:, rows],
        keys=lambda: torch.empty(len(hidden), 0),
        norm=torch.nn.Identity(),
    )


def _recorded():
    with np.load(GOLDEN) as data:
        return {key: torch.from_numpy(data[key]) for key in data.files}


@pytest.mark.parametrize("retention", [0.5, 0.25])
def test_positions_and_states_are_those_of_the_release(retention):
    data = _recorded()
    hidden = data["hidden"][0]
    context = _context(hidden, data["attn"][0], int(data["start"]), int(data["n_video"]))
    before = hidden.clone()
    pruned = FastVMerge(retention=retention).prune(context)
    expected = data[f"tango_dagger_r{retention}/keep_positions"]
    assert pruned.keep.tolist() == expected.tolist()
    merged = data[f"tango_dagger_r{retention}/hidden"][0]
    torch.testing.assert_close(pruned.hidden, merged, rtol=1e-5, atol=1e-6)
    assert torch.equal(hidden, before)


def test_keeping_everything_changes_nothing():
    data = _recorded()
    hidden = data["hidden"][0]
    context = _context(hidden, data["attn"][0], int(data["start"]), int(data["n_video"]))
    pruned = FastVMerge(retention=1.0).prune(context)
    assert pruned.keep.tolist() == list(range(len(hidden)))
    assert torch.equal(pruned.hidden, hidden)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_states_keep_their_dtype(dtype):
    data = _recorded()
    hidden = data["hidden"][0].to(dtype)
    context = _context(hidden, data["attn"][0], int(data["start"]), int(data["n_video"]))
    assert FastVMerge().prune(context).hidden.dtype == dtype


def test_the_first_layer_has_no_attention_before_it():
    with pytest.raises(ValueError, match="layer must be 1 or larger"):
        FastVMerge(layer=0)
