"""An actor keeps to the GPU memory that its pool reserves."""

from __future__ import annotations

import pytest
import torch

from pipeline.resources.devices import room_for
from pipeline.resources.pools import ActorPool, PoolError
from tango_core.models import describe_model


@pytest.fixture
def limits(monkeypatch):
    """Limits that were set on two GPUs of 20 GiB."""
    set_to = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * 2**30, 20 * 2**30))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: set_to.append(given)
    )
    return set_to


@pytest.mark.parametrize(("num_gpus", "share"), [(0.5, 0.475), (0.25, 0.225), (1, None), (0, None)])
def test_an_actor_keeps_to_the_share_that_it_reserves(limits, num_gpus, share):
    with room_for("compress", ActorPool(num_gpus=num_gpus), describe_model("tiny", device="cuda")):
        pass
    assert limits == ([] if share is None else [(pytest.approx(share), None)])


def test_on_a_cpu_nothing_is_limited(limits):
    with room_for("answer", ActorPool(num_gpus=0.5), describe_model("tiny", device="cpu")):
        pass
    with room_for("a stage of one's own", ActorPool(num_gpus=0.5), None):
        pass
    assert limits == []


def test_weights_that_do_not_fit_are_one_line_with_the_setting(limits):
    def load():
        with room_for("answer", ActorPool(num_gpus=0.5), describe_model("tiny", device="cuda")):
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB.")

    named = r"^pools\.answer\.num_gpus is 0\.5, .* does not fit .*; raise pools\.answer\.num_gpus"
    with pytest.raises(PoolError, match=named) as error:
        load()
    assert "\n" not in str(error.value)
    assert error.value.__suppress_context__, "Ray would show its line instead"
