"""The token cache: what one compressor kept of every clip, as Parquet files that any reader opens.

`<root>/<readable-name>-<hash12>/` holds `manifest.json` (the settings behind the hash) and one
Parquet file per clip,
named by the clip's key. A file is put in place whole, so "is it there?" is the whole resume logic:
a killed writer leaves nothing visible, and two jobs may fill one cache at once (both would write
the same bytes).

Tokens are stored as bytes with their dtype and shape beside them: bfloat16 survives, and plain
pandas, pyarrow and DuckDB read every column without Ray or torch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pipeline.fingerprint import canonical_json, digest
from pipeline.rows import source_of
from pipeline.storage import Storage
from tango_core.compressors.base import Compressor
from tango_core.models.base import ModelSpec
from tango_core.types import CompressedVideo

FORMAT_VERSION = 1

SCHEMA = pa.schema(
    [
        ("clip_key", pa.string()),
        ("video_id", pa.string()),
        ("clip_start", pa.float64()),
        ("clip_end", pa.float64()),
        ("source_fingerprint", pa.string()),
        ("indices", pa.list_(pa.int32())),
        ("tokens", pa.large_binary()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int32())),
        ("grid", pa.list_(pa.int32())),
        ("timestamps", pa.list_(pa.float64())),
        ("duration_s", pa.float64()),
        ("frame_height", pa.int32()),
        ("num_tokens_total", pa.int32()),
        ("num_tokens_kept", pa.int32()),
        ("checksum", pa.string()),
        ("decode_ms", pa.float64()),
        ("encode_ms", pa.float64()),
        ("compress_ms", pa.float64()),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("format_version", pa.int32()),
    ]
)


class CacheError(ValueError):
    """A cache entry or directory is not what it should be."""


@dataclass(frozen=True)
class ClipIdentity:
    """Which clip of which file an entry belongs to.

    Attributes:
        key: See `fingerprint.clip_key`.
        video_id: The benchmark's name for the clip, for people who read the files.
        clip: (start, end) in seconds, or `None` for the whole file.
        source_fingerprint: See `fingerprint.source_fingerprint`.
    """

    key: str
    video_id: str
    clip: tuple[float, float] | None
    source_fingerprint: str


@dataclass(frozen=True)
class Entry:
    """One row of the cache.

    Attributes:
        video: The kept tokens, on the CPU.
        decode_ms: Time to decode the clip, in milliseconds.
        encode_ms: Time of the vision encoder.
        compress_ms: Time of the compressor.
    """

    video: CompressedVideo
    decode_ms: float
    encode_ms: float
    compress_ms: float


class TokenCache:
    """The token sets of one (model, sampling, compressor) setting.

    Args:
        root: Directory or URL that holds all caches.
        identity: JSON-able settings; equal identities share one directory.
        label: Readable beginning of the directory's name.
    """

    def __init__(self, root: str, identity: Mapping[str, Any], label: str) -> None:
        self.manifest = canonical_json({"format_version": FORMAT_VERSION, **identity})
        self.name = f"{label}-{digest(self.manifest)}"
        self.storage = Storage.at(root).child(self.name)

    def prepare(self) -> None:
        """Write the manifest, or check the one that is there.

        Raises:
            CacheError: If the directory was written with other settings.
        """
        if not self.storage.exists("manifest.json"):
            self.storage.write("manifest.json", self.manifest.encode())
            return
        found = self.storage.read("manifest.json").decode()
        if canonical_json(json.loads(found)) != self.manifest:
            raise CacheError(
                f"{self.storage.root} was written with other settings than its name says; "
                "use another --cache directory or delete it"
            )

    def keys(self) -> set[str]:
        """Keys of the clips that are here, from one directory listing; no file is opened."""
        return {name.removesuffix(".parquet") for name in self.storage.names(".parquet")}

    def write(self, clip: ClipIdentity, entry: Entry) -> None:
        """Add one clip; an entry with the same key is replaced."""
        table = pa.Table.from_pylist([_to_row(clip, entry)], schema=SCHEMA)
        sink = pa.BufferOutputStream()
        # Token bytes are nearly random: dictionaries and statistics cost time and save nothing.
        pq.write_table(
            table,
            sink,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,
        )
        self.storage.write(f"{clip.key}.parquet", memoryview(sink.getvalue()))

    def discard(self, key: str) -> None:
        """Remove a damaged clip, so that the next job computes it again."""
        if self.storage.exists(f"{key}.parquet"):
            self.storage.delete(f"{key}.parquet")

    def read(self, key: str) -> Entry:
        """Read one clip and check it.

        Raises:
            FileNotFoundError: If the clip is not here.
            CacheError: If the file is damaged.
        """
        data = self.storage.read(f"{key}.parquet")
        try:
            row = pq.read_table(pa.BufferReader(data)).to_pylist()[0]
        except (pa.ArrowException, IndexError) as error:
            raise CacheError(f"{self.storage.path(key)}.parquet cannot be read: {error}") from error
        if row["checksum"] != _checksum(row["tokens"], row["indices"]):
            raise CacheError(f"{self.storage.path(key)}.parquet is damaged (checksum differs)")
        return _from_row(row)


def open_cache(root: str, model: ModelSpec, compressor: Compressor) -> TokenCache:
    """The cache of one compressor on one model; equal settings always give the same directory."""
    options = compressor.identity()
    label = "-".join([model.name, f"{model.frames.num_frames}f", str(options["name"])])
    if compressor.retention < 1:
        label += f"-r{compressor.retention:g}"
    return TokenCache(root, {"model": model.identity(), "compressor": options}, label)


def _checksum(tokens: bytes, indices: list[int]) -> str:
    """CRC-32 of the payload: catches damage, not malice."""
    return (
        f"crc32:{zlib.crc32(np.asarray(indices, dtype=np.int32).tobytes(), zlib.crc32(tokens)):08x}"
    )


def _to_row(clip: ClipIdentity, entry: Entry) -> dict[str, Any]:
    """Flatten an entry into the columns of `SCHEMA`."""
    video = entry.video
    # As bytes, because numpy has no bfloat16.
    raw = video.tokens.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    indices = video.indices.cpu().tolist()
    start, end = clip.clip if clip.clip is not None else (None, None)
    return {
        "clip_key": clip.key,
        "video_id": clip.video_id,
        "clip_start": start,
        "clip_end": end,
        "source_fingerprint": clip.source_fingerprint,
        "indices": indices,
        "tokens": raw,
        "dtype": str(video.tokens.dtype).removeprefix("torch."),
        "shape": list(video.tokens.shape),
        "grid": list(video.grid),
        "timestamps": video.timestamps.cpu().tolist(),
        "duration_s": video.source.duration_s if video.source else None,
        "frame_height": video.source.frame_height if video.source else None,
        "num_tokens_total": video.num_total,
        "num_tokens_kept": video.num_kept,
        "checksum": _checksum(raw, indices),
        "decode_ms": entry.decode_ms,
        "encode_ms": entry.encode_ms,
        "compress_ms": entry.compress_ms,
        "created_at": datetime.now(timezone.utc),
        "format_version": FORMAT_VERSION,
    }


def _from_row(row: Mapping[str, Any]) -> Entry:
    """Rebuild an entry from the columns of `SCHEMA`."""
    dtype = getattr(torch, row["dtype"])
    tokens = (
        torch.frombuffer(bytearray(row["tokens"]), dtype=dtype)
        if row["tokens"]
        else torch.empty(0, dtype=dtype)
    )
    frames, height, width = row["grid"]
    return Entry(
        video=CompressedVideo(
            tokens=tokens.reshape(row["shape"]),
            indices=torch.tensor(row["indices"], dtype=torch.int64),
            grid=(frames, height, width),
            timestamps=torch.tensor(row["timestamps"], dtype=torch.float64),
            source=source_of(row),
        ),
        decode_ms=row["decode_ms"],
        encode_ms=row["encode_ms"],
        compress_ms=row["compress_ms"],
    )
