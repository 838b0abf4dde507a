"""Questions per CPU second and peak memory of both engines, each in a process of its own.

    python -m tests.vllm.speed RECIPE CACHE                     # all questions of cached clips
    python -m tests.vllm.speed --checkpoint DIRECTORY           # one question per clip, 64 tokens

The second form takes a LLaVA-OneVision checkpoint, for example one with random weights, and
compares vLLM with `native` one by one, on 16 random token sets: a tenth of 8 frames.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENGINES = ("native", "vllm")
_PROMPTS, _REPLY = 16, 64


def cpu_seconds() -> float:
    """Processor time of this process and its children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def answer_recipe(recipe: str, cache: str, engine: str) -> dict[str, Any]:
    """Answer all questions of a recipe's cached clips with the stage of a job."""
    import torch

    from jobs.config.recipe import load_job
    from jobs.run.build import build, make_plan, make_settings
    from pipeline.resources.pools import Pools
    from pipeline.rows import clips_in
    from pipeline.stages.answer import AnswerQuestions

    torch.set_num_threads(1)
    job = load_job(Path(recipe), [f"engine={engine}"])
    plan = make_plan(job, build(job), cache, answer=True)
    settings = make_settings(job, None, "local", Pools())
    stage = AnswerQuestions(
        plan.model, plan.methods, plan.caches, plan.protocols, batch_tokens=settings.batch_tokens
    )
    clips = list(clips_in(plan.clips))
    assert not any(clip.missing for clip in clips), "fill the caches with `tango precompute`"
    list(stage.stream(clips[:1]))
    start, cpu = time.perf_counter(), cpu_seconds()
    answers = [answer for done in stage.stream(clips) for answer in done.answers]
    used, took = cpu_seconds() - cpu, time.perf_counter() - start
    right = sum(bool(answer["correct"]) for answer in answers)
    return {"questions": len(answers), "cpu_s": used, "wall_s": took, "right": right}


def answer_checkpoint(path: str, engine: str) -> dict[str, Any]:
    """Answer one question about each of many clips."""
    import torch

    from tango_core.models import load_language_model
    from tango_core.models.base import ClipPrompts
    from tango_core.types import CompressedVideo, Prompt

    torch.set_num_threads(1)
    model: Any = load_language_model("llava-onevision-7b", path, device="cpu", engine=engine)
    model.engine.eos_ids = frozenset()
    generator = torch.Generator().manual_seed(0)
    width, requests = model.spec.llm.hidden_size, []
    for index in range(_PROMPTS):
        kept = torch.randperm(8 * 196, generator=generator)[:157].sort().values
        tokens = torch.randn(157, width, generator=generator) * 0.02
        video = CompressedVideo(tokens, kept, (8, 14, 14), torch.arange(8).double())
        prompt = Prompt("", f"What happens in clip {index}?")
        requests.append(ClipPrompts(video, [prompt], max_new_tokens=_REPLY))
    session = model.session(1 if engine == "native" else None)
    start, cpu = time.perf_counter(), cpu_seconds()
    waiting, tokens_made = list(requests), 0
    while waiting or session.busy:
        while waiting and not session.full:
            session.add(waiting.pop(0))
        for _, answers in session.step():
            tokens_made += sum(answer.new_tokens for answer in answers)
    used, took = cpu_seconds() - cpu, time.perf_counter() - start
    return {"questions": _PROMPTS, "cpu_s": used, "wall_s": took, "tokens": tokens_made}


def main() -> None:
    """Measure both engines, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("cache", nargs="?")
    parser.add_argument("--checkpoint")
    parser.add_argument("--engine", choices=ENGINES)
    given = parser.parse_args()
    if given.engine:
        if given.checkpoint:
            found = answer_checkpoint(given.checkpoint, given.engine)
        else:
            found = answer_recipe(given.recipe, given.cache, given.engine)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({**found, "peak_gib": peak}))
        return
    rates = {}
    for engine in ENGINES:
        command = [sys.executable, "-m", "tests.vllm.speed", *sys.argv[1:], "--engine", engine]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        rates[engine] = found["questions"] / found["cpu_s"]
        print(f"{engine}: {rates[engine]:.2f} questions per CPU second, {found}", flush=True)
    print(f"vllm / native: {rates['vllm'] / rates['native']:.2f}")


if __name__ == "__main__":
    main()
