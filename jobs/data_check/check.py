"""Check every row and every file of a benchmark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, get_args

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.progress import track

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
    result = check(opened, jobs, console=console)
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
    timeout_s: float = TIMEOUT_S,
    console: Console | None = None,
) -> Check:
    """Check every row and every file of a benchmark.

    Each file is opened in a child process with a time and a memory limit, so a file that hangs or
    crashes its reader becomes a finding.

    Args:
        benchmark: An opened benchmark.
        jobs: Number of files checked in parallel.
        timeout_s: Time limit per file in seconds.
        console: Shows the progress; `None` for none.
    """
    result, withheld = Check(), dict[str, str]()  # path -> reason
    lengths: defaultdict[str, set[float]] = defaultdict(set)  # path -> annotated seconds
    with base.in_one_line(benchmark.name, type(benchmark)):
        items = map(printable.printable_item, benchmark.items())
        if isinstance(benchmark, annotated.AnnotatedBenchmark):
            records: list[annotated.Record] = []
            for entry in benchmark.entries():
                if isinstance(entry, base.Defect):
                    severity: Severity = "error" if entry.fatal else "note"
                    about = ("annotation", entry.where, "", "", None, None, entry.problem)
                    result.findings.append(Finding(severity, *about))
                    continue
                records.append(entry)
                if entry.length_s is not None:
                    lengths[entry.path].add(entry.length_s)
                if reason := benchmark.missing_reason(entry):
                    withheld[entry.path] = reason
            items = map(printable.printable_item, benchmark.clips(records))
        for item in items:
            result.files.setdefault(item.path, []).append(item)
    idle: SimpleQueue[Child] = SimpleQueue()

    def problems_of(path: str) -> list[Problem]:
        """Check one file in a child process; any exception about the file becomes a problem."""
        bounds = sorted({clip.clip for clip in result.files[path] if clip.clip is not None})
        given, child = (path, bounds, sorted(lengths[path])), idle.get()
        try:
            return child.call(check_file, *given, timeout_s=timeout_s, about=path, what="check")
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

    with ExitStack() as children, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            idle.put(children.enter_context(closing(Child(MEMORY_GIB))))
        found = zip(result.files, pool.map(problems_of, result.files), strict=True)
        shown = track(
            found,
            "checking files",
            total=len(result.files),
            console=console,
            transient=True,
            disable=console is None,
        )
        try:
            for path, problems in shown:
                for problem in problems:
                    result.findings += _findings(problem, result.files[path], withheld.get(path))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return result


def _findings(
    problem: Problem, clips: Sequence[types.VideoItem], withheld: str | None
) -> Iterator[Finding]:
    """Convert a problem of a file to findings about the clips it concerns."""
    if problem.kind == "missing" and withheld is not None:
        yield Finding.about("withheld", problem.kind, clips, withheld)
        return
    some = [[clip] for clip in clips if clip.clip == problem.clip]
    for own in [clips] if problem.clip is None else some:
        yield Finding.about(problem.severity, problem.kind, own, problem.detail)


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
