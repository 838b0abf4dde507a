"""Names of cache entries: the key of a clip, and the part of it that an entry holds; digests.

    KEY                      a token set, or in a feature cache all tokens of a clip
    KEY-attention-saliency   in a feature cache, signals of a clip
    KEY-plan                 written by earlier releases; never read, removed by `tango cache gc`

A single file of an entry is `<entry>.parquet`; a shard lists the entries that it holds. So a
directory listing is enough to find the entries of every clip, without opening a file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tango_core.local_files import identity
from tango_core.video.headers import decoding_revision

TOKENS = "tokens"
PLAN = "plan"
SIGNALS = ("attention", "frame_embeddings", "keys", "saliency")
"""The fields of `VisualFeatures` that `cache.features: all` stores of every clip."""
LARGE_SIGNALS = (
    *("deep_attention", "merged_attention", "shallow_attention"),
    *("text_aligned", "tower_tokens", "unpooled_tokens"),
)
"""Fields of `VisualFeatures` that are stored only for jobs with a method that reads them."""
FRAME_MAP = ("frame_map", "source_timestamps")
"""Fields that are stored with the tokens of an encoder that merges frames."""

_FILE = re.compile(r"[0-9a-f]{20}(?:-[a-z_]+)*\.parquet")
_SUFFIX = ".parquet"


def file_of(entry: str) -> str:
    """Name of the single file of an entry."""
    return f"{entry}{_SUFFIX}"


def entry_of(file: str) -> str:
    """Name of the entry in a single file."""
    return file.removesuffix(_SUFFIX)


def is_entry_file(name: str) -> bool:
    """Whether a file name is that of a single file of an entry."""
    return _FILE.fullmatch(name) is not None


def entry_name(key: str, part: str) -> str:
    """Name of the entry of a part of a clip: `TOKENS`, or one of `signals_parts`."""
    return key if part == TOKENS else f"{key}-{part}"


def split(entry: str) -> tuple[str, str]:
    """Key of the clip and part that an entry holds."""
    key, _, part = entry.partition("-")
    return key, part or TOKENS


def signals_parts(names: Iterable[str]) -> list[str]:
    """Names of the parts that hold these signals: one for all of `SIGNALS`, one for large ones."""
    signals, large = set(names), set(LARGE_SIGNALS)
    return ["-".join(sorted(group)) for group in (signals - large, signals & large) if group]


def held_by(parts: Iterable[str]) -> frozenset[str]:
    """`TOKENS` and names of signals that parts of a feature cache hold."""
    return frozenset(name for part in parts for name in part.split("-"))


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
    at every path. Files that this version decodes differently than earlier ones get another
    fingerprint than before (`decoding_revision`).

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
