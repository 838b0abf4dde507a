"""What a check found, as lines for a person and as a table for a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.markup import escape

from jobs.report.formatting import Table

Severity = Literal["error", "warning", "withheld", "note"]
SUFFIXES = (".csv", ".parquet")

_SHOWN_PER_KIND = 3


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        severity: `"error"`: questions that will fail; `"warning"`: questions that are probably
            asked about the wrong video; `"withheld"`: files that cannot be had; `"note"`: what a
            careful reader should know.
        kind: `annotation`, `missing`, `unreadable`, `truncated`, `damaged`, `length`, `bounds`,
            `timeout` or `crash`.
        path: The video, or the annotation file and row.
        video_id: The clip; "" for a row that is no question.
        question_ids: Its questions, parted by spaces.
        clip_start: Seconds, or `None` for the whole file.
        clip_end: Seconds, or `None` for the whole file.
        detail: One line.
    """

    severity: Severity
    kind: str
    path: str
    video_id: str
    question_ids: str
    clip_start: float | None
    clip_end: float | None
    detail: str


def write_findings(findings: Sequence[Finding], path: Path) -> None:
    """Write findings as CSV or, by suffix, as Parquet; the folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in fields(Finding)]
    rows = [astuple(finding) for finding in findings]
    if path.suffix == ".parquet":
        types = [pa.float64() if name.startswith("clip_") else pa.string() for name in names]
        columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(types)]
        pq.write_table(pa.table(columns, names=names), path)
        return
    path.write_text(Table(names, rows).csv(), encoding="utf-8")


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print how many findings there are of every kind, and the first of each."""
    kinds = Counter((finding.severity, finding.kind) for finding in findings)
    for severity in get_args(Severity):
        for kind, count in sorted((k, n) for (s, k), n in kinds.items() if s == severity):
            console.print(f"{severity}: {kind}: {count:,}")
            same = [f for f in findings if (f.severity, f.kind) == (severity, kind)]
            for finding in same[:_SHOWN_PER_KIND]:
                line = f"  {finding.path}: {finding.detail}"
                console.print(escape(line), highlight=False, soft_wrap=True)
            if count > _SHOWN_PER_KIND:
                console.print(f"  and {count - _SHOWN_PER_KIND:,} more")
