"""DeepStack in the loop over layers, against the stock text model of Qwen3-VL."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel
from without_cache import answered, run_whole

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models.language.engine import NativeEngine
from tango_core.models.language.packed_pass import visual_span, visual_spans
from tango_core.models.language.prompt import (
    LaidOutPrompt,
    TextTokens,
    VisualTokens,
)
from tango_core.models.language.pruning import Additions

LAYERS, WIDTH, EXTRA, NUM_NEW = 6, 32, 3, 6
GRID = (3, 2, 3)
pytestmark = pytest.mark.usefixtures("no_gradients")


class Half(nn.Module):
    """Layers and output projection, with norms and additions that matter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        config = Qwen3VLTextConfig(
            hidden_size=WIDTH,
            intermediate_size=48,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=60,
            initializer_range=0.4,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 100.0,
                "mrope_section": [4, 2, 2],
            },
        )
        self.language_model = Qwen3VLTextModel._from_config(config, attn_implementation="sdpa")
        self.lm_head = nn.Linear(WIDTH, 60, bias=False)
        for value in self.parameters():
            if value.ndim == 1:
                value.data.uniform_(0.5, 2)
        self.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def half():
    return Half()


@pytest.fixture(scope="module")
def engine(half):
    return NativeEngine(half, lambda ids: " ".join(map(str, ids)), frozenset())


def prompt_of(question, counts=(6, 2, 4), seed=0):
    """Three blocks with text before each; so many tokens of every block."""
    generator = torch.Generator().manual_seed(seed)
    spans, positions, at = [TextTokens((5, 6))], [torch.arange(2).expand(3, -1)], 2
    for block, count in enumerate(counts):
        spans.append(TextTokens((20 + block, 30), of_clip=True))
        positions.append(torch.arange(at, at + 2).expand(3, -1))
        cells = torch.randperm(6, generator=generator)[:count].sort().values
        spans.append(
            VisualTokens(
                torch.randn(count, WIDTH, generator=generator),
                cells + 6 * block,
                GRID,
                torch.randn(count, EXTRA, WIDTH, generator=generator) * 2,
            )
        )
        places = torch.stack([torch.zeros_like(cells), cells // 3, cells % 3])
        positions.append(places + at + 2)
        at += 5
    spans.append(TextTokens(question))
    positions.append(torch.arange(at, at + len(question)).expand(3, -1))
    return LaidOutPrompt(tuple(spans), torch.cat(positions, dim=-1))


QUESTIONS = [(40, 41, 42), (40, 41, 50, 51), (44,)]


def deep_rows(prompt):
    """(S,) where visual tokens are, and their (V, E, D) additions."""
    is_visual = torch.zeros(len(prompt), dtype=torch.bool)
    values = []
    for start, span in visual_spans(prompt.spans):
        is_visual[start : start + len(span)] = True
        values.append(span.companions)
    return is_visual, torch.cat(values)


@dataclass(frozen=True)
class Fixed(LayerPruner):
    """Keeps given visual tokens, and moves what it keeps a little."""

    stays: tuple[int, ...] = (0, 3, 4, 7, 11)

    def prune(self, context: LayerContext) -> Pruned:
        kept = torch.tensor(self.stays, device=context.hidden.device)
        assert context.hidden[context.after :].shape[0] >= 1
        return context.select_merged(kept, context.hidden[context.visual[kept]] * 1.5)


def pruned_by_hand(half, prompt, hidden, layer, stays):
    """Stock layers one by one; the survivors take their own additions along."""
    is_visual, values = deep_rows(prompt)
    positions, model = prompt.positions, half.language_model
    for index, one in enumerate(model.layers):
        if index == layer:
            visual = is_visual.nonzero()[:, 0]
            gone = torch.ones(len(visual), dtype=torch.bool)
            gone[list(stays)] = False
            keep = torch.ones(len(is_visual), dtype=torch.bool)
            keep[visual[gone]] = False
            hidden = torch.where(is_visual[:, None], hidden * 1.5, hidden)[keep]
            positions, is_visual = positions[:, keep], is_visual[keep]
            values = values[~gone]
        rotary = model.rotary_emb(hidden[None], positions[:, None])
        mask = torch.ones(len(hidden), len(hidden), dtype=torch.bool).tril()[None, None]
        hidden = one(hidden[None], attention_mask=mask, position_embeddings=rotary)[0]
        if index < EXTRA:
            hidden = hidden.clone()
            hidden[is_visual] = hidden[is_visual] + values[:, index]
    return hidden[-1]


@pytest.mark.parametrize("layer", [0, 1, 2, 3, 4])
def test_survivors_of_pruning_inside_keep_their_own_rows(half, engine, layer):
    pruner = Fixed(retention=0.5, layer=layer)
    prompt = prompt_of(QUESTIONS[0])
    hidden = engine.embed(prompt.spans)
    last = pruned_by_hand(half, prompt, hidden, layer, Fixed.stays)
    first = int(half.lm_head(half.language_model.norm(last)).argmax())
    for use_cache in (True, False):
        (answer,) = answered(engine, [prompt], pruner=pruner, max_new_tokens=1, use_cache=use_cache)
        assert answer.text == str(first)
    is_visual, values = deep_rows(prompt)
    rows = is_visual.nonzero()[:, 0]
    found = run_whole(
        engine.layer_loop,
        hidden[None],
        prompt.positions[:, None],
        pruner=pruner,
        visual=engine_span(prompt),
        added=Additions(rows, values),
    )
    torch.testing.assert_close(found[0, -1], last, rtol=1e-4, atol=1e-4)


def engine_span(prompt):

    return visual_span(prompt.spans, torch.device("cpu"))
