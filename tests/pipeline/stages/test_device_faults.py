"""Errors of a GPU, raised by a fake in its place: too little memory, and a context that is gone."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from operator import attrgetter

import pytest
import torch

from pipeline.clips import ANSWER_QUESTIONS, COMPRESS_VIDEO
from pipeline.errors import DeviceError, WorkerError
from pipeline.executors.local import stream
from pipeline.settings import Settings
from pipeline.stages.device_faults import (
    is_out_of_memory,
    poison_of,
    raise_if_poisoned,
    with_second_try,
)
from tango_core.compressors.baselines import Full

ASSERT = "CUDA error: device-side assert triggered"
ADVICE = "\nCUDA kernel errors might be asynchronously reported at some other API call."


def out_of_memory():
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


# Errors, whether memory was too little, and whether the GPU is lost: if it still computes, and if
# it does not.
ERRORS = [
    (out_of_memory(), True, False, False),
    (torch.AcceleratorError("CUDA error: out of memory" + ADVICE), True, False, False),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x"), True, False, False),
    (RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at x.cpp"), True, False, False),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True, False, False),
    (MemoryError(), True, False, False),
    (torch.AcceleratorError(ASSERT + ADVICE), False, True, True),
    (RuntimeError(ASSERT), False, True, True),  # as torch before 2.8 raises it
    (torch.AcceleratorError("CUDA error: an illegal memory access"), False, True, True),
    (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), False, True, True),
    (torch.AcceleratorError("CUDA error: unspecified launch failure"), False, True, True),
    (torch.AcceleratorError("HIP error: an illegal memory access"), False, True, True),
    (RuntimeError("CUDA error: no kernel image is available"), False, False, True),
    (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when x"), False, False, True),
    (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False, False, True),
    (ValueError(ASSERT), False, False, False),
    (RuntimeError("device-side assert triggered"), False, False, False),  # a method's own words
    (RuntimeError("index 7 is out of bounds for dimension 0 with size 3"), False, False, False),
]


@pytest.mark.parametrize(("error", "no_memory", "lost", "lost_if_asked"), ERRORS)
def test_errors_of_memory_of_the_gpu_and_of_methods_are_told_apart(
    error, no_memory, lost, lost_if_asked
):
    said = str(error).partition("\n")[0]
    assert is_out_of_memory(error) == no_memory
    assert poison_of(error, lambda: True) == (said if lost else None)
    assert poison_of(error, lambda: False) == (said if lost_if_asked else None)
    assert lost or poison_of(error) is None, "there is no GPU here that could be lost"


def test_an_error_that_was_wrapped_is_found():
    wrapped = ValueError("the method failed")
    wrapped.__cause__ = torch.AcceleratorError(ASSERT)
    with pytest.raises(DeviceError, match=f"^{ASSERT}$"):
        raise_if_poisoned(wrapped)


def test_the_second_try_begins_with_the_memory_of_the_first_one(monkeypatch):
    freed = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(tensors[0]() is None))
    tensors = []

    def work():
        large = torch.zeros(1000)
        tensors.append(weakref.ref(large))
        if len(tensors) == 1:
            raise out_of_memory()
        return len(tensors)

    assert with_second_try(work) == 2
    assert freed == [True], "the cache is emptied once, when the first try holds nothing any more"


@dataclass(frozen=True)
class Failing(Full):
    """A method whose first calls raise an error, each another one."""

    errors: tuple[BaseException, ...] = ()
    calls: list[int] | None = None

    def compress(self, features, **rest):
        self.calls.append(len(self.calls))
        if len(self.calls) <= len(self.errors):
            raise self.errors[len(self.calls) - 1]
        return super().compress(features)


def failing(*errors):
    return Failing(errors=errors, calls=[])


@pytest.fixture
def compress(one_clip):
    return one_clip.start(COMPRESS_VIDEO)


@pytest.mark.parametrize("profile", [False, True])
def test_the_method_without_memory_leaves_the_others_their_answers(one_clip, profile):
    compress = one_clip.start(COMPRESS_VIDEO, profile=profile)
    first, second = one_clip.plan.caches
    compress.compressors[first] = failing(out_of_memory(), out_of_memory())
    row = compress(one_clip.decoded)
    assert row.status == "ok"
    assert row.compress_errors == {
        first: "out of memory, also when retried: raise the pool's num_gpus, or lower "
        "model.num_frames; OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    }
    assert one_clip.plan.caches[first].keys() == set()
    assert one_clip.plan.caches[second].keys() == {row.clip_key}

    answers = one_clip.start(ANSWER_QUESTIONS, profile=profile)(row).answers
    caches = {planned.name: planned.cache for planned in one_clip.plan.methods}
    for answer in answers:
        if caches[answer.cell] == first:
            assert answer.status == "encode_failed"
            assert "out of memory" in answer.error
            assert answer.cache == "miss"
        else:
            assert answer.status in ("ok", "unparsed")
    assert {caches[a.cell] for a in answers} == {first, second}


def test_a_lost_gpu_ends_the_process_and_not_only_the_clip(one_clip, compress):
    first, _ = one_clip.plan.caches
    compress.compressors[first] = failing(torch.AcceleratorError(ASSERT + ADVICE))
    with pytest.raises(DeviceError, match=f"^{ASSERT}$"):
        compress(one_clip.decoded)


@pytest.fixture
def answer(one_clip, compress):
    """The answer stage, and the row of a clip that is in every cache."""
    return one_clip.start(ANSWER_QUESTIONS), compress(one_clip.decoded)


def with_errors(stage, error_of):
    """Let passes over prompts raise what `error_of(rows, pruned)` gives; gives their rows."""
    loop = stage.language_model.engine.layer_loop
    real, calls = loop.run, []

    def run(hidden, positions, attend, recur, **options):
        if max(attend.__self__.lengths()) > 1:  # no step of decoding
            calls.append(len(hidden))
            if (error := error_of(len(hidden), bool(options["pruned"]))) is not None:
                raise error
        return real(hidden, positions, attend, recur, **options)

    loop.run = run
    return calls


def test_answers_that_never_fit_are_failed_rows_of_that_method_alone(answer):
    stage, row = answer
    pruned = [planned.name for planned in stage.methods if planned.method.pruner is not None]
    with_errors(stage, lambda rows, pruned: out_of_memory() if pruned else None)
    answers = stage(row).answers
    assert {a.cell for a in answers if a.status == "answer_failed"} == set(pruned) != set()
    assert all("out of memory" in a.error for a in answers if a.cell in pruned)
    assert {a.status for a in answers if a.cell not in pruned} <= {"ok", "unparsed"}


def test_in_a_loop_a_lost_gpu_ends_the_job_in_one_line(one_clip):
    first, _ = one_clip.plan.caches
    compressors = {**one_clip.plan.compressors, first: failing(torch.AcceleratorError(ASSERT))}
    plan = replace(one_clip.plan, compressors=compressors)
    with pytest.raises(WorkerError) as error:
        list(stream(plan, Settings("local")))
    said = str(error.value)
    assert "\n" not in said
    assert ASSERT in said
    assert one_clip.row.video_id in said
    assert "--resume" in said


def test_a_gpu_that_is_lost_while_answering_ends_the_process(answer):
    stage, row = answer
    lost = torch.AcceleratorError("CUDA error: an illegal memory access")
    with_errors(stage, lambda rows, pruned: lost)
    with pytest.raises(DeviceError, match="illegal memory access"):
        stage(row)


def test_answers_without_memory_are_tried_in_smaller_batches(answer):
    stage, row = answer
    first = stage(row).answers
    longest = max(one.prompt_tokens for one in first)
    calls = with_errors(stage, lambda rows, pruned: out_of_memory() if rows > longest else None)
    again = stage(row).answers
    compared = attrgetter("cell", "question_id", "text", "status")
    assert list(map(compared, again)) == list(map(compared, first))
    assert calls[0] > longest
    assert calls[-1] <= longest
    # After a lack of memory batches are smaller from the start.
    assert sum(rows > longest for rows in calls) < len(first)
