"""Copies to the host are packed into one."""

from __future__ import annotations

import pytest
import torch
from simulated_device import SimulatedDevice, SimulatedTensor

from tango_core.ops.transfer import download_together

TENSORS = [
    torch.tensor([True, False, True]),
    torch.arange(7, dtype=torch.uint8).reshape(7, 1),
    torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).bfloat16().T,
    torch.tensor(2.5),
    torch.zeros(0, 4),
    torch.arange(6, dtype=torch.int64)[::2],
    torch.tensor([1.5, -0.0], dtype=torch.float64),
]


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def test_tensors_of_any_types_come_in_one_copy():
    host = torch.arange(3)
    with SimulatedDevice() as device:
        there = [one.to("cuda") for one in TENSORS]
        before = device.reads
        found = download_together([host, *there])
        assert device.reads == before + 1
    assert found[0] is host
    assert not any(isinstance(one, SimulatedTensor) for one in found)
    assert all(same(*pair) for pair in zip(found[1:], TENSORS, strict=True))


@pytest.mark.parametrize("number", [0, 1, 7])
def test_nothing_is_copied_on_the_host(number):
    found = download_together(TENSORS[:number])
    assert all(one is other for one, other in zip(found, TENSORS[:number], strict=True))


def test_a_single_number_that_was_expanded():
    with SimulatedDevice() as device:
        kept = device.move(torch.tensor(7)).expand(1)
        assert kept.stride() == (0,)
        found, other = download_together([kept, device.move(torch.arange(3))])
    assert (found.tolist(), other.tolist()) == ([7], [0, 1, 2])
