"""Check every row and every file of a benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from jobs import exit_codes
from jobs.data_check.media import Problem, check_file
from jobs.report.formatting import Table
from pipeline.runtime.child import Child, ChildStartError, CrashError
from tango_core.benchmarks import Benchmark, build_benchmark
from tango_core.benchmarks.annotated import AnnotatedBenchmark
from tango_core.benchmarks.base import Defect, in_one_line
from tango_core.errors import InputError
from tango_core.printable import printable_item
from tango_core.types import VideoItem

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


@dataclass(frozen=True)
class Check:
    """Counts and findings of a check.

    Attributes:
        num_questions: Number of readable questions.
        num_clips: Number of their clips.
        num_files: Number of files and folders of frames that contain these clips.
        findings: Findings about rows, then about files, in the order of the annotations.
    """

    num_questions: int
    num_clips: int
    num_files: int
    findings: tuple[Finding, ...]

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
        raise InputError(f"output must end in {' or '.join(SUFFIXES)}, got {str(output)!r}")
    if jobs < 1:
        raise InputError(f"jobs must be 1 or larger, got {jobs}")
    opened = build_benchmark(benchmark, root=str(root) if root is not None else None, split=split)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("checking files", total=None)
        result = check(
            opened, jobs, lambda done, total: progress.update(task, completed=done, total=total)
        )
    if output is not None:
        write_findings(result.findings, output)
    _report(result, opened, split, output, console)
    return exit_codes.of(result.is_complete)


def check(
    benchmark: Benchmark,
    jobs: int = 4,
    on_progress: Callable[[int, int], object] | None = None,
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
    with in_one_line(benchmark.name, type(benchmark)):
        contents = _read(benchmark)
    items, lengths = contents.items, contents.lengths
    files: dict[str, list[VideoItem]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    findings = list(contents.findings)
    idle: SimpleQueue[Child] = SimpleQueue()
    with ExitStack() as children, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            idle.put(children.enter_context(closing(Child(MEMORY_GIB))))
        futures = [
            pool.submit(
                _check_in_child, idle, timeout_s, path, clips, sorted(lengths.get(path, ()))
            )
            for path, clips in files.items()
        ]
        try:
            for done, (future, clips) in enumerate(zip(futures, files.values(), strict=True), 1):
                for problem in future.result():
                    findings += _findings(problem, clips, contents.withheld)
                if on_progress is not None:
                    on_progress(done, len(files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    num_questions = sum(len(item.questions) for item in items)
    return Check(num_questions, len(items), len(files), tuple(findings))


def _check_in_child(
    idle: SimpleQueue[Child],
    timeout_s: float,
    path: str,
    items: Sequence[VideoItem],
    lengths_s: Sequence[float],
) -> list[Problem]:
    """Check one file in an idle child process; any exception becomes a problem."""
    child = idle.get()
    clips = sorted({item.clip for item in items if item.clip is not None})
    limits: dict[str, Any] = {"timeout_s": timeout_s, "about": path, "what": "check"}
    try:
        return child.call(check_file, path, clips, lengths_s, **limits)
    except ChildStartError:
        raise
    except TimeoutError:
        return [Problem("timeout", f"not opened within {timeout_s:g} s")]
    except (CrashError, MemoryError) as error:
        return [Problem("crash", str(error).removeprefix(f"{path}: "))]
    except Exception as error:  # an error here is a finding about the file
        return [Problem("unreadable", " ".join(f"{type(error).__name__}: {error}".split()))]
    finally:
        idle.put(child)


@dataclass(frozen=True)
class _Contents:
    """Clips and findings in the rows of a benchmark."""

    findings: list[Finding]
    items: list[VideoItem]
    withheld: dict[str, str] = field(default_factory=dict)  # reason by path
    lengths: dict[str, set[float]] = field(default_factory=dict)  # stated seconds by path


def _read(benchmark: Benchmark) -> _Contents:
    """Read all rows."""
    if not isinstance(benchmark, AnnotatedBenchmark):
        own = [_about_rows(defect) for defect in benchmark.defects()]
        return _Contents(own, list(map(printable_item, benchmark.items())))
    findings: list[Finding] = []
    clips: dict[tuple[str, tuple[float, float] | None], VideoItem] = {}
    withheld: dict[str, str] = {}
    lengths: dict[str, set[float]] = {}
    for entry in benchmark.entries():
        if isinstance(entry, Defect):
            findings.append(_about_rows(entry))
            continue
        key = (entry.path, entry.clip)
        known = clips.get(key)
        clips[key] = VideoItem(
            video_id=known.video_id if known else entry.video_id,
            path=entry.path,
            clip=entry.clip,
            questions=(*(known.questions if known else ()), entry.question),
        )
        if entry.length_s is not None:
            lengths.setdefault(entry.path, set()).add(entry.length_s)
        reason = benchmark.missing_reason(entry)
        if reason is not None:
            withheld[entry.path] = reason
        one = VideoItem(entry.video_id, entry.path, entry.clip, (entry.question,))
        findings += [_finding("note", "annotation", one, [one], note) for note in entry.notes]
    return _Contents(findings, list(clips.values()), withheld, lengths)


def _about_rows(defect: Defect) -> Finding:
    """Turn a defect of the annotations into a finding."""
    severity: Severity = "error" if defect.fatal else "note"
    return Finding(severity, "annotation", defect.where, "", "", None, None, defect.problem)


def _findings(
    problem: Problem, items: Sequence[VideoItem], withheld: dict[str, str]
) -> Iterator[Finding]:
    """Turn a problem of a file into findings about the clips it concerns."""
    concerned = [item for item in items if problem.clip in (None, item.clip)]
    reason = withheld.get(items[0].path) if problem.kind == "missing" else None
    if reason is not None:
        yield _finding("withheld", problem.kind, items[0], concerned, reason)
        return
    if problem.clip is None:
        yield _finding(problem.severity, problem.kind, items[0], concerned, problem.detail)
        return
    for item in concerned:
        yield _finding(problem.severity, problem.kind, item, [item], problem.detail)


def _finding(
    severity: Severity, kind: str, item: VideoItem, concerned: Sequence[VideoItem], detail: str
) -> Finding:
    """Describe a problem of one clip, or of a file with all clips in it."""
    one = concerned[0] if len(concerned) == 1 else None
    clip = one.clip if one is not None else None
    ids = " ".join(question.id for each in concerned for question in each.questions)
    name = one.video_id if one is not None else item.video_id
    start, end = clip if clip is not None else (None, None)
    return Finding(severity, kind, item.path, name, ids, start, end, detail)


def _report(
    result: Check, benchmark: Benchmark, split: str, output: Path | None, console: Console
) -> None:
    """Print counts, the first findings of every kind, and what to do next."""
    console.print(
        f"{benchmark.name}: {_count(result.num_questions, 'question')}, "
        f"{_count(result.num_clips, 'clip')}, {_count(result.num_files, 'file')}"
    )
    expected = benchmark.splits.get(split)
    if expected is not None and expected != result.num_questions:
        console.print(f"note: the complete public release has {expected:,} questions")
    print_findings(result.findings, console)
    num_withheld = sum(f.severity == "withheld" for f in result.findings)
    if num_withheld:
        console.print(
            "clips that are withheld will fail; "
            f"let a job accept them: --set max_failures={num_withheld}"
        )
    if output is not None:
        console.print(f"{_count(len(result.findings), 'finding')} in {output}", soft_wrap=True)
    elif result.findings:
        console.print("all findings as a table: --output findings.csv")
    if result.is_complete:
        console.print("complete")


def _count(number: int, noun: str) -> str:
    """Format a number with a noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_findings(findings: Sequence[Finding], path: Path) -> None:
    """Write findings as CSV or, by suffix, as Parquet; the folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in fields(Finding)]
    rows = [astuple(finding) for finding in findings]
    if path.suffix == ".parquet":
        types = [pa.float64() if name.startswith("clip_") else pa.string() for name in names]
        columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(types)]
        pq.write_table(pa.table(columns, names=names), path)
        return
    path.write_text(Table(names, rows).csv(), encoding="utf-8")


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print the number of findings of every kind, and the first few."""
    kinds = Counter((finding.severity, finding.kind) for finding in findings)
    for severity in get_args(Severity):
        for kind, count in sorted((k, n) for (s, k), n in kinds.items() if s == severity):
            console.print(f"{severity}: {kind}: {count:,}")
            same = [f for f in findings if (f.severity, f.kind) == (severity, kind)]
            for finding in same[:_SHOWN_PER_KIND]:
                line = f"  {finding.path}: {finding.detail}"
                console.print(escape(line), highlight=False, soft_wrap=True)
            if count > _SHOWN_PER_KIND:
                console.print(f"  and {count - _SHOWN_PER_KIND:,} more")
