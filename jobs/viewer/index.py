"""The viewed runs with their cells and caches, and all their questions and answers, in memory.

Shards of a job are one group of runs. The page filters a question by a string of outcomes: one
letter per cell for correctness and status.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from jobs.config.overrides import computed_part, read_recipe
from jobs.results.answer_columns import (
    DAMAGED_BIT,
    FAILED_BIT,
    OK,
    RIGHT,
    SCORED,
    UNPARSED,
    AnswerColumns,
    read_groups,
)
from jobs.results.cell_summary import BASELINE
from jobs.results.facts import JOB_FILE, CellFacts, JobFacts
from jobs.results.quantities import Json
from pipeline.progress.answers import read_asked
from pipeline.progress.parts import AnswerParts
from pipeline.redaction import redacted
from pipeline.rows import ANSWER
from pipeline.storage.urls import Place
from tango_core.errors import InputError
from tango_core.printable import printable

NOT_ASKED = "."

OUTCOMES = {
    "right": "Rr",
    "wrong": "WwUuDdeax",
    "unscored": "Nn",
}
"""Letters counted as correct or wrong, as in tables: failed and unparsed answers are wrong."""

STATUSES = {
    "ok": "RWN",
    "unparsed": "U",
    "decode_failed": "d",
    "decode_damaged": "Drwun",
    "encode_failed": "e",
    "answer_failed": "a",
    "other": "x",
}

_CLIP = ["benchmark", "video_id"]
# Columns of an answer that a clip's page shows.
SHOWN = [
    *("status", "error", "text", "choice", "choice_text", "answer", "score"),
    *("prefill_ms", "ttft_ms", "decode_ms"),
    *("prompt_tokens", "tokens_kept", "tokens_total", "new_tokens"),
]


@dataclass(frozen=True)
class Column:
    """One column of the list: a cell in a group of runs, possibly with several benchmarks.

    Attributes:
        group: Index of the group of runs.
        name: Name in the answers' column `cell`.
        label: Unique name for links.
        short: Unique short name for headings.
        cells: Recorded facts of the cell by benchmark.
        baseline: Index of the column `full` of the same group; `None` if there is none, or for
            `full` itself.
    """

    group: int
    name: str
    label: str
    short: str
    cells: dict[str, CellFacts]
    baseline: int | None = None

    def to_json(self) -> Json:
        """The column as JSON for the page; method and retention are equal for all benchmarks."""
        first = next(iter(self.cells.values()))
        names = ("label", "short", "name", "group", "baseline")
        return {
            **{name: getattr(self, name) for name in names},
            "method": first.method,
            "retention": first.retention,
            "layers": first.mean_layer_share,
        }


@dataclass(frozen=True)
class RunGroup:
    """A run, or runs that are shards of one job.

    Attributes:
        folders: Run directories, or local copies of them.
        places: Original paths or URLs.
        facts: Recorded facts of each run.
    """

    folders: tuple[Path, ...]
    places: tuple[Place, ...]
    facts: tuple[JobFacts, ...]

    @property
    def label(self) -> str:
        """Display name of the group."""
        more = len(self.facts) - 1
        return self.facts[0].run_id + (f" and {more} more shards" if more else "")

    @property
    def recipe(self) -> Path:
        """The resolved recipe of the first run."""
        return self.folders[0] / JOB_FILE

    def cache_roots(self, given: str | None) -> list[str]:
        """Possible directories or URLs of the caches, the likeliest first.

        Args:
            given: Value of `--cache`, which is then the only result.
        """
        recorded = [facts.cache_root for facts in self.facts if facts.cache_root]
        beside = [str(place.parent / "cache") for place in self.places]
        return list(dict.fromkeys([*recorded, *beside])) if given is None else [given]

    def to_json(self) -> Json:
        """The group as JSON for the page."""
        first = self.facts[0]
        return {
            "label": printable(self.label),
            "ids": [facts.run_id for facts in self.facts],
            "model": first.model,
            "frames": first.num_frames,
            "device": first.device,
            "started": first.started_at,
            "note": first.note,
            "where": [redacted(str(place)) for place in self.places],
        }


@dataclass(frozen=True)
class Runs:
    """All viewed runs with the columns of the list."""

    groups: tuple[RunGroup, ...]
    columns: tuple[Column, ...]

    @classmethod
    def open(cls, folders: Sequence[Path], places: Sequence[Place]) -> Runs:
        """Read the facts of runs.

        Args:
            folders: Run directories, or local copies.
            places: Original paths or URLs.

        Raises:
            FileNotFoundError: If a directory is not a finished run.
            ValueError: If a run is named twice, or its facts are damaged.
        """
        jobs: dict[str, list[tuple[Path, Place, JobFacts]]] = {}
        if len(set(places)) < len(places):
            raise InputError("a run is named twice; name every run once")
        for folder, place in zip(folders, places, strict=True):
            facts, recipe = JobFacts.load(folder), folder / JOB_FILE
            content = read_recipe(recipe) if recipe.is_file() else {}
            job = str(place)
            if isinstance(content.pop("shard", None), str):  # equal for all shards of the job
                about = [computed_part(content), facts.model, [cell.name for cell in facts.cells]]
                job = json.dumps(about, sort_keys=True, default=str)
            jobs.setdefault(job, []).append((folder, place, facts))
        groups = tuple(RunGroup(*map(tuple, zip(*own, strict=True))) for own in jobs.values())
        return cls(groups, tuple(_columns(groups)))


def _columns(groups: Sequence[RunGroup]) -> list[Column]:
    """The columns in the order of the runs and of their cells."""
    found: list[Column] = []
    labels = [group.label for group in groups]
    for number, group in enumerate(groups):
        cells: dict[str, dict[str, CellFacts]] = {}
        for cell in (cell for facts in group.facts for cell in facts.cells):
            cells.setdefault(cell.name, {}).setdefault(cell.benchmark, cell)
        methods = [next(iter(one.values())).method for one in cells.values()]
        full = len(found) + methods.index(BASELINE) if BASELINE in methods else None
        same_name = labels.count(group.label) > 1
        for name, by_benchmark in cells.items():
            label, short = name, name
            if len(groups) > 1:
                label = f"{name} ({group.label})" + f" #{number + 1}" * same_name
                short = f"{name} [{number + 1}]"
            baseline = None if full == len(found) else full
            found.append(Column(number, name, label, short, by_benchmark, baseline))
    return found


class QuestionIndex:
    """The questions, clips and answers of some runs.

    Args:
        runs: The runs to index.

    Attributes:
        clips: Benchmark and video id of every clip.
        questions: All questions in the order of the runs: number of the `clip`, `benchmark`, `id`,
            index in `kinds` of its groups (`kind`), and `outcomes`, one letter per column.
        of_clip: Number of a clip -> numbers of the questions about it.
        kinds: Groups of every kind of question, as name -> value.

    Raises:
        DamagedFileError: If a part of a run is damaged.
        ValueError: If two shards of a job contain the same question.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        table = pa.concat_tables(
            _answers_in(runs, group, shard)
            for group, own in enumerate(runs.groups)
            for shard in range(len(own.folders))
        )
        names = [*_CLIP, "question_id"]
        rows = table.select([*names, "groups", "column", "letter", "shard"]).to_pandas()
        rows["groups"] = rows["groups"].fillna("{}")
        rows["question"] = rows.groupby(names, sort=False).ngroup()
        twice = rows[rows.duplicated(["question", "column"])]
        if len(twice):
            place = runs.groups[runs.columns[twice["column"].iat[0]].group].places
            raise InputError(
                f"{place[twice['shard'].iat[0]]} holds {twice['question'].nunique()} questions "
                "that another shard of its job holds, too; name one of them"
            )
        first = rows.drop_duplicates("question")
        self.clips = list(first[_CLIP].drop_duplicates().itertuples(index=False, name=None))
        self.kinds = [
            {printable(name): printable(value) for name, value in read_groups(kind).items()}
            for kind in first["groups"].unique()
        ]
        outcomes = np.full((len(first), max(1, len(runs.columns))), NOT_ASKED)
        outcomes[rows["question"], rows["column"]] = rows["letter"]
        listed = {
            "clip": first.groupby(_CLIP, sort=False).ngroup().to_numpy(),
            "benchmark": [printable(name) for name in first["benchmark"]],
            "id": first["question_id"].to_numpy(),
            "kind": first.groupby("groups", sort=False).ngroup().to_numpy(),
            "outcomes": outcomes.view(f"U{outcomes.shape[1]}")[:, 0],
        }
        self.questions = pd.DataFrame(listed)
        self.of_clip = self.questions.groupby("clip").indices
        order = np.argsort(rows["question"].to_numpy(), kind="stable")
        self._answers = table.select(["column", *SHOWN]).take(order)
        self._ends = np.append(0, np.bincount(rows["question"]).cumsum())

    def answers(self, question: int) -> dict[int, dict[str, Any]]:
        """Column -> answer to a question."""
        start, end = self._ends[question : question + 2].tolist()
        return {row["column"]: row for row in self._answers.slice(start, end - start).to_pylist()}

    @cached_property
    def asked(self) -> list[dict[int, dict[str, Any]]]:
        """Recorded file, key and questions of every clip by group of runs; the newest count."""
        numbers = {name: number for number, name in enumerate(self.clips)}
        found: list[dict[int, dict[str, Any]]] = [{} for _ in self.clips]
        for group, own in enumerate(self.runs.groups):
            for table in (table for folder in own.folders for table in read_asked(folder)):
                for row in table.to_pylist():
                    clip = numbers.get((row["benchmark"], row["video_id"]))
                    if clip is not None:
                        found[clip].setdefault(group, row)
        return found


def _answers_in(runs: Runs, group: int, shard: int) -> pa.Table:
    """The answers of a run, with their `column`, `letter` and `shard`."""
    columns = {one.name: at for at, one in enumerate(runs.columns) if one.group == group}
    names = [*_CLIP, "question_id", "groups", *SHOWN]
    found = []
    for table in AnswerParts(runs.groups[group].folders[shard] / "answers").whole_clips():
        answers = AnswerColumns(table)
        own = np.array([columns.get(name, -1) for _, name in answers.cell_names])[answers.cells]
        added = {"column": own, "letter": letters_of(answers), "shard": np.full(len(own), shard)}
        cells = {name: _cell(answers.table, name) for name in names}
        known = pa.table({**cells, **{name: pa.array(value) for name, value in added.items()}})
        found.append(known.filter(pa.array(own >= 0)))
    return pa.concat_tables(found)


def _cell(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    """A column of the answers in its present type; nulls where the run does not have it."""
    kind = ANSWER.field(name).type
    return table[name].cast(kind) if name in table.column_names else pa.nulls(len(table), kind)


def letters_of(columns: AnswerColumns) -> npt.NDArray[np.str_]:
    """(n,) outcome letter of every answer.

    Lower-case r, w, u, n mark answers about damaged clips that were kept.
    """
    known, right, ok, unparsed, failed, damaged = (
        (columns.bits & bit) > 0 for bit in (SCORED, RIGHT, OK, UNPARSED, FAILED_BIT, DAMAGED_BIT)
    )
    codes, names = columns.texts("status")
    reasons = np.array([*(STATUSES.get(name, "x")[0] for name in names), "x"])[codes]
    letters = np.select([known & unparsed, right, known & ok], ["U", "R", "W"], "N")
    letters = np.where(damaged, np.char.lower(letters), letters)
    letters = np.where(ok | unparsed, letters, "x")
    return np.asarray(np.where(failed, reasons, letters), np.str_)
