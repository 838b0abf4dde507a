"""LLaVA-Video against stock SigLIP and Qwen2: pooling, rows of newline tokens, replies, pruning."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from llava_originals import IMAGE_SIZE, WIDTH, build_original, save_original
from torch.nn import functional as F
from without_cache import run_whole

from tango_core.compressors import build_method
from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models import load_encoder, load_language_model
from tango_core.ops.saliency import pool_grid
from tango_core.types import ClipSource, CompressedVideo, Prompt, VideoFrames

NAME = "llava-video-7b"
NUM_FRAMES, SIDE = 4, 3  # 7 x 7 patches, averaged: the last row and column are dropped
ALL_SIGNALS = frozenset({"attention", "keys", "saliency", "frame_embeddings"})
PROMPTS = [Prompt("", text) for text in ("What?", "Is the ball red or blue?", "Why is that so?")]


@pytest.fixture(scope="module")
def original():
    """The parts, stock modules with random weights."""
    return build_original(head=True)


@pytest.fixture(scope="module")
def directory(original, tmp_path_factory):
    """Their checkpoint directory."""
    return str(save_original(original, tmp_path_factory.mktemp("llava-video")))


@pytest.fixture(scope="module")
def encoder(directory):
    """Its vision half, loaded by us."""
    return load_encoder(NAME, directory)


@pytest.fixture(scope="module")
def model(directory):
    """Answers are token ids, so that every token counts, and none ends the reply."""
    language_model = load_language_model(NAME, directory)
    language_model.engine.eos_ids = frozenset()
    language_model.engine.decode_text = lambda ids: " ".join(map(str, ids))
    return language_model


@pytest.fixture(scope="module")
def clip():
    """Frames of noise, half a second apart, and what is known of their file."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (NUM_FRAMES, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    return VideoFrames(pixels, np.arange(NUM_FRAMES) / 2, source=ClipSource(2.25, 360))


@pytest.fixture(scope="module")
def features(encoder, clip):
    """The clip encoded, with every signal."""
    return encoder.encode(clip, ALL_SIGNALS)


@pytest.fixture(scope="module")
def full(features):
    """The clip with all its tokens."""
    return build_method("full").compressor.compress(features)


@pytest.fixture(scope="module")
def pruned(full):
    """A third of the tokens; of 12 rows some keep none."""
    kept = torch.tensor([0, 2, 3, 10, 11, 13, 18, 19, 20, 30, 34, 35])
    return CompressedVideo(full.tokens[kept], kept, full.grid, full.timestamps, full.source)


SIGNALS = ["attention", "keys", "saliency"]


def normalised(clip):
    return torch.tensor(clip.pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def test_tokens_are_averages_of_two_by_two_projected_patches(original, features, clip):
    states = original.tower(normalised(clip), output_hidden_states=True).hidden_states
    projected = original.projector(states[-1]).view(NUM_FRAMES, 7, 7, WIDTH)
    averaged = F.avg_pool2d(projected.permute(0, 3, 1, 2), kernel_size=2, stride=2)
    expected = averaged.flatten(2).transpose(1, 2)
    assert features.grid == (SIDE, SIDE)
    torch.testing.assert_close(features.tokens, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("pooling", ["average", "bilinear"])
@torch.no_grad()
def test_signals_are_pooled_like_the_tokens(directory, clip, pooling, signal, monkeypatch):
    """A score must land where its feature does: one operator for both."""
    encoder = load_encoder(NAME, directory, pooling=pooling)
    features = encoder.encode(clip, ALL_SIGNALS)
    side = {"average": 3, "bilinear": 4}[pooling]
    assert features.grid == (side, side)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "_pool", lambda maps: maps)
        rows = torch.tensor(clip.pixels)
        raw = encoder.encode_rows(rows, features.grid, ALL_SIGNALS)
    for name in (signal, "tokens"):
        expected = pool_grid(raw[name], (7, 7), pooling)
        assert torch.equal(getattr(features, name), expected)


def test_average_pooling_agrees_with_the_official_release():
    with np.load(GOLDEN_DIR / "unit_saliency_siglip.npz") as arrays:
        golden = {name: torch.tensor(arrays[name]) for name in arrays.files}
    for raw, pooled in (("feat", "feat_pooled"), ("p_attn", "p_attn_pooled")):
        maps = golden[raw][:, 0] if raw == "p_attn" else golden[raw]
        found = pool_grid(maps, (27, 27), "average")
        torch.testing.assert_close(found, golden[f"average/{pooled}"], rtol=1e-5, atol=1e-8)


@torch.no_grad()
def test_a_larger_step_averages_larger_squares_and_has_no_sinks(original, directory, clip):
    features = load_encoder(NAME, directory, pooling_step=3).encode(clip, ALL_SIGNALS)
    states = original.tower(normalised(clip), output_hidden_states=True).hidden_states
    projected = original.projector(states[-1]).view(NUM_FRAMES, 7, 7, WIDTH)
    squares = [projected[:, y : y + 3, x : x + 3].mean(dim=(1, 2)) for y in (0, 3) for x in (0, 3)]
    assert (features.grid, features.sinks) == ((2, 2), ())
    assert features.saliency.shape == features.attention.shape == (NUM_FRAMES, 4)
    torch.testing.assert_close(features.tokens, torch.stack(squares, 1), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_tower_ends_one_block_before_the_siglip_it_was_made_from(original, features, clip):
    states = original.siglip(normalised(clip), output_hidden_states=True).hidden_states
    assert len(states) == 4
    projected = original.projector(states[-2]).view(NUM_FRAMES, 7, 7, WIDTH)
    first = projected[:, :2, :2].mean(dim=(1, 2))
    torch.testing.assert_close(features.tokens[:, 0], first, rtol=1e-5, atol=1e-5)


def by_hand(original, model, video, prompt, positions):
    """(S, D) embeddings and (S,) positions of a question, row by row, from the definition."""
    width = video.grid[2]
    rows, places = [], []
    for row in range(video.grid[0] * video.grid[1]):
        members = [k for k, g in enumerate(video.indices.tolist()) if g // width == row]
        rows += [video.tokens[k] for k in members]
        places += [row * (width + 1) + int(video.indices[k]) % width for k in members]
        if members:
            rows.append(original.newline)
            places.append(row * (width + 1) + width)
    full_length = video.grid[0] * video.grid[1] * (width + 1)
    left, right = (
        model.layout.tokenizer(text, return_tensors="pt").input_ids[0]
        for text in (
            model.layout.chat.opening,
            "\n" + spoken(video) + prompt.after + model.layout.chat.closing,
        )
    )
    embed = original.llm.model.embed_tokens
    embeddings = torch.cat([embed(left), torch.stack(rows), embed(right)])
    if positions == "renumbered":
        return embeddings, torch.arange(len(embeddings))
    after = len(left) + full_length + torch.arange(len(right))
    middle = len(left) + torch.tensor(places)
    return embeddings, torch.cat([torch.arange(len(left)), middle, after])


def spoken(video):
    assert (video.source, video.grid[0]) == (ClipSource(2.25, 360), 4)
    return (
        "The video lasts for 2.25 seconds,and 360 frames are uniformly sampled from it."
        "These frames are located at 0.00s,0.50s,1.00s,1.50s."
        "Please answer the following questions related to this video.\n"
    )


@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("which", ["full", "pruned"])
@torch.no_grad()
def test_logits_are_those_of_stock_qwen2(original, model, full, pruned, which, positions):
    video = full if which == "full" else pruned
    embeddings, places = by_hand(original, model, video, PROMPTS[1], positions)
    expected = original.llm(inputs_embeds=embeddings[None], position_ids=places[None]).logits
    prompt = model.layout.lay_out(video, PROMPTS[1], positions)
    assert prompt.positions.tolist() == places.tolist()
    layer_loop = model.engine.layer_loop
    ours = torch.cat(
        [
            layer_loop.embed(prompt.spans[0].ids),
            prompt.spans[1].embeddings,
            layer_loop.embed(prompt.question),
        ]
    )
    assert torch.equal(ours, embeddings)
    hidden = run_whole(layer_loop, ours[None], prompt.positions[None])
    tolerance = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(layer_loop.logits(hidden), expected, rtol=0, atol=tolerance)


@dataclass(frozen=True)
class Recorder(LayerPruner):
    """Runs another pruner and writes down which visual tokens it was shown and kept."""

    inner: LayerPruner = None
    seen: list = field(default_factory=list)

    def layers(self, num_layers: int) -> tuple[int, ...]:
        return self.inner.layers(num_layers)

    def prune(self, context: LayerContext) -> Pruned:
        pruned = self.inner.prune(context)
        start, stop = int(context.visual[0]), context.after
        inside = pruned.keep[(pruned.keep >= start) & (pruned.keep < stop)] - start
        before = context.visual_indices[context.previous_visual]
        self.seen.append((before, before[inside]))
        return pruned


def test_the_hybrid_of_the_paper_drops_newlines_like_any_token(model, features):
    method = build_method(
        "tango",
        num_layers=4,
        retention=0.5,
        inner={"name": "fastv-merge", "layer": 2, "retention": 0.5},
    )
    video = method.compressor.compress(features)
    recorder = Recorder(1.0, 0, method.pruner)
    answers = model.answer(video, PROMPTS, pruner=recorder, max_new_tokens=4)
    assert [answer.text for answer in answers] == [
        answer.text
        for answer in model.answer(video, PROMPTS, pruner=method.pruner, max_new_tokens=4)
    ]
    assert len(recorder.seen) == len(PROMPTS)
    for before, after in recorder.seen:
        rows = len({g // SIDE for g in video.indices.tolist()})
        assert int((before == -1).sum()) == rows
        assert len(before) == video.num_kept + rows
        assert len(after) == round(len(before) / 2)
    assert any(0 < int((after == -1).sum()) < rows for _, after in recorder.seen)
