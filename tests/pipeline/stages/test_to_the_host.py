"""What a method makes on a device comes to the host in one copy."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from simulated_device import SimulatedDevice, SimulatedTensor

from pipeline.cache.derived import on_cpu
from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip

CLIP = make_clip(8, (4, 4), dtype=torch.bfloat16)


def assert_same(found, expected):
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, torch.Tensor):
            assert not isinstance(one, SimulatedTensor), field.name
            assert one.dtype == other.dtype
            assert torch.equal(one, other), field.name
        elif field.name != "drawing":
            assert one == other, field.name


@pytest.mark.parametrize("name", ["tango", "topk", "visionzip"])
def test_one_copy_per_token_set_and_per_plan(name):
    compressor = build_method(name, retention=0.25).compressor
    plan, video = compressor.plan(CLIP), compressor.compress(CLIP)
    with SimulatedDevice() as device:
        clip = device.move(CLIP)
        made, planned = compressor.compress(clip), compressor.plan(clip)
        before = device.reads
        tokens = on_cpu(made)
        assert device.reads == before + 1
        stored = on_cpu(planned)
        assert device.reads == before + 2
    assert_same(tokens, video)
    assert_same(stored, plan)
    assert (stored.drawing is None) == (plan.drawing is None)
    if plan.drawing is not None:
        assert_same(stored.drawing, plan.drawing)


def test_what_is_on_the_host_stays_where_it_is():
    compressor = build_method("topk", retention=0.25).compressor
    video, plan = compressor.compress(CLIP), compressor.plan(CLIP)
    assert on_cpu(video).tokens is video.tokens
    assert on_cpu(plan).indices is plan.indices
