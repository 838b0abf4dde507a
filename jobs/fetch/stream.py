"""One file of the hub: streamed into a partial file, resumed at its last byte, checked, moved.

The partial file is named by the digest of the whole, so a file that changed on the hub begins anew.
Beside it stands the ETag that its first bytes came with: bytes of two versions are never joined.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from jobs.fetch.hub import FetchError, Hub, RemoteFile
from jobs.units import human_bytes
from tango_core.hub_errors import HUB_ERRORS, TransportError

_CHUNK = 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Opener = Callable[[Path, str], BinaryIO]
OnBytes = Callable[[int], object]
"""Called with the number of bytes that came, less than 0 where some are thrown away."""


class _OtherVersionError(Exception):
    """The hub sends another version than the bytes that are here."""


def open_file(path: Path, mode: str) -> BinaryIO:
    """Open a file for bytes."""
    return cast(BinaryIO, path.open(mode))


@dataclass(frozen=True)
class Download:
    """One file on its way.

    Attributes:
        file: What is fetched.
        partial: File that receives the bytes, on the disk of the target.
        target: Where the complete file goes.
    """

    file: RemoteFile
    partial: Path
    target: Path

    @property
    def here(self) -> int:
        """Bytes that are here already."""
        try:
            return min(self.partial.stat().st_size, self.file.size)
        except OSError:
            return 0

    def run(
        self, hub: Hub, sha: str, on_bytes: OnBytes = lambda _: None, opener: Opener = open_file
    ) -> None:
        """Fetch what is missing, check the whole, put it in its place.

        Args:
            hub: Where it is.
            sha: Commit.
            on_bytes: Told what comes.
            opener: Opens the partial file.

        Raises:
            FetchError: If the hub does not give it, the bytes are wrong, or the disk is full.
        """
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        for attempt in (1, 2):
            try:
                self._fetch(hub, sha, on_bytes, opener)
                wrong = self._digest() != self.file.digest
            except OSError as error:
                if error.errno in _FULL and not isinstance(error, FetchError):
                    raise self._full(error) from None
                raise
            if not wrong:
                break
            on_bytes(-self.here)
            self._discard()
            if attempt == 2:
                raise FetchError(
                    f"{hub.repository}: {self.file.path} does not have the checksum that the hub "
                    f"states ({self.file.digest[:12]}), twice; a proxy may change it, or it has "
                    "just been replaced: try again later"
                )
        put(self.partial, self.target)
        self._tag.unlink(missing_ok=True)

    def _fetch(self, hub: Hub, sha: str, on_bytes: OnBytes, opener: Opener) -> None:
        """Ask again and again, each time from the last byte that is here."""
        failures = 0
        while not self.partial.exists() or self.here < self.file.size or self._is_too_long():
            if hub.stop.is_set():
                raise FetchError(f"{self.file.path}: stopped, because another file failed")
            before = self.here
            try:
                self._receive(hub, sha, on_bytes, opener)
                error: BaseException | None = None
            except _OtherVersionError:
                on_bytes(-before)
                self._discard()
                error = TransportError("the file changes while it is fetched")
            except HUB_ERRORS as caught:
                if not isinstance(caught, TransportError) or isinstance(caught, FetchError):
                    raise
                error = caught
            if error is None and self.here >= self.file.size:
                return
            error = error or TransportError("the connection was closed before the end of the file")
            failures = 1 if self.here > before else failures + 1
            wait = hub.patience.wait_s(failures, error)
            if wait is None or hub.stop.wait(wait):
                kept = f"; {human_bytes(self.here)} of {self.file.path} are kept"
                raise FetchError(f"{hub.error(error)}{kept if self.here else ''}") from None

    def _receive(self, hub: Hub, sha: str, on_bytes: OnBytes, opener: Opener) -> None:
        """One request: append what it sends."""
        if self._is_too_long():
            raise _OtherVersionError
        start = self.here
        with hub.open(self.file, sha, start) as response:
            tag = _tag_of(response)
            if start and (response.status_code == 416 or tag != self._known_tag()):
                raise _OtherVersionError
            mode = "ab"
            if start and not _continues(response, start):  # it sends the whole file again
                on_bytes(-start)
                start, mode = 0, "wb"
            if not start:
                self._tag.write_text(tag)
            with opener(self.partial, mode) as output:
                # No chunk size: the client would lose what it collects for one when it is cut off.
                for chunk in response.iter_raw():
                    if hub.stop.is_set():
                        return
                    output.write(chunk)
                    on_bytes(len(chunk))

    @property
    def _tag(self) -> Path:
        """File with the ETag of the partial one."""
        return self.partial.with_name(f"{self.partial.name}.etag")

    def _known_tag(self) -> str:
        try:
            return self._tag.read_text()
        except OSError:
            return ""

    def _is_too_long(self) -> bool:
        """Whether more bytes came than the file has."""
        return self.partial.exists() and self.partial.stat().st_size > self.file.size

    def _discard(self) -> None:
        """Throw away what came."""
        self.partial.unlink(missing_ok=True)
        self._tag.unlink(missing_ok=True)

    def _digest(self) -> str:
        """Digest of what is here; the bytes are on the disk afterwards."""
        with self.partial.open("rb") as stream:
            os.fsync(stream.fileno())
            return digest_of(stream, self.file)

    def _full(self, error: OSError) -> FetchError:
        return FetchError(
            f"no room for {self.file.path} ({human_bytes(self.file.size)}) in "
            f"{self.target.parent}: {error.strerror}; {human_bytes(self.here)} of it are kept, "
            "make room and give the same command again"
        )


def put(source: Path, target: Path) -> None:
    """Move a whole file to its place, whose folder may be a link to another disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = target.with_name(f".{target.name}.part")
        try:
            shutil.copyfile(source, beside)
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
        source.unlink()


def digest_of(stream: BinaryIO, file: RemoteFile) -> str:
    """Digest of a stream's content, of the kind that the hub states for the file."""
    hasher = file.hasher()
    while block := stream.read(_CHUNK):
        hasher.update(block)
    return str(hasher.hexdigest())


def _tag_of(response: Any) -> str:
    """The ETag that the hub gives, before it redirects to a store with names of its own."""
    for answer in (*response.history, response):
        found = answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag")
        if found:
            return str(found).removeprefix("W/").strip('"')
    return ""


def _continues(response: Any, start: int) -> bool:
    """Whether a response begins at the byte that was asked for."""
    sent = str(response.headers.get("Content-Range", ""))
    return response.status_code == 206 and sent.startswith(f"bytes {start}-")
