"""A repository on the hub: its commit, its files, and the download of one file."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers

from jobs.units import human_bytes
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
        with self._errors():
            info: Any = HfApi().repo_info(name, repo_type=kind, revision=revision)
        licence = info.card_data.get("license") if info.card_data else None
        self.licence = ", ".join(licence) if isinstance(licence, list) else str(licence or "")
        self.sha, self.gated = str(info.sha), bool(info.gated)

    def files(self) -> list[RemoteFile]:
        """All files of the commit."""
        with self._errors():
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
        with self._errors():
            get_hf_file_metadata(self._url(path))

    def fetch(self, file: RemoteFile, partial: Path, target: Path, stop: threading.Event) -> None:
        """Download or resume a file, check it, and move it to its target path.

        Args:
            file: The remote file.
            partial: Local file for the incomplete download; kept if the download is interrupted.
            target: Local path of the complete file.
            stop: Event that aborts the download.

        Raises:
            FetchError: If the hub does not give it, the bytes are wrong, or the disk is full.
        """
        partial.parent.mkdir(parents=True, exist_ok=True)
        with self._errors(partial):
            try:
                self._receive(file, partial, stop)
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
                f"{self.name}: {file.path} does not have the checksum that the hub states "
                f"({file.digest[:12]}); a proxy may change it, or it has just been replaced: "
                "give the same command again"
            )

    def _receive(self, file: RemoteFile, partial: Path, stop: threading.Event) -> None:
        """Append what is missing; the client gives up at server errors and reset connections."""
        for wait in (*_WAITS_S, None):
            if size_of(partial) > file.size:
                partial.unlink()
            start = max(0, size_of(partial))
            try:
                with _PartialFile(partial, stop) as output:
                    http_get(
                        self._url(file.path),
                        output,
                        resume_size=start,
                        # Compressed bytes would be other bytes, which no range could continue.
                        headers={**build_hf_headers(), "Accept-Encoding": "identity"},
                        # Only with a start: of files above 50 GB the client asks for none.
                        expected_size=file.size if start else None,
                        displayed_filename=file.path,
                    )
                return
            except TransportError as error:
                status = getattr(getattr(error, "response", None), "status_code", 500)
                if status < 500 or wait is None or stop.wait(wait):
                    raise

    def _url(self, path: str) -> str:
        return str(hf_hub_url(self.name, path, repo_type=self.kind, revision=self.sha))

    @contextmanager
    def _errors(self, partial: Path | None = None) -> Iterator[None]:
        """Convert errors of the hub into `FetchError` with a one-line message."""
        try:
            yield
        except FetchError:
            raise
        except HUB_ERRORS as error:
            here = size_of(partial) if partial else 0
            kept = f"; {human_bytes(here)} of this file are kept" if here > 0 else ""
            reason = reason_of(error, self.name, self.revision, self.kind)
            raise FetchError(f"{self.name}: {reason}{kept}") from None
        except ValueError:
            raise FetchError(
                f"{self.name}: the hub at {constants.ENDPOINT} gives an answer that cannot be "
                "read; check HF_ENDPOINT"
            ) from None


class _PartialFile(io.BufferedWriter):
    """A file for appending that refuses bytes after `stop` was set."""

    def __init__(self, path: Path, stop: threading.Event) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._stop = stop

    def write(self, data: Any) -> int:
        if self._stop.is_set():
            raise FetchError("stopped, because another file failed")
        return super().write(data)


def move(source: Path, target: Path) -> None:
    """Move a complete file to its target, which may be on another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.part")
    shutil.move(source, beside)
    beside.replace(target)


def size_of(path: Path) -> int:
    """Bytes of a file; -1 if there is none."""
    return path.stat().st_size if path.exists() else -1
