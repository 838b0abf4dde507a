"""Bytes and read times of the feature store at 7B geometry: `python -m tests.perf.feature_store`.

One clip of 32 x 196 x 3584 in bfloat16. Its token sets are stored twice, as tokens and as plans
beside the features, and read back in turns; everything is in the page cache. Ratios are of one run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from zlib_ng.zlib_ng import crc32

from pipeline.cache.features import FeatureCache, open_features
from pipeline.cache.names import SIGNALS, entry_name, file_of
from pipeline.cache.plans import PlanEntry
from pipeline.cache.quantised import FeatureDtype
from pipeline.cache.rows import ClipIdentity, Entry
from pipeline.cache.tokens import TokenCache
from tango_core import build_method
from tango_core.compressors.base import Compressor
from tango_core.types import VisualFeatures
from tests.perf.compress_cases import make_features
from tests.perf.timing import about_machine

RESULTS = Path(__file__).parent / "results" / "feature_store.md"
METHODS = ("tango", "visionzip", "vidcom2", "fastvid", "holitom", "prunevid", "divprune")
RETENTIONS = (0.1, 0.15, 0.2)
REPEATS = 15
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
    """The caches of one root: features, and token sets as tokens and as plans.

    Args:
        root: Where they are.
        features: Of the clip.
        dtype: How the feature cache stores tokens.
    """

    def __init__(self, root: Path, features: VisualFeatures, dtype: FeatureDtype = "auto") -> None:
        self.given = features
        self.plans: dict[str, TokenCache] = {}
        self.tokens: dict[str, TokenCache] = {}
        self.features: FeatureCache = open_features(str(root / "plans"), MODEL, dtype)
        self.features.prepare()
        self.digest = self.features.write(CLIP, features, SIGNALS, (1.0, 1.0))
        self._root = root

    def add(self, name: str, compressor: Compressor) -> None:
        """Store one token set in both ways; one without a plan is tokens in both."""
        identity = {"model": MODEL, "compressor": {"name": name}}
        tokens = TokenCache(str(self._root / "tokens"), identity, "tokens")
        plans = TokenCache(str(self._root / "plans"), identity, "plans")
        video = compressor.compress(self.given)
        tokens.write(CLIP, Entry(video, 1.0, 1.0, 1.0))
        if compressor.has_plan or compressor.retention >= 1:
            plan = compressor.plan(self.given)
            width = self.given.tokens.shape[2]
            plans.write_plan(
                CLIP,
                PlanEntry(
                    plan, self.features.name, self.digest, "bfloat16", width, None, 1.0, 1.0, 1.0
                ),
            )
        else:
            plans.write(CLIP, Entry(video, 1.0, 1.0, 1.0))
        self.tokens[name], self.plans[name] = tokens, plans.with_features(self.features)
        read = plans.read(CLIP.key).video
        assert torch.equal(read.tokens, video.tokens)
        assert torch.equal(read.indices, video.indices)


def is_plan(cache: TokenCache) -> bool:
    """Whether the token set in a cache is a plan."""
    return cache.storage.exists(file_of(entry_name(CLIP.key, "plan")))


def size_of(cache: TokenCache | FeatureCache) -> int:
    """Bytes of all entries of a cache."""
    return sum(file.size for file in cache.storage.files() if file.base_name.endswith(".parquet"))


def close(features: FeatureCache) -> None:
    """Let the next reading open the clip again, as the first one of a clip does in a job."""
    if features._last is not None:
        features._last.row = replace(features._last.row, clip=replace(CLIP, key="another"))


def milliseconds(run: Callable[[], object]) -> float:
    """Processor time of one call, so that other work on the machine does not count."""
    started = time.process_time()
    run()
    return 1000 * (time.process_time() - started)


def read_times(stored: Stored, name: str, baseline: str) -> tuple[float, float, float]:
    """Median ms to read stored tokens, and the same through a plan: alone, and after another one.

    Args:
        stored: The caches.
        name: Of the token set.
        baseline: Token set whose stored tokens are read in turn.
    """
    own, alone, shared = [], [], []
    for _ in range(REPEATS):
        own.append(milliseconds(lambda: stored.tokens[baseline].read(CLIP.key)))
        close(stored.features)
        alone.append(milliseconds(lambda: stored.plans[name].read(CLIP.key)))
        shared.append(milliseconds(lambda: stored.plans[name].read(CLIP.key)))
    return statistics.median(own), statistics.median(alone), statistics.median(shared)


def sweep_times(stored: Stored, names: list[str]) -> tuple[float, float]:
    """Median ms to read all token sets of the clip one after the other, as a sweep answers it."""
    tokens, plans = [], []
    for _ in range(5):
        tokens.append(milliseconds(lambda: [stored.tokens[n].read(CLIP.key) for n in names]))
        close(stored.features)
        plans.append(milliseconds(lambda: [stored.plans[n].read(CLIP.key) for n in names]))
    return statistics.median(tokens), statistics.median(plans)


def least_times(stored: Stored) -> tuple[float, float]:
    """Least ms to read the features' file into memory in use, and to make a CRC-32 of it."""
    path = stored.features.storage.path(file_of(CLIP.key))
    data = bytearray(Path(path).read_bytes())

    def read() -> None:
        with Path(path).open("rb", buffering=0) as file:
            file.readinto(data)

    return (
        min(milliseconds(read) for _ in range(REPEATS)),
        min(milliseconds(lambda: crc32(data)) for _ in range(REPEATS)),
    )


def bytes_table(stored: Stored, names: list[str]) -> list[str]:
    """What 21 token sets take."""
    raw = stored.given.tokens.numel() * 2
    full, features = size_of(stored.tokens["full"]), size_of(stored.features)
    tokens = sum(size_of(stored.tokens[name]) for name in names)
    plans = sum(size_of(stored.plans[name]) for name in names)
    own = stored.features.storage.size(file_of(CLIP.key))
    rows = [
        ("all tokens as the encoder gives them, bytes in memory", raw),
        ("the token set `full` as a token cache stores it (zstd)", full),
        ("21 token sets as tokens (7 methods x 3 retentions)", tokens),
        ("features: tokens", own),
        ("features: signals", features - own),
        ("21 token sets as plans", plans),
        ("features (tokens) and 21 plans", own + plans),
        ("features (tokens and signals) and 21 plans", features + plans),
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
        stored.add("uniform r=0.1", build_method("uniform", retention=0.1).compressor)
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
            "## Time to read one token set",
            "",
            "Median processor time of 15 readings in turn on one thread, ms. *Alone*: the clip's",
            "features are opened for it. *Shared*: another token set of the clip was read before,",
            "as in a sweep. A method that keeps tokens as they are reads those alone; one that",
            "merges reads what it merges, up to the whole clip, and adds it up.",
            "",
            "| token set | stored as | tokens read | stored tokens of 10 % | alone | ratio | "
            "shared | ratio |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
        ]
        for name in ["uniform r=0.1", *(n for n in names if n.endswith("r=0.1")), "full"]:
            own, alone, shared = read_times(stored, name, "uniform r=0.1")
            found, kind = stored.plans[name], "tokens"
            asked = found.read(CLIP.key).video.num_kept
            if is_plan(found):
                kind, plan = "plan", found.read_stored(CLIP.key).table
                sources = plan["sources"][0].as_py()
                asked = len(set(sources)) if sources else asked
            lines.append(
                f"| {name} | {kind} | {asked} | {own:.1f} | {alone:.1f} | {alone / own:.2f} | "
                f"{shared:.1f} | {shared / own:.2f} |"
            )
        tokens, plans = sweep_times(stored, names)
        least = least_times(stored)
        lines += [
            "",
            f"All 21 token sets of the clip in turn: {tokens:.0f} ms from stored tokens, "
            f"{plans:.0f} ms through plans, ratio {plans / tokens:.2f}.",
            "",
            f"A method that merges every token reads {features.tokens.numel() * 2e-6:.0f} MB where "
            f"stored tokens of 10 % are {size_of(stored.tokens['uniform r=0.1']) / 1e6:.1f} MB.",
            "Reading the features' file into memory that is in use takes at least "
            f"{least[0]:.1f} ms, and its CRC-32 {least[1]:.1f} ms,",
            f"together {sum(least) / own:.1f} times a reading of stored tokens; what is read is "
            "then added up, the most of what *shared* takes.",
            "",
        ]
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
