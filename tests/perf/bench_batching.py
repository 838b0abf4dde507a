"""Questions of many clips together against one clip after the other.

    python -m tests.perf.bench_batching [--layers 3] [--output tests/perf/results/batching.md]

Every way is measured in turn in one process, by the time of its CPU, so that ratios hold on a busy
machine; the best of some rounds counts. Weights of the large geometry are random, its layers few.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, Qwen2Config

from tango_core import describe_model, load_language_model
from tango_core.models.language.native import NativeEngine
from tango_core.models.language.parts import LaidOutRequest
from tango_core.models.language.prompt import LaidOutPrompt, TextTokens, VisualTokens

WIDTH, VOCABULARY = 896, 151_936
BUDGETS = (1, 512, 1024, 2048, 4096, 8192)


class _Half(nn.Module):
    """Qwen2 in the width of the 0.5B models, with few layers and random weights."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        config = Qwen2Config(
            hidden_size=WIDTH,
            intermediate_size=4864,
            num_hidden_layers=layers,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        )
        self.language_model = AutoModel.from_config(config, attn_implementation="sdpa")
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)


def large(layers: int) -> NativeEngine:
    """An engine of the 0.5B geometry whose replies never end early."""
    torch.manual_seed(0)
    half = _Half(layers).eval().requires_grad_(False)
    return NativeEngine(half, lambda ids: " ".join(map(str, ids)), frozenset())


def embedded(dtype: str = "float32") -> NativeEngine:
    """The embedded model's engine; token ids instead of words, so that every token counts."""
    engine: Any = load_language_model(describe_model("tiny", dtype=dtype)).engine  # type: ignore[attr-defined]
    engine.decode_text = lambda ids: " ".join(map(str, ids))
    return engine  # type: ignore[no-any-return]


def requests(
    engine: NativeEngine, visual: int, number: int, questions: int, new: int
) -> list[LaidOutRequest]:
    """Random clips with random questions of unequal length."""
    generator, chosen = torch.Generator().manual_seed(visual), random.Random(visual)
    width = engine.layer_loop.config.hidden_size
    made = []
    for _ in range(number):
        clip = VisualTokens(
            (torch.randn(visual, width, generator=generator) * 0.5).to(engine.layer_loop.dtype),
            torch.arange(visual),
            (1, 1, visual),
        )
        prompts = []
        for _ in range(questions):
            words = tuple(chosen.randrange(10, 120) for _ in range(chosen.randint(20, 60)))
            spans = (TextTokens((1, 2, 3)), clip, TextTokens(words))
            prompts.append(LaidOutPrompt(spans, torch.arange(sum(map(len, spans)))))
        made.append(LaidOutRequest(prompts, None, new))
    return made


def answer(
    engine: NativeEngine, asked: Sequence[LaidOutRequest], budget: int
) -> tuple[float, list[list[str]]]:
    """CPU seconds, and the replies to every request."""
    session, found, waiting = engine.session(budget), {}, list(asked)[::-1]
    start = time.process_time()
    while waiting or session.busy:
        while waiting and not session.full:
            session.add(waiting.pop())
        for request, answers in session.step():
            assert not isinstance(answers, Exception)
            found[id(request)] = [one.text for one in answers]
    return time.process_time() - start, [found[id(one)] for one in asked]


def measured(
    name: str, make: Callable[[], NativeEngine], cases: Sequence[tuple[int, int, int, int]]
) -> list[str]:
    """Rows of the table for one model."""
    engine, lines = make(), []
    for visual, number, questions, new in cases:
        asked = requests(engine, visual, number, questions, new)
        best: dict[int, float] = {}
        replies = {}
        for _ in range(3):
            for budget in BUDGETS:
                seconds, replies[budget] = answer(engine, asked, budget)
                best[budget] = min(best.get(budget, seconds), seconds)
        per_s = number * questions / best[1]
        ratios = " | ".join(f"{best[1] / best[budget]:.2f}x" for budget in BUDGETS[1:])
        same = "all" if all(one == replies[1] for one in replies.values()) else "NOT all"
        lines.append(f"| {name} | {visual} | {questions} | {per_s:.1f} | {ratios} | {same} |")
        print(lines[-1], flush=True)
    return lines


def flips(dtype: str) -> str:
    """Replies of the embedded model in half precision that differ from one by one."""
    engine = embedded(dtype)
    asked = requests(engine, 51, 100, 2, 8)
    alone = [text for one in answer(engine, asked, 1)[1] for text in one]
    together = [text for one in answer(engine, asked, 4096)[1] for text in one]
    differ = sum(a != b for a, b in zip(alone, together, strict=True))
    line = f"| {dtype} | {differ} of {len(alone)} |"
    print(line, flush=True)
    return line


def peak(budget: int, layers: int) -> float:
    """GiB at most of a process that answers with this budget."""
    code = f"from tests.perf import bench_batching as b; b.use_memory({budget}, {layers})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def use_memory(budget: int, layers: int) -> None:
    """Answer, and print the largest resident size of this process in GiB."""
    torch.set_num_threads(1)
    engine = large(layers)
    answer(engine, requests(engine, 100, 40, 1, 2), budget)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = [
        "| model | visual tokens | questions per clip | one by one, questions per CPU second | "
        + " | ".join(f"{budget} tokens" for budget in BUDGETS[1:])
        + " | equal replies |",
        "|" + "---|" * (len(BUDGETS) + 4),
        *measured("embedded", embedded, [(51, 40, 1, 3), (51, 20, 3, 3), (512, 12, 1, 3)]),
        *measured(
            f"0.5B, {options.layers} layers",
            lambda: large(options.layers),
            [(100, 12, 1, 4), (630, 4, 1, 4)],
        ),
    ]
    halves = ["| dtype | changed replies |", "|---|---|", flips("float16"), flips("bfloat16")]
    memory = ["| tokens | peak of the process, GiB |", "|---|---|"]
    for budget in (1, 1024, 4096):
        memory.append(f"| {budget} | {peak(budget, options.layers):.2f} |")
        print(memory[-1], flush=True)
    if options.output is not None:
        parts = ["\n".join(part) for part in (table, halves, memory)]
        options.output.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
