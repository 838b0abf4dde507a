"""One table of answers added to the totals of its cells: which row stands for a measurement."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jobs.results.answer_columns import FAILED_BIT, AnswerColumns, Values, by_code, first_of
from jobs.results.cell_totals import (
    CLIP_STAGES,
    END_TO_END,
    QUESTION_STAGES,
    TEXT_DECODE_MS,
    CellTotals,
)
from jobs.results.distribution import Distribution
from jobs.results.quantities import CacheCounts
from pipeline.progress.parts import Codes


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
