"""Which executor a job runs on."""

from __future__ import annotations

from jobs.config.recipe import Job
from pipeline.executors.choice import Choice, choose
from pipeline.resources.devices import reserves_gpus


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
        pools=None if isinstance(job.pools, str) else job.pools,
        profile=job.mode == "profile",
        unused_gpu=lambda: _has_unused_gpu(job),
    )


def _has_unused_gpu(job: Job) -> bool:
    """Whether this process sees a GPU, the model may use it, and no pool reserves any."""
    if job.model.device == "cpu" or isinstance(job.pools, str) or reserves_gpus(job.pools):
        return False
    import torch  # takes a second, which only jobs with a GPU to ask for have to wait here

    return torch.cuda.is_available()
