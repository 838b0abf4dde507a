"""Replies, first-token logits and positions of the engine `vllm` are those of `native`."""

import random

import pytest
import torch
from internvl_checkpoints import build_internvl, save_internvl
from llava_checkpoints import build_llava, save_llava

from tango_core.models import load_language_model
from tango_core.models.base import ClipPrompts
from tango_core.models.language.vllm_engine import prompt_of
from tango_core.models.tiny import embedded_checkpoint
from tango_core.types import CompressedVideo, Prompt

FAMILIES = ("llava-onevision-7b", "llava-video-7b", "internvl3.5-8b", "tiny")
# A grid of every family, and of clips of one frame.
GRIDS = {"tiny": (8, 8, 8)}
GRID = (6, 4, 4)
CLIPS, QUESTIONS = 40, 5
# Log-probabilities of a first token in float32.
BOUND = 5e-4

# Arguments of vLLM, and whether one prompt waits for the other.
CASES = {
    "whole, alone": ({}, 1),
    "whole, 8 at once": ({"max_num_seqs": 8}, None),
    "chunks of 64, alone": ({"max_num_batched_tokens": 64, "max_num_seqs": 8}, 1),
    "chunks of 64, 8 at once": ({"max_num_batched_tokens": 64, "max_num_seqs": 8}, None),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Model name -> checkpoint; heads are as wide as vLLM's kernels for CPUs allow."""
    place = tmp_path_factory.mktemp("checkpoints")
    (place / "llava").mkdir()
    llava = str(save_llava(build_llava(width=128), place / "llava"))
    return {
        "llava-onevision-7b": llava,
        "llava-video-7b": llava,
        "internvl3.5-8b": str(save_internvl(build_internvl(head_dim=32), place / "internvl")),
        "tiny": str(embedded_checkpoint()),
    }


def loaded(paths, name, engine, dtype="float32"):
    model = load_language_model(name, paths[name], device="cpu", dtype=dtype, engine=engine)
    # More end tokens than one, so that some replies of random weights end early.
    model.engine.eos_ids = frozenset([*model.engine.eos_ids, *range(20, 288, 5)])
    return model


def kept_sets(name, number, dtype=torch.float32):
    """Clips with random kept tokens: one, all, whole frames without any, one frame in all."""
    width = 48 if name == "internvl3.5-8b" else 128
    generator, choose = torch.Generator().manual_seed(3), random.Random(3)
    for index in range(number):
        grid = GRIDS.get(name, GRID)
        if index % 5 == 3:
            grid = (1, *grid[1:])
        total = grid[0] * grid[1] * grid[2]
        number_kept = (1, total, choose.randint(2, total), choose.randint(1, total))[index % 4]
        indices = torch.randperm(total, generator=generator)[:number_kept].sort().values
        if index % 5 == 2:  # tokens of the first and the last frame alone
            frame = grid[1] * grid[2]
            indices = torch.cat([torch.arange(3), torch.arange(total - 5, total)])
            assert grid[0] > 2 or frame == total
        tokens = torch.randn(len(indices), width, generator=generator).to(dtype)
        times = torch.arange(grid[0], dtype=torch.float64)
        yield CompressedVideo(tokens, indices, grid, times)


def prompts(name, index):
    """Questions about a clip; they begin alike, as those of a protocol do."""
    words = ["red", "blue", "green", "cross", "circle", "ring", "left", "right"]
    chosen = [
        random.Random(100 * index + number).choices(words, k=4) for number in range(QUESTIONS)
    ]
    return [Prompt("", f"what color is the {' '.join(one)} {index}") for one in chosen]


def replies(model, requests, batch_tokens):
    """Replies by request, through a session."""
    session = model.session(batch_tokens)
    found, waiting = {}, list(requests)
    while waiting or session.busy:
        while waiting and not session.full:
            session.add(waiting.pop(0))
        for request, answers in session.step():
            if isinstance(answers, Exception):
                raise answers
            found[id(request)] = [(one.text, one.new_tokens, one.prompt_tokens) for one in answers]
    return [found[id(one)] for one in requests]


@pytest.mark.parametrize("name", FAMILIES)
def test_200_greedy_replies_are_equal(name, paths):
    requests = [
        ClipPrompts(clip, prompts(name, index), max_new_tokens=8)
        for index, clip in enumerate(kept_sets(name, CLIPS))
    ]
    expected = replies(loaded(paths, name, "native"), requests, None)
    lengths = {length for clip in expected for _, length, _ in clip}
    assert len(lengths) > 1  # some end early, some at the bound
    model = loaded(paths, name, "vllm")
    for case, (arguments, batch_tokens) in CASES.items():
        model.engine.stop()
        model.engine.arguments = arguments
        found = replies(model, requests, batch_tokens)
        pairs = [
            (a, b)
            for ours, theirs in zip(expected, found, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        ]
        equal = sum(a == b for a, b in pairs)
        print(f"{name}: replies, {case}: {equal} equal of {len(pairs)}")
        assert (equal, len(pairs)) == (CLIPS * QUESTIONS, CLIPS * QUESTIONS), case
    model.engine.stop()


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probabilities_of_the_first_token_are_within_a_bound(name, paths):
    from vllm.sampling_params import SamplingParams

    native, model = (loaded(paths, name, engine) for engine in ("native", "vllm"))
    width = native.spec.llm.hidden_size
    model.engine.arguments = {"max_logprobs": -1, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    engine, half = model.engine.start(), native.engine.model
    clips = list(kept_sets(name, 50))
    laid_out = [native.layout.lay_out(clip, prompts(name, 0)[0]) for clip in clips]
    for index, prompt in enumerate(laid_out):
        parameters = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, detokenize=False)
        engine.add_request(str(index), prompt_of(prompt, width, torch.float32), parameters)
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                (row,) = output.outputs[0].logprobs
                found[int(output.request_id)] = {token: one.logprob for token, one in row.items()}
    worst = 0.0
    for index, prompt in enumerate(laid_out):
        with torch.inference_mode():
            states = half.language_model(
                inputs_embeds=native.engine.embed(prompt.spans)[None],
                position_ids=prompt.positions[None],
            ).last_hidden_state[0, -1]
            expected = half.lm_head(states).log_softmax(-1)
        ours = expected[list(found[index])]
        theirs = torch.tensor(list(found[index].values()))
        worst = max(worst, float((ours - theirs).abs().max()))
    print(f"{name}: log-probabilities of 50 first tokens differ by {worst:.1e} at most")
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
    for clip in kept_sets(name, 50, getattr(torch, dtype)):
        (prompt,) = prompts(name, 0)[:1]
        expected = model.layout.lay_out(clip, prompt).positions
        seen.clear()
        model.answer(clip, [prompt], max_new_tokens=1, share_prefix=False)
        assert torch.equal(torch.cat(seen), expected)
    model.engine.stop()
