"""From the answers of a run to its numbers: `summary.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from jobs.facts import JobFacts

Summary = dict[str, Any]

STAGES = {
    "decode_video": "decode_video_ms",
    "vision": "encode_ms",
    "compress": "compress_ms",
    "cache_read": "cache_read_ms",
    "prefill": "prefill_ms",
    "ttft": "ttft_ms",
    "decode": "decode_ms",
}


def summarize(answers: pd.DataFrame, facts: JobFacts) -> Summary:
    """Reduce the answers of a run to its numbers.

    Args:
        answers: One row per (benchmark, cell, question), with the columns of `answers/*.parquet`; rows of one clip
            stay in the order of its questions.
        facts: What the run says about itself; cells without a row get a summary too.

    Returns:
        Plain data for `summary.json`. `cells` holds one flat summary per cell of `facts`, in order; the top level
        holds the run's totals and, for a run with one cell, all fields of that cell.
    """
    raise NotImplementedError


def read_answers(run_dir: Path) -> pd.DataFrame:
    """Read all of `answers/*.parquet`, in the order of the file names.

    Raises:
        FileNotFoundError: If there are none.
    """
    raise NotImplementedError


def failed_rows(answers: pd.DataFrame) -> pd.DataFrame:
    """The questions without a usable answer, as `failures.parquet` lists them."""
    raise NotImplementedError


def write_summary(run_dir: Path) -> Summary:
    """Summarise a run from its directory alone: read `facts.json` and the answers, write `summary.json`."""
    raise NotImplementedError
