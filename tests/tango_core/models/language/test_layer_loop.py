from dataclasses import dataclass

import pytest
import torch
from llava_checkpoints import WIDTH
from rounding import assert_equal_but_for_rounding
from torch import Tensor
from transformers import AutoModel, DynamicCache, Qwen2Config

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models import load_language_model
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.packed_pass import KeysValues, Segment, run_segments
from tango_core.models.language.prompt import VisualTokens
from tango_core.models.language.pruning import VisualSpan

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
        RECORDED[context.layer] = (
            context.attention(torch.arange(len(context.hidden))),
            context.keys(),
            list(seen),
        )
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
def eager(stock):
    """The same text model, all of it with attention that shows its probabilities."""
    model = AutoModel.from_config(stock.config.text_config, attn_implementation="eager").eval()
    model.load_state_dict(stock.model.language_model.state_dict())
    return model


@pytest.fixture(scope="module")
def hidden() -> Tensor:
    return torch.randn(1, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def gapped() -> Tensor:
    """Positions with gaps, as after dropping tokens before the language model."""
    return torch.tensor(
        [[0, 1, 2, 4, 5, 9, 11, 12, 20, 21, 30, 31, 33, 35, 36, 51, 52, 53, 54, 55]]
    )


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
        layer_loop.run(hidden, gapped, pruner=AsksForPrecision(0.5, 1), visual=SPAN)
        assert RECORDED["precision"] == ["ieee"] * 3
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


@torch.no_grad()
def test_attention_and_keys_are_those_of_the_layer_before(layer_loop, eager, hidden, gapped):
    cache = DynamicCache()
    stock = eager(
        inputs_embeds=hidden, position_ids=gapped, output_attentions=True, past_key_values=cache
    )
    layer_loop.run(hidden, gapped, pruner=Recorder(1.0, 1), visual=SPAN)
    for layer in (1, 3):
        attention, keys, _ = RECORDED[layer]
        torch.testing.assert_close(attention, stock.attentions[layer - 1][0], rtol=1e-4, atol=1e-6)
        expected = cache.layers[layer - 1].keys[0].transpose(0, 1).flatten(1)
        torch.testing.assert_close(keys, expected, rtol=1e-4, atol=1e-5)
    assert RECORDED[3][2] == [1, 3]


@torch.no_grad()
def test_a_pruner_that_keeps_everything_changes_nothing(layer_loop, hidden, gapped):
    pruned = layer_loop.run(hidden, gapped, pruner=Recorder(1.0, 1), visual=SPAN)
    assert torch.equal(pruned, layer_loop.run(hidden, gapped))


@torch.no_grad()
def test_scratch_is_empty_for_every_prompt(layer_loop, hidden, gapped):
    for _ in range(2):
        layer_loop.run(hidden, gapped, pruner=Recorder(1.0, 1), visual=SPAN)
        assert RECORDED[1][2] == [1]


@torch.no_grad()
def test_several_prunings_keep_track_of_the_original_tokens(layer_loop, hidden, gapped):
    output = layer_loop.run(hidden, gapped, pruner=DropOdd(0.5, 0), visual=SPAN)
    assert RECORDED[0] == (list(range(3, 15)), list(range(12)))
    assert RECORDED[1] == (list(range(3, 9)), [0, 2, 4, 6, 8, 10])
    assert RECORDED[3] == (list(range(3, 6)), [0, 4, 8])
    assert output.shape == (1, 10, WIDTH)


@torch.no_grad()
def test_rows_that_go_on_from_a_prefix_are_those_of_the_whole(layer_loop, hidden, gapped):
    """The prefix, two ways to go on from it, and another sequence, in one pass."""
    whole = layer_loop.run(hidden, gapped)[0]
    indices = torch.full((LENGTH,), -1)
    whole_cache, first_cache, second_cache = (
        KeysValues(len(layer_loop.layers), LENGTH) for _ in range(3)
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
            Segment([first], places[:13], first_cache),
            Segment([second], places[13:], first_cache),
            Segment([second], places[13:], second_cache, first_cache, shared=13),
        ],
    )
    # Sums of a layer: three projections in and one out of the attention, two of the network.
    terms = len(layer_loop.layers) * (4 * whole.shape[-1] + 2 * LENGTH)
    for at, row in enumerate((LENGTH - 1, 12, LENGTH - 1, LENGTH - 1)):
        assert_equal_but_for_rounding(output[at], whole[row], terms)
    for layer in range(len(layer_loop.layers)):
        for cache in (first_cache, second_cache):
            assert cache.lengths[layer] == LENGTH
            held, expected = (one.first(layer, LENGTH) for one in (cache, whole_cache))
            assert_equal_but_for_rounding(held, expected, terms)


@torch.no_grad()
def test_positions_with_an_axis_of_their_own_are_passed_through(hidden):
    """Three rows of positions, as the multimodal rotary embedding of Qwen2.5-VL has them."""
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig

    torch.manual_seed(0)
    config = Qwen2_5_VLTextConfig(
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=64,
        initializer_range=0.4,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1]},
    )
    stock = AutoModel.from_config(config, attn_implementation="eager").eval()
    positions = torch.arange(LENGTH).repeat(3, 1, 1)
    positions[1:, :, START : START + NUM_VISUAL] //= 2
    head = torch.nn.Linear(WIDTH, 64, bias=False)
    layer_loop = LayerLoop(stock, head)
    expected = stock(inputs_embeds=hidden, position_ids=positions, output_attentions=True)
    # The stock module keeps its eager attention, which needs the mask spelled out.
    with pytest.raises(ValueError, match="eager attention is causal only with a mask"):
        layer_loop.run(hidden, positions)
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
    output = layer_loop.run(hidden, positions, mask=mask)
    torch.testing.assert_close(layer_loop.norm(output), expected.last_hidden_state)
    fused = AutoModel.from_config(config, attn_implementation="sdpa").eval()
    fused.load_state_dict(stock.state_dict())
    LayerLoop(fused, head).run(hidden, positions, pruner=Recorder(1.0, 1), visual=SPAN)
    torch.testing.assert_close(RECORDED[3][0], expected.attentions[2][0], rtol=1e-4, atol=1e-6)
    shortened = LayerLoop(fused, head).run(hidden, positions, pruner=DropOdd(0.5, 0), visual=SPAN)
    assert shortened.shape[1] == 10


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
        layer_loop.run(hidden, gapped, pruner=Wrong(0.5, 2), visual=SPAN)
    assert "\n" not in str(error.value)


def test_a_layer_the_model_does_not_have_is_refused(layer_loop, hidden, gapped):
    @dataclass(frozen=True)
    class Late(LayerPruner):
        def prune(self, context: LayerContext) -> Pruned:
            raise AssertionError

    with pytest.raises(ValueError, match="below the language model's 4 layers, got 4"):
        layer_loop.run(hidden, gapped, pruner=Late(0.5, 4), visual=SPAN)


def test_layer_zero_has_no_attention_to_look_at(layer_loop, hidden, gapped):
    @dataclass(frozen=True)
    class Early(LayerPruner):
        def prune(self, context: LayerContext) -> Pruned:
            context.attention(torch.tensor([0]))
            raise AssertionError

    with pytest.raises(ValueError, match="set layer to 1 or larger"):
        layer_loop.run(hidden, gapped, pruner=Early(0.5, 0), visual=SPAN)


def test_sliding_windows_are_refused():
    config = Qwen2Config(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=8,
        vocab_size=8,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
    )
    with pytest.raises(ValueError, match="sliding window of 4 tokens"):
        LayerLoop(AutoModel.from_config(config), torch.nn.Linear(8, 8))
