"""Sums, latencies, replies and failures of every cell, as SQL over one table of the answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.results.answer_columns import FAILED_BIT, OK, UNPARSED, AnswerColumns
from jobs.results.facts import CellFacts
from jobs.results.quantities import CacheCounts, LatencyStats, Readings, Throughput
from jobs.results.replies import FailureReason
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

_NUMBERS = (
    *("tokens_total", "tokens_kept", "tokens_with_newlines", "clip_text_tokens", "prompt_tokens"),
    *("new_tokens", "peak_gib", "harness_score"),
    *(*CLIP_STAGES.values(), *QUESTION_STAGES.values()),
)
_TEXTS = (
    *("cell", "cache", "peak_of", "status", "error", "reading_rule", "text"),
    *("answer_text", "choice_text"),
)
_COLUMNS = ", ".join(
    (
        *("row BIGINT", "benchmark VARCHAR", "clip INTEGER", "video VARCHAR"),
        *("group_set INTEGER", "bits UTINYINT"),
        *(f"{name} DOUBLE" for name in _NUMBERS),
        *(f"{name} VARCHAR" for name in _TEXTS),
    )
)
_CELL = "benchmark, cell"
_CELLS_AND_ALL = f"GROUP BY GROUPING SETS (({_CELL}), ())"
_REACHED = f"(bits & {FAILED_BIT}) = 0"
_UNREAD = f"(bits & {UNPARSED}) > 0"
_NUM_EXAMPLES, _SEARCHED, _EXAMPLE_LENGTH = 2, 100, 40
_NAMED_CLIPS = 5
# Answers up to which quantiles of latencies are exact.
_MOST_EXACT = 10_000_000

# Benchmark and name of a cell; `None` twice for all cells together.
_Cell = tuple[str | None, str | None]


@dataclass
class CellTotals:
    """Sums over the answers of one cell, or of all.

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
        peak_gib: Largest memory of any clip in GiB.
        peak_of: Its owner: `"device"` or `"process"`.
        lengths: (tokens of the prompt, of these visual ones) -> number of questions.
        latency_ms: Latency per stage.
    """

    tokens_total: int = 0
    tokens_kept: int = 0
    tokens_with_newlines: int | None = 0
    clip_text_tokens: int = 0
    cache: CacheCounts = field(default_factory=CacheCounts)
    generated_ms: float = 0.0
    later_tokens: float = 0.0
    peak_gib: float | None = None
    peak_of: str | None = None
    lengths: dict[tuple[int, int], int] = field(default_factory=dict)
    latency_ms: dict[str, LatencyStats] = field(default_factory=dict)

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
        return total / sum(self.lengths.values()) / 1e12


class AnswerTable:
    """One row per answer in a DuckDB database that uses the disk where memory would not do.

    One thread, so that equal answers give equal sums.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="tango-answers-", ignore_cleanup_errors=True)
        self._database = duckdb.connect(
            config={"threads": 1, "memory_limit": "2GB", "temp_directory": self._folder.name}
        )
        self._database.execute(f"CREATE TABLE answers ({_COLUMNS})")
        self._num_rows = 0

    def add(
        self,
        benchmark: str,
        columns: AnswerColumns,
        first_clip: int,
        group_sets: npt.NDArray[np.int32],
    ) -> None:
        """Take the answers about some clips of a benchmark.

        Args:
            benchmark: Of all of them.
            columns: The answers.
            first_clip: Number of the first of these clips in the benchmark.
            group_sets: (n,) number of every row's set of groups in the benchmark.
        """
        size = len(columns)
        texts = {name: _dictionary(*columns.texts(name)) for name in _TEXTS if columns.has(name)}
        if "text" in texts:
            unread = pa.array((columns.bits & UNPARSED) > 0)
            texts["text"] = pc.if_else(unread, texts["text"].cast(pa.string()), None)
        numbers = {name: columns.numbers(name) for name in _NUMBERS if columns.has(name)}
        part = pa.table(  # DuckDB finds it by its name
            {
                "row": np.arange(self._num_rows, self._num_rows + size),
                "benchmark": _dictionary(np.zeros(size, np.int64), [benchmark]),
                "clip": first_clip + columns.clips,
                "video": _dictionary(columns.clips, [name for _, name in columns.clip_names]),
                "group_set": group_sets,
                "bits": columns.bits,
                **{name: pa.array(own, from_pandas=True) for name, own in numbers.items()},
                **texts,
            }
        )
        self._database.register("part", part)
        self._database.execute("INSERT INTO answers BY NAME FROM part")
        self._database.unregister("part")
        self._num_rows += size

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()

    def totals(self, *, profile: bool) -> dict[_Cell, CellTotals]:
        """Sums and latencies of every cell, and of all together.

        Latencies count measurements, not rows: decoding, vision and compression once per clip and
        only where this run did them. In throughput mode a clip's first question pays for the
        prefix.

        Args:
            profile: Whether every question was measured alone.
        """
        first_of = ["cache_read", *([] if profile else ["prefill", "ttft"])]
        each = [stage for stage in QUESTION_STAGES if stage not in first_of]
        self._rows(_clips_of(first_of))
        found: dict[_Cell, CellTotals] = {}
        for benchmark, cell, total, kept, newlines, text, hits, misses in self._rows(
            f"""SELECT {_CELL}, coalesce(sum(tokens_total), 0)::BIGINT,
                coalesce(sum(tokens_kept), 0)::BIGINT,
                CASE WHEN count(tokens_with_newlines) = count(tokens_total)
                    THEN coalesce(sum(tokens_with_newlines), 0)::BIGINT END,
                coalesce(sum(clip_text_tokens), 0)::BIGINT,
                count(*) FILTER (cache = 'hit'), count(*) FILTER (cache = 'miss')
                FROM clips {_CELLS_AND_ALL}"""
        ):
            cache = CacheCounts(hits, misses)
            found[benchmark, cell] = CellTotals(total, kept, newlines, text, cache)
        for stage in (*CLIP_STAGES, *first_of):
            self._add_latency(found, stage, f"t_{stage}", "clips")
        later = "FILTER (new_tokens > 1 AND decode_ms > 0)"
        for benchmark, cell, ms, tokens, gib, owner in self._rows(
            f"""SELECT {_CELL}, coalesce(sum(decode_ms) {later}, 0),
                coalesce(sum(new_tokens - 1) {later}, 0), max(peak_gib),
                arg_min_null(peak_of, row) FILTER (peak_gib IS NOT NULL)
                FROM answers {_CELLS_AND_ALL}"""
        ):
            own = found[benchmark, cell]
            own.generated_ms, own.later_tokens, own.peak_gib, own.peak_of = ms, tokens, gib, owner
        measured = {stage: QUESTION_STAGES[stage] for stage in each}
        measured |= {name: " + ".join(parts) for name, parts in END_TO_END.items() if profile}
        source = f"(SELECT * REPLACE ({_WAITED} AS cache_read_ms) FROM answers)"
        for stage, ms in measured.items():
            reached = f"CASE WHEN {_REACHED} THEN {ms} END"
            self._add_latency(found, stage, reached, source if profile else "answers")
        # One decode and, but for a profile, one encoder pass serve all methods.
        for stage in ["decode_video"] if profile else ["decode_video", "vision"]:
            first = f"arg_min({CLIP_STAGES[stage]}, row) AS ms, NULL AS benchmark, NULL AS cell"
            of_clips = (
                f"SELECT {first} FROM answers WHERE cache = 'miss' GROUP BY answers.benchmark, clip"
            )
            self._add_latency(found, stage, "ms", f"({of_clips})")
        for own in found.values():
            ordered = (*CLIP_STAGES, *QUESTION_STAGES, *END_TO_END)
            own.latency_ms = {s: own.latency_ms[s] for s in ordered if s in own.latency_ms}
        for benchmark, cell, prompt, kept, count in self._rows(
            f"""SELECT {_CELL}, prompt_tokens::BIGINT, tokens_kept::BIGINT, count(*) FROM answers
            WHERE prompt_tokens > 0 AND tokens_kept <= prompt_tokens GROUP BY ALL ORDER BY ALL"""
        ):
            found[benchmark, cell].lengths[prompt, kept] = count
        return found

    def _add_latency(
        self, found: Mapping[_Cell, CellTotals], stage: str, ms: str, source: str
    ) -> None:
        """Add the latency of a stage to every cell that was measured, and to all together.

        Exact quantiles hold all values of a column in memory, so there is a query for each stage,
        and above `_MOST_EXACT` answers they are those of a t-digest.

        Args:
            found: Written to.
            stage: Its name.
            ms: SQL of the time of a row; NULL where there is none.
            source: Table with `ms`, and with benchmark and cell.
        """
        quantile = "quantile_cont" if self._num_rows <= _MOST_EXACT else "approx_quantile"
        for benchmark, cell, quantiles, mean, count in self._rows(
            f"""SELECT {_CELL}, {quantile}(ms, [0.5, 0.9, 0.95]), avg(ms), count(ms)
            FROM (SELECT {_CELL}, {ms} AS ms FROM {source}) {_CELLS_AND_ALL}"""
        ):
            if count:
                found[benchmark, cell].latency_ms[stage] = LatencyStats(
                    quantiles[0], quantiles[1], quantiles[2], mean, count
                )

    def harness_scores(self, benchmark: str, cell: str) -> list[tuple[int, float, int]]:
        """Set of groups, sum and number of the scores that the protocol's harness gives."""
        return self._rows(
            """SELECT group_set, sum(harness_score), count(*) FROM answers
            WHERE benchmark = ? AND cell = ? AND harness_score IS NOT NULL
            GROUP BY group_set ORDER BY group_set""",
            *(benchmark, cell),
        )

    def readings(self, benchmark: str, cell: str) -> Readings:
        """How the replies of a cell were read."""
        own = (benchmark, cell)
        rules = self._rows(
            """SELECT reading_rule, count(*) AS number FROM answers
            WHERE benchmark = ? AND cell = ? AND reading_rule != ''
            GROUP BY reading_rule ORDER BY number DESC, min(row)""",
            *own,
        )
        unread = self._rows(
            f"""SELECT text FROM answers WHERE benchmark = ? AND cell = ? AND {_UNREAD}
            ORDER BY row LIMIT {_SEARCHED}""",
            *own,
        )
        examples = dict.fromkeys(_shortened(text or "") for (text,) in unread)
        return Readings(dict(rules), tuple(examples)[:_NUM_EXAMPLES])

    def failures(self) -> list[FailureReason]:
        """Why answers failed, the reason with the most clips first."""
        found = self._rows(
            f"""SELECT status, coalesce(error, '') AS error, count(*) AS clips,
                sum(questions)::BIGINT, list(video ORDER BY row)[1:{_NAMED_CLIPS}]
            FROM (SELECT status, error, any_value(video) AS video, min(row) AS row,
                count(*) AS questions
                FROM answers WHERE NOT {_REACHED} GROUP BY benchmark, clip, status, error)
            GROUP BY ALL ORDER BY clips DESC, error"""
        )
        return [
            FailureReason(status, error, clips, questions, tuple(examples))
            for status, error, clips, questions, examples in found
        ]

    @property
    def has_option_texts(self) -> bool:
        """Whether some answer states the text of the right option; release 0.1 did not."""
        ((number,),) = self._rows("SELECT count(answer_text) FROM answers")
        return bool(number)

    def confusions(
        self, benchmark: str, cell: str, values: Sequence[str | None]
    ) -> Counter[tuple[str, str, str | None]]:
        """Value of a group, right option and the one that was chosen -> number of answers.

        Args:
            benchmark: Of the cell.
            cell: Its name.
            values: Value of the group by number of the set of groups; `None` is left out.
        """
        counts: Counter[tuple[str, str, str | None]] = Counter()
        for group_set, right, chosen, number in self._rows(
            f"""SELECT group_set, answer_text,
                CASE WHEN (bits & {OK}) > 0 THEN choice_text END AS chosen, count(*)
            FROM answers WHERE benchmark = ? AND cell = ? AND answer_text IS NOT NULL
            GROUP BY group_set, answer_text, chosen""",
            *(benchmark, cell),
        ):
            if (value := values[group_set]) is not None:
                counts[value, right, chosen] += number
        return counts


def _clips_of(first_of: Sequence[str]) -> str:
    """Make the table of clips per cell: tokens, cache, and times measured once per clip."""
    known = "FILTER (tokens_total IS NOT NULL AND tokens_kept IS NOT NULL)"
    tokens = ("tokens_total", "tokens_kept", "tokens_with_newlines", "clip_text_tokens")
    columns = [
        *(f"arg_min({name}, row) {known} AS {name}" for name in tokens),
        *(
            f"arg_min({column}, row) FILTER (cache = 'miss') AS t_{stage}"
            for stage, column in CLIP_STAGES.items()
        ),
        *(
            f"arg_min_null({QUESTION_STAGES[stage]}, row) FILTER ({_REACHED}) AS t_{stage}"
            for stage in first_of
        ),
    ]
    return (
        f"CREATE OR REPLACE TEMP TABLE clips AS SELECT {_CELL}, {', '.join(columns)}, "
        f"arg_min_null(cache, row) AS cache FROM answers GROUP BY {_CELL}, clip"
    )


# Reading the cache is measured with the first question; the others wait as long for it.
_WAITED = f"""first_value(CASE WHEN {_REACHED} THEN cache_read_ms END IGNORE NULLS)
    OVER (PARTITION BY {_CELL}, clip
    ORDER BY row ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"""


def merged_reasons(parts: Iterable[Sequence[FailureReason]]) -> list[FailureReason]:
    """The reasons of several runs, whose clips count anew, those with the most clips first."""
    found: dict[tuple[str, str], FailureReason] = {}
    for reason in (reason for part in parts for reason in part):
        key = reason.status, reason.error
        known = found.get(key, FailureReason(*key, clips=0, questions=0, examples=()))
        found[key] = FailureReason(
            *key,
            clips=known.clips + reason.clips,
            questions=known.questions + reason.questions,
            examples=(*known.examples, *reason.examples)[:_NAMED_CLIPS],
        )
    return sorted(found.values(), key=lambda reason: (-reason.clips, reason.error))


def _dictionary(codes: Codes, values: Sequence[object]) -> pa.DictionaryArray:
    texts = pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), texts)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _EXAMPLE_LENGTH else f"{line[: _EXAMPLE_LENGTH - 1]}\u2026"
