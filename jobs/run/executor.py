"""Which executor a job runs on, and a Ray that starts while the rest is still being imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jobs.config.recipe import Job
from pipeline.executors.choice import Choice, choose
from pipeline.executors.early import EarlyRay, started_early


def executor_of(job: Job, address: str | None, num_clips: int | None = None) -> Choice | None:
    """The executor, and why; `None` while it depends on the number of clips.

    Args:
        job: The recipe.
        address: Ray cluster; `None` for a Ray of our own.
        num_clips: Clips to be done; `None` before they have been counted.
    """
    if num_clips is None and job.limit is not None:
        num_clips = job.limit * len(job.all_benchmarks)
    return choose(
        job.executor,
        num_clips=num_clips,
        address=address,
        pools=job.pools,
        profile=job.mode == "profile",
    )


@contextmanager
def early_ray(jobs: Sequence[Job], address: str | None) -> Iterator[EarlyRay | None]:
    """Start Ray in the background if it is certain that a job of these runs on it."""
    choices = [executor_of(job, address) for job in jobs]
    wanted = any(choice is not None and choice.executor == "ray" for choice in choices)
    with started_early(wanted, address) as early:
        yield early
