"""Qwen2.5-VL and Qwen3-VL in vLLM: positions, logits and replies against this project's engine."""

import math
import os
from dataclasses import replace

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the model in this process, so that a test sees its calls
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    TORCHDYNAMO_DISABLE="1",
)

import pytest
import torch
from qwen3_checkpoints import EXTRA, build_qwen3, save_qwen3
from qwen_checkpoints import VIDEO_PAD, build_qwen, save_qwen
from vllm import EngineArgs, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.v1.engine.llm_engine import LLMEngine
from without_cache import run_whole

from tango_core.models import load_language_model
from tango_core.models.language.packed_pass import additions
from tango_core.models.language.vllm_qwen import clip_inputs, engine_arguments, register
from tango_core.types import CompressedVideo, Prompt

LONGEST = 2048
FAMILIES = {"qwen2_5_vl": "qwen2.5-vl-7b", "qwen3_vl": "qwen3-vl-8b"}
PROMPTS = [Prompt("Look. ", text) for text in ("What is it?", "Where?", "Who sits there? ", "How?")]
NEW_TOKENS = 6


class Engine:
    """vLLM in this process, which writes down the positions of every forward pass."""

    def __init__(self, path, model_type, dtype, chunk):
        register()
        arguments = EngineArgs(
            model=path,
            dtype=dtype,
            enforce_eager=True,
            max_model_len=LONGEST,
            max_num_batched_tokens=chunk,
            max_num_seqs=8,
            max_logprobs=-1,
            **engine_arguments(model_type),
        )
        self.engine = LLMEngine.from_engine_args(arguments)
        self.positions = []
        model = self.model
        forward = model.forward

        def recorded(input_ids, positions, *others, **named):
            self.positions.append(positions.clone())
            return forward(input_ids, positions, *others, **named)

        model.forward = recorded

    @property
    def model(self):
        executor = self.engine.engine_core.engine_core.model_executor
        return executor.driver_worker.worker.model_runner.model

    def run(self, inputs, *, together=True, **sampling):
        """Outputs in order; all inputs are queued at once, or one after the other."""
        settings = {"temperature": 0, "ignore_eos": True, "max_tokens": NEW_TOKENS} | sampling
        outputs = {}
        for index, one in enumerate(inputs):
            self.engine.add_request(str(index), one, SamplingParams(**settings))
            while not together and self.engine.has_unfinished_requests():
                outputs |= {out.request_id: out for out in self.engine.step()}
        while self.engine.has_unfinished_requests():
            outputs |= {out.request_id: out for out in self.engine.step()}
        return [outputs[str(index)] for index in range(len(outputs))]

    def prefilled(self, one):
        """Positions of a prompt that were computed, and how many tokens were known before."""
        self.positions.clear()
        (output,) = self.run([one], max_tokens=1)
        return torch.cat(self.positions, dim=1), output.num_cached_tokens


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """Model type, checkpoint and the language model that this project loads from it."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "qwen3_vl":
        save_qwen3(build_qwen3(), directory)
    else:
        # vLLM's attention on a CPU takes no heads narrower than 32.
        model = build_qwen(width=4 * 32, sections=(6, 5, 5))
        model.config.text_config.max_position_embeddings = LONGEST
        save_qwen(model, directory)
    native = load_language_model(FAMILIES[request.param], str(directory))
    native.engine.eos_ids = frozenset()
    return request.param, str(directory), native


@pytest.fixture(scope="module", params=[64, LONGEST], ids="chunks of {}".format)
def engine(request, family):
    model_type, path, _ = family
    engine = Engine(path, model_type, "float32", request.param)
    yield engine
    engine.engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def kept_sets(model, count, grids, dtype=torch.float32):
    """Random clips: every fifth with 1 token, every fifth with all, most with empty frames."""
    generator = torch.Generator().manual_seed(11)
    width = model.spec.llm.hidden_size
    for index in range(count):
        grid = grids[index % len(grids)]
        total = math.prod(grid)
        few = int(torch.randint(1, max(2, total // 4), (), generator=generator))
        kept = {0: 1, 1: total}.get(index % 5, few)
        deep = torch.randn(kept, EXTRA, width, generator=generator).to(dtype)
        yield CompressedVideo(
            tokens=torch.randn(kept, width, generator=generator).to(dtype),
            indices=torch.randperm(total, generator=generator)[:kept].sort().values,
            grid=grid,
            timestamps=torch.arange(grid[0], dtype=torch.float64) * 1.5 + 0.25,
            companions=deep if model.spec.companions else None,
        )


def inputs_for(model, video, prompts=PROMPTS):
    return list(clip_inputs([model.layout.lay_out(video, one) for one in prompts], VIDEO_PAD))


GRIDS = [(1, 4, 4), (4, 3, 5), (8, 2, 3), (16, 4, 4), (1, 1, 2), (3, 6, 7)]


def test_positions_of_50_kept_sets_are_those_of_the_layout(family, engine):
    native = family[2]
    for number, video in enumerate(kept_sets(native, 50, GRIDS)):
        laid_out = native.layout.lay_out(video, PROMPTS[number % 4])
        (one,) = clip_inputs([laid_out], VIDEO_PAD)
        found, cached = engine.prefilled(one)
        assert torch.equal(found, laid_out.positions[:, cached:])


def first_logits(native, laid_out):
    """(vocabulary,) logits after the prompt, by this project's layers."""
    loop = native.engine.layer_loop
    hidden = run_whole(
        loop,
        native.engine.embed(laid_out.spans)[None],
        laid_out.positions[:, None],
        added=additions(laid_out.spans, loop.device),
    )
    return loop.logits(hidden)[0, -1]


@torch.inference_mode()
def test_first_logits_are_those_of_this_projects_engine(family, engine):
    native = family[2]
    for video in kept_sets(native, 6, GRIDS):
        laid_out = native.layout.lay_out(video, PROMPTS[0])
        (output,) = engine.run(clip_inputs([laid_out], VIDEO_PAD), max_tokens=1, logprobs=-1)
        expected = first_logits(native, laid_out)
        found = output.outputs[0].logprobs[0]
        found = torch.tensor([found[token].logprob for token in range(len(expected))])
        # Logarithms of probabilities are logits up to a constant.
        scale = float(expected.abs().max())
        error = (found - found.max()) - (expected - expected.max())
        assert scale > 0.5
        assert float(error.abs().max()) < 2e-5 * scale


@pytest.mark.parametrize("together", [False, True], ids=["alone", "8 at once"])
def test_replies_to_200_prompts_are_those_of_this_projects_engine(family, engine, together):
    native = family[2]
    videos = list(kept_sets(native, 50, GRIDS))
    inputs = [one for video in videos for one in inputs_for(native, video)]
    outputs = engine.run(inputs, together=together)
    found = [native.layout.decode(list(out.outputs[0].token_ids)).strip() for out in outputs]
    expected = [
        answer.text
        for video in videos
        for answer in native.answer(video, PROMPTS, max_new_tokens=NEW_TOKENS)
    ]
    assert len(set(expected)) > 20
    assert found == expected
    # Questions about a clip find its tokens in the cache of prefixes.
    assert sum(out.num_cached_tokens for out in outputs) > 50 * 3 * 16


def test_clips_that_look_equal_as_token_ids_do_not_share_a_prefix(family, engine):
    """Same ids, other rows or other places: the replies of each, in turn and from the cache."""
    native = family[2]
    clip = list(kept_sets(native, 8, [(4, 3, 5)]))[7]
    moved = clip.indices // 15 * 15 + 14 - (clip.indices % 15)
    others = [
        clip,
        replace(clip, tokens=clip.tokens.flip(0)),
        replace(clip, indices=moved.sort().values),
    ]
    inputs = [inputs_for(native, video)[0] for video in others]
    assert inputs[0]["prompt_token_ids"] == inputs[1]["prompt_token_ids"]
    if family[0] == "qwen2_5_vl":
        assert inputs[0]["prompt_token_ids"] == inputs[2]["prompt_token_ids"]
    for number in (0, 1, 2, 0, 2, 1):
        (output,) = engine.run([inputs[number]])
        (expected,) = native.answer(others[number], PROMPTS[:1], max_new_tokens=NEW_TOKENS)
        found = native.layout.decode(list(output.outputs[0].token_ids)).strip()
        assert found == expected.text


def test_positions_in_bfloat16_are_the_same(family):
    """Positions far above 256, the last integer up to which bfloat16 is exact."""
    model_type, path, _ = family
    native = load_language_model(FAMILIES[model_type], path, dtype="bfloat16")
    engine = Engine(path, model_type, "bfloat16", 512)
    grids = [(32, 6, 5), (16, 4, 9), (1, 20, 36)]
    highest = 0
    for video in kept_sets(native, 50, grids, torch.bfloat16):
        laid_out = native.layout.lay_out(video, PROMPTS[0])
        (one,) = clip_inputs([laid_out], VIDEO_PAD)
        found, cached = engine.prefilled(one)
        assert torch.equal(found, laid_out.positions[:, cached:])
        highest = max(highest, int(found.max()))
    engine.engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    assert highest > (400 if model_type == "qwen3_vl" else 60)


def test_the_tower_is_not_built(engine):
    assert not any(name.startswith("visual") for name, _ in engine.model.named_parameters())


def test_a_prompt_without_clip_is_answered(family, engine):
    (output,) = engine.run([{"type": "token", "prompt_token_ids": list(range(10, 60))}])
    assert len(output.outputs[0].token_ids) == NEW_TOKENS
