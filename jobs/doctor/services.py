"""The services that a job uses: MLflow and Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.doctor.checks import CheckResult, note, ok, problem
from pipeline.resources.cgroups import num_cpus

if TYPE_CHECKING:
    from jobs.config.recipe import Job


def tracking(uri: str) -> CheckResult:
    """Send one request to an MLflow server or store."""
    from jobs.tracking.server import raise_if_unreachable

    try:
        answered = raise_if_unreachable(uri)
    except OSError as error:
        return problem(f"{uri}: {error}; runs can be logged later with `tango log-run`")
    return ok(f"{uri} {'answers' if answered else 'will be created by the first run'}")


def ray_pools(job: Job | None, address: str | None) -> CheckResult:
    """Check that the pools of a recipe fit the cluster, or this machine.

    Without an address no Ray is started: CPUs and GPUs of this machine are counted as Ray counts.

    Args:
        job: The recipe; `None` to check Ray alone.
        address: Address of a running cluster; `None` for a Ray that the job starts.
    """
    import ray
    import torch

    from pipeline.executors.cluster import connected

    if job is not None and not _is_on_ray(job, address):
        return _without_ray(job, address)
    if address is None:
        nodes = [{"CPU": float(num_cpus()), "GPU": float(torch.cuda.device_count())}]
        return _fit(job, nodes, f"{ray.__version__}, started here with {_resources(nodes)}")
    with connected(address) as nodes:
        about = f"{ray.__version__}, {address} has {_resources(nodes)} on {len(nodes)} node(s)"
        return _fit(job, nodes, about)


def _is_on_ray(job: Job, address: str | None) -> bool:
    """Whether the job runs on Ray, or may do so; in profile mode no job does."""
    from jobs.run.placement import executor_of

    choice = executor_of(job, address)
    return choice is None or choice.executor == "ray"


def _without_ray(job: Job, address: str | None) -> CheckResult:
    """The local executor: one process, whose device must exist."""
    from tango_core.models.placement import resolve_device

    device = resolve_device(job.model.device)
    if address is not None:
        return note(f"--address {address} is not used: set executor to ray and mode to throughput")
    return ok(f"not used: one process on the {str(device).upper()}")


def _fit(job: Job | None, nodes: list[dict[str, float]], about: str) -> CheckResult:
    """The same check of the pools that the job does when it starts."""
    from pipeline.resources.devices import doubts
    from pipeline.resources.pools import preflight
    from pipeline.stages.declarations import STAGES

    if job is None:
        return ok(about)
    if isinstance(job.pools, str):
        return ok(f"{about}; pools: auto shares them out")
    names = [stage.name for stage in STAGES]
    preflight(job.pools, nodes, names)
    if doubtful := list(doubts(job.model.device, job.pools, nodes, names)):
        return note(f"{about}; {'; '.join(doubtful)}")
    return ok(f"{about}; the recipe's pools fit")


def _resources(nodes: list[dict[str, float]]) -> str:
    """CPUs and GPUs of all nodes together."""
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    return f"{cpus:g} CPUs and {gpus:g} GPUs"
