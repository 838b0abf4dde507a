"""What shards hold, and of which tokens: plans and features are compared without reading any.

A plan states the digest of the tokens that it was made for, and a clip's features that of the
tokens that they are. Eight bytes of it, the mark, stand in a shard's footer beside the entry's
name, where a listing sees them. An entry with a file of its own has none, nor has one in a shard of
an earlier release: whether these fit is not known before they are read.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

UNKNOWN = 0
"""The mark of an entry that has none."""

DIGEST = "tokens_digest"
"""Column of plans and of features: of which tokens of a clip they are."""

_DIGEST = re.compile(r"[0-9a-f]{32}")
_DIGITS = 16
_PACKED = np.dtype("<u8")


@dataclass(frozen=True)
class Content:
    """What is in a shard.

    Attributes:
        entries: Their names, in order.
        marks: (entries,) uint64; `UNKNOWN` for those that have none.
    """

    entries: tuple[str, ...]
    marks: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Marks:
    """Of which tokens the entries of some clips are.

    Attributes:
        keys: Of the clips, each once; strings.
        values: (clips,) uint64, none of them `UNKNOWN`.
    """

    keys: pa.Array
    values: npt.NDArray[np.uint64]

    def compared(self, others: Marks) -> tuple[set[str], set[str]]:
        """Keys of the clips whose marks are the same in both, and of those whose marks differ."""
        if not len(self.values) or not len(others.values):
            return set(), set()
        found = pc.index_in(self.keys, value_set=others.keys)
        there = found.is_valid().to_numpy(zero_copy_only=False)
        equal = self.values == others.values[found.fill_null(0).to_numpy()]
        same, other = (
            set(self.keys.filter(pa.array(there & chosen)).to_pylist())
            for chosen in (equal, ~equal)
        )
        return same, other


# Not `pa.array`, which imports pandas.
NO_MARKS = Marks(pa.nulls(0, pa.string()), np.zeros(0, np.uint64))


@dataclass(frozen=True)
class Held:
    """Clips whose tokens a feature cache holds.

    Attributes:
        keys: Of all of them.
        marks: Of the tokens of those in shards.
    """

    keys: Set[str]
    marks: Marks


def digest_in(table: pa.Table) -> str | None:
    """Of which tokens the only row of an entry is; `None` for one that does not say."""
    return table[DIGEST][0].as_py() if DIGEST in table.column_names else None


def mark_of(digest: str | None) -> int:
    """The beginning of a digest as a number; `UNKNOWN` for what is no digest."""
    is_one = digest is not None and _DIGEST.fullmatch(digest)
    return int(digest[:_DIGITS], 16) if digest and is_one else UNKNOWN


def packed(marks: npt.NDArray[np.uint64]) -> str:
    """Marks as text, sixteen characters each."""
    return marks.astype(_PACKED).tobytes().hex()


def unpacked(text: str | bytes) -> npt.NDArray[np.uint64]:
    """The reverse of `packed`.

    Raises:
        ValueError: If it is no such text.
    """
    held = bytes.fromhex(text if isinstance(text, str) else text.decode())
    return np.frombuffer(held, _PACKED).astype(np.uint64)
