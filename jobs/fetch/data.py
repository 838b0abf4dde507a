"""`tango data get`: a benchmark's files from the hub, unpacked and checked."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from jobs import exit_codes
from jobs.data_check.check import data_check
from jobs.fetch.archives import Archive
from jobs.fetch.asking import agreed
from jobs.fetch.downloads import fetch_all
from jobs.fetch.hub import Hub
from jobs.fetch.journal import FileJournal, one_at_a_time
from jobs.fetch.plan import Plan, free_bytes, make_plan, raise_if_no_room, sweep
from jobs.fetch.progress import Meter
from jobs.fetch.stream import Download
from jobs.fetch.unpack import unpack
from jobs.run.last_words import leaves_behind
from jobs.units import human_bytes
from pipeline.redaction import redacted
from tango_core.benchmarks import BENCHMARKS, benchmark_class, build_benchmark
from tango_core.benchmarks.releases import Release
from tango_core.hub_errors import page_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HowToGet:
    """What the command line says about a download.

    Attributes:
        only: Names of parts; none stands for those that are needed.
        repository: One of the benchmark's repositories; `None` for the usual one.
        revision: Branch, tag or commit; `None` for the release's own.
        jobs: Files at once.
        keep: Whether archives stay.
        yes: Start without a question.
        dry_run: Say what would be done, and do nothing.
        quiet: No bar and no notes.
    """

    only: tuple[str, ...] = ()
    repository: str | None = None
    revision: str | None = None
    jobs: int = 4
    keep: bool = False
    yes: bool = False
    dry_run: bool = False
    quiet: bool = False


def data_get(benchmark: str, root: Path, how: HowToGet, console: Console) -> int:
    """Fetch a benchmark, unpack it and check it.

    Args:
        benchmark: Its name.
        root: Folder that receives it, and `benchmark.root` afterwards.
        how: What the command line says.
        console: Where the table, the bar and the check go.

    Returns:
        Exit code: that of `data check`, where annotations and videos are here.

    Raises:
        ValueError: If there is no such benchmark, release or part.
        FetchError: If it cannot be fetched or unpacked.
    """
    leaves_behind("nothing was fetched")
    release = _release(benchmark, how)
    _raise_if_unknown_parts(release, how.only)
    root = root.expanduser().absolute()
    hub = Hub(release.repository, "dataset", how.revision or release.revision)
    plan = make_plan(hub, release, root, how.only, keep=how.keep, jobs=how.jobs)
    say: Callable[[str], None] = partial(
        console.print, markup=False, highlight=False, soft_wrap=True
    )
    for line in _statement(benchmark, plan, how):
        say(redacted(line))
    if plan.downloads:
        hub.raise_if_closed(plan.downloads[-1].file, plan.commit.sha)
    raise_if_no_room(plan)
    if how.dry_run:
        return exit_codes.OK
    if plan.is_done:
        say("all of it is here")
    elif agreed(f"Fetch {human_bytes(plan.missing)}?", console, yes=how.yes):
        _run(hub, plan, how, console, say)
    else:
        say("nothing was fetched")
        return exit_codes.OK
    return _end(benchmark, plan, console, say)


def _run(hub: Hub, plan: Plan, how: HowToGet, console: Console, say: Callable[[str], None]) -> None:
    """Fetch and unpack."""
    leaves_behind("what was fetched is kept, go on with: " + shlex.join(["tango", *sys.argv[1:]]))
    with one_at_a_time(plan.root):
        sweep(plan)
        files = FileJournal(plan.root)
        pending = _Pending(plan)

        def on_file(download: Download) -> Callable[[], object] | None:
            files.add(download.file, download.target)
            archive = pending.completed_by(download)
            return None if archive is None else partial(_unpack, hub, plan, archive, how)

        here = sum(each.here for each in plan.downloads)
        with Meter(console, plan.missing + here, here, quiet=how.quiet) as meter:
            fetch_all(
                hub,
                plan.commit.sha,
                plan.downloads,
                jobs=how.jobs,
                on_bytes=meter.add,
                on_file=on_file,
            )
            for archive in pending.here_already:
                _unpack(hub, plan, archive, how)
        say(f"fetched {human_bytes(meter.received)}, every file has the hub's checksum")


def _unpack(hub: Hub, plan: Plan, archive: Archive, how: HowToGet) -> None:
    count = unpack(plan.root, archive, keep=how.keep, stop=hub.stop)
    if not hub.stop.is_set():  # the line that says how to go on is the last one
        logger.info("%s: %d files unpacked", archive.name, count)


class _Pending:
    """Which archives wait for which pieces."""

    def __init__(self, plan: Plan) -> None:
        fetched = {each.file.path for each in plan.downloads}
        self._waits = {
            archive: {piece.path for piece in archive.pieces} & fetched for archive in plan.archives
        }
        self.here_already = [archive for archive, waits in self._waits.items() if not waits]

    def completed_by(self, download: Download) -> Archive | None:
        """The archive whose last piece this file is."""
        for archive, waits in self._waits.items():
            if download.file.path in waits:
                waits.remove(download.file.path)
                return None if waits else archive
        return None


def _end(benchmark: str, plan: Plan, console: Console, say: Callable[[str], None]) -> int:
    """Check what is here now."""
    needed = {part.part.name for part in plan.parts if part.part.needed}
    if "videos" in needed and all(plan.has(name) for name in needed):
        return data_check(benchmark, plan.root, None, 4, console)
    if not plan.has("annotations"):
        return exit_codes.OK
    opened = build_benchmark(benchmark, root=str(plan.root))
    questions = sum(len(item.questions) for item in opened.items())
    why = "were not asked for" if "videos" in needed else "are not on the hub, see the note above"
    say(f"{benchmark}: {questions:,} questions can be read; videos {why}")
    return exit_codes.OK


def _release(benchmark: str, how: HowToGet) -> Release:
    """The release that is meant."""
    releases = benchmark_class(benchmark).releases
    if not releases:
        having = [name for name in BENCHMARKS if benchmark_class(name).releases]
        raise ValueError(
            f"benchmark {benchmark!r} is not published on the hub, or nobody has stated where; "
            f"these are: {', '.join(having)}"
        )
    if how.repository is None:
        return releases[0]
    for release in releases:
        if release.repository == how.repository:
            return release
    known = ", ".join(release.repository for release in releases)
    raise ValueError(f"--repository {how.repository!r} is none of {benchmark}'s: {known}")


def _raise_if_unknown_parts(release: Release, only: Sequence[str]) -> None:
    for name in only:
        if release.part(name) is None:
            known = ", ".join(part.name for part in release.parts)
            raise ValueError(f"--only {name!r} is no part of {release.repository}: {known}")


def _statement(benchmark: str, plan: Plan, how: HowToGet) -> list[str]:
    """What is said before anything starts."""
    release, commit = plan.release, plan.commit
    page = page_of(release.repository, "dataset")
    at = how.revision or release.revision
    lines = [
        f"{benchmark}: {release.repository}, revision {at} ({commit.sha[:12]}), to {plan.root}",
        f"{'part':<12}  {'files':>6}  {'bytes':>8}  {'to fetch':>8}",
    ]
    for part in plan.parts:
        missing = human_bytes(part.missing) if part.wanted else f"not now: --only {part.part.name}"
        lines.append(
            f"{part.part.name:<12}  {len(part.files):>6,}  {human_bytes(part.size):>8}  "
            f"{missing:>8}"
        )
    licence = release.licence + (f"; the hub says: {commit.licence}" if commit.licence else "")
    lines.append(f"licence: {licence}; {page}")
    if commit.gated or release.gated:
        who = release.gated or "who asks for it"
        lines.append(f"access: for {who}" if commit.gated else "access: not gated today")
    else:
        lines.append("access: not gated")
    lines += [f"note: {note}" for note in release.notes]
    if plan.archives:
        kept = "archives stay" if how.keep else "archives are removed once they are unpacked"
        lines.append(f"archives to unpack: {len(plan.archives)}; {kept}")
    lines.append(
        f"disk: takes up to {human_bytes(plan.room)}, {human_bytes(free_bytes(plan.root))} are free"
    )
    return lines
