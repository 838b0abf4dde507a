"""Costs against what torch counts on a real decoder, and against printed tables."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

from tango_core.flops import lengths_per_layer, prefill_flops
from tango_core.models.base import LinearAttention, LLMShape

TINY = LLMShape(3, 64, 112, 4, 2, 16, 50)


@pytest.fixture(scope="module")
def tiny_qwen2():
    config = Qwen2Config(
        num_hidden_layers=TINY.num_layers,
        hidden_size=TINY.hidden_size,
        intermediate_size=TINY.intermediate_size,
        num_attention_heads=TINY.num_heads,
        num_key_value_heads=TINY.num_kv_heads,
        vocab_size=TINY.vocab_size,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config).eval()


def count(module, *args, **kwargs):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*args, **kwargs)
    return counter.get_total_flops()


@pytest.mark.parametrize("length", [1, 7, 64, 301])
def test_count_is_what_torch_counts_on_a_real_decoder(tiny_qwen2, length):
    ids = torch.arange(length)[None] % TINY.vocab_size
    measured = count(tiny_qwen2, input_ids=ids, logits_to_keep=1, use_cache=False)
    assert prefill_flops(TINY, length, causal=False) == measured


@pytest.mark.parametrize("length", [1, 63, 64, 130])
def test_linear_attention_costs_what_torch_counts(length):
    config = Qwen3_5TextConfig(
        num_hidden_layers=4,
        hidden_size=40,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=12,
        linear_value_head_dim=20,
        vocab_size=50,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 0]},
    )
    shape = LLMShape.of(config)
    assert shape == LLMShape(
        4, 40, 96, 4, 2, 16, 50, True, LinearAttention((0, 1, 2), 2, 4, 12, 20, 4)
    )
    model = Qwen3_5TextModel._from_config(config, attn_implementation="eager").eval()
    measured = count(model, inputs_embeds=torch.zeros(1, length, 40), use_cache=False)
    measured += count(torch.nn.Linear(40, 50, bias=False), torch.zeros(1, 40))
    # transformers convolves over the padding behind the sequence, and drops that.
    measured -= 3 * 2 * 3 * 4 * shape.linear.mixed_width
    assert prefill_flops(shape, length, causal=False) == measured
    assert prefill_flops(shape, length) < measured or length == 1


def test_layers_of_different_length_cost_what_torch_counts_layer_by_layer(tiny_qwen2):
    lengths = (90, 90, 17)
    measured = 0
    for layer, length in zip(tiny_qwen2.model.layers, lengths, strict=True):
        hidden, positions = torch.zeros(1, length, TINY.hidden_size), torch.arange(length)[None]
        angles = tiny_qwen2.model.rotary_emb(hidden, positions)
        measured += count(layer, hidden, position_embeddings=angles, position_ids=positions)
    measured += count(tiny_qwen2.lm_head, torch.zeros(1, 1, TINY.hidden_size))
    assert prefill_flops(TINY, lengths, causal=False) == measured


def test_text_tokens_are_never_dropped_inside_the_decoder():
    assert lengths_per_layer(130, 100, (1.0, 1.0, 0.25)) == (130, 130, 55)
