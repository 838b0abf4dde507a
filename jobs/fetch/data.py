"""`tango data get`: download a benchmark's files from the hub, unpack and check them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from rich.console import Console

from jobs import exit_codes
from jobs.data_check.check import data_check
from jobs.fetch import hub
from jobs.fetch.unpack import Archive, Unpacked, archives_among, unpack
from jobs.run.interrupt_message import leaves_behind
from jobs.units import human_bytes
from tango_core.benchmarks import benchmark_class
from tango_core.benchmarks.base import check_name
from tango_core.benchmarks.releases import Release, ReleasePart, archive_of
from tango_core.errors import InputError
from tango_core.hub_errors import page_of

logger = logging.getLogger(__name__)

# Folders, records and the ends of blocks.
_SPARE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Plan:
    """Files to fetch and archives to unpack of a release.

    Attributes:
        table: Lines that describe all parts.
        files: Files to download, the small ones first.
        archives: Archives to unpack, whose pieces are on the disk or among the files.
        size: Number of bytes to download.
        room: Number of free bytes that the disk must have.
    """

    table: Sequence[str]
    files: Sequence[hub.RemoteFile]
    archives: Sequence[Archive]
    size: int
    room: int


def data_get(
    benchmark: str,
    root: Path,
    console: Console,
    *,
    only: Sequence[str] = (),
    repository: str | None = None,
    revision: str | None = None,
    keep: bool = False,
    **options: Unpack[hub.Options],
) -> int:
    """Fetch a benchmark, unpack it and check it.

    Args:
        benchmark: Its name.
        root: Folder that receives it, and `benchmark.root` afterwards.
        console: Where the table, the bars and the check go.
        only: Names of parts; none stands for those that are needed.
        repository: One of the benchmark's repositories; `None` for the usual one.
        revision: Branch, tag or commit; `None` for the release's own.
        keep: Whether archives are kept after they are unpacked.
        options: See `hub.Options`.

    Returns:
        Exit code: that of `data check`, where annotations and videos are here.

    Raises:
        InputError: If there is no such benchmark, release or part.
        FetchError: If it cannot be fetched or unpacked.
    """
    leaves_behind("nothing was fetched")
    release = _release(benchmark, repository)
    for name in only:
        check_name("--only", name, [part.name for part in release.parts])
    remote = hub.Repository(release.repository, "dataset", revision or release.revision)
    root = root.expanduser().absolute()
    folder, jobs = hub.Folder(root), options.get("jobs", 4)
    plan = make_plan(remote, release, folder, only, keep=keep, jobs=jobs)
    coming = {file.path for file in plan.files}

    def unpack_complete(file: hub.RemoteFile | None) -> None:
        """Unpack the archive whose last piece has come, or all whose pieces are here."""
        if file is not None:
            folder.add(file)
            coming.remove(file.path)
        for archive in plan.archives:
            paths = {piece.path for piece in archive.pieces}
            if not paths & coming and (file is None or file.path in paths):
                count = unpack(root, archive, keep=keep)
                logger.info("%s: %d files unpacked", archive.name, count)

    is_done = not plan.files and not plan.archives
    licence = release.licence + (f"; the hub says: {remote.licence}" if remote.licence else "")
    if remote.gated:
        access = f"for {release.gated or 'who asks for it'}"
    else:
        access = "not gated today" if release.gated else "not gated"
    kept = "archives stay" if keep else "archives are removed once they are unpacked"
    room, free = human_bytes(0 if is_done else plan.room), human_bytes(hub.free_bytes(root))
    for line in (
        f"{benchmark}: {remote.name}, revision {remote.revision} ({remote.sha[:12]}), to {root}",
        *plan.table,
        f"licence: {licence}; {page_of(remote.name, 'dataset')}",
        f"access: {access}",
        *(f"note: {note}" for note in release.notes),
        *([f"archives to unpack: {len(plan.archives)}; {kept}"] if plan.archives else []),
        f"disk: takes up to {room}, {free} are free",
    ):
        hub.show(console, line)
    if not is_done:
        paths = [file.path for file in plan.files]
        if not hub.confirmed(remote, paths, plan.size, plan.room, root, console, **options):
            return exit_codes.OK
        hub.fetch_all(remote, plan.files, folder, jobs, unpack_complete)
        hub.show(console, f"fetched {human_bytes(plan.size)}, every file has the hub's checksum")
    elif options.get("dry_run"):
        return exit_codes.OK
    else:
        hub.show(console, "all of it is here")
    needed = {part.name for part in release.parts if part.needed}
    if "videos" in needed and needed <= (set(only) or needed):
        return data_check(benchmark, root, None, 4, console)
    return exit_codes.OK


def make_plan(
    remote: hub.Repository,
    release: Release,
    folder: hub.Folder,
    only: Sequence[str],
    *,
    keep: bool,
    jobs: int,
) -> Plan:
    """Compare the files on the hub with those in the target directory.

    Args:
        remote: The release's repository.
        release: What its class states.
        folder: Where it goes.
        only: Names of the parts to fetch; none stands for those that are needed.
        keep: Whether archives are kept after they are unpacked.
        jobs: Files that are fetched at once.

    Raises:
        FetchError: If the hub does not answer, or holds other files than the class states.
    """
    listed = remote.files()
    table = [f"{'part':<12}  {'files':>6}  {'bytes':>8}  {'to fetch':>8}"]
    missing: list[hub.RemoteFile] = []
    archives: list[Archive] = []
    for part in release.parts:
        files = [file for file in listed if part.holds(file.path)]
        to_fetch = f"not now: --only {part.name}"
        if part.name in only if only else part.needed:
            found, open_archives = _part_plan(remote, part, files, folder)
            to_fetch = human_bytes(folder.missing_bytes(found))
            missing += found
            archives += open_archives
        size = human_bytes(sum(file.size for file in files))
        table.append(f"{part.name:<12}  {len(files):>6,}  {size:>8}  {to_fetch:>8}")
    missing.sort(key=lambda file: (archive_of(file.path) is not None, file.path))
    # Videos do not get smaller in an archive, so its content is taken as large as itself.
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
    num_bytes = folder.missing_bytes(missing)
    return Plan(table, missing, archives, num_bytes, num_bytes + content + _SPARE_BYTES)


def _part_plan(
    remote: hub.Repository, part: ReleasePart, files: Sequence[hub.RemoteFile], folder: hub.Folder
) -> tuple[list[hub.RemoteFile], list[Archive]]:
    """Files of a part to download, and archives to unpack."""
    if not files:
        raise hub.FetchError(
            f"{remote.name} has no {part.files[0]} at revision {remote.revision}; its "
            "layout has changed: choose another --revision, or fetch it with `hf download`"
        )
    archives, unneeded = [], set[str]()
    for archive in archives_among((file, part.folder_of(file.path)) for file in files):
        done, end = Unpacked(folder.root, archive), 0
        if not done.is_complete:
            archives.append(archive)
        for piece in archive.pieces:
            end += piece.size
            if done.is_complete or end < done.next_byte:
                unneeded.add(piece.path)
    wanted = [file for file in files if file.path not in unneeded]
    return [file for file in wanted if not folder.is_complete(file)], archives


def _release(benchmark: str, repository: str | None) -> Release:
    """The release of a benchmark in a repository."""
    releases = benchmark_class(benchmark).releases
    if not releases:
        raise InputError(f"benchmark {benchmark!r} has no release on the hub that is known here")
    known = {release.repository: release for release in releases}
    if repository is not None:
        check_name("--repository", repository, known)
    return known[repository] if repository else releases[0]
