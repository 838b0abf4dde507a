"""Parse and validate URLs of object stores."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pipeline.redaction import redacted
from tango_core.errors import InputError

_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


class UrlError(InputError):
    """A URL that is not accepted."""


@dataclass(frozen=True)
class Url:
    """URL in an object store, with the name operations of `pathlib.Path`.

    Attributes:
        text: `scheme://bucket/path`, without a trailing slash.
    """

    text: str

    def __str__(self) -> str:
        """The URL."""
        return self.text

    def __truediv__(self, name: str) -> Url:
        """The URL of `name` in this directory."""
        return Url(f"{self.text.rstrip('/')}/{name}")

    @property
    def scheme(self) -> str:
        """Scheme of the store: `s3`, `gs`, `hf`, `memory`."""
        return self.text.partition("://")[0]

    @property
    def path(self) -> str:
        """Bucket and path."""
        return self.text.partition("://")[2].strip("/")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        """The URL of the parent directory."""
        return Url(f"{self.scheme}://{posixpath.dirname(self.path)}")


Place = Path | Url
"""A local path, or a URL of a store."""


def is_url(text: str) -> bool:
    """Whether a string is a URL of an object store; `file://` is a local path."""
    return "://" in text and not text.startswith("file://")


def place(text: str | Path | Url) -> Place:
    """Parse a path or URL written by a user.

    Raises:
        UrlError: If it is a URL with credentials, without a bucket, or with http or https.
    """
    if isinstance(text, Path | Url):
        return text
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    if not is_url(text):
        return Path(text)
    raise_if_secret(text)
    scheme, _, path = text.partition("://")
    if scheme.lower() in ("http", "https"):
        raise UrlError(f"{text}: http and https are not supported; use s3://, gs:// or hf://")
    if not path.strip("/"):
        raise UrlError(f"{text}: the URL has no bucket; write {scheme}://BUCKET/FOLDER")
    return Url(f"{_ALIASES.get(scheme, scheme)}://{path.strip('/')}")


def raise_if_secret(url: str) -> None:
    """Refuse a URL that contains a user, a password or a key.

    Raises:
        UrlError: If it does; the message does not contain the secret.
    """
    if not is_url(url):
        return
    scheme, _, rest = url.partition("://")
    keys = [key for key, _ in parse_qsl(rest.partition("?")[2])]
    # hf:// URLs may have a revision after an @ that follows the repository.
    if "@" in rest.split("/", 1)[0]:
        what = "user or a password"
    elif redacted(url) != url and any(redacted(f"?{key}=x") != f"?{key}=x" for key in keys):
        what = "key"
    else:
        return
    raise UrlError(
        f"{redacted(url)}: a URL must hold no {what}, because it is copied into logs and runs; set "
        f"the credentials as {scheme}'s own tools expect them (AWS_PROFILE, HF_TOKEN, ...)"
    )
