"""Seconds per clip and tokens that earlier runs measured, for the same model and frames."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from jobs.results.facts import FACTS_FILE, JobFacts
from pipeline.progress.parts import AnswerParts
from pipeline.statuses import FAILED
from pipeline.storage import Storage
from pipeline.storage.urls import Place
from tango_core.local_files import parse_json

logger = logging.getLogger(__name__)

# The newest runs tell the most about the machine of today.
_MOST_RUNS = 5
# Of a large run its first answers are enough for a mean.
_MOST_ROWS = 50_000
_VIDEO_DECODE_MS = "decode_video_ms"
_NUMBERS = (
    _VIDEO_DECODE_MS,
    "encode_ms",
    "compress_ms",
    "cache_read_ms",
    "prefill_ms",
    "decode_ms",
    "tokens_kept",
    "tokens_total",
    "prompt_tokens",
    "new_tokens",
    "peak_gib",
)


@dataclass(frozen=True)
class CellRates:
    """What was measured of one method.

    Attributes:
        compress_s: Seconds of its compressor per clip; `None` if it came from the cache.
        answer_s: Seconds of all questions of a clip, reading the cache included.
        tokens_kept: Visual tokens of a clip, mean.
        tokens_total: The same before compression.
        prompt_tokens: Tokens of a prompt, mean.
        new_tokens: Tokens of a reply, mean.
        peak_gib: Largest memory of any clip; `None` if it was not measured.
        num_clips: Clips that this is the mean of.
    """

    compress_s: float | None
    answer_s: float
    tokens_kept: float
    tokens_total: float
    prompt_tokens: float
    new_tokens: float
    peak_gib: float | None
    num_clips: int


@dataclass(frozen=True)
class Rates:
    """What earlier runs, or a probe, measured.

    Attributes:
        decode_s: Seconds to decode a clip; `None` if all clips came from the cache.
        encode_s: Seconds of the vision encoder per clip; likewise.
        cells: Cell name -> what was measured of it.
        runs: Names of the runs.
        start_s: Wall time of a run in a loop that no clip accounts for: imports, models, results.
    """

    decode_s: float | None = None
    encode_s: float | None = None
    cells: Mapping[str, CellRates] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    start_s: float | None = None


def measured(output: Place, *, model: str, num_frames: int, device: str) -> Rates:
    """Read the rates of the newest comparable runs under a directory.

    Args:
        output: Directory or URL of runs.
        model: Name of the model; runs of another one do not count.
        num_frames: Frames per clip.
        device: The processor in words (`jobs.run.job_facts.device_name`); times of another one do
            not count.

    Returns:
        Empty rates if there is no such run. Runs that cannot be read are left out.
    """
    found: list[tuple[JobFacts, pd.DataFrame]] = []
    for facts in _runs(output):
        same = facts.model == model and facts.num_frames == num_frames and facts.device == device
        # A profile shares nothing between questions and methods, so its times are others.
        if not same or facts.mode != "throughput" or facts.kind not in ("evaluate", "sweep"):
            continue
        try:
            answers = first_answers(Storage.at(str(output)).child(facts.run_id))
        except (OSError, ValueError, KeyError) as error:
            logger.warning("run %s is not used for the estimate: %s", facts.run_id, error)
            continue
        if len(answers):
            found.append((facts, answers))
        if len(found) == _MOST_RUNS:
            break
    return rates_of(found)


def rates_of(runs: Iterable[tuple[JobFacts, pd.DataFrame]]) -> Rates:
    """Rates of runs and their answers (`first_answers`), the newest first."""
    runs = [(facts, _numeric(answers)) for facts, answers in runs]
    if not runs:
        return Rates()
    cells: dict[str, CellRates] = {}
    for _, answers in runs:
        reached = answers[~answers["status"].isin(FAILED)]
        for name, rows in reached.groupby("cell", sort=False):
            cells.setdefault(str(name), _cell(rows))
    decode = [_per_clip(answers, _VIDEO_DECODE_MS) for _, answers in runs]
    encode = [_per_clip(answers, "encode_ms") for _, answers in runs]
    return Rates(
        decode_s=next((one for one in decode if one is not None), None),
        encode_s=next((one for one in encode if one is not None), None),
        cells=cells,
        runs=tuple(facts.run_id for facts, _ in runs),
        start_s=next((s for one in runs if (s := _unaccounted(*one)) is not None), None),
    )


def first_answers(run: Storage) -> pd.DataFrame:
    """The answers of a run; of a very large one, those of its first parts.

    Raises:
        DamagedFileError: If a part is damaged.
    """
    parts = AnswerParts(run.child("answers"))
    tables: list[pd.DataFrame] = []
    for name in sorted(parts.storage.names(".parquet")):
        table = parts.read(name)
        if table is not None:
            tables.append(table.to_pandas())
        if sum(map(len, tables)) >= _MOST_ROWS:
            break
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _numeric(answers: pd.DataFrame) -> pd.DataFrame:
    """Measurements as numbers; a column without a value comes from Parquet as objects."""
    known = answers.reindex(columns=list(dict.fromkeys((*answers.columns, *_NUMBERS))))
    return known.assign(**{name: pd.to_numeric(known[name], errors="coerce") for name in _NUMBERS})


def _once_per_clip(rows: pd.DataFrame, *, per_cell: bool) -> pd.DataFrame:
    """One row per clip (and cell): that of its first question."""
    keys = ["benchmark", "cell", "video_id"] if per_cell else ["benchmark", "video_id"]
    return rows.drop_duplicates(keys)


def _runs(output: Place) -> Iterable[JobFacts]:
    """The finished runs of a directory, the newest first; unreadable ones are skipped."""
    storage = Storage.at(str(output))
    for name in reversed(storage.folders() if storage.is_folder() else []):
        try:
            facts = JobFacts.from_json(
                parse_json(storage.child(name).read(FACTS_FILE).decode(), name)
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        if facts.run_id == name:
            yield facts


def _per_clip(answers: pd.DataFrame, column: str) -> float | None:
    """Mean seconds per clip where this run did it."""
    rows = answers[answers["cache"] == "miss"].dropna(subset=[column])
    values = _once_per_clip(rows, per_cell=False)[column]
    return float(values.mean()) / 1000 if len(values) else None


def _cell(rows: pd.DataFrame) -> CellRates:
    """The rates of one method's answers."""
    per_clip = _once_per_clip(rows, per_cell=True)
    num_clips = len(per_clip)
    compressed = per_clip.loc[per_clip["cache"] == "miss", "compress_ms"].dropna()
    # Sums over the questions of a clip are the time spent: each carries its share.
    spent = rows["prefill_ms"].sum() + rows["decode_ms"].sum() + per_clip["cache_read_ms"].sum()
    peak = rows["peak_gib"].max()
    return CellRates(
        compress_s=float(compressed.mean()) / 1000 if len(compressed) else None,
        answer_s=float(spent) / 1000 / num_clips,
        tokens_kept=float(per_clip["tokens_kept"].mean()),
        tokens_total=float(per_clip["tokens_total"].mean()),
        prompt_tokens=float(rows["prompt_tokens"].mean()),
        new_tokens=float(rows["new_tokens"].mean()),
        peak_gib=None if pd.isna(peak) else float(peak),
        num_clips=num_clips,
    )


def _unaccounted(facts: JobFacts, answers: pd.DataFrame) -> float | None:
    """Wall time of a loop that no clip accounts for; `None` where more stages overlapped."""
    if facts.wall_s is None or len(answers) >= _MOST_ROWS:
        return None
    decode = _once_per_clip(answers[answers["cache"] == "miss"], per_cell=False)
    per_cell = _once_per_clip(answers, per_cell=True)
    others = (
        decode["encode_ms"].sum()
        + per_cell["compress_ms"].sum()
        + per_cell["cache_read_ms"].sum()
        + answers["prefill_ms"].sum()
        + answers["decode_ms"].sum()
    )
    decode_s, others_s = float(decode[_VIDEO_DECODE_MS].sum()) / 1000, float(others) / 1000
    if decode_s + others_s >= facts.wall_s:
        return None
    return facts.wall_s - max(decode_s, others_s)
