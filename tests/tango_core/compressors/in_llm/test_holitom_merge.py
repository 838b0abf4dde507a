"""HoliTom's step inside the language model, against the official release and its own definition."""

import pytest
import torch
from layer_contexts import recorded, recorded_context

from tango_core.compressors import build_method, equivalent_retention
from tango_core.compressors.in_llm.fastv import HoliTomMerge


def test_positions_and_states_are_those_of_the_release():
    context = recorded_context(layer=18)
    before = context.hidden.clone()
    pruned = HoliTomMerge(retention=0.5).prune(context)
    data = recorded()
    assert pruned.keep.tolist() == data["holitom_M_r0.5/keep_positions"].tolist()
    torch.testing.assert_close(
        pruned.hidden, data["holitom_M_r0.5/hidden"][0], rtol=1e-5, atol=1e-6
    )
    assert torch.equal(context.hidden, before)


@pytest.mark.parametrize("retention", [0.02, 0.1, 0.3, 0.9])
def test_all_at_once_is_the_halving_one_by_one(retention):
    context = recorded_context(layer=18)
    pruned = HoliTomMerge(retention=retention).prune(context)
    kept = pruned.keep[7:-12] - 7
    states = context.hidden[context.visual].clone()
    dropped = [i for i in range(41) if i not in kept.tolist()]
    target = torch.nn.functional.normalize(states[dropped], dim=-1) @ (
        torch.nn.functional.normalize(states[kept], dim=-1).T
    )
    for token, nearest in zip(dropped, target.argmax(-1).tolist(), strict=True):
        states[kept[nearest]] = (states[kept[nearest]] + states[token]) / 2
    torch.testing.assert_close(pruned.hidden[7:-12], states[kept], rtol=1e-5, atol=1e-6)


def test_hundreds_merged_into_one_stay_finite():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(402, 8, generator=generator)
    context = recorded_context(
        hidden=hidden,
        visual=torch.arange(1, 401),
        after=401,
        num_visual=400,
        attention=lambda rows: torch.full((1, len(rows), 402), 1 / 402),
    )
    pruned = HoliTomMerge(retention=0.001).prune(context)
    expected = hidden[1]
    for token in hidden[2:401]:
        expected = (expected + token) / 2
    torch.testing.assert_close(pruned.hidden[1], expected, rtol=1e-5, atol=1e-6)


def test_as_inner_step_of_a_hybrid_the_average_is_met():
    inner = {"name": "holitom-merge"}
    method = build_method("holitom", retention=0.1, inner=inner)
    assert isinstance(method.pruner, HoliTomMerge)
    assert method.compressor.outer_retention == pytest.approx(0.121739, abs=1e-6)
    assert equivalent_retention(method) == pytest.approx(0.1, abs=1e-12)


def test_the_first_layer_has_no_attention_before_it():
    with pytest.raises(ValueError, match="layer must be 1 or larger"):
        HoliTomMerge(layer=0)
