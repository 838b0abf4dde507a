"""One repository of the hub: its commit, its files, and one file from any byte on."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (
    build_hf_headers,
    fix_hf_endpoint_in_url,
    get_session,
    hf_raise_for_status,
    parse_ratelimit_headers,
)

from tango_core.hub_errors import HUB_ERRORS, TransportError, reason_of

Kind = Literal["dataset", "model"]

_WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class FetchError(OSError):
    """Something could not be fetched or unpacked; one line says what and what to do."""


@dataclass(frozen=True)
class Patience:
    """How long a hub is waited for.

    Attributes:
        tries: Attempts in a row that bring nothing, before it is given up.
        first_wait_s: Seconds before the second attempt; doubled with every further one.
        longest_wait_s: Bound on that.
        longest_asked_s: Bound on what the hub may ask for with `Retry-After`.
    """

    tries: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    longest_asked_s: float = 300.0

    def wait_s(self, failures: int, error: BaseException) -> float | None:
        """Seconds until the next attempt; `None` if there should be none.

        Args:
            failures: Attempts in a row that brought nothing, the last one included.
            error: Why the last one failed.
        """
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(error, HfHubHTTPError) and status not in _WORTH_ANOTHER_TRY:
            return None
        if failures >= self.tries or not isinstance(error, HfHubHTTPError | TransportError):
            return None
        asked = None if response is None else _asked_wait_s(response.headers)
        if asked is not None:
            return asked if asked <= self.longest_asked_s else None
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** (failures - 1))


@dataclass(frozen=True)
class RemoteFile:
    """A file of a commit.

    Attributes:
        path: In the repository.
        size: Bytes.
        digest: SHA-256 of a large file, else the SHA-1 that git gives it; also its ETag.
    """

    path: str
    size: int
    digest: str

    def hasher(self) -> Any:
        """An empty hash whose digest of the whole content is `digest`."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)


@dataclass(frozen=True)
class Commit:
    """What a revision stands for today.

    Attributes:
        sha: 40 hexadecimal digits.
        gated: Whether somebody has to ask for access.
        licence: As the hub's page states it; "" if it does not.
    """

    sha: str
    gated: bool
    licence: str


class Hub:
    """A repository of the hub at one revision.

    Args:
        repository: Its id.
        kind: Of data or of a model.
        revision: Branch, tag or commit.
        patience: How long to wait for it.
    """

    def __init__(
        self, repository: str, kind: Kind, revision: str, patience: Patience | None = None
    ) -> None:
        self.repository, self.kind, self.revision = repository, kind, revision
        self.patience = patience or Patience()
        self.stop = threading.Event()

    def commit(self) -> Commit:
        """Ask what the revision stands for.

        Raises:
            FetchError: If the hub does not say.
        """
        answer = self._json(self._api(f"revision/{quote(self.revision, safe='')}"))
        content = answer.json()
        sha = content.get("sha") if isinstance(content, dict) else None
        if not isinstance(sha, str) or not _COMMIT.fullmatch(sha):
            raise self._strange("names no commit of it")
        card = content.get("cardData")
        licence = card.get("license") if isinstance(card, dict) else None
        if isinstance(licence, list):
            licence = ", ".join(map(str, licence))
        return Commit(sha, bool(content.get("gated")), str(licence or ""))

    def files(self, sha: str) -> list[RemoteFile]:
        """All files of a commit, page by page.

        Raises:
            FetchError: If the hub does not say.
        """
        found: list[RemoteFile] = []
        url: str | None = self._api(f"tree/{sha}?recursive=true&expand=false")
        while url is not None:
            answer = self._json(url)
            entries = answer.json()
            if not isinstance(entries, list):
                raise self._strange("sends no list of its files")
            try:
                found += [_file(entry) for entry in entries if entry["type"] == "file"]
            except (KeyError, TypeError, ValueError):
                raise self._strange("sends a list of files that cannot be read") from None
            following = answer.links.get("next", {}).get("url")
            url = following and fix_hf_endpoint_in_url(following, None)
            if url and urlsplit(url).netloc != urlsplit(constants.ENDPOINT).netloc:
                raise self._strange("continues its list of files on another host")
        return found

    @contextmanager
    def open(self, file: RemoteFile, sha: str, start: int = 0) -> Iterator[Any]:
        """A response that sends a file from a byte on, once; the caller tries again.

        The token goes to the hub and not to the store it redirects to.

        Raises:
            HfHubHTTPError: If the hub refuses.
            TransportError: If it cannot be reached.
        """
        with self._stream("GET", file, sha, {"Range": f"bytes={start}-"} if start else {}) as got:
            yield got

    def raise_if_closed(self, file: RemoteFile, sha: str) -> None:
        """Ask for one file without its content: a gated repository lists files to everyone.

        Raises:
            FetchError: If this account may not have it.
        """

        def ask() -> None:
            with self._stream("HEAD", file, sha, {}, follow_redirects=False):
                pass

        self.patiently(ask)

    def patiently(self, ask: Any) -> Any:
        """Call a function that asks the hub, until it answers or patience ends.

        Raises:
            FetchError: In one line.
        """
        failures = 0
        while True:
            try:
                return ask()
            except FetchError:
                raise
            except HUB_ERRORS as error:
                failures += 1
                wait = self.patience.wait_s(failures, error)
                if wait is None or self.stop.wait(wait):
                    raise self.error(error) from None

    def error(self, error: BaseException) -> FetchError:
        """The one line for an error of the hub."""
        reason = reason_of(error, self.repository, self.revision, self.kind)
        return FetchError(f"{self.repository}: {reason}")

    def url(self, file: RemoteFile, sha: str) -> str:
        """Address of a file."""
        folder = "datasets/" if self.kind == "dataset" else ""
        where = f"{constants.ENDPOINT}/{folder}{self.repository}/resolve"
        return f"{where}/{quote(sha, safe='')}/{quote(file.path)}"

    @contextmanager
    def _stream(
        self, method: str, file: RemoteFile, sha: str, headers: dict[str, str], **options: Any
    ) -> Iterator[Any]:
        # Compressed bytes would be other bytes, which no range could continue.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity", **headers}
        timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        session = get_session()
        with session.stream(
            method, self.url(file, sha), headers=headers, timeout=timeout, **options
        ) as response:
            if response.status_code != 416:
                hf_raise_for_status(response)
            yield response

    def _json(self, url: str) -> Any:
        """A response with a JSON body."""

        def ask() -> Any:
            timeout = float(constants.HF_HUB_ETAG_TIMEOUT)
            response = get_session().get(url, headers=build_hf_headers(), timeout=timeout)
            hf_raise_for_status(response)
            try:
                response.json()
            except ValueError:
                raise self._strange("answers with something else than JSON") from None
            return response

        return self.patiently(ask)

    def _api(self, rest: str) -> str:
        return f"{constants.ENDPOINT}/api/{self.kind}s/{self.repository}/{rest}"

    def _strange(self, what: str) -> FetchError:
        return FetchError(
            f"{self.repository}: the hub at {constants.ENDPOINT} {what}; check HF_ENDPOINT"
        )


def _asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a busy hub asks to wait, in either way; `None` if it does not say."""
    asked = headers.get("Retry-After", "").strip()
    if asked.isdecimal():
        return float(asked)
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def _file(entry: dict[str, Any]) -> RemoteFile:
    """An entry of the hub's list of files."""
    large = entry.get("lfs")
    digest = str(large["oid"] if large else entry["oid"])
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", digest):
        raise ValueError(digest)
    return RemoteFile(str(entry["path"]), int(large["size"] if large else entry["size"]), digest)
