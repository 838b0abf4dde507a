"""A plan is run by the executor that the settings name, with its caches prepared."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from jobs_for_tests import job, plan_of
from safetensors.torch import load_file, save_file

from pipeline.clips import Clip
from pipeline.errors import WorkerError
from pipeline.metrics import (
    JobBoard,
    Metered,
    StageCount,
    stream_of,
)
from pipeline.run import complete, run
from pipeline.settings import Settings
from tango_core import tiny


@pytest.fixture
def plan(tmp_path):
    return plan_of(job(tmp_path / "shapes", limit=1), tmp_path / "cache", answer=False)


def test_a_cache_with_other_settings_is_refused_before_anything_is_decoded(plan):
    (cache,) = plan.caches.values()
    cache.storage.write("manifest.json", b"{}")
    with pytest.raises(ValueError, match="holds other settings"):
        next(run(plan, Settings("local")))


class TestNotFinite:
    """A model with a weight that is NaN, as a damaged or overflowing checkpoint has."""

    @pytest.fixture
    def with_nan(self, tmp_path):
        def made(tensor):
            path = shutil.copytree(tiny.__path__[0], tmp_path / "checkpoint")
            file = path / "model.safetensors"
            tensors = load_file(file)
            (name,) = (name for name in tensors if name.endswith(tensor))
            tensors[name] = tensors[name].clone()
            tensors[name].flatten()[0] = float("nan")
            save_file(tensors, file, metadata={"format": "pt"})
            model = {"name": "tiny", "path": str(path)}
            methods = [{"name": "full"}, {"name": "tango", "retention": 0.2}]
            cache = {"features": "all"}
            recipe = job(tmp_path / "shapes", limit=8, model=model, methods=methods, cache=cache)
            return plan_of(recipe, tmp_path / "cache")

        return made

    @pytest.mark.parametrize(
        ("tensor", "status", "half"),
        [
            ("multi_modal_projector.linear_2.weight", "encode_failed", "vision encoder in float32"),
            (
                "layers.0.mlp.down_proj.weight",
                "answer_failed",
                "language model computed NaN or infinite logits",
            ),
        ],
    )
    def test_clips_fail_by_name_and_the_job_stops_after_five(self, with_nan, tensor, status, half):
        plan = with_nan(tensor)
        results = complete(run, plan, Settings("local"))
        first = [next(results) for _ in range(5)]
        answers = [answer for result in first for answer in result.answers]
        assert {answer.status for answer in answers} == {status}
        assert all(half in answer.error for answer in answers)
        with pytest.raises(
            WorkerError, match=f"last 5 clips failed with the same error: NotFiniteError.*{half}"
        ):
            next(results)
        assert not any(cache.keys() for cache in plan.caches.values())
        stored = list(Path(plan.features.cache.storage.root).rglob("*.parquet"))
        assert bool(stored) == (status == "answer_failed"), "nothing is cached that is not finite"


def test_a_clip_that_failed_before_is_only_passed_on():
    report = JobBoard()
    stage = Metered(stream_of(lambda row: replace(row, status="encode_failed")), "compress", report)
    clips = [
        Clip(benchmark="b", video_id=name, path="", status=status)
        for name, status in (("v", "ok"), ("w", "decode_failed"))
    ]
    assert len(list(stage(clips))) == 2
    count = report.counts()["compress"]
    assert (count.started, count.finished, count.failed) == (2, 2, 1)


def test_a_board_knows_what_waits_for_each_stage():
    board = JobBoard()
    board.expected = {"decode": 8, "compress": 8, "answer": 10}
    board.add({"decode": StageCount(6, 5, 0, 1.0), "compress": StageCount(3, 2, 0, 1.0)})
    board.add({"answer": StageCount(started=1)})
    waiting = {stage: state.waiting for stage, state in board.states().items()}
    assert waiting == {"decode": 2, "compress": 2, "answer": 3}


@pytest.mark.parametrize("answer", [True, False])
def test_the_loop_reports_every_stage(tmp_path, answer):
    recipe = job(tmp_path / "shapes", limit=2)
    board = JobBoard()
    settings = Settings("local")
    for _ in range(2):  # the second time, the cache holds the clips
        plan = plan_of(recipe, tmp_path / "cache", answer=answer)
        list(run(plan, settings, board=board))
    finished = {stage: count.finished for stage, count in board.counts().items()}
    assert finished == {"decode": 2, "compress": 2, **({"answer": 4} if answer else {})}
    assert all(count.busy_s > 0 for count in board.counts().values())
    expected = {"decode": 0, "compress": 0, **({"answer": 2} if answer else {})}
    assert board.expected == expected
