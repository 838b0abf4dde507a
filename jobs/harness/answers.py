"""The replies of a run, read part by part: of every answer only what a harness's file holds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from jobs.results.answer_columns import AnswerColumns, by_code
from jobs.results.reduction import parts_of

_COLUMNS = ("benchmark", "cell", "question_id", "status", "prompt_tokens", "text")

NO_REPLIES = pd.DataFrame(columns=list(_COLUMNS))


def replies_by_cell(run_dir: Path) -> dict[tuple[str, str], pd.DataFrame]:
    """Benchmark and cell -> its answers, with the columns that decide what was replied.

    Raises:
        DamagedFileError: If a file is damaged.
        FileNotFoundError: If there are none.
    """
    found: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for table in parts_of(run_dir).whole_clips():
        columns = AnswerColumns(table)
        names = [name for name in _COLUMNS if name in columns.table.column_names]
        frame = columns.table.select(names).to_pandas()
        every = columns.known("cell").nonzero()[0]
        for cell, rows in by_code(columns.cells, every):
            found.setdefault(columns.cell_names[cell], []).append(frame.iloc[rows])
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}
