"""In-LLM methods through the real loop, against a plain one without cache or kernels."""

import math

import pytest
import torch
from attentive_layers import (
    GRID,
    NUM_LAYERS,
    PRUNERS,
    WIDTH,
    attentive_qwen2,
    changing_frames,
    pruner_of,
)
from rounding import assert_equal_but_for_rounding
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb, repeat_kv
from without_cache import run_whole

from tango_core.compressors.base import LayerContext
from tango_core.models.language.batching import most_likely
from tango_core.models.language.layer_loop import LayerLoop, VisualSpan
from tango_core.models.language.packed_pass import (
    Segment,
    SequenceState,
    embed_spans,
    run_segments,
)
from tango_core.models.language.prompt import TextTokens, VisualTokens

LEFT, RIGHT, NEW = 4, 6, 4
NUM_VISUAL = math.prod(GRID) + 1


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model():
    return attentive_qwen2()


@pytest.fixture(scope="module")
def layer_loop(model):
    return LayerLoop(model.model, model.lm_head)


@pytest.fixture(scope="module")
def span():
    indices = torch.cat([torch.arange(NUM_VISUAL - 1), torch.tensor([-1])])
    return VisualSpan(torch.arange(LEFT, LEFT + NUM_VISUAL), indices, GRID, RIGHT)


@pytest.fixture(scope="module")
def sequence():
    """(S, D) embeddings of text, a slowly changing clip, text, and a reply."""
    generator = torch.Generator().manual_seed(4)
    text = torch.randn(LEFT + 1 + RIGHT + NEW, WIDTH, generator=generator)
    return torch.cat([text[:LEFT], changing_frames(), text[LEFT:]])


def prefilled(loop, span, sequence, pruners):
    """A prompt about the sequence's clip once per pruner, in one pass.

    Returns:
        The keys and values, the output at the ends, and the prompt's embeddings.
    """
    spans = (
        TextTokens(tuple(range(LEFT))),
        VisualTokens(sequence[LEFT : LEFT + NUM_VISUAL], span.indices, GRID),
        TextTokens(tuple(range(10, 10 + RIGHT))),
    )
    prompt = embed_spans(loop, spans)
    caches = [SequenceState(loop.config, len(prompt) + 1 + NEW) for _ in pruners]
    segments = [
        Segment(spans, torch.arange(len(prompt)), cache, pruner=pruner)
        for cache, pruner in zip(caches, pruners, strict=True)
    ]
    return caches, run_segments(loop, segments), prompt


def attend(layer, hidden, rotary):
    """Input norm, projections, rotation and the whole matrix of probabilities of one layer."""
    attention, normed = layer.self_attn, layer.input_layernorm(hidden)[None]
    queries, keys, values = (
        projection(normed).view(1, len(hidden), -1, attention.head_dim).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    queries, keys = apply_rotary_pos_emb(queries, keys, *rotary)
    groups = queries.shape[1] // keys.shape[1]
    logits = queries @ repeat_kv(keys, groups).mT / math.sqrt(attention.head_dim)
    later = torch.ones(len(hidden), len(hidden), dtype=torch.bool).triu(1)
    probabilities = logits.masked_fill(later, -torch.inf).softmax(dim=-1)
    mixed = (probabilities @ repeat_kv(values, groups)).transpose(1, 2).flatten(2)
    return probabilities[0], keys[0].transpose(0, 1).flatten(1), attention.o_proj(mixed)[0]


def plain(model, pruner, span, sequence, prompt_length):
    """The whole sequence through all layers, pruning the prompt on the way.

    Returns:
        Output before the final norm, and the tokens of the prompt that enter each layer.
    """
    hidden, positions, lengths = sequence, torch.arange(len(sequence)), []
    previous, scratch = torch.arange(len(span.indices)), {}
    length, probabilities, keys = prompt_length, None, None
    for index, layer in enumerate(model.model.layers):
        if index in pruner.layers(NUM_LAYERS):
            rotary = model.model.rotary_emb(hidden[None], positions[None])
            own, _, _ = attend(layer, hidden, rotary)
            before, before_keys, total = probabilities, keys, length
            pruned = pruner.prune(
                LayerContext(
                    layer=index,
                    num_layers=NUM_LAYERS,
                    hidden=hidden[:length].clone(),
                    visual=torch.arange(LEFT, LEFT + len(previous)),
                    after=LEFT + len(previous),
                    num_visual=len(span.indices),
                    previous_visual=previous,
                    grid=span.grid,
                    visual_indices=span.indices,
                    attention=lambda rows, p=before, n=total: p[:, rows, :n],
                    keys=lambda k=before_keys, n=total: k[:n],
                    norm=model.model.norm,
                    scratch=scratch,
                    attention_ahead=lambda rows, p=own, n=total: p[:, rows, :n],
                )
            )
            hidden = torch.cat([pruned.hidden, hidden[length:]])
            positions = torch.cat([positions[pruned.keep], positions[length:]])
            if pruner.renumbers:
                positions = torch.arange(len(hidden))
            inside = (pruned.keep >= LEFT) & (pruned.keep < LEFT + len(previous))
            previous = previous[pruned.keep[inside] - LEFT]
            length = len(pruned.keep)
        lengths.append(length)
        rotary = model.model.rotary_emb(hidden[None], positions[None])
        probabilities, keys, mixed = attend(layer, hidden, rotary)
        hidden = hidden + mixed
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden, lengths


@pytest.mark.parametrize("name", PRUNERS)
class TestEveryPruner:
    def test_decoding_with_a_cache_is_the_plain_loop(self, model, layer_loop, span, sequence, name):
        """Beside two other sequences, one of them under another pruner."""
        pruner = pruner_of(name)
        pruners = [None, pruner, pruner_of("dart")]
        caches, hidden, whole = prefilled(layer_loop, span, sequence, pruners)
        length = len(whole)
        expected, lengths = plain(model, pruner, span, whole, length)
        torch.testing.assert_close(hidden[1], expected[-1], rtol=1e-4, atol=1e-4)
        assert caches[1].lengths == lengths
        assert lengths[-1] < length
        shifts = [
            [length - held for held in cache.lengths] if one is not None and one.renumbers else []
            for one, cache in zip(pruners, caches, strict=True)
        ]
        for step in range(NEW):
            tokens = most_likely(layer_loop.logits(hidden)).tolist()
            expected, _ = plain(model, pruner, span, whole, length)
            assert tokens[1] == int(model.lm_head(model.model.norm(expected[-1])).argmax())
            whole = torch.cat([whole, model.model.embed_tokens(torch.tensor([tokens[1]]))])
            hidden = run_segments(
                layer_loop,
                [
                    Segment(
                        (TextTokens((token,)),), torch.tensor([length + step]), cache, shifts=own
                    )
                    for token, cache, own in zip(tokens, caches, shifts, strict=True)
                ],
            )

    def test_decoding_without_a_cache_is_the_plain_loop(
        self, model, layer_loop, span, sequence, name
    ):
        pruner, length = pruner_of(name), len(sequence) - NEW
        output = run_whole(
            layer_loop,
            sequence[None],
            torch.arange(len(sequence))[None],
            pruner=pruner,
            visual=span,
            prompt_length=length,
        )
        expected, _ = plain(model, pruner, span, sequence, length)
        config = model.model.config
        terms = NUM_LAYERS * (4 * WIDTH + 3 * config.intermediate_size)
        assert_equal_but_for_rounding(output[0], expected, terms)


def test_three_dimensional_positions_are_never_renumbered(layer_loop, span, sequence):
    seen = []

    class Watching(LayerLoop):
        def __init__(self):
            self.__dict__.update(layer_loop.__dict__)
            self.rotary_emb = self.watch

        def watch(self, hidden, positions):
            seen.append(positions)
            return layer_loop.rotary_emb(hidden, positions[0])

    length = len(sequence) - NEW
    positions = torch.arange(0, 2 * length, 2).expand(3, 1, -1)
    run_whole(
        Watching(), sequence[None, :length], positions, pruner=pruner_of("pyramiddrop"), visual=span
    )
    assert len(seen) == 4
    assert all(set(later[0, 0].tolist()) < set(positions[0, 0].tolist()) for later in seen[1:])
