"""`tango analyze ...`: figures and tables about encoders and methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from jobs.cli.options import CACHE, RUNS, Details, Number, Positive, command, expanded
from tango_core.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Analyze the encoder and the methods of a recipe.")

Set = Annotated[list[str], Details(help="Change one key: --set model.name=tiny.")]
Cache = Annotated[
    str,
    Details(help="Directory or URL of caches whose stored features are reused.", callback=expanded),
]
Limit = Annotated[int | None, Details(min=1)]
MeanRank = Annotated[
    float, Details(help="Maximum mean rank of a sink, as a share of all positions.")
]
Spread = Annotated[
    float, Details(help="Maximum spread of a sink's rank, as a share of all positions.")
]

PAGES = Path("analysis")

# Name -> help, options of its own, and most clips by default: those that read pixels or cluster are
# slow.
_ANALYSES: dict[str, tuple[str, set[str], int]] = {
    "attention": ("Plot attention: sorted, mean maps, rank of every position.", {"cache"}, 100),
    "activations": (
        "Compare activations of sinks with those of other patches.",
        {"layer", "max_mean_rank", "max_spread"},
        30,
    ),
    "clusters": (
        "Cluster tokens with and without ST-RoPE, measure fragments.",
        {"cache", "share", "window", "examples"},
        30,
    ),
    "coverage": ("Measure how well kept tokens represent all tokens.", {"cache"}, 100),
    "evidence": ("Count kept tokens of questioned objects (shapes only).", {"cache"}, 100),
}


def analyze(
    recipe: Path,
    *,
    kind: str,
    set_: Set = [],
    limit: Limit = None,
    output: Path = PAGES,
    cache: Cache = CACHE,
    layer: list[int] = [],
    max_mean_rank: MeanRank = 0.1,
    max_spread: Spread = 0.1,
    share: float = 0.1,
    window: Positive = 8,
    examples: Number = 2,
) -> int:
    """Analyze the clips of a recipe.

    Args:
        recipe: Recipe whose clips and methods to analyze; for coverage and evidence also a
            finished run, whose answers are analyzed as well.
        kind: Name of the analysis.
        limit: Only the first N clips.  [default: the recipe's, at most 100, or 30 for slow ones]
        output: Directory that receives a directory per analysis.
        layer: Layer of the tower, 0 for the embeddings; may be repeated.  [default: the last one
            that the model runs]
        share: Clusters per token, in (0, 1].
        window: Number of consecutive frames to cluster together.
        examples: Clips to draw.
    """
    options: dict[str, Any] = {}
    module = "encoders"
    if kind in ("coverage", "evidence"):
        from jobs.results.facts import JOB_FILE, JobFacts

        module = "methods"
        if recipe.is_dir():
            JobFacts.load(recipe)  # refuses a directory that is no finished run
            options, recipe = {"run": recipe}, recipe / JOB_FILE
    elif kind == "activations":
        from tango_core.analysis.sinks import SinkRule

        options = {"layers": layer, "rule": SinkRule(max_mean_rank, max_spread)}
    elif kind == "clusters":
        if not 0 < share <= 1:
            raise InputError(f"--share must be in (0, 1], got {share:g}")
        options = {"share": share, "window": window, "examples": examples}
    most = _ANALYSES[kind][2]
    run_analysis = _prepared(recipe, set_, limit, most, output / kind, cache, "--output")
    function = getattr(import_module(f"jobs.analysis.{module}"), f"analyze_{kind}")
    return run_analysis(partial(function, **options))


_OWN = set[str]().union(*(options for _, options, _ in _ANALYSES.values()))
for _name, (_help, _options, _) in _ANALYSES.items():
    command(app, _name, kind=_name, help=_help, without=_OWN - _options)(analyze)


@command(app)
def sinks(
    recipe: Path,
    *,
    set_: Set = [],
    limit: Limit = None,
    output: Path = Path("sinks.json"),
    pages: Path = PAGES,
    cache: Cache = CACHE,
    score: Literal["saliency", "attention"] | None = None,
    max_mean_rank: MeanRank = 0.1,
    max_spread: Spread = 0.1,
) -> int:
    """Find positions with high attention in every clip: model.sinks.

    Args:
        recipe: Recipe whose model and clips to analyze.
        limit: Only the first N clips.  [default: the recipe's, at most 100]
        output: File to write.
        pages: Directory that receives a directory with the page.
        score: Signal to rank.  [default: saliency if the model has it]
    """
    run_analysis = _prepared(recipe, set_, limit, 100, pages / "sinks", cache, "--pages")
    from jobs.analysis.encoders import analyze_sinks
    from tango_core.analysis.sinks import SinkRule

    rule = SinkRule(max_mean_rank, max_spread)
    return run_analysis(partial(analyze_sinks, output=output, score=score, rule=rule))


def _prepared(
    recipe: Path,
    changes: list[str],
    limit: int | None,
    most: int,
    folder: Path,
    cache: str,
    option: str,
) -> Callable[[Any], int]:
    """Run an analysis on the clips of a recipe, which is read first."""
    from jobs.config.recipe import load_job
    from jobs.run.locations import Locations, raise_if_unusable
    from pipeline.storage.urls import place

    job = load_job(recipe, changes)
    job = replace(job, limit=limit or min(job.limit if isinstance(job.limit, int) else most, most))
    raise_if_unusable(folder.parent, option)
    from jobs.analysis.page import analyze as run_analysis

    cache_root = Locations(place(RUNS), cache).cache_root
    return lambda analysis: run_analysis(analysis, job, folder, cache_root, Console())
