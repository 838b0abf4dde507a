"""Commands about existing results: `report`, `explain`, `view`, `export`, `import`, `log-run`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console

from jobs.cli import options as shared
from jobs.cli.options import Details, app, command
from jobs.run.interrupt_message import leaves_behind
from jobs.run.locations import raise_if_unusable
from pipeline.redaction import redacted
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import place
from tango_core.errors import InputError

Run = Annotated[str, Details(help="Run directory, or its URL.", callback=shared.expanded)]
Format = Annotated[
    Literal["vlmevalkit", "lmms_eval"], Details(help="Harness whose file format is used.")
]
_RESULT = "Run directory, its URL, a file of VLMEvalKit or lmms-eval, or `published`."


@command(app)
def report(
    runs: shared.Locations,
    *,
    output: shared.OptionalLocation = None,
    published: bool = False,
    baseline: shared.Baselines = [],
    confusion: str | None = None,
    on: shared.On = "common",
) -> None:
    """Write tables, plots and a page for one or several runs.

    Args:
        runs: Run directories, or their URLs.
        output: Directory or URL to write to.  [default: RUN, if there is only one]
        published: Also show the published numbers of the papers.
        confusion: Write confusion tables for each value of this question group, e.g. type.
    """
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
            folders, into, published=published, baselines=baseline, confusion=confusion, on=on
        )
        table = (page.parent / "paper_table.md").read_text(encoding="utf-8")
    print(f"{table}\nreport: {(target or places[0]) / page.name}")


@command(app)
def export(
    run: Run,
    *,
    format_: Literal["vlmevalkit", "lmms_eval", "hub"],
    output: Path | None = None,
    repository: str | None = None,
) -> None:
    """Write a run's answers in the files of a harness or the hub.

    Args:
        format_: Harness whose file format is used; hub for a data set with its card, and scores
            for the model's repository (.eval_results).
        output: Directory to write to.  [default: RUN/export/FORMAT]
        repository: With --format hub: id of the future data set; the scores refer to it.
    """
    where = place(run)
    if output is not None:
        raise_if_unusable(output)
    with local_copy(where) as folder:
        if format_ == "hub":
            from jobs.runs.hub import export_to_hub

            paths = export_to_hub(folder, output, repository)
        else:
            from jobs.harness.exchange import export_run

            paths = export_run(folder, format_, output)
        for path in paths:
            print(where / str(path.relative_to(folder)) if path.is_relative_to(folder) else path)


@command(app, "import")
def import_(
    files: Annotated[list[Path], Details(exists=True)],
    *,
    format_: Format,
    benchmark: str,
    root: shared.OptionalLocation = None,
    split: str = "test",
    protocol: str | None = None,
    subtitles: bool = False,
    model: str | None = None,
    method: str | None = None,
    retention: float | None = None,
    num_frames: shared.OptionalPositive = None,
    partial: bool = False,
    output: str = shared.RUNS,
) -> None:
    """Create a run from answer files of VLMEvalKit or lmms-eval.

    Args:
        files: Prediction file (VLMEvalKit) or samples files (lmms-eval).
        benchmark: Name of the benchmark.
        root: Directory of the benchmark's files.
        split: Split of the benchmark.
        protocol: Protocol that scores the replies.  [default: FORMAT]
        subtitles: The prompts contained subtitles.
        model: Model that answered.  [default: from the files' names]
        method: Name of the method; full for the baseline.  [default: MODEL]
        retention: Retention setting of the method.  [default: 1]
        num_frames: Frames per clip.  [default: unknown]
        partial: Skip questions without a reply in the files.
        output: Directory or URL that receives the run.
    """
    where = place(output)
    from jobs.config.sections import BenchmarkSection
    from jobs.harness.exchange import ImportSettings, import_answers
    from jobs.report.tables.cells import render_table

    section = BenchmarkSection(
        benchmark, root, split, protocol=protocol or format_, subtitles=subtitles
    )
    about = ImportSettings(section, model, method, retention, num_frames, partial)
    with local_copy(where, lambda name: False) as folder:
        run_dir, summary = import_answers(files, format_, about, folder)
    print(render_table(summary.cells))
    print(f"run: {where / run_dir.name}")


@command(app)
def log_run(run: Run, *, tracking_uri: str | None = None) -> None:
    """Upload a run to MLflow after the server was unavailable.

    Args:
        tracking_uri: MLflow server or store.  [default: sqlite beside RUN]
    """
    from jobs.tracking.runs import default_tracking_uri, log_run

    where = place(run)
    uri = tracking_uri or default_tracking_uri(where.parent)
    with local_copy(where, sent=lambda name: False) as folder:
        log_run(folder, uri)
    print(f"logged to {redacted(uri)}")


@command(app)
def explain(
    first: Annotated[str, Details(metavar="A", help=_RESULT, callback=shared.expanded)],
    second: Annotated[str, Details(metavar="B", help=_RESULT, callback=shared.expanded)],
    *,
    cell: str | None = None,
    other_cell: str | None = None,
    benchmark: str | None = None,
    root: shared.OptionalLocation = None,
    split: str | None = None,
    examples: shared.Number = 10,
    json: shared.Json = False,
) -> None:
    """Explain why the scores of A and B differ, per cause.

    Args:
        cell: Cell to compare, e.g. "tango r=0.1"; only that of A with --other-cell.  [default:
            all common cells]
        other_cell: Cell of B.  [default: CELL]
        benchmark: Benchmark of a harness file.  [default: from the other run's recipe]
        root: Directory of that benchmark's files.  [default: from the other run's recipe]
        split: Split of that benchmark.  [default: from the other run's recipe]
        examples: Examples of each cause.
    """
    from json import dumps

    from jobs.explain.command import explanations, overview, render

    cells = {"cell": cell, "other_cell": other_cell}
    files = {"benchmark": benchmark, "root": root, "split": split}
    found = explanations(first, second, examples=examples, **cells, **files)
    if json:
        print(dumps([one.to_json() for one in found], indent=2))
    else:
        print(render(found[0]) if len(found) == 1 else overview(found))


@command(app)
def view(
    runs: shared.Locations = [],
    *,
    export: Path | None = None,
    cache: shared.OptionalLocation = None,
    port: Annotated[int, Details(min=0, max=65535)] = 0,
    pixels: Annotated[int | None, Details(min=0, max=2_000_000)] = None,
    open_: bool = False,
) -> None:
    """View runs in a browser, with the tokens that methods keep.

    Args:
        runs: Run directories, or their URLs.  [default: the newest run in runs]
        export: Write the viewer as static files into this directory and exit.
        cache: Directory or URL of the token caches.  [default: as recorded in the run, or next to
            it]
        port: Port of 127.0.0.1; 0 for a free one.
        pixels: Area of a frame in pixels; 0 for an export without frames.  [default: 200000, for
            an export 60000]
        open_: Open the page in a browser.
    """
    if (pixels is not None and 0 < pixels < 1_000) or (pixels == 0 and export is None):
        raise InputError(f"--pixels {pixels}: give 1000 or more, or 0 with --export")
    from jobs.viewer import command as viewer

    if cache is not None:
        from pipeline.cache.folders import find_caches

        find_caches(cache)  # refuses a directory that is not there
    places = [place(run) for run in runs] or [viewer.newest_run(Path(shared.RUNS))]
    console = Console(soft_wrap=True)
    default = viewer.PIXELS if export is None else viewer.EXPORT_PIXELS
    area = default if pixels is None else pixels
    if export is None:
        leaves_behind("the viewer has stopped; the runs are unchanged")
        viewer.view(places, console, cache=cache, port=port, pixels=area, opens=open_)
    else:
        leaves_behind(f"the export in {export} is incomplete; run the same command again")
        print(f"viewer: {viewer.export(places, export, console, cache=cache, pixels=area)}")
