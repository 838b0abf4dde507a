"""`tango data get`: download a benchmark's files from the hub, unpack and check them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from rich.console import Console

from jobs import exit_codes
from jobs.data_check.check import data_check
from jobs.fetch.download import (
    Download,
    Folder,
    Options,
    fetch_files,
    free_bytes,
    total_missing,
)
from jobs.fetch.hub import FetchError, RemoteFile, Repository
from jobs.fetch.unpack import Archive, Unpacked, archives_among, unpack
from jobs.run.interrupt_message import leaves_behind
from jobs.units import human_bytes
from pipeline.redaction import redacted
from tango_core.benchmarks import BENCHMARKS, benchmark_class, build_benchmark
from tango_core.benchmarks.releases import Release, ReleasePart, archive_of
from tango_core.errors import InputError
from tango_core.hub_errors import page_of

logger = logging.getLogger(__name__)

# Folders, records and the ends of blocks.
_SPARE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class PartPlan:
    """One part of a release.

    Attributes:
        part: The part.
        files: All files of the part on the hub.
        wanted: Whether the part was requested.
        missing: Number of bytes that remain to be downloaded.
    """

    part: ReleasePart
    files: Sequence[RemoteFile]
    wanted: bool
    missing: int


@dataclass(frozen=True)
class Plan:
    """Files to fetch and archives to unpack of a release.

    Attributes:
        release: The release.
        repository: Its repository at one commit.
        folder: Target directory.
        parts: Parts in the order of the release.
        downloads: Files to download, the small ones first.
        archives: Archives to unpack, whose pieces are on the disk or among the downloads.
        keep: Whether to keep archives after unpacking.
        room: Number of free bytes that the disk must have.
    """

    release: Release
    repository: Repository
    folder: Folder
    parts: Sequence[PartPlan]
    downloads: Sequence[Download]
    archives: Sequence[Archive]
    keep: bool
    room: int

    @property
    def root(self) -> Path:
        """The folder's path."""
        return self.folder.root

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not self.downloads and not self.archives

    def has(self, name: str) -> bool:
        """Whether a part will be here when the plan is done."""
        return any(part.part.name == name and part.wanted for part in self.parts)


def data_get(
    benchmark: str,
    root: Path,
    console: Console,
    *,
    only: Sequence[str] = (),
    repository: str | None = None,
    revision: str | None = None,
    keep: bool = False,
    **options: Unpack[Options],
) -> int:
    """Fetch a benchmark, unpack it and check it.

    Args:
        benchmark: Its name.
        root: Folder that receives it, and `benchmark.root` afterwards.
        console: Where the table, the bars and the check go.
        only: Names of parts; none stands for those that are needed.
        repository: One of the benchmark's repositories; `None` for the usual one.
        revision: Branch, tag or commit; `None` for the release's own.
        keep: Whether archives stay.
        options: Options that both commands have.

    Returns:
        Exit code: that of `data check`, where annotations and videos are here.

    Raises:
        ValueError: If there is no such benchmark, release or part.
        FetchError: If it cannot be fetched or unpacked.
    """
    leaves_behind("nothing was fetched")
    release = _release(benchmark, repository)
    for name in only:
        if release.part(name) is None:
            known = ", ".join(part.name for part in release.parts)
            raise InputError(f"--only {name!r} is no part of {release.repository}: {known}")
    hub = Repository(release.repository, "dataset", revision or release.revision)
    plan = make_plan(
        hub, release, root.expanduser().absolute(), only, keep=keep, jobs=options.get("jobs", 4)
    )
    show: Callable[[str], None] = partial(
        console.print, markup=False, highlight=False, soft_wrap=True
    )
    for line in _statement(benchmark, plan):
        show(redacted(line))
    if plan.is_done:
        if options.get("dry_run"):
            return exit_codes.OK
        show("all of it is here")
    else:
        coming = {each.file.path for each in plan.downloads}
        if not fetch_files(
            hub,
            plan.downloads,
            plan.root,
            console,
            room=plan.room,
            on_start=lambda: _start(plan, coming),
            on_file=lambda each: _unpack_complete(plan, coming, each),
            **options,
        ):
            return exit_codes.OK
    return _check(benchmark, plan, console, show)


def _start(plan: Plan, coming: set[str]) -> None:
    """Remove partial files of outdated versions; unpack archives that are already complete."""
    digests = {file.digest for part in plan.parts for file in part.files}
    for path in plan.downloads[0].partial.parent.glob("*") if plan.downloads else ():
        if path.name.partition("-")[0] not in digests:
            path.unlink()
    _unpack_complete(plan, coming)


def _unpack_complete(plan: Plan, coming: set[str], download: Download | None = None) -> None:
    """Unpack the archive whose last piece has come; without a download all whose pieces are here.

    Args:
        plan: Of the release.
        coming: Paths of the files that are not here yet; the download's is removed.
        download: A file that has come.
    """
    if download is not None:
        plan.folder.add(download.file, download.target)
        coming.remove(download.file.path)
    for archive in plan.archives:
        paths = {piece.path for piece in archive.pieces}
        if not paths & coming and (download is None or download.file.path in paths):
            count = unpack(plan.root, archive, keep=plan.keep)
            logger.info("%s: %d files unpacked", archive.name, count)


def make_plan(
    hub: Repository, release: Release, root: Path, only: Sequence[str], *, keep: bool, jobs: int
) -> Plan:
    """Compare the files on the hub with those in the target directory.

    Args:
        hub: The release's repository.
        release: What its class states.
        root: Where it goes.
        only: Names of the parts to fetch; none stands for those that are needed.
        keep: Whether archives stay.
        jobs: Files that are fetched at once.

    Raises:
        FetchError: If the hub does not answer, or holds other files than the class states.
    """
    listed = hub.files()
    folder = Folder(root)
    parts: list[PartPlan] = []
    downloads: list[Download] = []
    archives: list[Archive] = []
    for part in release.parts:
        files = [file for file in listed if part.holds(file.path)]
        if part.name not in only if only else not part.needed:
            parts.append(PartPlan(part, files, False, 0))
            continue
        if not files:
            raise FetchError(
                f"{release.repository} has no {part.files[0]} at revision {hub.revision}; its "
                "layout has changed: choose another --revision, or fetch it with `hf download`"
            )
        unneeded: set[str] = set()
        for archive in archives_among((file, part.folder_of(file.path)) for file in files):
            done, end = Unpacked(root, archive), 0
            if not done.is_complete:
                archives.append(archive)
            for piece in archive.pieces:
                end += piece.size
                if done.is_complete or end < done.next_byte:
                    unneeded.add(piece.path)
        found = [folder.download(file) for file in files if file.path not in unneeded]
        absent = [each for each in found if each is not None]
        downloads += absent
        parts.append(PartPlan(part, files, True, total_missing(absent)))
    downloads.sort(key=lambda each: (archive_of(each.file.path) is not None, each.file.path))
    room = _room(downloads, archives, keep, jobs)
    return Plan(release, hub, folder, parts, downloads, archives, keep, room)


def _room(downloads: Sequence[Download], archives: Sequence[Archive], keep: bool, jobs: int) -> int:
    """Bytes that a disk needs: what comes, and what is unpacked while archives are still there.

    Videos do not get smaller in an archive, so an archive's content is taken as large as itself.
    """
    content = sum(archive.size for archive in archives)
    if not keep:
        # An archive goes when it is unpacked, and a piece of a tar when it is read.
        steps = sorted(
            max(piece.size for piece in archive.pieces)
            if archive.name.endswith(".tar")
            else archive.size
            for archive in archives
        )
        content = min(content, sum(steps[-jobs - 1 :]))
    return total_missing(downloads) + content + _SPARE_BYTES


def _check(benchmark: str, plan: Plan, console: Console, show: Callable[[str], None]) -> int:
    """Check the downloaded files."""
    needed = {part.part.name for part in plan.parts if part.part.needed}
    if "videos" in needed and all(plan.has(name) for name in needed):
        return data_check(benchmark, plan.root, None, 4, console)
    if plan.has("annotations"):
        opened = build_benchmark(benchmark, root=str(plan.root))
        questions = sum(len(item.questions) for item in opened.items())
        asked = "videos" in needed
        why = "were not asked for" if asked else "are not on the hub, see the note above"
        show(f"{benchmark}: {questions:,} questions can be read; videos {why}")
    return exit_codes.OK


def _release(benchmark: str, repository: str | None) -> Release:
    """The release of a benchmark in a repository."""
    releases = benchmark_class(benchmark).releases
    if not releases:
        having = [name for name in BENCHMARKS if benchmark_class(name).releases]
        raise InputError(
            f"benchmark {benchmark!r} has no release on the hub that is known here; "
            f"these are: {', '.join(having)}"
        )
    known = {release.repository: release for release in releases}
    if repository is not None and repository not in known:
        raise InputError(
            f"--repository {repository!r} is none of {benchmark}'s: {', '.join(known)}"
        )
    return known[repository] if repository else releases[0]


def _statement(benchmark: str, plan: Plan) -> list[str]:
    """Lines that describe the plan before it starts."""
    release, hub = plan.release, plan.repository
    lines = [
        f"{benchmark}: {release.repository}, revision {hub.revision} ({hub.sha[:12]}), to "
        f"{plan.root}",
        f"{'part':<12}  {'files':>6}  {'bytes':>8}  {'to fetch':>8}",
    ]
    for part in plan.parts:
        missing = human_bytes(part.missing) if part.wanted else f"not now: --only {part.part.name}"
        size = human_bytes(sum(file.size for file in part.files))
        lines.append(f"{part.part.name:<12}  {len(part.files):>6,}  {size:>8}  {missing:>8}")
    licence = release.licence + (f"; the hub says: {hub.licence}" if hub.licence else "")
    lines.append(f"licence: {licence}; {page_of(release.repository, 'dataset')}")
    if hub.gated:
        lines.append(f"access: for {release.gated or 'who asks for it'}")
    else:
        lines.append(f"access: not gated{' today' if release.gated else ''}")
    lines += [f"note: {note}" for note in release.notes]
    if plan.archives:
        kept = "archives stay" if plan.keep else "archives are removed once they are unpacked"
        lines.append(f"archives to unpack: {len(plan.archives)}; {kept}")
    room = human_bytes(0 if plan.is_done else plan.room)
    lines.append(f"disk: takes up to {room}, {human_bytes(free_bytes(plan.root))} are free")
    return lines
