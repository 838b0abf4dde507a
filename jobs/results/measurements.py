"""Measurements of a run, each counted once: tokens, latencies, cache hits, rates, cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from jobs.results.facts import CellFacts, JobFacts
from jobs.results.quantities import CacheCounts, Latencies, LatencyStats, Throughput
from pipeline.stages.declarations import DAMAGED, FAILED
from tango_core.flops import lengths_per_layer, prefill_flops

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
_END_TO_END = {
    "first_token": FIRST_TOKEN,
    "answer_from_file": (VIDEO_DECODE_MS, *FIRST_TOKEN, TEXT_DECODE_MS),
    "answer_from_cache": ("cache_read_ms", "ttft_ms", TEXT_DECODE_MS),
}
_COUNTS = ("tokens_total", "tokens_kept", "tokens_with_newlines", "prompt_tokens", "new_tokens")


def normalize(answers: pd.DataFrame) -> pd.DataFrame:
    """Give every numeric column the type float64 with NaN for "not measured".

    A column without a single value (every clip failed) comes from Parquet as objects, which can
    neither be compared nor averaged.

    Answers about a damaged clip that was kept (`pipeline.stages.declarations.DAMAGED`) count as any
    other: they get the status that they would have about a healthy clip, and `damaged` is true.
    """
    stages = (*CLIP_STAGES.values(), *QUESTION_STAGES.values())
    columns = (*_COUNTS, "peak_gib", *(column for stage in stages for column in stage))
    # Runs of earlier versions have fewer columns.
    known = answers.reindex(columns=list(dict.fromkeys((*answers.columns, *columns, "peak_of"))))
    numeric = {
        column: pd.to_numeric(known[column], errors="coerce").astype("float64")
        for column in columns
    }
    answered = numeric["prompt_tokens"].notna()
    damaged = (known["status"] == DAMAGED) & answered
    read = known["choice"].notna() | known["answer"].isna()
    status = known["status"].mask(damaged & read, "ok").mask(damaged & ~read, "unparsed")
    if "damaged" in answers:
        damaged = answers["damaged"]
    return known.assign(**numeric, status=status, damaged=damaged)


def clips(rows: pd.DataFrame, *, per_cell: bool) -> pd.DataFrame:
    """One row per clip (and cell): that of its first question."""
    keys = ["benchmark", "cell", "video_id"] if per_cell else ["benchmark", "video_id"]
    return rows.drop_duplicates(keys)


def token_counts(rows: pd.DataFrame) -> tuple[int, int, int | None]:
    """Visual tokens of all clips that were encoded, and how many of them were kept.

    Returns:
        All, kept, and kept with the newline tokens that the model adds among them; the last is
        `None` where a row does not say, as in runs of earlier versions.
    """
    known = clips(rows.dropna(subset=["tokens_total", "tokens_kept"]), per_cell=True)
    counts = known[["tokens_total", "tokens_kept", "tokens_with_newlines"]].sum(skipna=False)
    with_newlines = counts["tokens_with_newlines"]
    return (
        int(counts["tokens_total"]),
        int(counts["tokens_kept"]),
        None if pd.isna(with_newlines) else int(with_newlines),
    )


def latencies(rows: pd.DataFrame, mode: str, *, per_cell: bool) -> Latencies:
    """Latency per stage; stages without a measurement are not in it."""
    computed = rows[rows["cache"] == "miss"]
    reached = rows[~rows["status"].isin(FAILED)]
    profile = mode == "profile"
    measured: dict[str, pd.Series] = {}
    for stage, columns in CLIP_STAGES.items():
        # One decode and, but for a profile, one encoder pass serve all methods.
        own = per_cell or stage not in ("decode_video", *(() if profile else ("vision",)))
        measured[stage] = _sums(clips(computed.dropna(subset=[*columns]), per_cell=own), columns)
    for stage, columns in QUESTION_STAGES.items():
        once = stage == "cache_read" or (not profile and stage in ("prefill", "ttft"))
        measured[stage] = _sums(clips(reached, per_cell=True) if once else reached, columns)
    if profile:
        # Reading the cache is measured with the first question; the others wait as long for it.
        read = reached.groupby(["benchmark", "cell", "video_id"])["cache_read_ms"]
        waited = reached.assign(cache_read_ms=read.transform("first"))
        measured |= {stage: _sums(waited, columns) for stage, columns in _END_TO_END.items()}
    return {
        stage: LatencyStats(
            p50=float(values.quantile(0.5)),
            p90=float(values.quantile(0.9)),
            p95=float(values.quantile(0.95)),
            mean=float(values.mean()),
            n=len(values),
        )
        for stage, values in measured.items()
        if len(values)
    }


def speed_up(pairs: pd.DataFrame, columns: Sequence[str]) -> float | None:
    """How much sooner a cell is done with some steps than the baseline: a ratio of medians.

    Args:
        pairs: One row per question of both cells; the baseline's columns end in `_base`.
        columns: Latencies of the steps, which are added.

    Returns:
        The baseline's median over this cell's, on questions that both measured; `None` if there is
        no such question.
    """
    ours = _sums(pairs, columns)
    theirs = _sums(pairs, tuple(f"{column}_base" for column in columns))
    both = ours.index.intersection(theirs.index)
    if not len(both) or not ours[both].median() > 0:
        return None
    return float(theirs[both].median() / ours[both].median())


def peak_memory(rows: pd.DataFrame) -> tuple[float | None, str | None]:
    """Largest memory in GiB of any clip, and its owner: `"device"` or `"process"`."""
    known = rows.dropna(subset=["peak_gib"])
    if known.empty:
        return None, None
    return float(known["peak_gib"].max()), str(known["peak_of"].iloc[0])


def _sums(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Sums over columns, of the rows in which all of them were measured."""
    return rows[[*columns]].dropna().sum(axis=1)


def cache_counts(rows: pd.DataFrame) -> CacheCounts:
    """Clips (per cell) whose tokens were there, and clips that had to be computed."""
    looked_up = clips(rows, per_cell=True)["cache"]
    return CacheCounts(
        hits=int((looked_up == "hit").sum()), misses=int((looked_up == "miss").sum())
    )


def throughput(rows: pd.DataFrame, wall_s: float | None) -> Throughput:
    """Rates over the wall time of the whole run; cells of a sweep overlap and have none."""
    generated = rows[(rows["new_tokens"] > 1) & (rows[TEXT_DECODE_MS] > 0)]
    seconds = float(generated[TEXT_DECODE_MS].sum()) / 1000
    wall = wall_s if wall_s is not None and math.isfinite(wall_s) and wall_s > 0 else None
    later_tokens = float((generated["new_tokens"] - 1).sum())
    return Throughput(
        wall_s=wall,
        clips_per_s=len(clips(rows, per_cell=False)) / wall if wall else None,
        questions_per_s=len(rows) / wall if wall else None,
        text_tokens_per_s=later_tokens / seconds if seconds else None,
    )


def prefill_tflops(rows: pd.DataFrame, cell: CellFacts, facts: JobFacts) -> float | None:
    """Mean cost of prefilling one question from nothing, in TFLOPs; `None` if it is not known."""
    sized = rows[(rows["prompt_tokens"] > 0) & (rows["tokens_kept"] <= rows["prompt_tokens"])]
    if facts.llm is None or sized.empty:
        return None
    # Few distinct lengths occur, so the cost of each is computed once.
    lengths = sized.value_counts(["prompt_tokens", "tokens_kept"]).reset_index()
    shares = cell.layer_shares or (1.0,) * facts.llm.num_layers
    total = 0.0
    for prompt, kept, count in lengths.itertuples(index=False):
        per_layer = lengths_per_layer(int(prompt), int(kept), shares)
        total += count * prefill_flops(facts.llm, per_layer)
    return total / len(sized) / 1e12
