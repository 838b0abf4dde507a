"""What the commands of `tango analyze` share: where they read and write, how they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from jobs import exit_codes
from jobs.analysis.clips import JobClips
from jobs.analysis.page import Page, write_page
from jobs.config.recipe import Job, RecipeError
from tango_core.models import ModelSpec

SIGNALS = ("saliency", "attention")


@dataclass(frozen=True)
class Places:
    """Where an analysis reads and writes.

    Attributes:
        folder: Receives page, figures and tables.
        cache_root: Directory or URL of the caches.
    """

    folder: Path
    cache_root: str


def subtitle(clips: JobClips, looked_at: int) -> str:
    """Model, benchmark and clips in words."""
    benchmarks = ", ".join(clips.built.benchmarks)
    stored = f", features of {clips.num_stored} from the store" if clips.num_stored else ""
    note = f" ({clips.model.note})" if clips.model.note else ""
    return f"{clips.model.name}{note} on {looked_at} clip(s) of {benchmarks}{stored}"


def finish(page: Page, job: Job, clips: JobClips, folder: Path, console: Console) -> int:
    """Write the page and say what it says.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.
    """
    path = write_page(page, folder)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    for line in page.lines:
        say(line)
    if clips.num_failed:
        say(f"{clips.num_failed} clip(s) could not be decoded and are skipped")
    say(f"page: {path}")
    return exit_codes.of(clips.num_failed <= job.max_failures)


def signals_of(model: ModelSpec) -> tuple[str, ...]:
    """The signals of an encoder, in the order in which they are shown.

    Raises:
        RecipeError: If it has none.
    """
    available = tuple(name for name in SIGNALS if name in model.provides)
    if not available:
        raise RecipeError(
            f"the encoder of model {model.name} provides neither saliency nor attention, so there "
            "is nothing to analyze; choose another model"
        )
    return available


def percents(values: Sequence[float]) -> list[str]:
    """Shares as percentages."""
    return [f"{100 * value:.1f}" for value in values]
