"""Time to the first token of a 7B model, its parts, and how much faster fewer tokens make it.

The tower is timed on noise, but its random weights see the same in every frame, of which Tango
would keep next to nothing: what is compressed and answered is a clip of `clips.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from tango_core.compressors import build_method
from tango_core.latency import LatencyProfile
from tango_core.models import ModelSpec
from tango_core.types import CompressedVideo, Prompt
from tests.gpu.bench_answers import GEOMETRY, language_model
from tests.gpu.clips import make_clip, moved
from tests.gpu.command import Rows, Run, gib, reset_peak
from tests.gpu.halves import described, geometry, loaded_encoder, noise_frames

RETENTIONS = (1.0, 0.5, 0.3, 0.2, 0.15, 0.1)
# The paper's, for TTFT on one A100-class GPU with LLaVA-OneVision 7B.
PAPER = {0.2: 1.63, 0.1: 1.88}
TARGET = {0.1: 1.9}
# Largest difference of the share of tokens that is kept from the one that was asked for.
MOST_OFF = 0.02
QUESTION = Prompt("", "Question: What does the person in the video do?\nA. Cook\nB. Run\nAnswer: ")


def bench_ttft(run: Run) -> Rows:
    """Vision, compress, prefill and first token at every retention, medians in milliseconds."""
    repeats, warm_up = (1, 1) if run.small else (5, 2)
    shrink, num_frames = (28, 4) if run.small else (1, 32)
    model, _ = language_model(run)
    with geometry(GEOMETRY, shrink=shrink) as path:
        spec = described(GEOMETRY, path, run.device, "bfloat16", num_frames)
        encoder = loaded_encoder(spec)
    frames = noise_frames(spec)
    shape = encoder.encode(frames).tokens.shape
    clip = moved(make_clip(shape[0], _grid(spec), shape[2]), run.device, torch.bfloat16)
    assert clip.tokens.shape == shape
    rows: Rows = []
    for retention in RETENTIONS:
        name = "full" if retention == 1.0 else "tango"
        options = {} if retention == 1.0 else {"retention": retention, "score": "attention"}
        compressor = build_method(name, **options).compressor
        profile = LatencyProfile(run.device, warm_up=warm_up)
        reset_peak(run)
        for _ in range(warm_up + repeats):
            with profile.clip():
                with profile.stage("vision"):
                    encoder.encode(frames, compressor.needs)
                with profile.stage("compress"):
                    video = compressor.compress(clip)
                (reply,) = model.answer(video, [QUESTION], max_new_tokens=2, share_prefix=False)
                profile.add("prefill", reply.prefill_ms)
                profile.add("first token", reply.ttft_ms - reply.prefill_ms)
        rows.append(_row(retention, video, profile, rows[0] if rows else None, gib(run)))
    return rows


def _grid(spec: ModelSpec) -> tuple[int, int]:
    """Rows and columns of the tokens of a frame."""
    assert spec.grid is not None
    return spec.grid


def _row(
    retention: float,
    video: CompressedVideo,
    profile: LatencyProfile,
    full: dict[str, Any] | None,
    peak: float | None,
) -> dict[str, Any]:
    """Medians, and the ratio to all tokens."""
    parts = {name: found["p50"] for name, found in profile.summary().items()}
    names = ("vision", "compress", "prefill", "first token")
    share = video.num_kept / video.num_total
    row = {
        "retention": retention,
        "tokens": video.num_kept,
        "kept": share,
        "ok": abs(share - retention) <= MOST_OFF,
    }
    row |= {f"{name} ms": parts[name] for name in names}
    row["ttft ms"] = sum(parts[name] for name in names)
    row["speed-up"] = 1.0 if full is None else full["ttft ms"] / row["ttft ms"]
    row["paper"], row["target"] = PAPER.get(retention), TARGET.get(retention)
    row["peak GiB"] = peak
    return row
