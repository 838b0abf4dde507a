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


def alive():
    return True


def dead():
    return False


@pytest.mark.parametrize(
    "error",
    [
        out_of_memory(),
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        torch.AcceleratorError("CUDA error: out of memory" + ADVICE),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1165'),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 99 bytes."),
        MemoryError(),
    ],
)
def test_too_little_memory_is_known_and_is_no_lost_gpu(error):
    assert is_out_of_memory(error)
    assert poison_of(error, dead) is None


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ASSERT + ADVICE),
        RuntimeError(ASSERT),  # as torch before 2.8 raises it
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
        torch.AcceleratorError("CUDA error: unspecified launch failure"),
        torch.AcceleratorError("HIP error: an illegal memory access was encountered"),
    ],
)
def test_an_error_that_stays_is_known_without_asking_the_gpu(error):
    assert not is_out_of_memory(error)
    assert poison_of(error, alive) == str(error).splitlines()[0]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    ],
)
def test_of_other_errors_the_gpu_itself_says_whether_it_is_lost(text):
    assert poison_of(RuntimeError(text), alive) is None
    assert poison_of(RuntimeError(text), dead) == text
    assert poison_of(RuntimeError(text)) is None, "there is no GPU here that could be lost"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(ASSERT),
        RuntimeError("device-side assert triggered"),  # a method's own words
        RuntimeError("index 7 is out of bounds for dimension 0 with size 3"),
        TypeError("no"),
    ],
)
def test_what_a_method_does_wrong_is_neither(error):
    assert not is_out_of_memory(error)
    assert poison_of(error, dead) is None


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
