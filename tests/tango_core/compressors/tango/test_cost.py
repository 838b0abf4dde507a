"""What Tango must not do: wait for the device in a loop, or hold big copies."""

from collections import Counter

import pytest
import torch
from simulated_device import SimulatedDevice
from torch.utils._python_dispatch import TorchDispatchMode

from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.tango.method import Tango

WAITS = {"_local_scalar_dense", "nonzero", "unique", "_unique2", "equal", "masked_select"}


class Watch(TorchDispatchMode):
    """Counts operators by name and notes the sizes of what they return."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()
        self.allocated = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        inputs = {address for address, _ in _storages([*args, *(kwargs or {}).values()])}
        outputs = result if isinstance(result, (tuple, list)) else [result]
        self.allocated += [size for address, size in _storages(outputs) if address not in inputs]
        return result


def _storages(values):
    """Address and bytes of tensors; those in oneDNN's layout are copies and have no address."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_mkldnn:
                yield None, value.numel() * value.element_size()
            else:
                storage = value.untyped_storage()
                yield storage.data_ptr(), storage.nbytes()


def _watch(tango, features):
    with Watch() as watch:
        tango.compress(features)
    return watch


@pytest.mark.parametrize("kind", ["scene", "noise", "static"])
def test_the_host_waits_for_the_device_a_fixed_number_of_times(kind):
    waits = []
    for num_frames in (2, 8, 32):
        calls = _watch(Tango(0.2), make_clip(num_frames, (6, 6), kind)).calls
        waits.append(sum(calls[name] for name in WAITS))
    assert waits == [1, 1, 1]  # CompressedVideo checks its indices; the plan reads one array


@pytest.mark.parametrize("kind", ["scene", "noise", "static"])
@pytest.mark.parametrize("diverse", [True, False])
@pytest.mark.parametrize("st_rope", [True, False])
def test_accelerators_take_another_way_to_the_same_tokens(kind, diverse, st_rope):
    """After the plan nothing is read: the one other read checks the kept positions."""
    tango, features = Tango(0.2, diverse=diverse, st_rope=st_rope), make_clip(8, (6, 6), kind)
    expected = tango.compress(features)
    with SimulatedDevice() as device:
        video = tango.compress(device.move(features))
    assert torch.equal(video.indices.held, expected.indices)
    torch.testing.assert_close(video.tokens.held, expected.tokens)
    reads = [event.where.rpartition(":")[0] for event in device.events if event.kind == "read"]
    assert reads == ["ops/finite.py", "types.py"]


def test_a_long_segment_needs_one_matrix_of_distances():
    features = make_clip(24, (8, 8), "noise")
    features.tokens.copy_(features.tokens[:1] + 0.8 * features.tokens)
    tango = Tango(0.1, tau=-1.0, static_tau=1.0)  # one segment in which nothing is static
    num_points = 24 * (64 - 4)  # without the 4 picked of every frame
    sizes = sorted(_watch(tango, features).allocated, reverse=True)
    assert sizes[0] == 4 * num_points**2
    assert sizes[1] < sizes[0] / 2
