"""What a job talks to: MLflow and Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.doctor.checks import Remark, note, ok, problem
from jobs.doctor.machine import num_cpus

if TYPE_CHECKING:
    from jobs.config.recipe import Job

_STAGES = ("decode", "compress", "answer")


def tracking(uri: str) -> Remark:
    """Ask an MLflow server or store one question."""
    from jobs.tracking.server import raise_if_unreachable

    try:
        answered = raise_if_unreachable(uri)
    except OSError as error:
        return problem(f"{uri}: {error}; start it, or log later with `tango log-run`")
    return ok(f"{uri} {'answers' if answered else 'is made with the first run'}")


def workers(job: Job | None, address: str | None) -> Remark:
    """See whether the pools of a recipe fit the cluster, or a Ray of our own on this machine.

    Without an address nothing is started: the machine is counted as Ray would count it.

    Args:
        job: The recipe; `None` to look at Ray alone.
        address: Of an existing cluster.
    """
    import ray
    import torch

    from pipeline.executors.cluster import connected

    if job is not None and not _is_on_ray(job):
        return _without_ray(job, address)
    if address is None:
        nodes = [{"CPU": float(num_cpus()), "GPU": float(torch.cuda.device_count())}]
        return _fit(job, nodes, f"{ray.__version__}, started here with {_resources(nodes)}")
    with connected(address) as nodes:
        about = f"{ray.__version__}, {address} has {_resources(nodes)} on {len(nodes)} node(s)"
        return _fit(job, nodes, about)


def _is_on_ray(job: Job) -> bool:
    """A profile never is."""
    from jobs.run.build import make_settings

    return make_settings(job, None).executor == "ray"


def _without_ray(job: Job, address: str | None) -> Remark:
    """The plain loop: one process, whose device must be there."""
    from tango_core.models.placement import resolve_device

    device = resolve_device(job.model.device)
    if address is not None:
        return note(f"--address {address} is not used: set executor to ray and mode to throughput")
    return ok(f"not used: one process on the {str(device).upper()}")


def _fit(job: Job | None, nodes: list[dict[str, float]], about: str) -> Remark:
    """The pre-flight check of the job itself."""
    from pipeline.pools import preflight

    if job is None:
        return ok(about)
    preflight(job.pools, nodes, _STAGES)
    return ok(f"{about}; the recipe's pools fit")


def _resources(nodes: list[dict[str, float]]) -> str:
    """What all nodes have together."""
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    return f"{cpus:g} CPUs and {gpus:g} GPUs"
