"""LLaVA-Video against its parts: stock SigLIP, stock Qwen2, and what is between them by hand."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from llava_originals import IMAGE_SIZE, WIDTH, build_original, save_original
from torch.nn import functional as F

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.ops.saliency import pool_grid
from tango_core.types import ClipSource, CompressedVideo, Prompt, VideoFrames

NAME = "llava-video-7b"
GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden" / "unit_saliency_siglip.npz"
NUM_FRAMES, SIDE = 4, 3  # 7 x 7 patches, averaged: the last row and column are dropped
ALL_SIGNALS = frozenset({"attention", "keys", "saliency", "frame_embeddings"})
SIGNALS = ["attention", "keys", "saliency"]
PRUNERS = sorted(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner))
PROMPTS = [Prompt("", text) for text in ("What?", "Is the ball red or blue?", "Why is that so?")]


@pytest.fixture(scope="module")
def original():
    return build_original(head=True)


@pytest.fixture(scope="module")
def directory(original, tmp_path_factory):
    return str(save_original(original, tmp_path_factory.mktemp("llava-video")))


@pytest.fixture(scope="module")
def encoder(directory):
    return load_encoder(NAME, directory)


@pytest.fixture(scope="module")
def model(directory):
    """Answers are token ids, so that every token counts, and none ends the reply."""
    language_model = load_language_model(NAME, directory)
    language_model.generator.eos_ids = frozenset()
    language_model.generator.decode_text = lambda ids: " ".join(map(str, ids))
    return language_model


@pytest.fixture(scope="module")
def clip():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (NUM_FRAMES, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    return VideoFrames(pixels, np.arange(NUM_FRAMES) / 2, source=ClipSource(2.25, 360))


@pytest.fixture(scope="module")
def features(encoder, clip):
    return encoder.encode(clip, ALL_SIGNALS)


@pytest.fixture(scope="module")
def full(features):
    return build_method("full").compressor.compress(features)


@pytest.fixture(scope="module")
def pruned(full):
    """A third of the tokens; of 12 rows some keep none."""
    kept = torch.tensor([0, 2, 3, 10, 11, 13, 18, 19, 20, 30, 34, 35])
    return CompressedVideo(full.tokens[kept], kept, full.grid, full.timestamps, full.source)


def shown(request_full, request_pruned, which):
    return request_full if which == "full" else request_pruned


def normalised(clip):
    return torch.tensor(clip.pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


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
        model.tokenizer(text, return_tensors="pt").input_ids[0]
        for text in (model.chat.opening, "\n" + spoken(video) + prompt.after + model.chat.closing)
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


@torch.no_grad()
def test_tokens_are_averages_of_two_by_two_projected_patches(original, features, clip):
    states = original.tower(normalised(clip), output_hidden_states=True).hidden_states
    projected = original.projector(states[-1]).view(NUM_FRAMES, 7, 7, WIDTH)
    averaged = F.avg_pool2d(projected.permute(0, 3, 1, 2), kernel_size=2, stride=2)
    expected = averaged.flatten(2).transpose(1, 2)
    assert features.grid == (SIDE, SIDE)
    torch.testing.assert_close(features.tokens, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_tower_ends_one_block_before_the_siglip_it_was_made_from(original, features, clip):
    states = original.siglip(normalised(clip), output_hidden_states=True).hidden_states
    assert len(states) == 4
    projected = original.projector(states[-2]).view(NUM_FRAMES, 7, 7, WIDTH)
    first = projected[:, :2, :2].mean(dim=(1, 2))
    torch.testing.assert_close(features.tokens[:, 0], first, rtol=1e-5, atol=1e-5)


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
        raw = encoder._encode_chunk(torch.tensor(clip.pixels), ALL_SIGNALS)
    for name in (signal, "tokens"):
        expected = pool_grid(raw[name], (7, 7), pooling)
        assert torch.equal(getattr(features, name), expected)


def test_average_pooling_agrees_with_the_official_release():
    with np.load(GOLDEN) as arrays:
        golden = {name: torch.tensor(arrays[name]) for name in arrays.files}
    for raw, pooled in (("feat", "feat_pooled"), ("p_attn", "p_attn_pooled")):
        maps = golden[raw][:, 0] if raw == "p_attn" else golden[raw]
        found = pool_grid(maps, (27, 27), "average")
        torch.testing.assert_close(found, golden[f"average/{pooled}"], rtol=1e-5, atol=1e-8)


def test_sinks_are_those_published_for_the_grid(encoder, features):
    assert encoder._sinks_on((13, 13)) == (26, 157, 11)
    assert encoder._sinks_on((14, 14)) == (28, 27, 41, 169, 11, 12)
    assert features.sinks == ()


def test_what_is_known_of_the_file_reaches_the_prompt(features, clip):
    assert features.source == clip.source


@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("which", ["full", "pruned"])
@torch.no_grad()
def test_logits_are_those_of_stock_qwen2(original, model, full, pruned, which, positions):
    video = shown(full, pruned, which)
    embeddings, places = by_hand(original, model, video, PROMPTS[1], positions)
    expected = original.llm(inputs_embeds=embeddings[None], position_ids=places[None]).logits
    prompt = model.lay_out(video, PROMPTS[1], positions)
    assert prompt.positions.tolist() == places.tolist()
    decoder = model.decoder
    ours = torch.cat([decoder.embed(prompt.left), prompt.visual, decoder.embed(prompt.right)])
    assert torch.equal(ours, embeddings)
    hidden = decoder.run(ours[None], prompt.positions[None])
    tolerance = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(decoder.logits(hidden), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("share_prefix", [True, False])
@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("which", ["full", "pruned"])
def test_replies_are_those_of_stock_generate(
    original, model, full, pruned, which, positions, share_prefix
):
    video = shown(full, pruned, which)
    expected = []
    for prompt in PROMPTS:
        embeddings, places = by_hand(original, model, video, prompt, positions)
        generated = original.llm.generate(
            inputs_embeds=embeddings[None],
            attention_mask=torch.ones(1, len(embeddings), dtype=torch.long),
            position_ids=places[None],
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=256,
        )
        expected.append(" ".join(map(str, generated[0].tolist())))
    answers = model.answer(
        video, PROMPTS, positions=positions, max_new_tokens=8, share_prefix=share_prefix
    )
    assert [answer.text for answer in answers] == expected
    assert len(set(expected)) == len(PROMPTS)


def test_newlines_are_part_of_the_prompt_and_not_of_the_budget(model, full, pruned):
    lengths = {}
    for which in ("full", "pruned"):
        video = shown(full, pruned, which)
        prompt = model.lay_out(video, PROMPTS[0])
        newlines = int((prompt.visual_indices == -1).sum())
        assert newlines == len({g // SIDE for g in video.indices.tolist()})
        assert len(prompt.visual) == video.num_kept + newlines
        (answer,) = model.answer(video, PROMPTS[:1], max_new_tokens=1)
        lengths[which] = answer.prompt_tokens - len(prompt.visual)
    assert lengths["full"] == lengths["pruned"]
    assert newlines == 7


@dataclass(frozen=True)
class Recorder(LayerPruner):
    """Runs another pruner and writes down which visual tokens it was shown and kept."""

    inner: LayerPruner = None
    seen: list = field(default_factory=list)

    def layers(self, num_layers: int) -> tuple[int, ...]:
        return self.inner.layers(num_layers)

    def prune(self, context: LayerContext) -> Pruned:
        pruned = self.inner.prune(context)
        start, stop = context.visual.start, context.visual.stop
        inside = pruned.keep[(pruned.keep >= start) & (pruned.keep < stop)] - start
        before = context.visual_indices[context.previous_visual]
        self.seen.append((before, before[inside]))
        return pruned


class TestPruningInside:
    def test_the_hybrid_of_the_paper_drops_newlines_like_any_token(self, model, features):
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

    @pytest.mark.parametrize("name", PRUNERS)
    def test_every_in_model_method_takes_a_clip_with_newlines(self, model, full, name):
        method = build_method(name, num_layers=4, retention=0.6)
        recorder = Recorder(1.0, 0, method.pruner)
        (answer,) = model.answer(full, PROMPTS[:1], pruner=recorder, max_new_tokens=3)
        assert len(answer.text.split()) == 3
        before, _ = recorder.seen[0]
        _, after = recorder.seen[-1]
        assert len(before) == full.num_total + NUM_FRAMES * SIDE
        assert len(after) < len(before)


class TestOptions:
    def test_defaults_are_the_settings_of_the_publications(self, directory):
        spec = describe_model(NAME, directory)
        assert (spec.frames.num_frames, spec.pooling) == (64, "average")
        assert spec.time_instruction == "vlmevalkit"

    def test_pooling_changes_cached_tokens_and_the_sentence_does_not(self, directory):
        identity = describe_model(NAME, directory).identity()
        assert describe_model(NAME, directory, pooling="bilinear").identity() != identity
        assert describe_model(NAME, directory, time_instruction="none").identity() == identity

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"pooling": "max"}, "model.pooling must be one of average, bilinear, got 'max'"),
            (
                {"time_instruction": "yes"},
                "model.time_instruction must be one of none, correct, vlmevalkit, lmms_eval",
            ),
        ],
    )
    def test_unknown_values_name_the_setting(self, directory, options, words):
        with pytest.raises(ValueError, match=words):
            describe_model(NAME, directory, **options)

    @pytest.mark.parametrize(
        "options", [{"pooling": "average"}, {"time_instruction": "vlmevalkit"}]
    )
    def test_another_family_refuses_them(self, directory, options):
        (setting,) = options
        with pytest.raises(ValueError, match=f"model.{setting} is no setting of model llava-one"):
            describe_model("llava-onevision-7b", directory, **options)

    def test_without_a_sentence_the_question_follows_the_clip(self, directory, full):
        silent = load_language_model(NAME, directory, time_instruction="none")
        right = silent.lay_out(full, PROMPTS[0]).right
        assert silent.tokenizer.decode(right) == "\nWhat?<|im_end|>\n<|im_start|>assistant\n"
