"""Files of a repository on the hub: listed, downloaded in parallel, resumed and checked."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypedDict, Unpack

import typer
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, enable_progress_bars
from rich.console import Console

from jobs.run.interrupt_message import leaves_behind
from jobs.units import human_bytes
from pipeline.redaction import redacted
from tango_core.errors import UserError
from tango_core.hub_errors import HUB_ERRORS, TransportError, reason_of

Kind = Literal["dataset", "model"]

_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FetchError(UserError, OSError):
    """A file could not be downloaded or unpacked; the message is one line."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a commit.

    Attributes:
        path: In the repository.
        size: Bytes.
        digest: SHA-256 of a large file, else its git blob id (SHA-1).
    """

    path: str
    size: int
    digest: str

    def matches(self, path: Path) -> bool:
        """Whether a local file has this size and digest."""
        if path.stat().st_size != self.size:
            return False
        with path.open("rb") as stream:
            if len(self.digest) == 64:
                return hashlib.file_digest(stream, "sha256").hexdigest() == self.digest
            blob = hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)
            return hashlib.file_digest(stream, lambda: blob).hexdigest() == self.digest


class Repository:
    """A repository on the hub at the current commit of a revision.

    Args:
        name: Id on the hub.
        kind: Whether it is a data set or a model.
        revision: Branch, tag or commit.

    Attributes:
        sha: The commit.
        gated: Whether access has to be asked for.
        licence: As the hub's page states it; "" if it does not.

    Raises:
        FetchError: If the hub does not answer, or has no such repository or revision.
    """

    def __init__(self, name: str, kind: Kind, revision: str) -> None:
        self.name, self.kind, self.revision = name, kind, revision
        with self.errors():
            info: Any = HfApi().repo_info(name, repo_type=kind, revision=revision)
        licence = info.card_data.get("license") if info.card_data else None
        self.licence = ", ".join(licence) if isinstance(licence, list) else str(licence or "")
        self.sha, self.gated = str(info.sha), bool(info.gated)

    def files(self) -> list[RemoteFile]:
        """All files of the commit."""
        with self.errors():
            listed = HfApi().list_repo_tree(
                self.name, repo_type=self.kind, revision=self.sha, recursive=True
            )
            return [
                RemoteFile(each.path, each.size, each.lfs.sha256 if each.lfs else each.blob_id)
                for each in listed
                if isinstance(each, RepoFile)
            ]

    def raise_if_closed(self, path: str) -> None:
        """Check access with a HEAD request; gated repositories list their files to everyone.

        Raises:
            FetchError: If this account has no access.
        """
        with self.errors():
            get_hf_file_metadata(self._url(path))

    def fetch(self, file: RemoteFile, partial: Path, target: Path) -> None:
        """Download or resume a file, check it, and move it to its target path.

        Args:
            file: The remote file.
            partial: Local file for the incomplete download; kept if the download is interrupted.
            target: Local path of the complete file.

        Raises:
            FetchError: If the request fails, the checksum is wrong, or the disk is full.
        """
        partial.parent.mkdir(parents=True, exist_ok=True)
        with self.errors():
            try:
                self._receive(file, partial)
                is_right = file.matches(partial)
                if is_right:
                    move(partial, target)
            except OSError as error:
                if error.errno not in _DISK_FULL:
                    raise
                raise FetchError(
                    f"no room for {file.path} ({human_bytes(file.size)}) in {target.parent}: "
                    f"{error.strerror}; {human_bytes(size_of(partial))} of it are kept, make "
                    "room and give the same command again"
                ) from None
        if not is_right:
            partial.unlink()
            raise FetchError(
                f"{self.name}: {file.path} does not have the checksum that the hub states; "
                "give the same command again"
            )

    def _receive(self, file: RemoteFile, partial: Path) -> None:
        """Append the missing bytes, and retry after server errors, which `http_get` raises."""
        for wait in (*_WAITS_S, None):
            start = max(0, size_of(partial))
            try:
                with partial.open("ab") as output:
                    http_get(
                        self._url(file.path),
                        output,
                        resume_size=start,
                        # No compression: a byte range must refer to the file's own bytes.
                        headers={**build_hf_headers(), "Accept-Encoding": "identity"},
                        # Only to resume: `http_get` refuses to start a file of known size above
                        # 50 GB, and returns at once if a resumed file is already complete.
                        expected_size=file.size if start else None,
                        displayed_filename=file.path,
                    )
                return
            except TransportError as error:
                status = getattr(getattr(error, "response", None), "status_code", 500)
                if status < 500 or wait is None:
                    raise
                time.sleep(wait)

    def _url(self, path: str) -> str:
        return str(hf_hub_url(self.name, path, repo_type=self.kind, revision=self.sha))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of the hub into `FetchError` with a one-line message."""
        try:
            yield
        except FetchError:
            raise
        except HUB_ERRORS as error:
            reason = reason_of(error, self.name, self.revision, self.kind)
            raise FetchError(f"{self.name}: {reason}") from None
        except ValueError:
            raise FetchError(
                f"{self.name}: the hub at {constants.ENDPOINT} gives an answer that cannot be "
                "read; check HF_ENDPOINT"
            ) from None


def move(source: Path, target: Path) -> None:
    """Move a complete file to its target, which may be on another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)


def size_of(path: Path) -> int:
    """Bytes of a file; -1 if there is none."""
    return path.stat().st_size if path.exists() else -1


# Subdirectory of the target with incomplete downloads, the list of checked files, and a lock.
STATE = ".tango-get"


class Folder:
    """Target directory of a repository's files, with a record of the files that were checked.

    Args:
        root: Path of the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path = root / STATE / "files.jsonl"
        # Path in the repository -> digest, size and modification time (ns) of the checked file.
        self._checked: dict[str, list[object]] = {}
        for line in read_lines(self._path):
            if isinstance(line, list) and len(line) == 4:
                self._checked[str(line[0])] = line[1:]

    def target(self, file: RemoteFile) -> Path:
        """Where a complete file goes.

        Raises:
            FetchError: If that is outside of the folder.
        """
        return path_below(self.root, file.path, "the hub's list")

    def partial(self, file: RemoteFile) -> Path:
        """Local path of the incomplete download.

        Its name contains the digest, so that a new version starts again, and a hash of the path in
        the repository, because a repository may hold the same content under two paths.
        """
        place = hashlib.sha256(file.path.encode()).hexdigest()[:12]
        return self.root / STATE / "parts" / f"{file.digest}-{place}.part"

    def missing_bytes(self, files: Iterable[RemoteFile]) -> int:
        """Number of missing bytes of files that are not complete; partial downloads count."""
        return sum(max(0, file.size - max(0, size_of(self.partial(file)))) for file in files)

    def is_complete(self, file: RemoteFile) -> bool:
        """Whether this version of a file is in its place.

        Raises:
            FetchError: If its place holds another file, or is outside of the folder.
        """
        target = self.target(file)
        if not target.exists():
            return False
        digest, *known = self._checked.get(file.path, [""])
        stat = target.stat()
        if known == [stat.st_size, stat.st_mtime_ns]:
            return digest == file.digest
        if not file.matches(target):
            raise FetchError(
                f"{target} is another file than {file.path} of the hub ({stat.st_size} bytes "
                f"there, {file.size} on the hub); move it away, or choose another --root"
            )
        self.add(file)
        return True

    def add(self, file: RemoteFile) -> None:
        """Record that a file is complete and has been checked."""
        stat = self.target(file).stat()
        self._checked[file.path] = [file.digest, stat.st_size, stat.st_mtime_ns]
        append_line(self._path, [file.path, *self._checked[file.path]])

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Hold the lock of the folder.

        Raises:
            FetchError: If another process fills the folder, or it cannot be written.
        """
        try:
            (self.root / STATE).mkdir(parents=True, exist_ok=True)
            lock = (self.root / STATE / "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(
                f"another process downloads to {self.root}; wait for its end, or stop it"
            ) from None
        except OSError as error:
            raise FetchError(f"cannot write to {self.root}: {error.strerror}") from None
        with lock:
            yield


class Options(TypedDict, total=False):
    """Command-line options that the commands for benchmarks and for models share.

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


def show(console: Console, text: str) -> None:
    """Print a line unchanged."""
    console.print(redacted(text), markup=False, highlight=False, soft_wrap=True)


def confirmed(
    repository: Repository,
    paths: Sequence[str],
    size: int,
    room: int,
    root: Path,
    console: Console,
    **options: Unpack[Options],
) -> bool:
    """Check access and free space and ask whether to fetch files; enables progress bars then.

    Args:
        repository: Where the files are.
        paths: What is to be fetched.
        size: Its bytes.
        room: Bytes that the disk must have free.
        root: Folder that receives them.
        console: Where the question is asked, and bars are drawn if it is a terminal.
        options: As in `Options`; the answer of a dry run is no.

    Raises:
        FetchError: If there is no access, room or terminal.
    """
    if paths:
        repository.raise_if_closed(paths[-1])
    if free_bytes(root) < room:
        raise FetchError(
            f"{root} has {human_bytes(free_bytes(root))} free, but this takes {human_bytes(room)} "
            f"({human_bytes(size)} to fetch, and room to unpack); make room or choose another disk "
            "(--root, --dir, HF_HOME)"
        )
    if options.get("dry_run"):
        return False
    if not options.get("yes"):
        if not (sys.stdin.isatty() and console.is_terminal):
            raise FetchError("nothing was fetched: there is no terminal to ask on; add --yes")
        if not typer.confirm(f"Fetch {human_bytes(size)}?", default=False):
            show(console, "nothing was fetched")
            return False
    leaves_behind(
        "downloaded files are kept, continue with: " + shlex.join(["tango", *sys.argv[1:]])
    )
    if console.is_terminal and not options.get("quiet"):
        enable_progress_bars()
    return True


def fetch_all(
    repository: Repository,
    files: Sequence[RemoteFile],
    folder: Folder,
    jobs: int,
    on_file: Callable[[RemoteFile | None], object],
) -> None:
    """Fetch files in parallel; after an error no further file is started.

    Args:
        repository: Where the files are.
        files: In the order in which they are started.
        folder: Target directory; it stays locked against other processes meanwhile.
        jobs: Number of parallel downloads.
        on_file: Called in this thread with `None` first, then with every complete file.

    Raises:
        FetchError: The first error.
    """
    with folder.reserved():
        on_file(None)
        pool = ThreadPoolExecutor(jobs)
        try:
            futures = {
                pool.submit(repository.fetch, file, folder.partial(file), folder.target(file)): file
                for file in files
            }
            for future in as_completed(futures):
                future.result()
                on_file(futures[future])
        finally:  # after an error or a signal, do not wait for open connections
            pool.shutdown(wait=False, cancel_futures=True)
    disable_progress_bars()


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of an existing or future directory."""
    path = path.absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free


def path_below(root: Path, name: str, source: str) -> Path:
    """Join a directory and a relative path from an untrusted source.

    Args:
        root: The directory.
        name: Path as an archive or the hub states it.
        source: Where the path comes from, for the error message.

    Raises:
        FetchError: If the result is outside of `root`, or inside of `root / STATE`.
    """
    path = PurePosixPath(name)
    first = path.parts[0] if path.parts else STATE
    outside = path.is_absolute() or ".." in path.parts or any(each in name for each in "\\\0")
    if outside or first.endswith(":") or first == STATE:
        raise FetchError(
            f"{source} holds {name!r}, which leads out of the folder it belongs in; nothing is "
            "written there, report it to the authors of the files"
        )
    return root.joinpath(*path.parts)


def read_lines(path: Path) -> Iterator[object]:
    """Read a JSON Lines file; lines that are not valid JSON (an interrupted write) are skipped."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def append_line(path: Path, value: object) -> None:
    """Append a JSON value on a new line, even if the last line was written only in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as output:
        output.write(f"\n{json.dumps(value)}")
