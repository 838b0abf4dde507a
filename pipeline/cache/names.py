"""Names of cache entries: the key of a clip, and the part of it that an entry holds.

    KEY                      a token set, or in a feature cache all tokens of a clip
    KEY-attention-saliency   in a feature cache, signals of a clip
    KEY-plan                 written by earlier releases; never read, removed by `tango cache gc`

An entry with a file of its own is `<entry>.parquet`; a shard names the entries that it holds. So
one listing says what there is of every clip, and nothing is opened for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

TOKENS = "tokens"
PLAN = "plan"
SIGNALS = ("attention", "frame_embeddings", "keys", "saliency")
"""The optional fields of `VisualFeatures`."""

_FILE = re.compile(r"[0-9a-f]{20}(?:-[a-z_]+)*\.parquet")
_SUFFIX = ".parquet"


def file_of(entry: str) -> str:
    """The file that an entry may have of its own."""
    return f"{entry}{_SUFFIX}"


def entry_of(file: str) -> str:
    """The entry in a file of its own."""
    return file.removesuffix(_SUFFIX)


def is_entry_file(name: str) -> bool:
    """Whether a file is named like one of an entry."""
    return _FILE.fullmatch(name) is not None


def entry_name(key: str, part: str) -> str:
    """The entry of a part of a clip: `TOKENS`, or what `signals_part` made."""
    return key if part == TOKENS else f"{key}-{part}"


def split(entry: str) -> tuple[str, str]:
    """Key and part of an entry."""
    key, _, part = entry.partition("-")
    return key, part or TOKENS


def signals_part(names: Iterable[str]) -> str:
    """The part that holds these signals."""
    return "-".join(sorted(names))


def held_by(parts: Iterable[str]) -> frozenset[str]:
    """What parts of a feature cache hold: `TOKENS` and names of signals."""
    return frozenset(name for part in parts for name in part.split("-"))
