import json

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from pipeline.cache.directory import TokenCache
from pipeline.cache.export import export_cache
from pipeline.cache.folders import find_caches
from pipeline.cache.names import clip_key
from pipeline.cache.rows import ClipIdentity, Entry
from tango_core.types import CompressedVideo

KEPT = {"first": (0, 5, 7), "none": (), "last": (1, 2)}


@pytest.fixture
def written(tmp_path):
    """A cache of three clips in bfloat16, and what is in it by video id."""
    identity = {"model": {"name": "m"}, "compressor": {"name": "tango"}}
    cache = TokenCache(str(tmp_path / "caches"), identity, "m-tango")
    cache.prepare()
    videos = {}
    for number, (video_id, kept) in enumerate(KEPT.items()):
        tokens = torch.randn(len(kept), 16, generator=torch.Generator().manual_seed(number))
        videos[video_id] = CompressedVideo(
            tokens.bfloat16(),
            torch.tensor(kept, dtype=torch.int64),
            (2, 2, 3),
            torch.tensor([0.0, 0.5], dtype=torch.float64),
        )
        clip = None if number else (1.0, 2.5)
        identity = ClipIdentity(clip_key(video_id, clip), video_id, clip, f"stat:{video_id}")
        cache.write(identity, Entry(videos[video_id], 1.0, 2.0, 3.0))
    return videos


def export(tmp_path, form, destination="out"):
    (folder,) = find_caches(str(tmp_path / "caches"))
    reported = []
    export_cache(folder, str(tmp_path / destination), form, lambda *line: reported.append(line))
    assert reported == []
    return tmp_path / destination


def test_safetensors_hold_the_same_bits_and_say_which_clip_they_are(written, tmp_path):
    folder = export(tmp_path, "safetensors")
    lines = [json.loads(line) for line in (folder / "clips.jsonl").read_text().splitlines()]
    assert {line["video_id"] for line in lines} == set(written)
    for line in lines:
        video = written[line["video_id"]]
        with safe_open(str(folder / line["file"]), "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        assert torch.equal(found["tokens"].view(torch.int16), video.tokens.view(torch.int16))
        assert torch.equal(found["indices"], video.indices)
        assert torch.equal(found["timestamps"], video.timestamps)
        assert found["grid"].tolist() == line["grid"] == [2, 2, 3]
        assert (line["num_tokens_kept"], line["num_tokens_total"]) == (video.num_kept, 12)
        assert metadata["video_id"] == line["video_id"]
        assert metadata.get("clip_end") == ("2.5" if line["video_id"] == "first" else None)
    assert json.loads((folder / "manifest.json").read_text())["compressor"] == {"name": "tango"}


def test_parquet_holds_tokens_as_lists_that_any_reader_understands(written, tmp_path):
    folder = export(tmp_path, "parquet")
    assert pq.ParquetFile(folder / "clips-00000.parquet").num_row_groups == 3
    frame = pd.read_parquet(folder / "clips-00000.parquet").set_index("video_id")
    for video_id, video in written.items():
        tokens = np.array(frame.tokens[video_id].tolist(), np.float32).reshape(-1, 16)
        np.testing.assert_array_equal(tokens, video.tokens.float().numpy())
        assert frame.indices[video_id].tolist() == video.indices.tolist()
    query = f"select video_id, len(tokens), clip_end from '{folder}/*.parquet' order by video_id"
    assert duckdb.sql(query).fetchall() == [("first", 3, 2.5), ("last", 2, None), ("none", 0, None)]


def test_an_export_that_ends_early_has_no_manifest(written, tmp_path):
    (folder,) = find_caches(str(tmp_path / "caches"))
    folder.storage.write(folder.singles[1].name, b"damaged")

    def stop(*_):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        export_cache(folder, str(tmp_path / "out"), "parquet", stop)
    assert list((tmp_path / "out").iterdir()) == []
