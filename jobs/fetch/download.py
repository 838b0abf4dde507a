"""Download files of a repository in parallel, and record what was checked."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypedDict, Unpack

import typer
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from rich.console import Console

from jobs.fetch.hub import FetchError, RemoteFile, Repository, size_of
from jobs.run.interrupt_message import leaves_behind
from jobs.units import human_bytes
from pipeline.redaction import redacted

STATE = ".tango-get"


@dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        file: What is fetched.
        partial: File that receives the bytes.
        target: Where the complete file goes.
    """

    file: RemoteFile
    partial: Path
    target: Path

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return max(0, self.file.size - max(0, size_of(self.partial)))


class Folder:
    """Target directory of a repository's files, with a record of the files that were checked.

    Args:
        root: Path of the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path = root / STATE / "files.jsonl"
        self._checked: dict[str, list[object]] = {}
        for line in read_lines(self._path):
            if isinstance(line, list) and len(line) == 4:
                self._checked[str(line[0])] = line[1:]

    def download(self, file: RemoteFile) -> Download | None:
        """The download of a file; `None` if it is in its place.

        Raises:
            FetchError: If its place holds another file, or is outside of the folder.
        """
        target = path_below(self.root, file.path, "the hub's list")
        # Named by its content, so that a new version starts again, and by its place, because a
        # repository may hold the same bytes twice.
        place = hashlib.sha256(file.path.encode()).hexdigest()[:12]
        partial = self.root / STATE / "parts" / f"{file.digest}-{place}.part"
        if not target.exists():
            return Download(file, partial, target)
        digest, *known = self._checked.get(file.path, [""])
        stat = target.stat()
        if known == [stat.st_size, stat.st_mtime_ns]:
            return None if digest == file.digest else Download(file, partial, target)
        if not file.matches(target):
            raise FetchError(
                f"{target} is another file than {file.path} of the hub ({stat.st_size} bytes "
                f"there, {file.size} on the hub); move it away, or choose another --root"
            )
        self.add(file, target)
        return None

    def add(self, file: RemoteFile, target: Path) -> None:
        """Record that a file is complete and has been checked."""
        stat = target.stat()
        self._checked[file.path] = [file.digest, stat.st_size, stat.st_mtime_ns]
        append_line(self._path, [file.path, *self._checked[file.path]])


class Options(TypedDict, total=False):
    """Command-line options of both commands.

    Attributes:
        jobs: Number of parallel downloads; 4 by default.
        yes: Do not ask for confirmation.
        dry_run: Only print what would be done.
        quiet: Show no progress bars.
    """

    jobs: int
    yes: bool
    dry_run: bool
    quiet: bool


def fetch_files(
    repository: Repository,
    downloads: Sequence[Download],
    root: Path,
    console: Console,
    statement: Iterable[str],
    *,
    room: int,
    is_done: bool,
    on_start: Callable[[], object] = lambda: None,
    on_file: Callable[[Download], object] = lambda download: None,
    **options: Unpack[Options],
) -> bool:
    """Print the plan, check access and free space, ask, then fetch; the first error ends all.

    Args:
        repository: Where the files are.
        downloads: In the order in which they are started.
        root: Folder that receives them, and is used by one download at a time.
        console: Where the question is asked, and bars are drawn if it is a terminal.
        statement: Lines that describe the plan.
        room: Bytes that the disk must have free.
        is_done: Whether nothing is left to do.
        on_start: Called in this thread before the first file.
        on_file: Called in this thread with every file that is in its place.
        options: As in `Options`.

    Returns:
        Whether all is there: `False` for a dry run, or if the answer is no.

    Raises:
        FetchError: The first error.
    """
    show = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    for line in statement:
        show(redacted(line))
    if is_done:
        if not options.get("dry_run"):
            show("all of it is here")
        return not options.get("dry_run")
    missing = human_bytes(total_missing(downloads))
    if downloads:
        repository.raise_if_closed(downloads[-1].file.path)
    if free_bytes(root) < room:
        raise FetchError(
            f"{root} has {human_bytes(free_bytes(root))} free, but this takes {human_bytes(room)} "
            f"({missing} to fetch, and room to unpack); make room or choose another disk (--root, "
            "--dir, HF_HOME)"
        )
    if options.get("dry_run"):
        return False
    if not options.get("yes"):
        if not (sys.stdin.isatty() and console.is_terminal):
            raise FetchError("nothing was fetched: there is no terminal to ask on; add --yes")
        if not typer.confirm(f"Fetch {missing}?", default=False):
            show("nothing was fetched")
            return False
    leaves_behind(
        "downloaded files are kept, continue with: " + shlex.join(["tango", *sys.argv[1:]])
    )
    with _reserved(root):
        if console.is_terminal and not options.get("quiet"):
            enable_progress_bars()
        on_start()
        stop = threading.Event()
        pool = ThreadPoolExecutor(options.get("jobs", 4))
        try:
            futures = {
                pool.submit(repository.fetch, each.file, each.partial, each.target, stop): each
                for each in downloads
            }
            for future in as_completed(futures):
                future.result()
                on_file(futures[future])
        except BaseException as error:
            stop.set()
            # On a signal, do not wait for open connections.
            pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            raise
        pool.shutdown()
        disable_progress_bars()
    show(f"fetched {missing}, every file has the hub's checksum")
    return True


@contextmanager
def _reserved(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        FetchError: If another process fills the folder, or it cannot be written.
    """
    try:
        (folder / STATE).mkdir(parents=True, exist_ok=True)
        lock = (folder / STATE / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FetchError(
            f"another process downloads to {folder}; wait for its end, or stop it"
        ) from None
    except OSError as error:
        raise FetchError(f"cannot write to {folder}: {error.strerror}") from None
    with lock:
        yield


def total_missing(downloads: Sequence[Download]) -> int:
    """Number of bytes that remain to be downloaded."""
    return sum(each.missing for each in downloads)


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of an existing or future directory."""
    path = path.absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free


def path_below(root: Path, name: str, source: str) -> Path:
    """The path of a name below a folder.

    Args:
        root: The folder.
        name: As an archive or the hub writes it.
        source: What holds the name, for the message.

    Raises:
        FetchError: If it would be anywhere else, or in the records of the download.
    """
    path = PurePosixPath(name)
    first = path.parts[0] if path.parts else STATE
    outside = path.is_absolute() or ".." in path.parts or any(each in name for each in "\\\0")
    if outside or first.endswith(":") or first == STATE:
        raise FetchError(
            f"{source} holds {name!r}, which leads out of the folder it belongs in; it is not "
            "unpacked, ask its authors"
        )
    return root.joinpath(*path.parts)


def read_lines(path: Path) -> Iterator[object]:
    """JSON values of a file with one per line; a torn line counts as not written."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def append_line(path: Path, value: object) -> None:
    """Append a JSON value; a torn line before it stays a line of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as output:
        output.write(f"\n{json.dumps(value)}")
