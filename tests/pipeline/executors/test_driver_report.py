"""What the driver of a job on Ray goes on to say while its workers work."""

from __future__ import annotations

import threading

from pipeline.executors import ray_reports
from pipeline.metrics import JobBoard


class Report:
    """Counts how often it was told to say the sizes of the job."""

    def __init__(self):
        self.often = threading.Event()
        self._times = 0

    def sizes(self):
        """As `DriverReport.sizes`."""
        self._times += 1
        if self._times == 3:
            self.often.set()


def test_the_sizes_of_a_job_are_said_again_and_again(monkeypatch):
    """Ray shows a gauge no more that was set once: `test_ray_metrics.py` sees the first seconds."""
    monkeypatch.setattr(ray_reports, "_COPY_EVERY_S", 0.01)
    monkeypatch.setattr(ray_reports, "_copy", lambda actor, board: None)
    report = Report()
    with ray_reports.mirrored(None, JobBoard(), report):
        assert report.often.wait(60)
