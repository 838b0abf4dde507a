"""Replies, first-token logits and positions of the engine `vllm` are those of `native`.

Each test prints how many of its cases are equal (`pytest -s`).
"""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch
from batched_requests import run
from internvl_checkpoints import build_internvl, save_internvl
from llava_checkpoints import build_llava, save_llava
from qwen3_checkpoints import EXTRA, build_qwen3, save_qwen3
from qwen_checkpoints import build_qwen, save_qwen
from without_cache import run_whole

from tango_core.models import load_language_model
from tango_core.models.base import ClipPrompts
from tango_core.models.language.packed_pass import additions
from tango_core.models.tiny import embedded_checkpoint
from tango_core.types import CompressedVideo, Prompt

QWEN = ("qwen2.5-vl-7b", "qwen3-vl-8b")
FAMILIES = ("llava-onevision-7b", "llava-video-7b", "internvl3.5-8b", *QWEN, "tiny")
GRIDS = {"tiny": [(8, 8, 8)]}
GRID = [(6, 4, 4)]
# Positions above 256, the last integer up to which bfloat16 is exact.
LARGE = [(6, 4, 4), (32, 6, 5), (3, 20, 36)]
CLIPS, QUESTIONS = 40, 5
LONGEST = 4096
# Log-probabilities of a first token in float32.
BOUND = 5e-4

# Arguments of vLLM.
CHUNKS = {"whole": {}, "chunks of 64": {"max_num_batched_tokens": 64}}
# The `batch_tokens` of a session: whether a prompt waits for the one before it.
TOGETHER = {"alone": 1, "8 at once": None}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Model name -> checkpoint; heads are as wide as vLLM's kernels for CPUs allow."""
    place = tmp_path_factory.mktemp("checkpoints")
    (place / "llava").mkdir()
    llava = str(save_llava(build_llava(width=128), place / "llava"))
    qwen = build_qwen(width=4 * 32, sections=(6, 5, 5))
    qwen.config.text_config.max_position_embeddings = LONGEST
    qwen3 = build_qwen3()
    qwen3.config.text_config.max_position_embeddings = LONGEST
    return {
        "llava-onevision-7b": llava,
        "llava-video-7b": llava,
        "qwen2.5-vl-7b": str(save_qwen(qwen, place / "qwen")),
        "qwen3-vl-8b": str(save_qwen3(qwen3, place / "qwen3")),
        "internvl3.5-8b": str(save_internvl(build_internvl(head_dim=32), place / "internvl")),
        "tiny": str(embedded_checkpoint()),
    }


def loaded(paths, name, engine, dtype="float32"):
    options = {"seconds_per_grid": 8.0} if name == "qwen2.5-vl-7b" else {}
    model = load_language_model(
        name, paths[name], device="cpu", dtype=dtype, engine=engine, **options
    )
    # More end tokens than one, so that some replies of random weights end early.
    model.engine.eos_ids = frozenset([*model.engine.eos_ids, *range(20, 288, 5)])
    return model


def kept_sets(model, number, grids=None):
    """Clips with random kept tokens: one, all, whole frames without any, one frame in all."""
    spec = model.spec
    width, dtype = spec.llm.hidden_size, getattr(torch, spec.dtype)
    grids = grids or GRIDS.get(spec.name, GRID)
    generator, choose = torch.Generator().manual_seed(3), random.Random(3)
    for index in range(number):
        grid = grids[index % len(grids)]
        if index % 5 == 3:
            grid = (1, *grid[1:])
        total = grid[0] * grid[1] * grid[2]
        number_kept = (1, total, choose.randint(2, total), choose.randint(1, total))[index % 4]
        indices = torch.randperm(total, generator=generator)[:number_kept].sort().values
        if index % 5 == 2:  # tokens of the first and the last frame alone
            assert grid[0] > 2
            indices = torch.cat([torch.arange(3), torch.arange(total - 5, total)])
        companions = None
        if spec.companions:
            companions = torch.randn(len(indices), EXTRA, width, generator=generator).to(dtype)
        yield CompressedVideo(
            torch.randn(len(indices), width, generator=generator).to(dtype),
            indices,
            grid,
            torch.arange(grid[0], dtype=torch.float64),
            companions=companions,
        )


def first_log_probabilities(model, laid_out):
    """(vocabulary,) after a prompt, by the layers of `native`."""
    loop = model.engine.layer_loop
    hidden = run_whole(
        loop,
        model.engine.embed(laid_out.spans)[None],
        laid_out.positions.unsqueeze(-2),  # (1, S), or (3, 1, S)
        added=additions(laid_out.spans, loop.device),
    )
    return loop.logits(hidden)[0, -1].log_softmax(-1)


def prompts(name, index):
    """Questions about a clip; they begin alike, as those of a protocol do."""
    words = ["red", "blue", "green", "cross", "circle", "ring", "left", "right"]
    chosen = [
        random.Random(100 * index + number).choices(words, k=4) for number in range(QUESTIONS)
    ]
    return [Prompt("", f"what color is the {' '.join(one)} {index}") for one in chosen]


def replies(model, requests, batch_tokens):
    """Replies by request, through a session."""
    return [
        [(one.text, one.new_tokens, one.prompt_tokens) for one in answers]
        for answers in run(model, requests, batch_tokens)
    ]


def count_known_tokens(engine):
    """List that grows by the number of tokens of every prompt that were not computed again."""
    known, step = [], engine.step

    def counted():
        outputs = step()
        known.extend(one.num_cached_tokens for one in outputs if one.finished)
        return outputs

    engine.step = counted
    return known


@pytest.mark.parametrize("name", FAMILIES)
def test_200_greedy_replies_are_equal(name, paths):
    native = loaded(paths, name, "native")
    requests = [
        ClipPrompts(clip, prompts(name, index), max_new_tokens=8)
        for index, clip in enumerate(kept_sets(native, CLIPS))
    ]
    expected = replies(native, requests, None)
    lengths = {length for clip in expected for _, length, _ in clip}
    assert len(lengths) > 1  # some end early, some at the bound
    model = loaded(paths, name, "vllm")
    for (chunk, arguments), (together, batch_tokens) in product(CHUNKS.items(), TOGETHER.items()):
        if together == "alone":
            model.engine.stop()
            model.engine.arguments = {"max_num_seqs": 8, **arguments}
            known = count_known_tokens(model.engine.start())
        model.engine.start().reset_prefix_cache()
        known.clear()
        found = replies(model, requests, batch_tokens)
        pairs = [
            (a, b)
            for ours, theirs in zip(expected, found, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        ]
        equal = sum(a == b for a, b in pairs)
        print(
            f"{name}: replies, {chunk}, {together}: {equal} equal of {len(pairs)}; {sum(known)} of "
            f"{sum(tokens for _, (_, _, tokens) in pairs)} tokens from the cache of prefixes"
        )
        assert equal == len(pairs) == CLIPS * QUESTIONS, (chunk, together)
        assert sum(known) > 1000
    model.engine.stop()


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_log_probabilities_of_the_first_token_are_within_a_bound(name, paths):
    from vllm.sampling_params import SamplingParams

    native, model = (loaded(paths, name, engine) for engine in ("native", "vllm"))
    model.engine.arguments = {"max_logprobs": -1, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    engine = model.engine.start()
    laid_out = [native.layout.lay_out(clip, prompts(name, 0)[0]) for clip in kept_sets(native, 50)]
    for index, prompt in enumerate(laid_out):
        parameters = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, detokenize=False)
        (given,) = model.engine.inputs([prompt])
        engine.add_request(str(index), given, parameters)
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                (row,) = output.outputs[0].logprobs
                found[int(output.request_id)] = {token: one.logprob for token, one in row.items()}
    worst = 0.0
    for index, prompt in enumerate(laid_out):
        ours = first_log_probabilities(native, prompt)[list(found[index])]
        theirs = torch.tensor(list(found[index].values()))
        worst = max(worst, float((ours - theirs).abs().max()))
    print(f"{name}: log-probabilities of {len(found)} first tokens differ by {worst:.1e} at most")
    assert worst < BOUND
    model.engine.stop()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_positions_of_50_kept_sets_are_identical(name, paths, dtype):
    model = loaded(paths, name, "vllm", dtype)
    model.engine.arguments = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
    engine = model.engine.start()
    seen = []
    runner = engine.model_executor.driver_worker.worker.model_runner
    runner.model.register_forward_pre_hook(
        lambda module, args, named: seen.append(named["positions"].clone()), with_kwargs=True
    )
    equal, highest = 0, 0
    clips = list(kept_sets(model, 50, LARGE if name in QWEN else None))
    for clip in clips:
        (prompt,) = prompts(name, 0)[:1]
        expected = model.layout.lay_out(clip, prompt).positions
        seen.clear()
        model.answer(clip, [prompt], max_new_tokens=1, share_prefix=False)
        equal += torch.equal(torch.cat(seen, dim=-1), expected)
        highest = max(highest, int(expected.max()))
    print(f"{name}: positions, {dtype}: {equal} equal of {len(clips)}, up to {highest}")
    assert equal == len(clips) == 50
    assert highest > (300 if name in QWEN else 60)
    model.engine.stop()


@pytest.mark.parametrize("name", QWEN)
def test_clips_that_look_equal_as_token_ids_do_not_share_a_prefix(name, paths):
    """Same ids, other rows or other places: the replies of each, in turn and from the cache."""
    native, model = (loaded(paths, name, engine) for engine in ("native", "vllm"))
    clip = list(kept_sets(native, 7, [(4, 3, 5)]))[6]
    others = [
        clip,
        replace(clip, tokens=clip.tokens.flip(0)),
        replace(clip, indices=(clip.indices // 15 * 15 + 14 - clip.indices % 15).sort().values),
    ]
    texts = [Prompt("", "what color is the cross")]
    inputs = [next(model.engine.inputs([native.layout.lay_out(one, texts[0])])) for one in others]
    ids = [one["prompt_token_ids"] for one in inputs]
    assert ids[0] == ids[1]
    if name == "qwen2.5-vl-7b":
        assert ids[0] == ids[2]
    known = count_known_tokens(model.engine.start())
    for number in (0, 1, 2, 0, 2, 1):
        expected, found = (one.answer(others[number], texts) for one in (native, model))
        assert [one.text for one in found] == [one.text for one in expected]
    assert min(known[3:]) > max(known[1:3])
    parameters = model.engine.start().model_executor.driver_worker.worker.model_runner.model
    assert not any(at.startswith("visual") for at, _ in parameters.named_parameters())
    model.engine.stop()
