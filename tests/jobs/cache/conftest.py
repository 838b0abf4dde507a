"""A token cache with bad clips."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filled_caches import fill, path_of


@pytest.fixture
def damaged(tmp_path):
    """A cache of six clips of which four are bad, each for another reason."""
    cache = fill(tmp_path / "caches", range(6))
    paths = [path_of(cache, number) for number in range(6)]
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    middle = bytearray(paths[1].read_bytes())
    middle[len(middle) // 3] ^= 0xFF
    paths[1].write_bytes(middle)
    shutil.copy(paths[4], paths[2])
    table = pq.read_table(paths[3])
    at = table.schema.get_field_index("format_version")
    pq.write_table(table.set_column(at, "format_version", pa.array([7], pa.int32())), paths[3])
    return cache
