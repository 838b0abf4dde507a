"""`tango cache verify`."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from filled_caches import fill, key_of, path_of


def test_verify_names_what_is_bad_and_why(tango, damaged):
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 1
    *lines, total = out.splitlines()
    reasons = {line.split(": ")[0]: line for line in lines}
    expected = ["is damaged", "checksum differs", f"holds the clip {key_of(4)}", "format is 7"]
    for number, reason in enumerate(expected):
        assert reason in reasons.pop(f"{damaged.name}/{key_of(number)}.parquet")
    assert not reasons
    assert total == "6 clips in 1 token cache(s) read, 4 bad file(s): --delete removes them"
    assert len(damaged.keys()) == 6


def test_verify_deletes_bad_clips_and_nothing_else(tango, damaged):
    (Path(damaged.storage.root) / "notes.parquet").write_text("not ours")
    assert tango("cache", "verify", "--cache", "caches", "--delete")[0] == 1
    assert damaged.keys() == {key_of(4), key_of(5), "notes"}
    code, out, _ = tango("cache", "verify", "--cache", "caches", damaged.name)
    assert (code, out) == (0, "2 clips in 1 token cache(s) read, all good\n")


def test_verify_counts_clips_of_release_0_1_which_stay_good(tango, tmp_path):
    cache = fill(tmp_path / "caches", range(3))
    path = path_of(cache, 1)
    table = pq.read_table(path)
    (row,) = table.to_pylist()
    crc = zlib.crc32(np.array(row["indices"], np.int32).tobytes(), zlib.crc32(row["tokens"]))
    at = table.schema.get_field_index("checksum")
    pq.write_table(table.set_column(at, "checksum", [[f"crc32:{crc:08x}"]]), path)
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 0
    assert out.startswith("3 clips in 1 token cache(s) read")
    assert out.endswith("all good\n")


def test_verify_names_a_clip_of_another_cache(tango, tmp_path):
    own, other = (fill(tmp_path / "caches", [0], name=name) for name in ("tango", "evs"))
    shutil.copy(path_of(other, 0), path_of(own, 0))
    code, out, _ = tango("cache", "verify", "--cache", "caches")
    assert code == 1
    assert f"it belongs to the cache with the hash {other.name[-12:]}" in out


@pytest.mark.parametrize("manifest", [b'{"model":', b'{"model":{"name":"other"}}', None])
def test_verify_checks_the_manifest_and_a_job_writes_it_again(tango, tmp_path, manifest):
    cache = fill(tmp_path / "caches", range(2))
    fill(tmp_path / "caches", range(2), name="evs")
    cache.storage.delete("manifest.json")
    if manifest:
        cache.storage.write("manifest.json", manifest)
    code, out, _ = tango("cache", "verify", "--cache", "caches", "--delete")
    assert code == 1
    assert out.startswith(f"{cache.name}: manifest.json ")
    assert "4 clips in 2 token cache(s) read, 1 bad" in out
    cache.prepare()
    assert tango("cache", "verify", "--cache", "caches")[0] == 0
