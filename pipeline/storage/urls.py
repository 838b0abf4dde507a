"""Parse and validate URLs of object stores."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pipeline.redaction import redacted
from tango_core.errors import InputError

# How people set credentials for a store; a URL is copied into recipes, logs and MLflow.
_CHAINS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials or the machine's role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login` or the "
    "machine's service account",
    "hf": "HF_TOKEN or `hf auth login`",
}
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


class UrlError(InputError):
    """A URL that is not accepted."""


@dataclass(frozen=True)
class Url:
    """A place in a store, used like a `pathlib.Path` where only names are concerned.

    Attributes:
        text: `scheme://bucket/path`, without a slash at the end.
    """

    text: str

    def __str__(self) -> str:
        """The URL."""
        return self.text

    def __truediv__(self, name: str) -> Url:
        """What is called `name` below this."""
        return Url(f"{self.text.rstrip('/')}/{name}")

    @property
    def scheme(self) -> str:
        """Of the store: `s3`, `gs`, `hf`, `memory`."""
        return self.text.partition("://")[0]

    @property
    def path(self) -> str:
        """Bucket and path."""
        return self.text.partition("://")[2].strip("/")

    @property
    def name(self) -> str:
        """The last part."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        """What this is in."""
        return Url(f"{self.scheme}://{posixpath.dirname(self.path)}")


Place = Path | Url
"""A local path, or a URL of a store."""


def is_url(text: str) -> bool:
    """Whether a text names a place in a store; `file://` is a local path."""
    return "://" in text and not text.startswith("file://")


def place(text: str | Path | Url) -> Place:
    """A path or URL as people write it.

    Raises:
        UrlError: If it is a URL with a password or a key in it, or without a bucket.
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
        raise UrlError(
            f"{text}: nothing is read from or written to http and https; download the file, or use "
            "a store (s3://, gs://, hf://)"
        )
    if not path.strip("/"):
        raise UrlError(f"{text}: the URL names no bucket; write {scheme}://BUCKET/FOLDER")
    return Url(f"{_ALIASES.get(scheme, scheme)}://{path.strip('/')}")


def raise_if_secret(url: str) -> None:
    """Refuse a URL that holds a user, a password or a key.

    Raises:
        UrlError: In one line, without the secret.
    """
    if not is_url(url):
        return
    netloc, query = _split(url)
    # hf:// names a revision behind an @ that follows the repository.
    if "@" in netloc:
        what = "a user or a password"
    elif redacted(url) != url and any(redacted(f"?{k}=x") != f"?{k}=x" for k, _ in query):
        what = "a key"
    else:
        return
    scheme = _ALIASES.get(url.partition("://")[0], url.partition("://")[0])
    chain = _CHAINS.get(scheme, "the way its own tools expect them")
    raise UrlError(
        f"{redacted(url)}: a URL must hold no {what.removeprefix('a ')}, because it is copied into "
        f"job.yaml, logs and MLflow; remove it and set the credentials by {chain}"
    )


def _split(url: str) -> tuple[str, list[tuple[str, str]]]:
    """The part before the first slash, and the query."""
    rest = url.partition("://")[2]
    return rest.split("/", 1)[0], parse_qsl(rest.partition("?")[2])
