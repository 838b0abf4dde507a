"""Sums, latencies, replies and failures of every cell, added up part by part."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.results import quantities
from jobs.results.answer_columns import FAILED_BIT, OK, UNPARSED, AnswerColumns, Mask, Values
from jobs.results.facts import CellFacts
from pipeline.progress.parts import Codes
from tango_core.flops import lengths_per_layer, prefill_flops
from tango_core.models.base import LLMShape

# Columns of the answers: decoding the video file, and generating the reply after its first token.
VIDEO_DECODE_MS, TEXT_DECODE_MS = "decode_video_ms", "decode_ms"
# Stage -> column of the answers. The first belong to the clip, the others to a question; `segment`,
# `select` and `merge` are parts of `compress`, `prefill` is one of `ttft`.
CLIP_STAGES = {
    "decode_video": VIDEO_DECODE_MS,
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
    "decode": TEXT_DECODE_MS,
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
# Times of `compress` for the later questions of a clip.
_LATER = "compress for later questions"
_STAGES = (*CLIP_STAGES, *QUESTION_STAGES, *END_TO_END)
_TOKENS = ("tokens_total", "tokens_kept", "tokens_with_newlines", "clip_text_tokens")
_NUM_EXAMPLES, _SEARCHED, _EXAMPLE_LENGTH = 2, 100, 40
_NAMED_CLIPS = 5
# Answers up to which all times are kept for quantiles; of more, a random sample of this size.
_MOST_EXACT = 10_000_000

# Benchmark and name of a cell.
Cell = tuple[str, str]


class Measurements:
    """What is added up over the answers, by cell.

    Latencies count measurements, not rows: decoding, vision and compression once per clip and only
    where this run did them. In throughput mode a clip's first question pays for the prefix.

    Args:
        profile: Whether every question was measured alone.
        confusion: Group of the questions by which right and chosen options are counted; "" for
            none.

    Attributes:
        cells: Benchmark and name of every cell -> its number.
        confusions: Cell -> value of the group, right option and chosen one -> number of answers.
        has_option_texts: Whether some answer states the text of the right option; release 0.1 did
            not.
    """

    def __init__(self, *, profile: bool, confusion: str = "") -> None:
        self.cells: dict[Cell, int] = {}
        self.confusions: defaultdict[Cell, Counter[tuple[str, str, str | None]]]
        self.confusions = defaultdict(Counter)
        self.has_option_texts = False
        self._profile, self._confusion = profile, confusion
        # One decode and, but for a profile, one encoder pass serve all methods.
        self._shared = ("decode_video",) if profile else ("decode_video", "vision")
        self._sums: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._peaks: dict[int, tuple[float, str | None]] = {}
        self._lengths: Counter[tuple[int, ...]] = Counter()
        self._rules: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._unread: defaultdict[int, list[str]] = defaultdict(list)
        self._harness: defaultdict[int, dict[int, tuple[float, int]]] = defaultdict(dict)
        self._reasons: dict[tuple[str, str], quantities.FailureReason] = {}
        # Stage -> cell and milliseconds of measurements, part by part.
        self._times: defaultdict[str, list[tuple[Codes, Values]]] = defaultdict(list)
        self._random, self._share, self._num_rows = np.random.default_rng(0), 1.0, 0

    def add(self, answers: AnswerColumns, groups: Codes, sets: Sequence[Mapping[str, str]]) -> None:
        """Take the answers about some clips.

        Args:
            answers: The answers.
            groups: (n,) number of every row's set of groups.
            sets: The sets of groups of the benchmark.
        """
        self._limit_sample(len(answers))
        numbers = [self.cells.setdefault(name, len(self.cells)) for name in answers.cell_names]
        cells = np.array(numbers, np.int64)[answers.cells]
        clips = answers.clips * (len(answers.cell_names) + 1) + answers.cells
        known = ~np.isnan(answers.numbers("tokens_total") + answers.numbers("tokens_kept"))
        first = _first(clips, known)
        for name in _TOKENS:
            self._sum(name, cells[first], answers.numbers(name)[first])
        first = _first(clips)
        derived = answers.equals("cache", "derived")
        for outcome, is_it in (
            ("hit", answers.equals("cache", "hit") | derived),
            ("miss", answers.equals("cache", "miss")),
        ):
            self._sum(outcome, cells[first], np.where(is_it[first], 1.0, np.nan))
        self._add_times(answers, cells, clips)
        self._add_generation(answers, cells)
        self._add_replies(answers, cells, groups)
        self._add_failures(answers)
        if self._confusion:
            self._add_confusions(answers, cells, groups, sets)

    def _limit_sample(self, size: int) -> None:
        """Keep times of about `_MOST_EXACT` answers at most."""
        self._num_rows += size
        while self._num_rows * self._share > _MOST_EXACT:
            self._share /= 2
            for parts in self._times.values():
                parts[:] = [self._sampled(*part, 0.5) for part in parts]

    def _sampled(self, cells: Codes, ms: Values, share: float) -> tuple[Codes, Values]:
        chosen = self._random.random(len(ms)) < share
        return cells[chosen], ms[chosen]

    def _sum(self, name: str, cells: Codes, values: Values) -> None:
        """Add to the sum of a quantity by cell, and to the number of its values."""
        known = ~np.isnan(values)
        cells = cells[known]
        counts = np.bincount(cells)
        sums = np.bincount(cells, weights=values[known])
        for cell in counts.nonzero()[0].tolist():
            self._sums[name][cell] += sums[cell]
            self._sums[f"n_{name}"][cell] += int(counts[cell])

    def _add_times(self, answers: AnswerColumns, cells: Codes, clips: Codes) -> None:
        reached, missed = (answers.bits & FAILED_BIT) == 0, answers.equals("cache", "miss")
        pruned = missed | answers.equals("cache", "derived")
        encoded, computed, paying = (_first(clips, one) for one in (missed, pruned, reached))
        for stage, column in CLIP_STAGES.items():
            rows = encoded if stage in ("decode_video", "vision") else computed
            self._measure(stage, cells[rows], answers.numbers(column)[rows])
        # Methods that read the question prune a clip once per text; equal texts have one time.
        ms = answers.numbers(CLIP_STAGES["compress"])
        _, values = np.unique(ms, return_inverse=True)
        later = np.setdiff1d(_first(clips * (len(values) + 1) + values, pruned), computed)
        self._measure(_LATER, cells[later], ms[later])
        self._sum("encode_tflops", cells[encoded], answers.numbers("encode_tflops")[encoded])
        once = _first(answers.clips, missed)
        for stage in self._shared:
            ms = answers.numbers(CLIP_STAGES[stage])[once]
            self._measure(f"shared {stage}", np.zeros(len(ms), np.int64), ms)
        for stage, column in QUESTION_STAGES.items():
            each = stage == "decode" or (self._profile and stage != "cache_read")
            rows = reached.nonzero()[0] if each else paying
            self._measure(stage, cells[rows], answers.numbers(column)[rows])
        if self._profile:
            # Reading the cache is measured with the first question; the others wait as long.
            read = answers.numbers("cache_read_ms")
            measured = _first(clips, reached & ~np.isnan(read))
            waited = np.full(int(clips.max(initial=-1)) + 1, np.nan)
            waited[clips[measured]] = read[measured]
            for stage, columns in END_TO_END.items():
                parts = [
                    waited[clips] if name == "cache_read_ms" else answers.numbers(name)
                    for name in columns
                ]
                total = np.where(reached, np.sum(parts, axis=0), np.nan)
                self._measure(stage, cells, total)

    def _measure(self, stage: str, cells: Codes, ms: Values) -> None:
        """Add measurements of a stage."""
        self._sum(stage, cells, ms)
        known = ~np.isnan(ms)
        part = cells[known], ms[known]
        self._times[stage].append(part if self._share == 1 else self._sampled(*part, self._share))

    def _add_generation(self, answers: AnswerColumns, cells: Codes) -> None:
        tokens, ms = answers.numbers("new_tokens"), answers.numbers(TEXT_DECODE_MS)
        later = (tokens > 1) & (ms > 0)
        self._sum("generated_ms", cells[later], ms[later])
        self._sum("later_tokens", cells[later], tokens[later] - 1)
        prompts, kept = answers.numbers("prompt_tokens"), answers.numbers("tokens_kept")
        asked = (prompts > 0) & (kept <= prompts)
        whole = (own[asked].astype(np.int64) for own in (cells, prompts, kept))
        for *key, count in _counted(*whole):
            self._lengths[tuple(key)] += count
        peaks, (owners, names) = answers.numbers("peak_gib"), answers.texts("peak_of")
        known = ~np.isnan(peaks)
        for cell in np.unique(cells[known]).tolist():
            rows = (known & (cells == cell)).nonzero()[0]
            owner = names[owners[rows[0]]] if owners[rows[0]] >= 0 else None
            before, first_owner = self._peaks.get(cell, (0.0, owner))
            self._peaks[cell] = max(before, float(peaks[rows].max())), first_owner

    def _add_replies(self, answers: AnswerColumns, cells: Codes, groups: Codes) -> None:
        codes, names = answers.texts("reading_rule")
        named = np.array([*(bool(name) for name in names), False])[codes]
        for cell, code, count in _counted(cells[named], codes[named]):
            self._rules[cell][names[code]] += count
        codes, texts = answers.texts("text")
        for row in ((answers.bits & UNPARSED) > 0).nonzero()[0].tolist():
            if len(own := self._unread[int(cells[row])]) < _SEARCHED:
                own.append(_shortened(str(texts[codes[row]] or "") if codes[row] >= 0 else ""))
        scores = answers.numbers("harness_score")
        known = ~np.isnan(scores)
        size = int(groups.max(initial=0)) + 1
        key = cells[known] * size + groups[known]
        sums = np.bincount(key, weights=scores[known])
        for cell, group, count in _counted(cells[known], groups[known]):
            before, counted = self._harness[cell].get(group, (0.0, 0))
            total = before + float(sums[cell * size + group])
            self._harness[cell][group] = total, counted + count

    def _add_failures(self, answers: AnswerColumns) -> None:
        failed = ((answers.bits & FAILED_BIT) > 0).nonzero()[0]
        statuses, errors = answers.texts("status"), answers.texts("error")
        codes = (answers.clips, statuses[0], errors[0])
        for clip, status, error, count in _counted(*(own[failed] for own in codes)):
            text = str(errors[1][error] or "") if error >= 0 else ""
            name = answers.clip_names[clip][1]
            own = quantities.FailureReason(str(statuses[1][status]), text, 1, count, (name,))
            add_reason(self._reasons, own)

    def _add_confusions(
        self, answers: AnswerColumns, cells: Codes, groups: Codes, sets: Sequence[Mapping[str, str]]
    ) -> None:
        right, rights = answers.texts("answer_text")
        chosen, choices = answers.texts("choice_text")
        chosen = np.where((answers.bits & OK) > 0, chosen, -1)
        stated = right >= 0
        self.has_option_texts |= bool(stated.any())
        names = list(self.cells)
        for cell, group, one, other, count in _counted(
            *(own[stated] for own in (cells, groups, right, chosen))
        ):
            if (value := sets[group].get(self._confusion)) is not None:
                key = value, rights[one], choices[other] if other >= 0 else None
                self.confusions[names[cell]][key] += count

    def totals(self, cell: Cell | None, *, reads_question: bool = False) -> dict[str, Any]:
        """Fields of the summary of a cell; `None` for all cells together.

        Tokens are summed over the clips that were encoded; `tokens_with_newlines` is `None` where
        an answer does not say, as in runs of earlier versions. The memory is the largest of a clip.
        """
        wanted = self._numbers(cell)
        peaks = [self._peaks[one] for one in wanted if one in self._peaks]
        found: dict[str, Any] = {name: int(self._total(name, wanted)) for name in _TOKENS}
        if self._total("n_tokens_with_newlines", wanted) != self._total("n_tokens_total", wanted):
            found["tokens_with_newlines"] = None
        return {
            **found,
            "cache": quantities.CacheCounts(
                self._total("n_hit", wanted), self._total("n_miss", wanted)
            ),
            "peak_gib": max((peak for peak, _ in peaks), default=None),
            "peak_of": peaks[0][1] if peaks else None,
            "latency_ms": self._latencies(wanted, cell is None, reads_question),
        }

    def _numbers(self, cell: Cell | None) -> list[int]:
        """Numbers of a cell, or of all."""
        return list(self.cells.values()) if cell is None else [self.cells.get(cell, -1)]

    def _total(self, name: str, cells: Sequence[int]) -> Any:
        return sum(self._sums[name][one] for one in cells)

    def throughput(
        self,
        cell: Cell | None,
        counts: quantities.QuestionCounts | None = None,
        wall_s: float | None = None,
    ) -> quantities.Throughput:
        """Rates over the wall time of the whole run; cells of a sweep overlap and have none."""
        wanted = self._numbers(cell)
        seconds = self._total("generated_ms", wanted) / 1000
        wall = wall_s if wall_s is not None and math.isfinite(wall_s) and wall_s > 0 else None
        return quantities.Throughput(
            wall_s=wall,
            clips_per_s=counts.num_clips / wall if wall and counts else None,
            questions_per_s=counts.num_questions / wall if wall and counts else None,
            text_tokens_per_s=self._total("later_tokens", wanted) / seconds if seconds else None,
        )

    def prefill_tflops(self, cell: CellFacts, llm: LLMShape | None) -> float | None:
        """Mean cost of prefilling one question from nothing, in TFLOPs; `None` if unknown."""
        own = self.cells.get((cell.benchmark, cell.name), -1)
        # Few distinct lengths of the prompt, and of its visual tokens, occur.
        lengths = [(*key, n) for (one, *key), n in self._lengths.items() if one == own]
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
        wanted = self._numbers(cell)
        count = self._total("n_encode_tflops", wanted)
        return float(self._total("encode_tflops", wanted) / count) if count else None

    def _latencies(
        self, cells: Sequence[int], shared: bool, reads_question: bool
    ) -> dict[str, quantities.LatencyStats]:
        found = {}
        for stage in _STAGES:
            names, wanted = [stage], cells
            if shared and stage in self._shared:
                names, wanted = [f"shared {stage}"], [0]
            if reads_question and stage == "compress":
                names.append(_LATER)
            count = sum(self._total(f"n_{name}", wanted) for name in names)
            parts = [part for name in names for part in self._times[name]]
            if not shared:
                parts = [(own, ms[own == wanted[0]]) for own, ms in parts]
            ms = np.concatenate([np.empty(0), *(ms for _, ms in parts)])
            if count and len(ms):
                mean = sum(self._total(name, wanted) for name in names) / count
                p50, p90, p95 = np.quantile(ms, [0.5, 0.9, 0.95]).tolist()
                found[stage] = quantities.LatencyStats(p50, p90, p95, float(mean), int(count))
        return found

    def harness_scores(self, cell: Cell) -> list[tuple[int, float, int]]:
        """Set of groups, sum and number of the scores that the protocol's harness gives."""
        own = self._harness[self.cells.get(cell, -1)]
        return [(group, *found) for group, found in sorted(own.items())]

    def readings(self, cell: Cell) -> quantities.Readings:
        """How the replies of a cell were read."""
        number = self.cells.get(cell, -1)
        examples = tuple(dict.fromkeys(self._unread[number]))[:_NUM_EXAMPLES]
        return quantities.Readings(dict(self._rules[number].most_common()), examples)

    def failures(self) -> list[quantities.FailureReason]:
        """Why answers failed, the reason with the most clips first."""
        return sorted_reasons(self._reasons.values())


def first_token_ms(latency: quantities.Latencies) -> float | None:
    """Whole time to the first token from the latencies of a cell; see `CellSummary`."""
    if "first_token" in latency:
        return latency["first_token"].p50
    parts = [latency[one].p50 for one in ("vision", "compress", "ttft") if one in latency]
    return sum(parts) if len(parts) == 3 else None


def add_reason(
    found: dict[tuple[str, str], quantities.FailureReason], new: quantities.FailureReason
) -> None:
    """Add to the reasons of failures, by status and error; clips count anew."""
    key = new.status, new.error
    known = found.get(key, quantities.FailureReason(*key, 0, 0, ()))
    found[key] = quantities.FailureReason(
        *key,
        clips=known.clips + new.clips,
        questions=known.questions + new.questions,
        examples=(*known.examples, *new.examples)[:_NAMED_CLIPS],
    )


def sorted_reasons(reasons: Iterable[quantities.FailureReason]) -> list[quantities.FailureReason]:
    """Reasons with the most clips first."""
    return sorted(reasons, key=lambda reason: (-reason.clips, reason.error))


def _first(keys: Codes, where: Mask | None = None) -> npt.NDArray[np.intp]:
    """The first row of every key, of some rows."""
    rows = np.arange(len(keys)) if where is None else where.nonzero()[0]
    return np.asarray(rows[np.unique(keys[rows], return_index=True)[1]])


def _counted(*codes: Codes) -> list[tuple[int, ...]]:
    """Combinations of codes in the order in which they occur first, each with its number."""
    key = np.zeros(len(codes[0]), np.int64)
    for own in codes:
        key = key * (int(own.max(initial=0)) + 2) + own + 1
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    order = np.argsort(first)
    values = (own[first[order]].tolist() for own in codes)
    return list(zip(*values, counts[order].tolist(), strict=True))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _EXAMPLE_LENGTH else f"{line[: _EXAMPLE_LENGTH - 1]}\u2026"
