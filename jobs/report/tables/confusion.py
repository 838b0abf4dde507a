"""Confusions of options: right option and reply, by a group such as the type of the question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from jobs.report.formatting import Table, markdown_text
from jobs.results.answer_columns import OK, AnswerColumns
from jobs.results.scores import read_groups
from tango_core.errors import InputError

NO_OPTION = "no option"
_SHOWN = 3
_KEYS = ["cell", "value", "right", "reply"]


class Confusions:
    """Counts every pair of right option and reply while the answers of a run are read.

    A failure, or a reply that names no option, is `no option`; right replies are counted too, with
    the reply equal to the right option.

    Args:
        group: Group of the questions, e.g. `"type"`.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.known_groups: set[str] = set()
        self.counts: dict[tuple[str, str], Counter[tuple[str, str, str]]] = {}

    def add(self, columns: AnswerColumns) -> None:
        """Take some answers.

        Raises:
            ValueError: If they come from a version that did not write down the options.
        """
        if "answer_text" not in columns.table.column_names:
            raise InputError(
                f"the answers of {columns.cell_names[0][1]!r} hold no texts of options: they were "
                "written by an earlier version; run it again for --confusion"
            )
        rows = columns.known("answer_text").nonzero()[0]
        groups, sets = columns.texts("groups")
        mappings = [read_groups(value) for value in sets]
        used = set(groups[rows].tolist()) - {-1}
        self.known_groups.update(name for code in used for name in mappings[code])
        values = [mapping.get(self.group) for mapping in mappings] + [None]
        right, right_texts = columns.texts("answer_text")
        reply, reply_texts = columns.texts("choice_text")
        reply = np.where((columns.bits & OK) > 0, reply, -1)
        keys = np.stack([columns.cells, groups, right, reply], axis=1)[rows]
        found, counts = np.unique(keys, axis=0, return_counts=True)
        for (cell, group, right_code, reply_code), count in zip(
            found.tolist(), counts.tolist(), strict=True
        ):
            if (value := values[group]) is None:
                continue
            replied = NO_OPTION if reply_code < 0 else reply_texts[reply_code]
            own = self.counts.setdefault(columns.cell_names[cell], Counter())
            own[value, right_texts[right_code], replied] += count


def confusion_table(parts: Sequence[tuple[str, Confusions, tuple[str, str]]]) -> pd.DataFrame:
    """What was counted, as one table.

    Args:
        parts: Label of a cell, what was counted in its run, and its benchmark and name.

    Returns:
        Columns `cell`, `value` (of the group), `right`, `reply` and `count`, cells in the order
        given, then by value and falling count.

    Raises:
        ValueError: If no question has the group.
    """
    known = sorted({name for _, counted, _ in parts for name in counted.known_groups})
    group = parts[0][1].group
    if group not in known:
        raise InputError(
            f"--confusion {group!r} is no group of these questions; choose one of: "
            f"{', '.join(known) or 'none'}"
        )
    rows = [
        (label, *pair, count)
        for label, counted, cell in parts
        for pair, count in sorted(
            counted.counts.get(cell, Counter()).items(),
            key=lambda item: (item[0][0], -item[1], item[0][1:]),
        )
    ]
    return pd.DataFrame(rows, columns=[*_KEYS, "count"])


def confusion_markdown(table: pd.DataFrame, group: str) -> str:
    """A row per cell, a column per value: wrong of asked, then the most frequent mistakes.

    Args:
        table: From `confusion_table`.
        group: What the values are of, for the head.
    """
    values = sorted(table["value"].unique())
    rows = []
    for name in table["cell"].unique():
        own = table[table["cell"] == name]
        rows.append([str(name), *(_entry(own[own["value"] == value]) for value in values)])
    title = markdown_text(group)
    text = f"Wrong of asked by `{title}`; the {_SHOWN} most frequent mistakes, right → reply."
    return f"{text}\n\n{Table(['cell', *values], rows).markdown()}"


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
