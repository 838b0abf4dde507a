"""Confusions of options: right option and reply, by a group such as the type of the question."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from jobs.report.escaping import markdown_text
from jobs.report.formatting import markdown_table
from jobs.results.scores import read_groups

NO_OPTION = "no option"
_SHOWN = 3
_KEYS = ["cell", "value", "right", "reply"]


def confusions(parts: Sequence[tuple[str, pd.DataFrame]], group: str) -> pd.DataFrame:
    """Count every pair of right option and reply.

    Args:
        parts: Label of a cell, and its rows of `answers/*.parquet`.
        group: Group of the questions, e.g. `"type"`.

    Returns:
        Columns `cell`, `value` (of the group), `right`, `reply` and `count`, cells in the order
        given, then by value and falling count. A failure, or a reply that names no option, is
        `no option`; right replies are counted too, with `reply` equal to `right`.

    Raises:
        ValueError: If no question has the group, or the answers come from a version that did not
            write down the options.
    """
    counted = []
    known_groups: set[str] = set()
    for order, (name, rows) in enumerate(parts):
        if "answer_text" not in rows:
            raise ValueError(
                f"the answers of {name!r} hold no texts of options: they were written by an "
                "earlier version; run it again for --confusion"
            )
        scored = rows[rows["answer_text"].notna()]
        groups = [read_groups(value) for value in scored["groups"]]
        known_groups.update(key for mapping in groups for key in mapping)
        known = scored.assign(
            order=order,
            cell=name,
            value=pd.Series([m.get(group) for m in groups], scored.index, dtype=object),
            right=scored["answer_text"],
            reply=scored["choice_text"].where(scored["status"] == "ok").fillna(NO_OPTION),
        )
        sizes = known.dropna(subset=["value"]).groupby(["order", *_KEYS]).size()
        counted.append(sizes.rename("count").reset_index())
    if group not in known_groups:
        raise ValueError(
            f"--confusion {group!r} is no group of these questions; choose one of: "
            f"{', '.join(sorted(known_groups)) or 'none'}"
        )
    table = pd.concat(counted).sort_values(
        ["order", "value", "count", "right", "reply"], ascending=[True, True, False, True, True]
    )
    return table[[*_KEYS, "count"]].reset_index(drop=True)


def confusion_markdown(table: pd.DataFrame, group: str) -> str:
    """A row per cell, a column per value: wrong of asked, then the most frequent mistakes.

    Args:
        table: From `confusions`.
        group: What the values are of, for the head.
    """
    values = sorted(table["value"].unique())
    rows = []
    for name in table["cell"].unique():
        own = table[table["cell"] == name]
        rows.append([str(name), *(_entry(own[own["value"] == value]) for value in values)])
    title = markdown_text(group)
    text = f"Wrong of asked by `{title}`; the {_SHOWN} most frequent mistakes, right → reply."
    return f"{text}\n\n{markdown_table(['cell', *values], rows)}"


def _entry(pairs: pd.DataFrame) -> str:
    """One cell's mistakes among the questions with one value."""
    wrong = pairs[pairs["right"] != pairs["reply"]]
    counts = f"{wrong['count'].sum()} of {pairs['count'].sum()}"
    first = wrong.head(_SHOWN)
    mistakes = [
        f"{right} → {reply} {count}"
        for right, reply, count in zip(first["right"], first["reply"], first["count"], strict=True)
    ]
    return f"{counts}: {', '.join(mistakes)}" if mistakes else counts
