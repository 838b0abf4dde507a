"""Timers and memory on real work; CUDA's own events are tested where there is a device."""

from __future__ import annotations

import time

import pytest
import torch

from tango_core.compressors import build_method
from tango_core.latency import NO_TIMER, LatencyProfile, PeakMemory
from tango_core.types import VisualFeatures


@pytest.fixture
def features():
    generator = torch.Generator().manual_seed(0)
    return VisualFeatures(
        tokens=torch.randn(4, 36, 24, generator=generator),
        grid=(6, 6),
        timestamps=torch.arange(4, dtype=torch.float64),
        saliency=torch.rand(4, 36, generator=generator),
    )


def test_a_stage_takes_as_long_as_its_work_and_contains_its_parts():
    profile = LatencyProfile("cpu", warm_up=0)
    with profile.clip() as clip:
        with profile.stage("compress"):
            for _ in range(2):
                with profile.stage("segment"):
                    time.sleep(0.02)
            time.sleep(0.01)
        profile.add("prefill", 5.0)
    assert list(clip.stage_ms) == ["compress", "segment", "prefill"]
    assert clip.stage_ms["segment"] >= 40
    assert clip.stage_ms["compress"] >= clip.stage_ms["segment"] + 10
    assert clip.stage_ms["prefill"] == 5


@pytest.mark.parametrize("warm_up", [0, 1, 3])
def test_warm_up_is_thrown_away(warm_up):
    profile = LatencyProfile("cpu", warm_up)
    for index in range(5):
        with profile.clip():
            with profile.stage("vision"):
                time.sleep(0.001)
            profile.add("prefill", 200.0 if index < warm_up else 1.0)
    vision, prefill = (profile.summary()[name] for name in ("vision", "prefill"))
    assert vision["n"] == prefill["n"] == 5 - warm_up
    assert 1 <= vision["p50"] <= vision["p90"]
    assert prefill["p50"] == prefill["p90"] == 1.0
    assert profile.peak_gib > 0.01


def test_tango_names_its_steps_and_a_clock_changes_no_token(features):
    compressor = build_method("tango", retention=0.2).compressor
    profile = LatencyProfile("cpu", warm_up=0)
    with profile.clip() as clip, profile.stage("compress"):
        timed = compressor.compress(features, clock=profile)
    steps = [clip.stage_ms[name] for name in ("segment", "select", "merge")]
    assert list(clip.stage_ms) == ["compress", "segment", "select", "merge"]
    assert 0 < sum(steps) <= clip.stage_ms["compress"]
    untimed = compressor.compress(features, clock=NO_TIMER)
    assert torch.equal(timed.tokens, untimed.tokens)
    assert torch.equal(timed.indices, untimed.indices)


def test_a_peak_outlives_what_caused_it_until_it_is_forgotten():
    memory = PeakMemory(torch.device("cpu"))
    assert memory.kind == "process"
    memory.reset()
    before = memory.gib()
    block = torch.ones(2**26)  # a quarter of a GiB
    del block
    assert memory.gib() > before + 0.2


@pytest.mark.gpu
def test_cuda_events_time_the_device_and_not_the_call():
    profile = LatencyProfile("cuda", warm_up=1)
    matrix = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        with profile.clip() as clip, profile.stage("vision"):
            start = time.perf_counter()
            for _ in range(50):
                matrix = matrix @ matrix
            queued_ms = (time.perf_counter() - start) * 1e3
    assert clip.stage_ms["vision"] > 5 * queued_ms
    assert profile.memory.kind == "device"
    assert profile.peak_gib >= 2 * 4 * 4096**2 / 2**30
