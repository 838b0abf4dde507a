"""Rows of DeepStack and pruning inside, against the stock layers of Qwen3-VL one by one."""

from dataclasses import dataclass

import pytest
import torch
from small_families import SMALL_FAMILIES
from without_cache import answered, run_whole

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models import load_language_model
from tango_core.models.language.packed_pass import additions, rows_of, visual_span, visual_spans

NAME = "qwen3-vl-8b"
pytestmark = pytest.mark.usefixtures("no_gradients")


@dataclass(frozen=True)
class Fixed(LayerPruner):
    """Keeps given visual tokens, and moves what it keeps a little."""

    stays: tuple[int, ...] = (0, 3, 4, 7, 11)

    def prune(self, context: LayerContext) -> Pruned:
        kept = torch.tensor(self.stays)
        return context.select_merged(kept, context.hidden[context.visual[kept]] * 1.5)


def pruned_by_hand(half, prompt, hidden, layer, stays):
    """Stock layers one by one; the survivors take their own additions along."""
    found = visual_spans(prompt.spans)
    values = torch.cat([span.companions for _, span in found])
    is_visual = torch.zeros(len(prompt), dtype=torch.bool)
    is_visual[rows_of(found)] = True
    positions, model = prompt.positions, half.language_model
    for index, one in enumerate(model.layers):
        if index == layer:
            gone = torch.ones(len(values), dtype=torch.bool)
            gone[list(stays)] = False
            keep = torch.ones(len(is_visual), dtype=torch.bool)
            keep[is_visual.nonzero()[:, 0][gone]] = False
            hidden = torch.where(is_visual[:, None], hidden * 1.5, hidden)[keep]
            positions, is_visual = positions[:, keep], is_visual[keep]
            values = values[~gone]
        rotary = model.rotary_emb(hidden[None], positions[:, None])
        mask = torch.ones(len(hidden), len(hidden), dtype=torch.bool).tril()[None, None]
        hidden = one(hidden[None], attention_mask=mask, position_embeddings=rotary)[0]
        if index < values.shape[1]:
            hidden = hidden.clone()
            hidden[is_visual] = hidden[is_visual] + values[:, index]
    return hidden[-1]


@pytest.mark.parametrize("layer", [0, 1, 2, 3, 4])
def test_survivors_of_pruning_inside_keep_their_own_rows(small_paths, layer):
    family, model = SMALL_FAMILIES[NAME], load_language_model(NAME, small_paths[NAME])
    engine, pruner = model.engine, Fixed(retention=0.5, layer=layer)
    prompt = model.layout.lay_out(family.some(3, 12), family.asked)
    hidden = engine.embed(prompt.spans)
    last = pruned_by_hand(engine.model, prompt, hidden, layer, Fixed.stays)
    first = int(engine.layer_loop.logits(last).argmax())
    for use_cache in (True, False):
        (answer,) = answered(engine, [prompt], pruner=pruner, max_new_tokens=1, use_cache=use_cache)
        assert answer.text == engine.decode_text([first]).strip()
    cpu = torch.device("cpu")
    found = run_whole(
        engine.layer_loop,
        hidden[None],
        prompt.positions[:, None],
        pruner=pruner,
        visual=visual_span(prompt.spans, cpu),
        added=additions(prompt.spans, cpu),
    )
    scale = float(last.abs().max())
    torch.testing.assert_close(found[0, -1], last, rtol=0, atol=2e-5 * scale)
