"""What every in-LLM method promises, over retentions, precisions and shapes of prompts."""

from statistics import fmean

import pytest
import torch
from layer_contexts import HandMade, walk

from tango_core.compressors import METHODS, build_method, equivalent_retention
from tango_core.compressors.base import LayerPruner
from tango_core.compressors.hybrid import INNER, checked_inner

STANDALONE = sorted(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner))
NUM_LAYERS = 28
RETENTIONS = [0.1, 0.2, 0.5, 0.95, 1.0]
PROMPTS = {
    "plain": {},
    "one-token": {"grid": (1, 1, 1)},
    "one-frame": {"grid": (1, 6, 6)},
    "one-cell": {"grid": (16, 1, 1)},
    "not-square": {"grid": (4, 3, 7)},
    "one-newline": {"grid": (4, 3, 3), "newlines": "end"},
    "newline-per-row": {"grid": (4, 3, 3), "newlines": "rows"},
    "no-text-before": {"left": 0},
    "one-text-token": {"left": 0, "right": 1},
    "frozen": {"change": 0.0},
}


def build(name, retention):
    if name in INNER:
        return checked_inner("tango", {"name": name, "retention": retention}, NUM_LAYERS)[1]
    return build_method(name, retention=retention).pruner


@pytest.mark.parametrize("name", [*STANDALONE, *sorted(INNER)])
@pytest.mark.parametrize("kind", PROMPTS)
class TestEveryPruner:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_text_stays_and_positions_ascend(self, name, kind, dtype):
        prompt = HandMade(**PROMPTS[kind], dtype=dtype)
        for retention in RETENTIONS:
            for context, pruned in walk(build(name, retention), NUM_LAYERS, prompt)[1]:
                keep = pruned.keep.tolist()
                assert pruned.keep.dtype == torch.int64
                assert keep == sorted(set(keep))
                text = [
                    *range(context.visual.start),
                    *range(context.visual.stop, len(context.hidden)),
                ]
                assert set(text) <= set(keep) <= set(range(len(context.hidden)))
                assert len(keep) > len(text)
                assert pruned.hidden.dtype == dtype
                assert pruned.hidden.shape == (len(keep), context.hidden.shape[1])
                assert pruned.hidden.isfinite().all()
                is_text = torch.isin(pruned.keep, torch.tensor(text, dtype=torch.int64))
                assert torch.equal(pruned.hidden[is_text], context.hidden[text])

    def test_retention_one_keeps_all(self, name, kind):
        prompt = HandMade(**PROMPTS[kind])
        for context, pruned in walk(build(name, 1.0), NUM_LAYERS, prompt)[1]:
            assert pruned.keep.tolist() == list(range(len(context.hidden)))
            assert torch.equal(pruned.hidden, context.hidden)

    def test_same_input_gives_the_same_bytes(self, name, kind):
        first, second = (
            walk(build(name, 0.3), NUM_LAYERS, HandMade(**PROMPTS[kind]))[1] for _ in range(2)
        )
        for (_, one), (_, other) in zip(first, second, strict=True):
            assert torch.equal(one.keep, other.keep)
            assert torch.equal(one.hidden, other.hidden)

    @pytest.mark.parametrize("retention", [0.3, 1.0])
    def test_writing_to_the_result_leaves_the_input_alone(self, name, kind, retention):
        for context, pruned in walk(build(name, retention), NUM_LAYERS, HandMade(**PROMPTS[kind]))[
            1
        ]:
            assert pruned.hidden.untyped_storage().data_ptr() != (
                context.hidden.untyped_storage().data_ptr()
            )


@pytest.mark.parametrize("retention", [0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.0])
class TestEveryStandaloneMethod:
    @pytest.mark.parametrize("name", STANDALONE)
    def test_nominal_shares_average_to_the_retention(self, name, retention):
        method = build_method(name, retention=retention)
        shares = method.pruner.layer_shares(NUM_LAYERS)
        assert len(shares) == NUM_LAYERS
        assert all(0 < share <= 1 + 1e-12 for share in shares)
        assert fmean(shares) == pytest.approx(retention, abs=1e-11)
        assert equivalent_retention(method) == pytest.approx(retention, abs=1e-11)

    # FrameFusion promises only the average: see test_framefusion.py.
    @pytest.mark.parametrize("name", [name for name in STANDALONE if name != "framefusion"])
    def test_counts_follow_the_nominal_shares(self, name, retention):
        # DART keeps its 4 visual pivots on top of what 8 pivots take, each rounded down.
        below, above = (8, 4) if name == "dart" else (1, 1)
        pruner = build_method(name, retention=retention).pruner
        counts, _ = walk(pruner, NUM_LAYERS, HandMade(grid=(8, 8, 8), dim=8))
        for count, share in zip(counts, pruner.layer_shares(NUM_LAYERS), strict=True):
            assert -below <= count - 512 * share <= above


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fastv", {}),
        ("dart", {}),
        ("pyramiddrop", {"stages": [7, 14, 21]}),
        ("sparsevlm", {}),
        ("framefusion", {}),
    ],
)
def test_what_cannot_be_reached_names_retention_and_what_is_possible(name, options):
    message = r"retention 0\.02 cannot be reached with (layer|stages)=.* average to 0\.\d+; "
    with pytest.raises(ValueError, match=message) as error:
        build_method(name, retention=0.02, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted(INNER))
def test_the_share_of_an_inner_step_is_its_own(name):
    assert build(name, 0.5).layer_shares(28) == (1.0,) * 18 + (0.5,) * 10
