"""The pools of a job: as its recipe has them, or chosen for the cluster by what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.config.recipe import Job
from pipeline.plan import Plan
from pipeline.resources.pools import Pools
from pipeline.resources.sizing import UNMEASURED, AutoPools, Work
from pipeline.stages.declarations import stages_of
from pipeline.storage.urls import Place

if TYPE_CHECKING:
    from jobs.estimate.timing import Rates


def pools_of(job: Job, plan: Plan, output: Place) -> Pools:
    """The pools of a recipe; with `pools: auto` they are chosen once the cluster is known.

    Args:
        job: The recipe.
        plan: What will be done.
        output: Directory of earlier runs, whose rates say how the stages compare.
    """
    if not isinstance(job.pools, str):
        return job.pools
    return AutoPools(work=work_of(plan, earlier_rates(plan, output)))


def earlier_rates(plan: Plan, output: Place) -> Rates:
    """What runs under an output directory measured of the plan's model on its device."""
    # Imported only here: reading tables of earlier runs takes a second to import.
    from jobs.estimate.timing import measured
    from jobs.run.provenance import device_name

    model = plan.model
    return measured(
        output,
        model=model.name,
        num_frames=model.frames.num_frames,
        device=device_name(model.device),
    )


def work_of(plan: Plan, rates: Rates) -> Work:
    """How the stages of a plan compare, by measured rates or by rule of thumb."""
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
