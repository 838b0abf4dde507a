"""What the answers of one cell add up to, apart from right and wrong: each measurement once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from jobs.results.distribution import Distribution
from jobs.results.facts import CellFacts
from jobs.results.quantities import CacheCounts, Latencies, Throughput
from tango_core.flops import lengths_per_layer, prefill_flops
from tango_core.models.base import LLMShape

# Columns of the answers: decoding the video file, and generating the reply after its first token.
VIDEO_DECODE_MS = "decode_video_ms"
TEXT_DECODE_MS = "decode_ms"

# Stage -> columns of the answers whose sum it is. The first belong to the clip, the others to a
# question; `segment`, `select` and `merge` are parts of `compress`, `prefill` is one of `ttft`.
CLIP_STAGES = {
    "decode_video": (VIDEO_DECODE_MS,),
    "vision": ("encode_ms",),
    "compress": ("compress_ms",),
    "segment": ("segment_ms",),
    "select": ("select_ms",),
    "merge": ("merge_ms",),
}
QUESTION_STAGES = {
    "cache_read": ("cache_read_ms",),
    "prefill": ("prefill_ms",),
    "ttft": ("ttft_ms",),
    "decode": (TEXT_DECODE_MS,),
}
# End-to-end times: from frames in memory to the first token (the publications' time to the first
# token), and from a file or from the cache to the whole answer. Only a profile has times of one
# method and one question alone, which may be added.
FIRST_TOKEN = ("encode_ms", "compress_ms", "ttft_ms")
END_TO_END = {
    "first_token": FIRST_TOKEN,
    "answer_from_file": (VIDEO_DECODE_MS, *FIRST_TOKEN, TEXT_DECODE_MS),
    "answer_from_cache": ("cache_read_ms", "ttft_ms", TEXT_DECODE_MS),
}


@dataclass
class CellTotals:
    """Sums over the answers of one cell, or of several.

    Attributes:
        tokens_total: Visual tokens of all clips that were encoded.
        tokens_kept: How many of them were kept.
        tokens_with_newlines: The same with the newline tokens that the model adds; `None` where an
            answer does not say, as in runs of earlier versions.
        clip_text_tokens: Text tokens that belong to the clips, such as time stamps and labels of
            frames, each clip once; 0 where no answer says.
        cache: Clips whose tokens were in the cache, and clips that had to be computed.
        generated_ms: Time of text decoding.
        later_tokens: Tokens that were generated in it.
        lengths: (tokens of the prompt, of these visual ones) -> number of questions.
        peak: Largest memory of any clip in GiB, and its owner: `"device"` or `"process"`.
        latency: Stage -> its measurements.
    """

    tokens_total: int = 0
    tokens_kept: int = 0
    tokens_with_newlines: int | None = 0
    clip_text_tokens: int = 0
    cache: CacheCounts = field(default_factory=CacheCounts)
    generated_ms: float = 0.0
    later_tokens: float = 0.0
    lengths: Counter[tuple[int, int]] = field(default_factory=Counter)
    peak: tuple[float | None, str | None] = (None, None)
    latency: dict[str, Distribution] = field(default_factory=dict)

    @classmethod
    def total(cls, parts: list[CellTotals], shared: dict[str, Distribution]) -> CellTotals:
        """The sum over all cells of a run, but for `lengths`.

        Args:
            parts: Of the cells.
            shared: Stages that one pass serves for all cells, with their measurements.
        """
        total = cls()
        for part in parts:
            total.add_tokens(part.tokens_total, part.tokens_kept, part.tokens_with_newlines)
            total.clip_text_tokens += part.clip_text_tokens
            total.cache = CacheCounts.total([total.cache, part.cache])
            total.generated_ms += part.generated_ms
            total.later_tokens += part.later_tokens
            total.add_peak(*part.peak)
            for stage, measured in part.latency.items():
                if stage not in shared:
                    total.latency.setdefault(stage, Distribution()).merge(measured)
        total.latency |= shared
        return total

    def add_tokens(self, total: int, kept: int, with_newlines: int | None) -> None:
        """Count the tokens of some clips."""
        self.tokens_total += total
        self.tokens_kept += kept
        known = self.tokens_with_newlines is not None and with_newlines is not None
        self.tokens_with_newlines = (
            (self.tokens_with_newlines or 0) + (with_newlines or 0) if known else None
        )

    def add_peak(self, gib: float | None, owner: str | None) -> None:
        """Count the memory of some clips; whoever was measured first names the owner."""
        largest, named = self.peak
        if gib is not None:
            self.peak = (max(largest or 0.0, gib), owner if largest is None else named)

    def latencies(self) -> Latencies:
        """Latency per stage, in the order of the stages."""
        order = [*CLIP_STAGES, *QUESTION_STAGES, *END_TO_END]
        found = {stage: self.latency[stage].stats() for stage in order if stage in self.latency}
        return {stage: stats for stage, stats in found.items() if stats is not None}

    def throughput(self, clips: int, questions: int, wall_s: float | None) -> Throughput:
        """Rates over the wall time of the whole run; cells of a sweep overlap and have none."""
        wall = wall_s if wall_s is not None and math.isfinite(wall_s) and wall_s > 0 else None
        seconds = self.generated_ms / 1000
        return Throughput(
            wall_s=wall,
            clips_per_s=clips / wall if wall else None,
            questions_per_s=questions / wall if wall else None,
            text_tokens_per_s=self.later_tokens / seconds if seconds else None,
        )

    def prefill_tflops(self, cell: CellFacts, llm: LLMShape | None) -> float | None:
        """Mean cost of prefilling one question from nothing, in TFLOPs; `None` if unknown."""
        if llm is None or not self.lengths:
            return None
        # Few distinct lengths occur, so the cost of each is computed once.
        shares = cell.layer_shares or (1.0,) * llm.num_layers
        total = math.fsum(
            count * prefill_flops(llm, lengths_per_layer(prompt, kept, shares))
            for (prompt, kept), count in self.lengths.items()
        )
        return total / self.lengths.total() / 1e12
