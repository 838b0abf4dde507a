"""What every family promises: halves that load alone, tokens and signals, replies, methods."""

import json
import math
from dataclasses import replace

import pytest
import torch
from small_families import SMALL_FAMILIES
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from without_cache import answered, run_whole, stock_greedy

from tango_core.compressors import METHODS, build_method
from tango_core.compressors.base import Compressor, LayerPruner, Pruned
from tango_core.compressors.contract.checks import Report, check_result
from tango_core.compressors.options import option_names
from tango_core.errors import InputError
from tango_core.models import describe_model, load_encoder, load_language_model, model_entry
from tango_core.models.base import ALL_SIGNALS
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.language.packed_pass import additions
from tango_core.types import ClipSource, Prompt, VideoFrames

LAYOUTS = [(name, layout) for name, one in SMALL_FAMILIES.items() for layout in one.layouts]
METHODS_INSIDE = sorted(name for name, cls in METHODS.items() if issubclass(cls, LayerPruner))
# Per push: a selection, averages, segments with clusters, trees, and two that act inside.
QUICK = ("full", "uniform", "pool_time", "tango", "holitom", "flashvid", "fastv", "framefusion")
EVERY_METHOD = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in METHODS
]
HYBRIDS = {
    "tango": {"name": "fastv-merge", "retention": 0.5},
    "holitom": {"name": "holitom-merge", "retention": 0.5},
    "flashvid": {"name": "fastv", "retention": 0.3},
}


@pytest.fixture(scope="module", params=SMALL_FAMILIES)
def family(request):
    return SMALL_FAMILIES[request.param]


@pytest.fixture(scope="module")
def stock(family):
    return family.build()


@pytest.fixture(scope="module")
def path(family, stock, tmp_path_factory):
    return str(family.save(stock, tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="module")
def encoder(family, path):
    return load_encoder(family.name, path)


@pytest.fixture(scope="module")
def endless(family, path):
    """A language half whose replies only end at their bound."""
    model = load_language_model(family.name, path)
    model.engine.eos_ids = frozenset()
    return model


@pytest.fixture(scope="module")
def features(family, encoder):
    return encoder.encode(family.frames(12), ALL_SIGNALS)


@pytest.fixture(scope="module")
def nearly_still(family, encoder):
    """A clip whose second half hardly moves, as methods that compare frames want it."""
    frames = family.frames(12)
    pixels = frames.pixels.copy()
    pixels[6:] = pixels[6]
    pixels[6:, : family.pixels] = frames.pixels[6:, : family.pixels]
    found = encoder.encode(replace(frames, pixels=pixels), encoder.spec.provides)
    return replace(found, question=found.tokens[0, :3])


def fields(features):
    names = ("tokens", "companions", *sorted(ALL_SIGNALS))
    return {n: value for n in names if (value := getattr(features, n)) is not None}


def assert_same(found, expected, share=1e-4):
    """Equal up to rounding: a share of the largest value.

    Four layers of width 48 with networks of 64 are sums of 1,536 products; the bound of their
    rounding is 3.7e-4 (`fixtures/rounding.py`).
    """
    scale = max(1e-3, float(expected.float().abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=share * scale)


class TestHalves:
    def test_a_description_needs_no_weights(self, family, stock, tmp_path):
        path = family.save(stock, tmp_path, family.layouts[-1])
        for file in path.glob("*.safetensors"):
            file.write_bytes(b"never opened")
        spec = describe_model(family.name, str(path), num_frames=6)
        text = stock.config.text_config
        shape = (spec.llm.num_layers, spec.llm.hidden_size, spec.llm.num_kv_heads)
        assert shape == (text.num_hidden_layers, family.width, text.num_key_value_heads)
        assert spec.llm.vocab_size == text.vocab_size
        assert (spec.frames.num_frames, spec.dtype, spec.companions) == (6, "float32", family.extra)
        assert spec.provides >= ALL_SIGNALS

    @pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
    @pytest.mark.parametrize(("name", "layout"), LAYOUTS)
    def test_every_layout_on_disk_gives_the_weights_of_the_stock_model(
        self, tmp_path, name, layout, tied
    ):
        family = SMALL_FAMILIES[name]
        stock = family.build(tied=tied)
        path = family.save(stock, tmp_path, layout)
        vision = load_encoder(name, str(path)).model
        language = load_language_model(name, str(path)).engine.model
        for half, expected in zip((vision, language), family.halves(stock).values(), strict=True):
            own = [value for part in expected for value in part.state_dict().values()]
            assert sum(map(torch.numel, own)) + (half is language and family.newlines) * (
                family.width
            ) == sum(map(torch.numel, half.state_dict().values()))
        whole = {**stock.state_dict()}
        prefix = "model.visual." if family.pairs else "model."
        found = {f"{prefix}{key}": value for key, value in vision.state_dict().items()}
        for key, value in language.state_dict().items():
            found[key if key.startswith("lm_head") else f"model.{key}"] = value
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[key], whole[key]) for key in whole)
        for key, buffer in (*vision.named_buffers(), *language.named_buffers()):
            places = (f"{prefix}{key}", f"model.{key}")
            held = [b for n, b in stock.named_buffers() if n in places]
            assert all(torch.equal(buffer, one) for one in held), key
        embedding = language.language_model.embed_tokens.weight
        assert (language.lm_head.weight.data_ptr() == embedding.data_ptr()) == tied

    @pytest.mark.parametrize("half", ["encoder", "language"])
    def test_a_half_is_loaded_from_its_own_files(self, family, stock, tmp_path, half):
        path = family.save(stock, tmp_path, "sharded")
        entry = model_entry(family.name).load_family()
        files = entry.half_files(resolve_checkpoint(str(path)), half)
        others = {file.name for file in path.glob("*.safetensors")} - set(files)
        assert others
        for name in others:
            (path / name).write_bytes(b"never opened")
        load = load_encoder if half == "encoder" else load_language_model
        load(family.name, str(path))

    def test_replies_end_at_the_tokens_of_the_generation_config(self, family, stock, tmp_path):
        path = family.save(stock, tmp_path)
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
        assert load_language_model(family.name, str(path)).engine.eos_ids == {7, 9}

    def test_a_checkpoint_may_bring_its_own_conversation(self, family, stock, tmp_path):
        path = family.save(stock, tmp_path)
        opening, after_clip, closing = ("w1 ", "w2 ", " w3") if family.newlines else "<|>"
        chat = {"opening": opening, "after_clip": after_clip, "closing": closing}
        (path / "tango.json").write_text(json.dumps({"chat": chat, "note": "own words"}))
        model = load_language_model(family.name, str(path))
        prompt = model.layout.lay_out(family.whole(2), Prompt("", "w5"))
        text = [model.layout.tokenizer.decode(prompt.spans[at].ids) for at in (0, -1)]
        assert text[0].startswith(opening.strip())
        assert text[1].endswith(f"{after_clip}w5{closing}")
        assert "own words" in model.spec.note

    def test_another_family_refuses_the_checkpoint(self, family, path):
        other = next(name for name in SMALL_FAMILIES if name != family.name)
        with pytest.raises(ValueError, match=r"holds a '\w+' model, not '"):
            describe_model(other, path)


class TestEncoder:
    def test_mean_and_deviation_come_from_the_checkpoint(self, family, stock, encoder, tmp_path):
        path = family.save(stock, tmp_path)
        frames = family.frames(2)
        expected = encoder.encode(frames).tokens
        content = {"image_mean": family.mean, "image_std": family.std, "rescale_factor": 1 / 255}
        (path / "preprocessor_config.json").write_text(json.dumps(content))
        assert torch.equal(load_encoder(family.name, str(path)).encode(frames).tokens, expected)
        changed = json.dumps({**content, "image_mean": [0.1, 0.2, 0.3]})
        (path / "preprocessor_config.json").write_text(changed)
        other = load_encoder(family.name, str(path)).encode(frames).tokens
        assert not torch.allclose(other, expected, atol=1e-2)

    @pytest.mark.parametrize("batch", [1, 3, 64])
    def test_batches_of_any_size_give_the_same(self, family, path, features, batch):
        found = load_encoder(family.name, path, encode_batch=batch).encode(
            family.frames(12), ALL_SIGNALS
        )
        for name, expected in fields(features).items():
            assert_same(fields(found)[name], expected)

    @pytest.mark.parametrize("num_frames", [4, 12])
    def test_the_cost_of_a_clip_is_what_torch_counts(self, family, encoder, num_frames):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            found = encoder.encode(family.frames(num_frames))
        # Windows at the edge of a frame are smaller than those that are counted.
        assert found.encoder_flops == pytest.approx(counter.get_total_flops(), rel=0.05)

    def test_only_the_signals_asked_for_are_computed(self, family, encoder, features):
        source = ClipSource(3.0, 360)
        frames = replace(family.frames(12), source=source)
        found = encoder.encode(frames, frozenset({"keys"}))
        assert (found.attention, found.saliency, found.frame_embeddings) == (None,) * 3
        assert (found.grid, found.sinks, found.source) == (family.grid, (), source)
        assert torch.equal(found.keys, features.keys)
        with pytest.raises(ValueError, match="cannot compute probe; it provides attention, frame_"):
            encoder.encode(frames, frozenset({"probe"}))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_half_precision_is_close_to_single(self, family, path, features, dtype):
        half = load_encoder(family.name, path, dtype=dtype).encode(family.frames(12), ALL_SIGNALS)
        for name in ("tokens", "companions") if family.extra else ("tokens",):
            value = getattr(half, name)
            assert value.dtype == getattr(torch, dtype)
            assert_same(value.float(), getattr(features, name), share=0.05)
        assert {half.saliency.dtype, half.attention.dtype, half.keys.dtype} == {torch.float32}

    def test_frames_of_a_wrong_size_are_refused(self, family, encoder):
        frames = family.frames(2)
        small = VideoFrames(frames.pixels[:, 1:], frames.timestamps)
        with pytest.raises(ValueError, match=r"frames must (be|have sides that are) .* pixels"):
            encoder.encode(small)

    def test_a_trace_does_not_depend_on_batches_and_has_no_other_layer(self, family, path, encoder):
        frames, last = family.frames(12), encoder.num_layers
        whole = encoder.trace(frames, [0, last])
        assert set(whole.hidden) == {0, last}
        assert whole.num_layers == last
        parts = load_encoder(family.name, path, encode_batch=2).trace(frames, [0, last])
        for name in ("norms", "attention"):
            assert_same(getattr(parts, name), getattr(whole, name))
        for layer in (0, last):
            assert whole.hidden[layer].shape[:2] == (len(whole.norms), math.prod(whole.grid))
            assert_same(parts.hidden[layer], whole.hidden[layer])
        for layer in (-1, last + 1):
            with pytest.raises(ValueError, match=f"layer {layer} is not one of model"):
                encoder.trace(frames, [layer])


class TestReplies:
    @torch.no_grad()
    def test_both_halves_give_the_stock_logits_of_pixels(self, family, stock, path, encoder):
        frames = family.frames(4)
        video = build_method("full").compressor.compress(encoder.encode(frames))
        model = load_language_model(family.name, path, **family.stock_options)
        prompt, loop = model.layout.lay_out(video, family.asked), model.engine.layer_loop
        ids = [
            token
            for span in prompt.spans
            for token in getattr(span, "ids", [family.placeholder] * len(span))
        ]
        expected = stock(**family.stock_inputs(encoder, frames, torch.tensor([ids]))).logits

        def logits(added):
            embeds = model.engine.embed(prompt.spans)[None]
            return loop.logits(run_whole(loop, embeds, prompt.positions[..., None, :], added=added))

        scale = float(expected.abs().max())
        found = logits(additions(prompt.spans, loop.device))
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * scale)
        if family.extra:
            assert float((logits(None) - expected).abs().max()) > 0.05 * scale

    def test_tokens_of_another_width_are_refused(self, family, endless):
        video = family.whole(2)
        extra = None if video.companions is None else video.companions[..., :5]
        wrong = replace(video, tokens=video.tokens[:, :5], companions=extra)
        with pytest.raises(ValueError, match=rf"width 5 and .*, but model {family.name} has"):
            endless.answer(wrong, [family.asked])

    @pytest.mark.parametrize("positions", ["renumbered", "original"])
    @pytest.mark.parametrize(("num_positions", "kept"), [(3, None), (3, 9), (1, 4), (12, 40)])
    @torch.no_grad()
    def test_replies_are_those_of_the_stock_layers(
        self, family, stock, endless, num_positions, kept, positions
    ):
        video = family.whole(num_positions, 3)
        video = video if kept is None else family.some(num_positions, kept, 3)
        prompt = endless.layout.lay_out(video, family.asked, positions)
        expected = stock_greedy(stock, endless.engine, prompt, 8)
        (answer,) = endless.answer(video, [family.asked], positions=positions, max_new_tokens=8)
        tokenizer = endless.layout.tokenizer
        assert answer.text == tokenizer.decode(expected, skip_special_tokens=True).strip()
        assert (answer.new_tokens, answer.prompt_tokens) == (8, len(prompt))
        assert answer.visual_tokens == video.num_kept + family.newlines
        if family.extra:
            return  # qwen3_vl/test_logits.py generates with the rows of DeepStack
        generated = stock.generate(
            inputs_embeds=endless.engine.embed(prompt.spans)[None],
            position_ids=prompt.positions[..., None, :],
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=8,
            eos_token_id=-1,
            pad_token_id=0,
        )
        assert generated[0].tolist() == expected

    @pytest.mark.parametrize("name", METHODS_INSIDE)
    def test_replies_under_a_method_inside_do_not_depend_on_the_cache(self, family, endless, name):
        if family.inside(name) is None:
            pytest.skip("no layer with attention for it")
        method = built(family, name)
        prompt = endless.layout.lay_out(family.whole(6), family.asked)
        cached, plain = (
            answered(
                endless.engine,
                [prompt],
                pruner=method.pruner,
                max_new_tokens=6,
                use_cache=use_cache,
            )[0]
            for use_cache in (True, False)
        )
        assert cached.text == plain.text
        (unpruned,) = endless.engine.answer([prompt], max_new_tokens=6)
        assert cached.new_tokens == unpruned.new_tokens == 6
        assert cached.prompt_tokens == unpruned.prompt_tokens
        assert cached.clip_text_tokens == unpruned.clip_text_tokens

    def test_a_method_before_layer_0_is_a_compressor(self, family, endless):
        """Tokens inside keep the place that they have in the full sequence."""
        full, video = family.whole(3), family.some(3, 20)
        kept = endless.layout.lay_out(video, family.asked, "original")
        left = torch.cat([span.indices for span in kept.spans if hasattr(span, "indices")])

        class Keep:
            renumbers = False

            def layers(self, num_layers):
                return (0,)

            def prune(self, context):
                own = context.visual_indices[context.previous_visual]
                stays = torch.ones(len(context.hidden), dtype=torch.bool)
                stays[context.visual] = torch.isin(own, left)
                keep = stays.nonzero()[:, 0]
                return Pruned(keep, context.hidden[keep])

        inside = endless.engine.answer(
            [endless.layout.lay_out(full, family.asked)], pruner=Keep(), max_new_tokens=6
        )
        before = endless.answer(video, [family.asked], positions="original", max_new_tokens=6)
        assert inside[0].text == before[0].text


def built(family, name, **options):
    cls = METHODS[name]
    if "retention" in option_names(cls):
        options = {"retention": 0.3 if issubclass(cls, Compressor) else 0.6, **options}
    if name == "flashvid":
        options = {"inner": None, **options}
    if issubclass(cls, LayerPruner):
        options |= family.inside(name) or {}
    return build_method(
        name,
        num_layers=family.num_layers,
        model=family.name,
        full_layers=family.full_layers,
        **options,
    )


class TestMethods:
    @pytest.mark.parametrize("name", EVERY_METHOD)
    def test_every_method_answers(self, family, endless, nearly_still, name):
        features = nearly_still
        if name in METHODS_INSIDE and family.inside(name) is None:
            with pytest.raises(InputError, match="reads the attention of layer 0 of the language"):
                built(family, name)
            return
        method = built(family, name)
        if issubclass(METHODS[name], Compressor) and any(
            getattr(features, signal) is None for signal in method.compressor.needs
        ):
            with pytest.raises(InputError, match="needs"):
                method.compressor.compress(features)
            return
        if issubclass(METHODS[name], Compressor):
            for retention in {0.1, 0.5} if "retention" in option_names(METHODS[name]) else {None}:
                share = {} if retention is None else {"retention": retention}
                report = Report()
                compressor = built(family, name, **share).compressor
                check_result(report, compressor, features, f"{share}")
                assert [one for one in report.results() if one.failure] == []
        video = method.compressor.compress(features)
        if family.extra:
            plan = method.compressor.plan(features)
            assert torch.equal(video.companions, plan.companions(features.companions))
            if plan.is_selection:
                expected = features.companions.flatten(0, 1)[video.indices]
                assert torch.equal(video.companions, expected)
        for answer in endless.answer(
            video,
            [family.asked, Prompt("", "w3?")],
            pruner=method.pruner,
            positions=method.compressor.positions,
            max_new_tokens=4,
        ):
            assert (answer.status, answer.new_tokens) == ("ok", 4)
            assert answer.visual_tokens == video.num_kept + family.newlines

    @pytest.mark.parametrize("name", HYBRIDS)
    def test_every_hybrid_answers(self, family, endless, features, name):
        hybrid = built(family, name, inner={**HYBRIDS[name], **family.inside("fastv")})
        assert hybrid.pruner is not None
        video = hybrid.compressor.compress(features)
        both = (
            endless.answer(video, [family.asked], pruner=pruner, max_new_tokens=4)[0]
            for pruner in (hybrid.pruner, None)
        )
        answer, other = both
        assert (answer.status, answer.new_tokens) == ("ok", 4)
        assert answer.prompt_tokens == other.prompt_tokens
