"""What Tango must not do: wait for the device in a loop, or hold big copies."""

from collections import Counter

import pytest
import torch
from synthetic_features import make_clip
from torch.utils._python_dispatch import TorchDispatchMode

from tango_core.compressors.tango import Tango

WAITS = {"_local_scalar_dense", "nonzero", "unique", "_unique2", "equal", "masked_select"}


class Watch(TorchDispatchMode):
    """Counts operators by name and notes the sizes of what they return."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()
        self.allocated = []
        self.num_angles = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        if func.overloadpacket.__name__ == "cos":
            self.num_angles += result.numel()
        inputs = {
            value.untyped_storage().data_ptr()
            for value in [*args, *(kwargs or {}).values()]
            if isinstance(value, torch.Tensor)
        }
        outputs = result if isinstance(result, (tuple, list)) else [result]
        for value in outputs:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                if storage.data_ptr() not in inputs:
                    self.allocated.append(storage.nbytes())
        return result


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


def test_a_long_segment_needs_one_matrix_of_distances():
    features = make_clip(24, (8, 8), "noise")
    features.tokens.copy_(features.tokens[:1] + 0.8 * features.tokens)
    tango = Tango(0.1, tau=-1.0, static_tau=1.0)  # one segment in which nothing is static
    num_points = 24 * (64 - 4)  # without the 4 picked of every frame
    sizes = sorted(_watch(tango, features).allocated, reverse=True)
    assert sizes[0] == 4 * num_points**2
    assert sizes[1] < sizes[0] / 2


def test_only_distinct_angles_are_computed():
    features = make_clip(16, (8, 5), "noise", dim=36)
    watch = _watch(Tango(0.2), features)
    assert watch.num_angles == 16 * 12 // 2 + (8 + 5) * 12 // 2
