"""`tango model get`: a checkpoint of the hub, whole or half, into the hub's cache or a folder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import constants
from rich.console import Console

from jobs import exit_codes
from jobs.fetch.archives import partial_of, path_below
from jobs.fetch.asking import agreed
from jobs.fetch.checkpoint_files import files_of, source_of
from jobs.fetch.downloads import fetch_all
from jobs.fetch.hub import Commit, FetchError, Hub, RemoteFile
from jobs.fetch.hub_cache import HubCache
from jobs.fetch.journal import FileJournal, one_at_a_time
from jobs.fetch.plan import free_bytes
from jobs.fetch.progress import Meter
from jobs.fetch.stream import Download
from jobs.run.last_words import leaves_behind
from jobs.units import human_bytes
from pipeline.redaction import redacted
from tango_core.hub_errors import page_of
from tango_core.models.checkpoints.directory import HUB_ID, is_here, raise_if_damaged
from tango_core.models.family import Half


@dataclass(frozen=True)
class HowToGetModel:
    """What the command line says about a checkpoint.

    Attributes:
        folder: Where to put its files; `None` for the hub's cache.
        half: Only the files that one half is loaded from; `None` for all.
        revision: Branch, tag or commit.
        jobs: Files at once.
        yes: Start without a question.
        dry_run: Say what would be done, and do nothing.
        quiet: No bar.
    """

    folder: Path | None = None
    half: Half | None = None
    revision: str = "main"
    jobs: int = 4
    yes: bool = False
    dry_run: bool = False
    quiet: bool = False


def model_get(name: str, how: HowToGetModel, console: Console) -> int:
    """Fetch a checkpoint; afterwards a recipe finds it without a network.

    Args:
        name: Entry of `MODELS`, or the id of a checkpoint on the hub.
        how: What the command line says.
        console: Where the statement and the bar go.

    Raises:
        ValueError: If there is no such model.
        FetchError: If it cannot be fetched.
    """
    if how.half is not None and how.folder is not None:
        raise ValueError(
            f"--half {how.half} needs the hub's cache: a folder has to hold the whole checkpoint; "
            "leave out --dir or --half"
        )
    leaves_behind("nothing was fetched")
    source = source_of(name)
    if not HUB_ID.fullmatch(source):
        raise ValueError(f"{source!r} is no hub id such as 'org/name'")
    say: Callable[[str], None] = partial(
        console.print, markup=False, highlight=False, soft_wrap=True
    )
    into_cache = how.folder is None and how.half is None
    if constants.HF_HUB_OFFLINE and into_cache and is_here(source, how.revision):
        say(f"{source}: all of it is in the hub's cache")
        return exit_codes.OK
    hub = Hub(source, "model", how.revision)
    commit = hub.commit()
    files = _wanted(hub, commit, name, how.half)
    place = _Place(hub, commit, how.folder)
    downloads = place.downloads(files)
    for line in _statement(hub, commit, files, downloads, place, how):
        say(redacted(line))
    if downloads:
        hub.raise_if_closed(downloads[-1].file, commit.sha)
        _raise_if_no_room(place.root, downloads)
    if how.dry_run:
        return exit_codes.OK
    missing = sum(each.file.size - each.here for each in downloads)
    if downloads and not agreed(f"Fetch {human_bytes(missing)}?", console, yes=how.yes):
        say("nothing was fetched")
        return exit_codes.OK
    if downloads:
        received = _run(hub, commit, downloads, place, how, console)
        say(f"fetched {human_bytes(received)}, every file has the hub's checksum")
    else:
        say("all of it is here")
    place.finish()
    if how.half is None:
        raise_if_damaged(str(place.files))
    say(f"model.path: {hub.repository if how.folder is None else place.files}")
    return exit_codes.OK


class _Place:
    """Where a checkpoint goes: the hub's cache, or a folder of the user.

    Attributes:
        root: Folder that is held by one download at a time.
        files: Folder in which the files have their names.
    """

    def __init__(self, hub: Hub, commit: Commit, folder: Path | None) -> None:
        self._cache = HubCache(hub, commit.sha) if folder is None else None
        self.root = folder.expanduser().absolute() if folder else HubCache(hub, commit.sha).folder
        self.files = self.root if self._cache is None else self._cache.snapshot
        self._journal = FileJournal(self.root)
        self._waiting: dict[str, list[RemoteFile]] = {}

    def downloads(self, files: Sequence[RemoteFile]) -> list[Download]:
        """What is not here yet, the small files first."""
        missing = []
        for file in sorted(files, key=lambda file: (file.size, file.path)):
            if self._cache is not None:
                if not self._cache.is_here(file):
                    self._waiting.setdefault(file.digest, []).append(file)
                    if self._waiting[file.digest] == [file]:  # the same bytes come once
                        missing.append(self._cache.download(file))
                continue
            target = path_below(self.root, file.path, "the hub's list")
            if not self._journal.is_here(file, target):
                missing.append(Download(file, partial_of(self.root, file), target))
        return missing

    def arrived(self, download: Download) -> None:
        """Note that a file is complete."""
        if self._cache is not None:
            for file in self._waiting[download.file.digest]:
                self._cache.point(file)
        else:
            self._journal.add(download.file, download.target)

    def finish(self) -> None:
        """Note that all files are complete."""
        if self._cache is not None:
            self._cache.remember_revision()


def _wanted(hub: Hub, commit: Commit, name: str, half: Half | None) -> tuple[RemoteFile, ...]:
    """Files of the checkpoint that a job opens."""
    listed = {file.path: file for file in hub.files(commit.sha)}
    with TemporaryDirectory(prefix="tango-model-") as folder:
        return files_of(hub, commit.sha, listed, Path(folder), name, half)


def _run(
    hub: Hub,
    commit: Commit,
    downloads: Sequence[Download],
    place: _Place,
    how: HowToGetModel,
    console: Console,
) -> int:
    """Fetch; the bytes that came."""
    leaves_behind("what was fetched is kept, go on with: " + shlex.join(["tango", *sys.argv[1:]]))
    here = sum(each.here for each in downloads)
    total = sum(each.file.size for each in downloads)
    with (
        one_at_a_time(place.root),
        Meter(console, total, here, quiet=how.quiet) as meter,
    ):
        fetch_all(
            hub,
            commit.sha,
            downloads,
            jobs=how.jobs,
            on_bytes=meter.add,
            on_file=place.arrived,
        )
    return meter.received


def _raise_if_no_room(root: Path, downloads: Sequence[Download]) -> None:
    missing = sum(each.file.size - each.here for each in downloads)
    free = free_bytes(root)
    if free < missing:
        raise FetchError(
            f"{root} has {human_bytes(free)} free, but {human_bytes(missing)} are to be fetched; "
            "make room, choose another --dir, or set HF_HOME to another disk"
        )


def _statement(
    hub: Hub,
    commit: Commit,
    files: Sequence[RemoteFile],
    downloads: Sequence[Download],
    place: _Place,
    how: HowToGetModel,
) -> list[str]:
    """What is said before anything starts."""
    total = sum(file.size for file in files)
    missing = sum(each.file.size - each.here for each in downloads)
    what = f"the {how.half} half" if how.half else "the checkpoint"
    return [
        f"{hub.repository}: revision {how.revision} ({commit.sha[:12]}), to {place.files}",
        f"{what}: {len(files)} files, {human_bytes(total)}; to fetch: {len(downloads)} files, "
        f"{human_bytes(missing)}",
        f"licence: {commit.licence or 'not stated'}; {page_of(hub.repository)}",
        f"access: {'for who asks for it' if commit.gated else 'not gated'}",
        f"disk: {human_bytes(free_bytes(place.root))} are free",
    ]
