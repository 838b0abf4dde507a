"""Which clips are in which shard, in one file: a plan then reads one object, not one per shard.

Only caches in object stores have one: there every question is a request. It is written after the
shards that it names and is only a short cut: a shard that is not in it is asked itself, and what it
says of a shard that has gone is passed over. One of an earlier release has no marks
(`contents.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pipeline.cache.contents import UNKNOWN, Content
from pipeline.seal import DamagedFileError, read_sealed, write_sealed
from pipeline.storage import Storage

logger = logging.getLogger(__name__)

# Not called `.parquet`: readers of `*.parquet` take that for clips.
INDEX = "shards.index"
_MARKS = "tokens"


def write_index(storage: Storage, shards: Mapping[str, Content], cache: str) -> None:
    """Write the index of a cache.

    Args:
        storage: The cache's directory.
        shards: Name of a shard -> what is in it.
        cache: Hash of the cache.
    """
    names = pa.array(list(shards), pa.string())
    which = np.repeat(np.arange(len(shards)), [len(held.entries) for held in shards.values()])
    keys = pa.array([key for held in shards.values() for key in held.entries], pa.string())
    table = pa.table({"shard": names.take(pa.array(which, pa.int64())), "key": keys})
    if shards:
        marks = np.concatenate([held.marks for held in shards.values()])
        table = table.append_column(_MARKS, pa.array(marks, pa.uint64()))
    write_sealed(table, storage, INDEX, cache)


def read_index(storage: Storage) -> dict[str, Content]:
    """What is in every shard of the index, by the shard's name; empty if there is no good index."""
    try:
        table = read_sealed(storage, INDEX, must=True).table
    except FileNotFoundError:
        return {}
    except DamagedFileError as error:
        logger.warning("%s; the shards are asked one by one", error)
        return {}
    if table.num_rows == 0:
        return {}
    encoded = table["shard"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    names, keys = encoded.dictionary.to_pylist(), table["key"].to_pylist()
    if _MARKS in table.column_names:
        marks = table[_MARKS].to_numpy()
    else:
        marks = np.full(len(keys), UNKNOWN, np.uint64)
    return {
        names[codes[start]]: Content(tuple(keys[start:stop]), marks[start:stop])
        for start, stop in zip(starts, [*starts[1:], len(keys)], strict=True)
    }
