"""What Tango must not do: hold big copies."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.tango.method import Tango


class Watch(TorchDispatchMode):
    """Notes the sizes of what operators allocate."""

    def __init__(self):
        super().__init__()
        self.allocated = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
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


def test_a_long_segment_needs_one_matrix_of_distances():
    features = make_clip(24, (8, 8), "noise")
    features.tokens.copy_(features.tokens[:1] + 0.8 * features.tokens)
    tango = Tango(0.1, tau=-1.0, static_tau=1.0)  # one segment in which nothing is static
    num_points = 24 * (64 - 4)  # without the 4 picked of every frame
    with Watch() as watch:
        tango.compress(features)
    sizes = sorted(watch.allocated, reverse=True)
    assert sizes[0] == 4 * num_points**2
    assert sizes[1] < sizes[0] / 2
