"""What a GPU has for an actor is what its worker will find there: all of it, or its share."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from jobs_for_tests import job

from jobs.estimate.memory import Questions, encoder_memory, language_memory, refusal, room_of
from jobs.estimate.table import render
from jobs.run.dry_run import DryRun, estimate_job
from jobs.run.locations import Locations
from jobs.units import human_bytes
from pipeline.resources.gpu_memory import keep_to_share, spread_weights
from pipeline.resources.pools import ActorPool
from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.models.language import batching
from tango_core.models.language.batching import bytes_per_token
from tango_core.models.placement import bytes_of, modules_of
from tango_core.models.towers.frame_batches import FrameBatches, free_bytes

GIB, MIB = 2**30, 2**20
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
SHARES = [ActorPool(num_gpus=1), ActorPool(num_gpus=0.5), ActorPool(num_gpus=0.3), ActorPool()]


class Gpus:
    """Two GPUs of a machine, and what a worker's process has of them."""

    def __init__(self, total, taken):
        self.total, self.taken, self.allocated, self.fraction = total, taken, 0, 1.0

    def mem_get_info(self, device=None):
        return self.total - self.taken - self.allocated, self.total

    def keep_to(self, fraction, index=None):
        self.fraction = fraction


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Where the clips are generated, once."""
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture
def gpus(monkeypatch):
    """`gpus(total, taken)`: bytes of each, and those that other programs have."""

    def make(total, taken=0):
        found = Gpus(total, taken)
        fakes = {
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "get_device_capability": lambda *_: (9, 0),
            "get_device_name": lambda *_: "a GPU",
            "mem_get_info": found.mem_get_info,
            "memory_allocated": lambda *_: found.allocated,
            "memory_reserved": lambda *_: found.allocated,
            "set_per_process_memory_fraction": found.keep_to,
            "get_per_process_memory_fraction": lambda *_: found.fraction,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        return found

    return make


def halves():
    spec = describe_model("tiny", device="cuda", dtype="float32")
    encoder = load_encoder(spec, device="meta")
    return spec, encoder, load_language_model(spec, device="meta").engine


def in_a_worker(found, pool, weights):
    """Bytes that a worker finds free when it has kept to its share and loaded its half."""
    keep_to_share(pool, [FIRST])
    found.allocated = weights
    left = free_bytes(FIRST)
    found.allocated, found.fraction = 0, 1.0
    return left


@pytest.mark.parametrize("pool", SHARES)
@pytest.mark.parametrize("taken", [0, 3 * GIB])
def test_tokens_that_are_answered_together_are_those_of_the_worker(gpus, pool, taken):
    found = gpus(4 * GIB, taken)
    spec, _, engine = halves()
    weights = bytes_of([engine.model])
    left = in_a_worker(found, pool, weights)
    config = engine.layer_loop.config
    row = batching.row_bytes(config.hidden_size, config.intermediate_size, 4)
    told = batching.on_gpu(left, bytes_per_token(engine.layers) + row)
    asked = Questions(longest=2000, reply=48, prompts=10_000)
    promised = language_memory(engine.model, spec, asked, "cuda", room_of("cuda", pool))
    done = language_memory(engine.model, spec, replace(asked, batch_tokens=told), "cuda")
    assert promised.kv == done.kv
    assert promised.room == min(4 * GIB - taken, in_a_worker(found, pool, 0))


@pytest.mark.parametrize("pool", SHARES)
def test_frames_that_are_encoded_together_are_those_of_the_worker(gpus, pool):
    spec, encoder, _ = halves()
    height, width = spec.frames.size
    frame = encoder.frame_bytes(height, width)
    found = gpus(2 * GIB, 2 * GIB - 45 * frame)
    left = in_a_worker(found, pool, bytes_of(modules_of(encoder)))
    found.taken, found.allocated = found.total - left, 0
    sizes = []

    def note(part):
        sizes.append(len(part))
        return {"tokens": part}

    FrameBatches("auto", FIRST).run(torch.zeros(32, 1), note, row_bytes=frame)
    found.taken = 2 * GIB - 45 * frame
    spec = replace(spec, frames=replace(spec.frames, num_frames=32))
    promised = encoder_memory(load_encoder(spec, device="meta"), "cuda", room_of("cuda", pool))
    told = load_encoder(replace(spec, encode_batch=sizes[0]), device="meta")
    assert sizes[0] < 32
    assert promised.activations == encoder_memory(told, "cuda").activations


def test_of_several_gpus_the_first_one_decides_with_the_weights_that_it_holds(gpus):
    gpus(GIB)
    _, _, engine = halves()
    room = room_of("cuda:0,cuda:1", ActorPool(num_gpus=2))
    held = spread_weights([engine.model], [FIRST, SECOND])
    assert room.left(bytes_of([engine.model]), [engine.model]) == GIB - held[FIRST]
    assert 0 < held[FIRST] < bytes_of([engine.model])
    assert room.left(600 * MIB, []) == GIB - 300 * MIB  # a checkpoint that is not here
    assert room.total == 2 * GIB


def test_what_will_not_fit_is_refused_in_the_words_of_the_worker(gpus):
    gpus(24 * GIB)
    pool = ActorPool(num_gpus=0.5)
    room = room_of("cuda", pool)
    assert refusal("answer", pool, room, 11 * GIB, []) is None
    said = refusal("answer", pool, room, 15 * GIB, [])
    assert said.startswith("pools.answer.num_gpus is 0.5: that is 12.0 GiB of a GPU of 24.0 GiB")
    whole = ActorPool(num_gpus=1)
    assert refusal("answer", whole, room_of("cuda", whole), 15 * GIB, []) is None


def test_a_cpu_and_gpus_that_are_not_here_have_no_room(gpus):
    assert room_of("cpu", ActorPool()) is None
    assert room_of("cuda", ActorPool(num_gpus=1)) is None
    gpus(GIB)
    assert room_of("cuda:0,cuda:1,cuda:2", ActorPool(num_gpus=3)) is None


@pytest.mark.parametrize(
    ("executor", "pools", "compress", "answer"),
    [
        ("ray", {"compress": {"num_gpus": 0.6}, "answer": {"num_gpus": 0.3}}, 5.5, 2.5),
        ("ray", {"compress": {"num_gpus": 1}, "answer": {"num_gpus": 1}}, 10, 10),
        ("ray", {"compress": {"num_gpus": 0}, "answer": {"num_gpus": 2}}, None, 20),
        ("ray", "auto", 10, 10),
        ("local", {"compress": {"num_gpus": 0.5}, "answer": {"num_gpus": 0.5}}, 10, 10),
    ],
)
def test_a_dry_run_says_what_each_actor_may_have(
    gpus, shapes, tmp_path, executor, pools, compress, answer
):
    gpus(10 * GIB)
    recipe = job(
        shapes,
        model={"name": "tiny", "num_frames": 8},
        limit=1,
        executor=executor,
        pools=pools,
    )
    found = estimate_job(recipe, "sweep", Locations(tmp_path / "runs"), DryRun())
    for name, gib in {"compress": compress, "answer": answer}.items():
        room = found.memory[name].room
        assert room == (None if gib is None else pytest.approx(gib * GIB, rel=2e-3))
    assert f"it may have {human_bytes(found.memory['answer'].room)}\n" in render(found)


def test_a_dry_run_says_that_an_actor_will_not_start(gpus, shapes, tmp_path):
    gpus(GIB)
    recipe = job(
        shapes,
        model={"name": "tiny", "num_frames": 8},
        limit=1,
        executor="ray",
        pools={"compress": {"num_gpus": 0.5}, "answer": {"num_gpus": 0.5}},
    )
    found = estimate_job(recipe, "sweep", Locations(tmp_path / "runs"), DryRun())
    assert "it will not start: pools.answer.num_gpus is 0.5: that is 0.5 GiB" in render(found)
    assert found.to_json()["actor_bytes"]["answer"]["refused"].startswith("pools.answer.num_gpus")
