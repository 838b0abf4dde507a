"""The attention that pruners are shown, against what stock eager layers return."""

import pytest
import torch
from rounding import assert_equal_but_for_rounding
from transformers import (
    AutoModel,
    DynamicCache,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from without_cache import run_whole

from tango_core.compressors.base import LayerPruner, Pruned
from tango_core.models.language.attention import KNOWN_CLASSES
from tango_core.models.language.layer_loop import LayerLoop, VisualSpan

LENGTH, WIDTH = 12, 32
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "initializer_range": 0.4,
}
# Products in the sums of all layers: four projections and three of the gated network each.
TERMS = SIZES["num_hidden_layers"] * (4 * WIDTH + 3 * SIZES["intermediate_size"])
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
CONFIGS = {
    "qwen2": Qwen2Config(**SIZES),
    "qwen2 window": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen2.5-vl": Qwen2_5_VLTextConfig(**SIZES, rope_parameters=MROPE),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3-vl": Qwen3VLTextConfig(
        **SIZES, head_dim=16, rope_parameters={**MROPE, "mrope_section": [4, 2, 2]}
    ),
    **{
        name: Qwen3_5TextConfig(
            **SIZES,
            head_dim=16,
            layer_types=kinds,
            rope_parameters={**MROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5},
        )
        for name, kinds in (
            ("qwen3.5 vl", ["full_attention"] * 3),
            ("qwen3.5 linear", ["linear_attention", "full_attention", "linear_attention"]),
        )
    },
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral window": MistralConfig(**SIZES, sliding_window=4),
}
SUPPORTED = ("qwen2", "qwen2.5-vl", "qwen3", "qwen3-vl", "qwen3.5 vl", "llama", "mistral")


def stock(name, implementation="eager"):
    """A model whose norms and biases are random as well, so that leaving one out shows."""
    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIGS[name], attn_implementation=implementation).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.uniform_(0.5, 2)
    return model.requires_grad_(False)


def states_and_positions(name):
    hidden = torch.randn(1, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(0, 2 * LENGTH, 2)[None]
    return hidden, positions.expand(3, 1, -1) if "vl" in name else positions


def test_every_known_class_is_compared():
    layers = [stock(name).layers[0] for name in CONFIGS]
    classes = {type(getattr(one, "linear_attn", None) or one.self_attn) for one in layers}
    assert {f"{cls.__module__}.{cls.__qualname__}" for cls in classes} == KNOWN_CLASSES


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_loop_shows_pruners_the_attention_of_its_layers(name):
    seen = {}

    class Recorder(LayerPruner):
        def layers(self, num_layers):
            return (1, 2)

        def prune(self, context):
            rows = torch.arange(LENGTH)
            some = torch.tensor([11, 0, 7])
            torch.testing.assert_close(context.attention(some), context.attention(rows)[:, some])
            parts = context.attention(rows), context.attention_ahead(rows), context.keys()
            seen[context.layer] = parts
            return Pruned(rows, context.hidden)

    hidden, positions = states_and_positions(name)
    cache = DynamicCache()
    expected = stock(name)(
        inputs_embeds=hidden,
        position_ids=positions,
        output_attentions=True,
        past_key_values=cache,
    )
    layer_loop = LayerLoop(stock(name, "sdpa"), torch.nn.Identity())
    span = VisualSpan(torch.arange(2, 8), torch.arange(6), (1, 2, 3), hidden.shape[1] - 8)
    output = run_whole(layer_loop, hidden, positions, pruner=Recorder(1.0, 1), visual=span)
    torch.testing.assert_close(
        layer_loop.norm(output), expected.last_hidden_state, rtol=1e-4, atol=1e-4
    )
    for layer, (before, ahead, keys) in seen.items():
        own = cache.layers[layer - 1].keys[0].transpose(0, 1).flatten(1)
        torch.testing.assert_close(keys, own, rtol=1e-5, atol=1e-5)
        assert_equal_but_for_rounding(before, expected.attentions[layer - 1][0], TERMS)
        assert_equal_but_for_rounding(ahead, expected.attentions[layer][0], TERMS)


def gpt_oss():
    """Attention with sinks: a share of the probability goes to no token at all."""
    config = GptOssConfig(
        **SIZES, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=None
    )
    return AutoModel.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (gpt_oss, "attention of class GptOssAttention is not supported; .*Qwen2Attention"),
        (lambda: stock("mistral window", "sdpa"), "layer 0 .* sliding window of 4 tokens"),
        (lambda: stock("qwen2 window", "sdpa"), "layer 1 .* sliding window of 5 tokens"),
    ],
    ids=["sinks", "mistral window", "qwen2 window"],
)
def test_what_the_loop_does_not_compute_is_refused(build, words):
    with pytest.raises(ValueError, match=words) as error:
        LayerLoop(build(), torch.nn.Identity())
    assert "\n" not in str(error.value)
