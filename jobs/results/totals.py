"""Sums and latencies of every cell, added up from tables of answers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from jobs.results.answer_columns import FAILED_BIT, AnswerColumns, Values, by_code, first_of
from jobs.results.facts import CellFacts
from jobs.results.quantities import CacheCounts, Latencies, LatencyStats, Throughput
from pipeline.progress.parts import Codes
from tango_core.flops import lengths_per_layer, prefill_flops
from tango_core.models.base import LLMShape

EXACT_UP_TO = 2**20
"""Measurements that are kept as they are; quantiles of more are off by at most 0.05 %."""

# A bin holds the values with the same exponent and the same first 10 bits of the fraction.
_SHIFT = 52 - 10
_LOWEST = 2.0**-30
_NUM_BINS = 64 << 10
_QUANTILES = (0.5, 0.9, 0.95)


class Distribution:
    """Takes measurements batch by batch; gives their mean and quantiles.

    The mean is exact however many there are. Values are at least 0; below 1e-9 and above 1e10 they
    count as these limits once they are in bins.
    """

    def __init__(self, exact_up_to: int = EXACT_UP_TO) -> None:
        self.count, self.total = 0, 0.0
        self._exact_up_to = exact_up_to
        self._values = np.empty(0)
        self._bins: npt.NDArray[np.int64] | None = None

    def add(self, values: Values) -> None:
        """Take some measurements, none of them NaN."""
        if not len(values):
            return
        count = self.count
        self.count += len(values)
        self.total += float(values.sum())
        if self._bins is not None:
            self._bins += _binned(values)
        elif self.count > self._exact_up_to:
            self._bins = _binned(self._values[:count]) + _binned(values)
            self._values = np.empty(0)
        else:
            if self.count > len(self._values):
                room = min(self._exact_up_to, max(2 * len(self._values), self.count))
                self._values = np.concatenate([self._values[:count], np.empty(room - count)])
            self._values[count : self.count] = values

    def merge(self, other: Distribution) -> None:
        """Take all measurements of another distribution."""
        if other._bins is None:
            self.add(other._values[: other.count])
            return
        if self._bins is None:
            self._bins = _binned(self._values[: self.count])
            self._values = np.empty(0)
        self._bins += other._bins
        self.count += other.count
        self.total += other.total

    def stats(self) -> LatencyStats | None:
        """Mean and quantiles; `None` without a measurement."""
        if not self.count:
            return None
        if self._bins is None:
            values = self._values[: self.count]
            p50, p90, p95 = np.quantile(values, _QUANTILES).tolist()
            return LatencyStats(p50, p90, p95, mean=float(values.mean()), n=self.count)
        ends = np.cumsum(self._bins)
        ranks = np.asarray(_QUANTILES) * (self.count - 1)
        p50, p90, p95 = _middles(np.searchsorted(ends, ranks, side="right")).tolist()
        return LatencyStats(p50, p90, p95, mean=self.total / self.count, n=self.count)


def _binned(values: Values) -> npt.NDArray[np.int64]:
    """(_NUM_BINS,) how many values are in each bin."""
    keys = (np.maximum(values, _LOWEST).view(np.int64) >> _SHIFT) - _key_of_lowest()
    return np.bincount(np.minimum(keys, _NUM_BINS - 1), minlength=_NUM_BINS).astype(np.int64)


def _middles(bins: npt.NDArray[np.int64]) -> Values:
    """The value in the middle of each bin."""
    keys = (bins.astype(np.int64) + _key_of_lowest()) << _SHIFT
    return np.asarray((keys + (1 << (_SHIFT - 1))).view(np.float64))


def _key_of_lowest() -> int:
    """Number of the bin of the lowest value, counted from that of 0."""
    return int(np.array([_LOWEST]).view(np.int64)[0] >> _SHIFT)


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


class TotalsOfTable:
    """Adds one table of answers to the totals of its cells.

    Latencies count measurements, not rows: decoding, vision and compression once per clip and only
    where this run did them. In throughput mode a clip's first question pays for the prefix.

    Args:
        columns: The table.
        totals: Of every cell of the table, by its number there.
        shared: Receives what is measured once for all cells.
        profile: Whether every question was measured alone.
    """

    def __init__(
        self,
        columns: AnswerColumns,
        totals: list[CellTotals],
        shared: dict[str, Distribution],
        *,
        profile: bool,
    ) -> None:
        self.columns, self.totals, self.shared, self.profile = columns, totals, shared, profile
        self._reached = (columns.bits & FAILED_BIT) == 0
        self._everywhere = np.ones(len(columns), dtype=bool)

    def add(self) -> None:
        """Add everything."""
        self._tokens()
        self._cache()
        self._generation()
        self._lengths()
        self._peak()
        self._clip_stages()
        self._question_stages()
        if self.profile:
            self._end_to_end()

    def _split(self, rows: Codes) -> list[tuple[CellTotals, Codes]]:
        """Rows by the totals of their cell."""
        return [(self.totals[code], own) for code, own in by_code(self.columns.cells, rows)]

    def _tokens(self) -> None:
        total, kept = (self.columns.numbers(name) for name in ("tokens_total", "tokens_kept"))
        with_newlines = self.columns.numbers("tokens_with_newlines")
        clip_text = np.nan_to_num(self.columns.numbers("clip_text_tokens"))
        known = ~np.isnan(total) & ~np.isnan(kept)
        for cell, rows in self._split(first_of(self.columns.per_cell, known)):
            newlines = with_newlines[rows].sum()
            cell.add_tokens(
                int(total[rows].sum()),
                int(kept[rows].sum()),
                None if np.isnan(newlines) else int(newlines),
            )
            cell.clip_text_tokens += int(clip_text[rows].sum())

    def _cache(self) -> None:
        hit, miss = (self.columns.equals("cache", state) for state in ("hit", "miss"))
        for cell, rows in self._split(first_of(self.columns.per_cell, self._everywhere)):
            own = CacheCounts(int(hit[rows].sum()), int(miss[rows].sum()))
            cell.cache = CacheCounts.total([cell.cache, own])

    def _generation(self) -> None:
        new, ms = self.columns.numbers("new_tokens"), self.columns.numbers(TEXT_DECODE_MS)
        for cell, rows in self._split(((new > 1) & (ms > 0)).nonzero()[0]):
            cell.generated_ms += float(ms[rows].sum())
            cell.later_tokens += float((new[rows] - 1).sum())

    def _lengths(self) -> None:
        prompt, kept = (self.columns.numbers(name) for name in ("prompt_tokens", "tokens_kept"))
        for cell, rows in self._split(((prompt > 0) & (kept <= prompt)).nonzero()[0]):
            keys = prompt[rows].astype(np.int64) << 32 | kept[rows].astype(np.int64)
            found, counts = np.unique(keys, return_counts=True)
            for key, count in zip(found.tolist(), counts.tolist(), strict=True):
                cell.lengths[key >> 32, key & 0xFFFFFFFF] += count

    def _peak(self) -> None:
        if not self.columns.has("peak_gib"):
            return
        gib = self.columns.numbers("peak_gib")
        codes, owners = self.columns.texts("peak_of")
        for cell, rows in self._split((~np.isnan(gib)).nonzero()[0]):
            first = codes[rows[0]]
            cell.add_peak(float(gib[rows].max()), owners[first] if first >= 0 else None)

    def _clip_stages(self) -> None:
        computed = self.columns.equals("cache", "miss")
        for stage, (column,) in CLIP_STAGES.items():
            if not self.columns.has(column):
                continue
            values = self.columns.numbers(column)
            measured = computed & ~np.isnan(values)
            self._measured(stage, values, first_of(self.columns.per_cell, measured))
            # One decode and, but for a profile, one encoder pass serve all methods.
            if stage == "decode_video" or (stage == "vision" and not self.profile):
                rows = first_of(self.columns.clips, measured)
                self.shared.setdefault(stage, Distribution()).add(values[rows])

    def _question_stages(self) -> None:
        for stage, (column,) in QUESTION_STAGES.items():
            if not self.columns.has(column):
                continue
            values = self.columns.numbers(column)
            rows = self._reached.nonzero()[0]
            if stage == "cache_read" or (not self.profile and stage in ("prefill", "ttft")):
                rows = first_of(self.columns.per_cell, self._reached)
            self._measured(stage, values, rows[~np.isnan(values[rows])])

    def _end_to_end(self) -> None:
        # Reading the cache is measured with the first question; the others wait as long for it.
        read = self.columns.numbers("cache_read_ms")
        first = first_of(self.columns.per_cell, self._reached & ~np.isnan(read))
        waited = np.full(int(self.columns.per_cell.max(initial=0)) + 1, np.nan)
        waited[self.columns.per_cell[first]] = read[first]
        for stage, names in END_TO_END.items():
            times = sum_of(self.columns, names, cache_read_ms=waited[self.columns.per_cell])
            self._measured(stage, times, (self._reached & ~np.isnan(times)).nonzero()[0])

    def _measured(self, stage: str, values: Values, rows: Codes) -> None:
        """Add the values of some rows to a stage of their cells."""
        for cell, own in self._split(rows):
            cell.latency.setdefault(stage, Distribution()).add(values[own])


def sum_of(columns: AnswerColumns, names: tuple[str, ...], **instead: Values) -> Values:
    """(n,) sum over columns, NaN where one of them is; `instead` stands for columns."""
    parts: list[npt.NDArray[np.float64]] = [
        instead[name] if name in instead else columns.numbers(name) for name in names
    ]
    return np.asarray(np.sum(parts, axis=0))
