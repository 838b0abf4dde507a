"""Attention on CUDA takes any length at once, and PyTorch's setting is put back."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tango_core.models.kernels import attend
from tango_core.models.language.attention import attend_onwards, attend_whole
from tango_core.models.towers.patch_tower import PatchPlan


class OnDevice(torch.Tensor):
    """A tensor of the host that says it is on a GPU."""

    device = property(lambda self: torch.device("cuda:0"))


@pytest.fixture
def seen(monkeypatch):
    """Whether cuDNN may be chosen, call by call."""
    found, fused = [], functional.scaled_dot_product_attention

    def noted(*parts, **options):
        found.append(torch.backends.cuda.cudnn_sdp_enabled())
        return fused(*parts, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    return found


def parts(*shape):
    return [torch.randn(shape).as_subclass(OnDevice) for _ in range(3)]


CALLS = {
    "a prompt": lambda: attend_whole(*parts(2, 5, 4), 0.5),
    "words behind a clip": lambda: attend_onwards(*parts(2, 5, 4), 0.5, None),
    "windows of a tower": lambda: PatchPlan(2, ()).attend(parts(16, 2, 4), 0.5, windowed=False),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_plan_is_made_for_a_length(seen, call):
    call()
    assert seen
    assert not any(seen)
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_what_was_set_is_set_again_after_an_error(monkeypatch):
    def fails(*parts, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(functional, "scaled_dot_product_attention", fails)
    with pytest.raises(torch.OutOfMemoryError):
        attend(*parts(1, 2, 3, 4), scale=1.0)
    assert torch.backends.cuda.cudnn_sdp_enabled()
