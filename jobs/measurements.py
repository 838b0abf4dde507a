"""What a run measured, counted once each: tokens, latencies, cache hits, rates, cost."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from jobs.facts import CellFacts, JobFacts
from tango_core.flops import lengths_per_layer, prefill_flops

FAILED = ("decode_failed", "encode_failed", "answer_failed")

# Stage -> column of the answers. The first three belong to the clip, the others to a question.
CLIP_STAGES = {"decode_video": "decode_video_ms", "vision": "encode_ms", "compress": "compress_ms"}
QUESTION_STAGES = {
    "cache_read": "cache_read_ms",
    "prefill": "prefill_ms",
    "ttft": "ttft_ms",
    "decode": "decode_ms",
}
_COUNTS = ("tokens_total", "tokens_kept", "prompt_tokens", "new_tokens")


def normalize(answers: pd.DataFrame) -> pd.DataFrame:
    """Give every numeric column the type float64 with NaN for "not measured".

    A column without a single value (every clip failed) comes from Parquet as objects, which can
    neither be compared nor averaged.
    """
    columns = (*_COUNTS, *CLIP_STAGES.values(), *QUESTION_STAGES.values())
    numeric = {
        column: pd.to_numeric(answers[column], errors="coerce").astype("float64")
        for column in columns
    }
    return answers.assign(**numeric)


def clips(rows: pd.DataFrame, *, per_cell: bool) -> pd.DataFrame:
    """One row per clip (and cell): that of its first question."""
    keys = ["benchmark", "cell", "video_id"] if per_cell else ["benchmark", "video_id"]
    return rows.drop_duplicates(keys)


def token_counts(rows: pd.DataFrame) -> tuple[int, int]:
    """Visual tokens of all clips that got as far as having any, and how many of them were kept."""
    known = clips(rows.dropna(subset=["tokens_total", "tokens_kept"]), per_cell=True)
    return int(known["tokens_total"].sum()), int(known["tokens_kept"].sum())


def latencies(rows: pd.DataFrame, mode: str, *, per_cell: bool) -> dict[str, Any]:
    """Stage -> {p50, p90, p95, mean, n} in milliseconds; unmeasured stages are left out."""
    computed = rows[rows["cache"] == "miss"]
    measured = {}
    for stage, column in CLIP_STAGES.items():
        # One decode and one encoder pass serve all methods; compression is each method's own.
        own = per_cell or stage == "compress"
        measured[stage] = clips(computed.dropna(subset=[column]), per_cell=own)[column]
    reached = rows[~rows["status"].isin(FAILED)]
    first = clips(reached, per_cell=True)
    for stage, column in QUESTION_STAGES.items():
        once = stage == "cache_read" or (mode != "profile" and stage in ("prefill", "ttft"))
        measured[stage] = (first if once else reached)[column].dropna()
    return {
        stage: {
            "p50": float(values.quantile(0.5)),
            "p90": float(values.quantile(0.9)),
            "p95": float(values.quantile(0.95)),
            "mean": float(values.mean()),
            "n": len(values),
        }
        for stage, values in measured.items()
        if len(values)
    }


def cache_counts(rows: pd.DataFrame) -> dict[str, Any]:
    """Clips (per cell) whose tokens were there, and clips that had to be computed."""
    looked_up = clips(rows, per_cell=True)["cache"]
    return {
        "hits": int((looked_up == "hit").sum()),
        "misses": int((looked_up == "miss").sum()),
    }


def throughput(rows: pd.DataFrame, wall_s: float | None) -> dict[str, Any]:
    """Rates over the wall time of the whole run; cells of a sweep overlap and have none."""
    generated = rows[(rows["new_tokens"] > 1) & (rows["decode_ms"] > 0)]
    seconds = float(generated["decode_ms"].sum()) / 1000
    wall = wall_s if wall_s is not None and math.isfinite(wall_s) and wall_s > 0 else None
    later_tokens = float((generated["new_tokens"] - 1).sum())
    return {
        "wall_s": wall,
        "clips_per_s": len(clips(rows, per_cell=False)) / wall if wall else None,
        "questions_per_s": len(rows) / wall if wall else None,
        "decode_tokens_per_s": later_tokens / seconds if seconds else None,
    }


def prefill_tflops(rows: pd.DataFrame, cell: CellFacts, facts: JobFacts) -> float | None:
    """Mean cost of prefilling one question from nothing, in TFLOPs; `None` if it is not known."""
    sized = rows[(rows["prompt_tokens"] > 0) & (rows["tokens_kept"] <= rows["prompt_tokens"])]
    if facts.decoder is None or sized.empty:
        return None
    # Few distinct lengths occur, so each is costed once.
    lengths = sized.value_counts(["prompt_tokens", "tokens_kept"]).reset_index()
    shares = cell.layer_shares or (1.0,) * facts.decoder.num_layers
    total = 0.0
    for prompt, kept, count in lengths.itertuples(index=False):
        per_layer = lengths_per_layer(int(prompt), int(kept), shares)
        total += count * prefill_flops(facts.decoder, per_layer)
    return total / len(sized) / 1e12
