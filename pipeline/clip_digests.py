"""Clips by digests of their names, and texts of Arrow as numbers: what answers are counted with."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ClipName = tuple[str, str]
"""Benchmark and video id."""

Digests = npt.NDArray[np.bytes_]
Codes = npt.NDArray[np.int64]


def clip_digest(benchmark: str, video_id: str) -> bytes:
    """16 bytes that stand for a clip: a million names take 16 MB, and never collide in practice."""
    name = f"{benchmark}\0{video_id}".encode(errors="surrogatepass")
    return hashlib.blake2b(name, digest_size=16).digest()


def question_digest(question_id: str) -> int:
    """64 bits that stand for a question of a clip."""
    name = question_id.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def clips_of(table: pa.Table) -> tuple[Codes, list[ClipName]]:
    """The clips of a table.

    Returns:
        (n,) number of every row's clip, and the clips' names by number.
    """
    benchmark_codes, benchmarks = encoded(table["benchmark"])
    video_codes, videos = encoded(table["video_id"])
    both = benchmark_codes * max(1, len(videos)) + video_codes
    found, codes = np.unique(both, return_inverse=True)
    names = [(benchmarks[one // len(videos)], videos[one % len(videos)]) for one in found.tolist()]
    return codes.astype(np.int64), names


def digests_of(names: list[ClipName]) -> Digests:
    """(k,) digests of clips."""
    return np.array([clip_digest(*name) for name in names], dtype="S16")


def is_in(digests: Digests, among: Digests) -> npt.NDArray[np.bool_]:
    """(n,) whether each digest is among others, which are sorted."""
    if not len(among):
        return np.zeros(len(digests), dtype=bool)
    at = np.minimum(np.searchsorted(among, digests), len(among) - 1)
    return np.asarray(among[at] == digests)


def encoded(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """A column of texts as numbers, and the texts by number; -1 stands for no text."""
    array = column.dictionary_encode().combine_chunks()
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), array.dictionary.to_pylist()
