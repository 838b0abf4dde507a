"""FastV and the inner steps that choose as it does, against the official releases and by hand."""

import official
import pytest
import torch
from golden_files import GOLDEN2_DIR
from layer_contexts import recorded, recorded_context

from tango_core.compressors.base import LayerContext
from tango_core.compressors.in_llm.fastv import FastV, FastVMerge, FastVStep, HoliTomMerge


def averaged(local, layer=2, num_layers=28):
    return (layer + (num_layers - layer) * local) / num_layers


@pytest.mark.parametrize("local", [0.5, 0.25])
def test_positions_are_those_of_the_release(local):
    context = recorded_context()
    pruned = FastV(retention=averaged(local)).prune(context)
    assert pruned.keep.tolist() == recorded()[f"tango_dagger_r{local}/keep_positions"].tolist()
    assert torch.equal(pruned.hidden, context.hidden[pruned.keep])


@pytest.mark.parametrize(
    ("retention", "local"), [(0.10, 0.0308), (0.15, 0.0846), (0.20, 0.1385), (1.0, 1.0)]
)
def test_layer_2_of_28_turns_the_average_into_the_local_share(retention, local):
    shares = FastV(retention=retention).layer_shares(28)
    assert shares[:2] == (1.0, 1.0)
    assert shares[2:] == pytest.approx([local] * 26, abs=5e-5)
    assert sum(shares) / 28 == pytest.approx(retention, abs=1e-11)


def test_equal_scores_keep_the_first_tokens():
    uniform = torch.full((2, 60, 60), 1 / 60)
    context = recorded_context(attention=lambda rows: uniform[:, rows])
    pruned = FastV(retention=averaged(10 / 41)).prune(context)
    assert pruned.keep.tolist() == [*range(17), *range(48, 60)]


@pytest.mark.parametrize(
    ("step", "case"),
    [
        (FastVMerge(0.5), "tango_dagger_r0.5"),
        (FastVMerge(0.25), "tango_dagger_r0.25"),
        (HoliTomMerge(0.5), "holitom_M_r0.5"),
    ],
    ids=str,
)
def test_positions_and_merged_states_are_those_of_the_release(step, case):
    data, context = recorded(), recorded_context(layer=18)
    before = context.hidden.clone()
    pruned = step.prune(context)
    assert pruned.keep.tolist() == data[f"{case}/keep_positions"].tolist()
    merged = data[f"{case}/hidden"][0]
    torch.testing.assert_close(pruned.hidden, merged, rtol=1e-5, atol=1e-6)
    assert torch.equal(context.hidden, before)


@pytest.mark.parametrize("step", [FastV, FastVMerge, FastVStep, HoliTomMerge])
def test_the_first_layer_has_no_attention_before_it(step):
    with pytest.raises(ValueError, match="layer must be 1 or larger"):
        step(retention=0.5, layer=0)


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
