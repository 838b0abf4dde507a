"""`tango data check`: check every row and every file of a benchmark before running a job.

Every file is opened in a child process, because it may hang or crash its reader. Benchmarks report
defects of their own rows (`entries`, `defects`).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, get_args

from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

from jobs import exit_codes
from jobs.report.formatting import Table
from pipeline.runtime.child import Child, ChildStartError, CrashError
from tango_core import errors, printable, types
from tango_core.benchmarks import Benchmark, annotated, base, build_benchmark
from tango_core.video import FrameSpec, VideoDecodeError, decode, decode_frames, reader
from tango_core.video.index import read_index

TIMEOUT_S = 60.0
MEMORY_GIB = 4.0

Severity = Literal["error", "warning", "withheld", "note"]
Bounds = tuple[float, float]

_SHOWN_PER_KIND = 3
# The first and the last frame, small: enough to see that a file can be decoded at both ends.
_BOTH_ENDS = FrameSpec(num_frames=2, size=(16, 16))
# Annotated lengths are rounded, and copies of a video differ slightly in length. A larger
# difference means another video or only a part of it.
_LENGTH_SLACK_S = 2.0
_LENGTH_SLACK_SHARE = 0.05


class Problem(NamedTuple):
    """A problem of a file.

    Attributes:
        kind: Kind of problem; see `Finding`.
        detail: One-line description.
        clip: The affected clip; `None` for the whole file.
        severity: `"error"`: clips cannot be decoded; `"warning"`: clips can be decoded but probably
            show another video; `"note"`: clips can be decoded.
    """

    kind: str
    detail: str
    clip: Bounds | None = None
    severity: Severity = "error"


class Finding(NamedTuple):
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
        output: `.csv` file that receives every finding; `None` for none.
        jobs: Number of files checked in parallel.
        console: Receives the summary.
        split: `benchmark.split`.

    Returns:
        Exit code: 1 if any question about a clip that is not withheld will fail.

    Raises:
        ValueError: If a setting is wrong or an annotation file cannot be read at all.
        FileNotFoundError: If the root or the annotations are missing.
    """
    if output is not None and output.suffix != ".csv":
        raise errors.InputError(f"--output must end in .csv, got {str(output)!r}")
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
    if num_withheld := sum(one.severity == "withheld" for one in result.findings):
        console.print(
            "clips that are withheld will fail; "
            f"let a job accept them: --set max_failures={num_withheld}"
        )
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(Table(Finding._fields, result.findings).csv(), encoding="utf-8")
        console.print(f"{_count(len(result.findings), 'finding')} in {output}", soft_wrap=True)
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
        items = benchmark.items()
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
            items = benchmark.clips(records)
        for item in map(printable.printable_item, items):
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
        shown: dict[str, Any] = {"console": console, "transient": True, "disable": not console}
        try:
            for path, problems in track(found, "checking files", len(result.files), **shown):
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
    severity, detail = problem.severity, problem.detail
    if problem.kind == "missing" and withheld is not None:
        severity, detail = "withheld", withheld
    some = [[clip] for clip in clips if clip.clip == problem.clip]
    for own in [clips] if problem.clip is None else some:
        ids = " ".join(question.id for clip in own for question in clip.questions)
        start, end = (own[0].clip if len(own) == 1 else None) or (None, None)
        about = own[0].path, own[0].video_id, ids, start, end
        yield Finding(severity, problem.kind, *about, detail)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print the number of findings of every kind, and the first few."""
    kinds = {(get_args(Severity).index(one.severity), one.severity, one.kind) for one in findings}
    for _, *kind in sorted(kinds):
        same = [one for one in findings if [one.severity, one.kind] == kind]
        more = len(same) - _SHOWN_PER_KIND
        lines = [f"{': '.join(kind)}: {len(same):,}"]
        lines += [f"  {one.path}: {one.detail}" for one in same[:_SHOWN_PER_KIND]]
        lines += [f"  and {more:,} more"] if more > 0 else []
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def check_file(path: str, clips: Sequence[Bounds], lengths_s: Sequence[float]) -> list[Problem]:
    """Open a file, decode its first and last frame, and compare its length with the annotations.

    Args:
        path: A video file or a folder of images.
        clips: (start, end) in seconds of every clip with questions.
        lengths_s: Annotated lengths in seconds; ignored for a folder, whose length depends on an
            unknown frame rate.

    Returns:
        All problems; empty for an intact file.
    """
    if not os.path.exists(path):
        is_link = os.path.islink(path)
        target = f"link to {os.readlink(path)}, which does not exist" if is_link else "no such file"
        return [Problem("missing", target)]
    try:
        if os.path.isdir(path):
            return _check_folder(path, clips)
        return _check_video(path, clips, lengths_s)
    except VideoDecodeError as error:
        return [Problem("unreadable", str(error).removeprefix(f"{path}: "))]
    except OSError as error:
        return [Problem("unreadable", error.strerror or str(error))]


def _check_video(path: str, clips: Sequence[Bounds], lengths_s: Sequence[float]) -> list[Problem]:
    """Read all packets, then decode the first and the last frame."""
    index = read_index(path)
    problems = []
    length_s = index.duration_s or 0.0
    if index.trusted and len(index.shown):
        frames_end = max(index.end_s, float(index.times[-1]))
        if length_s - frames_end > max(decode.LOSS_SLACK_S, decode.LOSS_SLACK_SHARE * length_s):
            detail = f"frames end at {frames_end:.2f} s of {length_s:.2f} s"
            problems.append(Problem("truncated", detail))
        length_s = max(length_s, frames_end)
    if index.problem:
        problems.append(Problem("truncated", index.problem))
    if not problems:
        damage = decode_frames(path, _BOTH_ENDS).damage
        problems += [Problem("damaged", reason) for reason in damage]
    if not length_s:
        return problems
    # MLVU's rows about one file have lengths up to 0.02 s apart; report only one of them.
    stated = max(lengths_s, key=lambda stated: abs(length_s - stated), default=length_s)
    if abs(length_s - stated) > max(_LENGTH_SLACK_S, _LENGTH_SLACK_SHARE * stated):
        detail = f"lasts {length_s:.2f} s but should last {stated:.2f} s; is it the right video?"
        problems.append(Problem("length", detail, severity="warning"))
    return problems + _check_bounds(clips, length_s)


def _check_folder(path: str, clips: Sequence[Bounds]) -> list[Problem]:
    """Open every image, without decoding it."""
    images = reader.list_images(Path(path))
    if not images:
        return [Problem("unreadable", "the folder holds no images")]
    problems = []
    for image_path in images:
        try:
            with Image.open(image_path):
                pass
        except (UnidentifiedImageError, OSError) as error:
            reason = str(error).splitlines()[0].removesuffix(f" {str(image_path)!r}")
            problems.append(Problem("unreadable", f"{image_path.name}: {reason}"))
    return problems + _check_bounds(clips, len(images) / _BOTH_ENDS.folder_fps)


def _check_bounds(clips: Sequence[Bounds], length_s: float) -> list[Problem]:
    """Report clips that begin after the file's end (they fail) or end after it (cut short)."""
    problems = []
    slack = max(decode.LOSS_SLACK_S, decode.LOSS_SLACK_SHARE * length_s)
    for clip in clips:
        start, end = clip
        if start > length_s:
            detail = f"starts at {start:g} s but the video ends at {length_s:.2f} s"
            problems.append(Problem("bounds", detail, clip))
        elif end > length_s + slack:
            detail = f"ends at {end:g} s but the video at {length_s:.2f} s; it is cut short"
            problems.append(Problem("bounds", detail, clip, severity="note"))
    return problems
