"""Any entry of any cache, read as it is stored and checked: for those who look after caches."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.feature_rows import FEATURE_WRITE_OPTIONS, FEATURES_SCHEMA, FeatureRow, read_row
from pipeline.cache.names import PLAN, file_of, split
from pipeline.cache.places import RowPlace
from pipeline.cache.plans import PLAN_SCHEMA, StoredPlan, read_plan
from pipeline.cache.rows import SCHEMA, WRITE_OPTIONS, StoredClip, read_checked
from pipeline.cache.shards import hash_of
from pipeline.storage import Storage

StoredRow = StoredClip | StoredPlan | FeatureRow


def read_entry(
    is_feature: bool, entry: str, storage: Storage, place: RowPlace | None = None
) -> StoredRow:
    """Read one entry, all of its bytes, and check it.

    Args:
        is_feature: Whether it is in a feature cache.
        entry: Its name.
        storage: The cache's directory.
        place: Where it is in a shard; `None` for a file of its own.

    Raises:
        FileNotFoundError: If it is not there.
        CacheError: If it is damaged.
    """
    key, part = split(entry)
    check = read_row if is_feature else read_plan if part == PLAN else read_checked
    if place is None:
        data, where = storage.read(file_of(entry)), storage.path(file_of(entry))
        return check(lambda: pq.read_table(pa.BufferReader(data)), key, hash_of(storage), where)
    fetched = place.fetched()
    where = f"{storage.path(place.file)}, clip {entry},"
    return check(fetched.table, key, hash_of(storage), where)


def layout_of(is_feature: bool, entry: str) -> tuple[pa.Schema, dict[str, object]]:
    """Columns of the files that hold an entry, and how they are written."""
    if is_feature:
        return FEATURES_SCHEMA, dict(FEATURE_WRITE_OPTIONS)
    schema = PLAN_SCHEMA if split(entry)[1] == PLAN else SCHEMA
    return schema, dict(WRITE_OPTIONS)
