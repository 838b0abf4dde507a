"""Links from the page of a run into the exported viewer beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.results.cell_summary import CellSummary
from jobs.viewer.links import list_link
from tango_core.benchmarks import facts_of

# Where `tango view RUN --export RUN/viewer` puts the viewer, from the run directory.
VIEWER = "viewer/index.html"


def viewer_of(run_dir: Path) -> str:
    """Where the viewer of a run is, as its page links to it; "" if there is none."""
    return VIEWER if (run_dir / VIEWER).is_file() else ""


def failures_link(
    viewer: str, cell: CellSummary, groups: Sequence[tuple[str, str]], *, has_full: bool
) -> str:
    """A link to the questions that a cell lost: right with all tokens and wrong here.

    Args:
        viewer: As `viewer_of` says.
        cell: Of the run that the viewer shows alone.
        groups: (name, value) pairs of the questions.
        has_full: Whether the run has a cell of all tokens; else all wrong ones are meant, as they
            are for that cell itself.

    Returns:
        "" without a viewer, and for groups of which a question may have several values: the viewer
        filters by the whole of them.
    """
    several = facts_of(cell.benchmark).several_valued
    if not viewer or any(name in several for name, _ in groups):
        return ""
    outcome = "lost" if has_full and not cell.is_baseline else "wrong"
    return list_link(
        benchmark=cell.benchmark, groups=groups, column=cell.name, outcome=outcome, base=viewer
    )
