"""The replies of a run as tables that MLflow's UI shows and compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.answer_parts import AnswerParts

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient

FILE = "predictions.json"
MAX_ROWS = 500
"""Rows of one table: the UI loads all of it into the browser."""

# The first ones are those that the UI shows without scrolling.
_COLUMNS = (
    "question_id",
    "correct",
    "text",
    "answer_text",
    "choice_text",
    "status",
    "tokens_kept",
    "tokens_total",
    "benchmark",
    "video_id",
    "error",
)
# As MLflow's own `log_table` marks a file for its evaluation view. That function appends to a table
# that is there already, so a run that is logged again would have every reply twice.
_TAG, _MARK = "mlflow.loggedArtifacts", json.dumps([{"path": FILE, "type": "table"}])


def read_predictions(run_dir: Path) -> pd.DataFrame | None:
    """The first `MAX_ROWS` answers of every cell of a run; `None` if it has none.

    First by benchmark, clip and question, so that the tables of two runs show the same questions.
    A few parts of the answers are in memory at a time.
    """
    import pandas as pd

    kept: pd.DataFrame | None = None
    for table in AnswerParts(run_dir / "answers").whole_clips():
        names = [name for name in (*_COLUMNS, "cell") if name in table.column_names]
        rows = table.select(names).to_pandas()
        kept = _first(rows if kept is None else pd.concat([kept, rows]))
    return kept


def _first(rows: pd.DataFrame) -> pd.DataFrame:
    """The first rows of every cell."""
    ordered = rows.sort_values(["benchmark", "video_id", "question_id"], kind="stable")
    return ordered.groupby(["benchmark", "cell"], sort=False).head(MAX_ROWS)


def log_predictions(client: MlflowClient, run: str, rows: pd.DataFrame) -> None:
    """Put the replies of one cell into its MLflow run."""
    table = rows.drop(columns="cell")
    client.log_text(run, table.to_json(orient="split", index=False), FILE)
    client.set_tag(run, _TAG, _MARK)
