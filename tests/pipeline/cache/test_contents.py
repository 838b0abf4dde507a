"""What shards say of which tokens their entries are."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.cache.contents import NO_MARKS, UNKNOWN, Marks, mark_of, packed, unpacked
from pipeline.cache.shards import KEYS, MARKS, Shards
from pipeline.storage import Storage

SHARD = "shard-20260101T000000-00000001.parquet"


def test_the_mark_is_the_beginning_of_a_digest():
    assert mark_of("00000000000000ff" + "a" * 16) == 255
    assert mark_of("f" * 32) == 2**64 - 1


@pytest.mark.parametrize("digest", [None, "", "f" * 31, "g" * 32, "0" * 32])
def test_what_is_no_digest_has_no_mark(digest):
    assert mark_of(digest) == UNKNOWN


def test_marks_survive_as_text():
    marks = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert unpacked(packed(marks).encode()).tolist() == marks.tolist()


def marks_of(**values):
    return Marks(pa.array(values, pa.string()), np.array(list(values.values()), np.uint64))


def test_clips_are_compared_where_both_have_marks():
    ours, theirs = marks_of(a=1, b=2, c=2**64 - 1, d=4), marks_of(d=5, c=2**64 - 1, a=1, e=2)
    assert ours.compared(theirs) == ({"a", "c"}, {"d"})
    assert ours.compared(NO_MARKS) == NO_MARKS.compared(theirs) == (set(), set())


@pytest.mark.parametrize("said", [packed(np.ones(1, np.uint64)), "no hex", "00ff"])
def test_a_shard_whose_marks_are_not_those_of_its_entries_is_unreadable(tmp_path, said, caplog):
    about = {KEYS: json.dumps(["a", "b"]), MARKS: said}
    table = pa.table({"x": [1, 2]}).replace_schema_metadata(about)
    pq.write_table(table, tmp_path / SHARD, row_group_size=1)
    shards = Shards(Storage.at(tmp_path))
    shards.refresh()
    assert (shards.by_key(), list(shards.unreadable)) == ({}, [SHARD])
    assert "its clips are made again" in caplog.text
