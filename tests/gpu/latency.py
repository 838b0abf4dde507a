"""Time to the first token of a 7B model, its parts, and their shares of what a GPU can reach.

The tower is timed on noise, but its random weights see the same in every frame, of which Tango
would keep next to nothing: what is compressed and answered is a clip of the contract of methods.
"""

from __future__ import annotations

from typing import Any

import torch

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.latency import LatencyProfile
from tango_core.types import Prompt
from tests.gpu.check_methods import moved
from tests.gpu.command import Rows, Run, gib, reset_peak
from tests.gpu.halves import (
    described,
    geometry,
    loaded_encoder,
    loaded_language_model,
    noise_frames,
)

GEOMETRY = "llava-onevision-7b"
RETENTIONS = (1.0, 0.1)
# Of an H100 or H200 in bfloat16 with 32 frames: frames a second of the tower at 0.667 TFLOP each;
# TFLOP/s, and TFLOP of the prefill of all tokens; how much faster 10 % make the first token.
FRAMES_PER_S, TFLOP_PER_S, PREFILL_TFLOP, SPEED_UP = 1484, 989, 91.4, 3.64
# Largest difference of the share of tokens that is kept from the one that was asked for.
MOST_OFF = 0.02
QUESTION = Prompt("", "Question: What does the person in the video do?\nA. Cook\nB. Run\nAnswer: ")


def measure_latency(run: Run) -> Rows:
    """Vision, compress, prefill and first token with all tokens and with a tenth, medians in ms."""
    repeats, warm_up = (1, 1) if run.small else (5, 2)
    shrink, num_frames = (28, 4) if run.small else (1, 32)
    with geometry(GEOMETRY, shrink=shrink) as path:
        spec = described(GEOMETRY, path, run.device, "bfloat16", num_frames)
        encoder, model = loaded_encoder(spec), loaded_language_model(spec)
    frames = noise_frames(spec)
    num_rows, _, width = encoder.encode(frames).tokens.shape
    assert spec.grid is not None
    clip = moved(make_clip(num_rows, spec.grid, dim=width), run.device, torch.bfloat16)
    rows: Rows = []
    for retention in RETENTIONS:
        options = {} if retention == 1.0 else {"retention": retention, "score": "attention"}
        compressor = build_method("tango" if options else "full", **options).compressor
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
        parts = {name: found["p50"] for name, found in profile.summary().items()}
        share, total = video.num_kept / video.num_total, sum(parts.values())
        row: dict[str, Any] = {
            "retention": retention,
            "tokens": video.num_kept,
            "ok": abs(share - retention) <= MOST_OFF,
            **{f"{name} ms": value for name, value in parts.items()},
            "ttft ms": total,
            "peak GiB": gib(run),
            "encode / limit": num_frames / parts["vision"] * 1e3 / FRAMES_PER_S,
        }
        if retention == 1.0:
            row["prefill / limit"] = PREFILL_TFLOP / parts["prefill"] * 1e3 / TFLOP_PER_S
        else:
            row["speed-up"] = rows[0]["ttft ms"] / total
            row["speed-up / limit"] = row["speed-up"] / SPEED_UP
        rows.append(row)
    return rows
