"""`tango analyze ...`: figures and tables about encoders and methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.options import CACHE, RUNS, Details, Number, Positive, command, expanded

if TYPE_CHECKING:
    from jobs.config.recipe import Job

app = typer.Typer(
    no_args_is_help=True, help="Analyze the encoder and the methods of a recipe on its clips."
)

Recipe = Annotated[Path, Details(help="Recipe whose model and clips to analyze.")]
RecipeOrRun = Annotated[
    Path,
    Details(
        help="Recipe whose clips and methods to analyze, or a finished run, whose answers are "
        "analyzed as well."
    ),
]
Set = Annotated[list[str], Details(help="Change one key: --set model.name=tiny.")]
Limit = Annotated[
    int | None,
    Details(min=1, help="Only the first N clips.  [default: the recipe's, at most 100]"),
]
FewerClips = Annotated[
    int | None,
    Details(min=1, help="Only the first N clips.  [default: the recipe's, at most 30]"),
]
Output = Annotated[Path, Details(help="Directory that receives a directory per analysis.")]
Cache = Annotated[
    str,
    Details(help="Directory or URL of caches whose stored features are reused.", callback=expanded),
]
MeanRank = Annotated[
    float, Details(help="Maximum mean rank of a sink, as a share of all positions.")
]
Spread = Annotated[
    float, Details(help="Maximum spread of a sink's rank, as a share of all positions.")
]

PAGES = Path("analysis")
MOST_CLIPS, MOST_FOR_PIXELS = 100, 30


@command(app)
def attention(
    recipe: Recipe,
    *,
    set_: Set = [],
    limit: Limit = None,
    output: Output = PAGES,
    cache: Cache = CACHE,
) -> int:
    """Plot sorted attention, mean attention maps and the rank of every position."""
    given = _inputs(recipe, set_, limit, MOST_CLIPS, output / "attention", cache)
    from jobs.analysis.attention import analyze_attention

    return analyze_attention(*given)


@command(app)
def sinks(
    recipe: Recipe,
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
    """Find positions with high attention in every clip; write a file for model.sinks.

    Args:
        output: File to write.
        pages: Directory that receives a directory with the page.
        score: Signal to rank.  [default: saliency if the model has it]
    """
    given = _inputs(recipe, set_, limit, MOST_CLIPS, pages / "sinks", cache, "--pages")
    from jobs.analysis.attention import analyze_sinks
    from tango_core.analysis.sinks import SinkRule

    rule = SinkRule(max_mean_rank, max_spread)
    return analyze_sinks(*given, output=output, score=score, rule=rule)


@command(app)
def activations(
    recipe: Recipe,
    *,
    set_: Set = [],
    limit: FewerClips = None,
    output: Output = PAGES,
    layer: list[int] = [],
    max_mean_rank: MeanRank = 0.1,
    max_spread: Spread = 0.1,
) -> int:
    """Compare activations of sinks with those of other patches, and plot norms per layer.

    Args:
        layer: Layer of the tower, 0 for the embeddings; may be repeated.  [default: the last one
            that the model runs]
    """
    given = _inputs(recipe, set_, limit, MOST_FOR_PIXELS, output / "activations", CACHE)
    from jobs.analysis.activations import analyze_activations
    from tango_core.analysis.sinks import SinkRule

    rule = SinkRule(max_mean_rank, max_spread)
    return analyze_activations(*given, layers=layer, rule=rule)


@command(app)
def clusters(
    recipe: Recipe,
    *,
    set_: Set = [],
    limit: FewerClips = None,
    output: Output = PAGES,
    cache: Cache = CACHE,
    share: float = 0.1,
    window: Positive = 8,
    examples: Number = 2,
) -> int:
    """Cluster tokens with and without ST-RoPE, and measure how fragmented the clusters are.

    Args:
        share: Clusters per token, in (0, 1].
        window: Number of consecutive frames to cluster together.
        examples: Clips to draw.
    """
    given = _inputs(recipe, set_, limit, MOST_FOR_PIXELS, output / "clusters", cache)
    from jobs.analysis.clusters import analyze_clusters

    return analyze_clusters(*given, share=share, window=window, examples=examples)


@command(app)
def coverage(
    recipe: RecipeOrRun,
    *,
    set_: Set = [],
    limit: Limit = None,
    output: Output = PAGES,
    cache: Cache = CACHE,
) -> int:
    """Measure how well kept tokens represent all tokens; for a run, relate it to accuracy."""
    path, run = _recipe_of(recipe)
    given = _inputs(path, set_, limit, MOST_CLIPS, output / "coverage", cache)
    from jobs.analysis.coverage import analyze_coverage

    return analyze_coverage(*given, run=run)


@command(app)
def evidence(
    recipe: RecipeOrRun,
    *,
    set_: Set = [],
    limit: Limit = None,
    output: Output = PAGES,
    cache: Cache = CACHE,
) -> int:
    """Measure how many tokens of the questioned objects methods keep (built-in benchmark)."""
    path, run = _recipe_of(recipe)
    given = _inputs(path, set_, limit, MOST_CLIPS, output / "evidence", cache)
    from jobs.analysis.evidence import analyze_evidence

    return analyze_evidence(*given, run=run)


def _recipe_of(path: Path) -> tuple[Path, Path | None]:
    """Recipe file and, if `path` is a run directory, the run.

    Raises:
        FileNotFoundError: If a directory is not a finished run.
    """
    if not path.is_dir():
        return path, None
    from jobs.results.facts import JOB_FILE, JobFacts

    JobFacts.load(path)
    return path / JOB_FILE, path


def _inputs(
    recipe: Path,
    changes: list[str],
    limit: int | None,
    most: int,
    folder: Path,
    cache: str,
    option: str = "--output",
) -> tuple[Job, Path, str, Console]:
    """The arguments that all analyses have.

    Args:
        recipe: Recipe file.
        changes: Values of `--set`.
        limit: Number of clips; `None` for that of the recipe, at most `most`.
        most: Maximum number of clips without `limit`.
        folder: Output directory of the page.
        cache: Directory or URL of the caches.
        option: Option that set the output directory, for messages.
    """
    from dataclasses import replace

    from jobs.config.recipe import load_job
    from jobs.run.locations import Locations, raise_if_unusable
    from pipeline.storage.urls import place

    job = load_job(recipe, changes)
    job = replace(job, limit=limit or min(job.limit or most, most))
    raise_if_unusable(folder.parent, option)
    return job, folder, Locations(place(RUNS), cache).cache_root, Console()
