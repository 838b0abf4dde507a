"""What the stages report, in one process; `executors/test_ray_metrics.py` is the same on Ray."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs_for_tests import job, plan_of

from pipeline.clips import Clip
from pipeline.metrics import (
    FINISHED,
    METRICS,
    SECONDS,
    SLOTS,
    JobBoard,
    Metered,
    StageCount,
    stream_of,
)
from pipeline.run import run
from pipeline.settings import Settings


class Report:
    """Remembers what a stage reports."""

    def __init__(self):
        self.said = []

    def started(self, stage):
        self.said.append((stage, "started"))

    def finished(self, stage, seconds, status):
        assert seconds >= 0
        self.said.append((stage, status))


def test_a_clip_that_failed_before_is_only_passed_on():
    report = Report()
    stage = Metered(stream_of(lambda row: replace(row, status="encode_failed")), "compress", report)
    clips = [
        Clip(benchmark="b", video_id=name, path="", status=status)
        for name, status in (("v", "ok"), ("w", "decode_failed"))
    ]
    assert len(list(stage(clips))) == 2
    assert [said for _, said in report.said] == ["started", "encode_failed", "started", "skipped"]


def test_clips_that_are_worked_on_together_are_counted_one_by_one():
    report = Report()
    clips = [Clip(benchmark="b", video_id=name, path="", status="ok") for name in "abc"]
    done = Metered(lambda rows: iter(list(rows)), "answer", report)(clips)
    assert next(done) == clips[0]
    assert [said for _, said in report.said] == ["started"] * 3 + ["ok"]
    assert len(list(done)) == 2
    assert [said for _, said in report.said] == ["started"] * 3 + ["ok"] * 3


def test_prometheus_names_are_those_that_ray_exports():
    assert FINISHED.exported == ("ray_tango_stage_clips_finished_total",)
    assert SLOTS.exported == ("ray_tango_stage_slots",)
    assert SECONDS.exported[0] == "ray_tango_stage_seconds_bucket"
    assert len({name for metric in METRICS for name in metric.exported}) == len(METRICS) + 2


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
