"""Clips per second of the compress stage when others write: `python -m tests.perf.bench_writing`.

The encoder is one that waits, as for a GPU, and gives 32 x 196 x 3584 tokens in bfloat16. Nine
token sets of 10 to 21 % are stored as tokens, or as plans beside the features. Ratios are of one
run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import torch

from pipeline.cache.features import FeatureStore, open_features
from pipeline.cache.names import SIGNALS
from pipeline.cache.tokens import TokenCache
from pipeline.rows import Row
from pipeline.stages import compress
from pipeline.stages.clip_features import FeatureSource
from pipeline.stages.write_behind import Writers
from tango_core import build_method
from tango_core.types import VisualFeatures
from tests.perf.feature_store import MODEL, clip_features
from tests.perf.timing import about_machine

RESULTS = Path(__file__).parent / "results" / "writing.md"
ENCODE_S = 0.15
CLIPS = 12
PERCENT = (10, 11, 12, 14, 15, 16, 19, 20, 21)
THREADS = (0, 1, 2, 4)


class WaitingEncoder:
    """Gives the same features of every clip, and leaves the processor to others meanwhile."""

    def __init__(self, features: VisualFeatures) -> None:
        self.features = features

    def encode(self, frames: object, needs: frozenset[str]) -> VisualFeatures:
        """See `VisionEncoder`."""
        time.sleep(ENCODE_S)
        return self.features


def stage(root: Path, features: VisualFeatures, writers: Writers, *, stores: bool) -> object:
    """The compress stage with empty caches; its model is not loaded from anywhere."""
    made = object.__new__(compress.CompressVideo)
    made.compressors = {
        f"uniform-{percent}": build_method("uniform", retention=percent / 100).compressor
        for percent in PERCENT
    }
    made.caches = {
        name: TokenCache(str(root), {"model": MODEL, "compressor": one.identity()}, name)
        for name, one in made.compressors.items()
    }
    store = None
    if stores:
        store = FeatureStore(open_features(str(root), MODEL), frozenset(SIGNALS))
        store.cache.prepare()
    made.writers = writers
    device = torch.device("cpu")
    made.source = FeatureSource(lambda: WaitingEncoder(features), store, device, writers)
    return made


def clips(prefix: str, number: int, names: list[str]) -> Iterator[Row]:
    """Decoded clips that every cache lacks."""
    for index in range(number):
        yield {
            "status": "ok",
            "clip_key": f"{prefix}{index:019d}",
            "video_id": str(index),
            "benchmark": "bench",
            "clip_start": None,
            "clip_end": None,
            "source_fingerprint": "stat:1",
            "missing": names,
            "encode": ["tokens"],
            "stored": [],
            "decode_video_ms": 1.0,
            "damage": None,
        }


def seconds(features: VisualFeatures, num_threads: int, *, stores: bool) -> float:
    """Seconds per clip; the first two clips do not count."""
    with tempfile.TemporaryDirectory() as folder:
        ready = stage(Path(folder), features, Writers(num_threads), stores=stores)
        with patch.object(compress, "frames_of", lambda row: row):
            list(ready.stream(clips("a", 2, list(ready.caches))))
            started = time.perf_counter()
            rows = list(ready.stream(clips("b", CLIPS, list(ready.caches))))
            took = time.perf_counter() - started
    assert all(row["status"] == "ok" for row in rows), rows[0]
    return took / CLIPS


def main() -> None:
    """Measure and write the results."""
    torch.set_num_threads(1)
    features = clip_features()
    lines = [
        "# Writing beside the encoder",
        "",
        f"`python -m tests.perf.bench_writing`: the compress stage, whose encoder waits "
        f"{1000 * ENCODE_S:.0f} ms per clip as for a GPU; {len(PERCENT)} token sets of "
        f"{PERCENT[0]} to {PERCENT[-1]} % of 32 x 196 x 3584 tokens.",
        "",
        ", ".join(f"{key} {value}" for key, value in about_machine().items()) + ".",
        "",
        "| threads that write | stored as tokens: ms per clip | ratio "
        "| features: ms per clip | ratio |",
        "|---:|---:|---:|---:|---:|",
    ]
    first: list[float] = []
    for threads in THREADS:
        took = [1000 * seconds(features, threads, stores=stores) for stores in (False, True)]
        first = first or took
        columns = [f"{ms:.0f} | {ms / one:.2f}" for ms, one in zip(took, first, strict=True)]
        lines.append(f"| {threads or 'the stage itself'} | {' | '.join(columns)} |")
    print("\n".join(lines))
    RESULTS.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
