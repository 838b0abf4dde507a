"""Check every row and every file of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, get_args

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from jobs import exit_codes
from jobs.data_check.media import Problem, check_file
from jobs.report.formatting import Table
from pipeline.runtime.child import Child, ChildStartError, CrashError
from tango_core import errors, printable, types
from tango_core.benchmarks import Benchmark, annotated, base, build_benchmark

TIMEOUT_S = 60.0
MEMORY_GIB = 4.0

Severity = Literal["error", "warning", "withheld", "note"]
SUFFIXES = (".csv", ".parquet")

_SHOWN_PER_KIND = 3


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        severity: `"error"`: questions that will fail; `"warning"`: questions that probably have the
            wrong video; `"withheld"`: files that are not published; `"note"`: further information.
        kind: `annotation`, `missing`, `unreadable`, `truncated`, `damaged`, `length`, `bounds`,
            `timeout` or `crash`.
        path: The video, or the annotation file and row.
        video_id: The clip; "" for a row that is not a question.
        question_ids: The clip's questions, separated by spaces.
        clip_start: Start in seconds; `None` for the whole file.
        clip_end: End in seconds; `None` for the whole file.
        detail: One-line description.
    """

    severity: Severity
    kind: str
    path: str
    video_id: str
    question_ids: str
    clip_start: float | None
    clip_end: float | None
    detail: str

    @classmethod
    def about(
        cls, severity: Severity, kind: str, clips: Sequence[types.VideoItem], detail: str
    ) -> Finding:
        """A problem of one clip, or of a file with several clips in it."""
        ids = " ".join(question.id for clip in clips for question in clip.questions)
        first = clips[0]
        start, end = (first.clip if len(clips) == 1 else None) or (None, None)
        return cls(severity, kind, first.path, first.video_id, ids, start, end, detail)


@dataclass
class Check:
    """Counts and findings of a check.

    Attributes:
        files: Path of every file and folder of frames -> its clips with readable questions.
        findings: Findings about rows, then about files, in the order of the annotations.
    """

    files: dict[str, list[types.VideoItem]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def num_clips(self) -> int:
        """Number of clips with readable questions."""
        return sum(map(len, self.files.values()))

    @property
    def num_questions(self) -> int:
        """Number of readable questions."""
        return sum(len(clip.questions) for clips in self.files.values() for clip in clips)

    @property
    def is_complete(self) -> bool:
        """Whether all questions can be asked, except those about withheld clips."""
        return all(finding.severity != "error" for finding in self.findings)


def data_check(
    benchmark: str,
    root: Path | None,
    output: Path | None,
    jobs: int,
    console: Console,
    split: str = "test",
) -> int:
    """Check a benchmark and report to the terminal and optionally to a file.

    Args:
        benchmark: Entry of `BENCHMARKS`.
        root: `benchmark.root`.
        output: `.csv` or `.parquet` file that receives every finding; `None` for none.
        jobs: Number of files checked in parallel.
        console: Receives the summary.
        split: `benchmark.split`.

    Returns:
        Exit code: 1 if any question about a clip that is not withheld will fail.

    Raises:
        ValueError: If a setting is wrong or an annotation file cannot be read at all.
        FileNotFoundError: If the root or the annotations are missing.
    """
    if output is not None and output.suffix not in SUFFIXES:
        raise errors.InputError(f"output must end in {' or '.join(SUFFIXES)}, got {str(output)!r}")
    if jobs < 1:
        raise errors.InputError(f"jobs must be 1 or larger, got {jobs}")
    opened = build_benchmark(benchmark, root=str(root) if root is not None else None, split=split)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("checking files", total=None)
        result = check(
            opened, jobs, lambda done, total: progress.update(task, completed=done, total=total)
        )
    console.print(
        f"{opened.name}: {_count(result.num_questions, 'question')}, "
        f"{_count(result.num_clips, 'clip')}, {_count(len(result.files), 'file')}"
    )
    expected = opened.splits.get(split)
    if expected is not None and expected != result.num_questions:
        console.print(f"note: the complete public release has {expected:,} questions")
    print_findings(result.findings, console)
    num_withheld = sum(one.severity == "withheld" for one in result.findings)
    if num_withheld:
        console.print(
            "clips that are withheld will fail; "
            f"let a job accept them: --set max_failures={num_withheld}"
        )
    if output is not None:
        write_findings(result.findings, output)
        console.print(f"{_count(len(result.findings), 'finding')} in {output}", soft_wrap=True)
    elif result.findings:
        console.print("all findings as a table: --output findings.csv")
    if result.is_complete:
        console.print("complete")
    return exit_codes.of(result.is_complete)


def check(
    benchmark: Benchmark,
    jobs: int = 4,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
    timeout_s: float = TIMEOUT_S,
) -> Check:
    """Check every row and every file of a benchmark.

    Each file is opened in a child process with a time and a memory limit, so a file that hangs or
    crashes its reader becomes a finding.

    Args:
        benchmark: An opened benchmark.
        jobs: Number of files checked in parallel.
        on_progress: Called with (files done, total files).
        timeout_s: Time limit per file in seconds.
    """
    result = Check()
    withheld: dict[str, str] = {}  # reason by path
    lengths: dict[str, set[float]] = {}  # annotated seconds by path
    with base.in_one_line(benchmark.name, type(benchmark)):
        if isinstance(benchmark, annotated.AnnotatedBenchmark):
            items = _read_rows(benchmark, result, withheld, lengths)
        else:
            items = map(printable.printable_item, benchmark.items())
        for item in items:
            result.files.setdefault(item.path, []).append(item)
    idle: SimpleQueue[Child] = SimpleQueue()

    def checked(path: str) -> list[Problem]:
        child = idle.get()
        try:
            return _check_in_child(
                child, path, result.files[path], sorted(lengths.get(path, ())), timeout_s
            )
        finally:
            idle.put(child)

    with ExitStack() as children, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            idle.put(children.enter_context(closing(Child(MEMORY_GIB))))
        found = pool.map(checked, result.files)
        try:
            for done, (problems, clips) in enumerate(zip(found, result.files.values()), 1):  # noqa: B905  (a map's result has no length)
                for problem in problems:
                    result.findings += _findings(problem, clips, withheld)
                on_progress(done, len(result.files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return result


def _check_in_child(
    child: Child,
    path: str,
    clips: Sequence[types.VideoItem],
    lengths_s: Sequence[float],
    timeout_s: float,
) -> list[Problem]:
    """Check one file in a child process; any exception about the file becomes a problem."""
    bounds = sorted({clip.clip for clip in clips if clip.clip is not None})
    try:
        return child.call(
            check_file, path, bounds, lengths_s, timeout_s=timeout_s, about=path, what="check"
        )
    except ChildStartError:
        raise
    except TimeoutError:
        return [Problem("timeout", f"not opened within {timeout_s:g} s")]
    except (CrashError, MemoryError) as error:
        return [Problem("crash", str(error).removeprefix(f"{path}: "))]
    except Exception as error:  # an error here is a finding about the file
        return [Problem("unreadable", " ".join(f"{type(error).__name__}: {error}".split()))]


def _read_rows(
    benchmark: annotated.AnnotatedBenchmark,
    result: Check,
    withheld: dict[str, str],
    lengths: dict[str, set[float]],
) -> Iterator[types.VideoItem]:
    """Read all rows of a benchmark with annotation files; yield its clips."""
    records: list[annotated.Record] = []
    for entry in benchmark.entries():
        if isinstance(entry, base.Defect):
            result.findings.append(_about_row(entry))
            continue
        records.append(entry)
        if entry.length_s is not None:
            lengths.setdefault(entry.path, set()).add(entry.length_s)
        if (reason := benchmark.missing_reason(entry)) is not None:
            withheld[entry.path] = reason
    yield from benchmark.clips(records)


def _about_row(defect: base.Defect) -> Finding:
    """Convert a defect of the annotations to a finding."""
    severity: Severity = "error" if defect.fatal else "note"
    return Finding(severity, "annotation", defect.where, "", "", None, None, defect.problem)


def _findings(
    problem: Problem, clips: Sequence[types.VideoItem], withheld: dict[str, str]
) -> Iterator[Finding]:
    """Convert a problem of a file to findings about the clips it concerns."""
    reason = withheld.get(clips[0].path) if problem.kind == "missing" else None
    if reason is not None:
        yield Finding.about("withheld", problem.kind, clips, reason)
    elif problem.clip is None:
        yield Finding.about(problem.severity, problem.kind, clips, problem.detail)
    else:
        for clip in clips:
            if clip.clip == problem.clip:
                yield Finding.about(problem.severity, problem.kind, [clip], problem.detail)


def _count(number: int, noun: str) -> str:
    """Format a number with a noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_findings(findings: Sequence[Finding], path: Path) -> None:
    """Write findings as CSV or, by suffix, as Parquet; the folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(Finding.__dataclass_fields__)
    frame = pd.DataFrame(map(asdict, findings), columns=columns)
    if path.suffix == ".parquet":
        numbers = {name: float if name.startswith("clip_") else str for name in columns}
        frame.astype(numbers).to_parquet(path, index=False)
        return
    rows = [list(asdict(finding).values()) for finding in findings]
    path.write_text(Table(columns, rows).csv(), encoding="utf-8")


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print the number of findings of every kind, and the first few."""
    severities = get_args(Severity)
    by_kind: dict[tuple[int, str], list[Finding]] = {}
    for one in findings:
        by_kind.setdefault((severities.index(one.severity), one.kind), []).append(one)
    for (severity, kind), same in sorted(by_kind.items()):
        console.print(f"{severities[severity]}: {kind}: {len(same):,}")
        for finding in same[:_SHOWN_PER_KIND]:
            line = f"  {finding.path}: {finding.detail}"
            console.print(escape(line), highlight=False, soft_wrap=True)
        if len(same) > _SHOWN_PER_KIND:
            console.print(f"  and {len(same) - _SHOWN_PER_KIND:,} more")
