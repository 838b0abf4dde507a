"""Commands about existing results and data: `report`, `explain`, `view`, `export`, `import`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from jobs.cli.completion import benchmark_names
from jobs.cli.options import RUNS, expanded, expanded_all, expanded_text
from jobs.run.interrupt_message import leaves_behind
from jobs.run.locations import raise_if_unusable
from pipeline.redaction import redacted
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import is_url, place
from tango_core.errors import InputError

data = typer.Typer(no_args_is_help=True, help="Download and check the files of a benchmark.")

Run = Annotated[
    str,
    typer.Argument(help="Run directory, or its URL.", show_default=False, callback=expanded_text),
]
FileFormat = Annotated[
    Literal["vlmevalkit", "lmms_eval"],
    typer.Option("--format", help="Harness whose file format is used.", show_default=False),
]


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run directories, or their URLs.",
            show_default=False,
            callback=lambda runs: [expanded_text(run) for run in runs],
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            help="Directory or URL to write to.  [default: the run, if it is one]",
            callback=expanded_text,
        ),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Also show the published numbers of the papers.")
    ] = False,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="Also compare every cell with this method at the same retention, or with the "
            "'previous' method of the recipe; may be repeated.",
            show_default=False,
        ),
    ] = None,
    confusion: Annotated[
        str | None,
        typer.Option(
            help="Write confusion tables for each value of this question group (shapes: type).",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        Literal["common", "all"],
        typer.Option(help="Questions that count where several runs were asked different ones."),
    ] = "common",
    gallery: Annotated[
        int,
        typer.Option(
            min=0, max=20, help="Clips to draw on the page of one run, with what methods kept."
        ),
    ] = 3,
) -> None:
    """Write tables, plots and a page for one run; merge shards of one job; compare several runs."""
    places = [place(run) for run in runs]
    target = None if output is None else place(output)
    if target is not None:
        raise_if_unusable(target)
    from jobs.report.compare import report_runs

    with ExitStack() as copies:
        folders = [copies.enter_context(local_copy(run)) for run in places]
        # Existing files of the target are not needed.
        into = copies.enter_context(local_copy(target, lambda name: False)) if target else None
        page = report_runs(
            folders,
            into,
            published=published,
            baselines=baseline or (),
            confusion=confusion,
            on=on,
            num_clips=gallery,
        )
        table = (page.parent / "paper_table.md").read_text(encoding="utf-8")
    shown = (target or places[0]) / page.name
    Console(soft_wrap=True).print(
        table, f"report: {shown}", sep="\n", markup=False, highlight=False
    )


def export(
    run: Run,
    harness: FileFormat,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Directory to write to.  [default: RUN/export/FORMAT]", callback=expanded
        ),
    ] = None,
) -> None:
    """Write a run's answers as VLMEvalKit or lmms-eval would have written them."""
    if output is not None:
        raise_if_unusable(output)
    where = place(run)
    from jobs.harness.exchange import export_run

    with local_copy(where) as folder:
        for path in export_run(folder, harness, output):
            print(where / str(path.relative_to(folder)) if path.is_relative_to(folder) else path)


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Prediction file (VLMEvalKit) or samples files (lmms-eval).",
            show_default=False,
            callback=expanded_all,
        ),
    ],
    harness: FileFormat,
    benchmark: Annotated[str, typer.Option(help="Name of the benchmark.", show_default=False)],
    root: Annotated[
        str | None,
        typer.Option(help="Directory of the benchmark's files.", callback=expanded_text),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the benchmark.")] = "test",
    protocol: Annotated[
        str | None, typer.Option(help="Protocol that scores the replies.  [default: FORMAT]")
    ] = None,
    subtitles: Annotated[
        bool, typer.Option("--subtitles", help="The prompts contained subtitles.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Model that answered.  [default: from the files' names]")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Name of the method; full for the baseline.  [default: MODEL]"),
    ] = None,
    retention: Annotated[
        float | None, typer.Option(help="Retention setting of the method.  [default: 1]")
    ] = None,
    num_frames: Annotated[
        int | None, typer.Option(min=1, help="Frames per clip.  [default: unknown]")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Skip questions without a reply in the files.")
    ] = False,
    output: Annotated[str, typer.Option(help="Directory or URL that receives the run.")] = "runs",
) -> None:
    """Create a run from the answers in files of VLMEvalKit or lmms-eval."""
    where = place(output)
    from jobs.config.sections import BenchmarkSection
    from jobs.harness.exchange import ImportSettings, import_answers
    from jobs.report.tables.cells import render_table

    section = BenchmarkSection(
        benchmark, root, split, protocol=protocol or harness, subtitles=subtitles
    )
    about = ImportSettings(section, model, method, retention, num_frames, partial)
    with local_copy(where, lambda name: False) as folder:
        run_dir, summary = import_answers(files, harness, about, folder)
    print(render_table(summary.cells))
    print(f"run: {where / run_dir.name}")


def log_run(
    run: Run,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow server or store.  [default: sqlite beside RUN]")
    ] = None,
) -> None:
    """Upload a run to MLflow, e.g. after the server was unavailable."""
    from jobs.results.facts import JobFacts
    from jobs.tracking.events import has_events
    from jobs.tracking.server import TrackingError, default_tracking_uri
    from jobs.tracking.upload import log_run as upload_run
    from pipeline.redaction import redacted

    where = place(run)
    uri = tracking_uri or default_tracking_uri(where.parent)
    try:
        with local_copy(where, sent=lambda name: False) as folder:
            if not has_events(folder):
                JobFacts.load(folder)
            upload_run(folder, uri)
    except TrackingError as error:
        raise TrackingError(f"{run} is not logged to {redacted(uri)}: {error}") from error
    print(f"logged to {redacted(uri)}")


@data.command("check")
def data_check(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="Name of a benchmark.", show_default=False, autocompletion=benchmark_names
        ),
    ],
    root: Annotated[str | None, typer.Argument(help="Directory of its files.")] = None,
    split: Annotated[str, typer.Option(help="Split of the benchmark.")] = "test",
    output: Annotated[
        Path | None,
        typer.Option(help="Write every finding to a .csv or .parquet file.", callback=expanded),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of files checked in parallel.")] = 4,
) -> None:
    """Check every row and every file before a job needs them."""
    if root is not None and is_url(root):
        raise InputError(
            f"{redacted(root)}: data check opens every file and needs a local directory; copy the "
            "release to a disk, or start a job with a small --limit"
        )
    from jobs.data_check.check import data_check

    where = None if root is None else Path(root)
    raise typer.Exit(data_check(benchmark, where, output, jobs, Console(), split))


_RESULT = "Run directory, its URL, a file of VLMEvalKit or lmms-eval, or `published`."

First = Annotated[
    str, typer.Argument(metavar="A", help=_RESULT, show_default=False, callback=expanded_text)
]
Second = Annotated[
    str, typer.Argument(metavar="B", help=_RESULT, show_default=False, callback=expanded_text)
]


def explain(
    first: First,
    second: Second,
    cell: Annotated[
        str | None,
        typer.Option(
            help='Cell to compare, e.g. "tango r=0.1"; only that of A with --other-cell.  '
            "[default: all common cells]"
        ),
    ] = None,
    other_cell: Annotated[str | None, typer.Option(help="Cell of B.  [default: CELL]")] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(help="Benchmark of a harness file.  [default: from the other run's recipe]"),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            help="Directory of that benchmark's files.  [default: from the other run's recipe]",
            callback=expanded_text,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split of that benchmark.  [default: from the other run's recipe]"),
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Examples of each cause.")] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain why the scores of A and B differ: points per cause, with example questions."""
    from jobs.explain.command import HowToExplain, explain
    from jobs.explain.sides import BenchmarkOptions

    where = BenchmarkOptions(benchmark, root, split)
    explain(first, second, HowToExplain(cell, other_cell, where, examples, json), Console())


def view(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run directories, or their URLs.  [default: the newest run in runs]",
            show_default=False,
            callback=lambda runs: [expanded_text(run) for run in runs or []],
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the viewer as static files into this directory and exit.",
            show_default=False,
            callback=expanded,
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            help="Directory or URL of the token caches.  [default: as recorded in the run, or "
            "next to it]",
            show_default=False,
            callback=expanded_text,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 for a free one.")
    ] = 0,
    pixels: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2_000_000,
            help="Area of a frame in pixels; 0 for an export without frames.  [default: 200000, "
            "for an export 60000]",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """View runs in a browser: all questions, and the tokens that each method keeps."""
    if (pixels is not None and 0 < pixels < 1_000) or (pixels == 0 and export is None):
        raise InputError(f"--pixels {pixels}: give 1000 or more, or 0 with --export")
    from jobs.viewer import command
    from pipeline.cache.folders import find_caches

    if cache is not None:
        find_caches(cache)  # refuses a directory that is not there
    places = [place(run) for run in runs or []] or [command.newest_run(Path(str(RUNS)))]
    console = Console(soft_wrap=True)
    if export is not None:
        leaves_behind(f"the export in {export} is incomplete; run the same command again")
        area = command.EXPORT_PIXELS if pixels is None else pixels
        page = command.export(places, export, console, cache=cache, pixels=area)
        console.print(f"viewer: {page}", markup=False, highlight=False)
        return
    leaves_behind("the viewer has stopped; the runs are unchanged")
    area = command.PIXELS if pixels is None else pixels
    command.view(places, console, cache=cache, port=port, pixels=area, opens=open_)
