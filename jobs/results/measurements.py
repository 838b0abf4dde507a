"""Sums, latencies, replies and failures of every cell, accumulated over parts of the answers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from jobs.results import quantities
from jobs.results.answer_columns import FAILED_BIT, UNPARSED, AnswerColumns, Values
from jobs.results.facts import CellFacts
from tango_core.flops import lengths_per_layer, prefill_flops
from tango_core.models.base import LLMShape

# Stage -> column of the answers. The first belong to the clip, the others to a question; `segment`,
# `select` and `merge` are parts of `compress`, `prefill` is one of `ttft`. `decode_video` decodes
# the video file, `decode` generates the reply after its first token.
CLIP_STAGES = {
    "decode_video": "decode_video_ms",
    "vision": "encode_ms",
    "compress": "compress_ms",
    "segment": "segment_ms",
    "select": "select_ms",
    "merge": "merge_ms",
}
QUESTION_STAGES = {
    "cache_read": "cache_read_ms",
    "prefill": "prefill_ms",
    "ttft": "ttft_ms",
    "decode": "decode_ms",
}
# End-to-end times: from frames in memory to the first token (the publications' time to the first
# token), and from a file or from the cache to the whole answer. Only profiles have them: in
# throughput mode methods and questions share work, so the times of stages cannot be added.
FIRST_TOKEN = ("encode_ms", "compress_ms", "ttft_ms")
END_TO_END = {
    "first_token": FIRST_TOKEN,
    "answer_from_file": ("decode_video_ms", *FIRST_TOKEN, "decode_ms"),
    "answer_from_cache": ("cache_read_ms", "ttft_ms", "decode_ms"),
}
# Stage of `Measurements`: `compress` for all but the first question of a clip, by methods that read
# the question.
_LATER = "compress for later questions"
_STAGES = (*CLIP_STAGES, *QUESTION_STAGES, *END_TO_END)
_TOKENS = ("tokens_total", "tokens_kept", "tokens_with_newlines", "clip_text_tokens")
_NUMBERS = (
    *_TOKENS,
    *CLIP_STAGES.values(),
    *QUESTION_STAGES.values(),
    *("prompt_tokens", "new_tokens", "encode_tflops", "peak_gib"),
)
_NUM_EXAMPLES, _EXAMPLE_LENGTH = 2, 40
_NAMED_CLIPS = 5
# Times are kept for quantiles until this many answers have been added; means cover all answers.
_MOST_TIMED = 10_000_000

# The columns that identify a clip under a method (cell).
_PAIR = ["clip", "cell"]
# Benchmark and name of a cell.
Cell = tuple[str, str]
# Cells are numbered from 0. `_RUN` stands for measurements that all cells share, `_UNKNOWN` for a
# cell without answers.
_RUN, _UNKNOWN = -1, -2


class Measurements:
    """Sums and measured times of every cell.

    Latencies count measurements, not rows: decoding, vision and compression once per clip and only
    where this run did them. In throughput mode the questions about a clip share its prefill, which
    is counted once, with the clip's first question.

    Args:
        profile: Whether the run is a profile, which measures every question alone.
    """

    def __init__(self, *, profile: bool) -> None:
        self._cells: dict[Cell, int] = {}
        self._profile = profile
        # Stages that run once for all methods; a profile encodes again for every method.
        self._shared = ("decode_video",) if profile else ("decode_video", "vision")
        # (Name of a quantity, number of a cell) -> its sum, and the number of its values.
        self._sums: Counter[tuple[str, int]] = Counter()
        self._counts: Counter[tuple[str, int]] = Counter()
        # Stage and cell -> the milliseconds, part by part.
        self._times: defaultdict[tuple[str, int], list[Values]] = defaultdict(list)
        self._num_rows = 0
        self._peaks: dict[int, tuple[float, str | None]] = {}
        # (Cell, length of the prompt, visual tokens in it) -> number of answers.
        self._lengths: Counter[tuple[int, int, int]] = Counter()
        self._rules: defaultdict[int, Counter[str]] = defaultdict(Counter)
        # Examples of replies that could not be parsed.
        self._unparsed: defaultdict[int, dict[str, None]] = defaultdict(dict)
        # Failed answers by status, error and clip.
        self._failures: list[pd.Series[int]] = []

    def add(self, answers: AnswerColumns) -> None:
        """Add a table of answers; it must hold all answers about each of its clips."""
        numbers = [self._cells.setdefault(name, len(self._cells)) for name in answers.cell_names]
        rows = pd.DataFrame({name: answers.numbers(name) for name in _NUMBERS})
        rows["clip"] = answers.clips
        rows["cell"] = pd.Series(numbers, dtype="int64").to_numpy()[answers.cells]
        rows["failed"] = (answers.bits & FAILED_BIT) > 0
        for name in ("cache", "status", "error", "text", "reading_rule", "peak_of"):
            codes, texts = answers.texts(name)
            rows[name] = pd.Categorical.from_codes(codes, pd.Index(texts, dtype=object))
        self._add_clips(rows)
        self._add_times(rows)
        self._add_generation(rows)
        self._add_replies(rows, rows[(answers.bits & UNPARSED) > 0])
        failed = rows[rows["failed"]].astype({"status": str, "error": object})
        clips = failed["clip"].map(lambda clip: answers.clip_names[clip][1])
        names = [failed["status"], failed["error"].fillna(""), clips]
        self._failures.append(failed.groupby(names, sort=False).size())

    def _add_clips(self, rows: pd.DataFrame) -> None:
        counted = rows.dropna(subset=["tokens_total", "tokens_kept"]).drop_duplicates(_PAIR)
        for name in _TOKENS:
            self._sum(name, counted, name)
        outcomes = rows.drop_duplicates(_PAIR).groupby(["cell", "cache"], observed=True).size()
        for (cell, outcome), count in cast("dict[tuple[int, str], int]", outcomes).items():
            # Token sets that are pruned from stored features count as hits.
            self._sums["hit" if outcome == "derived" else outcome, cell] += count

    def _sum(self, name: str, rows: pd.DataFrame, column: str) -> None:
        """Add to the sum of a quantity by cell, and to the number of its values."""
        for cell, total, count in rows.groupby("cell")[column].agg(["sum", "count"]).itertuples():
            self._sums[name, cell] += total
            self._counts[name, cell] += count

    def _measure(self, stage: str, rows: pd.DataFrame, column: str) -> None:
        """Add measurements of a stage."""
        self._sum(stage, rows, column)
        if self._num_rows < _MOST_TIMED:
            for cell, ms in rows.groupby("cell")[column]:
                self._times[stage, cast("int", cell)].append(ms.dropna().to_numpy())

    def _add_times(self, rows: pd.DataFrame) -> None:
        missed, reached = rows[rows["cache"] == "miss"], rows[~rows["failed"]]
        pruned = rows[rows["cache"].isin(["miss", "derived"])]
        encoded, computed, paying = (o.drop_duplicates(_PAIR) for o in (missed, pruned, reached))
        for stage, column in CLIP_STAGES.items():
            own = encoded if stage in ("decode_video", "vision") else computed
            self._measure(stage, own, column)
        # Methods that read the question prune a clip once per distinct text; answers with equal
        # texts repeat the same time.
        texts = pruned.drop_duplicates([*_PAIR, "compress_ms"])
        self._measure(_LATER, texts.drop(computed.index), "compress_ms")
        self._sum("encode_tflops", encoded, "encode_tflops")
        for stage in self._shared:
            once = missed.drop_duplicates("clip").assign(cell=_RUN)
            self._measure(stage, once, CLIP_STAGES[stage])
        for stage, column in QUESTION_STAGES.items():
            each = stage == "decode" or (self._profile and stage != "cache_read")
            self._measure(stage, reached if each else paying, column)
        if self._profile:
            # Only the first question has the time of reading the cache; it is added to the others.
            read = reached.groupby(_PAIR)["cache_read_ms"].transform("first")
            waited = reached.assign(cache_read_ms=read)
            for stage, columns in END_TO_END.items():
                total = waited[list(columns)].sum(axis=1, skipna=False)
                self._measure(stage, waited.assign(total=total), "total")
        self._num_rows += len(rows)

    def _add_generation(self, rows: pd.DataFrame) -> None:
        later = rows[(rows["new_tokens"] > 1) & (rows["decode_ms"] > 0)]
        self._sum("generated_ms", later, "decode_ms")
        self._sum("later_tokens", later.assign(later=later["new_tokens"] - 1), "later")
        asked = rows[(rows["prompt_tokens"] > 0) & (rows["tokens_kept"] <= rows["prompt_tokens"])]
        lengths = asked[["cell", "prompt_tokens", "tokens_kept"]].astype(int)
        for row, count in lengths.value_counts(sort=False).items():
            self._lengths[cast("tuple[int, int, int]", row)] += count
        peaks = rows.dropna(subset=["peak_gib"]).groupby("cell")
        for cell, peak, owner in peaks.agg({"peak_gib": "max", "peak_of": "first"}).itertuples():
            before, first_owner = self._peaks.get(cell, (0.0, owner))
            self._peaks[cell] = max(before, peak), first_owner

    def _add_replies(self, rows: pd.DataFrame, unparsed: pd.DataFrame) -> None:
        """Count the parsing rules of replies, and keep examples of replies without one."""
        read = rows[["cell", "reading_rule"]].dropna()
        for cell, rule in zip(read["cell"], read["reading_rule"], strict=True):
            self._rules[cell][rule] += 1
        for cell, text in zip(unparsed["cell"], unparsed["text"].astype(object), strict=True):
            if len(own := self._unparsed[cell]) < _NUM_EXAMPLES:
                own[" ".join(str(text or "").split())[:_EXAMPLE_LENGTH]] = None

    def totals(
        self, cell: Cell | None, *, reads_question: bool, peak_gib: float | None
    ) -> dict[str, Any]:
        """Cache, memory and latencies of a cell; `None` for all cells together.

        The memory is the largest peak of a clip, or `peak_gib` if no answer has one.
        """
        cells = self._numbers(cell)
        peaks = [self._peaks[one] for one in cells if one in self._peaks]
        hits, misses = (int(self._total(name, cells)) for name in ("hit", "miss"))
        return {
            "cache": quantities.CacheCounts(hits, misses),
            "peak_gib": max((peak for peak, _ in peaks), default=peak_gib),
            "peak_of": peaks[0][1] if peaks else None,
            "latency_ms": self._latencies(cells, cell is None, reads_question),
        }

    def tokens(self, cell: Cell) -> dict[str, Any]:
        """Tokens of a cell, summed over the clips that were encoded.

        `tokens_with_newlines` is `None` if an answer lacks it, as in runs of earlier versions.
        """
        cells = self._numbers(cell)
        found: dict[str, Any] = {name: int(self._total(name, cells)) for name in _TOKENS}
        if self._count("tokens_with_newlines", cells) != self._count("tokens_total", cells):
            found["tokens_with_newlines"] = None
        return found

    def _numbers(self, cell: Cell | None) -> list[int]:
        """Numbers of a cell, or of all."""
        return list(self._cells.values()) if cell is None else [self._cells.get(cell, _UNKNOWN)]

    def _total(self, name: str, cells: Sequence[int]) -> float:
        return math.fsum(self._sums[name, one] for one in cells)

    def _count(self, name: str, cells: Sequence[int]) -> int:
        return sum(self._counts[name, one] for one in cells)

    def throughput(
        self,
        cell: Cell | None,
        counts: quantities.QuestionCounts | None = None,
        wall_s: float | None = None,
    ) -> quantities.Throughput:
        """Rates over the wall time of the run; `None` for a cell of a sweep, as cells overlap."""
        cells = self._numbers(cell)
        seconds = self._total("generated_ms", cells) / 1000
        tokens = self._total("later_tokens", cells) / seconds if seconds else None
        if not (wall_s and counts):
            return quantities.Throughput(wall_s, text_tokens_per_s=tokens)
        rates = counts.num_clips / wall_s, counts.num_questions / wall_s
        return quantities.Throughput(wall_s, *rates, tokens)

    def prefill_tflops(self, cell: CellFacts, llm: LLMShape | None) -> float | None:
        """Mean cost of prefilling one question from nothing, in TFLOPs; `None` if unknown."""
        (number,) = self._numbers((cell.benchmark, cell.name))
        # Few distinct lengths of the prompt, and of its visual tokens, occur.
        lengths = [(*key, n) for (own, *key), n in self._lengths.items() if own == number]
        if llm is None or not lengths:
            return None
        shares = cell.layer_shares or (1.0,) * llm.num_layers
        total = math.fsum(
            count * prefill_flops(llm, lengths_per_layer(prompt, kept, shares))
            for prompt, kept, count in lengths
        )
        return total / sum(count for *_, count in lengths) / 1e12

    def encoder_tflops(self, cell: Cell) -> float | None:
        """Mean cost of encoding a clip, in TFLOPs; `None` if unknown."""
        cells = self._numbers(cell)
        count = self._count("encode_tflops", cells)
        return self._total("encode_tflops", cells) / count if count else None

    def _latencies(
        self, cells: Sequence[int], shared: bool, reads_question: bool
    ) -> dict[str, quantities.LatencyStats]:
        found = {}
        for stage in _STAGES:
            own = [_RUN] if shared and stage in self._shared else cells
            names = [stage, _LATER] if reads_question and stage == "compress" else [stage]
            count = sum(self._count(name, own) for name in names)
            parts = [part for n in names for cell in own for part in self._times[n, cell]]
            if count and any(map(len, parts)):
                mean = sum(self._total(name, own) for name in names) / count
                p50, p90, p95 = np.quantile(np.concatenate(parts), [0.5, 0.9, 0.95]).tolist()
                found[stage] = quantities.LatencyStats(p50, p90, p95, mean, count)
        return found

    def readings(self, cell: Cell) -> quantities.Readings:
        """Parsing rules of a cell's replies, and examples of replies that could not be parsed."""
        (number,) = self._numbers(cell)
        rules = dict(self._rules[number].most_common())
        return quantities.Readings(rules, tuple(self._unparsed[number]))


def first_token_ms(latency: quantities.Latencies) -> float | None:
    """Whole time to the first token from the latencies of a cell; see `CellSummary`."""
    if "first_token" in latency:
        return latency["first_token"].p50
    parts = [latency[one].p50 for one in ("vision", "compress", "ttft") if one in latency]
    return sum(parts) if len(parts) == 3 else None


def failures_of(runs: Iterable[Measurements]) -> quantities.FailureList:
    """Why answers of some runs failed, the reason with the most clips first."""
    parts = [part for run in runs for part in run._failures if len(part)]
    if not parts:
        return quantities.FailureList()
    reasons = []
    for key, own in pd.concat(parts).groupby(level=[0, 1]):
        examples = tuple(own.index.get_level_values(2)[:_NAMED_CLIPS])
        status, error = map(str, cast("tuple[str, str]", key))
        found = quantities.FailureReason(status, error, len(own), int(own.sum()), examples)
        reasons.append(found)
    reasons.sort(key=lambda one: (-one.clips, one.error))
    more = max(0, len(reasons) - quantities.MAX_REASONS)
    return quantities.FailureList(tuple(reasons[: quantities.MAX_REASONS]), more)
