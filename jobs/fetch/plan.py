"""What a download of a benchmark takes, worked out before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.fetch.archives import STATE, Archive, archives_among, partial_of, path_below
from jobs.fetch.hub import Commit, FetchError, Hub, RemoteFile
from jobs.fetch.journal import ArchiveJournal, FileJournal
from jobs.fetch.stream import Download
from jobs.units import human_bytes
from tango_core.benchmarks.releases import Release, ReleasePart, archive_of

# Folders, journals and the ends of blocks.
_SPARE = 64 * 2**20


@dataclass(frozen=True)
class PartPlan:
    """What is to be done for one part.

    Attributes:
        part: Which one.
        files: All of its files on the hub.
        wanted: Whether it was asked for.
        missing: Bytes that are still to come.
    """

    part: ReleasePart
    files: tuple[RemoteFile, ...]
    wanted: bool
    missing: int

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Plan:
    """What is to be done for a release.

    Attributes:
        release: Which one.
        commit: What its revision is today.
        root: Where it goes.
        parts: In the order of the release.
        downloads: Files to fetch, the small ones first.
        archives: Archives to unpack, whose pieces are here or among the downloads.
        room: Bytes that the disk must have free.
    """

    release: Release
    commit: Commit
    root: Path
    parts: tuple[PartPlan, ...]
    downloads: tuple[Download, ...]
    archives: tuple[Archive, ...]
    room: int

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return sum(each.file.size - each.here for each in self.downloads)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not self.downloads and not self.archives

    def has(self, name: str) -> bool:
        """Whether a part will be here when the plan is done."""
        return any(part.part.name == name and part.wanted for part in self.parts)


def make_plan(
    hub: Hub, release: Release, root: Path, only: Sequence[str], *, keep: bool, jobs: int
) -> Plan:
    """Ask the hub what there is, and look what is here.

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
    commit = hub.commit()
    listed = hub.files(commit.sha)
    journal = FileJournal(root)
    parts: list[PartPlan] = []
    downloads: list[Download] = []
    archives: list[Archive] = []
    for part in release.parts:
        files = tuple(file for file in listed if part.holds(file.path))
        wanted = part.name in only if only else part.needed
        if wanted:
            _raise_if_unmatched(part, files, release, hub.revision)
        here = _PartHere(root, journal, part, files if wanted else ())
        downloads += here.downloads
        archives += here.archives
        parts.append(PartPlan(part, files, wanted, here.missing))
    downloads.sort(key=lambda each: (archive_of(each.file.path) is not None, each.file.path))
    room = _room(downloads, archives, keep, jobs)
    return Plan(release, commit, root, tuple(parts), tuple(downloads), tuple(archives), room)


class _PartHere:
    """What is here of a part, and what is not."""

    def __init__(
        self, root: Path, journal: FileJournal, part: ReleasePart, files: Sequence[RemoteFile]
    ) -> None:
        self.downloads: list[Download] = []
        self.archives: list[Archive] = []
        unneeded: set[str] = set()
        for archive in archives_among((file, part.folder_of(file.path)) for file in files):
            state = ArchiveJournal(root, archive)
            if state.is_complete:
                unneeded |= {piece.path for piece in archive.pieces}
                continue
            self.archives.append(archive)
            end = 0
            for piece in archive.pieces:
                end += piece.size
                if end < state.next_byte:
                    unneeded.add(piece.path)
        for file in files:
            target = path_below(root, file.path, "the hub's list")
            if file.path not in unneeded and not journal.is_here(file, target):
                self.downloads.append(Download(file, partial_of(root, file), target))
        self.missing = sum(each.file.size - each.here for each in self.downloads)


def raise_if_no_room(plan: Plan) -> None:
    """Refuse a disk that is too small.

    Raises:
        FetchError: In one line with both numbers.
    """
    free = free_bytes(plan.root)
    if not plan.is_done and free < plan.room:
        raise FetchError(
            f"{plan.root} has {human_bytes(free)} free, but this takes {human_bytes(plan.room)} "
            f"({human_bytes(plan.missing)} to fetch, and room to unpack); make room or choose "
            "another --root"
        )


def free_bytes(path: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def sweep(plan: Plan) -> None:
    """Remove partial files of versions that the hub no longer has, and half a member.

    Parts that were not asked for this time keep theirs.
    """
    known = {partial_of(plan.root, file).name for part in plan.parts for file in part.files}
    for path in (plan.root / STATE / "parts").glob("*"):
        if path.name.removesuffix(".etag") not in known:
            path.unlink(missing_ok=True)


def _raise_if_unmatched(
    part: ReleasePart, files: Sequence[RemoteFile], release: Release, revision: str
) -> None:
    missing = part.unmatched(file.path for file in files)
    if missing:
        raise FetchError(
            f"{release.repository} has no {missing[0]} at revision {revision}; its layout has "
            "changed: choose another --revision, or fetch it with `hf download`"
        )


def _room(downloads: Sequence[Download], archives: Sequence[Archive], keep: bool, jobs: int) -> int:
    """Bytes that a disk needs: what comes, and what is unpacked while archives are still there.

    Videos do not get smaller in an archive, so an archive's content is taken as large as itself.
    """
    missing = sum(each.file.size - each.here for each in downloads)
    if not downloads and not archives:
        return 0
    content = sum(archive.size for archive in archives)
    if keep:
        return missing + content + _SPARE
    # An archive goes when it is unpacked, and a piece of a tar when it is read.
    steps = [
        max(piece.size for piece in archive.pieces)
        if archive.name.endswith(".tar")
        else archive.size
        for archive in archives
    ]
    largest = sorted(steps, reverse=True)[: jobs + 1]
    return missing + min(content, sum(largest)) + _SPARE
