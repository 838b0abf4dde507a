"""Qwen2.5-VL's language half: logits, positions, replies and prompts against the stock model."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from qwen_checkpoints import (
    ENDOFTEXT,
    IM_END,
    MULTIPLE,
    NUM_LAYERS,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
    WIDTH,
    build_qwen,
    save_qwen,
)
from safetensors.torch import load_file, save_file

from tango_core.benchmarks.protocols import PROTOCOLS, build_protocol
from tango_core.compressors import build_method
from tango_core.compressors.base import Pruned
from tango_core.models import load_encoder, load_language_model
from tango_core.models.qwen_preprocessing import pair_frames, to_patches
from tango_core.types import CompressedVideo, Prompt, Question, VideoFrames

NAME = "qwen2.5-vl-7b"
GOLDEN = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "golden" / "prompts.json").read_text(encoding="utf-8")
)
GRIDS = [(3, 2, 5), (1, 4, 4), (12, 2, 3)]  # taller in space, square, longer in time
ASKED = Prompt("Look. ", "What is it?")


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def qwen():
    return build_qwen()


@pytest.fixture(scope="module")
def checkpoint(qwen, tmp_path_factory):
    return str(save_qwen(qwen, tmp_path_factory.mktemp("qwen")))


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_language_model(NAME, checkpoint)


@pytest.fixture(scope="module")
def endless(checkpoint):
    """The same model, whose replies only end at their bound."""
    language_model = load_language_model(NAME, checkpoint)
    language_model.generator.eos_ids = frozenset()
    return language_model


def whole(grid, seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = math.prod(grid)
    return CompressedVideo(
        tokens=torch.randn(count, WIDTH, generator=generator) * 3,
        indices=torch.arange(count),
        grid=grid,
        timestamps=torch.arange(grid[0], dtype=torch.float64),
    )


def some(grid, num_kept, seed=0):
    full = whole(grid, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    kept = torch.randperm(full.num_total, generator=generator)[:num_kept].sort().values
    return CompressedVideo(full.tokens[kept], kept, grid, full.timestamps)


def reference_positions(num_left, grid, num_right, rule, seconds=1.0):
    """Token by token, as transformers 4.50 (`hf450`) and 5.23 (`hf5`) number a whole clip."""
    columns = [(at, at, at) for at in range(num_left)]
    columns += [
        (num_left + int(t * 2 * seconds), num_left + h, num_left + w)
        for t in range(grid[0])
        for h in range(grid[1])
        for w in range(grid[2])
    ]
    if rule == "hf450":
        start = max(max(column) for column in columns) + 1
    else:
        start = num_left + max(grid[1:])
    columns += [(start + at,) * 3 for at in range(num_right)]
    return torch.tensor(columns).T


def embeddings(model, prompt):
    return model.generator._embed(prompt.left, prompt.visual, prompt.right)[None]


def greedy_without_cache(qwen, embeds, positions, num_new):
    """Every new token from the whole sequence, through the stock model."""
    ids = []
    for _ in range(num_new):
        logits = qwen(inputs_embeds=embeds, position_ids=positions[:, None], use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
        new = qwen.get_input_embeddings()(torch.tensor([[ids[-1]]]))
        embeds = torch.cat([embeds, new], dim=1)
        positions = torch.cat([positions, positions[:, -1:] + 1], dim=1)
    return ids


def said(model, ids):
    return model.tokenizer.decode(ids, skip_special_tokens=True).strip()


class TestFullClip:
    def test_both_halves_give_the_stock_logits_under_its_own_rule(self, qwen, checkpoint):
        grid = (3, 40 // MULTIPLE, 72 // MULTIPLE)
        pixels = np.random.default_rng(0).integers(0, 256, (6, 40, 72, 3), dtype=np.uint8)
        encoder = load_encoder(NAME, checkpoint)
        features = encoder.encode(VideoFrames(pixels, np.arange(6.0)))
        model = load_language_model(NAME, checkpoint, position_rule="hf5")
        prompt = model.lay_out(build_method("full").compressor.compress(features), ASKED)
        ids = torch.tensor([[*prompt.left, *[VIDEO_PAD] * math.prod(grid), *prompt.right]])
        thw = torch.tensor([[grid[0], 2 * grid[1], 2 * grid[2]]])
        patches = _patches(encoder, pixels)
        expected = qwen(
            input_ids=ids,
            pixel_values_videos=patches,
            video_grid_thw=thw,
            mm_token_type_ids=(ids == VIDEO_PAD).int() * 2,
            second_per_grid_ts=torch.tensor([1.0]),
        ).logits
        hidden = model.decoder.run(embeddings(model, prompt), prompt.positions[:, None])
        _assert_close(model.decoder.logits(hidden), expected)

    @pytest.mark.parametrize("seconds", [1.0, 0.3, 2.5])
    @pytest.mark.parametrize("grid", GRIDS, ids=str)
    def test_positions_of_transformers_5(self, qwen, checkpoint, grid, seconds):
        model = load_language_model(NAME, checkpoint, position_rule="hf5", seconds_per_grid=seconds)
        prompt = model.lay_out(whole(grid), ASKED)
        ids = torch.tensor([[*prompt.left, *[VIDEO_PAD] * math.prod(grid), *prompt.right]])
        stock, _ = qwen.model.get_rope_index(
            ids,
            mm_token_type_ids=(ids == VIDEO_PAD).int() * 2,
            video_grid_thw=torch.tensor([[grid[0], 2 * grid[1], 2 * grid[2]]]),
            second_per_grid_ts=torch.tensor([seconds]),
        )
        assert torch.equal(prompt.positions, stock[:, 0])

    @pytest.mark.parametrize("grid", GRIDS, ids=str)
    def test_logits_of_the_publications_rule(self, qwen, model, grid):
        prompt = model.lay_out(whole(grid), ASKED)
        positions = reference_positions(len(prompt.left), grid, len(prompt.right), "hf450")
        assert torch.equal(prompt.positions, positions)
        embeds = embeddings(model, prompt)
        expected = qwen(inputs_embeds=embeds, position_ids=positions[:, None]).logits
        hidden = model.decoder.run(embeds, prompt.positions[:, None])
        _assert_close(model.decoder.logits(hidden), expected)

    @pytest.mark.parametrize(("rule", "gap"), [("hf450", 31), ("hf5", 16)])
    def test_text_behind_the_publications_clip(self, checkpoint, rule, gap):
        model = load_language_model(NAME, checkpoint, position_rule=rule)
        prompt = model.lay_out(some((16, 16, 16), 10), ASKED)
        assert prompt.positions[:, prompt.prefix_length].tolist() == [len(prompt.left) + gap] * 3


@pytest.mark.parametrize("rule", ["hf450", "hf5"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
class TestPrunedClip:
    def test_kept_tokens_and_text_stay_where_they_were(self, checkpoint, rule, grid):
        model = load_language_model(NAME, checkpoint, position_rule=rule)
        video = some(grid, math.prod(grid) // 3)
        prompt = model.lay_out(video, ASKED)
        left, right = len(prompt.left), len(prompt.right)
        full = reference_positions(left, grid, right, rule)
        total = left + math.prod(grid)
        keep = [*range(left), *(video.indices + left).tolist(), *range(total, total + right)]
        assert torch.equal(prompt.positions, full[:, keep])

    def test_replies_are_those_of_a_loop_without_cache_and_of_generate(
        self, qwen, checkpoint, rule, grid
    ):
        model = load_language_model(NAME, checkpoint, position_rule=rule)
        model.generator.eos_ids = frozenset()
        video = some(grid, math.prod(grid) // 3, seed=3)
        prompt = model.lay_out(video, ASKED)
        embeds = embeddings(model, prompt)
        expected = greedy_without_cache(qwen, embeds, prompt.positions, 8)
        generated = qwen.generate(
            inputs_embeds=embeds,
            position_ids=prompt.positions[:, None],
            do_sample=False,
            max_new_tokens=8,
            eos_token_id=-1,
            pad_token_id=ENDOFTEXT,
        )
        (answer,) = model.answer(video, [ASKED], max_new_tokens=8)
        assert generated[0].tolist() == expected
        assert answer.text == said(model, expected)
        assert (answer.new_tokens, answer.prompt_tokens) == (8, embeds.shape[1])


def test_compressors_positions_make_no_difference(endless):
    video = some((3, 2, 5), 10)
    first, second = (
        endless.answer(video, [ASKED], positions=positions)[0].text
        for positions in ("renumbered", "original")
    )
    assert first == second


def test_prompts_share_the_clip_within_the_text_before_it(endless):
    video = some((3, 4, 5), 20)
    prompts = [
        Prompt(before, "What " + "is " * (index % 4) + f"{index}?")
        for before in ("", "Watch closely. ")
        for index in range(5)
    ]
    shared, alone = (
        endless.answer(video, prompts, share_prefix=share, max_new_tokens=6)
        for share in (True, False)
    )
    assert [answer.text for answer in shared] == [answer.text for answer in alone]
    assert len({answer.text for answer in shared}) > 1


@pytest.mark.parametrize("name", ["fastv", "dart", "pyramiddrop", "sparsevlm", "framefusion"])
def test_replies_under_a_pruner_do_not_depend_on_the_cache(endless, name):
    layer = {"layer": 1} if name in ("fastv", "dart") else {}
    pruner = build_method(name, retention=0.6, num_layers=NUM_LAYERS, **layer).pruner
    prompt = endless.lay_out(whole((6, 4, 4)), ASKED)
    cached, plain = (
        endless.generator.answer([prompt], pruner=pruner, max_new_tokens=6, use_cache=use_cache)[0]
        for use_cache in (True, False)
    )
    assert cached.text == plain.text
    (unpruned,) = endless.generator.answer([prompt], max_new_tokens=6)
    assert cached.new_tokens == unpruned.new_tokens == 6


def test_pruning_inside_keeps_the_coordinates_of_what_stays(endless):
    """A pruner that keeps what a compressor kept, before layer 0, is that compressor."""
    full, video = whole((3, 4, 5)), some((3, 4, 5), 20)

    class Keep:
        renumbers = False

        def layers(self, num_layers):
            return (0,)

        def prune(self, context):
            keep = context.positions_with(video.indices)
            return Pruned(keep, context.hidden[keep])

    inside = endless.generator.answer(
        [endless.lay_out(full, ASKED)], pruner=Keep(), max_new_tokens=6
    )
    before = endless.answer(video, [ASKED], max_new_tokens=6)
    assert inside[0].text == before[0].text


class TestPrompts:
    QUESTION = Question(
        "q", "What does the man hold?", ("A cup.", "A bag.", "A book.", "A pen."), answer=1
    )

    @pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
    def test_conversations_are_the_published_ones_byte_for_byte(self, model, benchmark):
        prompt = model.lay_out(
            some((2, 2, 2), 3), build_protocol(benchmark, "vlmevalkit").render(self.QUESTION)
        )
        ids = [*prompt.left, VIDEO_PAD, *prompt.right]
        text = model.tokenizer.decode(ids, skip_special_tokens=False)
        assert text == GOLDEN["vlmevalkit"][benchmark]["qwen2_5_vl"]
        assert list(model.tokenizer(text).input_ids) == ids

    def test_marks_surround_the_clip(self, model):
        prompt = model.lay_out(some((2, 2, 2), 3), ASKED)
        assert (prompt.left[-1], prompt.right[0]) == (VISION_START, VISION_END)
        assert len(prompt.visual) == 3

    def test_a_checkpoint_may_bring_its_own_conversation(self, qwen, tmp_path):
        path = save_qwen(qwen, tmp_path)
        chat = {"opening": "<", "after_clip": "|", "closing": ">"}
        (path / "tango.json").write_text(json.dumps({"chat": chat, "note": "own words"}))
        model = load_language_model(NAME, str(path))
        prompt = model.lay_out(some((2, 2, 2), 3), Prompt("a", "b"))
        decode = model.tokenizer.decode
        assert (decode(prompt.left[:-1]), decode(prompt.right[1:])) == ("<a", "|b>")
        assert model.spec.note == "own words"

    def test_tokens_of_another_width_are_refused(self, model):
        video = some((2, 2, 2), 3)
        wrong = CompressedVideo(video.tokens[:, :5], video.indices, video.grid, video.timestamps)
        with pytest.raises(ValueError, match=r"width 5, but model qwen2\.5-vl-7b has 48"):
            model.lay_out(wrong, ASKED)


def test_replies_end_at_the_tokens_of_the_generation_config(model):
    assert model.generator.eos_ids == {IM_END, ENDOFTEXT}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layout", ["sharded", "hub", "modules"])
def test_every_layout_on_disk_gives_the_same_logits(tmp_path, layout, tied):
    stock = build_qwen(tied=tied)
    model = load_language_model(NAME, str(save_qwen(stock, tmp_path, layout)))
    prompt = model.lay_out(whole((3, 2, 5)), ASKED)
    embeds = embeddings(model, prompt)
    expected = stock(inputs_embeds=embeds, position_ids=prompt.positions[:, None]).logits
    hidden = model.decoder.run(embeds, prompt.positions[:, None])
    _assert_close(model.decoder.logits(hidden), expected)
    embedding = model.model.language_model.embed_tokens.weight
    assert (model.model.lm_head.weight.data_ptr() == embedding.data_ptr()) == tied


def test_the_language_half_holds_no_weight_of_the_tower(qwen, model):
    own = {*qwen.model.language_model.parameters(), *qwen.lm_head.parameters()}
    expected = sum(value.numel() for value in own)
    assert sum(value.numel() for value in model.model.parameters()) == expected
    for name, buffer in model.model.language_model.named_buffers():
        assert torch.equal(buffer, qwen.model.language_model.get_buffer(name)), name


def test_a_tensor_of_no_half_is_reported(qwen, tmp_path):
    path = save_qwen(qwen, tmp_path)
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "visual.probe": torch.zeros(2)}, path / "model.safetensors")
    load_language_model(NAME, str(path))
    with pytest.raises(ValueError, match=r"has unknown visual\.probe"):
        load_encoder(NAME, str(path))


def _patches(encoder, pixels):
    groups = torch.tensor(pair_frames(pixels, 2))
    return to_patches(groups, encoder.layout, *encoder._normalisation)


def _assert_close(ours, expected):
    scale = float(expected.abs().max())
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5 * scale)
