"""The simulated device itself: what CUDA refuses it refuses, what costs it counts."""

import pytest
import torch
from simulated_device import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice() as simulated:
        yield simulated


@pytest.fixture
def values(device):
    return device.move(torch.arange(12.0).view(3, 4))


MIXED = {
    "elementwise": lambda x: x + torch.ones(3, 4),
    "product": lambda x: x @ torch.ones(4, 2),
    "gather": lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
    "cat": lambda x: torch.cat([x, torch.ones(1, 4)]),
    "scalar where there is no arithmetic": lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
    "numpy": lambda x: x.numpy(),
    "product of whole numbers": lambda x: x.long() @ x.long().mT,
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_what_cuda_refuses_is_refused(values, mix):
    with pytest.raises((RuntimeError, TypeError, NotImplementedError), match=r"cuda:0|addmm_cuda"):
        mix(values)


def _index(x, *numbers):
    return torch.tensor(numbers, device=x.device)


# By what is counted: reads, uploads, launches (`None` for any number), operators that vary.
COSTS = {
    (1, 0, None, None): {
        "cpu": lambda x: x.cpu(),
        "to the host": lambda x: x.to("cpu"),
        "item": lambda x: x[0, 0].item(),
        "float": lambda x: float(x.sum()),
        "tolist": lambda x: x.tolist(),
        "truth": lambda x: bool((x > 3).any()),
        "equal": lambda x: torch.equal(x, x),
        "nonzero": lambda x: (x > 3).nonzero(),
        "mask": lambda x: x[x > 3],
        "write to a mask": lambda x: x.__setitem__(x > 3, x[0, :1].clone()),
        "masked_select": lambda x: x.masked_select(x > 3),
        "unique": lambda x: x.unique(),
        "repeat": lambda x: x.repeat_interleave(x[:, 0].long(), dim=0),
        "fill with what is there": lambda x: x.masked_fill(x > 3, x[0, 0]),
        "copy to the host": lambda x: torch.zeros(3, 4).copy_(x),
        "bincount": lambda x: x.long().flatten().bincount(),
    },
    (0, 1, None, 0): {
        "to": lambda x: torch.ones(2).to("cuda"),
        "to the device of another": lambda x: torch.ones(2).to(x),
        "without waiting": lambda x: torch.ones(2).pin_memory().to(x.device, non_blocking=True),
        "cuda": lambda x: torch.ones(2).cuda(),
        "tensor": lambda x: torch.tensor([1, 2], device=x.device),
        "new_tensor": lambda x: x.new_tensor([1.0]),
        "copy": lambda x: x.copy_(torch.ones(3, 4)),
        "index of the host": lambda x: x[[0, 2]],
        "number into an index": lambda x: x.__setitem__(torch.arange(2, device=x.device), 1.0),
        "number into where": lambda x: torch.where(x > 3, x, 0.0),
    },
    (0, 0, 0, 0): {
        "views": lambda x: x[0].view(2, 2).mT.expand(3, 2, 2),
        "memory": lambda x: torch.empty(3, device=x.device),
        "empty results": lambda x: x[:0] + 1,
        "the same device": lambda x: x.to("cuda").contiguous(),
        "shape": lambda x: x.shape[0] * len(x) * x.numel(),
    },
    (0, 0, 1, 0): {
        "add": lambda x: x + 1,
        "number of the host": lambda x: x * torch.tensor(2.0),
        "arange": lambda x: torch.arange(3, device=x.device),
        "fill": lambda x: x.fill_(0.0),
        "write to a slice": lambda x: x.__setitem__(slice(1), 0.0),
        "sort": lambda x: x.sort(stable=True).values,
        "half": lambda x: x.half(),
    },
    (0, 0, 2, 0): {"compare and fill": lambda x: x.masked_fill(x > 3, 0.0)},
    (None, None, None, 1): {
        "index_add": lambda x: x.index_add_(0, _index(x, 0, 0), x[:2].clone()),
        "scatter_add": lambda x: x.scatter_add_(0, x.long() % 3, x.clone()),
        "counts": lambda x: x.long().flatten().bincount(),
        "cumsum of floats": lambda x: x.cumsum(0),
        "accumulate": lambda x: x.index_put_((_index(x, 0, 0),), x[:2].clone(), accumulate=True),
        "two values for a place": lambda x: x.index_copy_(0, _index(x, 1, 1), 2 * x[1:]),
        "two scattered to a place": lambda x: x.scatter_(0, (0 * x[:2]).long(), 2 * x[1:]),
    },
    (None, None, None, 0): {
        "cumsum of numbers": lambda x: x.long().cumsum(0),
        "one value for a place": lambda x: x.scatter_(0, (0 * x[:2]).long(), 1.0 + 0 * x[1:]),
        "places of their own": lambda x: x.index_copy_(0, _index(x, 2, 1), 2 * x[1:]),
        "fill places": lambda x: x.index_fill_(0, _index(x, 1, 1), 2.0),
    },
}
CALLS = {name: (call, costs) for costs, calls in COSTS.items() for name, call in calls.items()}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_costs_and_whether_it_varies(device, values, name):
    call, expected = CALLS[name]
    call(values)
    found = device.reads, device.uploads, device.launches, len(device.varying)
    differing = [pair for pair in zip(found, expected, strict=True) if None not in pair]
    assert all(one == other for one, other in differing), device.events


def _sent(device, host):
    there = host.to("cuda", non_blocking=True)
    host.zero_()
    there.sum().item()


def test_pinned_memory_is_not_written_to_while_a_copy_reads_it(device):
    with pytest.raises(RuntimeError, match="still read it"):
        _sent(device, torch.ones(3).pin_memory())
    _sent(device, torch.ones(3))  # pageable memory has been read when the call returns
    host = torch.empty(3, pin_memory=True)
    there = host.fill_(2).to("cuda", non_blocking=True)
    assert there.sum().item() == 6  # the host has waited for the device
    host.zero_()
    host.to("cuda").sum()
    host.fill_(1)
    there = torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    assert there.sum().item() == 3, "a copy may outlive what it was made from"


def test_events_name_the_line_that_asked_for_them(device, values):
    from tango_core.ops.saliency import rank_descending

    rank_descending(values)
    assert [event.where.rpartition(":")[0] for event in device.events] == ["ops/saliency.py"]
