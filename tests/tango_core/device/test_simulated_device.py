"""The simulated device itself: what CUDA refuses it refuses, what costs it counts."""

import pytest
import torch
from device_rules import round_to_tf32
from simulated_device import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice() as simulated:
        yield simulated


@pytest.fixture
def values(device):
    return device.move(torch.arange(12.0).view(3, 4))


def test_tensors_say_that_they_are_on_cuda(device, values):
    derived = (values + 1)[1:]
    assert (derived.device, derived.is_cuda) == (torch.device("cuda:0"), True)
    made = torch.zeros(2, device=values.device), values.new_ones(2), torch.empty_like(values)
    assert all(tensor.is_cuda for tensor in made)
    assert not torch.zeros(2).is_cuda


def test_results_are_those_of_the_cpu(values):
    held = torch.arange(12.0).view(3, 4)
    assert torch.equal((values @ values.mT).softmax(-1).cpu(), (held @ held.mT).softmax(-1))
    values[0] = 7.0
    values[:, 1:].add_(1)
    held[0] = 7.0
    held[:, 1:].add_(1)
    assert torch.equal(values.cpu(), held)


MIXED = {
    "elementwise": lambda x: x + torch.ones(3, 4),
    "product": lambda x: x @ torch.ones(4, 2),
    "gather": lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
    "cat": lambda x: torch.cat([x, torch.ones(1, 4)]),
    "scalar where there is no arithmetic": lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_devices_are_not_mixed(values, mix):
    with pytest.raises((RuntimeError, TypeError), match="cuda:0"):
        mix(values)


def test_a_number_of_the_host_may_go_into_arithmetic(device, values):
    assert (values * torch.tensor(2.0)).is_cuda
    assert (device.reads, device.uploads, device.launches) == (0, 0, 1)


READS = {
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
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
    "bincount": lambda x: x.long().flatten().bincount(),
    "repeat": lambda x: x.repeat_interleave(x[:, 0].long(), dim=0),
    "fill with what is there": lambda x: x.masked_fill(x > 3, x[0, 0]),
    "copy": lambda x: torch.zeros(3, 4).copy_(x),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_makes_the_host_wait_is_a_read(device, values, read):
    read(values)
    assert device.reads == 1, device.events


UPLOADS = {
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
}


@pytest.mark.parametrize("upload", UPLOADS.values(), ids=UPLOADS)
def test_what_is_copied_from_the_host_is_an_upload(device, values, upload):
    upload(values)
    assert (device.uploads, device.reads) == (1, 0), device.events


FREE = {
    "views": lambda x: x[0].view(2, 2).mT.expand(3, 2, 2),
    "memory": lambda x: torch.empty(3, device=x.device),
    "empty results": lambda x: x[:0] + 1,
    "the same device": lambda x: x.to("cuda").contiguous(),
    "shape": lambda x: x.shape[0] * len(x) * x.numel(),
}


@pytest.mark.parametrize("call", FREE.values(), ids=FREE)
def test_what_runs_no_kernel_is_no_launch(device, values, call):
    call(values)
    assert device.events == []


@pytest.mark.parametrize(
    ("call", "launches"),
    [
        (lambda x: x + 1, 1),
        (lambda x: x.masked_fill(x > 3, 0.0), 2),
        (lambda x: torch.arange(3, device=x.device), 1),
        (lambda x: x.fill_(0.0), 1),
        (lambda x: x.__setitem__(slice(1), 0.0), 1),
        (lambda x: x.sort(stable=True).values, 1),
        (lambda x: x.half(), 1),
    ],
)
def test_kernels_are_launches(device, values, call, launches):
    call(values)
    assert (device.launches, device.reads, device.uploads) == (launches, 0, 0), device.events


def _index(x, *numbers):
    return torch.tensor(numbers, device=x.device)


VARYING = {
    "index_add": lambda x: x.index_add_(0, _index(x, 0, 0), x[:2].clone()),
    "scatter_add": lambda x: x.scatter_add_(0, x.long() % 3, x.clone()),
    "bincount": lambda x: x.long().flatten().bincount(),
    "cumsum of floats": lambda x: x.cumsum(0),
    "accumulate": lambda x: x.index_put_((_index(x, 0, 0),), x[:2].clone(), accumulate=True),
    "two values for a place": lambda x: x.index_copy_(0, _index(x, 1, 1), 2 * x[1:]),
    "two scattered to a place": lambda x: x.scatter_(0, (0 * x[:2]).long(), 2 * x[1:]),
}


@pytest.mark.parametrize("call", VARYING.values(), ids=VARYING)
def test_what_may_differ_from_run_to_run_is_named(device, values, call):
    call(values)
    assert len(device.varying) == 1


STEADY = {
    "cumsum of numbers": lambda x: x.long().cumsum(0),
    "one value for a place": lambda x: x.scatter_(0, (0 * x[:2]).long(), 1.0 + 0 * x[1:]),
    "places of their own": lambda x: x.index_copy_(0, _index(x, 2, 1), 2 * x[1:]),
    "fill": lambda x: x.index_fill_(0, _index(x, 1, 1), 2.0),
}


@pytest.mark.parametrize("call", STEADY.values(), ids=STEADY)
def test_what_is_the_same_in_every_run_is_not(device, values, call):
    call(values)
    assert device.varying == []


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


def test_a_copy_from_pinned_memory_may_outlive_it(device):
    there = torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    assert there.sum().item() == 3


def test_products_of_whole_numbers_are_not_on_cuda(device, values):
    with pytest.raises(NotImplementedError, match="addmm_cuda"):
        values.long() @ values.long().mT


def test_events_name_the_line_that_asked_for_them(device, values):
    from tango_core.ops.saliency import rank_descending

    rank_descending(values)
    assert [event.where.rpartition(":")[0] for event in device.events] == ["ops/saliency.py"]


def test_tf32_has_ten_bits_of_mantissa():
    values = torch.tensor([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-12), 0.0])
    rounded = torch.tensor([1 + 2**-10, 1.0, 1 + 2**-9, -1.0, 0.0])
    assert torch.equal(round_to_tf32(values), rounded)
    assert round_to_tf32(values.half()).dtype == torch.float16
