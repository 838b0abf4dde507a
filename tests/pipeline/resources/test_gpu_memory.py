"""Weights are compared with the memory of the GPUs before they are loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pipeline.resources import gpu_memory
from pipeline.resources.gpu_memory import (
    keep_to_share,
    raise_if_no_room,
    room_for,
    weights_by_device,
)
from pipeline.resources.pools import ActorPool, PoolError
from tango_core.models import describe_model, load_encoder, load_language_model

GIB = 2**30
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def gpu(free, total=24):
    return lambda device: (int(free * GIB), int(total * GIB))


@pytest.mark.parametrize(
    ("pool", "wanted", "free"),
    [
        (ActorPool(num_gpus=1), 23.9, 24),
        (ActorPool(num_gpus=0.5), 11.5, 12),  # the other half of the GPU is another pool's
        (ActorPool(num_actors=4, num_gpus=0.25), 5.5, 6),
    ],
)
def test_what_fits_is_not_refused(pool, wanted, free):
    raise_if_no_room("answer", pool, {FIRST: int(wanted * GIB)}, gpu(free))


@pytest.mark.parametrize("most", [1, 8])
def test_an_actor_must_fit_into_the_share_that_it_reserves(most):
    pool = ActorPool(num_actors=(1, most), num_gpus=0.25)  # the rest may be another pool's
    with pytest.raises(PoolError) as error:
        raise_if_no_room("answer", pool, {FIRST: 15 * GIB}, gpu(24))
    assert str(error.value) == (
        "pools.answer.num_gpus is 0.25: that is 6.0 GiB of a GPU of 24.0 GiB, but the weights of "
        "the language model and CUDA itself take 15.5 GiB; raise pools.answer.num_gpus to 0.78, or "
        "use a larger GPU"
    )


def test_room_beside_the_weights_is_asked_for():
    with pytest.raises(PoolError, match=r"take 12\.2 GiB; raise .* to 0\.61"):
        raise_if_no_room("compress", ActorPool(num_gpus=0.5), {FIRST: int(11.7 * GIB)}, gpu(24))


@pytest.mark.parametrize(("num_gpus", "share"), [(0.5, 0.475), (0.25, 0.225), (1, None), (0, None)])
def test_an_actor_keeps_to_the_share_that_it_reserves(monkeypatch, num_gpus, share):
    set_to = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", gpu(20, total=20))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: set_to.append(given)
    )
    keep_to_share(ActorPool(num_gpus=num_gpus), [torch.device("cuda")])
    assert set_to == ([] if share is None else [(pytest.approx(share), None)])


def test_a_gpu_that_others_have_filled_is_named_with_what_is_free():
    with pytest.raises(PoolError) as error:
        raise_if_no_room("compress", ActorPool(num_gpus=0.3), {FIRST: 2 * GIB}, gpu(1.5))
    said = str(error.value)
    assert said.startswith("pools.compress.num_gpus is 0.3: the weights of the vision encoder ")
    assert "take 2.0 GiB, but of the 24.0 GiB of cuda:0 only 1.5 GiB are free" in said
    assert "\n" not in said


def test_a_model_too_large_for_one_gpu_is_offered_another_one():
    with pytest.raises(PoolError, match=r"set pools\.answer\.num_gpus to 2, end what else"):
        raise_if_no_room("answer", ActorPool(num_gpus=1), {FIRST: 141 * GIB}, gpu(140, 141))
    with pytest.raises(PoolError, match=r"of cuda:1 only .* set pools\.answer\.num_gpus to 3"):
        raise_if_no_room(
            "answer",
            ActorPool(num_gpus=2),
            {FIRST: 70 * GIB, SECOND: 75 * GIB},
            lambda device: ((80 if device == FIRST else 74) * GIB, 80 * GIB),
        )


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


@pytest.mark.parametrize(
    ("stage", "load"), [("compress", load_encoder), ("answer", load_language_model)]
)
def test_the_weights_of_a_half_are_known_without_reading_them(two_gpus, stage, load):
    half = load(describe_model("tiny", device="cpu", dtype="float32"))
    loaded = sum(
        value.nbytes
        for module in gpu_memory.modules_of(half)
        for value in (*module.parameters(), *module.buffers())
    )
    found = weights_by_device(stage, describe_model("tiny", device="cuda", dtype="float32"))
    assert found == {torch.device("cuda"): loaded}
    (smaller,) = weights_by_device(
        stage, describe_model("tiny", device="cuda", dtype="bfloat16")
    ).values()
    assert loaded / 2 <= smaller < 0.8 * loaded


def test_several_gpus_share_the_weights(two_gpus):
    model = replace(describe_model("tiny", device="cuda"), device="cuda:0,cuda:1")
    shares = weights_by_device("answer", model)
    assert list(shares) == [FIRST, SECOND]
    assert min(shares.values()) > 0


def test_on_a_cpu_nothing_is_asked():
    with room_for("answer", ActorPool(), describe_model("tiny", device="cpu")):
        pass
    with room_for("a stage of one's own", ActorPool(), None):
        pass


def test_memory_that_is_gone_while_loading_is_one_line_with_the_setting(two_gpus, monkeypatch):
    monkeypatch.setattr(gpu_memory, "raise_if_no_room", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", gpu(20, total=20))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *_: None)
    model = describe_model("tiny", device="cuda")

    def load():
        with room_for("answer", ActorPool(num_gpus=0.5), model):
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB.")

    with pytest.raises(PoolError, match=r"does not fit .*; raise pools\.answer\.num_gpus") as error:
        load()
    assert "\n" not in str(error.value)
    assert error.value.__suppress_context__, "Ray would show its line instead"
