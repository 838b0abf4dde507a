"""Choose the executor, the device and the pools of a job."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from jobs.config.recipe import Job
from pipeline.clips import Pools, stages_of
from pipeline.executors.choice import Choice, choose
from pipeline.plan import Plan
from pipeline.resources.devices import reserves_gpus
from pipeline.resources.sizing import UNMEASURED, AutoPools, Work
from pipeline.storage.urls import Place
from tango_core.models import Device

if TYPE_CHECKING:
    from jobs.estimate.timing import Rates


def executor_of(job: Job, address: str | None, num_clips: int | None = None) -> Choice | None:
    """Choose the executor with a reason; `None` if the choice needs the unknown number of clips.

    Args:
        job: The recipe.
        address: Address of a Ray cluster; `None` to start Ray on this machine.
        num_clips: Number of clips to process; `None` before they have been counted.
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
    import torch  # slow import, needed only if the job may use a GPU

    return torch.cuda.is_available()


def device_of(job: Job, address: str | None = None) -> Device:
    """The device for which the model is described; `auto` for the devices of this process.

    With explicit `pools` it is CUDA if any half of the model reserves a GPU, because both halves
    have the same dtype. This depends only on the recipe, so that all commands share their caches.
    With `pools: auto` it depends on the cluster at the address.

    Raises:
        ClusterError: If the cluster must be queried and cannot be reached.
    """
    configured = job.model.device
    if configured != "auto":
        return configured
    choice = executor_of(job, address)
    executor = None if choice is None else choice.executor
    if executor == "local":
        return "auto"
    if isinstance(job.pools, str):
        if address is None:
            return "auto"
        from pipeline.executors.cluster import connected

        with connected(address, job.cluster.start_timeout_s) as nodes:
            return "cuda" if any(node.get("GPU", 0) > 0 for node in nodes) else "cpu"
    if reserves_gpus(job.pools):
        return "cuda"
    return "cpu" if executor == "ray" else "auto"


def pools_of(job: Job, plan: Plan, output: Place) -> Pools:
    """The pools of a recipe; with `pools: auto` they are chosen once the cluster is known.

    Args:
        job: The recipe.
        plan: Plan of the job.
        output: Directory of earlier runs, whose timings are used to size the pools.
    """
    if not isinstance(job.pools, str):
        return job.pools
    return AutoPools(work=work_of(plan, earlier_rates(plan, output)))


def earlier_rates(plan: Plan, output: Place) -> Rates:
    """Timings of earlier runs in `output` with the plan's model and device."""
    # Slow import.
    from jobs.estimate.timing import measured

    model = plan.model
    return measured(
        output,
        model=model.name,
        num_frames=model.frames.num_frames,
        device=device_name(model.device),
    )


def work_of(plan: Plan, rates: Rates) -> Work:
    """Seconds per stage of a plan, from measured rates or from default values."""
    from jobs.estimate.sizes import count

    counts = count(plan)
    names = [stage.name for stage in stages_of(plan)]
    seconds = {name: UNMEASURED[name] * max(1, counts.clips) for name in names}
    if rates.cells and rates.decode_s is not None and rates.encode_s is not None:
        compress = sum(one.compress_s or 0.0 for one in rates.cells.values())
        answer = sum(one.answer_s for one in rates.cells.values()) / len(rates.cells)
        each = {
            "decode": rates.decode_s * counts.to_encode,
            "compress": (rates.encode_s + compress) * counts.to_encode,
            "answer": answer * len(plan.methods) * counts.clips,
        }
        seconds = {name: each[name] for name in names}
    return Work(seconds, counts.clips, gpus=plan.model.device != "cpu")


def device_name(wanted: str) -> str:
    """Name of the GPU or the CPU architecture."""
    import torch

    if wanted != "cpu" and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()} CPU"
