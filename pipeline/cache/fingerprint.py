"""Digests of source files, clips and settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tango_core.local_files import identity
from tango_core.video.headers import decoding_revision


class SourceMissingError(FileNotFoundError):
    """A clip's file is not there, or is no file; the clip becomes a failed row."""


def canonical_json(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces: equal settings give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(text: str, length: int = 12) -> str:
    """The first `length` hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:length]


def source_fingerprint(path: str, hash_content: bool = False) -> str:
    """Identify the bytes of a video file or of a directory of frames.

    By default from absolute path, size and modification time: one system call, and a replaced file
    is another source. With `hash_content` from the bytes: slower, and the same on every machine and
    at every path. Files that are decoded differently than by earlier versions are other sources
    than they were (`readers.revision`).

    Raises:
        SourceMissingError: If there is nothing at `path` that can be read as a video.
    """
    try:
        found = identity(Path(path), hash_content)
        revision = decoding_revision(path)
        return f"{found}:{revision}" if revision else found
    except OSError as error:
        raise SourceMissingError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file system can hold
        raise SourceMissingError(f"{path!r}: {error}") from error


def clip_key(fingerprint: str, clip: tuple[float, float] | None) -> str:
    """Name of one clip in every cache: its source and its bounds, and nothing else."""
    bounds = "whole" if clip is None else f"{float(clip[0])!r}-{float(clip[1])!r}"
    return digest(f"{fingerprint}|{bounds}", 20)
