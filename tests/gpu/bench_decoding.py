"""Milliseconds of a step of decoding at 7B, against what reading the weights takes at least."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from tango_core.models.base import ClipPrompts
from tango_core.models.placement import bytes_of
from tango_core.types import CompressedVideo
from tests.gpu.bench_answers import QUESTIONS, clip_of, language_model
from tests.gpu.command import Rows, Run, synchronize

_COPIED_BYTES = 2**30


def bench_decoding(run: Run) -> Rows:
    """Time per step of one sequence, and of as many as a batch has."""
    short, long = (16, 48) if run.small else (64, 320)
    rows: Rows = []
    model: Any
    model, spec = language_model(run)
    loop = model.engine.layer_loop
    weights = bytes_of([*loop.layers, loop.norm, loop.lm_head])
    floor = weights / _bandwidth(run) * 1e3
    for number in (1, 8):
        clips = [clip_of(spec, seed, run) for seed in range(number)]
        _decoded(model, clips, short)  # kernels are chosen
        begun, ended = _decoded(model, clips, short), _decoded(model, clips, long)
        step = (ended - begun) / (long - short)
        rows.append(
            {
                "sequences": number,
                "ms/step": step,
                "ms/token": step / number,
                "floor ms": floor,
            }
        )
    return rows


def _decoded(model: Any, clips: Sequence[CompressedVideo], new_tokens: int) -> float:
    """Milliseconds of all steps of a session."""
    session = model.session(65536)
    for clip in clips:
        session.add(ClipPrompts(clip, QUESTIONS[:1], max_new_tokens=new_tokens))
    spent = 0.0
    while session.busy:
        for _, answers in session.step():
            if isinstance(answers, Exception):
                raise answers
            spent += answers[0].decode_ms  # a sequence has its share of every step
    return spent


def _bandwidth(run: Run) -> float:
    """Bytes a second that the device reads, from copies, which also write as much."""
    size = _COPIED_BYTES >> (6 if run.small else 0)
    source = torch.zeros(size, dtype=torch.uint8, device=run.device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        synchronize(run)
        begun = time.perf_counter()
        target.copy_(source)
        synchronize(run)
        best = min(best, time.perf_counter() - begun)
    return 2 * size / best
