from dataclasses import dataclass

import pytest
import torch
from llava_checkpoints import WIDTH
from rounding import assert_equal_but_for_rounding
from torch import Tensor
from without_cache import run_whole

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models import load_language_model
from tango_core.models.language.layer_loop import LayerLoop, VisualSpan
from tango_core.models.language.packed_pass import Segment, SequenceState, run_segments
from tango_core.models.language.prompt import VisualTokens

START, NUM_VISUAL, LENGTH = 3, 12, 20
SPAN = VisualSpan(
    torch.arange(START, START + NUM_VISUAL), torch.arange(NUM_VISUAL), (1, 3, 4), LENGTH - 15
)


@dataclass(frozen=True)
class Recorder(LayerPruner):
    """Keeps everything and remembers what it saw."""

    def layers(self, num_layers: int) -> tuple[int, ...]:
        return (1, 3)

    def prune(self, context: LayerContext) -> Pruned:
        seen = context.scratch.setdefault("layers", [])
        seen.append(context.layer)
        RECORDED[context.layer] = list(seen)
        return Pruned(torch.arange(len(context.hidden)), context.hidden)


@dataclass(frozen=True)
class DropOdd(LayerPruner):
    """Drops every second visual token in each of three layers, and remembers what was left."""

    def layers(self, num_layers: int) -> tuple[int, ...]:
        return (0, 1, 3)

    def prune(self, context: LayerContext) -> Pruned:
        RECORDED[context.layer] = (context.visual.tolist(), context.previous_visual.tolist())
        positions = torch.arange(len(context.hidden))
        keep = positions[~torch.isin(positions, context.visual[1::2])]
        return Pruned(keep, context.hidden[keep])


RECORDED: dict = {}


@pytest.fixture(scope="module")
def layer_loop(checkpoint) -> LayerLoop:
    return load_language_model("llava-onevision-7b", str(checkpoint)).engine.layer_loop


@pytest.fixture(scope="module")
def hidden() -> Tensor:
    return torch.randn(1, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def gapped() -> Tensor:
    """Positions with gaps, as after dropping tokens before the language model."""
    return torch.tensor(
        [[0, 1, 2, 4, 5, 9, 11, 12, 20, 21, 30, 31, 33, 35, 36, 51, 52, 53, 54, 55]]
    )


@torch.no_grad()
def test_a_pruner_that_keeps_everything_changes_nothing(layer_loop, hidden, gapped):
    """Its scratch lives from layer to layer of one prompt."""
    for _ in range(2):
        pruned = run_whole(layer_loop, hidden, gapped, pruner=Recorder(1.0, 1), visual=SPAN)
        assert torch.equal(pruned, run_whole(layer_loop, hidden, gapped))
        assert (RECORDED[1], RECORDED[3]) == ([1], [1, 3])


@torch.no_grad()
def test_several_prunings_keep_track_of_the_original_tokens(layer_loop, hidden, gapped):
    output = run_whole(layer_loop, hidden, gapped, pruner=DropOdd(0.5, 0), visual=SPAN)
    assert RECORDED[0] == (list(range(3, 15)), list(range(12)))
    assert RECORDED[1] == (list(range(3, 9)), [0, 2, 4, 6, 8, 10])
    assert RECORDED[3] == (list(range(3, 6)), [0, 4, 8])
    assert output.shape == (1, 10, WIDTH)


@torch.no_grad()
def test_rows_that_go_on_from_a_prefix_are_those_of_the_whole(layer_loop, hidden, gapped):
    """The prefix, two ways to go on from it, and another sequence, in one pass."""
    whole = run_whole(layer_loop, hidden, gapped)[0]
    indices = torch.full((LENGTH,), -1)
    whole_cache, prefix, first_cache, second_cache = (
        SequenceState(layer_loop.config, LENGTH) for _ in range(4)
    )
    rows = VisualTokens(hidden[0], indices, (1, 1, LENGTH))
    first, second = (
        VisualTokens(hidden[0, part], indices[part], (1, 1, LENGTH))
        for part in (slice(13), slice(13, LENGTH))
    )
    places = gapped[0]
    output = run_segments(
        layer_loop,
        [
            Segment([rows], places, whole_cache),
            Segment([first], places[:13], prefix),
            Segment([second], places[13:], first_cache, prefix),
            Segment([second], places[13:], second_cache, prefix),
        ],
    )
    # Sums of a layer: three projections in and one out of the attention, two of the network.
    terms = len(layer_loop.layers) * (4 * whole.shape[-1] + 2 * LENGTH)
    for at, row in enumerate((LENGTH - 1, 12, LENGTH - 1, LENGTH - 1)):
        assert_equal_but_for_rounding(output[at], whole[row], terms)
    for layer in range(len(layer_loop.layers)):
        for cache in (first_cache, second_cache):
            assert cache.lengths[layer] == LENGTH
            held, expected = (one.held(layer) for one in (cache, whole_cache))
            assert_equal_but_for_rounding(held, expected, terms)


@pytest.mark.parametrize(
    "keep",
    [
        [0, 1, *range(3, 20)],
        [*range(18)],
        [*range(4), 3, *range(15, 20)],
        [*range(14), *range(16, 20)],
    ],
    ids=["first text dropped", "last text dropped", "not ascending", "text dropped for a visual"],
)
def test_a_pruner_that_drops_text_is_refused(layer_loop, hidden, gapped, keep):
    @dataclass(frozen=True)
    class Wrong(LayerPruner):
        def prune(self, context: LayerContext) -> Pruned:
            return Pruned(torch.tensor(keep), context.hidden[keep])

    with pytest.raises(ValueError, match=r"Wrong at layer 2 must return ascending") as error:
        run_whole(layer_loop, hidden, gapped, pruner=Wrong(0.5, 2), visual=SPAN)
    assert "\n" not in str(error.value)


@dataclass(frozen=True)
class AsksForPrecision(DropOdd):
    """Notes how float32 is multiplied while it prunes."""

    def prune(self, context: LayerContext) -> Pruned:
        RECORDED.setdefault("precision", []).append(torch.backends.cuda.matmul.fp32_precision)
        return super().prune(context)


@torch.no_grad()
def test_pruners_multiply_in_full_precision_whatever_is_set(layer_loop, hidden, gapped):
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        RECORDED.clear()
        run_whole(layer_loop, hidden, gapped, pruner=AsksForPrecision(0.5, 1), visual=SPAN)
        assert RECORDED["precision"] == ["ieee"] * 3
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
