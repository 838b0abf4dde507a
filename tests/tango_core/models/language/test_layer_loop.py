from dataclasses import dataclass

import pytest
import torch
from llava_checkpoints import WIDTH
from torch import Tensor
from without_cache import run_whole

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models import load_language_model
from tango_core.models.language.layer_loop import LayerLoop, VisualSpan

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
class AsksForPrecision(Recorder):
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
        assert RECORDED["precision"] == ["ieee"] * 2
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
