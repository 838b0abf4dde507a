"""The options of a dry run, which `evaluate`, `sweep` and `precompute` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from tango_core.errors import InputError

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.run.locations import Locations

Only = Annotated[
    bool, typer.Option("--dry-run", help="Say what the job will take, and do not start it.")
]
Probe = Annotated[bool, typer.Option("--probe", help="With --dry-run: measure ten clips now.")]
Price = Annotated[
    float | None,
    typer.Option(
        min=0, max=1e9, help="With --dry-run: what all nodes cost together, for the cost."
    ),
]


@dataclass(frozen=True)
class DryRunOptions:
    """What the command line says about a dry run.

    Attributes:
        only: Whether the job is estimated and not started.
        probe: See `jobs.run.dry_run.DryRun`.
        price_per_hour: Likewise.
        as_json: Likewise, by the option `--json` of every job.
        continues: Whether a run is to be continued, of which an estimate knows nothing.
    """

    only: bool = False
    probe: bool = False
    price_per_hour: float | None = None
    as_json: bool = False
    continues: bool = False

    def __post_init__(self) -> None:
        """Refuse options that would do nothing."""
        given = {
            "--probe": self.probe,
            "--price-per-hour": self.price_per_hour is not None,
        }
        if not self.only and any(given.values()):
            names = ", ".join(name for name, is_given in given.items() if is_given)
            raise InputError(f"{names} belongs to an estimate; add --dry-run")
        if self.only and self.continues:
            raise InputError("--dry-run is about a whole job: leave out --resume and --continue")

    def estimate(
        self,
        jobs: Sequence[Job],
        kind: Literal["evaluate", "sweep", "precompute"],
        locations: Locations,
    ) -> int:
        """Print what the jobs will take; returns the exit code."""
        from jobs.run.dry_run import DryRun, dry_run

        how = DryRun(self.probe, self.price_per_hour, self.as_json)
        return dry_run(jobs, kind, locations, Console(), how)
