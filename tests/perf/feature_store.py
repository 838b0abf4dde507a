"""Bytes and read times of the feature store at 7B geometry: `python -m tests.perf.feature_store`.

One clip of 32 x 196 x 3584 in bfloat16. Its token sets are stored, and computed from its stored
features, in turns; everything is in the page cache. Ratios are of one run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from pipeline.cache.derived import derived
from pipeline.cache.directory import TokenCache
from pipeline.cache.features import FeatureCache, ReadFeatures, open_features
from pipeline.cache.names import SIGNALS, file_of
from pipeline.cache.rows import ClipIdentity, Entry, FeatureDtype
from tango_core import build_method
from tango_core.compressors.base import Compressor
from tango_core.types import VisualFeatures
from tests.perf.compress_cases import make_features
from tests.perf.timing import about_machine

RESULTS = Path(__file__).parent / "results" / "feature_store.md"
METHODS = ("tango", "visionzip", "vidcom2", "fastvid", "holitom", "prunevid", "divprune")
RETENTIONS = (0.1, 0.15, 0.2)
REPEATS = 5
CLIP = ClipIdentity("0123456789abcdef0123", "clip", None, "stat:1")
MODEL = {"name": "bench", "digest": "d", "frames": {"num_frames": 32}}


def clip_features() -> VisualFeatures:
    """Half of the cells stand still within scenes; every signal is there."""
    found = make_features("scenes", dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    frames, cells = found.tokens.shape[:2]
    return replace(
        found,
        attention=torch.randn(frames, cells, generator=generator).softmax(dim=-1),
        keys=torch.randn(frames, cells, 72, generator=generator),
        frame_embeddings=torch.randn(frames, 1152, generator=generator),
    )


class Stored:
    """The caches of one root: features, and token sets.

    Args:
        root: Where they are.
        features: Of the clip.
        dtype: How the feature cache stores tokens.
    """

    def __init__(self, root: Path, features: VisualFeatures, dtype: FeatureDtype = "auto") -> None:
        self.given = features
        self.compressors: dict[str, Compressor] = {}
        self.tokens: dict[str, TokenCache] = {}
        self.features: FeatureCache = open_features(str(root), MODEL, dtype)
        self.features.prepare()
        self.features.prepared(CLIP, features, SIGNALS, (1.0, 1.0))()
        self._root = root

    def add(self, name: str, compressor: Compressor) -> None:
        """Store one token set, and see that the features give the same."""
        identity = {"model": MODEL, "compressor": {"name": name}}
        self.compressors[name] = compressor
        self.tokens[name] = TokenCache(str(self._root), identity, "tokens")
        video = compressor.compress(self.given)
        self.tokens[name].write(CLIP, Entry(video, 1.0, 1.0, 1.0))
        again = derived(compressor, self.read()).video
        assert torch.equal(again.tokens, video.tokens)
        assert torch.equal(again.indices, video.indices)

    def read(self) -> ReadFeatures:
        """The stored features with all signals."""
        return self.features.read(CLIP.key, self.features.parts(), frozenset(SIGNALS))


def size_of(cache: TokenCache | FeatureCache) -> int:
    """Bytes of all entries of a cache."""
    return sum(file.size for file in cache.storage.files() if file.name.endswith(".parquet"))


def milliseconds(run: Callable[[], object]) -> float:
    """Processor time of one call, so that other work on the machine does not count."""
    started = time.process_time()
    run()
    return 1000 * (time.process_time() - started)


def set_times(stored: Stored, name: str, found: ReadFeatures) -> tuple[float, float]:
    """Median ms to read one token set, and to compute it from features that have been read."""
    read, made = [], []
    for _ in range(REPEATS):
        read.append(milliseconds(lambda: stored.tokens[name].read(CLIP.key)))
        made.append(milliseconds(lambda: derived(stored.compressors[name], found)))
    return statistics.median(read), statistics.median(made)


def sweep_times(stored: Stored, names: list[str]) -> tuple[float, float]:
    """Median ms to have all token sets of the clip one after the other, as a sweep answers it."""

    def compute() -> None:
        found = stored.read()
        for name in names:
            derived(stored.compressors[name], found)

    tokens, computed = [], []
    for _ in range(3):
        tokens.append(milliseconds(lambda: [stored.tokens[n].read(CLIP.key) for n in names]))
        computed.append(milliseconds(compute))
    return statistics.median(tokens), statistics.median(computed)


def bytes_table(stored: Stored, names: list[str]) -> list[str]:
    """What 21 token sets take."""
    raw = stored.given.tokens.numel() * 2
    full, features = size_of(stored.tokens["full"]), size_of(stored.features)
    tokens = sum(size_of(stored.tokens[name]) for name in names)
    own = stored.features.storage.size(file_of(CLIP.key))
    rows = [
        ("all tokens as the encoder gives them, bytes in memory", raw),
        ("the token set `full` as a token cache stores it (zstd)", full),
        ("21 token sets (7 methods x 3 retentions)", tokens),
        ("features: tokens", own),
        ("features: signals", features - own),
        ("features (tokens and signals), from which the 21 token sets are computed", features),
    ]
    return [
        "| | MB | of the bytes in memory | of `full` as stored |",
        "|---|---:|---:|---:|",
        *(f"| {what} | {n / 1e6:.2f} | {n / raw:.3f} | {n / full:.3f} |" for what, n in rows),
    ]


def main() -> None:
    """Measure and write the results."""
    torch.set_num_threads(1)
    features = clip_features()
    with tempfile.TemporaryDirectory() as folder:
        stored = Stored(Path(folder), features)
        stored.add("full", build_method("full").compressor)
        names = []
        for method in METHODS:
            for retention in RETENTIONS:
                names.append(f"{method} r={retention:g}")
                stored.add(names[-1], build_method(method, retention=retention).compressor)
        lines = [
            "# The feature store at 7B geometry",
            "",
            "`python -m tests.perf.feature_store`: one clip, 32 x 196 x 3584 in bfloat16.",
            "",
            ", ".join(f"{key} {value}" for key, value in about_machine().items()) + ".",
            "",
            "## Bytes",
            "",
            *bytes_table(stored, names),
            "",
            "## Time to have one token set",
            "",
            f"Median processor time of {REPEATS} turns on one thread of the CPU, ms. A clip's",
            "features are read once for all methods; a GPU computes a token set in milliseconds.",
            "",
            "| token set | stored: read | computed from features |",
            "|---|---:|---:|",
        ]
        found = stored.read()
        reading = statistics.median(milliseconds(stored.read) for _ in range(REPEATS))
        for name in ["full", *(n for n in names if n.endswith("r=0.1"))]:
            read, made = set_times(stored, name, found)
            lines.append(f"| {name} | {read:.1f} | {made:.1f} |")
        tokens, computed = sweep_times(stored, names)
        lines += [
            "",
            f"The features of the clip with all signals are read in {reading:.0f} ms. All 21 token",
            f"sets of the clip in turn: {tokens:.0f} ms from stored tokens, {computed:.0f} ms from",
            "features.",
            "",
        ]
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
