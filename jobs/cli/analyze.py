"""`tango analyze ...`: figures and tables about encoders and methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.options import RUNS, expanded, expanded_text

if TYPE_CHECKING:
    from jobs.config.recipe import Job

analyze = typer.Typer(
    no_args_is_help=True,
    help="Analyze the encoder and the methods of a recipe on its clips.",
)

SINKS_FILE = Path("sinks.json")
PAGES = Path("analysis")

Recipe = Annotated[
    Path, typer.Argument(help="Recipe whose model and clips to analyze.", callback=expanded)
]
RecipeOrRun = Annotated[
    Path,
    typer.Argument(
        help="Recipe whose clips and methods to analyze, or a finished run, whose answers are "
        "analyzed as well.",
        callback=expanded,
    ),
]
Set = Annotated[list[str], typer.Option("--set", help="Change one key: --set model.name=tiny.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Only the first N clips.  [default: the recipe's, at most 100]"),
]
FewerClips = Annotated[
    int | None,
    typer.Option(min=1, help="Only the first N clips.  [default: the recipe's, at most 30]"),
]
Output = Annotated[
    Path,
    typer.Option(help="Directory that receives a directory per analysis.", callback=expanded),
]
Cache = Annotated[
    str,
    typer.Option(
        help="Directory or URL of caches whose stored features are reused.",
        callback=expanded_text,
    ),
]
MeanRank = Annotated[
    float, typer.Option(help="Maximum mean rank of a sink, as a share of all positions.")
]
Spread = Annotated[
    float, typer.Option(help="Maximum spread of a sink's rank, as a share of all positions.")
]

CACHE = f"{RUNS}/cache"
MOST_CLIPS, MOST_FOR_PIXELS = 100, 30


@analyze.command("attention")
def attention(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    limit: Limit = None,
    output: Output = PAGES,
    cache: Cache = CACHE,
) -> None:
    """Plot sorted attention, mean attention maps and the rank of every position."""
    job, folder, cache_root = _checked(recipe, set_, limit, MOST_CLIPS, output / "attention", cache)
    from jobs.analysis.attention import analyze_attention

    raise typer.Exit(analyze_attention(job, folder, cache_root, Console()))


@analyze.command("sinks")
def sinks(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    limit: Limit = None,
    output: Annotated[Path, typer.Option(help="File to write.", callback=expanded)] = SINKS_FILE,
    pages: Annotated[
        Path,
        typer.Option(
            "--pages", help="Directory that receives a directory with the page.", callback=expanded
        ),
    ] = PAGES,
    cache: Cache = CACHE,
    score: Annotated[
        Literal["saliency", "attention"] | None,
        typer.Option(help="Signal to rank.  [default: saliency if the model has it]"),
    ] = None,
    max_mean_rank: MeanRank = 0.1,
    max_spread: Spread = 0.1,
) -> None:
    """Find positions with high attention in every clip; write a file for model.sinks."""
    from jobs.run.locations import raise_if_unusable

    raise_if_unusable(output.parent)
    job, folder, cache_root = _checked(
        recipe, set_, limit, MOST_CLIPS, pages / "sinks", cache, "--pages"
    )
    from jobs.analysis.attention import analyze_sinks
    from tango_core.analysis.sinks import SinkRule

    rule = SinkRule(max_mean_rank, max_spread)
    raise typer.Exit(
        analyze_sinks(job, folder, cache_root, Console(), output=output, score=score, rule=rule)
    )


@analyze.command("activations")
def activations(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    limit: FewerClips = None,
    output: Output = PAGES,
    layer: Annotated[
        list[int],
        typer.Option(
            help="Layer of the tower, 0 for the embeddings; may be repeated.  "
            "[default: the last one that the model runs]"
        ),
    ] = [],  # noqa: B006
    max_mean_rank: MeanRank = 0.1,
    max_spread: Spread = 0.1,
) -> None:
    """Compare activations of sinks with those of other patches, and plot norms per layer."""
    job, folder, cache_root = _checked(
        recipe, set_, limit, MOST_FOR_PIXELS, output / "activations", CACHE
    )
    from jobs.analysis.activations import analyze_activations
    from tango_core.analysis.sinks import SinkRule

    rule = SinkRule(max_mean_rank, max_spread)
    raise typer.Exit(
        analyze_activations(job, folder, cache_root, Console(), layers=layer, rule=rule)
    )


@analyze.command("clusters")
def clusters(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    limit: FewerClips = None,
    output: Output = PAGES,
    cache: Cache = CACHE,
    share: Annotated[float, typer.Option(help="Clusters per token, in (0, 1].")] = 0.1,
    window: Annotated[
        int, typer.Option(min=1, help="Number of consecutive frames to cluster together.")
    ] = 8,
    examples: Annotated[int, typer.Option(min=0, help="Clips to draw.")] = 2,
) -> None:
    """Cluster tokens with and without ST-RoPE, and measure how fragmented the clusters are."""
    job, folder, cache_root = _checked(
        recipe, set_, limit, MOST_FOR_PIXELS, output / "clusters", cache
    )
    from jobs.analysis.clusters import analyze_clusters

    raise typer.Exit(
        analyze_clusters(
            job, folder, cache_root, Console(), share=share, window=window, examples=examples
        )
    )


@analyze.command("coverage")
def coverage(
    recipe: RecipeOrRun,
    set_: Set = [],  # noqa: B006
    limit: Limit = None,
    output: Output = PAGES,
    cache: Cache = CACHE,
) -> None:
    """Measure how well kept tokens represent all tokens; for a run, relate it to accuracy."""
    path, run = _recipe_of(recipe)
    job, folder, cache_root = _checked(path, set_, limit, MOST_CLIPS, output / "coverage", cache)
    from jobs.analysis.coverage import analyze_coverage

    raise typer.Exit(analyze_coverage(job, folder, cache_root, Console(), run=run))


@analyze.command("evidence")
def evidence(
    recipe: RecipeOrRun,
    set_: Set = [],  # noqa: B006
    limit: Limit = None,
    output: Output = PAGES,
    cache: Cache = CACHE,
) -> None:
    """Measure how many tokens of the questioned objects methods keep (built-in benchmark)."""
    path, run = _recipe_of(recipe)
    job, folder, cache_root = _checked(path, set_, limit, MOST_CLIPS, output / "evidence", cache)
    from jobs.analysis.evidence import analyze_evidence

    raise typer.Exit(analyze_evidence(job, folder, cache_root, Console(), run=run))


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


def _checked(
    recipe: Path,
    changes: list[str],
    limit: int | None,
    most: int,
    folder: Path,
    cache: str,
    option: str = "--output",
) -> tuple[Job, Path, str]:
    """Load the recipe and check the paths before slow imports.

    Args:
        recipe: Recipe file.
        changes: Values of `--set`.
        limit: Number of clips; `None` for that of the recipe, at most `most`.
        most: Maximum number of clips without `limit`.
        folder: Output directory of the page.
        cache: Directory or URL of the caches.
        option: Option that set the output directory, for messages.

    Returns:
        The job, the output directory and the path or URL of the caches.
    """
    from dataclasses import replace

    from jobs.config.recipe import load_job
    from jobs.run.locations import Locations, raise_if_unusable
    from pipeline.storage.urls import place

    job = load_job(recipe, changes)
    job = replace(job, limit=limit or min(job.limit or most, most))
    raise_if_unusable(folder.parent, option)
    return job, folder, Locations(place(RUNS), cache).cache_root
