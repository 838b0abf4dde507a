"""Where a job's model will run, as far as its description must know: for the dtype `auto`.

The driver's own host does not tell: a head without a GPU plans for workers that have some, and a
host with GPUs for workers that reserve none.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.config.recipe import Job
from jobs.run.executor import executor_of
from pipeline.resources.devices import reserves_gpus
from tango_core.models import Device


@dataclass(frozen=True)
class Cluster:
    """The Ray cluster that a job was given.

    Attributes:
        address: `None` for a Ray of our own.
    """

    address: str | None = None

    def has_gpus(self, timeout_s: float) -> bool:
        """Whether any node has a GPU; joins the cluster if nobody has.

        Raises:
            ClusterError: If it cannot be reached.
        """
        from pipeline.executors.cluster import connected

        with connected(self.address, timeout_s) as nodes:
            return any(node.get("GPU", 0) > 0 for node in nodes)


HERE = Cluster()


def device_of(job: Job, cluster: Cluster) -> Device:
    """The device that the model is described for; `auto` for what this process has.

    With `pools` in numbers it is CUDA as soon as one half of the model reserves a GPU: both halves
    have one dtype. That is one answer for every command that reads the recipe, so that they share
    their caches. With `pools: auto` it is what the cluster has.
    """
    asked = job.model.device
    if asked != "auto":
        return asked
    choice = executor_of(job, cluster.address)
    executor = None if choice is None else choice.executor
    if executor == "local":
        return "auto"
    if isinstance(job.pools, str):
        if cluster.address is None:
            return "auto"
        return "cuda" if cluster.has_gpus(job.cluster.start_timeout_s) else "cpu"
    if reserves_gpus(job.pools):
        return "cuda"
    return "cpu" if executor == "ray" else "auto"
